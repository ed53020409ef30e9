"""Declarations about the columns of a table by its owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zoneinfo import available_timezones

from privacy_assets.errors import ConfigError, near_name
from privacy_assets.tables.files import CsvFormat
from privacy_assets.tables.given import load
from privacy_assets.tables.names import as_named


@dataclass(frozen=True, slots=True)
class Declared:
    """Declarations about the columns by the owner of a table.

    Attributes:
        drop: Columns removed from every table. The subject column, if included, is removed from the
            synthetic table only.
        new_values: Columns in which new values are allowed, with the reason, which is signed.
        allowed_values: Values that a closed column may contain in addition to those of the real
            tables.
        sources: Sources of those ``allowed_values`` that are public lists. Their values are
            published even if only a few people have them.
        rare_values: Lengths of the prefixes to which rare categories are shortened, by column; see
            :mod:`.published_categories`.
        missing: Values that mean a missing value, by column.
        relations: Relations between columns by name: True declares one, False switches one off; see
            :mod:`.relations`.
        read: How files are written.
        timezone: Zone of times without a time zone, such as "Europe/Berlin". "": there is none.
        exact_ids: True if two spellings of an id are two people, see :mod:`.subject_ids`.
    """

    drop: tuple[str, ...] = ()
    new_values: Mapping[str, str] = field(default_factory=dict)
    allowed_values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    rare_values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timezone: str = ""
    relations: Mapping[str, bool] = field(default_factory=dict)
    read: CsvFormat = CsvFormat()
    exact_ids: bool = False

    @classmethod
    def of(
        cls,
        drop: Any,
        new_values: Any,
        allowed_values: Any,
        *,
        rare_values: Any = None,
        missing: Any = None,
        timezone: Any = None,
        relations: Any = None,
        read: Any = None,
        snapshots: Any = False,
        subject: str | None = None,
        exact_ids: bool = False,
    ) -> Declared:
        """Create validated declarations from user input, with names in Unicode form NFC.

        Raises:
            ConfigError: If an argument is invalid. The message names argument, column and fix.
        """
        if exact_ids and subject is None:
            raise ConfigError("exact ids need the subject, the column that identifies people.")
        given = (drop, new_values, allowed_values, missing, rare_values)
        drop, new_values, allowed_values, missing, rare_values = map(as_named, given)
        if isinstance(drop, str) or not all(isinstance(name, str) for name in drop or ()):
            raise ConfigError("drop must be a list of column names.")
        for argument, given, form in (
            ("new_values", new_values, "{column: reason}"),
            ("allowed_values", allowed_values, "{column: [values]}"),
            ("missing", missing, "{column: [values]}"),
            ("rare_values", rare_values, "{column: {prefix: [lengths]}}"),
        ):
            if not isinstance(given or {}, Mapping) or not all(
                isinstance(name, str) for name in given or ()
            ):
                kind = type(given).__name__
                wrong = (
                    "has a column name that is not a string"
                    if isinstance(given, Mapping)
                    else f"has type {kind}"
                )
                raise ConfigError(f"{argument} {wrong}. Fix: pass a mapping {form}.")
        for name, reason in (new_values or {}).items():
            if not isinstance(reason, str) or not reason.strip():
                fix = f"new_values: {{{name}: why new values are safe here}}"
                raise ConfigError(
                    f"new_values: {name!r} has no reason, which is signed. Fix: {fix}."
                )
        listed_values, sources = dict[str, Any](), dict[str, str]()
        for name, listed in (allowed_values or {}).items():
            listed_values[name], source = _listed(name, listed)
            sources |= {name: source} if source else {}
        allowed_values = listed_values
        for argument, by_column in (("allowed_values", allowed_values), ("missing", missing)):
            for name, values in (by_column or {}).items():
                listed = values if isinstance(values, list | tuple) else ()
                if not listed or not all(
                    isinstance(one, str | bool | int | float) for one in listed
                ):
                    raise ConfigError(f"{argument}: {name!r} needs a list of strings or numbers.")
        if timezone is not None and (
            not isinstance(timezone, str) or timezone not in available_timezones()
        ):
            raise ConfigError(
                "timezone: unknown time zone. Fix: set the name of one, such as Europe/Berlin."
            )
        if not isinstance(snapshots, bool):
            raise ConfigError("snapshots must be true or false.")
        if snapshots and subject is None:
            raise ConfigError(
                "snapshots need the column that identifies people. Fix: name it as the subject."
            )
        named = [*(drop or ()), *(new_values or {}), *(allowed_values or {})]
        for name in named:
            if named.count(name) > 1:
                raise ConfigError(
                    f"column {name!r} is named twice in drop, new_values and allowed_values."
                    " Fix: remove one."
                )
            if name == subject and name not in (drop or ()):
                raise ConfigError(
                    f"column {name!r} is the subject, which is not published. Fix: declare no"
                    " role for it."
                )
        gone = tuple(name for name in drop or () if name != as_named(subject))
        return cls(
            tuple(drop or ()),
            dict(new_values or {}),
            {name: tuple(values) for name, values in (allowed_values or {}).items()},
            sources,
            {name: _lengths(name, one) for name, one in (rare_values or {}).items()},
            {name: tuple(map(str, values)) for name, values in (missing or {}).items()},
            timezone or "",
            _switches(relations),
            replace(CsvFormat.of(read), snapshots=snapshots, drop=gone),
            exact_ids,
        )

    def stated(self, keyed_fingerprint: Callable[[str], str]) -> dict[str, Any]:
        """Return the signed form: all declarations, with allowed values as their number and a keyed
        digest.

        Args:
            keyed_fingerprint: Computes keyed digests with the secret of the deployment.
        """
        allowed_values = {
            name: {
                "values": len(values),
                "digest": keyed_fingerprint(json.dumps([name, sorted(map(json.dumps, values))])),
                **({"source": self.sources[name]} if name in self.sources else {}),
            }
            for name, values in self.allowed_values.items()
        }
        found = {
            "drop": list(self.drop),
            "new_values": dict(self.new_values),
            "allowed_values": allowed_values,
            "rare_values": {name: list(lengths) for name, lengths in self.rare_values.items()},
            "missing": {name: list(values) for name, values in self.missing.items()},
            "timezone": self.timezone,
            "relations": dict(self.relations),
            "exact_ids": self.exact_ids,
            "snapshots": self.read.snapshots,
        }
        return {name: value for name, value in found.items() if value}

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of :meth:`of`, by name."""
        return {
            "drop": self.drop,
            "new_values": self.new_values,
            "allowed_values": {
                name: {"values": values, "source": self.sources[name]}
                if name in self.sources
                else values
                for name, values in self.allowed_values.items()
            },
            "missing": self.missing,
            "timezone": self.timezone or None,
            "relations": self.relations,
            "read": self.read,
            "snapshots": self.read.snapshots,
        }

    def check(self, columns: Sequence[str]) -> None:
        """Check that each declared column exists.

        Raises:
            ConfigError: If not.
        """
        for argument, names in (
            ("drop", self.drop),
            ("new_values", self.new_values),
            ("allowed_values", self.allowed_values),
            ("rare_values", self.rare_values),
            ("missing", self.missing),
        ):
            for name in names:
                # A dropped column may be absent, unless its name is probably a typing error.
                if name not in columns and (argument != "drop" or near_name(name, columns)):
                    raise ConfigError(
                        f"{argument}: there is no column {name!r}.{near_name(name, columns)}"
                    )

    def without_dropped(self, frame: Any, subject: str | None = None) -> Any:
        """Return ``frame`` without the columns in ``drop``.

        Args:
            frame: Table with ``columns`` and ``drop``.
            subject: Column that is kept even if it is in ``drop``.
        """
        gone = [name for name in self.drop if name in frame.columns and name != subject]
        return frame.drop(columns=gone) if gone else frame


