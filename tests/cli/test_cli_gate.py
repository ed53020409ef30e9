"""The commands of the gate: verify, releases and keys."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import InputError, OutOfDate
from privacy_assets.gate.accepted_settings import entries_of
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile, sign_payload
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.keys import SigningKey, TrustedKeys, first_key
from privacy_assets.gate.markers import mark_deployment
from privacy_assets.gate.publisher import Publisher
from privacy_assets.gate.release import Pointer
from privacy_assets.gate.releases import Release, read_published
from privacy_assets.gate.signed_files import SignedFiles
from privacy_assets.gate.verification import verify_file
from privacy_assets.infra.storage import hash_file
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.policies import default_policy, policy_digest, small_policy
from privacy_assets.policy import Limit, Policy
from privacy_assets.stats.estimates import Estimate, MetricResult
from privacy_assets.tables.table import Table
from privacy_assets.version import PACKAGE_VERSION
from tests.cli.conftest import Command, Said

POLICY = Policy(
    (Limit("dcr.privacy_score", at_most=0.1, advice="Use larger leaves."),), name="strict"
)
SETUP = {"seed": 0}
INPUTS = {"train": "t", "holdout": "h", "synthetic": "s"}
PATIENTS, NORTH, SOUTH = (
    ReleaseTarget("patients"),
    ReleaseTarget("visits", "north"),
    ReleaseTarget("visits", "south"),
)


class Deployment:
    """A gate in a folder, and the command line that its users call."""

    def __init__(self, root: Path, command: Command) -> None:
        self.root, self.command = root, command
        self.signing = root / "private" / "signing.key"
        mark_deployment({"private": root / "private", "releases": root / "releases"})
        first_key(self.signing, root / "trusted_keys")

    @property
    def gate(self) -> Gate:
        """The gate with its current keys."""
        key = SigningKey(self.signing, "", TrustedKeys((self.root / "trusted_keys",)))
        return Gate(self.root / "releases", self.root / "private", key)

    @property
    def publisher(self) -> Publisher:
        return Publisher(SignedFiles(self.gate, b"k" * 32))

    def judge(
        self, place: ReleaseTarget, seed: int, high: float = 0.05
    ) -> tuple[SignedFile, SignedFile]:
        """Return the signed attestation of a small table and its signed snapshot."""
        frame = pd.DataFrame({"a": np.random.default_rng(seed).normal(size=50)})
        snapshot, taken = self.publisher.files.take_snapshot(Table.read(frame), place, "t")
        low, value = (-0.02, 0.01) if high < 0.1 else (0.14, 0.17)
        estimate = Estimate("privacy_score", value, low, high, n=1000, subjects=1000)
        settings = json.loads(json.dumps(Dcr().settings()))
        result = MetricResult(
            "dcr", (estimate,), settings=settings, inputs=INPUTS, package_version=PACKAGE_VERSION
        )
        self.gate.accepted.sign(place.table, entries_of(POLICY, SETUP))
        score = self.publisher.files.sign_result(result, snapshot, [])
        return self.publisher.attest(
            snapshot, POLICY, {"dcr": score}, INPUTS, {"dcr": Dcr()}, SETUP
        )[1], taken

    def publish(self, place: ReleaseTarget, seed: int = 0) -> Release:
        return self.publisher.publish(*self.judge(place, seed), place, POLICY, SETUP)

    def key_file(self) -> Path:
        (file,) = (self.root / "trusted_keys").glob("*.pem")
        return file

    def __call__(self, *words: object, status: int = 0) -> Said:
        return self.command(*words, status=status)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> Deployment:
    """A deployment named by DAGSTER_HOME, and an empty working folder."""
    for name in [name for name in os.environ if name.startswith("PRIVACY_ASSETS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Deployment(tmp_path / "home", command)


def received(release: Release, *, attestation: bool = False) -> Path:
    """The released table, copied into the working folder."""
    shutil.copy(release.table, "mine.parquet")
    if attestation:
        shutil.copy(release.attestation, "attestation.json")
    return Path("mine.parquet")


def flip(path: Path, position: int, bit: int = 0) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def foreign(folder: Path) -> Path:
    """The public key of another deployment."""
    first_key(folder / "private" / "signing.key", folder / "trusted_keys")
    return next((folder / "trusted_keys").glob("*.pem"))


# --- verify
# --------------------------------------------------------------------------------------------------


def test_a_released_file_is_told_with_policy_and_limits(home: Deployment) -> None:
    release = home.publish(PATIENTS)
    stated = release.opened(PATIENTS, home.gate.key.trusted)
    for file in (received(release), release.table):
        said = home("verify", file)
        assert said.err == "" and said.out.startswith(f"RELEASED  {file}")
        lines = dict(line.split(maxsplit=1) for line in said.out.splitlines() if line[:1].islower())
        assert lines["table"] == "patients" and lines["sha256"] == stated.sha256
        assert lines["found"] == f"release {release.id}, the current one"
        assert lines["policy"] == f"strict (custom), {policy_digest(POLICY)}"
        assert lines["version"] == PACKAGE_VERSION and stated.keyid in said.out
        assert [cell.strip() for cell in lines["dcr.privacy_score"].split("  ")] == [
            "conservative",
            "≤ 0.1",
            "pass",
        ]
    home.publish(PATIENTS, seed=1)
    assert f"release {release.id}, not the current one" in home("verify", received(release)).out


def test_the_same_as_json(home: Deployment) -> None:
    release = home.publish(NORTH)
    told = json.loads(home("verify", received(release), "--json").out)
    assert (told["released"], told["verdict"], told["table"], told["partition"]) == (
        True,
        "pass",
        "visits",
        "north",
    )
    assert (told["release"], told["current"], told["rows"]) == (release.id, True, 50)
    assert told["policy"] == {"name": "strict", "digest": policy_digest(POLICY)}
    (limit,) = told["limits"]
    facts = {
        "statistic": "dcr.privacy_score",
        "bound": "conservative",
        "limit": 0.1,
        "min_subjects": 30,
    }
    assert limit == {**facts, "status": "pass"}
    Path("mine.parquet").write_bytes(b"other")
    told = json.loads(home("verify", "mine.parquet", "--json", status=1).out)
    assert (told["released"], told["limits"], told["table"]) == (False, [], None)


DECLARED: dict[str, Any] = {
    "seed": 7,
    "subject": "pid",
    "drop": ["surname", "phone"],
    "kinds": {"age": "integer", "seen": "datetime"},
    "new_values": {"note": "written by a model that saw no note"},
    "allowed_values": {"ward": {"values": 12, "digest": "ab" * 32}},
    "metrics": {
        "membership_inference": {"subgroups": ["ward"], "n_permutations": 199},
        "dcr": {},
        "new": {"x": 1},
    },
}


def restated(home: Deployment, release: Release, **changes: Any) -> Path:
    """Write attestation.json with other contents, signed by the deployment's key; return the
    received table.
    """
    stated = replace(release.opened(PATIENTS, home.gate.key.trusted), **changes)
    Path("attestation.json").write_bytes(sign_payload(stated.payload(), home.gate.key).data)
    return received(release)


def test_what_was_declared_is_shown_and_what_widens_is_warned_of(home: Deployment) -> None:
    release = home.publish(PATIENTS)
    said = home("verify", restated(home, release, setup=DECLARED)).out.splitlines()
    lines = [line for line in said if not line.startswith("Warning")]
    for line in (
        "seed         7",
        "subject      pid",
        "left out     surname, phone",
        "kinds        age: integer, seen: datetime",
        "new values in note written by a model that saw no note",
        "table settings membership_inference.subgroups ['ward']",
        f"allowed in ward 12 values, keyed {'ab' * 32}",
    ):
        assert lines.count(line) == 1, line
    warned = [line for line in said if line.startswith("Warning: ")]
    assert len(warned) == 4
    assert (
        "Warning: the table sets membership_inference.subgroups. Its policy leaves this setting"
        " to tables." in warned
    )
    for words in ("policy strict is custom", "the kind of age, seen", "column note may have new"):
        assert len([line for line in warned if words in line]) == 1, words
    told = json.loads(home("verify", "mine.parquet", "--json").out)
    declared = {name: value for name, value in DECLARED.items() if name != "metrics"}
    declared["table_settings"] = {"membership_inference.subgroups": ["ward"]}
    assert {name: told[name] for name in declared} == declared
    assert [f"Warning: {warning}" for warning in told["warnings"]] == warned
    without = home("verify", restated(home, release, setup={"seed": 0})).out
    assert "Warning: there is no subject column" in without and without.count("Warning") == 2


def test_a_policy_is_shipped_by_its_limits_and_not_by_its_name(home: Deployment) -> None:
    release = home.publish(PATIENTS)

    def shown(policy: Policy, digest: str = "") -> str:
        passed = {limit.key: "pass" for limit in policy.limits}
        stated = {
            "policy": policy.to_dict(),
            "policy_digest": digest or policy_digest(policy),
            "limits": passed,
        }
        return home("verify", restated(home, release, setup=DECLARED, **stated)).out

    for policy in (default_policy(), small_policy()):
        assert f"{policy.name} (shipped), {policy_digest(policy)}" in shown(policy)
        assert "is custom" not in shown(policy)
        loose = replace(
            policy,
            name="other",
            limits=(replace(policy.limits[0], min_subjects=1), *policy.limits[1:]),
        )
        for said in (
            shown(loose),
            shown(loose, policy_digest(policy)),
            shown(replace(policy, name="other")),
        ):
            assert "(custom), " in said and "is custom. It can be weaker" in said
        claims = {**loose.to_dict(), "name": policy.name}
        said = home("verify", restated(home, release, setup=DECLARED, policy=claims), status=1)
        assert "another version of privacy-assets" in " ".join(said.out.split())


def test_the_limits_of_another_engine_are_not_called_shipped(home: Deployment) -> None:
    release, policy = home.publish(PATIENTS), default_policy()
    loose = {
        **policy.to_dict(),
        "limits": [{**one, "min_subjects": 1} for one in policy.to_dict()["limits"]],
    }
    stated = {
        "policy": loose,
        "limits": {limit.key: "pass" for limit in policy.limits},
        "package_version": "0.0.1",
    }
    said = home("verify", restated(home, release, setup=DECLARED, **stated)).out
    assert "default, of version 0.0.1, " in said and "(shipped)" not in said
    assert "Warning: policy default is of version 0.0.1. This version cannot compare it" in said


def test_declared_names_cannot_disturb_the_terminal(home: Deployment) -> None:
    wild = "x\x1b[2J\r\nRELEASED \u202e\x07"
    setup = {
        "seed": wild,
        "subject": wild,
        "drop": [wild],
        "kinds": {wild: wild},
        "new_values": {wild: wild},
        "allowed_values": {wild: {"values": wild, "digest": wild}},
        "metrics": {
            "membership_inference": {"subgroups": [wild]},
            "shadow_membership": {"generator": {wild: wild}},
        },
    }
    file = restated(home, home.publish(PATIENTS), setup=setup, made_at=wild, package_version=wild)
    said = home("verify", file).out
    assert said.replace("\n", "").replace("≤", "").replace("–", "").isprintable()
    # it is only attested
    assert len([line for line in said.splitlines() if line.startswith("RELEASED")]) == 0
    assert home("verify", file, "--json").out.replace("\n", "").isprintable()
    policy = {**POLICY.to_dict(), "name": wild}
    said = home(
        "verify", restated(home, home.publish(PATIENTS), setup=setup, policy=policy), status=1
    ).out
    assert "another version" in " ".join(said.split()) and said.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "setup",
    [
        {},
        {"seed": 0, "metrics": {"membership_inference": 3}},
        {"seed": 0, "kinds": ["a"]},
        {"seed": 0, "allowed_values": {"a": 3}},
        {"seed": 0, "drop": 3},
        None,
    ],
)
def test_settings_of_another_form_are_not_released(home: Deployment, setup: Any) -> None:
    said = home("verify", restated(home, home.publish(PATIENTS), setup=setup), status=1)
    assert "another version of privacy-assets" in " ".join(said.out.split())


def test_the_public_key_alone_is_enough(home: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    file = received(home.publish(PATIENTS), attestation=True)
    key = Path(shutil.copy(home.key_file(), "publisher.pem"))
    shutil.rmtree(home.root)
    assert "the attestation alone" in home("verify", file, "--key", key).out
    home("verify", file, "--key", foreign(Path("other")), "--key", Path.cwd())  # files and folders
    monkeypatch.setenv("PRIVACY_ASSETS_TRUSTED_KEYS", str(key))
    home("verify", file)
    Path("attestation.json").rename("theirs.json")
    home("verify", file, status=1)
    home("verify", file, "--attestation", "theirs.json")


def test_the_same_bytes_released_twice_are_found_as_they_are_read(home: Deployment) -> None:
    first = home.publish(PATIENTS)
    stated = replace(first.opened(PATIENTS, home.gate.key.trusted), made_at="later")
    attestation = sign_payload(stated.payload(), home.gate.key).data
    key = home.gate.key
    second = home.gate.store.add(
        PATIENTS, first.table, stated.sha256, attestation,
        lambda name: Pointer(name, 1, dt.datetime.now(dt.UTC)).signed(PATIENTS, key), lambda: None,
    )  # fmt: skip
    file = received(first)
    assert f"release {second.id}, the current one" in home("verify", file).out
    said = home("verify", file, "--attestation", first.attestation)
    assert f"release {first.id}, not the current one" in said.out
    Keeper(home.gate).roll_back(PATIENTS, first.id)
    assert f"release {first.id}, the current one" in home("verify", file).out
    flip(first.attestation, 300)  # one intact envelope is enough
    assert f"release {second.id}, not the current one" in home("verify", file).out


@pytest.mark.parametrize("where", ["beside", "--attestation", "release folder"])
def test_a_flipped_bit_is_not_released(home: Deployment, where: str) -> None:
    release = home.publish(PATIENTS)
    file = received(release, attestation=where == "beside")
    more = ["--attestation", release.attestation] if where == "--attestation" else []
    home("verify", file, *more)
    flip(file, 700)
    said = home("verify", file, *more, status=1)
    assert said.out.startswith("NOT RELEASED  mine.parquet\n")
    assert "changed after its release" in " ".join(said.out.split())
    assert "dcr.privacy_score" not in said.out  # statistics of other bytes are not shown here


def test_no_flipped_bit_of_the_attestation_is_believed(home: Deployment) -> None:
    file, trusted = received(home.publish(PATIENTS), attestation=True), home.gate.key.trusted
    size = Path("attestation.json").stat().st_size
    for position in range(0, size, max(size // 80, 1)):
        flip(Path("attestation.json"), position, position % 8)
        assert not verify_file(file, trusted, home.root / "releases").passed, position
        flip(Path("attestation.json"), position, position % 8)
    assert verify_file(file, trusted, home.root / "releases").passed
    flip(Path("attestation.json"), size // 2)
    assert "Fix: ask the publisher" in " ".join(home("verify", file, status=1).out.split())


def test_a_foreign_key_and_a_failed_verdict_are_not_released(home: Deployment) -> None:
    file = received(home.publish(PATIENTS), attestation=True)
    assert (
        "which is not trusted"
        in home("verify", file, "--key", foreign(Path("other")), status=1).out
    )
    failed, taken = home.judge(PATIENTS, seed=2, high=0.2)
    again, _ = home.judge(PATIENTS, seed=2)  # earlier_failures, although no limit fails this time
    stated = replace(
        home.publisher.files.open_attestation(failed, PATIENTS), verdict="pass", earlier_failures=[]
    )
    denied = sign_payload(
        stated.payload(), home.gate.key
    )  # a verdict "pass" that contradicts its limits
    broken, before = (
        "1 of 1 limits fails",
        "'fail': failed before: dcr.privacy_score at most 0.1",
    )
    for attestation, words in (
        (failed, f"'fail': {broken}"),
        (again, before),
        (denied, f"'pass': {broken}"),
    ):
        Path("theirs.json").write_bytes(attestation.data)
        found = home.publisher.files.open_snapshot(taken, PATIENTS).path
        assert words in home("verify", found, "--attestation", "theirs.json", status=1).out


def test_a_verdict_that_is_undecided_exits_with_3(home: Deployment) -> None:
    undecided, taken = home.judge(PATIENTS, seed=2, high=0.095)
    Path("theirs.json").write_bytes(undecided.data)
    found = home.publisher.files.open_snapshot(taken, PATIENTS).path
    said = home("verify", found, "--attestation", "theirs.json", status=3).out
    assert said.startswith("NOT RELEASED") and "'undecided': 1 of 1 limits is undecided" in said
    assert (
        json.loads(home("verify", found, "--attestation", "theirs.json", "--json", status=3).out)[
            "passed"
        ]
        is False
    )
    home("verify", found, "--attestation", "theirs.json", "--key", foreign(Path("other")), status=1)
    # of other bytes
    home("verify", received(home.publish(PATIENTS)), "--attestation", "theirs.json", status=1)


def test_an_attestation_of_another_form_is_not_released(home: Deployment) -> None:
    release = home.publish(PATIENTS)
    stated = replace(release.opened(PATIENTS, home.gate.key.trusted), limits=[])
    Path("attestation.json").write_bytes(sign_payload(stated.payload(), home.gate.key).data)
    assert "another version of privacy-assets (" in home("verify", received(release), status=1).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.parquet"], "absent.parquet: cannot be read (No such file"),
        (["."], "Is a directory"),
        (["mine.parquet", "--attestation=absent.json"], "absent.json"),
        (["mine.parquet", "--key=absent.pem"], "no trusted key in absent.pem"),
        (["mine.parquet", "--key={key}", "--key=absent.pem"], "absent.pem"),
        (["mine.parquet", "--key={signing}"], "not a public key in PEM form"),
        (["mine.parquet", "--releases=absent"], "--releases"),
    ],
)
def test_bad_input_exits_with_2(home: Deployment, arguments: list[str], words: str) -> None:
    received(home.publish(PATIENTS))
    known = {"key": home.key_file(), "signing": home.signing}
    said = home("verify", *[argument.format(**known) for argument in arguments], status=2)
    assert words in said.err and said.out == ""


def test_without_a_trusted_key_nothing_is_verified(home: Deployment) -> None:
    file = received(home.publish(PATIENTS), attestation=True)
    home.key_file().chmod(0o666)
    assert "chmod go-w" in home("verify", file, status=2).err
    home.key_file().unlink()
    assert "no trusted key in" in home("verify", file, status=2).err


@pytest.mark.slow
def test_a_large_file_takes_little_memory_and_no_heavy_import(home: Deployment) -> None:
    with open("large.parquet", "wb") as stream:
        stream.truncate(120 << 20)
    script = """
