"""Tables that only Dagster's own checks guard: private rows are copied, scored, checked and
published.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pandas as pd
from drawing import memorize

KEY = "dagster/partition"
Generator = Callable[[pd.DataFrame, int, int], pd.DataFrame]


@dataclass(frozen=True)
class Folder:
    """Private rows, and a folder ``public`` for publications without a gate."""

    root: Path

    @property
    def private(self) -> pd.DataFrame:
        """The rows of people, without their ids."""
        return pd.read_parquet(self.root / "people.parquet").drop(columns="pid")

    def write_public(self, frame: pd.DataFrame, name: str, run_id: str) -> None:
        """Publish without a gate, one file per run.

        Args:
            frame: Rows to publish.
            name: Name of the publication.
            run_id: Id of the run.
        """
        folder = self.root / "public" / name
        folder.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(folder / f"{run_id}.parquet")

    def leaked(self, name: str, run_id: str) -> None:
        """Check that a run published private rows.

        Args:
            name: Name of the publication.
            run_id: Id of the run.
        """
        public = pd.read_parquet(self.root / "public" / name / f"{run_id}.parquet")
        assert len(public) and copies(self.private, public) == 1

    def gave_away_all(self, name: str) -> None:
        """Check that the publications together hold every private row; the check allowed each.

        Args:
            name: Name of the publications.
        """
        files = (self.root / "public" / name).rglob("*.parquet")
        published = pd.concat([pd.read_parquet(file) for file in files])
        assert copies(published, self.private) == 1


def copies(private: pd.DataFrame, frame: pd.DataFrame) -> float:
    """Return the share of rows that are private rows, in all columns except the income, which
    pipelines round.

    Args:
        private: Private rows.
        frame: Rows to compare, with the same columns.
    """
    is_copy = _spelled(frame).isin(set(_spelled(private)))
    return float(is_copy.mean())


def _spelled(frame: pd.DataFrame) -> pd.Series:
    columns = sorted(set(frame.columns) - {"income"})
    return frame[columns].astype(str).fillna("").agg("|".join, axis=1)


def stock_table(
    folder: Folder,
    name: str,
    *,
    generator: Generator = memorize,
    partitions: dg.PartitionsDefinition | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    raises: bool = False,
    checked: bool = True,
    condition: dg.AutomationCondition | None = None,
) -> dg.Definitions:
    """Return the assets ``synthetic`` -> ``score`` -> ``published`` with a blocking check on
    ``score``.

    Args:
        folder: Private rows, and the folder of publications.
        name: Name of the table.
        generator: Function that creates the rows.
        partitions: Partitions by region, or None.
        severity: Severity of the check.
        raises: Whether the check raises an error.
        checked: False: there is no check.
        condition: Condition that materializes ``published``, or None.
    """
    ins = {role: dg.AssetIn(key=[name, role]) for role in ("synthetic", "score")}

    @dg.asset(key=[name, "synthetic"], partitions_def=partitions)
    def synthetic(context: dg.AssetExecutionContext) -> pd.DataFrame:
        rows = folder.private
        if context.has_partition_key:
            rows = rows[rows["region"] == context.partition_key]
        return generator(rows, len(rows), 0)

    @dg.asset(key=[name, "score"], ins={"synthetic": ins["synthetic"]}, partitions_def=partitions)
    def score(synthetic: pd.DataFrame) -> float:
        return copies(folder.private, synthetic)

    @dg.asset(
        key=[name, "published"], ins=ins, partitions_def=partitions, automation_condition=condition
    )
    def published(context: dg.AssetExecutionContext, synthetic: pd.DataFrame, score: float) -> None:
        folder.write_public(synthetic, name, context.run.run_id)

    @dg.asset_check(asset=[name, "score"], blocking=True, partitions_def=partitions)
    def few_copies(score: float) -> dg.AssetCheckResult:
        if raises:
            raise RuntimeError("the check is broken")
        return dg.AssetCheckResult(passed=score < 0.5, severity=severity)

    return dg.Definitions(
        assets=[synthetic, score, published], asset_checks=[few_copies] if checked else []
    )


def quota_table(
    folder: Folder, name: str, partitions: dg.PartitionsDefinition | None = None
) -> dg.Definitions:
    """Return the assets ``piece`` -> ``published``: a third of the rows each night; a blocking
    check allows less than half in total.

    It remembers the published rows by the run's partition.

    Args:
        folder: Private rows, and the folder of publications.
        name: Name of the table.
        partitions: Partitions, or None.
    """
    public = folder.root / "public" / name

    def public_folder(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> Path:
        return public / context.run.tags.get(KEY, "_all")

    @dg.asset(key=[name, "piece"], partitions_def=partitions)
    def piece() -> pd.DataFrame:
        n_published = len(list(public.rglob("*.parquet")))
        return folder.private.iloc[n_published::3]

    @dg.asset_check(asset=[name, "piece"], blocking=True, partitions_def=partitions)
    def few_in_all(
        context: dg.AssetCheckExecutionContext, piece: pd.DataFrame
    ) -> dg.AssetCheckResult:
        files = public_folder(context).glob("*.parquet")
        published = [pd.read_parquet(file) for file in files]
        share = copies(pd.concat([piece, *published]), folder.private)
        return dg.AssetCheckResult(passed=share < 0.5)

    @dg.asset(
        key=[name, "published"],
        ins={"piece": dg.AssetIn(key=[name, "piece"])},
        partitions_def=partitions,
    )
    def published(context: dg.AssetExecutionContext, piece: pd.DataFrame) -> None:
        run_folder = public_folder(context)
        run_folder.mkdir(parents=True, exist_ok=True)
        piece.to_parquet(run_folder / f"{context.run.run_id}.parquet")

    return dg.Definitions(assets=[piece, published], asset_checks=[few_in_all])
