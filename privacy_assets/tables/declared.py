"""Declarations about the columns of a table by its owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self
from zoneinfo import available_timezones

from pydantic import BeforeValidator, Field, model_validator

from privacy_assets.errors import ConfigError, near_name
from privacy_assets.infra.settings import Dict, Group, Tuple
from privacy_assets.tables.files import CsvFormat
from privacy_assets.tables.given import load
from privacy_assets.tables.meaning import Meaning
from privacy_assets.tables.names import as_named, without
from privacy_assets.tables.schema import option_text, yaml_text

Named = BeforeValidator(as_named)  # column names, normalized like those in files
EACH_ROW = {"each_row": True}  # the subject of a table in which each row is a different person


class AllowedValues(NamedTuple):
    """Values that a column may contain in addition to those of the real tables.

    Attributes:
        values: The values.
        source: Source of a public list. Its values are published even if only a few people have
            them. Empty: the list is not public.
    """

    values: tuple[str | bool | int | float, ...]
    source: str = ""


class Subject(NamedTuple):
    """Declaration of the column that identifies people.

    Attributes:
        column: Column that identifies people. None: there is none.
        each_row: True if the user states that each row is a different person.
        exact_ids: True if the user states that two spellings of an id are two people.
    """

    column: str | None
    each_row: bool = False
    exact_ids: bool = False


def _read_subject(declared: Mapping[Any, Any]) -> Subject:
    """Read the declaration of a subject that is a mapping.

    Args:
        declared: ``{each_row: true}`` or ``{column: id, exact: true}``.

    Raises:
        ConfigError: If it is something else.
    """
    if dict(declared) == EACH_ROW:
        return Subject(None, each_row=True)
    column = declared.get("column")
    is_exact = declared.get("exact", False)
    has_other_keys = bool(set(declared) - {"column", "exact"})
    if not isinstance(column, str) or not isinstance(is_exact, bool) or has_other_keys:
        raise ConfigError(
            "subject must be the name of a column, {each_row: true} or {column: id, exact: true}."
        )
    return Subject(as_named(column), exact_ids=is_exact)


def _checked_kinds(kinds: Any) -> Any:
    """Raise ConfigError if a kind is unknown."""
    if _is_by_column(kinds):
        for name, kind in kinds.items():
            Meaning.of(kind, name)
    return kinds


def _missing_texts(missing: Any) -> Any:
    """Return the missing values of each column as strings."""
    if not _is_by_column(missing):
        return missing
    texts = {}
    for name, values in missing.items():
        _check_values("missing", name, values)
        texts[name] = tuple(map(str, values))
    return texts


def _known_timezone(timezone: Any) -> Any:
    """Raise ConfigError if there is no such time zone."""
    is_name = timezone is None or isinstance(timezone, str)
    if is_name and timezone not in {None, *available_timezones()}:
        raise ConfigError(
            "timezone: unknown time zone. Fix: set the name of one, such as Europe/Berlin."
        )
    return timezone


def _with_reasons(new_values: Any) -> Any:
    """Raise ConfigError if a column of new values has no reason."""
    if not _is_by_column(new_values):
        return new_values
    for name, reason in new_values.items():
        if not isinstance(reason, str) or not reason.strip():
            fix = f"new_values: {{{name}: why new values are safe here}}"
            raise ConfigError(f"new_values: {name!r} has no reason, which is signed. Fix: {fix}.")
    return new_values


def _allowed_values(declarations: Any) -> Any:
    """Return the allowed values of each column."""
    if not _is_by_column(declarations):
        return declarations
    return {name: _allowed(name, declared) for name, declared in declarations.items()}


def _checked_lengths(lengths_by_column: Any) -> Any:
    """Return the lengths of prefixes by column. Raise ConfigError unless each column has a list of
    positive integers that is not empty.
    """
    if not _is_by_column(lengths_by_column):
        return lengths_by_column
    checked = {}
    for name, lengths in lengths_by_column.items():
        is_list = isinstance(lengths, list | tuple) and bool(lengths)
        if not is_list or not all(type(length) is int and length > 0 for length in lengths):
            fix = f"prefix_lengths: {{{name}: [5, 3, 1]}}"
            raise ConfigError(
                f"prefix_lengths: {name!r} needs a list of lengths of at least 1. Fix: {fix}."
            )
        checked[name] = tuple(lengths)
    return checked


def _switches(relations: Any) -> Any:
    """Raise ConfigError if a relation is neither declared nor switched off."""
    if not _is_by_column(relations):
        return relations
    for name, is_kept in relations.items():
        if not isinstance(is_kept, bool):
            raise ConfigError(
                f"relations: {name!r} needs true or false. Fix: {{{name}: false}} switches it off."
            )
    return relations


class Declared(Group):
    """Declarations about the columns of a table by its owner.

    All entry points accept these settings (:meth:`of_arguments`), and all functions that read
    tables take them as one object.

    Attributes:
        subject: Column that identifies people, or ``{each_row: true}`` if each row is a different
            person. A run needs one of the two. With ``{column: id, exact: true}``, two spellings of
            an id are two people.
        each_row: The same as ``subject: {each_row: true}``.
        exact_ids: The same as ``subject: {column: id, exact: true}``.
        kinds: Kinds of columns that override the inferred ones: numeric, integer, categorical,
            boolean, datetime, ``{datetime: '%d.%m.%Y'}``, ``{numeric: {decimal: ','}}`` or
            ``{numeric: {unit: kg}}``.
        missing: Values that mean a missing value, by column, in addition to empty cells.
        timezone: Zone of times without a time zone, for example Europe/Berlin. Default: they have
            none.
        read: How CSV files are written, for example ``{sep: ';', encoding: cp1252}``. Default:
            commas, and UTF-8 or UTF-16.
        snapshots: True if the files of a folder or glob are snapshots of the same people, so that
            they may contain the same rows. Needs ``subject``.
        drop: Columns to leave out of every table, for example identifiers. The subject, if
            included, is left out of the synthetic table only.
        new_values: Columns in which new values are allowed, each with a reason, which is signed.
        allowed_values: Allowed values of a column in addition to those of the real rows. Values of
            a public list with a source are published even if only a few people have them.
        prefix_lengths: Lengths of the prefixes to which rare codes are shortened: the longest one
            that enough people have. Default: they are replaced by other.
        relations: Relations between columns, which ``inspect`` lists. False switches one off, true
            declares one.
    """

    part: ClassVar[str] = "columns"
    # not signed: each_row equals no subject, and another form of a file has the same rows
    unsigned: ClassVar[frozenset[str]] = frozenset({"each_row", "read"})

    subject: Annotated[str | None, Named] = Field(
        default=None,
        title="the name of a column, {each_row: true}, or {column: id, exact: true}",
    )
    each_row: bool = False
    exact_ids: bool = False
    kinds: Annotated[dict[str, Any], BeforeValidator(_checked_kinds), Dict, Named] = Field(
        default_factory=dict, title="a kind for each column"
    )
    missing: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_missing_texts), Dict, Named] = (
        Field(default_factory=dict, title="a list of values for each column")
    )
    timezone: Annotated[str | None, BeforeValidator(_known_timezone)] = Field(
        default=None, title="the name of a time zone, or null"
    )
    read: Annotated[dict[str, str], Dict] = Field(
        default_factory=dict, title="sep, encoding or both"
    )
    snapshots: bool = False
    drop: Annotated[tuple[str, ...], Tuple, Named] = Field(
        default=(), title="a list of column names, for example [claim_id, note]"
    )
    new_values: Annotated[dict[str, str], BeforeValidator(_with_reasons), Dict, Named] = Field(
        default_factory=dict, title="a reason for each column"
    )
    allowed_values: Annotated[
        dict[str, AllowedValues], BeforeValidator(_allowed_values), Dict, Named
    ] = Field(
        default_factory=dict,
        title="for each column a list of values, {values: [...], source: ISO 3166-2} or {file:"
        " codes.csv, source: ...}",
    )
    prefix_lengths: Annotated[
        dict[str, tuple[int, ...]], BeforeValidator(_checked_lengths), Dict, Named
    ] = Field(
        default_factory=dict,
        title="for each column a list of lengths, for example {icd10: [5, 3, 1]}",
    )
    relations: Annotated[dict[str, bool], BeforeValidator(_switches), Dict, Named] = Field(
        default_factory=dict,
        title="for each relation true or false, for example {start <= end: false}",
    )

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """Create the declarations among the arguments of a function.

        Args:
            arguments: Arguments by name. None: the default of a declaration.

        Raises:
            ConfigError: If a declaration is invalid.
        """
        declarations = {}
        for name in cls.model_fields:
            if arguments.get(name) is not None:
                declarations[name] = arguments[name]
        return cls(**declarations)

    @classmethod
    def signed_names(cls) -> list[str]:
        """Return the names of the declarations that :meth:`to_setup` contains."""
        return [name for name in Declared.model_fields if name not in cls.unsigned]

    @model_validator(mode="before")
    @classmethod
    def _subject(cls, settings: Any) -> Any:
        """Convert a mapping ``subject`` to the settings ``subject``, ``each_row`` and
        ``exact_ids``.
        """
        if not isinstance(settings, Mapping) or not isinstance(settings.get("subject"), Mapping):
            return settings
        subject = _read_subject(settings["subject"])
        converted = {
            "subject": subject.column,
            "each_row": subject.each_row,
            "exact_ids": subject.exact_ids,
        }
        for name in ("each_row", "exact_ids"):
            if name in settings and settings[name] != converted[name]:
                raise ConfigError(
                    f"subject and {name} contradict each other. Fix: remove {name}, and state it in"
                    " subject: {each_row: true} or {column: id, exact: true}."
                )
        return {**settings, **converted}

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Raise ConfigError if declarations contradict each other."""
        if self.each_row and self.subject is not None:
            raise ConfigError(
                "subject names a column, and each_row states that each row is a different person."
                " Fix: declare one of the two."
            )
        if self.exact_ids and self.subject is None:
            raise ConfigError("exact ids need the subject, the column that identifies people.")
        if self.snapshots and self.subject is None:
            raise ConfigError(
                "snapshots need the column that identifies people. Fix: name it as the subject."
            )
        names = [*self.drop, *self.new_values, *self.allowed_values]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"column {name!r} is named twice in drop, new_values and allowed_values."
                    " Fix: remove one."
                )
            if name == self.subject and name not in self.drop:
                raise ConfigError(
                    f"column {name!r} is the subject, which is not published. Fix: declare no"
                    " role for it."
                )
        _ = self.csv_format
        return self

    @property
    def states_people(self) -> bool:
        """Whether the owner states which rows belong to one person."""
        return self.subject is not None or self.each_row

    @property
    def csv_format(self) -> CsvFormat:
        """How files are written, and which of their columns are not read."""
        # The subject is left out of the synthetic table only.
        not_read = tuple(without(self.drop, [self.subject]))
        return replace(CsvFormat.of(self.read), snapshots=self.snapshots, drop=not_read)

    def to_setup(self, keyed_fingerprint: Callable[[str], str]) -> dict[str, Any]:
        """Return the signed form: all declarations, with allowed values as their number and a keyed
        digest.

        Args:
            keyed_fingerprint: Computes keyed digests with the split key.
        """
        setup: dict[str, Any] = {"subject": self.subject, "kinds": _kind_texts(self.kinds)}
        for name in self.signed_names():
            value = getattr(self, name)
            if name in setup or not value:
                continue
            if name == "allowed_values":
                value = _digests(self.allowed_values, keyed_fingerprint)
            setup[name] = _jsonable(value)
        return setup

    @classmethod
    def of_setup(cls, setup: Mapping[str, Any]) -> dict[str, Any]:
        """Read signed declarations, with the default for those that were not declared.

        Args:
            setup: What :meth:`to_setup` returned, in a file that another version may have written.

        Returns:
            The declarations by name, with allowed values as in the signed form.

        Raises:
            TypeError: If they have another form.
            ValueError: If they have another form.
        """
        declarations = {}
        for name in cls.signed_names():
            default = _jsonable(cls.model_fields[name].get_default(call_default_factory=True))
            value = setup.get(name, default)
            if default is not None and not isinstance(value, type(default)):
                raise TypeError(f"{name} has type {type(value).__name__}")
            declarations[name] = value
        for name in ("missing", "prefix_lengths"):
            declarations[name] = _converted(declarations[name], list)
        declarations["allowed_values"] = _converted(declarations["allowed_values"], dict)
        return declarations

    def check(self, columns: Sequence[str]) -> None:
        """Check that each declared column exists.

        Args:
            columns: Names of the columns of a table.

        Raises:
            ConfigError: If one does not exist.
        """
        for argument in ("drop", "new_values", "allowed_values", "prefix_lengths", "missing"):
            for name in getattr(self, argument):
                # A dropped column may be absent, unless its name is probably a typing error.
                if name not in columns and (argument != "drop" or near_name(name, columns)):
                    raise ConfigError(
                        f"{argument}: there is no column {name!r}.{near_name(name, columns)}"
                    )

    @property
    def not_published(self) -> frozenset[str]:
        """Names of the columns that are removed from the real tables: dropped ones and the
        subject.
        """
        subject = () if self.subject is None else (self.subject,)
        return frozenset((*self.drop, *subject))


