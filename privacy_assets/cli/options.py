"""Declaration of commands, options that several commands share, and the folders of a deployment."""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from privacy_assets.errors import ConfigError, FolderError, did_you_mean, near_name, safe_repr
from privacy_assets.infra.objects import PRIVATE_VARIABLE, RELEASES_VARIABLE, Location
from privacy_assets.tables.names import as_named

if TYPE_CHECKING:
    import numpy as np

    from privacy_assets.gate.deployment import DeploymentSettings
    from privacy_assets.policy import Status
    from privacy_assets.report.report import Report
    from privacy_assets.tables.declared import Declared
    from privacy_assets.tables.table import Table


YES = 0
NO = 1
# by verdict; 2 is bad input
STATUSES: Mapping[Status, int] = {"pass": YES, "fail": NO, "undecided": 3}
HOME = ".dagster_home"

# Default locations, inserted into docstrings of commands for the names in braces.
_DEFAULTS = {
    "releases": f"--home      DAGSTER_HOME, else ./{HOME}: the folder that holds releases,"
    " private and"
    " trusted_keys\n"
    f"  --releases  without --home: {RELEASES_VARIABLE}",
    "private": f"--private   without --home: {PRIVATE_VARIABLE}, else the folder private next"
    " to the"
    " releases",
    "trusted": "PRIVACY_ASSETS_TRUSTED_KEYS (a folder or one file), else the\n"
    "  folder trusted_keys in --home, else next to the releases",
    "signing": "  signing key: PRIVACY_ASSETS_SIGNING_KEY (PEM text), else signing.key in the"
    " private"
    " folder",
}
_DEFAULTS["deployment"] = "defaults:\n  {releases}\n  {private}\n  trusted keys: {trusted}".format(
    **_DEFAULTS
)


def repeatable(metavar: str, text: str) -> dict[str, Any]:
    """Return the argparse arguments of an option that can be repeated.

    Args:
        metavar: Form of the value, in the help.
        text: Help.
    """
    return {"action": "append", "default": [], "metavar": metavar, "help": f"{text} (repeatable)"}


# Arguments shared by the options of one name in all commands.
_COMMON: dict[str, dict[str, Any]] = {
    "--data": {
        "metavar": "FILE",
        "help": "the private table: a Parquet or CSV file, a folder or a glob",
    },
    "--subject": {"metavar": "COLUMN", "type": as_named},
    "--exact-ids": {
        "action": "store_true",
        "help": "state that two spellings of an id in --subject are two people",
    },
    "--generator": {"metavar": "NAME"},
    "--set": repeatable("KEY=VALUE", "a setting of the generator, as YAML"),
    "--kind": repeatable(
        "COLUMN=KIND,..",
        "override inferred kinds: numeric, integer, categorical, boolean or datetime, for"
        " example visits=integer,"
        "seen=datetime, with a format seen=datetime:%%d.%%m.%%Y or amount=numeric:comma, with"
        " a unit"
        " weight=numeric::kg",
    ),
    "--drop": repeatable(
        "COLUMN,..",
        "columns to leave out, for example identifiers; put a name that contains a comma in"
        " double quotes: "
        "--drop 'id,\"Name, first\"'",
    ),
    "--missing": repeatable(
        "COLUMN=A,B",
        "values of a column that mean a missing value, besides empty cells; once for each column",
    ),
    "--timezone": {
        "metavar": "ZONE",
        "help": "zone of times without a time zone, for example Europe/Berlin",
    },
    "--sep": {
        "metavar": "CHARACTER",
        "help": "separator of CSV files (default: a comma, in .tsv files a tab)",
    },
    "--encoding": {
        "metavar": "NAME",
        "help": "encoding of CSV files, for example cp1252 (default: UTF-8 or UTF-16)",
    },
    "--snapshots": {
        "action": "store_true",
        "help": "the files of a folder or glob are snapshots of the same people: they may"
        " contain the"
        " same rows",
    },
    "--new-values": repeatable(
        "COLUMN=REASON",
        "column in which new values are allowed, and the reason, which is recorded; once for"
        " each column",
    ),
    "--allowed-values": repeatable(
        "COLUMN=A,B",
        "allowed values of a column in addition to the real ones; once for each column",
    ),
    "--seed": {"type": int, "default": 0},
    "--device": {"default": "auto", "help": "auto, cpu, cuda, cuda:N or mps (default auto)"},
    "--ray": {
        "metavar": "ADDRESS",
        "help": "measure on a Ray cluster: its address, auto for the running one, or local to"
        " start one",
    },
    "--checkpoint": {"metavar": "FOLDER", "type": Path},
    "--quiet": {"action": "store_true", "help": "show no progress on standard error"},
    "--home": {
        "metavar": "DIR",
        "help": "the folder of the deployment: releases, private and trusted_keys are in it",
    },
    "--releases": {
        "metavar": "DIR",
        "help": "the release folder, or its URL (s3://bucket/releases)",
    },
    "--private": {"metavar": "DIR", "help": "the gate's private folder, or its URL"},
}


