"""A filtered table, from its settings to its attestation."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from drawing import half_memorised
from standins import QUICK, failures, independent, made, memorise, people, resources, run, slow, table_of

from privacy_assets import read_published
from privacy_assets.dagster.io import load_value
from privacy_assets.errors import ConfigError
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.gate.statements import Place
from privacy_assets.generators.filters import MemorizationFilter, as_filters
from privacy_assets.pipeline.tagging import data_columns, schema_of
from privacy_assets.tables.table import Table

FILTER = {"name": "memorization", "settings": {"quantile": 0.2, "crowd": 3}}


def table(place: Path, **changes: object) -> dg.Definitions:
    arguments = {"source": place / "people.parquet", "subject": "pid", "generator": independent, **QUICK, **changes}
    return dg.Definitions.merge(table_of("people", **arguments), resources(place))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    people().to_parquet(tmp_path / "people.parquet")
    return tmp_path


def attested(place: Path) -> dict:
    envelope = json.loads((place / "storage/people/attestation/attestation.json").read_bytes())
    return json.loads(base64.b64decode(envelope["payload"]))


def test_a_filtered_table_is_published_and_says_so(place: Path, instance: dg.DagsterInstance) -> None:
    metrics = [*QUICK["metrics"], "membership_inference", "memorization"]
    filtered = table(place, generator=half_memorised, filter=FILTER, metrics=metrics)
    result = run(filtered, instance)
    assert result.success, failures(result)
    metadata = made(result)
    told = metadata["synthetic"]
    assert told["filter"] == "memorization" and told["radius of memorization"] > 0
    assert told["rows dropped by memorization"] == told["rows dropped"]
    assert told["rows dropped"] >= told["dagster/row_count"] // 3
    assert told["rows drawn"] >= told["rows dropped"] + told["dagster/row_count"]
    upstream = {found.asset_key.path[-1] for found in told["dagster/column_lineage"].deps_by_column["age"]}
    assert upstream == {"train", "holdout", "reference"}

    frames = {
        r: load_value(place / "storage/people" / r, dg.AssetKey(r), None) for r in ("train", "holdout", "reference")
    }
    people_ids = pd.factorize(pd.concat([frame["pid"] for frame in frames.values()], ignore_index=True))[0]
    schema = schema_of(frames["train"], "train")
    released = Table.of(read_published(place / "releases", "people"), schema, where="released")
    chosen = MemorizationFilter(**FILTER["settings"])
    fitted = chosen.fit([data_columns(frame, role) for role, frame in frames.items()], schema, people_ids)
    assert len(released) == len(frames["train"]) and not fitted.exposed(released).any()

    page = next((place / "storage/people/privacy_report").rglob("*.html")).read_text()
    assert f"{told['rows dropped']:,}" in page.replace("\u202f", ",") and "filter.filters.memorization.crowd" in page

    assert "rows drawn were left out" in page and "Before and after the filter" in page
    report = json.loads(next((place / "storage/people/privacy_report").rglob("*.json")).read_text())
    before = report["generator"]["filter"]["before"]["memorization"]["estimates"]["exposed"]["value"]
    assert before > 0.2 > report["metrics"]["memorization"]["estimates"]["exposed"]["value"]
    assert "filter.before" not in page and "before" not in json.dumps(attested(place))

    predicate = attested(place)["predicate"]
    assert predicate["setup"]["filter"] == {"memorization": chosen.settings()}


def test_several_filters_leave_out_what_any_of_them_does(place: Path, instance: dg.DagsterInstance) -> None:
    """Whatever their order; each stands in metadata, report and attestation with its settings and its count."""
    outliers = {"name": "outliers", "settings": {"quantile": 0.8}}
    filtered = table(place, generator=half_memorised, filter=[outliers, FILTER])
    result = run(filtered, instance)
    assert result.success, failures(result)
    turned = table(place, generator=half_memorised, filter=[FILTER, outliers])
    assert run(turned, instance, "published").success
    told = made(result)["synthetic"]
    assert told["filter"] == "memorization, outliers"
    each = [told[f"rows dropped by {name}"] for name in ("memorization", "outliers")]
    assert min(each) > 0 and max(each) <= told["rows dropped"] <= sum(each)
    report = json.loads(next((place / "storage/people/privacy_report").rglob("*.json")).read_text())
    assert report["generator"]["filter"]["dropped_by"] == dict(zip(("memorization", "outliers"), each, strict=True))
    rows = {row["name"]: row for row in report["privacy_configuration"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "similarity": "off", "memorization": "on", "outliers": "on", "over-fitting": "unknown",
        "differential privacy": "unknown",
    }  # fmt: skip
    assert "quantile 0.8" in rows["outliers"]["how"] and f"{each[1]:,} of" in rows["outliers"]["how"]
    stated = attested(place)["predicate"]["setup"]["filter"]
    assert stated == {one.name: one.settings() for one in as_filters([FILTER, outliers])}


@pytest.mark.parametrize(
    ("generator", "overfitting", "privacy"),
    [
        slow(({"name": "synthpop", "settings": {"min_leaf": 40}}, ("on", "40 training rows"), ("off", ""))),
        slow(("copy", ("off", ""), ("off", ""))),
        ({"name": "privbayes", "settings": {"epsilon": 3}}, ("on", "at most 1 parents"), ("on", "epsilon 3, delta 0")),
    ],
)
def test_the_report_tells_how_the_generator_protects_its_rows(
    place: Path, generator: object, overfitting: tuple[str, str], privacy: tuple[str, str], instance: dg.DagsterInstance
) -> None:
    """From the signed snapshot; nothing of it but names of columns, epsilon and settings comes from the fit."""
    result = run(table(place, generator=generator), instance)
    assert "privacy_report" in made(result), failures(result)
    report = json.loads(next((place / "storage/people/privacy_report").rglob("*.json")).read_text())
    rows = {row["name"]: row for row in report["privacy_configuration"]}
    for name, (state, words) in {"over-fitting": overfitting, "differential privacy": privacy}.items():
        assert rows[name]["state"] == state and words in rows[name]["how"]
    assert {rows[name]["state"] for name in ("similarity", "memorization", "outliers")} == {"off"}
    if privacy[0] == "on":
        assert "outside of it: range or few values of age" in rows["differential privacy"]["how"]
        assert report["generator"]["privacy"]["epsilon"] == 3


def test_a_filter_reads_the_real_rows_outside_of_the_budget(place: Path, instance: dg.DagsterInstance) -> None:
    private = {"name": "privbayes", "settings": {"epsilon": 3}}
    result = run(table(place, generator=private, filter=FILTER), instance)
    assert "privacy_report" in made(result), failures(result)
    report = json.loads(next((place / "storage/people/privacy_report").rglob("*.json")).read_text())
    assert "which rows the filters memorization left out" in report["generator"]["privacy"]["outside_guarantee"]
    row = next(row for row in report["privacy_configuration"] if row["name"] == "differential privacy")
    assert "which rows the filters memorization left out" in row["how"]


@pytest.mark.slow
def test_checks_do_not_ask_for_a_filter_that_is_on(place: Path, instance: dg.DagsterInstance) -> None:
    # one-sided, so it never reads as avoidance of members, wherever the split of this run's key falls
    asked = {
        "metrics": ["memorization"],
        "policy": {"limits": [{"statistic": "memorization.exposed", "at_most": 0.0, "smallest_n": 5}]},
    }
    actions = {}
    for name in (None, FILTER):
        result = run(table(place, filter=name, **asked), instance)
    check = next(e for e in result.get_asset_check_evaluations() if e.check_name == "policy_holds")
    actions[name is None] = " ".join(r.data["what"] for r in check.metadata["what can be done"].records)
    score = next(e for e in result.get_asset_check_evaluations() if e.asset_key.path[-1] == "memorization")
    assert [r.data["what"] for r in score.metadata["what can be done"].records]
    assert actions[name is None] == " ".join(r.data["what"] for r in score.metadata["what can be done"].records)
    assert "filter: memorization" in actions[True] and "filter: memorization" not in actions[False]
    assert "leave out more" in actions[False] and "leave out more" not in actions[True]


@pytest.mark.parametrize(
    ("then", "now"),
    [slow((None, FILTER)), slow((FILTER, None)), slow((FILTER, "memorization")), (FILTER, [FILTER, "outliers"])],
)
def test_another_filter_is_another_setup(place: Path, then: object, now: object, instance: dg.DagsterInstance) -> None:
    """Neither can a table that was made otherwise be attested, nor an attestation of then publish."""
    assert run(table(place, filter=then), instance).success
    count = len(ReleaseStore(place / "releases").history(Place("people")))
    late = run(table(place, filter=now), instance, "published")
    again = run(table(place, filter=now), instance, "attestation")
    assert "other settings (filter)" in failures(late)["people__published"].user_failure_data.description
    assert "made with another filter" in failures(again)["people__attestation"].user_failure_data.description
    assert len(ReleaseStore(place / "releases").history(Place("people"))) == count


def test_a_generator_that_only_copies_leaves_nothing(place: Path, instance: dg.DagsterInstance) -> None:
    result = run(table(place, generator=memorise, filter="memorization"), instance)
    message = failures(result)["people__synthetic"].error.cause.message
    assert "rows drawn passed" in message and "memorise less" in message
    assert "published" not in made(result)


def test_the_filter_reads_every_real_table(place: Path) -> None:
    plain, filtered = table(place), table(place, filter=["outliers", "memorization"])
    for defs, expected in ((plain, {"train"}), (filtered, {"train", "holdout", "reference"})):
        spec = next(s for asset in defs.assets for s in asset.specs if s.key.path[-1] == "synthetic")
        assert {dep.asset_key.path[-1] for dep in spec.deps} == {*expected, "generator"}
        assert ("filtered by memorization, outliers" in spec.description) == (len(expected) > 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"filter": "memorisation"}, "Did you mean 'memorization'"),
        ({"filter": 3}, "'name' and 'settings'"),
        ({"filter": {"nam": "memorization"}}, "'name' and 'settings'"),
        ({"filter": {"name": "memorization", "settings": 3}}, "'name' and 'settings'"),
        ({"filter": {"name": "memorization", "settings": {"crwd": 3}}}, "Did you mean 'crowd'"),
        ({"filter": {"name": "memorization", "settings": {"crowd": 1}}}, "crowd"),
        ({"filter": ["outliers", "outlier"]}, "Did you mean 'outliers'"),
        ({"filter": ["outliers", "outliers"]}, "given twice"),
    ],
)
def test_wrong_filters_fail_when_the_code_location_loads(arguments: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        table_of("people", source="demo", **arguments)
    assert "people" in str(caught.value)


def test_a_table_of_the_users_own_is_not_filtered() -> None:
    with pytest.raises(ConfigError, match="draws further rows"):
        table_of("people", synthetic="s.csv", train="t.csv", holdout="h.csv", filter="memorization")
