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
from privacy_assets.report.words import NOTHING, clean, cleaned

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from privacy_assets.tables.files import CsvFormat
    from privacy_assets.tables.schema import ColumnSchema
    from privacy_assets.tables.subject_ids import Spellings
    from privacy_assets.tables.text import TextForm

_UNNAMED = "it has no name: name the column or drop it"
_EMPTY = "every value is missing: drop the column or declare its kind"
_NAME = 40  # characters of the name of a column
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_DECIMALS = {"": "", ",": ", decimal comma", ".": ", commas between thousands"}


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
        note = self.text_form.ambiguity or self.reason or self.text_form.note
        return "; ".join(filter(None, (note, self.personal)))


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
    from privacy_assets.tables.roles import may_identify_people, unique_codes

    formats = [replace(_format(path), snapshots=options.snapshots) for path in options.files]
    frames = list(map(read_table, options.files, formats))
    person_columns = PersonColumns(unique_codes(frames[0]), may_identify_people(frames[0], ()))
    columns = _inspected(frames, options.files, person_columns)
    spellings = _spellings(frames, options.files, person_columns)
    if options.yaml:
        say(*_yaml(options.files[0], formats[0], columns, person_columns, spellings))
    else:
        say(
            *_format_lines(options.files, formats),
            "",
            *_table(columns),
            *_ambiguity_lines(columns),
            *_person_lines(person_columns, spellings),
            *_relation_lines(frames, columns, person_columns),
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
    ids = [as_ids(frame[name], file) for frame, file in zip(frames, files, strict=True)]
    return find_spellings(ids)


def _inspected(
    frames: Sequence[pd.DataFrame], files: Sequence[str], person_columns: PersonColumns
) -> list[Inspected]:
    empty = []
    for name in frames[0].columns:
        if all(name in frame.columns and frame[name].isna().all() for frame in frames):
            empty.append(name)
    kinds = dict.fromkeys(empty, "categorical")
    inspected = []
    for schema, text_form in _read(frames, files, kinds, person_columns):
        n_missing = sum(int(frame[schema.name].isna().sum()) for frame in frames)
        is_empty = schema.name in empty
        reason = ""
        personal = ""
        if not schema.name.strip():
            reason = _UNNAMED
        elif is_empty:
            reason = _EMPTY
        elif not text_form.ambiguity:
            reason, personal = _reason_and_note(schema, frames, files)
        inspected.append(Inspected(schema, text_form, reason, n_missing, is_empty, personal))
    return inspected


def _reason_and_note(
    schema: ColumnSchema, frames: Sequence[pd.DataFrame], files: Sequence[str]
) -> tuple[str, str]:
    """Return why a column cannot be published, and the note on personal data, each "" if there is
    none.
    """
    from privacy_assets.tables.conversion import column_of
    from privacy_assets.tables.personal_data import personal_note
    from privacy_assets.tables.roles import open_reason

    columns = []
    for frame, file in zip(frames, files, strict=True):
        columns.append(column_of(frame[schema.name], schema, file, external=True))
    return open_reason(schema, columns), personal_note(schema, columns)


def _read(
    frames: Sequence[pd.DataFrame],
    files: Sequence[str],
    kinds: Mapping[str, str],
    person_columns: PersonColumns,
) -> list[tuple[ColumnSchema, TextForm]]:
    """Return the schema of each column, and how its text is read.

    As in `run`, columns that may be the subject are read separately: the other columns are then
    read as if they were not there.
    """
    from privacy_assets.tables.declared import Declared
    from privacy_assets.tables.inference import columns_of

    names = list(frames[0].columns)
    of_people = []
    not_of_people = []
    for name in names:
        if name in person_columns.candidates:
            of_people.append(name)
        else:
            not_of_people.append(name)
    person_codes = person_columns.of_rows(frames)
    columns: dict[str, tuple[ColumnSchema, TextForm]] = {}
    for group in filter(None, (of_people, not_of_people)):
        left_out = list(set(names) - set(group))
        declared = Declared(kinds={name: kind for name, kind in kinds.items() if name in group})
        for schema, text_form in columns_of(
            frames, files, declared, subject_codes=person_codes, left_out=left_out
        ):
            columns[schema.name] = (schema, text_form)
    return [columns[name] for name in names]


def _table(columns: Sequence[Inspected]) -> list[str]:
    from privacy_assets.tables.names import MAX_NAME_LENGTH

    rows = [["column", "kind", "precision", "missing", "note"]]
    for column in columns:
        # In full: a name is published and can contain private values.
        name = clean(column.name, MAX_NAME_LENGTH)
        kind = NOTHING
        if not column.is_empty:
            kind = _kind(column.schema, column.text_form)
        precision = NOTHING
        if column.schema.precision is not None:
            precision = str(column.schema.precision)
        rows.append([name, kind, precision, str(column.n_missing), column.note])
    return aligned(rows, terminal_columns())


def _ambiguity_lines(columns: Sequence[Inspected]) -> Iterator[str]:
    """Yield the lines to paste for ambiguous columns."""
    from privacy_assets.tables.inference import lines_to_paste

    ambiguous = {column.name: column.text_form for column in columns if column.text_form.ambiguity}
    if ambiguous:
        yield ""
        yield f"declare what the cells mean, for example {lines_to_paste(ambiguous)}"


def _person_lines(person_columns: PersonColumns, spellings: Spellings | None) -> Iterator[str]:
    """Yield the lines on the columns that may identify people."""
    if person_columns.shared:
        yield ""
        yield f"people may be identified by {_names(person_columns.shared)}"
    if person_columns.is_doubtful:
        yield f"or by {_names(person_columns.unique)}, with one row each"
    if spellings is not None:
        yield ""
        name = clean(person_columns.candidates[0], _NAME)
        yield f"{name}: {spellings.problem}; --yaml shows what to declare"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(cleaned(columns, _NAME))


def _relation_lines(
    frames: Sequence[pd.DataFrame], columns: Sequence[Inspected], person_columns: PersonColumns
) -> Iterator[str]:
    """Yield the relations and sums of the columns that can be published."""
    import pandas as pd

    from privacy_assets.tables.conversion import column_of
    from privacy_assets.tables.relations import find_relations
    from privacy_assets.tables.sums import find_sums

    frame = pd.concat(frames, ignore_index=True)
    publishable = []
    for column in columns:
        if column.is_ready and column.name not in person_columns.candidates:
            publishable.append(
                column_of(frame[column.name], column.schema, "the tables", external=True)
            )
    person_codes = person_columns.of_rows(frames)
    relations = [relation.name for relation in find_relations(publishable, person_codes)]
    title = "relations that hold in all rows, and that synthpop and baynet keep:"
    hint = "to switch one off: data: {relations: {NAME: false}}"
    yield from _list_lines(title, relations, hint)
    sums = [column_sum.name for column_sum in find_sums(publishable, person_codes)]
    title = "sums that hold in all rows, and that published rows break:"
    hint = "to keep one: drop the total, and compute it after reading"
    yield from _list_lines(title, sums, hint)


def _list_lines(title: str, names: Sequence[str], hint: str) -> list[str]:
    """Return the lines of a list, after an empty one; no line if there are no names."""
    if not names:
        return []
    lines = ["", title]
    for name in names:
        lines.append(f"  {clean(name, 100)}")
    lines.append(hint)
    return lines


def _format(path: str) -> CsvFormat:
    """Return the format of the first CSV file of a table, or the default if there is none."""
    from privacy_assets.infra.storage import local_path
    from privacy_assets.tables.files import CsvFormat, guess_format, table_files
    from privacy_assets.tables.folders import suffix_of

    for file in table_files(path):
        local = local_path(file)
        if local is not None and "csv" in suffix_of(file):
            return guess_format(local)
    return CsvFormat()


def _format_lines(files: Sequence[str], formats: Sequence[CsvFormat]) -> Iterator[str]:
    for path, csv_format in zip(files, formats, strict=True):
        yield f"{path}: {_format_text(csv_format)}"


def _format_text(csv_format: CsvFormat) -> str:
    if not csv_format.sep:
        return "typed columns"
    encoding = csv_format.encoding.replace("utf-8-sig", "UTF-8")
    return f"separated by {_SEPARATORS[csv_format.sep]}, {encoding}"


def _kind(column: ColumnSchema, text_form: TextForm) -> str:
    from privacy_assets.tables.written_numbers import NumberFormat

    if text_form.ambiguity:
        return "ambiguous"
    text: str = column.kind
    if column.kind == "datetime":
        if column.format:
            text += f", {column.format}"
        if column.is_zoned:
            text += ", with time zone"
        return text
    decimal, unit = NumberFormat.of(column.format)
    text += _DECIMALS[decimal]
    if unit:
        text += f", unit {unit}"
    return text


def _yaml(
    source: str,
    csv_format: CsvFormat,
    columns: Sequence[Inspected],
    person_columns: PersonColumns,
    spellings: Spellings | None,
) -> Iterator[str]:
    """Yield the lines of the file of a table. A line that ends in "?" is to be decided by the user.

    Args:
        source: Path of the table.
        csv_format: How it is read.
        columns: Its columns.
        person_columns: Columns that may identify people.
        spellings: Ids of people that have two spellings. None: there are none.
    """
    from privacy_assets.tables.schema import yaml_text

    yield f"name: {_table_name(source)}"
    yield "data:"
    yield f"  source: {yaml_text(source)}"
    yield from _subject_lines(person_columns, spellings)
    yield from _kind_lines([column for column in columns if column.text_form.ambiguity])
    markers = {}
    for column in columns:
        if column.text_form.strays:
            markers[column.name] = list(column.text_form.strays)
    if markers:
        yield f"  missing: {yaml_text(markers)}"
    yield from _drop_lines(columns, person_columns)
    is_default = csv_format.sep in ("", ",") and csv_format.encoding in ("", "utf-8-sig", "utf-16")
    if not is_default:
        encoding = csv_format.encoding.replace("utf-8-sig", "utf-8")
        yield f"  read: {yaml_text({'sep': csv_format.sep, 'encoding': encoding})}"
    if csv_format.snapshots:
        yield "  snapshots: true"


def _drop_lines(columns: Sequence[Inspected], person_columns: PersonColumns) -> Iterator[str]:
    """Yield the lines that leave out columns which cannot be published or hold personal data."""
    from privacy_assets.tables.schema import yaml_text

    dropped = []
    for column in columns:
        if column.name in person_columns.candidates:
            continue
        if column.personal:
            yield (
                f"  # {clean(column.name, _NAME)}: {column.personal}; it is published unless it"
                " stays in drop"
            )
        if column.reason or column.personal:
            dropped.append(column.name)
    if dropped:
        yield f"  drop: {yaml_text(dropped)}"


def _subject_lines(person_columns: PersonColumns, spellings: Spellings | None) -> Iterator[str]:
    from privacy_assets.tables.schema import yaml_text

    if person_columns.is_doubtful:
        unique = person_columns.unique[0]
        choices = " or ".join([unique, *person_columns.shared])
        yield (
            f"  # {clean(unique, _NAME)} has one row each, and several rows share a value of the"
            " others. Keep the column"
        )
        yield "  # that identifies people, and add the others to drop:"
        yield f"  subject: {yaml_text(f'{choices}?')}"
    elif spellings is not None:
        name = person_columns.candidates[0]
        exact = yaml_text({"column": name, "exact": True})
        yield f"  # {clean(name, _NAME)}: {spellings.problem}."
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


def _kind_lines(columns: Sequence[Inspected]) -> Iterator[str]:
    """Yield the kinds of ambiguous columns, which the user must decide."""
    from privacy_assets.tables.schema import yaml_text

    if columns:
        yield "  kinds:"
    for column in columns:
        yield f"    # {clean(column.name, _NAME)}: {column.text_form.ambiguity}"
        kind = column.text_form.choices[0].declaration
        text = kind if isinstance(kind, str) else yaml_text(kind)
        yield f"    {yaml_text(column.name)}: {yaml_text(f'{text}?')}"


def _table_name(source: str) -> str:
    """Return the name of a file as that of a table: letters, digits and underscores, with a letter
    first.
    """
    stem = Path(source).name.partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9_]+", "_", stem).strip("_")
    if name[:1].isalpha():
        return name
    return f"table_{name}".rstrip("_")
