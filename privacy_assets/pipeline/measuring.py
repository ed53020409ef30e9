"""What a metric measures: the real tables, the synthetic rows and the encoder as its inputs, and their fingerprints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.evaluation import prepare_inputs
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.pipeline.tagging import content_of, data_columns, schema_of, subject_of
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.embedding.embedder import Embedder
    from privacy_assets.pipeline.deployment import Deployment
    from privacy_assets.pipeline.plan import TablePlan


def fitted_embedder(
    plan: TablePlan, tables: Mapping[str, pd.DataFrame], device: str = "cpu", progress: Progress = silent
) -> Embedder:
    """The contrastive encoder of a table, trained on all real rows alike."""
    from privacy_assets.embedding.embedder import train_embedder
    from privacy_assets.embedding.settings import EmbedderSettings

    schema = schema_of(tables["train"], "train").measured
    real = [data_columns(frame, role).under(schema) for role, frame in tables.items()]
    chosen = EmbedderSettings(**(plan.embedder or {}))
    return train_embedder(real, schema, chosen, seed=plan.seed, device=device, progress=progress)


def metric_inputs(
    tables: Mapping[str, pd.DataFrame],
    synthetic: pd.DataFrame,
    released: Sequence[pd.DataFrame] = (),
    *,
    seed: int,
    device: str = "cpu",
    progress: Progress = silent,
) -> MetricInputs:
    """Inputs of the metrics from the tagged real tables, the synthetic rows and what was released before."""
    train = tables["train"]
    return prepare_inputs(
        train,
        tables["holdout"],
        synthetic,
        tables.get("reference"),
        subject=subject_of(train, "train"),
        schema=schema_of(train, "train"),
        released=released,
        seed=seed,
        device=device,
        progress=progress,
    )


def fingerprints(
    tables: Mapping[str, pd.DataFrame], synthetic: pd.DataFrame, embedder: Embedder | None, deployment: Deployment
) -> dict[str, str]:
    """What identifies the inputs of a score, by role: fingerprints of the tables and of the embedder.

    All are keyed but that of the synthetic table, which may be published.
    """
    schema = schema_of(tables["train"], "train")
    found = {role: table_fingerprint(frame, role, deployment) for role, frame in tables.items()}
    found["synthetic"] = Table.of(synthetic, schema, where="synthetic").fingerprint
    return found if embedder is None else {**found, "embedder": deployment.keyed(embedder.fingerprint())}


def table_fingerprint(frame: pd.DataFrame, role: str, deployment: Deployment) -> str:
    """Keyed fingerprint of a tagged private table: its rows, and whose they are."""
    return deployment.keyed(content_of(frame, role))
