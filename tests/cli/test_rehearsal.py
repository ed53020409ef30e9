"""``privacy-assets run --rehearse``: settings are tried on the people in train, without attempts or
records.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from privacy_assets.gate.deployment import SPLIT_KEY_VARIABLE, DeploymentSettings
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.row_sources import source_table, train_rows
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.policy import Limit, judge_limit
from privacy_assets.stats.estimates import Estimate, MetricResult
from privacy_assets.tables.splitting import split_rows
from tests.cli.conftest import Command

PEOPLE, SECRET = 500, "Zebulon-77123"
LIMITS = [
    {"statistic": "copies.copied_share", "at_most": 0.5},
    {"statistic": "value_disclosure.foreign_cells", "at_most": 0},
]
POLICY: dict[str, Any] = {"name": "wide", "limits": LIMITS}
TRY = ("--rehearse", "--try", "min_samples_leaf=20,60")


def visits(seed: int = 0) -> pd.DataFrame:
    """Two visits of each person."""
    g, rows = np.random.default_rng(seed), 2 * PEOPLE
    frame = pd.DataFrame({"pid": np.arange(rows) // 2, "age": g.integers(18, 90, rows)})
    frame["town"] = g.choice(["Ayr", "Bern", "Cork", "Dole"], rows)
    return frame.assign(
        cost=g.lognormal(3, 1, rows).round(1),
        seen=pd.Timestamp("2024-01-01") + pd.to_timedelta(g.integers(0, 300, rows), "D"),
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SPLIT_KEY_VARIABLE, "the same split in every run of the tests")
    visits().to_parquet("visits.parquet")
    written()
    return tmp_path


def written(**changes: Any) -> None:
    evaluation = {"metrics": ["copies", "value_disclosure", "fidelity"], "embedder": False}
    table = {
        "name": "visits",
        "source": "visits.parquet",
        "subject": "pid",
        "evaluation": evaluation,
        "policy": POLICY,
    }
    table = {**table, "generator": {"name": "synthpop"}, **changes}
    Path("visits.yaml").write_text(
        yaml.safe_dump({name: value for name, value in table.items() if value is not None})
    )


def run(command: Command, *words: str, home: str = "home", status: int = 0) -> tuple[str, str]:
    return command("run", "visits.yaml", "--home", home, "--device=cpu", *words, status=status)


def in_train(home: str = "home") -> np.ndarray:
    """True for the rows of train in a run."""
    table = ResolvedTable.of(TableSpec.load("visits.yaml"))
    source = source_table(table, None, None, None)
    chosen = split_rows(source, DeploymentSettings(home=home).open().key("split"), table.shares)[
        "train"
    ]
    return np.isin(np.arange(len(source)), chosen)


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file and folder."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
        )
        for path in folder.rglob("*")
    }


def other_rows(before: pd.DataFrame, train: np.ndarray, text: bool) -> pd.DataFrame:
    """The same people, of whom those who are not in train have other cells; as text also of another
    kind.
    """
    other: dict[str, Any] = {
        "age": before["age"] + 500,
        "town": SECRET,
        "cost": -9.876,
        "grade": "other",
    }
    other["seen"] = pd.Timestamp("1901-02-03")
    if text:
        other |= {"age": "unknown", "cost": "1,5", "seen": "never"}
    after = before.astype(object) if text else before.astype({"grade": object})
    for name, cells in other.items():
        after.loc[~train, name] = (
            cells if isinstance(cells, str) else np.broadcast_to(cells, len(after))[~train]
        )
    assert not (after[~train] == before[~train]).drop(columns="pid").to_numpy().any()
    assert (after[train] == before[train]).to_numpy().all()
    return (
        after
        if text
        else after.assign(grade=pd.Categorical(after["grade"], ["other", "low", "high"]))
    )


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", pytest.param("csv", marks=pytest.mark.slow)])
def test_other_rows_of_holdout_and_reference_give_the_same_output(
    place: Path, command: Command, suffix: str
) -> None:
    written(source=(name := f"visits.{suffix}"))
    before = visits()
    before["grade"] = pd.Categorical(np.where(before["age"] > 50, "high", "low"))

    def save(frame: pd.DataFrame) -> None:
        frame.to_csv(name, index=False) if suffix == "csv" else frame.to_parquet(name)

    save(before)
    first, train = run(command, *TRY, "--quiet"), in_train()
    assert 0.3 < train.mean() < 0.7
    save(other_rows(before, train, suffix == "csv"))
    assert run(command, *TRY, "--quiet") == first
    assert SECRET not in "".join(first)


@pytest.mark.slow
def test_nothing_is_written_and_no_attempt_is_counted(place: Path, command: Command) -> None:
    run(command, home="other")
    before = tree(place)
    run(command, *TRY, "--quiet", home="other")
    assert tree(place) == before


@pytest.mark.slow
def test_the_first_rehearsal_creates_the_key_that_the_run_uses(
    place: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SPLIT_KEY_VARIABLE)
    first = run(command, *TRY, "--quiet")
    assert {
        path.name for path in (place / "home").rglob("*") if path.is_file() and path.name[0] != "."
    } == {"split.key", "split.check"}
    assert "publish" in run(command)[0]
    assert "pass" in (place / "reports/visits/report.json").read_text()
    assert run(command, *TRY, "--quiet") == first


@pytest.mark.slow
def test_the_lock_of_an_earlier_run_does_not_matter(
    place: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPLIT_KEY_VARIABLE, "one secret for both of them")
    frame = visits()
    frame.assign(
        town=frame["town"].where(frame.index % 3 > 0, "Elba"), cost=(frame["cost"] * 9).round(2)
    ).to_parquet("visits.parquet")
    run(command)
    # rare now
    frame.assign(town=frame["town"].where(frame.index % 250 > 0, "Elba")).to_parquet(
        "visits.parquet"
    )
    assert run(command, *TRY, "--quiet") == run(command, *TRY, "--quiet", home="new")


@pytest.mark.slow
def test_each_setting_has_a_line_and_the_yaml_runs(place: Path, command: Command) -> None:
    generator = {
        "name": "synthpop",
        "settings": {"visit": ["town", "age", "cost", "seen"]},
        "rows": 700,
    }
    written(generator=generator)
    out, err = run(command, *TRY, "--try", "smoothing=false,true")
    lines = re.findall(
        r"^min_samples_leaf=(\d+), smoothing=(\w+)  +pass with margin  .* \u2264 ",
        out,
        re.MULTILINE,
    )
    assert lines == [("20", "false"), ("20", "true"), ("60", "false"), ("60", "true")]
    assert "setting 4 of 4: min_samples_leaf=60, smoothing=true" in err
    assert re.search(r"A run trains on \d+ people and this rehearsal on \d+ of them", out)
    assert "column similarity" in out and "fidelity" not in out
    found = yaml.safe_load(out[out.index("generator:") :])
    settings = {**generator["settings"], "min_samples_leaf": 20, "smoothing": False}  # type: ignore[dict-item]
    assert found == {"generator": {**generator, "settings": settings}}
    written(**found)
    assert "publish" in run(command)[0]


@pytest.mark.slow
def test_without_try_the_settings_of_the_table_are_rehearsed(place: Path, command: Command) -> None:
    written(generator="synthpop")
    out, _ = run(command, "--rehearse", "--quiet")
    assert re.search(r"^as in the table  pass with margin  ", out, re.MULTILINE) and out.endswith(
        "generator:\n  name: synthpop\n"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--try", "min_sample_leaf=5"],
            "no setting 'min_sample_leaf'. Did you mean 'min_samples_leaf'?",
        ),
        (["--try", "min_samples_leaf=many"], "min_samples_leaf: Input should be a valid integer"),
        (["--try", "min_samples_leaf=0"], "min_samples_leaf"),
        (["--try", "min_samples_leaf=[1"], "cannot be read as YAML"),
        (["--try", "min_samples_leaf"], "expected SETTING=VALUE"),
        (["--try", "min_samples_leaf="], "expected SETTING=VALUE"),
        (["--try", "smoothing=true", "--try", "smoothing=false"], "once for each setting"),
        (["--out", "elsewhere"], "a rehearsal writes no files"),
    ],
)
def test_bad_options_exit_with_2(
    place: Path, command: Command, words: list[str], told: str
) -> None:
    before = tree(place)
    out, err = run(command, "--rehearse", *words, status=2)
    assert told in err and not out and tree(place) == before


def test_try_requires_rehearse(place: Path, command: Command) -> None:
    assert "Fix: add --rehearse" in run(command, "--try", "smoothing=true", status=2)[1]


def test_a_brought_table_has_nothing_to_rehearse(place: Path, command: Command) -> None:
    tables = dict.fromkeys(("train", "holdout", "synthetic"), "visits.parquet")
    written(source=None, generator=None, data=tables)
    _, err = run(command, "--rehearse", status=2)
    assert "cannot be rehearsed, because it has no generator. Fix: set source" in err


@pytest.mark.slow
def test_exit_statuses(place: Path, command: Command) -> None:
    written(generator="copy", policy={**POLICY, "limits": [{**LIMITS[0], "at_most": 0.1}]})
    out, _ = run(command, "--rehearse", status=1)
    assert "as in the table  fail " in out and "No setting passes with a margin: a run" in out
    assert "generator:" not in out
    written(policy={**POLICY, "limits": [{**LIMITS[0], "min_subjects": 10_000}]})
    out, _ = run(command, *TRY, status=3)
    assert out.count("  undecided  ") == 2 and "too few" in out


@pytest.mark.slow
def test_codes_that_only_a_rehearsal_rejects_are_told_as_such(
    place: Path, command: Command
) -> None:
    people = pd.concat(
        [
            visits(seed).assign(pid=lambda rows, seed=seed: rows["pid"] + seed * PEOPLE)
            for seed in range(3)
        ]
    )
    people.assign(ward=[f"W{person % 187}" for person in people["pid"]]).to_parquet(
        "visits.parquet"
    )
    _, err = run(command, "--rehearse", "--quiet", status=2)
    assert (
        "'ward' (codes that only a few rows share)" in err
        and "a run, which has all rows, may accept what is rejected here" in err
    )
    run(command, "--quiet")


def test_without_a_subject_the_rows_of_train_are_those_of_the_run(place: Path) -> None:
    visits().drop(columns="pid").to_csv("visits.csv", index=False)
    written(source="visits.csv", subject={"each_row": True})
    table, key = ResolvedTable.of(TableSpec.load("visits.yaml")), b"k" * 32
    source = source_table(table, None, None, None)
    rows = train_rows(table, key, dict)
    assert (
        rows["cost"].astype(float).tolist()
        == source.frame()["cost"][split_rows(source, key)["train"]].tolist()
    )


@pytest.mark.parametrize(("value", "narrower"), [(0.03, "pass"), (0.06, "pass"), (0.08, "fail")])
def test_the_margin_is_that_a_narrower_interval_is_within_the_limit_as_well(
    value: float, narrower: str
) -> None:
    limit = Limit("dcr.member_excess", at_most=0.05, bound="proven")
    estimate = Estimate("member_excess", value, value - 0.04, value + 0.04, 100, 100)
    found = judge_limit(limit, MetricResult("dcr", (estimate,)))
    assert found.status == "pass"
    # clipped
    assert replace(found, estimate=replace(estimate, low=0)).narrowed(0.5).estimate.low == 0
    assert found.narrowed(0.5).status == narrower and found.narrowed(1).status == "pass"
    assert found.narrowed(0.5).estimate == Estimate(
        "member_excess", value, value - 0.02, value + 0.02, 100, 100
    )
