"""The commands of the gate: verify, releases, keys; and private values, shown only when asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.main import main
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SigningKey, TrustedKeys, first_key
from privacy_assets.gate.releases import Release
from privacy_assets.gate.statements import Place, Sealed, seal
from privacy_assets.gate.verification import verify_file
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit, widening
from privacy_assets.stats.results import Estimate, MetricResult
from privacy_assets.version import ENGINE_VERSION

POLICY = Policy((Limit("dcr.privacy_score", at_most=0.1, advice="Use larger leaves."),), name="strict")
SETUP = {"seed": 0}
INPUTS = {"train": "t", "holdout": "h", "synthetic": "s"}
PATIENTS, NORTH, SOUTH = Place("patients"), Place("visits", "north"), Place("visits", "south")
SECRET = "Zebulon-77123"


class Said(NamedTuple):
    """What a command did: its exit status and what it printed on the two streams."""

    status: int
    out: str
    err: str


class Deployment:
    """A gate in a folder, and the command line as its users call it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = root, capsys
        first_key(root / "private" / "signing.key", root / "trusted_keys")

    @property
    def gate(self) -> Gate:
        """With keys as they are now."""
        key = SigningKey(self.root / "private" / "signing.key", "", TrustedKeys((self.root / "trusted_keys",)))
        return Gate(self.root / "releases", self.root / "private", key, b"k" * 32)

    def judge(self, place: Place, seed: int, high: float = 0.05) -> tuple[Sealed, Sealed]:
        """The signed attestation of a small table, and its signed snapshot."""
        frame = pd.DataFrame({"a": np.random.default_rng(seed).normal(size=50)})
        snapshot, taken = self.gate.take_snapshot(frame, place, "t")
        estimate = Estimate("privacy_score", 0.01, -0.02, high, n=1000, subjects=1000)
        settings = json.loads(json.dumps(Dcr().settings()))
        result = MetricResult("dcr", (estimate,), settings=settings, inputs=INPUTS, engine_version=ENGINE_VERSION)
        return self.gate.attest(snapshot, POLICY, {"dcr": result}, INPUTS, {"dcr": Dcr()}, SETUP)[1], taken

    def publish(self, place: Place, seed: int = 0) -> Release:
        return self.gate.publish(*self.judge(place, seed), place, POLICY, SETUP)

    def key_file(self) -> Path:
        (file,) = (self.root / "trusted_keys").glob("*.pem")
        return file

    def __call__(self, *arguments: object) -> Said:
        self.capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Said(status, *self.capsys.readouterr())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Deployment]:
    """A deployment that DAGSTER_HOME names, and an empty folder to work in."""
    for name in [name for name in os.environ if name.startswith("PRIVACY_ASSETS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield Deployment(tmp_path / "home", capsys)


def received(release: Release, *, attestation: bool = False) -> Path:
    """The released table as somebody copied it into the working folder."""
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


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_released_file_is_told_with_policy_and_statistics(home: Deployment) -> None:
    release = home.publish(PATIENTS)
    stated = release.opened(PATIENTS, home.gate.key.trusted)
    for file in (received(release), release.table):
        said = home("verify", file)
        assert said.status == 0
        assert said.err == ""
        assert said.out.startswith(f"RELEASED  {file}")
        lines = dict(line.split(maxsplit=1) for line in said.out.splitlines() if line[:1].islower())
        assert lines["table"] == "patients"
        assert lines["sha256"] == stated.sha256
        assert lines["found"] == f"release {release.id}, the current one"
        assert lines["policy"] == f"strict, {POLICY.digest()}"
        assert lines["engine"] == ENGINE_VERSION
        assert stated.keyid in said.out
        assert lines["dcr.privacy_score"].split("  ")[0] == "0.01 [-0.02, 0.05]"
        assert "≤ 0.1" in lines["dcr.privacy_score"]
        assert "pass" in lines["dcr.privacy_score"]


def test_the_same_as_json(home: Deployment) -> None:
    release = home.publish(NORTH)
    said = home("verify", received(release), "--json")
    told = json.loads(said.out)
    assert said.status == 0
    assert (told["released"], told["verdict"], told["table"], told["partition"]) == (True, "pass", "visits", "north")
    assert (told["release"], told["current"], told["rows"]) == (release.id, True, 50)
    assert told["policy"] == {"name": "strict", "digest": POLICY.digest()}
    (limit,) = told["limits"]
    assert limit["statistic"] == "dcr.privacy_score"
    assert [limit[name] for name in ("limit", "value", "low", "high")] == [0.1, 0.01, -0.02, 0.05]
    assert limit["measured"] == pytest.approx(0.01 + 0.04 * widening(1, 0.95))
    Path("mine.parquet").write_bytes(b"other")
    told = json.loads(home("verify", "mine.parquet", "--json").out)
    assert told["released"] is False
    assert told["limits"] == []
    assert told["table"] is None


def test_the_public_key_alone_is_enough(home: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    file = received(home.publish(PATIENTS), attestation=True)
    key = Path(shutil.copy(home.key_file(), "publisher.pem"))
    shutil.rmtree(home.root)
    said = home("verify", file, "--key", key)
    assert said.status == 0
    assert "the attestation alone" in said.out
    assert home("verify", file, "--key", foreign(Path("other")), "--key", Path.cwd()).status == 0  # files and folders
    monkeypatch.setenv("PRIVACY_ASSETS_TRUSTED_KEYS", str(key))
    assert home("verify", file).status == 0
    Path("attestation.json").rename("theirs.json")
    assert home("verify", file).status == 1
    assert home("verify", file, "--attestation", "theirs.json").status == 0


def test_an_earlier_release_is_told_from_the_current_one(home: Deployment) -> None:
    first = home.publish(PATIENTS)
    second = home.publish(PATIENTS, seed=1)
    said = home("verify", received(first))
    assert said.status == 0
    assert f"release {first.id}, not the current one" in said.out
    assert f"release {second.id}, the current one" in home("verify", received(second)).out


def test_the_same_bytes_released_twice_are_found_as_they_are_read(home: Deployment) -> None:
    first = home.publish(PATIENTS)
    stated = replace(first.opened(PATIENTS, home.gate.key.trusted), made_at="later")
    attestation = seal(stated.statement(), home.gate.key).data
    second = home.gate.store.add(PATIENTS, first.table, stated.sha256, attestation, lambda: None)
    assert second != first
    file = received(first)
    assert f"release {second.id}, the current one" in home("verify", file).out
    said = home("verify", file, "--attestation", first.attestation)
    assert f"release {first.id}, not the current one" in said.out
    home.gate.roll_back(PATIENTS, first.id)
    assert f"release {first.id}, the current one" in home("verify", file).out
    flip(first.attestation, 300)
    said = home("verify", file)  # one that is whole is enough
    assert said.status == 0
    assert f"release {second.id}, not the current one" in said.out


@pytest.mark.parametrize("where", ["beside", "--attestation", "release folder"])
def test_a_flipped_bit_is_not_released(home: Deployment, where: str) -> None:
    release = home.publish(PATIENTS)
    file = received(release, attestation=where == "beside")
    more = ["--attestation", release.attestation] if where == "--attestation" else []
    assert home("verify", file, *more).status == 0
    flip(file, 700)
    said = home("verify", file, *more)
    assert said.status == 1
    assert said.out.startswith("NOT RELEASED  mine.parquet\n")
    assert "it changed after it was released" in " ".join(said.out.split())
    assert "dcr.privacy_score" not in said.out  # statistics of other bytes are not shown beside these


def test_no_flipped_bit_of_the_attestation_is_believed(home: Deployment) -> None:
    release = home.publish(PATIENTS)
    file, trusted = received(release, attestation=True), home.gate.key.trusted
    size = Path("attestation.json").stat().st_size
    for position in range(0, size, max(size // 80, 1)):
        flip(Path("attestation.json"), position, position % 8)
        assert not verify_file(file, trusted, home.root / "releases").passed, position
        flip(Path("attestation.json"), position, position % 8)
    assert verify_file(file, trusted, home.root / "releases").passed
    flip(Path("attestation.json"), size // 2)
    said = home("verify", file)
    assert said.status == 1
    assert "Ask the publisher" in said.out
    assert "materialise" not in said.out


def test_a_foreign_key_and_a_failed_verdict_are_not_released(home: Deployment) -> None:
    file = received(home.publish(PATIENTS), attestation=True)
    said = home("verify", file, "--key", foreign(Path("other")))
    assert said.status == 1
    assert "which is not trusted" in said.out
    sealed, taken = home.judge(PATIENTS, seed=2, high=0.2)
    Path("failed.json").write_bytes(sealed.data)
    said = home("verify", home.gate.snapshot(taken, PATIENTS).path, "--attestation", "failed.json")
    assert said.status == 1
    assert "'fail': 1 of 1 limits do not hold" in said.out
    assert "0.2688 is above the limit 0.1 at attempt 2" in said.out
    Path("again.json").write_bytes(home.judge(PATIENTS, seed=2)[0].data)
    said = home("verify", home.gate.snapshot(taken, PATIENTS).path, "--attestation", "again.json")
    assert said.status == 1
    assert "0.2688 is above the limit 0.1 at attempt 2" in said.out  # remembered: no limit is broken this time
    stated = replace(home.gate.attestation(sealed, PATIENTS), verdict="pass", remembered=[])
    Path("failed.json").write_bytes(seal(stated.statement(), home.gate.key).data)  # a pass that its limits deny
    assert home("verify", home.gate.snapshot(taken, PATIENTS).path, "--attestation", "failed.json").status == 1


def test_an_attestation_of_another_form_is_not_released(home: Deployment) -> None:
    release = home.publish(PATIENTS)
    stated = replace(release.opened(PATIENTS, home.gate.key.trusted), limits=[])
    Path("attestation.json").write_bytes(seal(stated.statement(), home.gate.key).data)
    said = home("verify", received(release))
    assert said.status == 1
    assert "another version of privacy-assets (engine" in said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["absent.parquet"], "absent.parquet: cannot be read (No such file"), (["."], "Is a directory"),
     (["mine.parquet", "--attestation=absent.json"], "absent.json"),
     (["mine.parquet", "--key=absent.pem"], "no trusted key in absent.pem"),
     (["mine.parquet", "--key=mine.parquet"], "mine.parquet: no public key in PEM form"),
     (["mine.parquet", "--key={key}", "--key=absent.pem"], "absent.pem"),
     (["mine.parquet", "--key={signing}"], "no public key"), (["mine.parquet", "--releases=absent"], "--releases")],
)  # fmt: skip
def test_bad_input_exits_with_2(home: Deployment, arguments: list[str], words: str) -> None:
    received(home.publish(PATIENTS))
    known = {"key": home.key_file(), "signing": home.root / "private" / "signing.key"}
    said = home("verify", *[argument.format(**known) for argument in arguments])
    assert said.status == 2
    assert words in said.err
    assert said.out == ""


def test_without_a_trusted_key_nothing_is_verified(home: Deployment) -> None:
    file = received(home.publish(PATIENTS), attestation=True)
    home.key_file().chmod(0o666)
    said = home("verify", file)
    assert said.status == 2
    assert "chmod go-w" in said.err
    home.key_file().unlink()
    said = home("verify", file)
    assert said.status == 2
    assert "no trusted key in" in said.err
    Path("attestation.json").unlink()
    shutil.rmtree(home.root / "releases")
    assert home("verify", file).status == 2


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    status, grown, *imported = done.stdout.splitlines()[-1].split()
    assert status == "1"
    assert int(grown) < 50  # MiB, for a file of 120
    assert imported == []


def test_the_file_is_read_once(home: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened, plain = received(home.publish(PATIENTS)), [], os.open

    def counted(path: Any, *rest: Any, **named: Any) -> int:
        opened.append(str(path))
        return plain(path, *rest, **named)

    monkeypatch.setattr(os, "open", counted)
    assert home("verify", file).status == 0
    assert opened.count(str(file)) == 1


# --- releases ---------------------------------------------------------------------------------------------------------


def test_nothing_was_published_yet(home: Deployment) -> None:
    said = home("releases")
    assert said.status == 0
    assert f"Nothing was published yet in {home.root / 'releases'}" in said.out
    assert home("releases", "patients", "--rollback", "x").status == 2
    assert json.loads(home("releases", "--json").out)["places"] == []


def test_the_history_of_each_table_and_partition(home: Deployment) -> None:
    made = [home.publish(PATIENTS), home.publish(PATIENTS, seed=1), home.publish(NORTH), home.publish(SOUTH)]
    said = home("releases")
    assert said.status == 0
    assert all(title in said.out.splitlines() for title in ("patients", "visits, north", "visits, south"))
    rows = [line.split() for line in said.out.splitlines() if line.endswith("whole")]
    assert [row[0] for row in rows] == [made[1].id, made[0].id, made[2].id, made[3].id]  # newest first
    assert ["current" in row for row in rows] == [True, False, True, True]
    keyid = made[0].opened(PATIENTS, home.gate.key.trusted).keyid
    assert all({"strict", "50", keyid[:12], row[0][-12:]} <= set(row) for row in rows)
    assert f"privacy-assets releases patients --rollback {made[0].id}" in said.out
    assert "visits" not in home("releases", "patients").out
    only = home("releases", "visits", "--partition", "south").out
    assert made[3].id in only
    assert made[2].id not in only
    (told,) = json.loads(home("releases", "patients", "--json").out)["places"]
    assert [one["current"] for one in told["releases"]] == [True, False]
    assert {one["state"] for one in told["releases"]} == {"whole"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["patient"], "Did you mean 'patients'"), (["visits", "--partition=nort"], "Did you mean 'north'"),
     (["--partition=nort"], "Did you mean 'north'"), (["patients", "--partition=x"], "no partition 'x' of 'patients'"),
     (["patients", "--rollback=2026"], "has no release '2026'"), (["--rollback=x"], "needs the TABLE"),
     (["visits", "--rollback=x"], "Known: north"), (["--releases=absent"], "absent: no such release folder")],
)  # fmt: skip
def test_what_is_not_there_exits_with_2(home: Deployment, arguments: list[str], words: str) -> None:
    home.publish(PATIENTS)
    home.publish(NORTH)
    said = home("releases", *arguments)
    assert said.status == 2
    assert words in said.err
    assert said.out == ""


def test_a_damaged_release_is_told_and_is_not_rolled_back_to(home: Deployment) -> None:
    first = home.publish(PATIENTS)
    second = home.publish(PATIENTS, seed=1)
    flip(first.table, 500)
    said = home("releases")
    assert said.status == 1
    assert f"{first.id} is damaged: {first.table} does not hold the bytes" in said.out
    assert "do not use it" in said.out
    assert "--rollback" not in said.out  # there is no other whole one
    said = home("releases", "patients", "--rollback", first.id)
    assert said.status == 1
    assert "refused, nothing changed" in said.err
    assert home.gate.store.current(PATIENTS) == second
    flip(second.attestation, 300)
    said = home("releases")
    assert "materialise `published` again, or roll back" in said.out
    (told,) = json.loads(home("releases", "--json").out)["places"]
    assert [one["state"] for one in told["releases"]] == ["damaged", "damaged"]
    assert told["releases"][0]["policy"] is None  # nothing of what is not signed is shown


def test_a_release_that_a_distrusted_key_signed_is_damaged(home: Deployment) -> None:
    home.publish(PATIENTS)
    old = home.key_file()
    assert home("keys", "--new").status == 0
    assert home("releases").status == 0
    old.unlink()
    said = home("releases")
    assert said.status == 1
    assert "which is not trusted" in said.out


@pytest.mark.parametrize("pointer", [None, b"{", b'{"release": "20200101T000000.000000Z-aaaaaaaaaaaa"}'])
def test_a_broken_pointer_is_told_and_mended_by_a_rollback(home: Deployment, pointer: bytes | None) -> None:
    release = home.publish(PATIENTS)
    file = release.folder.parents[1] / "latest.json"
    file.unlink()
    if pointer is not None:
        file.write_bytes(pointer)
    said = home("releases")
    assert said.status == 1
    assert "roll back to" in said.out
    assert "not the current one" in home("verify", received(release)).out
    assert home("releases", "patients", "--rollback", release.id).status == 0
    assert home("releases").status == 0


def test_rollback_moves_the_pointer(home: Deployment) -> None:
    first, second = home.publish(NORTH), home.publish(NORTH, seed=1)
    back = ["releases", "visits", "--partition", "north", "--rollback", first.id]
    assert " ".join(back) in home("releases").out
    said = home(*back)
    assert said.status == 0
    assert f"visits, north: rolled back from {second.id} to {first.id}" in said.out
    assert home.gate.store.current(NORTH) == first
    assert "is the current release already" in home(*back).out
    said = home(*back[:-1], second.id, "--json")
    told = {"table": "visits", "partition": "north", "from": first.id, "to": second.id}
    assert (said.status, json.loads(said.out)) == (0, told)


def test_rollback_asks_the_memory_of_failures(home: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = home.publish(PATIENTS), home.publish(PATIENTS, seed=1)
    elsewhere = home.root.parent / "elsewhere"
    home.gate.private.rename(elsewhere)
    back = ["releases", "patients", "--rollback", first.id]
    said = home(*back)
    assert said.status == 2
    assert "nobody can tell whether these rows failed since" in said.err
    other = home.root.parent / "other"
    other.mkdir(mode=0o700)
    assert home(*back, "--private", other).status == 2
    elsewhere.chmod(0o755)
    assert "chmod 700" in home(*back, "--private", elsewhere).err
    elsewhere.chmod(0o700)
    assert home.gate.store.current(PATIENTS) == second
    monkeypatch.setenv("PRIVACY_ASSETS_PRIVATE", str(elsewhere))
    assert home(*back).status == 0
    monkeypatch.delenv("PRIVACY_ASSETS_PRIVATE")
    elsewhere.rename(home.gate.private)
    home.judge(PATIENTS, seed=1, high=0.2)  # the same rows, another look
    said = home(*back[:-1], second.id)
    assert said.status == 1
    assert "these rows failed before" in said.err
    assert home.gate.store.current(PATIENTS) == first


# --- keys -------------------------------------------------------------------------------------------------------------


def test_the_first_pair_and_its_rotation(home: Deployment) -> None:
    shutil.rmtree(home.root)
    said = home("keys")
    assert said.status == 0
    assert said.out.startswith("No keys yet")
    assert not home.root.exists()  # looking makes nothing
    said = home("keys", "--new")
    assert said.status == 0
    assert "stays trusted" not in said.out
    first = home.key_file()
    assert f"give {first.name} to" in said.out
    release = home.publish(PATIENTS)
    said = home("keys", "--new")
    assert said.status == 0
    assert f"{first.name} stays trusted" in said.out
    assert "To distrust a key" in said.out
    listed = home("keys")
    assert listed.status == 0
    notes = {line.split()[1]: line.split(maxsplit=2)[2] for line in listed.out.splitlines() if ".pem" in line}
    assert notes.pop(first.name) == "trusted"
    ((new, note),) = notes.items()
    assert note == "signs now"
    assert f"give {new} to" in said.out
    assert home("verify", received(release)).status == 0
    assert home.publish(PATIENTS, seed=1).opened(PATIENTS, home.gate.key.trusted).keyid.startswith(new[:16])


def test_problems_of_keys_are_listed(home: Deployment) -> None:
    signing = home.root / "private" / "signing.key"
    (home.root / "trusted_keys" / "zz.pem").write_text("no key")
    said = home("keys")
    assert said.status == 1
    assert "zz.pem: no public key in PEM form" in said.out
    (home.root / "trusted_keys" / "zz.pem").unlink()
    signing.chmod(0o644)
    said = home("keys")
    assert said.status == 1
    assert "mode 0600" in said.out
    assert "signing key   unusable" in said.out
    signing.unlink()
    said = home("keys")
    assert said.status == 1
    assert "there are trusted keys but no signing key" in said.out
    shutil.copy(foreign(home.root.parent / "other"), home.key_file())
    shutil.copy(home.root.parent / "other" / "private" / "signing.key", signing)
    signing.chmod(0o600)
    assert home("keys").status == 0
    flip(signing, 80)
    said = home("keys")
    assert said.status == 1
    assert "PROBLEM" in said.out
    assert "PRIVATE" not in said.out


def test_a_key_from_the_environment_is_not_replaced(home: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    signing = home.root / "private" / "signing.key"
    monkeypatch.setenv("PRIVACY_ASSETS_SIGNING_KEY", signing.read_text())
    signing.unlink()
    said = home("keys")
    assert said.status == 0
    assert "environment variable PRIVACY_ASSETS_SIGNING_KEY" in said.out
    said = home("keys", "--new")
    assert said.status == 2
    assert "PRIVACY_ASSETS_SIGNING_KEY" in said.err
    assert not signing.exists()


def test_a_new_key_needs_a_folder_of_trusted_keys_and_a_private_one(
    home: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = home.key_file().read_bytes()
    (home.root / "private").chmod(0o755)
    said = home("keys", "--new")
    assert said.status == 2
    assert "chmod 700" in said.err
    (home.root / "private").chmod(0o700)
    monkeypatch.setenv("PRIVACY_ASSETS_TRUSTED_KEYS", str(home.key_file()))
    said = home("keys", "--new")
    assert said.status == 2
    assert "make it a folder" in said.err
    assert home.key_file().read_bytes() == before
    assert home("keys").status == 0


# --- everywhere -------------------------------------------------------------------------------------------------------


def test_the_folders_come_from_options_environment_and_defaults(
    home: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = home.publish(PATIENTS)
    monkeypatch.delenv("DAGSTER_HOME")
    assert "Nothing was published yet in .dagster_home/releases" in home("releases").out
    assert release.id in home("releases", "--releases", home.root / "releases").out
    monkeypatch.setenv("PRIVACY_ASSETS_RELEASES", str(home.root / "releases"))
    assert release.id in home("releases").out
    monkeypatch.delenv("PRIVACY_ASSETS_RELEASES")
    file = received(release)
    home.root.rename(".dagster_home")
    assert release.id in home("releases").out
    assert home("verify", file).status == 0


def test_a_folder_that_cannot_be_used_is_named(home: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    monkeypatch.setenv("PRIVACY_ASSETS_PRIVATE", "file")
    said = home("keys", "--new")
    assert said.status == 2
    assert "file" in said.err


@pytest.mark.parametrize("command", ["verify", "releases", "keys"])
def test_help_tells_exit_statuses_and_defaults(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert all(words in text for words in ("exit status:", "  0  ", "  1  ", "  2  ", "DAGSTER_HOME/releases"))


def test_private_values_are_shown_only_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    paths = {role: tmp_path / f"{role}.csv" for role in ("train", "holdout", "synthetic")}
    for path in paths.values():
        pd.DataFrame({"x": rng.normal(size=60), "visits": rng.poisson(3, 60)}).to_csv(path, index=False)
    frame = pd.read_csv(paths["synthetic"]).astype({"visits": object})
    frame.loc[11, "visits"] = SECRET + "\x1b[31m" + "y" * 100
    frame.to_csv(paths["synthetic"], index=False)
    arguments = ["evaluate", *(f"--{role}={path}" for role, path in paths.items()), "--no-embedder", "--quiet"]
    assert main(arguments) == 2
    hidden = capsys.readouterr()
    assert "row 11" in hidden.err
    assert SECRET not in hidden.err + hidden.out
    assert main([*arguments, "--show-values"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(hidden.err.rstrip("\n"))
    assert shown.endswith(f"The value is {repr(frame.loc[11, 'visits'])[:80]}\n")
    assert "\x1b" not in shown
    assert main([*arguments, "--show-values", "--subject=person"]) == 2  # an error that names no cell
    assert "The value is" not in capsys.readouterr().err