class Command(argparse.ArgumentParser):
    """Parser of one command. Its help lists the options in the order in which they are added."""

    def option(self, name: str, text: str | None = None, **arguments: Any) -> None:
        """Add an option or a positional argument.

        Args:
            name: Name, with leading hyphens for an option.
            text: Help. None: the shared help of this name.
            **arguments: Arguments of argparse, which override the shared ones.
        """
        if text is not None:
            arguments["help"] = text
        shared = _COMMON.get(name, {})
        self.add_argument(name, **{**shared, **arguments})

    def verbose(self) -> None:
        """Add the option -v."""
        self.add_argument("-v", "--verbose", action="store_true", help="list limits that pass, too")

    def error(self, message: str) -> NoReturn:
        """End the process with exit status 2. The usage is left to --help.

        Args:
            message: Message.
        """
        period = "" if message.endswith(("?", ".")) else "."
        self.exit(2, f"{self.prog}: {message}{period} See {self.prog} --help.\n")

    def common(self, *names: str) -> None:
        """Add options without changes to their shared arguments.

        Args:
            *names: Names of options.
        """
        for name in names:
            self.option(name)


class Commands:
    """Commands of a command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self.parsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Command)

    def add(
        self, name: str, run: Callable[[argparse.Namespace], int], what: str, page: str | None
    ) -> Command:
        """Add a command.

        Args:
            name: Name of the command.
            run: Runs the command and returns its exit status.
            what: Short description, starting with a verb.
            page: Docstring of the module. All but its first paragraph is printed in the help.
        """
        text = (page or "").partition("\n\n")[2].format(**_DEFAULTS)
        command = self.parsers.add_parser(
            name, help=what, description=f"{what.capitalize()}.", epilog=text
        )
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.set_defaults(run=partial(_guarded, run))
        return command

    def help(self) -> str:
        """Return the help of the command line."""
        return self._parser.format_help().rstrip("\n")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments. An unknown command or option ends the process with a suggestion and exit
        status 2.

        Args:
            arguments: Arguments of the command line.
        """
        parsers = self.parsers.choices
        name = next((argument for argument in arguments if not argument.startswith("-")), None)
        if name is None:
            return self._parser.parse_args(arguments)
        if name not in parsers:
            self._parser.error(f"unknown command {safe_repr(name)}.{did_you_mean(name, parsers)}")
        _check_long_options(parsers[name], arguments)
        return self._parser.parse_args(arguments)


def _check_long_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """End the process with a suggestion if a long option is unknown, before argparse asks for
    missing options.
    """
    valid_options = sorted(set(_LONG_OPTION.findall(parser.format_help())))
    for argument in arguments:
        if argument == "--":
            return
        option = argument.partition("=")[0]
        # argparse accepts the start of an option.
        is_valid = any(valid.startswith(option) for valid in valid_options)
        if option.startswith("--") and not is_valid:
            parser.error(f"unknown option {safe_repr(option)}.{near_name(option, valid_options)}")


_LONG_OPTION = re.compile("--[a-z-]+")


