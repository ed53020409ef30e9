"""The whole pipeline of one table, run in a real instance."""

from __future__ import annotations

import logging
import shutil
import stat
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
from standins import (
    QUICK,
    attested,
    blocking_error,
    checks,
    failures,
    independent,
    made,
    memorize,
    people,
    people_table,
    reported,
    resources,
    run,
    table_of,
)  # fmt: skip

from privacy_assets import read_published
from privacy_assets.dagster.failures import failure, is_final
from privacy_assets.dagster.resources import load_value
from privacy_assets.errors import ConfigError, InputError, OutOfDate, StepError, StoreUnavailable
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile
from privacy_assets.gate.releases import ReleaseStore, default_trusted
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.tables.table import Table

ROLES = ("train", "holdout", "reference")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployment")


@pytest.fixture(scope="module")
def honest(place: Path) -> dg.ExecuteInProcessResult:
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(people_table(place), instance)
    assert result.success, failures(result)
    return result


@pytest.fixture
def changing(honest: dg.ExecuteInProcessResult, place: Path, tmp_path: Path) -> Path:
    """A copy of the deployment after the honest run, for tests that start more runs in it."""
    return shutil.copytree(place, tmp_path / "deployment")


@pytest.mark.slow
def test_every_asset_says_what_it_holds(honest: dg.ExecuteInProcessResult) -> None:
    metadata = made(honest)
    assert set(metadata) == {
        "source",
        *ROLES,
        "generator",
        "synthetic",
        "evaluation_inputs",
        "dcr",
        "privacy_report",
        "attestation",
        "published",
    }
    for name in ("source", *ROLES, "synthetic", "published"):
        assert metadata[name]["dagster/row_count"] > 0
        assert [c.name for c in metadata[name]["dagster/column_schema"].columns]
    for name, upstream in (("train", "source"), ("synthetic", "train"), ("published", "synthetic")):
        column = metadata[name]["dagster/column_lineage"].deps_by_column["age"][0]
        assert column.asset_key.path == ["people", upstream]
    assert sum(metadata[role]["dagster/row_count"] for role in ROLES) == len(people())
    assert sum(metadata[role]["subjects"] for role in ROLES) == 400
    assert "too few people" not in metadata["source"]  # the power of a custom policy is unknown
    assert isinstance(metadata["dcr"]["identical_excess"], float)
    assert metadata["published"]["sha256"] == metadata["synthetic"]["sha256"]
    assert metadata["synthetic"]["sha256"].startswith(metadata["attestation"]["sha256"])
    nullable = {
        c.name: c.constraints.nullable for c in metadata["train"]["dagster/column_schema"].columns
    }
    assert nullable["plan"] and not nullable["age"]


@pytest.mark.parametrize(("policy", "told"), [("default", "1,500"), ("small", "800")])
def test_the_source_warns_where_people_are_too_few_for_the_policy(
    policy: str, told: str, tmp_path: Path
) -> None:
    built_on = {"extends": policy, "embedder": False}
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(
            people_table(tmp_path, policy=built_on, metrics=None, embedder=False),
            instance,
            "source",
        )
        warnings = [
            entry.user_message
            for entry in instance.all_logs(result.run_id)
            if entry.level == logging.WARNING
        ]
    doubt = made(result)["source"]["too few people"]
    assert (
        doubt.startswith(f"Train has 200 people, fewer than {told}")
        and "privacy-assets power" in doubt
    )
    assert doubt in warnings


def test_the_verdict_is_read_and_plotted_where_the_record_and_the_page_are(
    honest: dg.ExecuteInProcessResult, place: Path
) -> None:
    metadata, report = made(honest), reported(place)
    for name in ("attestation", "privacy_report"):
        told = metadata[name]
        assert told["verdict"] == "pass: 2 of 2 limits" and list(told)[:3] == [
            "verdict",
            "answers",
            "limits",
        ]
        assert [record.data["measured"][0] for record in told["limits"].records] == ["✓", "✓"]
        assert told["report"].startswith("```text\nPASS  people\n") and told["limits: pass"] == 2
        assert told["limits: fail"] == told["limits: undecided"] == 0
        assert Path(told["page"]).read_bytes().startswith(b"<!doctype html>")
    score = metadata["dcr"]
    for limit in report["limits"]:
        name = limit["statistic"].partition(".")[2] + ".proven"
        assert score[f"{name}: limit"] == limit["limit"]
        assert score[f"{name}: measured"] == max(float(f"{limit['measured']:.4g}"), 0.0), (
            "no negative distance"
        )


@pytest.mark.slow
def test_a_refused_table_says_why_with_what_is_broken_first(
    changing: Path, instance: dg.DagsterInstance
) -> None:
    blocked = run(people_table(changing, generator=memorize), instance)
    for name in ("attestation", "privacy_report"):
        told = made(blocked)[name]
        assert told["verdict"].startswith("fail: ") and told["verdict"].endswith(
            " of 2 limits, copied rows"
        )
        first = told["limits"].records[0].data
        assert list(first) == ["measured", "limit"] and first["measured"].startswith("✗ ")
        assert first["limit"].startswith(("≤ 0.3 dcr.", "≤ 0 dcr."))
        assert told["limits: fail"] >= 1
        assert "FAIL  people" in told["report"] and Path(told["page"]).exists()
    held = checks(blocked)["attestation", "policy_holds"]
    assert held.metadata["verdict"].value == told["verdict"]


