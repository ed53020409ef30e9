"""``privacy-assets run``: a whole table without Dagster, with the same bytes."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml
from standins import LENIENT, blocking_error, failures, people, resources, run

from privacy_assets import TableSpec, build_privacy_assets
from privacy_assets.cli.main import main
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import ReleaseStore, default_trusted
from privacy_assets.pipeline.lease import Lease

DCR = {"metrics": ["dcr"], "embedder": False}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with private rows, where two deployments have one split key."""
    people().to_parquet(tmp_path / "people.parquet")
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "one secret for both of them")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(place: Path, **changes: Any) -> Path:
    """The file of a table."""
    table = {
        "name": "people",
        "source": "people.parquet",
        "subject": "pid",
        "evaluation": DCR,
        "policy": LENIENT,
    }
    (place / "people.yaml").write_text(yaml.safe_dump({**table, **changes}))
    return place / "people.yaml"


def ours(place: Path, table: Path) -> int:
    """Exit status of the command, in a separate deployment."""
    return main(["run", str(table), "--releases", str(place / "alone/releases"), "--device=cpu"])


def theirs(place: Path, table: Path, home: str = "dagster") -> dg.ExecuteInProcessResult:
    """The same run in Dagster."""
    defs = dg.Definitions.merge(
        build_privacy_assets(TableSpec.load(table)), resources(place / home)
    )
    with dg.DagsterInstance.ephemeral() as instance:
        return run(defs, instance)


