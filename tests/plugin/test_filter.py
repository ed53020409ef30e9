"""A filtered table, from its settings to its attestation."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from standins import QUICK, failures, independent, made, memorise, people, resources, run

from privacy_assets import build_privacy_assets, read_published
from privacy_assets.engine.filters import MemorizationFilter
from privacy_assets.engine.tables.schema import conform
from privacy_assets.errors import ConfigError
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.gate.statements import Place
from privacy_assets.plugin.io import load_value
from privacy_assets.plugin.tagging import data_columns, schema_of

FILTER = {"name": "memorization", "settings": {"quantile": 0.2, "crowd": 3}}


def half_memorised(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Independent rows, of which a third is replaced by training rows."""
    made_up, copies = independent(train, rows, seed), memorise(train, rows, seed)
    return pd.concat([copies.iloc[: rows // 3], made_up.iloc[rows // 3 :]], ignore_index=True)


def table(place: Path, **changes: object) -> dg.Definitions:
    arguments = {"source": place / "people.parquet", "subject": "pid", "generator": independent, **QUICK, **changes}
    return dg.Definitions.merge(build_privacy_assets("people", **arguments), resources(place))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    people().to_parquet(tmp_path / "people.parquet")
    return tmp_path


def attested(place: Path) -> dict:
    envelope = json.loads((place / "storage/people/attestation/attestation.json").read_bytes())
    return json.loads(base64.b64decode(envelope["payload"]))


def test_a_filtered_table_is_published_and_says_so(place: Path) -> None:
    metrics = [*QUICK["metrics"], "membership_inference", "memorization"]
    filtered = table(place, generator=half_memorised, filter=FILTER, metrics=metrics)
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(filtered, "people_pipeline", instance)
    assert result.success, failures(result)
    facts = made(result)
    told = facts["synthetic"]
    assert told["filter"] == "memorization" and told["lambda"] > 0
    assert told["rows dropped"] >= told["dagster/row_count"] // 3
    assert told["rows drawn"] >= told["rows dropped"] + told["dagster/row_count"]
    upstream = {found.asset_key.path[-1] for found in told["dagster/column_lineage"].deps_by_column["age"]}
    assert upstream == {"train", "holdout", "reference"}

    frames = {
        r: load_value(place / "storage/people" / r, dg.AssetKey(r), None) for r in ("train", "holdout", "reference")
    }
    people_ids = pd.factorize(pd.concat([frame["pid"] for frame in frames.values()], ignore_index=True))[0]
    schema = schema_of(frames["train"], "train")
    released = conform(read_published(place / "releases", "people"), schema, where="released")
    chosen = MemorizationFilter(**FILTER["settings"])
    fitted = chosen.fit([data_columns(frame, role) for role, frame in frames.items()], schema, people_ids)
    assert len(released) == len(frames["train"]) and not fitted.exposed(released).any()

    page = next((place / "storage/people/privacy_report").rglob("*.html")).read_text()
    assert f"{told['rows dropped']:,}" in page.replace("\u202f", ",") and "filter.settings.crowd" in page

    assert "rows drawn were left out" in page and "Before and after the filter" in page
    report = json.loads(next((place / "storage/people/privacy_report").rglob("*.json")).read_text())
    before = report["generator"]["filter"]["before"]["memorization"]["figures"]["exposed"]["value"]
    assert before > 0.2 > report["metrics"]["memorization"]["figures"]["exposed"]["value"]
    assert "filter.before" not in page and "before" not in json.dumps(attested(place))

    predicate = attested(place)["predicate"]
    assert predicate["setup"]["filter"] == {"name": "memorization", "settings": chosen.settings()}


def test_without_a_filter_the_attestation_says_so(place: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(table(place), "people_pipeline", instance).success
    assert attested(place)["predicate"]["setup"]["filter"] is None


@pytest.mark.parametrize(("then", "now"), [(None, FILTER), (FILTER, None), (FILTER, "memorization")])
def test_another_filter_is_another_setup(place: Path, then: object, now: object) -> None:
    """Neither can a table that was made otherwise be attested, nor an attestation of then publish."""
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(table(place, filter=then), "people_pipeline", instance).success
        count = len(ReleaseStore(place / "releases").history(Place("people")))
        late = run(table(place, filter=now), "people_pipeline", instance, only="people/published")
        again = run(table(place, filter=now), "people_pipeline", instance, only="people/attestation")
    assert "other settings (filter)" in failures(late)["people__published"].user_failure_data.description
    assert "made with another filter" in failures(again)["people__attestation"].user_failure_data.description
    assert len(ReleaseStore(place / "releases").history(Place("people"))) == count


def test_a_generator_that_only_copies_leaves_nothing(place: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(table(place, generator=memorise, filter="memorization"), "people_pipeline", instance)
    message = failures(result)["people__synthetic"].error.cause.message
    assert "rows drawn passed" in message and "memorise less" in message
    assert "published" not in made(result)


def test_the_filter_reads_every_real_table(place: Path) -> None:
    plain, filtered = table(place), table(place, filter="memorization")
    for defs, expected in ((plain, {"train"}), (filtered, {"train", "holdout", "reference"})):
        spec = next(s for asset in defs.assets for s in asset.specs if s.key.path[-1] == "synthetic")
        assert {dep.asset_key.path[-1] for dep in spec.deps} == {*expected, "generator"}
        assert ("filtered by memorization" in spec.description) == (len(expected) > 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"filter": "memorisation"}, "Did you mean 'memorization'"),
        ({"filter": 3}, "'name' and 'settings'"),
        ({"filter": {"nam": "memorization"}}, "'name' and 'settings'"),
        ({"filter": {"name": "memorization", "settings": 3}}, "'name' and 'settings'"),
        ({"filter": {"name": "memorization", "settings": {"crwd": 3}}}, "Did you mean 'crowd'"),
        ({"filter": {"name": "memorization", "settings": {"crowd": 1}}}, "crowd"),
    ],
)
def test_wrong_filters_fail_when_the_code_location_loads(arguments: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        build_privacy_assets("people", source="demo", **arguments)
    assert "people" in str(caught.value)


def test_a_table_of_the_users_own_is_not_filtered() -> None:
    with pytest.raises(ConfigError, match="draws further rows"):
        build_privacy_assets("people", synthetic="s.csv", train="t.csv", holdout="h.csv", filter="memorization")
