"""Each table's content is fingerprinted once in a run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.steps import run_table, tasks
from privacy_assets.pipeline.stored_run import StoredRun
from privacy_assets.pipeline.work import TableRun
from privacy_assets.tables import table as table_module

POLICY = {
    "name": "lenient",
    "limits": [
        {"statistic": "dcr.member_excess", "at_most": 0.1, "bound": "proven", "min_subjects": 5}
    ],
    "metrics": {"dcr": {"n_bootstraps": 50, "n_permutations": 199}},
    "embedder": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("filtered", [None, "similarity"])
def test_each_table_is_fingerprinted_once(
    adult: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    filtered: str | None,
    stored: bool,
) -> None:
    counted = []
    fingerprint = table_module.content_fingerprint
    monkeypatch.setattr(
        table_module,
        "content_fingerprint",
        lambda *given: counted.append(given[1]) or fingerprint(*given),
    )
    people = [f"person {row // 2}" for row in range(900)]
    adult.iloc[:900, :6].assign(person=people).to_parquet(tmp_path / "rows.parquet")
    spec = TableSpec(
        name="adult",
        source=tmp_path / "rows.parquet",
        subject="person",
        generator={"name": "synthpop", "filter": filtered},
        evaluation={"metrics": ["dcr", "value_disclosure"], "embedder": False},
        policy=POLICY,
    )
    deployment = DeploymentSettings(
        releases=tmp_path / "releases", private=tmp_path / "private"
    ).open()
    run = TableRun(ResolvedTable.of(spec), deployment, ReleaseTarget("adult"))
    if stored:
        steps, references = StoredRun(run, tmp_path / "private/values", "first"), dict[str, Any]()
        for task in tasks(run.table):
            references[task.name], _ = steps.run_task(task, references)
    else:
        list(run_table(run, lambda wanted: nullcontext("cpu"), lambda name: nullcontext()))
    assert deployment.store.history(run.target), "it is published"
    assert len(counted) == 5, "source, train, holdout, reference and synthetic"
