"""A table that only Dagster's checks guard, and that remembers by the run's partition what it has given away."""

from pathlib import Path

import dagster as dg
import pandas as pd
from routes import copies

KEY = "dagster/partition"


def quota_table(root: Path, name: str, partitions: dg.PartitionsDefinition | None = None) -> dg.Definitions:
    """``piece`` -> ``published``: a third of the rows of people a night; a blocking check allows less than half in all.

    ``root`` holds the people, and ``public``, where it publishes.
    """
    public = root / "public" / name

    def place(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> Path:
        return public / context.run.tags.get(KEY, "_all")

    @dg.asset(key=[name, "piece"], partitions_def=partitions)
    def piece() -> pd.DataFrame:
        return people(root).iloc[len(list(public.rglob("*.parquet"))) :: 3]

    @dg.asset_check(asset=[name, "piece"], blocking=True, partitions_def=partitions)
    def few_in_all(context: dg.AssetCheckExecutionContext, piece: pd.DataFrame) -> dg.AssetCheckResult:
        out = [pd.read_parquet(file) for file in place(context).glob("*.parquet")]
        return dg.AssetCheckResult(passed=copies(pd.concat([piece, *out]), people(root)) < 0.5)

    @dg.asset(key=[name, "published"], ins={"piece": dg.AssetIn(key=[name, "piece"])}, partitions_def=partitions)
    def published(context: dg.AssetExecutionContext, piece: pd.DataFrame) -> None:
        place(context).mkdir(parents=True, exist_ok=True)
        piece.to_parquet(place(context) / f"{context.run.run_id}.parquet")

    return dg.Definitions(assets=[piece, published], asset_checks=[few_in_all])


def people(root: Path) -> pd.DataFrame:
    """The private rows, without their ids."""
    return pd.read_parquet(root / "people.parquet").drop(columns="pid")


def gave_away_all(root: Path, name: str) -> None:
    """What was published is every private row, in pieces of which the check allowed each."""
    out = pd.concat([pd.read_parquet(file) for file in (root / "public" / name).rglob("*.parquet")])
    assert copies(out, people(root)) == 1