def _is_by_column(declarations: Any) -> bool:
    """Return True for a mapping with names as keys. The model reports other values."""
    if not isinstance(declarations, Mapping):
        return False
    return all(isinstance(name, str) for name in declarations)


def _check_values(argument: str, column: str, values: Any) -> None:
    """Raise ConfigError unless the values of a column are a list of strings or numbers that is not
    empty.
    """
    is_list = isinstance(values, list | tuple) and bool(values)
    if not is_list or not all(isinstance(value, str | bool | int | float) for value in values):
        raise ConfigError(f"{argument}: {column!r} needs a list of strings or numbers.")


def _allowed(name: str, declaration: Any) -> AllowedValues:
    """Return the allowed values of a column.

    ``declaration`` is a list of values, or ``{values: [...], source: text}`` or
    ``{file: path, source: text}``. A file has a header, and the values are in its first column.
    """
    if isinstance(declaration, AllowedValues):
        return declaration
    if not isinstance(declaration, Mapping):
        _check_values("allowed_values", name, declaration)
        return AllowedValues(tuple(declaration))
    source = declaration.get("source")
    file = declaration.get("file")
    values: Any = declaration.get("values")
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
    _check_values("allowed_values", name, values)
    return AllowedValues(tuple(values), str(source).strip())


def _kind_texts(kinds: Mapping[str, Any]) -> dict[str, str]:
    """Return declared kinds as text."""
    texts = {}
    for name, kind in kinds.items():
        texts[name] = kind if isinstance(kind, str) else yaml_text(kind)
    return texts