import resource, sys
from pathlib import Path
from privacy_assets.cli.main import main
from privacy_assets.gate import verification
unit = 1 << 10 if sys.platform == "linux" else 1 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
status = main(["verify", "large.parquet"])
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // unit
print(status, grown, *{"torch", "faiss", "dagster", "numba"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    status, grown, *imported = done.stdout.splitlines()[-1].split()
    assert status == "1" and imported == []
    assert int(grown) < 50  # MiB, for a file of 120


def test_the_file_is_read_once(home: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened, plain = received(home.publish(PATIENTS)), [], os.open

    def counted(path: Any, *rest: Any, **named: Any) -> int:
        opened.append(str(path))
        return plain(path, *rest, **named)

    monkeypatch.setattr(os, "open", counted)
    home("verify", file)
    assert opened.count(str(file)) == 1


def test_a_file_that_is_too_old_or_not_current_is_blocked_on_request(home: Deployment) -> None:
    first = home.publish(PATIENTS)
    file = received(first)
    assert "RELEASED" in home("verify", file, "--max-age", 1).out
    folder, pointer = (
        first.folder.parents[1],
        home.gate.store.pointer(PATIENTS, home.gate.key.trusted),
    )
    old = replace(pointer, at=pointer.at - dt.timedelta(hours=2))
    (folder / "latest.json").unlink()
    (folder / "latest.json").write_bytes(old.signed(PATIENTS, home.gate.key))
    assert "last confirmed" in home("verify", file, "--max-age", 1, status=1).out
    home("verify", file)
    ahead = replace(pointer, at=pointer.at + dt.timedelta(hours=2))
    (folder / "latest.json").write_bytes(ahead.signed(PATIENTS, home.gate.key))
    assert "10 minutes in the future" in " ".join(
        home("verify", file, "--max-age", 1, status=1).out.split()
    )
    home("verify", file)
    home.publish(PATIENTS, seed=1)
    assert "It is not the current release" in home("verify", file, "--max-age", 1, status=1).out
    assert "expected more than 0 and at most" in home("verify", file, "--max-age", 0, status=2).err


# --- releases
# --------------------------------------------------------------------------------------------------


def test_there_are_no_releases(home: Deployment) -> None:
    assert f"There are no releases in {home.root / 'releases'}" in home("releases").out
    home("releases", "patients", "--rollback", "x", status=2)
    assert json.loads(home("releases", "--json").out)["targets"] == []


def test_the_history_of_each_table_and_partition(home: Deployment) -> None:
    made = [
        home.publish(PATIENTS),
        home.publish(PATIENTS, seed=1),
        home.publish(NORTH),
        home.publish(SOUTH),
    ]
    said = home("releases")
    assert {"patients", "visits, north", "visits, south"} <= set(said.out.splitlines())
    rows = [line.split() for line in said.out.splitlines() if line.endswith("whole")]
    # newest first
    assert [row[0] for row in rows] == [made[1].id, made[0].id, made[2].id, made[3].id]
    assert ["current" in row for row in rows] == [True, False, True, True]
    keyid = made[0].opened(PATIENTS, home.gate.key.trusted).keyid
    assert all({"strict", "50", keyid[:12], row[0][-12:]} <= set(row) for row in rows)
    assert f"privacy-assets releases patients --rollback {made[0].id}" in said.out
    assert "visits" not in home("releases", "patients").out
    only = home("releases", "visits", "--partition", "south").out
    assert made[3].id in only and made[2].id not in only
    (told,) = json.loads(home("releases", "patients", "--json").out)["targets"]
    assert [(one["current"], one["state"]) for one in told["releases"]] == [
        (True, "whole"),
        (False, "whole"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["patient"], "Did you mean 'patients'"),
        (["visits", "--partition=nort"], "Did you mean 'north'"),
        (["patients", "--partition=x"], "no partition 'x' of 'patients'"),
        (["patients", "--rollback=2026"], "has no release '2026'"),
        (["--rollback=x"], "require the TABLE"),
        (["visits", "--rollback=x"], "Known: north"),
        (["--releases=absent"], "absent: no such release folder"),
    ],
)
def test_what_is_not_there_exits_with_2(home: Deployment, arguments: list[str], words: str) -> None:
    home.publish(PATIENTS)
    home.publish(NORTH)
    said = home("releases", *arguments, status=2)
    assert words in said.err and said.out == ""


def test_a_damaged_release_is_told_and_is_not_rolled_back_to(home: Deployment) -> None:
    first, second = home.publish(PATIENTS), home.publish(PATIENTS, seed=1)
    flip(first.table, 500)
    said = home("releases", status=1)
    assert f"{first.id} is damaged: {first.table} does not contain the bytes" in said.out
    # there is no other intact release
    assert "do not use it" in said.out and "--rollback" not in said.out
    assert (
        "failed, nothing changed"
        in home("releases", "patients", "--rollback", first.id, status=1).err
    )
    assert home.gate.store.current(PATIENTS, home.gate.key.trusted) == second
    flip(second.attestation, 300)
    assert "rerun the step publish, or roll back" in home("releases", status=1).out
    (told,) = json.loads(home("releases", "--json", status=1).out)["targets"]
    assert [one["state"] for one in told["releases"]] == ["damaged", "damaged"]
    assert told["releases"][0]["policy"] is None  # unsigned content is not shown


@pytest.mark.parametrize(
    "pointer", [None, b"{", b'{"release": "20200101T000000.000000Z-aaaaaaaaaaaa"}']
)
def test_a_broken_pointer_is_told_and_mended_by_a_rollback(
    home: Deployment, pointer: bytes | None
) -> None:
    release = home.publish(PATIENTS)
    file = release.folder.parents[1] / "latest.json"
    file.unlink()
    if pointer is not None:
        file.write_bytes(pointer)
    assert "roll back to" in home("releases", status=1).out
    assert "not the current one" in home("verify", received(release)).out
    home("releases", "patients", "--rollback", release.id)
    home("releases")


def test_rollback_moves_the_pointer(home: Deployment) -> None:
    first, second = home.publish(NORTH), home.publish(NORTH, seed=1)
    back = ["releases", "visits", "--partition", "north", "--rollback", first.id]
    assert " ".join(back) in home("releases").out
    assert f"visits, north: rolled back from {second.id} to {first.id}" in home(*back).out
    assert home.gate.store.current(NORTH, home.gate.key.trusted) == first
    assert "is the current release already" in home(*back).out
    told = {"table": "visits", "partition": "north", "from": first.id, "to": second.id}
    assert json.loads(home(*back[:-1], second.id, "--json").out) == told


def test_rollback_asks_the_memory_of_failures(
    home: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = home.publish(PATIENTS), home.publish(PATIENTS, seed=1)
    elsewhere = home.root.parent / "elsewhere"
    home.gate.private.rename(elsewhere)
    back = ["releases", "patients", "--rollback", first.id]
    assert "later failures of these rows are unknown" in home(*back, status=2).err
    elsewhere.chmod(0o755)
    assert "chmod 700" in home(*back, "--private", elsewhere, status=2).err
    assert home.gate.store.current(PATIENTS, home.gate.key.trusted) == second
    elsewhere.chmod(0o700)
    monkeypatch.setenv("PRIVACY_ASSETS_PRIVATE", str(elsewhere))
    home(*back)
    monkeypatch.delenv("PRIVACY_ASSETS_PRIVATE")
    elsewhere.rename(home.gate.private)
    home.judge(PATIENTS, seed=1, high=0.2)  # the same rows, attested again
    assert "these rows failed before" in home(*back[:-1], second.id, status=1).err
    assert home.gate.store.current(PATIENTS, home.gate.key.trusted) == first


def test_a_withdrawn_release_is_gone_and_needs_a_reason(home: Deployment) -> None:
    first, second = home.publish(PATIENTS), home.publish(PATIENTS, seed=1)
    withdraw = ["releases", "patients", "--withdraw", second.id]
    assert "requires a reason" in home(*withdraw, status=2).err
    assert "cannot be combined" in home(*withdraw, "--rollback", first.id, status=2).err
    said = home(*withdraw, "--reason", "a person asked for it").out
    assert f"{second.id} was withdrawn and removed; no release is current" in said
    assert not second.folder.exists()
    said = home("releases", status=1).out
    assert "no release is current" in said and f"--rollback {first.id}" in said
    assert "has no release" in home(*withdraw, "--reason", "again", status=2).err
    home("releases", "patients", "--rollback", first.id)
    assert "withdrawal" in home("log", "patients").out


def test_bypass_56_an_old_copy_of_the_release_folder_is_put_back(home: Deployment) -> None:
    """Commands that can read the log notice it. Other readers need ``seen`` or ``max_age``."""
    first = home.publish(PATIENTS)
    file, folder = received(first), home.root / "releases"
    read_published(folder, "patients", seen="seen.json")
    shutil.copytree(folder, "copy")
    withdraw = ["releases", "patients", "--withdraw", first.id, "--reason", "a person asked for it"]
    home(*withdraw)
    home.publish(PATIENTS, seed=1)
    read_published(folder, "patients", seen="seen.json")
    folder.rename("new")
    shutil.copytree("copy", folder)
    assert home("verify", file, status=1).out.startswith("WITHDRAWN  mine.parquet")
    said = home("releases", status=1).out
    assert "WITHDRAWN" in said and f"--withdraw {first.id}" in said
    assert (
        json.loads(home("releases", "--json", status=1).out)["targets"][0]["releases"][0]["state"]
        == "withdrawn"
    )
    assert len(read_published(folder, "patients"))
    with pytest.raises(OutOfDate, match="older copy"):
        read_published(folder, "patients", seen="seen.json")
    (home.root / "private").rename(home.root / "elsewhere")
    assert home("verify", file).out.startswith("RELEASED")
    home("releases")
    (home.root / "elsewhere").rename(home.root / "private")
    home(*withdraw)
    assert "no release of these bytes" in home("verify", file, status=1).out
    with pytest.raises(InputError):
        read_published(folder, "patients")


# --- log and prune
# --------------------------------------------------------------------------------------------------


def test_the_log_is_shown_without_a_measured_number(home: Deployment) -> None:
    home.publish(PATIENTS)
    home.judge(PATIENTS, seed=1, high=0.2)
    said = home("log", "patients")
    lines = [line.split() for line in said.out.splitlines() if line[:1].isdigit()]
    assert [line[2] for line in lines] == ["attempt", "verdict", "release", "attempt", "verdict"]
    assert (
        "fail (dcr.privacy_score)" in said.out
        and "0.17" not in said.out
        and "next attempt     2" in said.out
    )
    told = json.loads(home("log", "patients", "--json").out)
    assert told["recent"] == ["pass", "fail"] and told["suspended"] == ""
    assert told["entries"][2]["what"].startswith("sha256 ")
    assert "Did you mean 'patients'?" in home("log", "patient", status=2).err


def test_a_log_that_is_damaged_or_of_a_stopped_table_is_told(home: Deployment) -> None:
    for seed in range(4):
        home.judge(PATIENTS, seed=seed, high=0.2)
    said = home("log", "patients", status=1).out
    assert (
        "patients is suspended: 4 of its last 4 verdicts are 'fail'" in said
        and "accept patients --reason" in said
    )
    entry = home.gate.private / "log" / "patients" / "00000002"
    entry.write_bytes(b"{}")
    assert "cannot be read as a signed file" in home("log", "patients", status=1).out
    entry.unlink()
    assert "is missing" in home("log", "patients", status=1).out


@pytest.mark.slow
def test_prune_keeps_what_is_current_new_or_young(home: Deployment) -> None:
    made = [home.publish(PATIENTS, seed=seed) for seed in range(4)]
    Keeper(home.gate).roll_back(PATIENTS, made[0].id)
    snapshots = home.gate.private / "snapshots" / "patients" / "_all"
    assert "0 removed" in home("prune", "patients", "--keep", 1, "--days", 1).out
    said = home("prune", "patients", "--keep", 1, "--days", 0, "--dry-run").out
    assert made[1].id in said and made[2].id in said and "would be removed" in said
    assert len(home.gate.store.history(PATIENTS)) == len(list(snapshots.iterdir())) == 4
    assert "removed" in home("prune", "patients", "--keep", 1, "--days", 0).out
    assert home.gate.store.history(PATIENTS) == [made[0], made[3]]
    kept = {hash_file(one.table) for one in (made[0], made[3])}
    assert {path.stem for path in snapshots.iterdir()} == kept
    assert "prune" in home("log", "patients").out
    home("releases")
    home("releases", "patients", "--rollback", made[3].id)
    assert "0 removed" in home("prune", "patients", "--keep", 2, "--days", 0).out
    assert home.publish(PATIENTS, seed=9)
    for words, message in ((["--keep", 0], "expected at least 1"), (["--days", -1], "at least 0")):
        assert message in home("prune", "patients", *words, status=2).err
    assert "Did you mean 'patients'?" in home("prune", "patient", status=2).err


# --- keys
# --------------------------------------------------------------------------------------------------


def test_the_first_pair_and_its_rotation(home: Deployment) -> None:
    shutil.rmtree(home.root)
    assert home("keys").out.startswith("There are no keys")
    assert not home.root.exists()  # listing keys creates no files
    said = home("keys", "--new")
    first = home.key_file()
    assert f"give {first.name} to" in said.out and "stays trusted" not in said.out
    # as in the first run
    mark_deployment({"private": home.root / "private", "releases": home.root / "releases"})
    release = home.publish(PATIENTS)
    said = home("keys", "--new")
    assert f"{first.name} stays trusted" in said.out and "To distrust a key" in said.out
    notes = {
        line.split()[1]: line.split(maxsplit=2)[2]
        for line in home("keys").out.splitlines()
        if ".pem" in line
    }
    assert notes.pop(first.name) == "trusted"
    ((new, note),) = notes.items()
    assert note == "signs now" and f"give {new} to" in said.out
    home("verify", received(release))
    assert (
        home.publish(PATIENTS, seed=1)
        .opened(PATIENTS, home.gate.key.trusted)
        .keyid.startswith(new[:16])
    )
    first.unlink()
    assert "which is not trusted" in home("releases", status=1).out


def _no_key(home: Deployment) -> None:
    (home.root / "trusted_keys" / "zz.pem").write_text("no key")


def _readable(home: Deployment) -> None:
    home.signing.chmod(0o644)


def _lost(home: Deployment) -> None:
    home.signing.unlink()


def _flipped(home: Deployment) -> None:
    flip(home.signing, 80)
    home.signing.chmod(0o600)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_no_key, "zz.pem: this is not a public key in PEM form"),
        (_readable, "signing key   unusable"),
        (_readable, "mode 0600"),
        (_lost, "there are trusted keys but no signing key"),
        (_flipped, "PROBLEM"),
    ],
)
def test_problems_of_keys_are_listed(
    home: Deployment, harm: Callable[[Deployment], None], words: str
) -> None:
    home("keys")
    harm(home)
    said = home("keys", status=1)
    assert words in said.out and "PRIVATE" not in said.out


