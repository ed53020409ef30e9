"""Files of tables, found and looked at without the libraries that read them."""

from __future__ import annotations

import glob
from difflib import get_close_matches
from pathlib import Path

from privacy_assets.errors import InputError, shown
from privacy_assets.storage.files import is_path, not_a_file
from privacy_assets.storage.objects import Location, ObjectPath, location

_NO_TABLES = "the folder holds no .parquet or .csv file"
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}


def table_files(path: str | Location) -> list[Location]:
    """Files that ``path`` names: itself, or the sorted matches of a glob, or the table files of a folder.

    ``path`` may be a URL (``s3://bucket/patients/*.parquet``) of any file system that fsspec has a library for.
    Raises InputError for anything else; a pipe or device is not opened, because that can wait for ever.
    """
    place = location(path)
    if isinstance(place, Path) and not is_path(place):
        fix = "give a dataframe, or the path of a .parquet or .csv file"
        raise InputError(f"a text of {len(str(place))} characters is no path of a table", fix=fix)
    try:
        return sorted(_objects(place) if isinstance(place, ObjectPath) else _on_disk(place))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(place), fix="check path and rights") from None


def _objects(place: ObjectPath) -> list[Location]:
    if glob.has_magic(str(place)):
        found = [match for match in place.matches() if match.is_file()]
    else:
        found = [place] if place.is_file() else [match for suffix in SUFFIXES for match in place.glob(f"*{suffix}")]
    if not found:
        raise InputError("there is no such file", where=str(place), fix="check the URL")
    return list(found)


def _on_disk(place: Path) -> list[Location]:
    if place.is_dir():
        found, missing = [file for suffix in SUFFIXES for file in place.glob(f"*{suffix}")], _NO_TABLES
    elif glob.has_magic(str(place)) and not place.exists():
        found, missing = [Path(match) for match in glob.glob(str(place))], "no file matches the pattern"
    else:
        found, missing = [place], ""
    if not found:
        raise InputError(missing, where=str(place), fix="check the path")
    for file in found:
        if wrong := not_a_file(file):
            raise InputError(wrong, where=str(file), fix=_instead(file) or "give .parquet or .csv files")
    return list(found)


def _instead(missing: Path) -> str:
    """What there is in place of a file that is not: tables of a near name in its folder; empty for none."""
    if missing.exists():
        return ""
    if not missing.parent.is_dir():
        return f"check the path: there is no folder {shown(missing.parent)}"
    try:
        names = [file.name for file in missing.parent.iterdir() if file.suffix.lower() in SUFFIXES]
    except OSError:  # a folder that may be entered, and not listed
        return ""
    near = get_close_matches(missing.name, names, cutoff=0.7)
    return f"check the path. Did you mean {' or '.join(map(shown, near))}?" if near else ""
