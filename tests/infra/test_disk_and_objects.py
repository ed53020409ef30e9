"""Disk and objects have the same operations with the same results."""

from __future__ import annotations

from pathlib import Path

import pytest

from privacy_assets.infra import objects
from privacy_assets.infra.objects import Location, ObjectPath
from privacy_assets.infra.storage import (
    Disk,
    Objects,
    hash_file,
    local_path,
    read_hashed_bytes,
    storage_of,
)

pytest.importorskip("fsspec")
SHA256 = "4fc82b26aecb47d2868c4efbe3581732a3e7cbcc6c2efb32062c08170a05eeb8"  # of b"11"


@pytest.fixture(params=["disk", "memory"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Location:
    if request.param == "disk":
        return tmp_path
    monkeypatch.setitem(objects._WRITABLE, "memory", "")
    return ObjectPath(f"memory://{tmp_path.name}")


def visible(folder: Location) -> list[str]:
    """Names in a folder, without the .gitignore of a private folder on disk."""
    return [name for name in storage_of(folder).names() if not name.startswith(".")]


def test_a_location_has_the_operations_of_its_kind(root: Location) -> None:
    storage = storage_of(root)
    if isinstance(root, Path):
        assert (storage, local_path(root), storage.protocol) == (Disk(root), root, "file")
    else:
        assert (storage, local_path(root), storage.protocol) == (Objects(root), None, "memory")
    assert local_path(None) is None


def test_files_are_written_created_and_read(root: Location) -> None:
    folder = root / "a"
    file = storage_of(folder / "1")
    assert storage_of(folder).names() == []
    file.put(lambda stream: stream.write(b"11"))
    assert (file.read(), file.read(most=1), file.size()) == (b"11", b"1", 2)
    with file.open(below=root) as stream:
        assert stream.read() == b"11"
    assert not file.create(b"other") and file.read() == b"11"
    assert storage_of(folder / "2").create(b"2")
    assert visible(folder) == ["1", "2"]
    assert hash_file(folder / "1", root) == SHA256
    assert read_hashed_bytes(folder / "1", SHA256) == b"11"
    assert read_hashed_bytes(folder / "2", SHA256) is None
    with pytest.raises(OSError):
        storage_of(folder / "3").read()
    storage_of(folder).remove_below()
    assert storage_of(folder).names() == []


def test_folders_are_edited_filled_and_replaced(root: Location) -> None:
    folder = storage_of(root / "b")
    folder.make_private()
    with pytest.raises(KeyError), folder.edited() as local:
        (local / "kept").write_bytes(b"of an interrupted study")
        raise KeyError
    with folder.local_copy() as local:
        assert (local / "kept").read_bytes() == b"of an interrupted study"
    with storage_of(root / "c").filled() as local:
        (local / "model").write_bytes(b"weights")
    assert storage_of(root / "c" / "model").read() == b"weights"
    with folder.draft() as draft:
        (draft / "new").write_bytes(b"new")
        storage_of(root / "b" / "d").take(draft)
    assert not draft.exists()
    assert visible(root / "b") == ["d", "kept"]
    assert storage_of(root / "b" / "d" / "new").read() == b"new"
