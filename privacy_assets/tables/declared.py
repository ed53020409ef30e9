"""Declarations about the columns of a table by its owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zoneinfo import available_timezones

from privacy_assets.errors import ConfigError, near_name
from privacy_assets.tables.files import CsvFormat
from privacy_assets.tables.given import load
from privacy_assets.tables.names import as_named, without


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
        prefix_lengths: Lengths of the prefixes to which rare categories are shortened, by column;
            see :mod:`.published_categories`.
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
    prefix_lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timezone: str = ""
    relations: Mapping[str, bool] = field(default_factory=dict)
    read: CsvFormat = CsvFormat()
    exact_ids: bool = False

    @classmethod
    def of_settings(  # noqa: PLR0913
        cls,
        drop: Any,
        new_values: Any,
        allowed_values: Any,
        *,
        prefix_lengths: Any = None,
        missing: Any = None,
        timezone: Any = None,
        relations: Any = None,
        read: Any = None,
        snapshots: Any = False,
        subject: str | None = None,
        exact_ids: bool = False,
    ) -> Declared:
        """Create validated declarations from user input, with names in Unicode form NFC.

        Args:
            drop: Names of columns. None: none.
            new_values: Reasons by column. None: none.
            allowed_values: Lists of values, or public lists, by column. A public list is ``{values:
                [...], source: text}`` or ``{file: path, source: text}``. None: none.
            prefix_lengths: Lists of lengths by column. None: none.
            missing: Lists of values by column. None: none.
            timezone: Name of a time zone. None: none.
            relations: True or False by name of a relation. None: none.
            read: Separator and encoding of CSV files, see :meth:`.CsvFormat.of`.
            snapshots: True if the files are snapshots of the same people.
            subject: Column that identifies people. None: each row is a person.
            exact_ids: True if two spellings of an id are two people.

        Raises:
            ConfigError: If an argument is invalid. The message names argument, column and fix.
        """
        if exact_ids and subject is None:
            raise ConfigError("exact ids need the subject, the column that identifies people.")
        drop = _dropped(drop)
        new_values = _mapping("new_values", new_values, "{column: reason}")
        allowed_values = _mapping("allowed_values", allowed_values, "{column: [values]}")
        missing = _mapping("missing", missing, "{column: [values]}")
        prefix_lengths = _mapping("prefix_lengths", prefix_lengths, "{column: [lengths]}")
        _check_reasons(new_values)
        values_by_column, sources = _allowed_values(allowed_values)
        _check_values("missing", missing)
        _check_timezone(timezone)
        _check_snapshots(snapshots, subject)
        _check_roles([*drop, *new_values, *values_by_column], drop, as_named(subject))
        lengths = {}
        for name, lengths_of_column in prefix_lengths.items():
            lengths[name] = _checked_lengths(name, lengths_of_column)
        missing_texts = {}
        for name, values in missing.items():
            missing_texts[name] = tuple(map(str, values))
        switches = _switches(relations)
        # The subject is removed from the synthetic table only.
        not_read = tuple(without(drop, [as_named(subject)]))
        return cls(
            drop,
            dict(new_values),
            values_by_column,
            sources,
            lengths,
            missing_texts,
            timezone or "",
            switches,
            replace(CsvFormat.of(read), snapshots=snapshots, drop=not_read),
            exact_ids,
        )

    def to_setup(self, keyed_fingerprint: Callable[[str], str]) -> dict[str, Any]:
        """Return the signed form: all declarations, with allowed values as their number and a keyed
        digest.

        Args:
            keyed_fingerprint: Computes keyed digests with the split key.
        """
        allowed_values: dict[str, Any] = {}
        for name, values in self.allowed_values.items():
            sorted_values = sorted(map(json.dumps, values))
            digest = keyed_fingerprint(json.dumps([name, sorted_values]))
            allowed_values[name] = {"values": len(values), "digest": digest}
            if name in self.sources:
                allowed_values[name]["source"] = self.sources[name]
        declarations = {
            "drop": list(self.drop),
            "new_values": dict(self.new_values),
            "allowed_values": allowed_values,
            "prefix_lengths": _as_lists(self.prefix_lengths),
            "missing": _as_lists(self.missing),
            "timezone": self.timezone,
            "relations": dict(self.relations),
            "exact_ids": self.exact_ids,
            "snapshots": self.read.snapshots,
        }
        return {name: value for name, value in declarations.items() if value}

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of :meth:`of_settings`, by name."""
        allowed_values: dict[str, Any] = dict(self.allowed_values)
        for name, values in self.allowed_values.items():
            if name in self.sources:
                allowed_values[name] = {"values": values, "source": self.sources[name]}
        return {
            "drop": self.drop,
            "new_values": self.new_values,
            "allowed_values": allowed_values,
            "missing": self.missing,
            "timezone": self.timezone or None,
            "relations": self.relations,
            "read": self.read,
            "snapshots": self.read.snapshots,
        }

    def check(self, columns: Sequence[str]) -> None:
        """Check that each declared column exists.

        Args:
            columns: Names of the columns of a table.

        Raises:
            ConfigError: If one does not exist.
        """
        for argument, names in (
            ("drop", self.drop),
            ("new_values", self.new_values),
            ("allowed_values", self.allowed_values),
            ("prefix_lengths", self.prefix_lengths),
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
        dropped = [name for name in without(self.drop, [subject]) if name in frame.columns]
        return frame.drop(columns=dropped) if dropped else frame


def _as_lists(values_by_column: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in values_by_column.items()}


def _are_strings(names: Iterable[Any]) -> bool:
    """Return True if all names are strings."""
    return all(isinstance(name, str) for name in names)


def _dropped(drop: Any) -> tuple[str, ...]:
    """Return the names in ``drop``, in Unicode form NFC."""
    names = as_named(drop)
    if isinstance(names, str) or not _are_strings(names or ()):
        raise ConfigError("drop must be a list of column names.")
    return tuple(names or ())


def _mapping(argument: str, value: Any, form: str) -> Mapping[str, Any]:
    """Return a mapping of column names, in Unicode form NFC, {} for an empty argument. Raise
    ConfigError for another type.

    Args:
        argument: Name of the argument.
        value: Its value.
        form: Its form, for the message.
    """
    value = as_named(value)
    is_mapping = isinstance(value or {}, Mapping)
    if is_mapping and _are_strings(value or ()):
        return value or {}
    problem = f"has type {type(value).__name__}"
    if is_mapping:
        problem = "has a column name that is not a string"
    raise ConfigError(f"{argument} {problem}. Fix: pass a mapping {form}.")


def _check_reasons(new_values: Mapping[str, Any]) -> None:
    """Raise ConfigError if a column of new values has no reason."""
    for name, reason in new_values.items():
        if not isinstance(reason, str) or not reason.strip():
            fix = f"new_values: {{{name}: why new values are safe here}}"
            raise ConfigError(f"new_values: {name!r} has no reason, which is signed. Fix: {fix}.")


def _check_values(argument: str, values_by_column: Mapping[str, Any]) -> None:
    """Raise ConfigError if a column has no list of strings or numbers."""
    for name, values in values_by_column.items():
        is_list = isinstance(values, list | tuple) and bool(values)
        if not is_list or not all(isinstance(value, str | bool | int | float) for value in values):
            raise ConfigError(f"{argument}: {name!r} needs a list of strings or numbers.")


def _check_timezone(timezone: Any) -> None:
    """Raise ConfigError if there is no such time zone."""
    if timezone is None:
        return
    if not isinstance(timezone, str) or timezone not in available_timezones():
        raise ConfigError(
            "timezone: unknown time zone. Fix: set the name of one, such as Europe/Berlin."
        )


def _check_snapshots(snapshots: Any, subject: str | None) -> None:
    """Raise ConfigError if files are snapshots of unknown people."""
    if not isinstance(snapshots, bool):
        raise ConfigError("snapshots must be true or false.")
    if snapshots and subject is None:
        raise ConfigError(
            "snapshots need the column that identifies people. Fix: name it as the subject."
        )


def _check_roles(names: Sequence[str], drop: Sequence[str], subject: str | None) -> None:
    """Raise ConfigError if a column has two roles, or if the subject has one and is not dropped.

    Args:
        names: Names in drop, new_values and allowed_values.
        drop: Names in drop.
        subject: Column that identifies people. None: there is none.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"column {name!r} is named twice in drop, new_values and allowed_values."
                " Fix: remove one."
            )
        if name == subject and name not in drop:
            raise ConfigError(
                f"column {name!r} is the subject, which is not published. Fix: declare no"
                " role for it."
            )


def _allowed_values(
    declarations: Mapping[str, Any],
) -> tuple[dict[str, tuple[Any, ...]], dict[str, str]]:
    """Return the allowed values by column, and the sources of public lists by column."""
    values_by_column: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, declaration in declarations.items():
        values_by_column[name], source = _listed(name, declaration)
        if source:
            sources[name] = source
    _check_values("allowed_values", values_by_column)
    return {name: tuple(values) for name, values in values_by_column.items()}, sources


def _listed(name: str, declaration: Any) -> tuple[Any, str]:
    """Return the allowed values of a column, and the source of a public list, "" for others.

    ``declaration`` is a list of values, or ``{values: [...], source: text}`` or
    ``{file: path, source: text}``. A file has a header, and the values are in its first column.
    """
    if not isinstance(declaration, Mapping):
        return declaration, ""
    source = declaration.get("source")
    file = declaration.get("file")
    values = declaration.get("values")
    has_source = isinstance(source, str) and bool(source.strip())
    if not has_source or set(declaration) - {"source"} not in ({"values"}, {"file"}):
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
    return values, str(source).strip()


def _switches(declaration: Any) -> dict[str, bool]:
    """Return declared relations by name."""
    relations = as_named(declaration or {})
    if not isinstance(relations, Mapping) or not _are_strings(relations):
        raise ConfigError(
            "relations must be a mapping {name: true or false}, such as {start <= end: false}."
        )
    for name, is_kept in relations.items():
        if not isinstance(is_kept, bool):
            raise ConfigError(
                f"relations: {name!r} needs true or false. Fix: {{{name}: false}} switches it off."
            )
    return dict(relations)


def _checked_lengths(name: str, lengths: Any) -> tuple[int, ...]:
    """Return the lengths of the prefixes of a column. Raise ConfigError unless they are a list of
    positive integers that is not empty.
    """
    is_list = isinstance(lengths, list | tuple) and bool(lengths)
    if not is_list or not all(type(length) is int and length > 0 for length in lengths):
        fix = f"prefix_lengths: {{{name}: [5, 3, 1]}}"
        raise ConfigError(
            f"prefix_lengths: {name!r} needs a list of lengths of at least 1. Fix: {fix}."
        )
    return tuple(lengths)


NOTHING = Declared()