def deployment_settings(options: argparse.Namespace, *, check: bool = False) -> DeploymentSettings:
    """Return the settings of the deployment given by options; the default home is DAGSTER_HOME or
    ``HOME``.

    Args:
        options: Parsed options.
        check: If True, a release folder given by an option must exist.

    Raises:
        ConfigError: If it does not exist, or a location is invalid.
    """
    from privacy_assets.gate.deployment import DeploymentSettings

    private = getattr(options, "private", None)
    settings = DeploymentSettings(home=options.home, releases=options.releases, private=private)
    if settings.folder("releases") is None:
        default = Path(os.environ.get("DAGSTER_HOME") or HOME) / "releases"
        return settings.model_copy(update={"releases": str(default)})
    is_set_by_option = options.releases or options.home
    if check and is_set_by_option and not settings.release_folder().is_dir():
        raise ConfigError(
            f"{settings.release_folder()}: no such release folder. Fix: check the path of"
            " --releases or --home."
        )
    return settings


def private_of(settings: DeploymentSettings) -> Location | None:
    """Return the private folder of a deployment.

    Args:
        settings: Settings of the deployment.

    Returns:
        The folder, or None if it is not set, as for readers of an object store.
    """
    try:
        return settings.private_folder()
    except ConfigError:
        return None


def say(*lines: str) -> None:
    """Print lines to standard output.

    Args:
        *lines: Lines without line breaks at their ends.
    """
    sys.stdout.write("\n".join(lines) + "\n")


_COLORS = {"pass": 32, "fail": 31, "undecided": 33}  # green, red and yellow, as codes of terminals
_MIN_COLUMNS = 60  # of a line on a terminal
_MAX_COLUMNS = 100


def terminal_columns() -> int:
    """Return the width of lines: that of the terminal within limits, or 80 if the output is not a
    terminal.
    """
    from privacy_assets.report.text import COLUMNS  # slow to import

    if not sys.stdout.isatty():
        return COLUMNS
    columns = shutil.get_terminal_size().columns
    return min(max(columns, _MIN_COLUMNS), _MAX_COLUMNS)


def report_text(report: Report, options: argparse.Namespace) -> str:
    """Return a report for the console. On a terminal that allows colors, the verdict is colored.

    Args:
        report: Report.
        options: Parsed options with ``verbose``, which lists limits that pass.
    """
    text = report.to_text(columns=terminal_columns(), every_limit=options.verbose)
    if not _has_colors():
        return text
    label = report.label.upper()
    color = _COLORS["undecided" if report.is_part else report.verdict]
    return f"\033[1;{color}m{label}\033[0m{text.removeprefix(label)}"


