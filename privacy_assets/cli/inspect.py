"""The command ``privacy-assets inspect``: how the columns of tables are read, without a cell.

Give the real tables together (train, holdout, reference or the source), because types are decided for all of them.
--yaml prints the settings to paste into the YAML file of a table. Lines that end in "?" are for you to decide.

exit status:
  0  every column can be read and published
  1  some columns are ambiguous or empty, or hold values of individual people
  2  a file cannot be read

example:
  privacy-assets inspect train.parquet holdout.parquet
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.options import NO, YES, Commands, say
from privacy_assets.report.text import aligned
from privacy_assets.report.words import NOTHING, clean

if TYPE_CHECKING:
    from privacy_assets.tables.files import CsvFormat
    from privacy_assets.tables.schema import ColumnSchema
    from privacy_assets.tables.text import TextForm


def add_inspect(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("inspect", _inspect, "show how the columns of tables are read", __doc__)
    command.option("files", "Parquet or CSV files, folders, globs, or - for standard input", metavar="FILE", nargs="+")
    command.option("--yaml", "print settings to paste", action="store_true")


def _inspect(options: argparse.Namespace) -> int:
    from privacy_assets.tables.contract import EACH_ROW, columns_of
    from privacy_assets.tables.conversion import column_of
    from privacy_assets.tables.reading import read_table
    from privacy_assets.tables.roles import may_tell_people_apart, open_reason

    forms = [_format(path) for path in options.files]
    frames = [read_table(path, form) for path, form in zip(options.files, forms, strict=True)]
    empty = {name for name in frames[0].columns if all(name in f.columns and f[name].isna().all() for f in frames)}
    found = columns_of(frames, options.files, dict.fromkeys(empty, "categorical"))
    reasons = dict.fromkeys(empty, "every value is missing: drop the column or declare its kind")
    for column, read in found:
        if not read.doubt and column.name not in empty:
            parts = zip(frames, options.files, strict=True)
            cells = [column_of(frame[column.name], column, where, external=True) for frame, where in parts]
            reasons[column.name] = open_reason(column, cells)
    people = may_tell_people_apart(frames[0], ())
    if options.yaml:
        say(_yaml(options.files, forms[0], found, reasons, people[0] if people else EACH_ROW))
    else:
        rows = [["column", "kind", "precision", "missing", "note"]]
        for column, read in found:
            gaps = sum(int(frame[column.name].isna().sum()) for frame in frames)
            note = read.doubt or reasons[column.name] or read.note
            precision = NOTHING if column.precision is None else str(column.precision)
            kind = NOTHING if column.name in empty else _kind(column, read)
            rows.append([clean(column.name, 40), kind, precision, str(gaps), note])
        files = [f"{path}: {_described(form)}" for path, form in zip(options.files, forms, strict=True)]
        who = f"people may be identified by {', '.join(clean(name, 40) for name in people)}" if people else ""
        say(*files, "", *aligned(rows), *(["", who] if who else []))
    return NO if any(read.doubt for _, read in found) or any(reasons.values()) else YES


def _format(path: str) -> CsvFormat:
    from privacy_assets.tables.files import CsvFormat, guess_format, suffix_of, table_files

    files = [file for file in table_files(path) if isinstance(file, Path) and "csv" in suffix_of(file)]
    return guess_format(files[0]) if files else CsvFormat()


def _described(form: CsvFormat) -> str:
    if not form.sep:
        return "typed columns"
    name = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}[form.sep]
    return f"separated by {name}, {form.encoding.replace('utf-8-sig', 'UTF-8')}"


def _kind(column: ColumnSchema, read: TextForm) -> str:
    if read.doubt:
        return "ambiguous"
    form = {"": "", ",": ", decimal comma", ".": ", commas between thousands"}.get(column.format, f", {column.format}")
    return f"{column.kind}{form}{', with time zone' if column.zoned else ''}"


def _yaml(
    files: Sequence[str],
    form: CsvFormat,
    found: Sequence[tuple[ColumnSchema, TextForm]],
    reasons: Mapping[str, str],
    subject: object,
) -> str:
    """Return the group ``data`` of a table: the subject, ambiguous kinds, missing values and columns to drop."""
    import yaml

    kinds = {column.name: read.choices[0] for column, read in found if read.doubt}
    data: dict[str, Any] = {"source": files[0], "subject": subject, "kinds": kinds}
    data["missing"] = {column.name: list(read.strays) for column, read in found if read.strays}
    data["drop"] = [name for name, reason in reasons.items() if reason and name != subject]
    plain = form.sep in ("", ",") and form.encoding in ("", "utf-8-sig", "utf-16")
    data["read"] = {} if plain else {"sep": form.sep, "encoding": form.encoding.replace("utf-8-sig", "utf-8")}
    text: str = yaml.safe_dump(
        {"data": {name: value for name, value in data.items() if value}}, sort_keys=False, allow_unicode=True
    )
    who = "# subject: the column that identifies people, or {each_row: true} if each row is another person\n"
    return who + text.rstrip("\n")
