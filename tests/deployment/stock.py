"""Tables guarded by nothing but Dagster's blocking checks: private rows are copied, scored, checked and published."""

import os
from pathlib import Path

import dagster as dg
import pandas as pd

ROOT = Path(os.environ["DEPLOYMENT_ROOT"])
PRIVATE = ROOT / "people.parquet"


def copies(frame: pd.DataFrame) -> float:
    """Share of private rows among the rows of ``frame``."""
    private, public = (pd.util.hash_pandas_object(rows, index=False) for rows in (pd.read_parquet(PRIVATE), frame))
    return float(public.isin(private).mean())


def write_public(frame: pd.DataFrame, table: str, run_id: str) -> None:
    """Publish: one file a run."""
    folder = ROOT / "public" / table
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(folder / f"{run_id}.parquet")


def stock_table(
    name: str,
    *,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    raises: bool = False,
    checked: bool = True,
    condition: dg.AutomationCondition | None = None,
) -> dg.Definitions:
    """``synthetic`` (a copy) -> ``score`` -> ``published``, with a blocking check on ``score``."""
    ins = {role: dg.AssetIn(key=[name, role]) for role in ("synthetic", "score")}

    @dg.asset(key=[name, "synthetic"])
    def synthetic() -> pd.DataFrame:
        return pd.read_parquet(PRIVATE)

    @dg.asset(key=[name, "score"], ins={"synthetic": ins["synthetic"]})
    def score(synthetic: pd.DataFrame) -> float:
        return copies(synthetic)

    @dg.asset(key=[name, "published"], ins=ins, automation_condition=condition)
    def published(context: dg.AssetExecutionContext, synthetic: pd.DataFrame, score: float) -> None:
        write_public(synthetic, name, context.run.run_id)

    @dg.asset_check(asset=[name, "score"], blocking=True)
    def few_copies(score: float) -> dg.AssetCheckResult:
        if raises:
            raise RuntimeError("the check is broken")
        return dg.AssetCheckResult(passed=score < 0.5, severity=severity)

    return dg.Definitions(assets=[synthetic, score, published], asset_checks=[few_copies] if checked else [])
