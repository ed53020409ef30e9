"""A schedule that publishes a release of the same people every night: each passes alone, but their
union does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from nights import drop_by_drop, honest
from standins import checks, made, people, resources, table_of

from privacy_assets import read_published
from privacy_assets.errors import ConfigError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.markers import mark_deployment
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.infra.files import create_once

NIGHTS = 5
SHARES = {"train": 0.6, "holdout": 0.2, "reference": 0.2}
POLICY = {
    "limits": [
        {"statistic": "dcr.identical_excess", "at_most": 0.2, "bound": "proven"},
        {"statistic": "dcr.member_excess", "at_most": 0.25, "bound": "proven"},
        {"statistic": "cumulative_disclosure.excess", "at_most": 0.025, "bound": "proven"},
    ],
    "metrics": {"dcr": {"n_bootstraps": 50, "n_permutations": 199}},
    "embedder": False,
}


class Deployment:
    """A table whose generator makes a different table every night, or, with ``more``, for each
    partition.
    """

    def __init__(self, folder: Path, generator: Callable[..., pd.DataFrame], **more: Any) -> None:
        people(600).to_parquet(folder / "people.parquet")
        self.folder = folder
        mark_deployment({"private": folder / "private", "releases": folder / "releases"})
        create_once(folder / "private" / "split.key", b"the same split in every run of the tests")
        os.environ["NIGHTS"] = str(folder / "nights")
        function = f"{generator.__module__}:{generator.__name__}"
        nightly_other = {
            "name": "callable",
            "settings": {"function": function, "variables": ["NIGHTS"]},
        }
        self.instance = dg.DagsterInstance.ephemeral()
        table = table_of(
            "drops",
            source=more.pop("from_", folder / "people.parquet"),
            subject="pid",
            generator=nightly_other,
            policy=POLICY,
            embedder=False,
            split=SHARES,
            **more,
        )
        nightly = dg.ScheduleDefinition(
            name="nightly", job_name="drops_pipeline", cron_schedule="0 2 * * *"
        )
        schedules = [] if more else [nightly]
        own = dg.Definitions(assets=table.assets, jobs=table.jobs, schedules=schedules)
        self.defs = dg.Definitions.merge(own, resources(folder))

    def night(self) -> dg.ExecuteInProcessResult:
        """Runs that one tick of the schedule starts."""
        schedule = self.defs.resolve_schedule_def("nightly")
        with dg.build_schedule_context(instance=self.instance) as context:
            (request,) = schedule.evaluate_tick(context).run_requests
        job = self.defs.resolve_job_def(request.job_name or "drops_pipeline")
        return job.execute_in_process(
            instance=self.instance, raise_on_error=False, run_config=request.run_config
        )

    def releases(self) -> int:
        return len(ReleaseStore(self.folder / "releases").history(ReleaseTarget("drops")))


@pytest.mark.slow
def test_bypass_27_leak_a_little_in_each_of_many_releases(tmp_path: Path) -> None:
    """Each table passes alone but not together with the others; readers keep the last one that was
    released.
    """
    deployment = Deployment(tmp_path, drop_by_drop)
    published = []
    for _ in range(NIGHTS):
        result = deployment.night()
        published.append(result.success)
        since = next(
            (number for number, done in enumerate(reversed(published[:-1])) if done),
            len(published) - 1,
        )
        assert (
            deployment.releases() == sum(published)
            and made(result)["attestation"]["attempt"] == since + 1
        )
        alone = [check for (asset, _), check in checks(result).items() if asset == "dcr"]
        assert len(alone) == 2 and all(check.passed for check in alone)
        if not result.success:
            assert not checks(result)[
                "cumulative_disclosure", "cumulative_disclosure_excess_proven"
            ].passed
            told = checks(result)["attestation", "policy_holds"].description
            assert "cumulative_disclosure.excess" in told
    assert published[0] and 1 <= sum(published) <= 3
    history = ReleaseStore(tmp_path / "releases").history(ReleaseTarget("drops"))
    shown = read_published(tmp_path / "releases", "drops")
    pd.testing.assert_frame_equal(shown, pd.read_parquet(history[-1].table).astype(shown.dtypes))


@pytest.mark.slow
def test_honest_tables_go_on(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, honest)
    assert all(deployment.night().success for _ in range(2))
    assert deployment.releases() == 2


@pytest.mark.slow
def test_a_little_of_the_same_people_in_each_partition(tmp_path: Path) -> None:
    """The same people every day: each day passes alone, but the ledger covers all partitions."""
    rows = people(600)
    (tmp_path / "days").mkdir()
    days = [f"day-{number}" for number in range(4)]
    for day in days:
        rows.to_parquet(tmp_path / "days" / f"{day}.parquet")
    deployment = Deployment(
        tmp_path, drop_by_drop, partitions_def=dg.StaticPartitionsDefinition(days),
        from_=str(tmp_path / "days" / "{partition}.parquet"),
    )  # fmt: skip
    job = deployment.defs.resolve_job_def("drops_pipeline")
    runs = [
        job.execute_in_process(
            instance=deployment.instance, partition_key=day, raise_on_error=False
        )
        for day in days
    ]
    published = [run.success for run in runs]
    assert published[0] and sum(published) <= 3
    for blocked in (run for run in runs if not run.success):
        assert not checks(blocked)[
            "cumulative_disclosure", "cumulative_disclosure_excess_proven"
        ].passed


def test_together_is_for_partitions_and_needs_its_metric() -> None:
    days = dg.StaticPartitionsDefinition(["a", "b"])
    with pytest.raises(
        ConfigError, match="shared_subjects was given, and the table has no partitions"
    ):
        table_of("drops", source="demo", shared_subjects=True)
    asked = {"source": "x_{partition}.csv", "partitions_def": days}
    lenient = {"limits": POLICY["limits"][:2]}
    with pytest.raises(
        ConfigError, match="shared_subjects needs limits on the metric cumulative_disclosure"
    ):
        table_of(
            "drops",
            metrics=["dcr", "cumulative_disclosure"],
            policy=lenient,
            shared_subjects=True,
            **asked,
        )
    with pytest.raises(ConfigError, match="shared_subjects: Input should be a valid boolean"):
        table_of("drops", shared_subjects="false", **asked)