def _has_colors() -> bool:
    """Return True if the output is a terminal that allows colors."""
    if not sys.stdout.isatty():
        return False
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _guarded(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command, and convert file errors to ConfigError."""
    try:
        return run(options)
    except (BrokenPipeError, FolderError):
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise ConfigError(f"{error.filename}: cannot be used ({error.strerror}).") from None


_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def parts(option: str, texts: Sequence[str]) -> list[str]:
    """Split each string at commas as a line of CSV; parts that contain a comma are quoted.

    Args:
        option: Name of the option without hyphens, for messages.
        texts: Values of the option.

    Raises:
        ConfigError: If a double quote is not closed.
    """
    fields: list[str] = []
    try:
        for text in texts:
            # one reader per string, so that an unclosed quote does not continue in the next one
            reader = csv.reader([text], skipinitialspace=True, strict=True)
            fields += next(reader, [])
    except csv.Error:
        raise ConfigError(f"--{option}: a double quote is not closed. Fix: close it.") from None
    return fields


def read_data(options: argparse.Namespace) -> tuple[Table, np.ndarray | None]:
    """Read --data.

    Args:
        options: Parsed options.

    Returns:
        The table without the column --subject, and the subject code of each row, int64 (n_rows,).
        The codes are None without --subject.

    Raises:
        InputError: If the table is invalid.
        ConfigError: If an option is invalid.
    """
    from privacy_assets.tables.table import subject_codes_of

    table = read_private(options)
    return table.without_subject(), subject_codes_of([table])


def read_private(options: argparse.Namespace) -> Table:
    """Read --data, with the column --subject.

    Args:
        options: Parsed options.

    Raises:
        InputError: If the table is invalid.
        ConfigError: If an option is invalid.
    """
    from privacy_assets.tables.canonical import canonical_table

    return canonical_table(options.data, declared_columns(options), where=options.data)


def declared_columns(options: argparse.Namespace) -> Declared:
    """Return the declarations of columns given as options.

    Args:
        options: Parsed options. Commands may lack some of them.

    Raises:
        ConfigError: If an option is invalid.
    """
    from privacy_assets.tables.declared import Declared

    return Declared.of_arguments(declarations(options))


def declarations(options: argparse.Namespace) -> dict[str, Any]:
    """Return the declarations of columns given as options, as arguments of ``evaluate``.

    Args:
        options: Parsed options. Commands may lack some of them.

    Raises:
        ConfigError: If an option has another form.
    """
    return {name: declaration.value(options) for name, declaration in DECLARATIONS.items()}


class Declaration(NamedTuple):
    """Options for one declaration of columns.

    Attributes:
        options: Names of the options.
        value: Returns the declaration of parsed options. None: there is none.
    """

    options: tuple[str, ...]
    value: Callable[[argparse.Namespace], Any]


def _subject(options: argparse.Namespace) -> str | dict[str, Any] | None:
    if options.exact_ids and not options.subject:
        raise ConfigError(
            "--exact-ids needs --subject, the column that identifies people. Fix: pass both, or"
            " neither."
        )
    if getattr(options, "each_row", False):
        if options.subject:
            raise ConfigError("--each-row and --subject exclude each other. Fix: pass one of them.")
        return {"each_row": True}
    if options.exact_ids:
        return {"column": options.subject, "exact": True}
    subject: str | None = options.subject
    return subject


def _kinds(options: argparse.Namespace) -> dict[str, Any]:
    """Return kinds by column. The name of a column may contain an equals sign."""
    from privacy_assets.tables.meaning import declared_by_option

    declared: dict[str, Any] = {}
    for pair in parts("kind", getattr(options, "kind", [])):
        column, sign, text = pair.rpartition("=")
        if not sign or not column:
            raise ConfigError(f"--kind {pair}: expected COLUMN=KIND or COLUMN=KIND:FORMAT.")
        declared[column] = declared_by_option(text)
    return declared


def _missing(options: argparse.Namespace) -> dict[str, list[str]]:
    lists = _by_column("missing", getattr(options, "missing", []))
    return {name: parts("missing", [text]) for name, text in lists.items()}


def _timezone(options: argparse.Namespace) -> str | None:
    timezone: str | None = getattr(options, "timezone", None)
    return timezone


def _read(options: argparse.Namespace) -> dict[str, str]:
    values = {}
    for name in ("sep", "encoding"):
        value = getattr(options, name, None)
        if value is not None:
            values[name] = value
    return values


def _snapshots(options: argparse.Namespace) -> bool:
    return bool(getattr(options, "snapshots", False))


def _drop(options: argparse.Namespace) -> list[str]:
    return parts("drop", options.drop)


def _new_values(options: argparse.Namespace) -> dict[str, str]:
    return _by_column("new-values", getattr(options, "new_values", []), "COLUMN=REASON")


def _allowed_values(options: argparse.Namespace) -> dict[str, list[str]]:
    lists = _by_column("allowed-values", getattr(options, "allowed_values", []))
    allowed = {}
    for name, text in lists.items():
        allowed[name] = list(map(str.strip, parts("allowed-values", [text])))
    return allowed


# by field of Declared; some fields have no option
DECLARATIONS: Mapping[str, Declaration] = {
    "subject": Declaration(("--subject", "--exact-ids", "--each-row"), _subject),
    "kinds": Declaration(("--kind",), _kinds),
    "missing": Declaration(("--missing",), _missing),
    "timezone": Declaration(("--timezone",), _timezone),
    "read": Declaration(("--sep", "--encoding"), _read),
    "snapshots": Declaration(("--snapshots",), _snapshots),
    "drop": Declaration(("--drop",), _drop),
    "new_values": Declaration(("--new-values",), _new_values),
    "allowed_values": Declaration(("--allowed-values",), _allowed_values),
}


def options_of(*names: str) -> list[str]:
    """Return the names of the options for declarations of columns.

    Args:
        *names: Fields of :class:`.Declared`.
    """
    options: list[str] = []
    for name in names:
        options.extend(DECLARATIONS[name].options)
    return options


# options on how tables are read
READING = options_of("kinds", "missing", "timezone", "read", "snapshots", "drop")
# all declarations except the subject, for which each command has its own help
COLUMNS = options_of(*(name for name in DECLARATIONS if name != "subject"))


def _by_column(option: str, pairs: Sequence[str], form: str = "COLUMN=A,B") -> dict[str, str]:
    """Parse the values of a repeatable option.

    Args:
        option: Name of the option without hyphens.
        pairs: Texts of the form COLUMN=TEXT.
        form: Description of this form in messages.

    Returns:
        The text of each column.

    Raises:
        ConfigError: If a string has another form, or a column is repeated.
    """
    texts: dict[str, str] = {}
    for pair in pairs:
        column, sign, text = pair.partition("=")
        if not sign or not column or column in texts:
            raise ConfigError(f"--{option} {pair}: expected {form}, once for each column.")
        texts[column] = text
    return texts


def settings(pairs: Sequence[str], option: str = "set") -> dict[str, Any]:
    """Parse KEY=VALUE with YAML values.

    Args:
        pairs: Values of the option.
        option: Name of the option without hyphens, for messages.

    Raises:
        ConfigError: If a string has another form, or a value is not YAML.
    """
    from privacy_assets.infra.settings import load_yaml

    values: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--{option} {safe_repr(pair)}: expected KEY=VALUE.")
        documents = load_yaml(text, f"--{option} {safe_repr(pair)}")
        values[key] = _with_numbers(documents[0]) if documents else None
    return values


def _with_numbers(value: Any) -> Any:
    """Convert strings such as 1e-5 to numbers, which YAML 1.1 reads as strings."""
    if isinstance(value, list):
        return [_with_numbers(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _with_numbers(entry) for key, entry in value.items()}
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    return value


@contextmanager
def workers(options: argparse.Namespace) -> Iterator[None]:
    """Use the Ray cluster of --ray, if given, in the ``with`` block.

    Args:
        options: Parsed options. Commands may lack --ray.

    Raises:
        ConfigError: If there is no such cluster.
    """
    if getattr(options, "ray", None) is None:
        yield
        return
    from privacy_assets.infra.parallel import on_ray

    with on_ray(options.ray):
        yield


@contextmanager
def leased(options: argparse.Namespace, *, used: bool = True) -> Iterator[str]:
    """Yield the name of the device of --device.

    Args:
        options: Parsed options.
        used: If True, lease the device for the ``with`` block. Dagster steps respect the lease.
    """
    from privacy_assets.infra.devices import lease_device, pick_device

    if not used:
        yield pick_device(options.device)
        return
    with lease_device(device=options.device, on_wait=options.progress) as device:
        yield device


def check_out(*paths: str | None) -> None:
    """Check that each path, if given, can be written as a file.

    Args:
        *paths: Values of options. None: the option is not set. "-": standard output.

    Raises:
        ConfigError: If a path is a folder, or its folder does not exist.
    """
    for path in paths:
        if not path or path == "-":
            continue
        if Path(path).is_dir():
            raise ConfigError(f"{path}: this is a folder. Fix: name a file.")
        if not Path(path).resolve().parent.is_dir():
            raise ConfigError(f"{path}: the folder does not exist.")


def write_json(path: str, data: Mapping[str, Any]) -> None:
    """Write a JSON file that only the current user can read.

    Args:
        path: File, or "-" for standard output.
        data: JSON-compatible values.

    Raises:
        OSError: If it cannot be written.
    """
    from privacy_assets.infra.files import put_atomic

    text = json.dumps(data, indent=2, allow_nan=False)
    if path == "-":
        say(text)
        return
    put_atomic(Path(path), text.encode())
