"""The command accept: it shows and signs what a rejected run proposed, and lets a stopped table run
again.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from privacy_assets.cli.main import main
from privacy_assets.errors import ConfigError, SettingsDiffer, TableSuspended
from privacy_assets.gate.accepted_settings import PROPOSED
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keeper import Keeper
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.work import TableRun, read
from privacy_assets.pipeline.work import split as split_step
from tests.cli.conftest import Command
from tests.cli.people import people
from tests.helpers.accepting import accept_all, shown_digests

LIMIT = {"statistic": "dcr.identical_excess", "at_most": 0.3, "bound": "proven", "min_subjects": 5}
NAME = "people"
ATTACKS = {"metrics": ["dcr"], "embedder": False}
QUICK = {"metrics": {"dcr": {"n_bootstraps": 50, "n_permutations": 199}}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "DAGSTER_HOME",
        "PRIVACY_ASSETS_RELEASES",
        "PRIVACY_ASSETS_PRIVATE",
        "PRIVACY_ASSETS_TRUSTED_KEYS",
    ):
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
    return TableRun(
        ResolvedTable.of(spec), DeploymentSettings(home=home).open(), ReleaseTarget(NAME)
    )


def split(own: TableRun) -> None:
    split_step(own, "split", read(own, "read", {}).values)


def verdicts(own: TableRun, *statuses: str) -> None:
    for status in statuses:
        content = f"{own.gate.log.state(NAME).number:064x}"
        facts = {"content": content, "sha256": "", "status": status, "failed": []}
        own.gate.log.append(own.target, "verdict", lambda _, facts=facts: facts)


@pytest.mark.slow
def test_a_rejected_difference_is_shown_and_signed(home: Path, command: Command) -> None:
    accept = ("accept", NAME, "--releases", home / "releases")
    assert "no accepted settings of a table 'people'" in command(*accept, status=2).err
    split(steps(home))
    assert "there is nothing to accept" in command(*accept, status=1).out
    verdicts(steps(home), "pass")
    with pytest.raises(SettingsDiffer) as caught:
        split(steps(home, most=0.2))
    lines = str(caught.value).splitlines()
    changed = "  limits 'dcr.identical_excess.proven': 0.3 -> 0.2"
    assert {"  policy: 'most 0.3' -> 'most 0.2'", changed} <= set(lines)
    assert with_advice(caught.value).endswith("privacy-assets accept people")
    out = command(*accept, status=2).out
    assert set(lines[1:-1]) <= set(out.splitlines()) and "is signed" not in out
    assert "the new settings are signed" in accept_all(*accept[1:])
    split(steps(home, most=0.2))
    assert "there is nothing to accept" in command(*accept, status=1).out
    with pytest.raises(SettingsDiffer, match="'most 0.2' -> 'most 0.3'"):
        split(steps(home))
    split(steps(home, most=0.2))
    assert "policy: 'most 0.2' -> 'most 0.3'" in accept_all(*accept[1:]), (
        "another run keeps the proposal"
    )
    assert "there is nothing to accept" in command(*accept, status=1).out
    assert "Did you mean 'people'" in command("accept", "peple", *accept[2:], status=2).err


@pytest.mark.slow
def test_another_difference_than_the_accepted_one_stops_again(home: Path, command: Command) -> None:
    split(steps(home))
    verdicts(steps(home), "undecided")
    for wrong in ({"kinds": {"age": "numeric"}}, {"drop": ["grade"]}):
        with pytest.raises(SettingsDiffer, match="differs from the accepted settings"):
            split(steps(home, **wrong))
    accept_all(NAME, "--releases", home / "releases")
    split(steps(home, drop=["grade"]))
    with pytest.raises(SettingsDiffer, match="kinds 'age': not set -> 'numeric'"):
        split(steps(home, kinds={"age": "numeric"}))


@pytest.mark.slow
def test_a_stopped_table_needs_a_reason(home: Path, command: Command) -> None:
    accept = ("accept", NAME, "--releases", home / "releases")
    split(steps(home))
    verdicts(steps(home), *["fail"] * 4)
    with pytest.raises(TableSuspended, match="4 of its last 4 verdicts are 'fail'"):
        split(steps(home))
    with pytest.raises(SettingsDiffer, match="differs from the accepted settings"):
        split(steps(home, most=0.2))
    before = sorted(path.read_bytes() for path in (home / "private").rglob("*") if path.is_file())
    digests = [f"--digest={digest}" for digest in shown_digests(command(*accept, status=2).out)]
    for reason in ((), ("--reason", " ")):
        assert (
            "is suspended, and nothing is signed"
            in command(*accept, *digests, *reason, status=2).err
        )
    assert (
        sorted(path.read_bytes() for path in (home / "private").rglob("*") if path.is_file())
        == before
    )
    assert "accepted" in accept_all(*accept[1:], "--reason", "larger leaves")
    split(steps(home, most=0.2))
    assert "there is nothing to accept" in command(*accept, "--reason", "again", status=1).out


def test_an_unsigned_proposal_cannot_disturb_the_terminal(home: Path, command: Command) -> None:
    split(steps(home))
    verdicts(steps(home), "pass")
    wild = "drop\x1b[2J\nnothing \u202e changed"
    steps(home).gate.accepted.file(NAME, PROPOSED).write_text(
        json.dumps({wild: "x", "subject": {wild: "\u200b"}})
    )
    out = command("accept", NAME, "--releases", home / "releases", status=2).out
    assert out.replace("\n", "").isprintable()
    assert [line for line in out.splitlines() if line.startswith("nothing")] == []


def test_nothing_is_signed_without_the_key_of_the_deployment(home: Path, command: Command) -> None:
    split(steps(home))
    verdicts(steps(home), "pass")
    with pytest.raises(SettingsDiffer, match="differs from the accepted settings"):
        split(steps(home, most=0.2))
    path = steps(home).gate.accepted.file(NAME, PROPOSED)
    kept, key = path.read_bytes(), home / "private" / "signing.key"
    path.write_bytes(b"{")
    assert (
        "proposed settings are damaged. Fix: run the table again"
        in command("accept", NAME, "--releases", home / "releases", status=2).err
    )
    path.write_bytes(kept)
    key.rename(home / "kept")
    assert "signing.key" in command("accept", NAME, "--releases", home / "releases", status=2).err
    (home / "kept").rename(key)
    (home / "private").chmod(0o755)
    assert "chmod 700" in command("accept", NAME, "--releases", home / "releases", status=2).err


# private values in the name of a column
HIDDEN = "".join(f"row {n}: 43 Basel; " for n in range(8))[:128].strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{}, {"kinds": {"age": "numeric"}}, {"drop": ["grade"]}], ids=str
)
def test_bypass_62_rows_in_the_names_of_columns(
    change: dict[str, object], home: Path, command: Command
) -> None:
    """No accepted change of other settings lets another name of a column through."""
    split(steps(home))
    verdicts(steps(home), "undecided")
    accept = ("accept", NAME, "--releases", home / "releases")
    frame = pd.read_parquet("people.parquet")
    frame.assign(**{HIDDEN: 1}).to_parquet("people.parquet")
    if change:
        with pytest.raises(SettingsDiffer):
            split(steps(home, **change))
        assert repr(HIDDEN) not in accept_all(*accept[1:])
    with pytest.raises(SettingsDiffer, match=re.escape(f"columns {HIDDEN!r}: not set -> 'number'")):
        split(steps(home, **change))
    out = accept_all(*accept[1:])
    assert f"columns {HIDDEN!r}: not set -> 'number'" in out
    names = next(
        line for line in out.splitlines() if line.startswith("The release publishes the names")
    )
    dropped = change.get("drop", [])
    assert all((repr(name) in names) == (name not in dropped) for name in (*frame.columns, HIDDEN))
    split(steps(home, **change))
    frame.to_parquet("people.parquet")
    with pytest.raises(SettingsDiffer, match=re.escape(f"columns {HIDDEN!r}: 'number' -> not set")):
        split(steps(home, **change))


def test_the_first_runs_and_inspect_print_the_names_of_all_columns(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_parquet("people.parquet").assign(**{HIDDEN: 1})
    frame.to_parquet("people.parquet")

    def printed() -> list[str]:
        told: list[str] = []
        split(replace(steps(home), progress=told.append))
        return [
            line
            for line in told
            if line.startswith("The release publishes the names of its columns")
        ]

    for _ in range(2):
        (names,) = printed()
        assert all(repr(name) in names for name in frame.columns)
    verdicts(steps(home), "undecided")
    assert printed() == []
    main(["inspect", "people.parquet"])
    assert HIDDEN in capsys.readouterr().out


@pytest.mark.slow
def test_a_table_runs_again_and_again_and_its_change_is_accepted(
    home: Path, command: Command
) -> None:
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
        yaml.safe_dump(
            {**given, "policy": {"name": "mine", "limits": [{**LIMIT, "at_most": 0.4}], **QUICK}}
        )
    )
    assert "privacy-assets accept patients" in command(*run, status=1).err
    accept_all("patients", "--releases", home / "releases")
    assert "release      /" in command(*run).out


def files(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (home / "private").rglob("*") if path.is_file()}


@pytest.fixture
def stopped_with_changes(home: Path) -> Path:
    """A table that is stopped, and for which another policy is proposed."""
    split(steps(home))
    verdicts(steps(home), *["fail"] * 4)
    with pytest.raises(SettingsDiffer):
        split(steps(home, most=0.2))
    return home


def test_only_the_named_parts_are_signed(stopped_with_changes: Path, command: Command) -> None:
    home = stopped_with_changes
    accept = ("accept", NAME, "--releases", home / "releases", "--reason", "larger leaves")
    before = files(home)
    looked = command(*accept, status=2)
    assert f"{NAME}: changed settings" in looked.out and f"{NAME}: suspension" in looked.out
    assert "4 of its last 4 verdicts are 'fail'" in looked.out
    changed, stop = shown_digests(looked.out)
    assert f"--digest {changed} --digest {stop} --reason" in looked.err
    for wrong in ("0" * 32, changed[:16], ""):
        assert (
            "nothing is signed"
            in command(*accept, "--digest", stop, "--digest", wrong, status=2).err
        )
    assert files(home) == before

    out = command(*accept, "--digest", changed).out
    assert "the new settings are signed" in out and "counted from now on" not in out
    assert shown_digests(command(*accept, status=2).out) == [stop], (
        "signing the settings does not accept the stop"
    )
    out = command(*accept, "--digest", stop).out
    assert "counted from now on" in out
    split(steps(home, most=0.2))


def test_bypass_64_a_part_that_changed_meanwhile_is_not_signed(
    stopped_with_changes: Path, command: Command
) -> None:
    home = stopped_with_changes
    accept = ("accept", NAME, "--releases", home / "releases", "--reason", "larger leaves")
    changed, stop = shown_digests(command(*accept, status=2).out)
    proposal = steps(home).gate.accepted.file(NAME, PROPOSED)
    exchanged = json.loads(proposal.read_text())
    exchanged["limits"] = {"dcr.identical_excess.proven": 1.0}
    proposal.write_text(json.dumps(exchanged))
    verdicts(steps(home), "fail")
    before = files(home)
    for digest in (changed, stop):
        told = command(*accept, "--digest", digest, status=2)
        assert "nothing is signed" in told.err and "it may have changed since" in told.err
    assert files(home) == before
    assert "limits 'dcr.identical_excess.proven': 0.3 -> 1.0" in told.out


def test_a_lost_ledger_is_shown_next_to_the_failed_verdicts(
    stopped_with_changes: Path, command: Command
) -> None:
    """One entry of the log accepts both, so a stop that was seen without the lost ledger is another
    one.
    """
    home = stopped_with_changes
    accept = ("accept", NAME, "--releases", home / "releases", "--reason", "a disk was lost")
    _, stop = shown_digests(command(*accept, status=2).out)
    own = steps(home)
    own.gate.log.append(
        own.target, "release", lambda _: {"sha256": "a", "content": "b", "ledger": "c" * 64}
    )
    seen = command(*accept, "--digest", stop, status=2)
    assert "nothing is signed" in seen.err
    assert (
        "4 of its last 4 verdicts are 'fail'" in seen.out
        and "the ledger of disclosure of people is missing" in seen.out
    )
    with pytest.raises(ConfigError, match="the causes of its suspension have changed"):
        Keeper(own.gate).accept(NAME, "a disk was lost", stop)
    assert "accepted" in accept_all(*accept[1:])
    assert Keeper(own.gate).suspension(NAME)[0] == []


@pytest.mark.slow
@pytest.mark.parametrize(("answers", "status", "signed"), [
    ("yn", 0, {"changed settings"}),
    ("ny", 0, {"stopped"}),
    ("yy", 0, {"changed settings", "stopped"}),
    ("nn", 1, set()),
    ("", 1, set()),
])  # fmt: skip
def test_a_terminal_is_asked_for_each_part(
    answers: str, status: int, signed: set[str], stopped_with_changes: Path, command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    home = stopped_with_changes
    accept = ("accept", NAME, "--releases", home / "releases")
    shown = dict(
        zip(
            ("changed settings", "stopped"),
            shown_digests(command(*accept, status=2).out),
            strict=True,
        )
    )
    asked, given = [], iter(answers)

    def answer(question: str) -> str:
        asked.append(question)
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    assert "repeat the command with --reason" in command(*accept, status=2).err
    assert asked == []
    command(*accept, "--reason", "larger leaves", status=status)
    assert [digest in question for digest, question in zip(shown.values(), asked, strict=True)] == [
        True,
        True,
    ]
    monkeypatch.undo()
    monkeypatch.chdir(home.parent)
    left = shown_digests(command(*accept, status=1 if len(signed) == 2 else 2).out)
    assert left == [digest for part, digest in shown.items() if part not in signed]
