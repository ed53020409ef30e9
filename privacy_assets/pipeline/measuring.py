"""What a metric measures: the real tables, the synthetic rows and the encoder as its inputs, and their fingerprints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.evaluation import joint_inputs
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.pipeline.private_table import PrivateTable
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.embedding.embedder import Embedder
    from privacy_assets.pipeline.plan import TablePlan


def fitted_embedder(
    plan: TablePlan, tables: Mapping[str, PrivateTable], device: str = "cpu", progress: Progress = silent
) -> Embedder:
    """The contrastive encoder of a table, trained on all real rows alike."""
    from privacy_assets.embedding.embedder import train_embedder
    from privacy_assets.embedding.settings import EmbedderSettings

    schema = tables["train"].schema.measured
    real = [table.rows.under(schema) for table in tables.values()]
    chosen = EmbedderSettings(**(plan.embedder or {}))
    return train_embedder(real, schema, chosen, seed=plan.seed, device=device, progress=progress)


def metric_inputs(
    tables: Mapping[str, PrivateTable],
    synthetic: Table,
    *,
    seed: int,
    device: str = "cpu",
    progress: Progress = silent,
) -> MetricInputs:
    """Inputs of the metrics from the real tables and the synthetic rows."""
    subjects = {role: table.subject for role, table in tables.items() if table.subject is not None}
    real = {role: table.rows for role, table in tables.items()}
    return joint_inputs({**real, "synthetic": synthetic}, subjects, seed=seed, device=device, progress=progress)