def test_an_honest_table_passes_every_check_and_is_published(
    honest: dg.ExecuteInProcessResult, place: Path
) -> None:
    found = checks(honest)
    assert set(found) == {
        ("synthetic", "contract"),
        ("dcr", "dcr_identical_excess_proven"),
        ("dcr", "dcr_member_excess_proven"),
        ("attestation", "policy_holds"),
        ("published", "released"),
    }
    assert all(evaluation.passed for evaluation in found.values()), found
    limit = found["dcr", "dcr_identical_excess_proven"].metadata
    assert limit["limit"].value == 0.3
    assert limit["low"].value <= limit["value"].value <= limit["high"].value
    assert "svg" in limit["picture"].value
    released, private = read_published(place / "releases", "people"), people().drop(columns="pid")
    assert list(released.columns) == list(private.columns)
    assert released.dtypes.astype(str).to_dict() == private.dtypes.astype(str).to_dict()
    assert len(released) == made(honest)["train"]["dagster/row_count"]


def test_private_files_are_for_their_owner_only(
    honest: dg.ExecuteInProcessResult, place: Path
) -> None:
    files = [
        file
        for folder in ("storage", "private")
        for file in (place / folder).rglob("*")
        if file.is_file()
    ]
    assert files
    assert not [
        f for f in files if stat.S_IMODE(f.stat().st_mode) & 0o077 and "model-" not in str(f)
    ]
    assert not [f for f in files if stat.S_IMODE(f.parent.stat().st_mode) & 0o077]


def test_the_attestation_names_no_filter_and_no_plain_fingerprint_of_a_private_table(
    honest: dg.ExecuteInProcessResult, place: Path
) -> None:
    predicate = attested(place)
    assert predicate["setup"]["filter"] is None
    for role in ROLES:
        table = load_value(place / "storage/people" / role, dg.AssetKey(role), None, Table)
        assert table.without_subject().fingerprint not in str(
            predicate
        ) and table.fingerprint not in str(predicate)
        assert made(honest)[role]["keyed_fingerprint"] in str(predicate)


def test_a_leaky_table_is_blocked_and_the_previous_release_stays(
    changing: Path, instance: dg.DagsterInstance
) -> None:
    store, leaky = ReleaseStore(changing / "releases"), people_table(changing, generator=memorize)
    place, trusted = ReleaseTarget("people"), default_trusted(store.root)
    before = (store.current(place, trusted), len(store.history(place)))
    blocked = run(leaky, instance)
    assert not blocked.success
    found = checks(blocked)
    broken, held = found["dcr", "dcr_identical_excess_proven"], found["attestation", "policy_holds"]
    assert not broken.passed and broken.severity == dg.AssetCheckSeverity.ERROR
    assert broken.metadata["what to do"].value == "Use larger leaves."
    assert not held.passed
    assert [record.data["cause"] for record in held.metadata["advice"].records].count(
        "copied rows"
    ) == 2
    kept = found["dcr", "dcr_member_excess_proven"]
    for check in (broken, kept):  # a score only knows its own metric
        assert check.passed == ("advice" not in check.metadata)
        assert check.passed or "see privacy_report" in check.metadata["advice"].value
    failed = failures(blocked)["people__attest"].user_failure_data
    assert failed.description.startswith(
        "the policy does not hold (fail: "
    ) and "the previous release, if" in str(failed.metadata["current release"].value)
    assert "privacy_report" in made(blocked) and "published" not in made(blocked)

    by_hand = run(leaky, instance, "published")
    assert "dcr.identical_excess" in blocking_error(by_hand, "published")
    metadata = failures(by_hand)["people__publish"].user_failure_data.metadata
    assert metadata["dcr.identical_excess.proven"].value == "fail. Use larger leaves."
    alarm = checks(by_hand)["published", "released"]
    assert not alarm.passed and "dcr.identical_excess" in alarm.description
    assert (store.current(place, trusted), len(store.history(place))) == before


