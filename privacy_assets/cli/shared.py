"""What several commands of the command line share: tables, kinds of columns, and the file for JSON."""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from privacy_assets.errors import ConfigError, shown

if TYPE_CHECKING:
    import numpy as np

    from privacy_assets.tables.roles import Declared
    from privacy_assets.tables.schema import Kind
    from privacy_assets.tables.table import Table

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def kinds(pairs: Sequence[str]) -> dict[str, Kind] | None:
    """Parse COLUMN=KIND, one or several a text; the column may itself hold an equals sign."""
    found: dict[str, Kind] = {}
    for pair in parts("kind", pairs):
        column, sign, kind = pair.rpartition("=")
        if not sign or not column:
            raise ConfigError(f"--kind {pair}: write COLUMN=KIND.")
        found[column] = cast("Kind", kind)  # checked with the table at hand
    return found or None


def parts(option: str, given: Sequence[str]) -> list[str]:
    """What stands between the commas of each text, as in a line of CSV: a part that holds a comma is quoted."""
    try:  # a reader for each text, or a quote that one leaves open would go on in the next
        return [part for text in given for part in next(csv.reader([text], skipinitialspace=True, strict=True), [])]
    except csv.Error:
        raise ConfigError(f"--{option}: close every double quote.") from None


def read_data(options: argparse.Namespace) -> tuple[Table, np.ndarray | None]:
    """The table of --data without the column --subject, and the person of each row."""
    from privacy_assets.pipeline.private_table import canonical_source, people_of
    from privacy_assets.tables.reading import read_table

    frame, declared = read_table(options.data), declared_columns(options)
    table = canonical_source(frame, options.subject, kinds(options.kind), declared, where=options.data)
    return table.rows, people_of([table])


def declared_columns(options: argparse.Namespace) -> Declared:
    """What the options that say what columns are tell, beside kinds."""
    from privacy_assets.tables.roles import Declared

    reasons = _pairs("generated", getattr(options, "generated", []), "COLUMN=REASON")
    domains = _pairs("domain", getattr(options, "domain", []), "COLUMN=A,B")
    values = {name: [value.strip() for value in parts("domain", [text])] for name, text in domains.items()}
    return Declared.of(parts("drop", options.drop), reasons, values, subject=options.subject)


def _pairs(option: str, given: Sequence[str], form: str) -> dict[str, str]:
    """NAME=TEXT of a repeatable option; ConfigError for another form, and for a name that is given twice."""
    found: dict[str, str] = {}
    for pair in given:
        name, sign, text = pair.partition("=")
        if not sign or not name or name in found:
            raise ConfigError(f"--{option} {pair}: write {form}, once for each column.")
        found[name] = text
    return found


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE, the values as YAML."""
    from privacy_assets.storage.strict_yaml import load_yaml

    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {shown(pair)}: write KEY=VALUE.")
        documents = load_yaml(value, f"--set {shown(pair)}")
        found[key] = _numbers(documents[0]) if documents else None
    return found


def _numbers(value: Any) -> Any:
    """1e-5 as a number, which YAML 1.1 takes for text."""
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    if isinstance(value, dict):
        return {key: _numbers(part) for key, part in value.items()}
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


@contextmanager
def workers(options: argparse.Namespace) -> Iterator[None]:
    """Use the cluster that --ray names, if any, in the ``with`` block."""
    if getattr(options, "ray", None) is None:
        yield
        return
    from privacy_assets.compute.on_ray import on_ray

    with on_ray(options.ray):
        yield


@contextmanager
def leased(options: argparse.Namespace, *, used: bool = True) -> Iterator[str]:
    """The device of --device for the ``with`` block: leased, as steps of Dagster lease it, if it will be ``used``."""
    from privacy_assets.compute.devices import lease_device, pick_device

    if not used:
        yield pick_device(options.device)
        return
    with lease_device(device=options.device, on_wait=options.progress) as device:
        yield device


def check_out(*paths: str | None) -> None:
    """ConfigError unless every path that is given can be that of a file: its folder exists, and it is none."""
    for path in paths:
        if path and Path(path).is_dir():
            raise ConfigError(f"{path}: this is a folder. Fix: name a file.")
        if path and not Path(path).resolve().parent.is_dir():
            raise ConfigError(f"{path}: the folder does not exist.")


def write_json(path: str, data: Mapping[str, Any]) -> None:
    """Place ``data`` as a JSON file."""
    from privacy_assets.storage.files import put_atomic

    put_atomic(Path(path), json.dumps(data, indent=2, allow_nan=False).encode(), mode=0o644)
