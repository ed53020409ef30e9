"""The command ``privacy-assets inspect``: how the columns of tables are read, without a cell.

Give the real tables together (train, holdout, reference or the source), because types are decided
for all of them. --yaml prints the file of a table for `privacy-assets run`. Before it runs, decide
each line that ends in "?", and remove the question mark.

exit status:
  0  every column can be read and published
  1  some columns are ambiguous or empty, or hold values of individual people, or some ids have two
     spellings
  2  a file cannot be read

example:
  privacy-assets inspect train.parquet holdout.parquet
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from privacy_assets.cli.options import NO, YES, Commands, say, terminal_columns
from privacy_assets.report.text import aligned
from privacy_assets.report.words import NOTHING, clean

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from privacy_assets.tables.files import CsvFormat
    from privacy_assets.tables.schema import ColumnSchema
    from privacy_assets.tables.subject_ids import Spellings
    from privacy_assets.tables.text import TextForm

_UNNAMED = "it has no name: name the column or drop it"
_EMPTY = "every value is missing: drop the column or declare its kind"


@dataclass(frozen=True, slots=True)
class Inspected:
    """A column with the way in which it is read.

    Attributes:
        schema: Schema.
        text_form: How its text is read.
        reason: Why it cannot be published, or "".
        n_missing: Number of missing cells.
        is_empty: True if all values are missing.
        personal: Note on personal data that its name and values suggest, or "".
    """

    schema: ColumnSchema
    text_form: TextForm
    reason: str
    n_missing: int
    is_empty: bool
    personal: str

    @property
    def name(self) -> str:
        """Name of the column."""
        return self.schema.name

    @property
    def is_ready(self) -> bool:
        """True if the column can be read and published."""
        return not self.text_form.ambiguity and not self.reason

    @property
    def note(self) -> str:
        """Note on the column in the printed table."""
        notes = [self.text_form.ambiguity or self.reason or self.text_form.note, self.personal]
        return "; ".join(note for note in notes if note)


@dataclass(frozen=True, slots=True)
class PersonColumns:
    """Columns that may identify people.

    Attributes:
        unique: Columns of codes with one row each.
        shared: Columns of codes or ids that several rows share.
    """

    unique: Sequence[str]
    shared: Sequence[str]

    @property
    def is_doubtful(self) -> bool:
        """True if only the user can know which of them identifies people."""
        return bool(self.unique) and bool(self.shared)

    @property
    def candidates(self) -> Sequence[str]:
        """Columns of which one is the subject: the most likely one, or all if this is doubtful."""
        if self.is_doubtful:
            return [self.unique[0], *self.shared]
        return [*self.unique, *self.shared][:1]

    def of_rows(self, frames: Sequence[pd.DataFrame]) -> np.ndarray:
        """Return the person of each row of the stacked tables, int64 (n,). Each row is one if this
        is doubtful.

        Args:
            frames: Tables.
        """
        import numpy as np
        import pandas as pd

        if not self.candidates or self.is_doubtful:
            return np.arange(sum(map(len, frames)))
        name = self.candidates[0]
        ids = pd.concat([frame.reindex(columns=[name])[name] for frame in frames])
        return pd.factorize(ids, use_na_sentinel=False)[0].astype(np.int64)


def add_inspect(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("inspect", _inspect, "show how the columns of tables are read", __doc__)
    command.option(
        "files",
        "Parquet or CSV files, folders, globs, or - for standard input",
        metavar="FILE",
        nargs="+",
    )
    command.common("--snapshots")
    command.option(
        "--yaml", "print the file of a table for `privacy-assets run`", action="store_true"
    )


def _inspect(options: argparse.Namespace) -> int:
    from privacy_assets.tables.reading import read_table
    from privacy_assets.tables.roles import may_tell_people_apart, unique_codes

    forms = [replace(_format(path), snapshots=options.snapshots) for path in options.files]
    frames = [read_table(path, form) for path, form in zip(options.files, forms, strict=True)]
    person_columns = PersonColumns(unique_codes(frames[0]), may_tell_people_apart(frames[0], ()))
    columns = _inspected(frames, options.files, person_columns)
    spellings = _spellings(frames, options.files, person_columns)
    if options.yaml:
        say(*_yaml(options.files[0], forms[0], columns, person_columns, spellings))
    else:
        related = _relations(frames, columns, person_columns)
        listed = _table(columns)
        doubts = _lines(columns)
        say(
            *_files(options.files, forms),
            "",
            *listed,
            *doubts,
            *_people(person_columns, spellings),
            *related,
        )
    is_ready = spellings is None and all(column.is_ready for column in columns)
    return YES if is_ready else NO


def _spellings(
    frames: Sequence[pd.DataFrame], files: Sequence[str], person_columns: PersonColumns
) -> Spellings | None:
    """Return the ids of people that have two spellings. None: there are none, or the column of the
    ids is unknown.
    """
    from privacy_assets.tables.subject_ids import as_ids, find_spellings

    if not person_columns.candidates or person_columns.is_doubtful:
        return None
    name = person_columns.candidates[0]
    parts = zip(frames, files, strict=True)
    return find_spellings([as_ids(frame[name], where) for frame, where in parts])


def _inspected(
    frames: Sequence[pd.DataFrame], files: Sequence[str], person_columns: PersonColumns
) -> list[Inspected]:
    from privacy_assets.tables.conversion import column_of
    from privacy_assets.tables.personal_data import personal_note
    from privacy_assets.tables.roles import open_reason

    empty = []
    for name in frames[0].columns:
        if all(name in frame.columns and frame[name].isna().all() for frame in frames):
            empty.append(name)
    inspected = []
    for schema, text_form in _read(
        frames, files, dict.fromkeys(empty, "categorical"), person_columns
    ):
        n_missing = sum(int(frame[schema.name].isna().sum()) for frame in frames)
        reason = ""
        personal = ""
        if not schema.name.strip():
            reason = _UNNAMED
        elif schema.name in empty:
            reason = _EMPTY
        elif not text_form.ambiguity:
            parts = zip(frames, files, strict=True)
            cells = [
                column_of(frame[schema.name], schema, where, external=True)
                for frame, where in parts
            ]
            reason = open_reason(schema, cells)
            personal = personal_note(schema, cells)
        inspected.append(
            Inspected(schema, text_form, reason, n_missing, schema.name in empty, personal)
        )
    return inspected


def _read(
    frames: Sequence[pd.DataFrame],
    files: Sequence[str],
    kinds: Mapping[str, str],
    person_columns: PersonColumns,
) -> list[tuple[ColumnSchema, TextForm]]:
    """Return the schema of each column, and how its text is read.

    As in `run`, columns that may be the subject are read on their own: others are then read as if
    they were not there.
    """
    from privacy_assets.tables.codes import have_types
    from privacy_assets.tables.inference import columns_of

    names = list(frames[0].columns)
    parts = [[name for name in names if name in person_columns.candidates]]
    parts.append([name for name in names if name not in person_columns.candidates])
    person_codes = person_columns.of_rows(frames)
    are_typed = have_types(frames)
    columns: dict[str, tuple[ColumnSchema, TextForm]] = {}
    for part in filter(None, parts):
        others = set(names) - set(part)
        tables = [frame.drop(columns=list(others), errors="ignore") for frame in frames]
        stated = {name: kind for name, kind in kinds.items() if name in part}
        for schema, text_form in columns_of(
            tables, files, stated, subject_codes=person_codes, are_typed=are_typed
        ):
            columns[schema.name] = (schema, text_form)
    return [columns[name] for name in names]


def _files(files: Sequence[str], forms: Sequence[CsvFormat]) -> Iterator[str]:
    for path, form in zip(files, forms, strict=True):
        yield f"{path}: {_described(form)}"


def _table(columns: Sequence[Inspected]) -> list[str]:
    from privacy_assets.tables.names import MAX_NAME_LENGTH

    rows = [["column", "kind", "precision", "missing", "note"]]
    for column in columns:
        precision = NOTHING if column.schema.precision is None else str(column.schema.precision)
        kind = NOTHING if column.is_empty else _kind(column.schema, column.text_form)
        # In full: a name is published and can contain private values.
        rows.append(
            [
                clean(column.name, MAX_NAME_LENGTH),
                kind,
                precision,
                str(column.n_missing),
                column.note,
            ]
        )
    return aligned(rows, terminal_columns())


def _lines(columns: Sequence[Inspected]) -> Iterator[str]:
    """Return the lines to paste for ambiguous columns."""
    from privacy_assets.tables.inference import lines_to_paste

    doubts = {column.name: column.text_form for column in columns if column.text_form.ambiguity}
    if doubts:
        yield ""
        yield f"declare what the cells mean, for example {lines_to_paste(doubts)}"


def _people(person_columns: PersonColumns, spellings: Spellings | None) -> Iterator[str]:
    names = ", ".join(clean(name, 40) for name in person_columns.shared)
    if person_columns.shared:
        yield ""
        yield f"people may be identified by {names}"
    if person_columns.is_doubtful:
        unique = ", ".join(clean(name, 40) for name in person_columns.unique)
        yield f"or by {unique}, with one row each"
    if spellings is not None:
        yield ""
        name = clean(person_columns.candidates[0], 40)
        yield f"{name}: {spellings.problem}; --yaml shows what to declare"


def _relations(
    frames: Sequence[pd.DataFrame], columns: Sequence[Inspected], person_columns: PersonColumns
) -> Iterator[str]:
    """List the relations and sums of the columns that can be published."""
    import pandas as pd

    from privacy_assets.tables.conversion import column_of
    from privacy_assets.tables.relations import find_relations
    from privacy_assets.tables.sums import find_sums

    frame = pd.concat(frames, ignore_index=True)
    read = []
    for column in columns:
        if column.is_ready and column.name not in person_columns.candidates:
            read.append(column_of(frame[column.name], column.schema, "the tables", external=True))
    person_codes = person_columns.of_rows(frames)
    relations = [relation.name for relation in find_relations(read, person_codes)]
    title = "relations that hold in all rows, and that synthpop and baynet keep:"
    yield from _listed(title, relations, "to switch one off: data: {relations: {NAME: false}}")
    sums = [column_sum.name for column_sum in find_sums(read, person_codes)]
    title = "sums that hold in all rows, and that published rows break:"
    yield from _listed(title, sums, "to keep one: drop the total, and compute it after reading")


def _listed(title: str, names: Sequence[str], hint: str) -> list[str]:
    """Return the lines of a list, after an empty one; no line if there are no names."""
    if not names:
        return []
    return ["", title, *(f"  {clean(name, 100)}" for name in names), hint]


def _format(path: str) -> CsvFormat:
    from privacy_assets.tables.files import CsvFormat, guess_format, table_files
    from privacy_assets.tables.folders import suffix_of

    files = [
        file for file in table_files(path) if isinstance(file, Path) and "csv" in suffix_of(file)
    ]
    return guess_format(files[0]) if files else CsvFormat()


def _described(form: CsvFormat) -> str:
    if not form.sep:
        return "typed columns"
    name = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}[form.sep]
    return f"separated by {name}, {form.encoding.replace('utf-8-sig', 'UTF-8')}"


def _kind(column: ColumnSchema, read: TextForm) -> str:
    from privacy_assets.tables.written_numbers import NumberFormat

    if read.ambiguity:
        return "ambiguous"
    if column.kind == "datetime":
        form = f", {column.format}" if column.format else ""
        return f"{column.kind}{form}{', with time zone' if column.is_zoned else ''}"
    decimal, unit = NumberFormat.of(column.format)
    form = {"": "", ",": ", decimal comma", ".": ", commas between thousands"}[decimal]
    return f"{column.kind}{form}{f', unit {unit}' if unit else ''}"


def _yaml(
    source: str,
    form: CsvFormat,
    columns: Sequence[Inspected],
    person_columns: PersonColumns,
    spellings: Spellings | None,
) -> Iterator[str]:
    """Return the lines of the file of a table. A line that ends in "?" is to be decided by the
    user.
    """
    from privacy_assets.tables.schema import yaml_text

    yield f"name: {_table_name(source)}"
    yield "data:"
    yield f"  source: {yaml_text(source)}"
    yield from _subject_lines(person_columns, spellings)
    yield from _kind_lines([column for column in columns if column.text_form.ambiguity])
    markers = {
        column.name: list(column.text_form.strays) for column in columns if column.text_form.strays
    }
    if markers:
        yield f"  missing: {yaml_text(markers)}"
    dropped = []
    for column in columns:
        if column.personal and column.name not in person_columns.candidates:
            yield (
                f"  # {clean(column.name, 40)}: {column.personal}; it is published unless it"
                " stays in drop"
            )
        if (column.reason or column.personal) and column.name not in person_columns.candidates:
            dropped.append(column.name)
    if dropped:
        yield f"  drop: {yaml_text(dropped)}"
    is_plain = form.sep in ("", ",") and form.encoding in ("", "utf-8-sig", "utf-16")
    if not is_plain:
        encoding = form.encoding.replace("utf-8-sig", "utf-8")
        yield f"  read: {yaml_text({'sep': form.sep, 'encoding': encoding})}"
    if form.snapshots:
        yield "  snapshots: true"


def _subject_lines(person_columns: PersonColumns, spellings: Spellings | None) -> Iterator[str]:
    from privacy_assets.tables.schema import yaml_text

    if person_columns.is_doubtful:
        unique = person_columns.unique[0]
        yield (
            f"  # {clean(unique, 40)} has one row each, and several rows share a value of the"
            " others. Keep the column"
        )
        yield "  # that identifies people, and add the others to drop:"
        yield f"  subject: {yaml_text(' or '.join([unique, *person_columns.shared]) + '?')}"
    elif spellings is not None:
        name = person_columns.candidates[0]
        exact = yaml_text({"column": name, "exact": True})
        yield f"  # {clean(name, 40)}: {spellings.problem}."
        yield (
            "  # If all of these ids are different people, remove the question mark and the"
            " quotes. Otherwise write"
        )
        yield f"  # each id in one way, and set subject: {yaml_text(name)}"
        yield f"  subject: {yaml_text(f'{exact}?')}"
    elif person_columns.candidates:
        yield f"  subject: {yaml_text(person_columns.candidates[0])}"
    else:
        yield "  # no column identifies people, so each row must be another person"
        yield "  subject: {each_row: true}"


def _kind_lines(doubtful: Sequence[Inspected]) -> Iterator[str]:
    from privacy_assets.tables.schema import yaml_text

    if doubtful:
        yield "  kinds:"
    for column in doubtful:
        yield f"    # {clean(column.name, 40)}: {column.text_form.ambiguity}"
        kind = column.text_form.choices[0].declaration
        text = kind if isinstance(kind, str) else yaml_text(kind)
        yield f"    {yaml_text(column.name)}: {yaml_text(f'{text}?')}"


def _table_name(source: str) -> str:
    """Return the name of a file as that of a table: letters, digits and underscores, with a letter
    first.
    """
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", Path(source).name.partition(".")[0]).strip("_")
    return stem if stem[:1].isalpha() else f"table_{stem}".rstrip("_")
