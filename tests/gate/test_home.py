"""One deployment is one home: its private folder, releases and trusted keys carry the same
marker.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from gate_standins import Chain, chain, tree

from privacy_assets.airflow.deployment import AirflowDeployment
from privacy_assets.dagster.resources import ReleaseResource
from privacy_assets.errors import ConfigError
from privacy_assets.gate.deployment import Deployment, DeploymentSettings
from privacy_assets.gate.markers import LAYOUT, MARKER, ROLES, mark_deployment, read_marker
from privacy_assets.gate.releases import default_trusted
from privacy_assets.infra.objects import ObjectPath


def deployment(home: Path, private: str = "private") -> Deployment:
    return DeploymentSettings(releases=home / "releases", private=home / private).open()


def marks(home: Path) -> dict[str, dict[str, object]]:
    return {role: json.loads((home / role / MARKER).read_bytes()) for role in ROLES}


def blocked(open_: Callable[[], object], home: Path, words: str) -> str:
    """Check that the one error is a ConfigError and that every file is unchanged."""
    before = tree(home)
    with pytest.raises(ConfigError, match=words) as caught:
        open_()
    assert tree(home) == before
    return str(caught.value)


def test_the_first_run_marks_the_three_folders(tmp_path: Path) -> None:
    deployment(tmp_path).gate()
    found = marks(tmp_path)
    assert len({mark["deployment"] for mark in found.values()}) == 1
    assert {role: mark["role"] for role, mark in found.items()} == {role: role for role in ROLES}
    assert found["private"]["layout"] == LAYOUT
    assert (tmp_path / "private" / ".gitignore").read_text() == "*\n"
    deployment(tmp_path).gate()
    assert marks(tmp_path) == found


@pytest.mark.parametrize(
    "call", [Deployment.gate, lambda made: made.key("split")], ids=["gate", "key"]
)
def test_a_second_private_folder_beside_the_same_keys_is_another_deployment(
    tmp_path: Path, call: Callable[[Deployment], object]
) -> None:
    deployment(tmp_path, "p1").gate()
    told = blocked(
        lambda: call(deployment(tmp_path, "p2")),
        tmp_path,
        "belongs to another deployment than .*p2",
    )
    assert str(tmp_path / "releases") in told and "--home" in told
    apart = DeploymentSettings(releases=tmp_path / "r2", private=tmp_path / "p2").open()
    told = blocked(lambda: call(apart), tmp_path, "belongs to another deployment than .*p2")
    assert str(tmp_path / "trusted_keys") in told
    assert not (tmp_path / "p2").exists() and not (tmp_path / "r2").exists()
    call(
        DeploymentSettings(
            home=tmp_path / "h2", releases=tmp_path / "r2", private=tmp_path / "p2"
        ).open()
    )
    assert (tmp_path / "h2" / "trusted_keys").exists() == (call is Deployment.gate)


def _file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x")


OLD: dict[str, Callable[[Path], object]] = {
    "split.check": lambda private: (private / "split.check").write_bytes(b"x"),
    "snapshots": lambda private: _file(private / "snapshots" / "x.parquet"),
    "signing.key": lambda private: (private / "signing.key").write_bytes(b"x"),
    "anything": lambda private: _file(private / "notes" / "x"),
}


@pytest.mark.parametrize("make", OLD.values(), ids=OLD)
def test_a_private_folder_with_contents_and_no_marker_is_blocked(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    make(private)
    for call in (lambda: deployment(tmp_path).gate(), lambda: deployment(tmp_path).key("split")):
        told = blocked(
            call, tmp_path, "created by another version of privacy-assets, or its marker is missing"
        )
        assert str(private) in told
    assert os.listdir(tmp_path) == ["private"] and len(os.listdir(private)) == 1


@pytest.mark.parametrize("layout", [None, 0, LAYOUT - 1, LAYOUT + 1, str(LAYOUT), True, [LAYOUT]])
def test_a_private_folder_of_another_layout_is_blocked(tmp_path: Path, layout: object) -> None:
    deployment(tmp_path).gate()
    mark = json.loads((tmp_path / "private" / MARKER).read_bytes())
    (tmp_path / "private" / MARKER).write_text(json.dumps({**mark, "layout": layout}))
    for call in (lambda: deployment(tmp_path).gate(), lambda: deployment(tmp_path).key("split")):
        blocked(call, tmp_path, "has the layout of another version of privacy-assets")


@pytest.mark.parametrize(
    "places", [{"releases": "p/releases"}, {"releases": "r", "trusted_keys": "p/keys"}]
)
def test_nothing_that_others_read_is_in_the_private_folder(
    tmp_path: Path, places: dict[str, str]
) -> None:
    given = {name: tmp_path / target for name, target in places.items()}
    (tmp_path / "p").mkdir(mode=0o700)
    settings = DeploymentSettings(private=tmp_path / "p", **given)
    blocked(lambda: settings.open().gate(), tmp_path, "must not be in the private")


def test_an_empty_folder_of_an_admin_is_a_new_deployment(tmp_path: Path) -> None:
    for name in ("private", "private/lost+found", "releases"):
        (tmp_path / name).mkdir(mode=0o700)
    deployment(tmp_path).gate()
    assert (tmp_path / "private" / ".gitignore").exists() and (
        tmp_path / "private" / "lost+found"
    ).exists()


@pytest.mark.parametrize("role", ["private", "releases"])
def test_a_lost_marker_is_blocked_also_at_publication(
    role: str, tmp_path: Path, ready: Chain
) -> None:
    chain(ready.gate, 1).publish()
    (tmp_path / role / MARKER).unlink()
    blocked(ready.publish, tmp_path / "releases", str(tmp_path / role))
    blocked(lambda: deployment(tmp_path).gate(), tmp_path, str(tmp_path / role))


@pytest.mark.parametrize("role", ROLES)
def test_a_marker_of_another_deployment_or_role_is_blocked(tmp_path: Path, role: str) -> None:
    for name in ("a", "b"):
        deployment(tmp_path / name).gate()
    mine, others = tmp_path / "a" / role / MARKER, tmp_path / "b"
    whole = mine.read_bytes()
    mine.write_bytes((others / role / MARKER).read_bytes())
    blocked(lambda: deployment(tmp_path / "a").gate(), tmp_path, "belongs to another deployment")
    other_role = "releases" if role == "private" else "private"
    mine.write_bytes((tmp_path / "a" / other_role / MARKER).read_bytes())
    blocked(
        lambda: deployment(tmp_path / "a").gate(),
        tmp_path,
        f"marked for {other_role}, not for {role}",
    )
    for damaged in (b"", b"{", b"[]", b"null", b'{"role": 1}', b"[" * 9999, b"x" * 10_000):
        mine.write_bytes(damaged)
        blocked(lambda: deployment(tmp_path / "a").gate(), tmp_path, f"{mine} is damaged")
    mine.unlink()
    mine.symlink_to(others / role / MARKER)
    blocked(lambda: deployment(tmp_path / "a").gate(), tmp_path / "b", "cannot be read")
    mine.unlink()
    os.mkfifo(mine)
    with pytest.raises(ConfigError, match="cannot be read"):
        deployment(tmp_path / "a").gate()
    mine.unlink()
    mine.write_bytes(whole)
    deployment(tmp_path / "a").gate()


def test_a_lost_private_folder_is_no_new_deployment(tmp_path: Path, ready: Chain) -> None:
    ready.publish()
    (tmp_path / "private").rename(tmp_path / "away")
    blocked(lambda: deployment(tmp_path).gate(), tmp_path, "restore the private folder")
    (tmp_path / "releases" / MARKER).unlink()
    blocked(lambda: deployment(tmp_path).gate(), tmp_path, "is not empty, and has no marker")


def test_configured_keys_need_no_marker_and_may_not_be_those_of_another_deployment(
    tmp_path: Path,
) -> None:
    mine, others = deployment(tmp_path / "a"), deployment(tmp_path / "b")
    mine.gate(), others.gate()
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o755)
    (key,) = (tmp_path / "a" / "trusted_keys").glob("*.pem")
    (copy / key.name).write_bytes(key.read_bytes())
    for target in (copy, copy / key.name):
        given = mine.settings.model_copy(update={"trusted_keys": str(target)})
        given.open().gate().key.check()
        assert not (copy / MARKER).exists()
    wrong = mine.settings.model_copy(update={"trusted_keys": str(tmp_path / "b" / "trusted_keys")})
    blocked(
        wrong.open().gate, tmp_path, "b/trusted_keys: this folder belongs to another deployment"
    )


def test_processes_that_start_at_once_make_one_deployment(tmp_path: Path) -> None:
    start = Barrier(8)

    def begin(number: int) -> str:
        start.wait()
        return mark_deployment({"private": tmp_path / "private", "releases": tmp_path / "releases"})

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(begin, range(8)))) == 1
    assert deployment(tmp_path).gate().key.check() is None


def test_a_home_holds_all_folders_and_each_can_be_named_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("PRIVACY_ASSETS_RELEASES", str(tmp_path / "r"))
    monkeypatch.setenv("PRIVACY_ASSETS_PRIVATE", str(tmp_path / "p"))
    for made in (ReleaseResource(home=str(home)).deployment, AirflowDeployment(home=home).open()):
        assert (made.releases, made.private) == (home / "releases", home / "private")
        assert made.trusted.paths == (home / "trusted_keys",)
    for made in (
        ReleaseResource(home=str(home), releases=str(tmp_path / "x")).deployment,
        AirflowDeployment(home=home, releases=tmp_path / "x").open(),
    ):
        assert (made.releases, made.private) == (tmp_path / "x", home / "private")
        assert made.trusted.paths == (home / "trusted_keys",)
    assert AirflowDeployment(home=home).trusted(reading=True).paths == (home / "trusted_keys",)
    with pytest.raises(ConfigError, match="home"):
        AirflowDeployment(home="relative")
    ReleaseResource(home=str(home)).gate()
    assert sorted(os.listdir(home)) == sorted(ROLES)


def test_readers_believe_the_owner_of_the_release_folder_also_with_a_home(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    home = tmp_path / "home"
    for root, publisher in (
        (tmp_path / "r", os.getuid()),
        (tmp_path / "absent", None),
        (ObjectPath("s3://b/r"), None),
    ):
        found = default_trusted(root, home, reading=True)
        assert (found.paths, found.publisher) == ((home / "trusted_keys",), publisher)
    with pytest.raises(ConfigError, match="object store are not trusted"):
        default_trusted(tmp_path / "r", ObjectPath("s3://b/home"), reading=True)


def test_releases_beside_an_empty_folder_of_trusted_keys_are_no_first_run(tmp_path: Path) -> None:
    chain(deployment(tmp_path).gate()).publish()
    shutil.rmtree(tmp_path / "trusted_keys")
    (tmp_path / "trusted_keys").mkdir()
    with pytest.raises(ConfigError, match="trusted keys are missing"):
        deployment(tmp_path).gate()
    assert not [*(tmp_path / "trusted_keys").iterdir()]


def test_a_missing_library_of_a_store_is_not_a_damaged_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_installed(*_: object, **__: object) -> None:
        raise ImportError("s3fs")

    monkeypatch.setattr("fsspec.core.url_to_fs", not_installed)
    with pytest.raises(ConfigError, match=r"no library for s3://.*pip install"):
        read_marker(ObjectPath("s3://bucket/releases"), "releases")