def test_a_key_from_the_environment_is_not_replaced(
    home: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SIGNING_KEY", home.signing.read_text())
    home.signing.unlink()
    assert "environment variable PRIVACY_ASSETS_SIGNING_KEY" in home("keys").out
    assert "PRIVACY_ASSETS_SIGNING_KEY" in home("keys", "--new", status=2).err
    assert not home.signing.exists()


def test_a_new_key_needs_a_folder_of_trusted_keys_and_a_private_one(
    home: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = home.key_file().read_bytes()
    (home.root / "private").chmod(0o755)
    assert "chmod 700" in home("keys", "--new", status=2).err
    (home.root / "private").chmod(0o700)
    monkeypatch.setenv("PRIVACY_ASSETS_TRUSTED_KEYS", str(home.key_file()))
    assert "replace it by a folder" in home("keys", "--new", status=2).err
    monkeypatch.delenv("PRIVACY_ASSETS_TRUSTED_KEYS")
    Path("file").touch()
    assert "file" in home("keys", "--new", "--private=file", status=2).err
    assert home.key_file().read_bytes() == before


def test_the_folders_come_from_options_environment_and_defaults(
    home: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = home.publish(PATIENTS)
    monkeypatch.delenv("DAGSTER_HOME")
    assert "/.dagster_home/releases. The asset" in home("releases").out
    assert release.id in home("releases", "--releases", home.root / "releases").out
    monkeypatch.setenv("PRIVACY_ASSETS_RELEASES", str(home.root / "releases"))
    assert release.id in home("releases").out
    monkeypatch.delenv("PRIVACY_ASSETS_RELEASES")
    home.root.rename(".dagster_home")
    assert release.id in home("releases").out