def released(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """The table of a release, its attestation without times and signature, and the names of its
    private results.
    """
    release = ReleaseStore(folder / "releases").current(
        ReleaseTarget("people"), default_trusted(folder / "releases")
    )
    envelope = json.loads(release.attestation.read_bytes())
    stated = json.loads(base64.b64decode(envelope["payload"]))
    body = stated["predicate"]
    del body["made_at"]
    results = folder / "private/results/people/_all"
    body["results"] = {
        name: (results / f"{digest}.json").is_file() for name, digest in body["results"].items()
    }
    return release.table.read_bytes(), stated


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(
            {
                "evaluation": {"metrics": ["dcr"]},
                "policy": {**LENIENT, "embedder": {"max_epochs": 2}},
                "generator": {"name": "drawing:independent", "filter": "similarity"},
                "run": {"seed": 3},
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["plain", "own function, embedded and filtered"],
)
def test_the_same_bytes_as_dagster_makes(
    place: Path, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(place, **changes)
    status, result = ours(place, table), theirs(place, table)
    assert result.success, failures(result)
    assert status == 0
    assert released(place / "alone") == released(place / "dagster")
    told = capsys.readouterr().out
    assert "  publish " in told and "release      " in told
    assert {file.name for file in (place / "reports/people").iterdir()} == {
        "report.html", "report.json", "attestation.json"
    }  # fmt: skip
    modes = {
        file.name: file.stat().st_mode & 0o777 for file in (place / "reports/people").iterdir()
    }
    assert modes == {"report.html": 0o600, "report.json": 0o600, "attestation.json": 0o644}


@pytest.mark.slow
def test_a_declared_unit_gives_the_same_bytes_and_plain_numbers(place: Path) -> None:
    rows = people()
    amounts = rows["income"].fillna(0).round().astype(int).astype(str)
    has_unit = np.arange(len(rows)) % 50 > 0
    rows.assign(income=amounts.where(~has_unit, amounts + " €")).to_parquet(
        place / "people.parquet"
    )
    assert ours(place, written(place)) == 2
    table = written(place)
    settings = yaml.safe_load(table.read_text())
    kinds = {"income": {"numeric": {"unit": "€"}}}
    settings["data"] = {
        "source": settings.pop("source"),
        "subject": settings.pop("subject"),
        "kinds": kinds,
    }
    table.write_text(yaml.safe_dump(settings))
    status, result = ours(place, table), theirs(place, table)
    assert result.success, failures(result)
    assert status == 0
    assert released(place / "alone") == released(place / "dagster")
    release = pd.read_parquet(io.BytesIO(released(place / "alone")[0]))
    assert pd.api.types.is_numeric_dtype(release["income"])


@pytest.mark.slow
def test_a_table_that_leaks_has_a_page_and_no_release(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ours(place, written(place, generator="drawing:memorize")) == 1
    told = capsys.readouterr().out
    assert "failed" in told and "release      none: the policy does not hold (" in told
    assert (
        told.rstrip().endswith(" limits; they are listed above)") and "dcr.identical_excess" in told
    )
    assert not ReleaseStore(place / "alone/releases").history(ReleaseTarget("people"))
    assert json.loads((place / "reports/people/report.json").read_text())["verdict"] == "fail"


@pytest.mark.slow
def test_a_table_that_is_undecided_has_a_page_and_no_release(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = {**LENIENT["limits"][0], "min_subjects": 10_000}
    assert ours(place, written(place, policy={**LENIENT, "limits": [limit]})) == 3
    assert "release      none: the policy does not hold (1 of 1 limits" in capsys.readouterr().out
    assert not ReleaseStore(place / "alone/releases").history(ReleaseTarget("people"))
    assert json.loads((place / "reports/people/report.json").read_text())["verdict"] == "undecided"


def test_a_run_of_a_table_that_another_run_holds_names_its_process(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(place)
    deployment = DeploymentSettings(releases=str(place / "alone/releases")).open()
    with Lease(deployment.gate().private, "people", "nightly").held(lambda run: False):
        assert ours(place, table) == 1
        told = capsys.readouterr().err
        assert (
            f"people: run nightly (process {os.getpid()} on {socket.gethostname()}) started on "
            in told
        )
        blocked = blocking_error(theirs(place, table, "alone"), "source")
        assert (
            f"people: run nightly (process {os.getpid()} on {socket.gethostname()}) started on "
            in blocked
        )


def links_to_nothing(file: Path) -> None:
    file.symlink_to("nowhere")


def has_times_beyond_the_calendar(file: Path) -> None:
    file.write_text('{"run": "a", "started": 1e300, "seen": NaN}')


@pytest.mark.slow
def test_bypass_59_a_lock_of_a_run_or_an_entry_of_the_log_that_blocks_the_table(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is named with the fix. Runs would wait for ever, or overlap, or end with an error that
    names no file.
    """
    table, private = written(place), place / "alone/private"
    assert ours(place, table) == 0
    file = private / "running/people.json"
    for harm in (links_to_nothing, Path.mkdir, os.mkfifo, has_times_beyond_the_calendar):
        harm(file)
        capsys.readouterr()
        assert ours(place, table) == 1
        told = capsys.readouterr().err
        assert str(file) in told and "Fix: " in told
        blocked = blocking_error(theirs(place, table, "alone"), "source")
        assert str(file) in blocked and "Fix: " in blocked
        file.rmdir() if harm is Path.mkdir else file.unlink()
    assert ours(place, table) == 0
    file = private / "log/people" / ("9" * 255)
    file.touch()
    capsys.readouterr()
    assert ours(place, table) == 1
    assert (
        main(["accept", "people", "--reason", "tried", f"--releases={place / 'alone/releases'}"])
        == 2
    )
    assert (
        capsys.readouterr().err.count(f"{file}: implausible entry number. Fix: remove this file.")
        == 2
    )
    assert f"{file}: implausible entry number" in blocking_error(
        theirs(place, table, "alone"), "source"
    )
    file.unlink()
    assert ours(place, table) == 0


HIDDEN = "43 Basel 1978; 51 Chur 1969"  # private values in the name of a column


@pytest.mark.slow
def test_bypass_62_the_first_run_names_the_columns_and_others_need_acceptance(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(place)
    frame = pd.read_parquet("people.parquet")
    frame.assign(**{HIDDEN: 1.0}).to_parquet("people.parquet")
    assert ours(place, table) == 0
    told = capsys.readouterr()
    names = ", ".join(map(repr, [*frame.columns.drop("pid"), HIDDEN]))
    assert (
        f"The release publishes the names of its columns, so check them: {names}."
        in told.out + told.err
    )
    defs = dg.Definitions.merge(
        build_privacy_assets(TableSpec.load(table)), resources(place / "dagster")
    )
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(defs, instance)
        assert any(
            f"so check them: {names}." in entry.user_message
            for entry in instance.all_logs(result.run_id)
        )
    frame.to_parquet("people.parquet")
    assert ours(place, table) == 1
    change = f"columns {HIDDEN!r}: 'number' -> not set"
    assert change in capsys.readouterr().err
    assert change in blocking_error(theirs(place, table), "train")


def test_a_table_without_limits_does_not_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        ours(
            place,
            written(place, evaluation={"metrics": ["fidelity"], "embedder": False}, policy=None),
        )
        == 2
    )
    assert "has no limits: every table would pass" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"source": "nowhere.parquet"}, "nowhere.parquet"),
        ({"source": "people_{partition}.csv"}, "the table has no partitions"),
    ],
)
def test_bad_input_is_told_in_one_line(
    place: Path, changes: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ours(place, written(place, **changes)) == 2
    said = capsys.readouterr().err
    assert told in said and len(said.splitlines()) == 1


@pytest.mark.slow
def test_a_synthetic_table_with_the_subject_is_blocked_or_published_without(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = people()
    side = rows["pid"].rank(method="dense").astype(int) % 3
    files = {role: f"{role}.parquet" for role in ("train", "holdout", "synthetic")}
    for number, file in enumerate(files.values()):
        rows[side == number].to_parquet(file)
    given = {"data": files, "source": None}
    assert ours(place, written(place, **given)) == 2
    told = capsys.readouterr().err
    assert (
        "column 'pid': the synthetic table contains the subject column" in told
        and "--drop pid)" in told
    )
    assert ours(place, written(place, data={**files, "drop": ["pid"]}, source=None)) == 0
    release = place / "alone/releases"
    release = ReleaseStore(release).current(ReleaseTarget("people"), default_trusted(release)).table
    assert set(pd.read_parquet(release).columns) == set(rows.columns) - {"pid"}


@pytest.mark.slow
def test_it_runs_where_dagster_is_blocked(place: Path) -> None:
    code = (
        "import sys; sys.modules['dagster'] = None\nfrom privacy_assets.cli.main import main\n"
        f"sys.exit(main(['run', {str(written(place))!r}, '--releases=alone/releases', '--quiet']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