def _digests(
    allowed_values: Mapping[str, AllowedValues], keyed_fingerprint: Callable[[str], str]
) -> dict[str, Any]:
    """Return number, keyed digest and source of the allowed values of each column."""
    digests = {}
    for name, allowed in allowed_values.items():
        sorted_values = sorted(map(json.dumps, allowed.values))
        digest = keyed_fingerprint(json.dumps([name, sorted_values]))
        digests[name] = {"values": len(allowed.values), "digest": digest}
        if allowed.source:
            digests[name]["source"] = allowed.source
    return digests


def _jsonable(value: Any) -> Any:
    """Return a declaration with lists instead of tuples."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {name: _jsonable(entry) for name, entry in value.items()}
    return value


def _converted(by_column: Mapping[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a mapping with values of another type."""
    return {name: form(value) for name, value in by_column.items()}


NOTHING = Declared()


def subject_and_drop(subject: str | None, drop: Sequence[str]) -> str:
    """Return the declaration of a subject and of columns to drop, as a setting and as options of
    the command line.
    """
    settings: dict[str, Any] = {}
    options = []
    if subject is not None:
        settings["subject"] = subject
        options.append(f"--subject {option_text([subject])}")
    if drop:
        settings["drop"] = list(drop)
        options.append(f"--drop {option_text(drop)}")
    return f"data: {yaml_text(settings)}; on the command line {' '.join(options)}"