def _listed(name: str, given: Any) -> tuple[Any, str]:
    """Return the allowed values of a column, and the source of a public list, "" for others.

    ``given`` is a list of values, or ``{values: [...], source: text}`` or ``{file: path, source:
    text}``. A file has a header, and the values are in its first column.
    """
    if not isinstance(given, Mapping):
        return given, ""
    source, file, values = given.get("source"), given.get("file"), given.get("values")
    if (
        not isinstance(source, str)
        or not source.strip()
        or set(given) - {"source"} not in ({"values"}, {"file"})
    ):
        fix = (
            f"{{{name}: {{values: [a, b], source: ISO 3166-2}}}}, or with file: codes.csv instead"
            " of values"
        )
        raise ConfigError(
            f"allowed_values: the public list of {name!r} needs its values and their source."
            f" Fix: {fix}."
        )
    if file is not None:
        frame = load(file, f"allowed_values of {name!r}")
        values = frame[frame.columns[0]].dropna().astype(object).tolist()
    return values, source.strip()


def _switches(given: Any) -> dict[str, bool]:
    """Return declared relations by name."""
    relations = as_named(given or {})
    if not isinstance(relations, Mapping) or not all(isinstance(name, str) for name in relations):
        raise ConfigError(
            "relations must be a mapping {name: true or false}, such as {start <= end: false}."
        )
    for name, is_kept in relations.items():
        if not isinstance(is_kept, bool):
            raise ConfigError(
                f"relations: {name!r} needs true or false. Fix: {{{name}: false}} switches it off."
            )
    return dict(relations)


def _lengths(name: str, given: Any) -> tuple[int, ...]:
    """Return the lengths of the prefixes in ``{prefix: [lengths]}``."""
    lengths = (
        given.get("prefix") if isinstance(given, Mapping) and set(given) == {"prefix"} else None
    )
    if (
        not isinstance(lengths, list | tuple)
        or not lengths
        or not all(type(n) is int and n > 0 for n in lengths)
    ):
        fix = f"rare_values: {{{name}: {{prefix: [5, 3, 1]}}}}"
        raise ConfigError(
            f"rare_values: {name!r} needs a list of lengths of at least 1. Fix: {fix}."
        )
    return tuple(lengths)


NOTHING = Declared()
