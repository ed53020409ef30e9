"""The whole pipeline of one table, run in a real instance."""

from __future__ import annotations

import base64
import json
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pytest
from standins import (
    LENIENT,
    QUICK,
    checks,
    failures,
    independent,
    made,
    memorise,
    people,
    resources,
    run,
    slow,
    table_of,
)

from privacy_assets import read_published
from privacy_assets.dagster.io import load_value
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.gate.statements import Place, Sealed
from privacy_assets.pipeline.tagging import data_columns


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment")
    people().to_parquet(folder / "people.parquet")
    return folder


def table(place: Path, **changes: object) -> dg.Definitions:
    arguments = {"source": place / "people.parquet", "subject": "pid", "generator": independent, **QUICK, **changes}
    return dg.Definitions.merge(table_of("people", **arguments), resources(place))


@pytest.fixture(scope="module")
def honest(place: Path, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    return run(table(place), "people_pipeline", instance)


def test_an_honest_table_is_published(honest: dg.ExecuteInProcessResult, place: Path) -> None:
    assert honest.success, failures(honest)
    released = read_published(place / "releases", "people")
    private = people().drop(columns="pid")
    assert list(released.columns) == list(private.columns)
    assert released.dtypes.astype(str).to_dict() == private.dtypes.astype(str).to_dict()
    assert len(released) == made(honest)["train"]["dagster/row_count"]


def test_every_asset_says_what_it_holds(honest: dg.ExecuteInProcessResult) -> None:
    metadata = made(honest)
    assert set(metadata) == {"source", "train", "holdout", "reference", "generator", "synthetic", "encoded", "dcr",
                          "privacy_report", "attestation", "published"}  # fmt: skip
    for name in ("source", "train", "holdout", "reference", "synthetic", "published"):
        assert metadata[name]["dagster/row_count"] > 0
        assert [c.name for c in metadata[name]["dagster/column_schema"].columns]
    for name, upstream in (("train", "source"), ("synthetic", "train"), ("published", "synthetic")):
        column = metadata[name]["dagster/column_lineage"].deps_by_column["age"][0]
        assert column.asset_key.path == ["people", upstream]
    assert sum(metadata[role]["dagster/row_count"] for role in ("train", "holdout", "reference")) == len(people())
    assert sum(metadata[role]["subjects"] for role in ("train", "holdout", "reference")) == 400
    assert isinstance(metadata["dcr"]["identical_excess"], float)
    assert metadata["published"]["sha256"] == metadata["synthetic"]["sha256"] == metadata["attestation"]["sha256"]
    nullable = {c.name: c.constraints.nullable for c in metadata["train"]["dagster/column_schema"].columns}
    assert nullable["plan"] and not nullable["age"]


def test_every_check_ran(honest: dg.ExecuteInProcessResult) -> None:
    found = checks(honest)
    assert set(found) == {
        ("source", "schema"),
        ("holdout", "exchangeable_with_train"),
        ("synthetic", "schema_and_values"),
        ("dcr", "dcr_identical_excess_lower"),
        ("dcr", "dcr_member_excess_any_lower"),
        ("attestation", "policy_holds"),
        ("published", "released"),
    }
    assert all(evaluation.passed for evaluation in found.values()), found
    limit = found["dcr", "dcr_identical_excess_lower"].metadata
    assert limit["limit"].value == 0.3
    assert limit["low"].value <= limit["value"].value <= limit["high"].value
    assert "svg" in limit["picture"].value


def test_private_files_are_for_their_owner_only(honest: dg.ExecuteInProcessResult, place: Path) -> None:
    files = [file for folder in ("storage", "private") for file in (place / folder).rglob("*") if file.is_file()]
    open_files = [file for file in files if stat.S_IMODE(file.stat().st_mode) & 0o077 and "model-" not in str(file)]
    assert files
    assert not open_files
    assert not [f for f in files if stat.S_IMODE(f.parent.stat().st_mode) & 0o077]


def test_nothing_private_stands_in_the_event_log(
    honest: dg.ExecuteInProcessResult, instance: dg.DagsterInstance
) -> None:
    log = "\n".join(record.event_log_entry.to_json() for record in instance.get_records_for_run(honest.run_id).records)
    incomes = people()["income"].dropna().astype(str)
    numbers = set(
        re.findall(r"(?<![\d.])\d+\.\d+(?!\d)", log)
    )  # whole numbers of the log: time stamps end like incomes
    assert not numbers & set(incomes[incomes.str.len() > 6])
    assert "p399" not in log


def test_the_same_run_again_gives_the_same_bytes(honest: dg.ExecuteInProcessResult, place: Path) -> None:
    with dg.DagsterInstance.ephemeral() as other:
        again = run(table(place), "people_pipeline", other)
    assert again.success
    assert made(again)["synthetic"]["sha256"] == made(honest)["synthetic"]["sha256"]
    assert made(again)["dcr"]["privacy_score"] == made(honest)["dcr"]["privacy_score"]


def test_a_leaky_table_is_blocked_and_the_previous_release_stays(
    honest: dg.ExecuteInProcessResult, place: Path, instance: dg.DagsterInstance
) -> None:
    before = ReleaseStore(place / "releases").current(Place("people"))
    count = len(ReleaseStore(place / "releases").history(Place("people")))
    leaky = table(place, generator=memorise)
    blocked = run(leaky, "people_pipeline", instance)
    assert not blocked.success
    found = checks(blocked)
    broken = found["dcr", "dcr_identical_excess_lower"]
    assert not broken.passed and broken.severity == dg.AssetCheckSeverity.ERROR
    assert broken.metadata["what to do"].value == "Use larger leaves."
    held = found["attestation", "policy_holds"]
    assert not held.passed
    for check in (broken, held):
        losses = [record.data["loss of utility"] for record in check.metadata["what can be done"].records]
        assert losses[0] == "none" and losses[-1] == "large"
    kept = checks(blocked)["dcr", "dcr_member_excess_any_lower"]
    assert kept.passed == ("what can be done" not in kept.metadata)
    assert "privacy_report" in made(blocked) and "published" not in made(blocked)

    by_hand = run(leaky, "people_pipeline", instance, only="people/published")
    data = failures(by_hand)["people__published"]
    assert "dcr.identical_excess" in data.user_failure_data.description
    why = data.user_failure_data.metadata["dcr.identical_excess.lower"].value
    assert "above the limit 0.3" in why and "Use larger leaves." in why
    alarm = checks(by_hand)["published", "released"]
    assert not alarm.passed and "dcr.identical_excess" in alarm.description
    assert ReleaseStore(place / "releases").current(Place("people")) == before
    assert len(ReleaseStore(place / "releases").history(Place("people"))) == count


def test_what_was_attested_is_published_as_it_was_judged_or_not_at_all(tmp_path: Path) -> None:
    people().to_parquet(tmp_path / "people.parquet")
    strict = {**LENIENT, "limits": [{**LENIENT["limits"][0], "at_most": 0.01}]}
    with dg.DagsterInstance.ephemeral() as instance:

        def refused(asset: str, **changes: object) -> str:
            found = run(table(tmp_path, **changes), "people_pipeline", instance, only=f"people/{asset}")
            return str(failures(found)[f"people__{asset}"].user_failure_data.description)

        assert run(table(tmp_path), "people_pipeline", instance).success
        assert "another policy" in refused("published", policy=strict)
        shutil.rmtree(tmp_path / "releases")  # as if the run had been stopped before its last step
        (snapshot,) = (tmp_path / "private/snapshots/people/_all").iterdir()
        pd.read_parquet(snapshot).head(5).to_parquet(snapshot)
        assert "changed after it was judged" in refused("published")
        assert run(table(tmp_path, seed=5), "people_pipeline", instance, only="people/synthetic").success
        assert "another synthetic table" in refused("attestation", seed=5)


@pytest.mark.parametrize(
    "again",
    [pytest.param((), marks=pytest.mark.slow), pytest.param(("synthetic",))],
    ids=["synthetic and generator", "generator"],
)
def test_a_table_made_from_rows_of_the_past_is_not_attested(tmp_path: Path, again: tuple[str, ...]) -> None:
    """It gives away people whom the scores on today's rows know nothing of."""
    people().to_parquet(tmp_path / "people.parquet")
    leaky = table(tmp_path, generator=memorise)
    splits, verdict = ["source", "train", "holdout", "reference"], ["privacy_report", "attestation", "published"]
    names = [*splits, *again, "encoded", "dcr", *verdict]
    with dg.DagsterInstance.ephemeral() as instance:
        run(leaky, "people_pipeline", instance)
        people(seed=9).to_parquet(tmp_path / "people.parquet")
        keys = [dg.AssetKey(["people", name]) for name in names]
        stale = leaky.resolve_job_def("people_pipeline").execute_in_process(
            instance=instance, raise_on_error=False, asset_selection=keys
        )
    assert "made from another train table" in failures(stale)["people__attestation"].user_failure_data.description
    assert not ReleaseStore(tmp_path / "releases").history(Place("people"))


def test_the_attestation_names_no_filter_and_no_plain_fingerprint_of_a_private_table(
    honest: dg.ExecuteInProcessResult, place: Path
) -> None:
    envelope = json.loads((place / "storage/people/attestation/attestation.json").read_bytes())
    text = base64.b64decode(envelope["payload"]).decode()
    assert json.loads(text)["predicate"]["setup"]["filter"] is None
    for role in ("train", "holdout", "reference"):
        frame = load_value(place / "storage/people" / role, dg.AssetKey(role), None)
        plain = data_columns(frame, role).fingerprint
        assert plain not in text and made(honest)[role]["keyed_fingerprint"] in text


@pytest.mark.parametrize("library", [slow(pd.DataFrame), pl.from_pandas])
def test_an_upstream_asset_is_a_source(tmp_path: Path, library: Callable[[pd.DataFrame], Any]) -> None:
    @dg.asset(io_manager_def=dg.InMemoryIOManager())
    def raw():
        return library(people())

    tables = table_of("people", source=raw, subject="pid", generator=independent, **QUICK)
    defs = dg.Definitions.merge(tables, dg.Definitions(assets=[raw]), resources(tmp_path))
    result = dg.materialize([*defs.assets, *(defs.asset_checks or [])], resources=defs.resources, raise_on_error=False)
    assert result.success, failures(result)
    assert len(read_published(tmp_path / "releases", "people")) > 0


def test_a_table_of_the_users_own(tmp_path: Path) -> None:
    real, other = people(), people(seed=1).drop(columns="pid")
    real[real["pid"] < "p2"].to_csv(tmp_path / "train.csv", index=False)
    real[real["pid"] >= "p2"].to_csv(tmp_path / "holdout.csv", index=False)
    other.to_csv(tmp_path / "synthetic.csv", index=False)
    row_sources = {role: tmp_path / f"{role}.csv" for role in ("train", "holdout", "synthetic")}
    own = table_of("own", subject="pid", generator="synthpop", **row_sources, **QUICK)
    defs = dg.Definitions.merge(own, resources(tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(defs, "own_pipeline", instance)
    assert result.success, failures(result)
    assert "source" not in made(result) and "generator" not in made(result)
    assert len(read_published(tmp_path / "releases", "own")) == len(other)
    report = json.loads(next((tmp_path / "storage/own/privacy_report").rglob("*.json")).read_text())
    assert {row["state"] for row in report["privacy_configuration"]} == {"unknown"}  # whatever is said of a generator


def test_a_table_that_cannot_be_used_names_the_culprit(tmp_path: Path) -> None:
    people().to_parquet(tmp_path / "people.parquet")
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(table(tmp_path, subject="patient"), "people_pipeline", instance)
    assert "column 'patient'" in failures(result)["people__source"].error.cause.message


def test_assets_can_be_called_directly(place: Path) -> None:
    defs = table(place)
    assets = {key.path[-1]: asset for asset in defs.assets for key in asset.keys}
    given = {"releases": defs.resources["releases"], "gpu": defs.resources["gpu"]}
    source = assets["source"](dg.build_asset_context(resources=given)).value
    parts = dict(
        zip(
            ("train", "holdout", "reference"),
            assets["train"](dg.build_asset_context(resources=given), source=source),
            strict=True,
        )
    )
    frames = {role: part.value for role, part in parts.items()}
    assert set(frames["train"]["pid"]).isdisjoint(frames["holdout"]["pid"])
    fitted = assets["generator"](dg.build_asset_context(resources=given), train=frames["train"]).value
    snapshot = assets["synthetic"](
        dg.build_asset_context(resources=given), train=frames["train"], generator=fitted
    ).value
    encoded = assets["encoded"](dg.build_asset_context(resources=given), **frames, synthetic=snapshot).value
    score = assets["dcr"](dg.build_asset_context(resources=given), encoded=encoded)
    inputs = {"score_dcr": score.value, **frames, "encoded": encoded, "synthetic": snapshot}
    attestation, report, check = assets["attestation"](dg.build_asset_context(resources=given), **inputs)
    assert report.value.verdict == "pass" and check.check_name == "policy_holds"
    forged = Sealed("attestation", attestation.value.data.replace(b"payloadType", b"PayloadType"))
    steps = assets["published"](dg.build_asset_context(resources=given), attestation=forged, synthetic=snapshot)
    assert not next(steps).passed
    with pytest.raises(dg.Failure, match="signed statement") as refused:
        next(steps)
    assert refused.value.allow_retries is False
    assert {check.check_name for check in score.check_results} == {
        "dcr_identical_excess_lower",
        "dcr_member_excess_any_lower",
    }
