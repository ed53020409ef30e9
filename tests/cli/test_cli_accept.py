"""The command accept: it shows and signs what a refused run proposed, and lets a stopped table run again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from privacy_assets.cli.main import main
from privacy_assets.errors import LockDiffers, TableStopped, with_advice
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.lock import PROPOSED
from privacy_assets.gate.statements import ReleaseTarget
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.work import TableRun, read
from privacy_assets.pipeline.work import split as split_step
from tests.cli.conftest import Command
from tests.cli.people import people

LIMIT = {"statistic": "dcr.identical_excess", "at_most": 0.3, "bound": "proven", "min_subjects": 5}
NAME = "people"
ATTACKS = {"metrics": ["dcr"], "embedder": False}
QUICK = {"metrics": {"dcr": {"n_bootstraps": 50, "n_permutations": 199}}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DAGSTER_HOME", "PRIVACY_ASSETS_RELEASES", "PRIVACY_ASSETS_PRIVATE", "PRIVACY_ASSETS_TRUSTED_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    people().drop(columns="person").to_parquet("people.parquet")
    return tmp_path / "home"


def steps(home: Path, most: float = 0.3, **data: object) -> TableRun:
    spec = TableSpec(
        name=NAME,
        data={"source": "people.parquet", "each_row": True, **data},
        evaluation=ATTACKS,
        policy={"name": f"most {most}", "limits": [{**LIMIT, "at_most": most}], **QUICK},
    )
    return TableRun(ResolvedTable.of(spec), DeploymentSettings(home=home).open(), ReleaseTarget(NAME))


def split(own: TableRun) -> None:
    split_step(own, "split", read(own, "read", {}).values)


def verdicts(own: TableRun, *statuses: str) -> None:
    for status in statuses:
        content = f"{own.gate.log.state(NAME).number:064x}"
        facts = {"content": content, "sha256": "", "status": status, "failed": []}
        own.gate.log.append(own.target, "verdict", lambda _, facts=facts: facts)


@pytest.mark.slow
def test_a_refused_difference_is_shown_and_signed(home: Path, command: Command) -> None:
    accept = ("accept", NAME, "--releases", home / "releases")
    assert "no lock of a table 'people'" in command(*accept, status=2).err
    split(steps(home))
    assert "there is nothing to accept" in command(*accept, status=1).out
    verdicts(steps(home), "pass")
    with pytest.raises(LockDiffers) as caught:
        split(steps(home, most=0.2))
    lines = str(caught.value).splitlines()
    changed = "  limits 'dcr.identical_excess.proven': 0.3 -> 0.2"
    assert {"  policy: 'most 0.3' -> 'most 0.2'", changed} <= set(lines)
    assert with_advice(caught.value).endswith("privacy-assets accept people")
    out = command(*accept).out
    assert set(lines[1:-1]) <= set(out.splitlines()) and "the new lock is signed" in out
    split(steps(home, most=0.2))
    assert "there is nothing to accept" in command(*accept, status=1).out
    with pytest.raises(LockDiffers, match="'most 0.2' -> 'most 0.3'"):
        split(steps(home))
    split(steps(home, most=0.2))
    assert "policy: 'most 0.2' -> 'most 0.3'" in command(*accept).out, "another run keeps the proposal"
    assert "there is nothing to accept" in command(*accept, status=1).out
    assert "Did you mean 'people'" in command("accept", "peple", *accept[2:], status=2).err


@pytest.mark.slow
def test_another_difference_than_the_accepted_one_stops_again(home: Path, command: Command) -> None:
    split(steps(home))
    verdicts(steps(home), "undecided")
    for wrong in ({"kinds": {"age": "numeric"}}, {"drop": ["grade"]}):
        with pytest.raises(LockDiffers, match="differs from the lock"):
            split(steps(home, **wrong))
    command("accept", NAME, "--releases", home / "releases")
    split(steps(home, drop=["grade"]))
    with pytest.raises(LockDiffers, match="kinds 'age': not set -> 'numeric'"):
        split(steps(home, kinds={"age": "numeric"}))


@pytest.mark.slow
def test_a_stopped_table_needs_a_reason(home: Path, command: Command) -> None:
    accept = ("accept", NAME, "--releases", home / "releases")
    split(steps(home))
    verdicts(steps(home), *["fail"] * 4)
    with pytest.raises(TableStopped, match="4 of its last 4 verdicts are 'fail'"):
        split(steps(home))
    with pytest.raises(LockDiffers, match="differs from the lock"):
        split(steps(home, most=0.2))
    before = sorted(path.read_bytes() for path in (home / "private").rglob("*") if path.is_file())
    for reason in ((), ("--reason", " ")):
        assert "is stopped" in command(*accept, *reason, status=2).err
    assert sorted(path.read_bytes() for path in (home / "private").rglob("*") if path.is_file()) == before
    assert "accepted" in command(*accept, "--reason", "larger leaves").out
    split(steps(home, most=0.2))
    assert "there is nothing to accept" in command(*accept, "--reason", "again", status=1).out


def test_an_unsigned_proposal_cannot_disturb_the_terminal(home: Path, command: Command) -> None:
    split(steps(home))
    verdicts(steps(home), "pass")
    wild = "drop\x1b[2J\nnothing \u202e changed"
    steps(home).gate.locks.file(NAME, PROPOSED).write_text(json.dumps({wild: "x", "subject": {wild: "\u200b"}}))
    out = command("accept", NAME, "--releases", home / "releases").out
    assert out.replace("\n", "").isprintable()
    assert [line for line in out.splitlines() if line.startswith("nothing")] == []


def test_nothing_is_signed_without_the_key_of_the_deployment(home: Path, command: Command) -> None:
    split(steps(home))
    verdicts(steps(home), "pass")
    with pytest.raises(LockDiffers, match="differs from the lock"):
        split(steps(home, most=0.2))
    path = steps(home).gate.locks.file(NAME, PROPOSED)
    kept, key = path.read_bytes(), home / "private" / "signing.key"
    path.write_bytes(b"{")
    assert (
        "proposed lock is damaged. Fix: run the table again"
        in command("accept", NAME, "--releases", home / "releases", status=2).err
    )
    path.write_bytes(kept)
    key.rename(home / "kept")
    assert "signing.key" in command("accept", NAME, "--releases", home / "releases", status=2).err
    (home / "kept").rename(key)
    (home / "private").chmod(0o755)
    assert "chmod 700" in command("accept", NAME, "--releases", home / "releases", status=2).err


HIDDEN = "".join(f"row {n}: 43 Basel; " for n in range(8))[:128].strip()  # private values in the name of a column


@pytest.mark.parametrize("change", [{}, {"kinds": {"age": "numeric"}}, {"drop": ["grade"]}], ids=str)
def test_route_62_rows_in_the_names_of_columns(change: dict[str, object], home: Path, command: Command) -> None:
    """No accepted change of other settings lets another name of a column through."""
    split(steps(home))
    verdicts(steps(home), "undecided")
    accept = ("accept", NAME, "--releases", home / "releases")
    frame = pd.read_parquet("people.parquet")
    frame.assign(**{HIDDEN: 1}).to_parquet("people.parquet")
    if change:
        with pytest.raises(LockDiffers):
            split(steps(home, **change))
        assert repr(HIDDEN) not in command(*accept).out
    with pytest.raises(LockDiffers, match=re.escape(f"columns {HIDDEN!r}: not set -> 'number'")):
        split(steps(home, **change))
    out = command(*accept).out
    assert f"columns {HIDDEN!r}: not set -> 'number'" in out
    names = next(line for line in out.splitlines() if line.startswith("The release publishes the names"))
    dropped = change.get("drop", [])
    assert all((repr(name) in names) == (name not in dropped) for name in (*frame.columns, HIDDEN))
    split(steps(home, **change))
    frame.to_parquet("people.parquet")
    with pytest.raises(LockDiffers, match=re.escape(f"columns {HIDDEN!r}: 'number' -> not set")):
        split(steps(home, **change))


def test_the_first_runs_and_inspect_print_the_names_of_all_columns(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_parquet("people.parquet").assign(**{HIDDEN: 1})
    frame.to_parquet("people.parquet")

    def printed() -> list[str]:
        told: list[str] = []
        split(replace(steps(home), progress=told.append))
        return [line for line in told if line.startswith("The release publishes the names of its columns")]

    for _ in range(2):
        (names,) = printed()
        assert all(repr(name) in names for name in frame.columns)
    verdicts(steps(home), "undecided")
    assert printed() == []
    main(["inspect", "people.parquet"])
    assert HIDDEN in capsys.readouterr().out


@pytest.mark.slow
def test_a_table_runs_again_and_again_and_its_change_is_accepted(home: Path, command: Command) -> None:
    table = home.parent / "table.yaml"
    given = {
        "name": "patients", "source": "demo", "subject": "person",
        "evaluation": ATTACKS, "policy": {"name": "mine", "limits": [LIMIT], **QUICK},
    }  # fmt: skip
    table.write_text(yaml.safe_dump(given))
    run = ("run", table, "--releases", home / "releases")
    for _ in range(2):
        assert "release      /" in command(*run).out
    table.write_text(
        yaml.safe_dump({**given, "policy": {"name": "mine", "limits": [{**LIMIT, "at_most": 0.4}], **QUICK}})
    )
    assert "privacy-assets accept patients" in command(*run, status=1).err
    command("accept", "patients", "--releases", home / "releases")
    assert "release      /" in command(*run).out
