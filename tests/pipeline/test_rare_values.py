"""No route publishes a value that only a few people have: steps, command, Dagster, and external tables.

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

from privacy_assets import evaluate, read_published
from privacy_assets.cli.main import main
from privacy_assets.errors import InputError
from privacy_assets.gate.deployment import Deployment, DeploymentSettings
from privacy_assets.gate.statements import ReleaseTarget
from privacy_assets.pipeline import work
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.work import TableRun

FUNCTIONS_APART = True
N, K = 1500, 5
OTHERS = ["mail", "phone", "web", "post"]


def rows(case: str, seed: int = 0, n: int = N) -> pd.DataFrame:
    """People with a column of the case: its values that one person alone has would be published without the rule."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "pid": [f"p{seed}-{i}" for i in range(n)], "age": rng.integers(20, 90, n), "sex": rng.choice(["f", "m"], n),
    })  # fmt: skip
    own = [f"{seed}{i:05d}" for i in range(n)]
    some = rng.random(n) < (0.05 if case == "addresses" else 0.03)
    if case == "times":
        frame["v"] = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 10**8, n), unit="s")
    elif case == "ids":
        frame["v"] = rng.permutation(np.arange(10**8, 10**9, 5_000))[:n] + 2 * rng.integers(0, 99, n) + 1
    elif case == "addresses":
        frame["v"] = np.where(some, [f"name{number}@x.org" for number in own], rng.choice(OTHERS, n))
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
    monkeypatch.setenv("PRIVACY_ASSETS_SECRET", "the same split in every run")


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
    common = given["v"].isin([*OTHERS]) if case in ("addresses", "codes") else np.zeros(N, dtype=bool)
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
    snapshot = of.gate.snapshot(values["synthetic"], of.target)
    hit = given["v"].isin(rare).sum()
    assert case in ("times", "ids") or snapshot.replaced == {"v": hit}


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
    text = 'Values that fewer than 5 people have are published as "other", a shorter code, the nearest number or a'
    note = f"{text} missing value: 'v' ({count} values, {count} cells)."
    assert note in json.loads((tmp_path / "out/report.json").read_text())["notes"]
    assert note in (tmp_path / "out/report.html").read_text().replace("&#39;", "'").replace("&quot;", '"').replace(
        "&#34;", '"'
    )
    ours = read_published(tmp_path / "home/releases", "people")
    assert set(ours["v"]) == {*OTHERS, "other"}
    (file,) = (tmp_path / "home/releases/people/_all/releases").glob("*/table.parquet")
    capsys.readouterr()
    assert main(["verify", str(file), "--home", str(tmp_path / "home")]) == 0
    said = capsys.readouterr().out
    assert "values that fewer than 5 people have were replaced before publication" in said

    defs = dg.Definitions.merge(table_of("people", source=source, subject="pid", **QUICK), resources(tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(defs, instance).success
    assert set(read_published(tmp_path / "releases", "people")["v"]) == {*OTHERS, "other"}


@pytest.mark.parametrize(("case", "share"), [("codes", 0.03), ("times", 0.1), ("ids", 0.1)])
def test_evaluate_refuses_a_table_with_them(case: str, share: float) -> None:
    """The values of a share of the people of train are in the table; all else is of other people."""
    train, holdout, fresh = (rows(case, seed).drop(columns="pid") for seed in range(3))
    known = fresh["v"].isin(OTHERS) if case == "codes" else np.ones(N, dtype=bool)
    fresh["v"] = fresh["v"].where(known, "web")
    kinds = KINDS.get(case, {}).get("kinds")
    options: Any = {"metrics": "value_disclosure", "kinds": kinds, "subject": {"each_row": True}, "embedder": False}
    assert evaluate(train, holdout, fresh, **options).verdict == "pass"
    leaked = train[~train["v"].isin(OTHERS)].iloc[: round(share * N)]
    made = pd.concat([fresh.iloc[len(leaked) :], fresh.iloc[: len(leaked)].assign(v=leaked["v"].to_numpy())])
    report = evaluate(train, holdout, made, **options)
    (broken,) = report.policy_verdict.broken
    assert report.verdict == "fail" and broken.limit.statistic == "value_disclosure.own_values"
    assert broken.reason.endswith("single people are disclosed in 'v'")
    assert "privacy-assets run" in str(report.to_json()["advice"])


def test_evaluate_rejects_an_address_in_the_table() -> None:
    train, holdout, fresh = (rows("addresses", seed).drop(columns="pid") for seed in range(3))
    clean = fresh.assign(v=fresh["v"].where(fresh["v"].isin(OTHERS), "web"))
    options: Any = {"metrics": "value_disclosure", "subject": {"each_row": True}, "embedder": False}
    assert evaluate(train, holdout, clean, **options).verdict == "pass"
    assert evaluate(train, holdout, clean.replace({"v": {"post": "other"}}), **options).verdict == "pass"
    address = train["v"][train["v"].str.contains("@")].iloc[0]
    with pytest.raises(InputError, match="e-mail addresses"):
        evaluate(train, holdout, clean.assign(v=[address, *clean["v"][1:]]), **options)


@pytest.mark.slow
def test_the_list_of_a_night_is_the_last_one_and_the_new_values(tmp_path: Path) -> None:
    """On the second night three people have "b", on the third no person has "c"; a higher k starts a new list."""
    first = pd.DataFrame({"pid": [f"p{i}" for i in range(N)], "x": np.arange(N) % 9, "v": ["a"] * 1400 + ["b"] * 100})
    later = first.assign(v=["a"] * 1400 + ["b"] * 3 + ["c"] * 94 + ["d"] * 3)
    again = first.assign(v=["a"] * 1400 + ["b"] * 3 + ["c"] * 3 + ["d"] * 94)
    nights = [(frame, LENIENT) for frame in (first, later, first, again)] + [(later, {**LENIENT, "min_holders": 9})]
    published = []
    for frame, policy in nights:
        frame.to_parquet(tmp_path / "rows.parquet")
        _, values = steps(tmp_path, data={"source": tmp_path / "rows.parquet"}, policy=policy)
        published.append(values["train"].rules["v"].frequent)
    assert published == [("a", "b"), ("a", "b", "c"), ("a", "b"), ("a", "b", "c", "d"), ("a", "c")]


def test_the_list_is_of_the_same_people(tmp_path: Path) -> None:
    """Nine rows of one person have "z". If each row was a person before, "z" had several holders."""
    rows_of = pd.DataFrame({"pid": ["p0"] * 9 + [f"p{i}" for i in range(9, N)], "x": np.arange(N) % 9})
    rows_of.assign(v=["z"] * 9 + ["a"] * (N - 9)).to_parquet(tmp_path / "rows.parquet")
    found = []
    for data in ({"subject": {"each_row": True}, "drop": ["pid"]}, {"subject": "pid"}):
        spec = {"data": {"source": tmp_path / "rows.parquet", **data}, "policy": LENIENT}
        _, values = steps(tmp_path, **spec)
        found.append(values["train"].rules["v"].frequent)
    assert found == [("a", "z"), ("a",)]
