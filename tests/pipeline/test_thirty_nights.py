"""Thirty nights of one table, end to end: an honest series goes on, and a slow leak stops before it
adds up.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets import read_published
from privacy_assets.errors import PublicationBlocked, TableSuspended
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.steps import run_table
from privacy_assets.pipeline.work import TableRun

COLUMNS = ["age", "fnlwgt", "education_num", "hours_per_week", "relationship", "sex", "income"]
NIGHTS, PEOPLE, EXCHANGED, LEAK = 30, 4000, 40, 12
POLICY = {
    "limits": [
        {"statistic": "cumulative_disclosure.excess", "at_most": 0.025, "bound": "proven"},
        {"statistic": "cumulative_disclosure.share", "at_most": 0.06, "bound": "value"},
    ],
    "embedder": False,
}
EVALUATION = {"metrics": ["cumulative_disclosure"], "embedder": False}
PLACE = ReleaseTarget("drops")


class Series:
    """A table of which 1 % of the people are exchanged each night. Sides depend on the person only.

    The released rows are rows of other people. ``leak`` of them are replaced by rows of training
    people, different ones each night.
    """

    def __init__(self, folder: Path, leak: int) -> None:
        rows = pd.read_parquet(
            Path(__file__).parents[1] / "data" / "adult.parquet", columns=COLUMNS
        ).drop_duplicates()
        rows = rows.sample(frac=1, random_state=0).reset_index(drop=True)
        self.rows = rows.assign(pid=rows.index.astype(str))
        self.folder, self.leak, self.rng = folder, leak, np.random.default_rng(7)
        self.here, self.others = list(range(PEOPLE)), 2 * PEOPLE
        self.out = set[int]()
        self.outcomes = list[str]()

    def night(self) -> str:
        """Exchange people, write the tables, and run the pipeline; return "published", "blocked" or
        "stopped".
        """
        number = len(self.outcomes)
        if number:
            left = set(self.rng.choice(self.here, EXCHANGED, replace=False).tolist())
            first = PEOPLE + EXCHANGED * number
            self.here = [person for person in self.here if person not in left] + list(
                range(first, first + EXCHANGED)
            )
        train = [person for person in self.here if person * 7919 % 100 < 50]
        holdout = [person for person in self.here if person * 7919 % 100 >= 50]
        fresh = self.rng.choice(range(self.others, len(self.rows)), len(train), replace=False)
        leaked = [person for person in train if person not in self.out][: self.leak]
        given = [*leaked, *fresh[len(leaked) :]]
        for role, chosen in (("train", train), ("holdout", holdout), ("synthetic", given)):
            self.rows.iloc[chosen].drop(columns=[] if role != "synthetic" else ["pid"]).to_parquet(
                self.folder / f"{role}.parquet"
            )
        try:
            self._run()
            self.out |= set(leaked)
            outcome = "published"
        except TableSuspended:
            outcome = "stopped"
        except PublicationBlocked:
            outcome = "blocked"
        self.outcomes.append(outcome)
        return outcome

    def _run(self) -> None:
        files = {
            role: str(self.folder / f"{role}.parquet") for role in ("train", "holdout", "synthetic")
        }
        spec = TableSpec(
            name="drops", data={**files, "subject": "pid"}, evaluation=EVALUATION, policy=POLICY
        )
        run = TableRun(
            ResolvedTable.of(spec), DeploymentSettings(home=self.folder / "home").open(), PLACE
        )
        for _ in run_table(run, lambda _: nullcontext("cpu"), lambda _: nullcontext()):
            pass


@pytest.mark.weekly
def test_an_honest_series_goes_on(tmp_path: Path) -> None:
    series = Series(tmp_path, leak=0)
    assert [series.night() for _ in range(NIGHTS)].count("published") >= NIGHTS - 1
    assert len(read_published(tmp_path / "home/releases", "drops")) > PEOPLE / 3


@pytest.mark.slow
def test_a_slow_leak_stops_the_series_before_it_adds_up(tmp_path: Path) -> None:
    """Each night gives away other 0.6 % of the training people, which is little on each night
    alone.
    """
    series = Series(tmp_path, leak=LEAK)
    found = [series.night() for _ in range(NIGHTS)]
    first, stopped = found.index("blocked"), found.index("stopped")
    assert found[:first] == ["published"] * first and first >= 3
    # The fourth failure suspends the table within its run.
    assert found[first:stopped].count("blocked") == 3 and set(found[stopped:]) == {"stopped"}
    assert len(series.out) <= 0.07 * PEOPLE / 2