@pytest.mark.slow
def test_a_score_that_fails_leaves_the_others(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(metric: Dcr, inputs: object) -> None:
        raise RuntimeError("of this metric alone")

    table = people_table(tmp_path, metrics=["dcr", "value_disclosure", "fidelity"])
    with monkeypatch.context() as patch:
        patch.setattr(Dcr, "measure", broken)
        result = run(table, instance)
    assert list(failures(result)) == ["people__score"]
    scores = {"value_disclosure", "fidelity"}
    assert scores <= set(made(result)) and not {"dcr", "attestation"} & set(made(result))
    log = "\n".join(
        r.event_log_entry.to_json() for r in instance.get_records_for_run(result.run_id).records
    )
    assert "dcr: RuntimeError at" in log
    assert set(made(run(table, instance, "fidelity"))) == {"fidelity"}, (
        "a score can be repeated on its own"
    )
    assert set(made(run(table, instance, "dcr"))) == {"dcr"}
    assert run(table, instance, "attestation", "privacy_report", "published").success
    one = dg.AssetCheckKey(dg.AssetKey(["people", "dcr"]), "dcr_identical_excess_proven")
    only = dg.define_asset_job("one_check", selection=dg.AssetSelection.checks(one))
    job = dg.Definitions.merge(table, dg.Definitions(jobs=[only])).resolve_job_def("one_check")
    result = job.execute_in_process(instance=instance)
    assert list(checks(result)) == [("dcr", one.name)] and not made(result)


def test_an_error_is_final_unless_a_retry_may_help() -> None:
    final = [ConfigError("wrong"), OutOfDate("old"), failure(OutOfDate("old"))]
    passing = [
        StepError("at a line"),
        ValueError(),
        failure(StoreUnavailable("busy")),
        InputError("x", transient=True),
    ]
    assert all(map(is_final, final)) and not any(map(is_final, passing))


@pytest.mark.slow
def test_a_table_made_from_rows_of_the_past_is_not_attested(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """It discloses people who are not in the rows that the scores read today."""
    leaky = people_table(tmp_path, generator=memorize)
    run(leaky, instance)
    people(seed=9).to_parquet(tmp_path / "people.parquet")
    stale = run(
        leaky,
        instance,
        "source",
        *ROLES,
        "synthetic",
        "evaluation_inputs",
        "dcr",
        "attestation",
        "published",
    )
    assert "generated from another train table" in blocking_error(stale, "attestation")
    assert not ReleaseStore(tmp_path / "releases").history(ReleaseTarget("people"))


@pytest.mark.slow
def test_an_upstream_asset_is_a_source(tmp_path: Path) -> None:
    @dg.asset(io_manager_def=dg.InMemoryIOManager())
    def raw():
        return pl.from_pandas(people())

    tables = table_of("people", source=raw, subject="pid", generator=independent, **QUICK)
    defs = dg.Definitions.merge(tables, dg.Definitions(assets=[raw]), resources(tmp_path))
    result = dg.materialize(
        [*defs.assets, *(defs.asset_checks or [])], resources=defs.resources, raise_on_error=False
    )
    assert result.success, failures(result)
    assert len(read_published(tmp_path / "releases", "people")) > 0


@pytest.mark.slow
def test_a_table_of_the_users_own(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    real, other = people(), people(seed=1).drop(columns="pid")
    frames = {
        "train": real[real["pid"] < "p2"],
        "holdout": real[real["pid"] >= "p2"],
        "synthetic": other,
    }
    for role, frame in frames.items():
        frame.to_csv(tmp_path / f"{role}.csv", index=False)
    own = table_of(
        "own", subject="pid", **{role: tmp_path / f"{role}.csv" for role in frames}, **QUICK
    )
    result = run(dg.Definitions.merge(own, resources(tmp_path)), instance, table="own")
    assert result.success, failures(result)
    assert "source" not in made(result) and "generator" not in made(result)
    assert len(read_published(tmp_path / "releases", "own")) == len(other)
    states = {row["state"] for row in reported(tmp_path, "own")["privacy_configuration"]}
    assert states == {"unknown"}  # whatever a generator's protections are stated to be


@pytest.mark.slow
def test_assets_can_be_called_directly(changing: Path) -> None:
    defs = people_table(changing)
    assets = {key.path[-1]: asset for asset in defs.assets for key in asset.keys}

    def call(name: str, **inputs: object):
        given = {"releases": defs.resources["releases"], "gpu": defs.resources["gpu"]}
        return assets[name](dg.build_asset_context(resources=given), **inputs)

    (source,) = call("source")
    parts = call("train", source=source.value)
    frames = {role: part.value for role, part in zip(ROLES, parts, strict=True)}
    assert set(frames["train"].frame()["pid"]).isdisjoint(frames["holdout"].frame()["pid"])
    (fitted,) = call("generator", train=frames["train"])
    (synthetic,) = call("synthetic", train=frames["train"], generator=fitted.value)
    snapshot = synthetic.value
    (inputs,) = call("evaluation_inputs", **frames, synthetic=snapshot)
    score, *limits = call("dcr", evaluation_inputs=inputs.value)
    attestation, report, check = call(
        "attestation", dcr=score.value, **frames, evaluation_inputs=inputs.value, synthetic=snapshot
    )
    assert report.value.verdict == "pass" and check.check_name == "policy_holds"
    forged = SignedFile(
        "attestation", attestation.value.data.replace(b"payloadType", b"PayloadType")
    )
    steps = call("published", attestation=forged, synthetic=snapshot)
    assert not next(steps).passed
    with pytest.raises(dg.Failure, match="signed file") as blocked:
        next(steps)
    assert blocked.value.allow_retries is False
    names = {check.check_name for check in limits}
    assert names == {"dcr_identical_excess_proven", "dcr_member_excess_proven"}
