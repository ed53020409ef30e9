"""No run publishes a value that only a few people have: steps, command, Dagster, and external
tables.

The Airflow test of the honest table has such values as well (tests/airflow/test_airflow.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml
from standins import LENIENT, QUICK, resources, run, table_of

from privacy_assets import build_privacy_assets, evaluate, read_published
from privacy_assets.cli.main import main
from privacy_assets.errors import InputError
from privacy_assets.gate.deployment import Deployment, DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.pipeline import work
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.work import TableRun

FUNCTIONS_APART = True
N, K = 1500, 5
OTHERS = ["mail", "phone", "web", "post"]


def rows(case: str, seed: int = 0, n: int = N) -> pd.DataFrame:
    """People with a column of the case: its values that one person alone has would be published
    without the rule.
    """
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "pid": [f"p{seed}-{i}" for i in range(n)],
            "age": rng.integers(20, 90, n),
            "sex": rng.choice(["f", "m"], n),
        }
    )
    own = [f"{seed}{i:05d}" for i in range(n)]
    some = rng.random(n) < (0.05 if case == "addresses" else 0.03)
    if case == "times":
        frame["v"] = pd.Timestamp("2023-01-01") + pd.to_timedelta(
            rng.integers(0, 10**8, n), unit="s"
        )
    elif case == "ids":
        frame["v"] = (
            rng.permutation(np.arange(10**8, 10**9, 5_000))[:n] + 2 * rng.integers(0, 99, n) + 1
        )
    elif case == "addresses":
        frame["v"] = np.where(
            some, [f"name{number}@x.org" for number in own], rng.choice(OTHERS, n)
        )
    else:
        frame["v"] = np.where(some, [f"Z{number}" for number in own], rng.choice(OTHERS, n))
    return frame


KINDS = {"ids": {"kinds": {"v": "integer"}}}
CASES = ["addresses", "codes", "times", "ids"]


def alone(*tables: pd.DataFrame) -> set[Any]:
    """Values that fewer than K people have."""
    held = pd.concat(tables).groupby("v")["pid"].nunique()
    return set(held.index[held < K])


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "the same split in every run")


def deployment(folder: Path) -> Deployment:
    return DeploymentSettings(releases=folder / "releases", private=folder / "private").open()


def steps(folder: Path, until: str = "sample", **given: Any) -> tuple[TableRun, dict[str, Any]]:
    """Run the steps of the table ``people``, and return its values."""
    given["data"] = {"subject": "pid", **given["data"]}
    spec = TableSpec(name="people", evaluation={"metrics": ["dcr"], "embedder": False}, **given)
    of = TableRun(ResolvedTable.of(spec), deployment(folder), ReleaseTarget("people"))
    values: dict[str, Any] = {}
    for step in ("split",) if of.table.external else ("read", "split", "fit"):
        values |= getattr(work, step)(of, "", values).values
    for step in ("sample", "prepare") if until == "prepare" else ("sample",):
        values |= getattr(work, step)(of, "", values).values
    return of, values


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("generator", ["synthpop", "baynet"])
def test_a_generator_does_not_publish_them(tmp_path: Path, case: str, generator: str) -> None:
    frame = rows(case)
    frame.to_parquet(tmp_path / "rows.parquet")
    data = {"source": tmp_path / "rows.parquet", **KINDS.get(case, {})}
    of, values = steps(tmp_path, data=data, generator=generator, policy=LENIENT)
    made = work.synthetic_rows(of, values["synthetic"])["v"]
    assert len(made) == len(values["train"]) and not set(made.dropna()) & alone(frame)
    assert case in ("times", "ids") or set(made) == {*OTHERS, "other"}


@pytest.mark.parametrize("case", CASES)
def test_an_external_table_is_published_without_them(tmp_path: Path, case: str) -> None:
    """The table has the value of each fifth person of train."""
    train, holdout = rows(case), rows(case, 1)
    given = rows(case, 2).drop(columns="pid")
    common = (
        given["v"].isin([*OTHERS]) if case in ("addresses", "codes") else np.zeros(N, dtype=bool)
    )
    given["v"] = np.where(common, given["v"], rows(case, 3)["v"].sample(frac=1, random_state=0))
    given["v"] = given["v"].where(common | (np.arange(N) % 5 > 0), train["v"])
    known = given["v"].isin({*train["v"], *holdout["v"]})
    given["v"] = given["v"].where(known, train["v"].mode()[0]).astype(train["v"].dtype)
    for name, frame in {"train": train, "holdout": holdout, "synthetic": given}.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    paths = {name: tmp_path / f"{name}.parquet" for name in ("train", "holdout", "synthetic")}
    of, values = steps(tmp_path, "prepare", data={**paths, **KINDS.get(case, {})}, policy=LENIENT)
    rare = alone(train, holdout)
    assert set(given["v"]) & rare
    made = work.synthetic_rows(of, values["synthetic"])["v"]
    assert len(made) == N and not set(made) & rare
    snapshot = of.files.open_snapshot(values["synthetic"], of.target)
    hit = given["v"].isin(rare).sum()
    assert case in ("times", "ids") or snapshot.n_replaced == {"v": hit}


def test_an_unknown_value_of_an_external_table_is_left_to_the_contract(tmp_path: Path) -> None:
    train, holdout, given = (rows("codes", seed) for seed in range(3))
    for name, frame in {"train": train, "holdout": holdout}.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    given["v"] = given["v"].where(given["v"].isin(OTHERS), "web")
    given.loc[7, "v"] = "wbe"
    given.drop(columns="pid").to_parquet(tmp_path / "synthetic.parquet")
    paths = {name: tmp_path / f"{name}.parquet" for name in ("train", "holdout", "synthetic")}
    with pytest.raises(InputError, match="categories that no real table has, in 1 of 1500 cells"):
        steps(tmp_path, data=paths, policy=LENIENT)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["addresses", "codes"])
def test_the_command_and_dagster_replace_them_and_say_so(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame, source = rows(case), tmp_path / "people.parquet"
    frame.to_parquet(source)
    table = {"name": "people", "source": str(source), "subject": "pid", "policy": LENIENT}
    table["evaluation"] = {"metrics": ["dcr"], "embedder": False}
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(table))
    home = ["--home", str(tmp_path / "home"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["run", str(tmp_path / "people.yaml"), *home]) == 0
    count = len(alone(frame))
    text = (
        'Categories that fewer than 5 people have are published as "other", a shorter code, the'
        " most frequent value or"
    )
    note = f"{text} a missing value: 'v' ({count} values, {count} cells)."
    assert note in json.loads((tmp_path / "out/report.json").read_text())["notes"]
    assert note in (tmp_path / "out/report.html").read_text().replace("&#39;", "'").replace(
        "&quot;", '"'
    ).replace("&#34;", '"')
    ours = read_published(tmp_path / "home/releases", "people")
    assert set(ours["v"]) == {*OTHERS, "other"}
    (file,) = (tmp_path / "home/releases/people/_all/releases").glob("*/table.parquet")
    capsys.readouterr()
    assert main(["verify", str(file), "--home", str(tmp_path / "home")]) == 0
    said = capsys.readouterr().out
    assert "each cell has a value that at least 5 people of the real tables share\n" in said

    defs = dg.Definitions.merge(
        table_of("people", source=source, subject="pid", **QUICK), resources(tmp_path)
    )
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(defs, instance).success
    assert set(read_published(tmp_path / "releases", "people")["v"]) == {*OTHERS, "other"}


@pytest.mark.parametrize(("case", "share"), [("codes", 0.03), ("times", 0.1), ("ids", 0.1)])
def test_evaluate_blocks_a_table_with_them(case: str, share: float) -> None:
    """The values of a share of the people of train are in the table; all else is of other
    people.
    """
    train, holdout, fresh = (rows(case, seed).drop(columns="pid") for seed in range(3))
    known = fresh["v"].isin(OTHERS) if case == "codes" else np.ones(N, dtype=bool)
    fresh["v"] = fresh["v"].where(known, "web")
    kinds = KINDS.get(case, {}).get("kinds")
    options: Any = {
        "metrics": "value_disclosure",
        "kinds": kinds,
        "subject": {"each_row": True},
        "embedder": False,
    }
    assert evaluate(train, holdout, fresh, **options).verdict == "pass"
    leaked = train[~train["v"].isin(OTHERS)].iloc[: round(share * N)]
    made = pd.concat(
        [fresh.iloc[len(leaked) :], fresh.iloc[: len(leaked)].assign(v=leaked["v"].to_numpy())]
    )
    report = evaluate(train, holdout, made, **options)
    (broken,) = report.policy_verdict.not_passed
    assert report.verdict == "fail" and broken.limit.statistic == "value_disclosure.own_values"
    assert broken.reason.endswith("single people are disclosed in 'v'")
    assert "privacy-assets run" in str(report.to_json()["advice"])


def test_evaluate_rejects_an_address_in_the_table() -> None:
    train, holdout, fresh = (rows("addresses", seed).drop(columns="pid") for seed in range(3))
    clean = fresh.assign(v=fresh["v"].where(fresh["v"].isin(OTHERS), "web"))
    options: Any = {"metrics": "value_disclosure", "subject": {"each_row": True}, "embedder": False}
    assert evaluate(train, holdout, clean, **options).verdict == "pass"
    assert (
        evaluate(train, holdout, clean.replace({"v": {"post": "other"}}), **options).verdict
        == "pass"
    )
    address = train["v"][train["v"].str.contains("@")].iloc[0]
    with pytest.raises(InputError, match="e-mail addresses"):
        evaluate(train, holdout, clean.assign(v=[address, *clean["v"][1:]]), **options)


def test_each_release_is_judged_by_its_own_people(tmp_path: Path) -> None:
    """Eight people had "b" in a run without a release. Later, one has it."""
    first = pd.DataFrame(
        {"pid": [f"p{i}" for i in range(N)], "x": np.arange(N) % 9, "v": ["a", "c"] * (N // 2)}
    )
    first.loc[:7, "v"] = "b"
    later = first.assign(v=first["v"].where(first.index < 1, "a").where(first.index != 9, "c"))
    published = []
    for frame in (first, later):
        frame.to_parquet(tmp_path / "rows.parquet")
        _, values = steps(tmp_path, data={"source": tmp_path / "rows.parquet"}, policy=LENIENT)
        real = pd.concat([values[role].frame() for role in ("train", "holdout", "reference")])
        published.append(sorted(real["v"].unique()))
        assert real.groupby("v")["pid"].nunique().min() >= K
    assert published == [["a", "b", "c"], ["a"]]


def test_nine_rows_of_one_person_are_one_person(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"pid": ["p0"] * 9 + [f"p{i}" for i in range(9, N)], "x": np.arange(N) % 9}
    )
    frame.assign(v=["z"] * 9 + ["a"] * (N - 39) + ["b"] * 30).to_parquet(tmp_path / "rows.parquet")
    published = []
    for data in ({"subject": {"each_row": True}, "drop": ["pid"]}, {"subject": "pid"}):
        spec = {"data": {"source": tmp_path / "rows.parquet", **data}, "policy": LENIENT}
        _, values = steps(tmp_path, **spec)
        published.append(sorted(set(values["train"].rules["v"].recoding.values())))
    assert published == [["a", "b", "z"], ["a", "other"]]


def measurements(share: float, seed: int, n: int = 2_000) -> pd.DataFrame:
    """A laboratory value with six decimals, a time to the second and an account number. A share has
    own values.
    """
    rng = np.random.default_rng(seed)
    own = rng.random(n) < share
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    return pd.DataFrame({
        "pid": [f"p{seed}-{i}" for i in range(n)], "ward": rng.choice(list("abcd"), n),
        "lab": np.where(own, np.round(rng.normal(5, 1, n), 6), np.round(rng.normal(5, 1, n), 1)),
        "seen": day.where(~own, day + pd.to_timedelta(rng.integers(1, 86_400, n), unit="s")),
        "account": np.where(own, rng.integers(10**8, 10**9, n), rng.integers(1, 9, n) * 10**8),
    })  # fmt: skip


MEASURED = ["lab", "seen", "account"]


def exact_values(released: pd.DataFrame, *real: pd.DataFrame) -> int:
    """Number of cells of the release with a value of full resolution that fewer than five people
    have.
    """
    frame = pd.concat(real)
    fine = {
        "lab": frame["lab"].round(1) != frame["lab"],
        "seen": frame["seen"].dt.normalize() != frame["seen"],
        "account": frame["account"] % 10**8 != 0,
    }
    return sum(int(released[name].isin(frame.loc[fine[name], name]).sum()) for name in MEASURED)


@pytest.mark.parametrize("share", [0.2, 0.45])
def test_a_brought_table_gives_no_value_of_a_person(tmp_path: Path, share: float) -> None:
    train, holdout = measurements(share, 0), measurements(share, 1)
    brought = train.drop(columns="pid").sample(frac=1, random_state=0)
    assert exact_values(brought, train, holdout) > 2.5 * share * len(train)
    for name, frame in {"train": train, "holdout": holdout, "synthetic": brought}.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    paths = {name: tmp_path / f"{name}.parquet" for name in ("train", "holdout", "synthetic")}
    of, values = steps(tmp_path, data={**paths, "kinds": {"account": "integer"}}, policy=LENIENT)
    released = work.synthetic_rows(of, values["synthetic"])
    real = pd.concat([values[role].frame() for role in ("train", "holdout")])
    for name in MEASURED:
        holders = real.groupby(name)["pid"].nunique()
        assert holders.reindex(released[name].unique(), fill_value=0).min() >= K
    assert exact_values(released, train, holdout) == 0


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.45])
def test_neither_the_command_nor_dagster_publishes_a_value_of_a_person(
    tmp_path: Path, share: float
) -> None:
    frame, source = measurements(share, 0), tmp_path / "people.parquet"
    frame.to_parquet(source)
    data = {"kinds": {"account": "integer"}}
    table = {
        "name": "people",
        "source": str(source),
        "subject": "pid",
        "policy": LENIENT,
        "data": data,
    }
    table["evaluation"] = {"metrics": ["dcr"], "embedder": False}
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(table))
    home = ["--home", str(tmp_path / "home"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["run", str(tmp_path / "people.yaml"), *home]) == 0
    assert exact_values(read_published(tmp_path / "home/releases", "people"), frame) == 0
    spec = TableSpec(
        name="people",
        data={"source": source, "subject": "pid", **data},
        evaluation=table["evaluation"],
        policy=LENIENT,
    )
    defs = dg.Definitions.merge(build_privacy_assets(spec), resources(tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(defs, instance).success
    assert exact_values(read_published(tmp_path / "releases", "people"), frame) == 0


@pytest.mark.slow
@pytest.mark.parametrize("generator", ["function", "brought"])
def test_numbers_far_outside_stop_a_run_under_every_policy(tmp_path: Path, generator: str) -> None:
    train, holdout = rows("times"), rows("times", 1)
    made = train.drop(columns="pid").assign(age=train["age"].where(train.index != 3, 10_000))
    for name, frame in {"train": train, "holdout": holdout, "synthetic": made}.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    wanted = (
        r"column 'age', row 3: it has numbers or times that are farther outside .* in 1 of"
        r" 1500 cells"
    )
    if generator == "brought":
        paths = {name: tmp_path / f"{name}.parquet" for name in ("train", "holdout", "synthetic")}
        with pytest.raises(InputError, match=wanted):
            steps(tmp_path, data=paths, policy=LENIENT)
        return
    with pytest.raises(InputError, match="farther outside"):
        steps(
            tmp_path,
            data={"source": tmp_path / "train.parquet"},
            generator=_too_old,
            policy=LENIENT,
        )


def _too_old(train: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    return train.sample(n, replace=True, random_state=seed).assign(age=10_000)


def test_a_release_by_the_rule_is_no_evidence_on_own_values(tmp_path: Path) -> None:
    rows("codes").to_parquet(tmp_path / "rows.parquet")
    table = {"source": tmp_path / "rows.parquet", "subject": "pid"}
    limits = [
        {"statistic": "value_disclosure.own_values", "at_most": 0.005, "bound": "proven"},
        {"statistic": "value_disclosure.foreign_cells", "at_most": 0.0},
    ]
    spec = TableSpec(
        name="people", data=table, policy={"name": "values", "limits": limits},
        evaluation={"metrics": ["value_disclosure"], "embedder": False},
    )  # fmt: skip
    of = TableRun(ResolvedTable.of(spec), deployment(tmp_path), ReleaseTarget("people"))
    values: dict[str, Any] = {}
    for step in ("read", "split", "fit", "sample", "prepare"):
        values |= getattr(work, step)(of, "", values).values
    scored = work.score(of, "value_disclosure", values)
    outcomes = {outcome.limit.statistic: outcome for outcome in scored.outcomes}
    own = outcomes["value_disclosure.own_values"]
    assert own.by_rule and own.passed and not outcomes["value_disclosure.foreign_cells"].by_rule
    values |= scored.values
    report = work.attest(of, "", values).values["privacy_report"]
    assert "2 limits hold: 1 with evidence, 1 by the threshold rule." in report.page().headline
    assert [limit["label"] for limit in report.page().limits] == ["by rule", "pass"]
    words = {answer["title"]: answer["word"] for answer in report.page().answers}
    assert (
        words["Does the table contain values that only one person has?"]
        == "No, by the threshold rule"
    )
    assert set(report.changes) == {"age", "sex", "v"}
    assert "% of the cells changed" in report.to_html()
