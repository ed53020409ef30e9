"""Entry point of the command line, with the commands ``evaluate``, ``policy`` and ``demo``."""

from __future__ import annotations

import argparse
import codecs
import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.accept import add_accept
from privacy_assets.cli.audit import add_audit
from privacy_assets.cli.generate import add_generate
from privacy_assets.cli.inspect import add_inspect
from privacy_assets.cli.keys import add_keys
from privacy_assets.cli.leak_study import add_leak_study
from privacy_assets.cli.log import add_log
from privacy_assets.cli.options import (
    COLUMNS,
    STATUSES,
    YES,
    Command,
    Commands,
    check_out,
    declarations,
    declared_columns,
    leased,
    report_text,
    say,
    settings,
    workers,
    write_json,
)
from privacy_assets.cli.power import add_power
from privacy_assets.cli.prepare import add_prepare
from privacy_assets.cli.prune import add_prune
from privacy_assets.cli.releases import add_releases
from privacy_assets.cli.run import add_run
from privacy_assets.cli.verify import add_verify
from privacy_assets.errors import (
    ConfigError,
    InputError,
    PrivacyAssetsError,
    StepError,
)
from privacy_assets.infra.objects import check_no_credentials
from privacy_assets.infra.progress import Progress, silent, watched
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.version import PACKAGE_VERSION

if TYPE_CHECKING:
    import pandas as pd

    from privacy_assets.report.report import Report

BAD_INPUT = 2
_EXIT = (
    "Exit status: 0 all limits hold, 1 a limit fails, 2 invalid input, 3 no limit"
    " fails, but one is"
    " undecided, no limit applies, or only a part of the policy was evaluated."
)
_LONGEST_VALUE = 80  # characters


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Arguments. None: those of the process.

    Returns:
        The exit status.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    with _showable_output():
        return _main(arguments)


def _main(arguments: Sequence[str]) -> int:
    try:
        for argument in arguments:
            check_no_credentials(argument)  # before argparse, whose messages quote arguments
    except ConfigError as error:
        sys.stderr.write(f"privacy-assets: {error}\n")
        return BAD_INPUT
    commands = _commands()
    if not arguments:
        say(commands.help())
        return YES
    options = commands.parse(arguments)
    try:
        with _standard_input(options), _progress(options) as options.progress:
            _look_for_tables(options)
            status: int = options.run(options)
    except PrivacyAssetsError as error:
        cell = ""
        if getattr(options, "show_values", False):
            cell = _offending(options, error)
        sys.stderr.write(f"privacy-assets: {with_advice(error)}{cell}\n")
        return BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("privacy-assets: interrupted\n")
        return 130
    except Exception as error:  # noqa: BLE001 (libraries can raise anything, with private values in the message)
        sys.stderr.write(f"privacy-assets: {StepError.hiding(error)}\n")
        return BAD_INPUT
    return status


def _progress(options: argparse.Namespace) -> AbstractContextManager[Progress]:
    """Return the context of the progress. Commands without --quiet show none."""
    if getattr(options, "quiet", True):
        return nullcontext(silent)
    return watched()


# Replacements of characters that the encoding of a stream lacks, in a console of Windows or under
# cron.
_PLAIN = {
    "“": '"',
    "”": '"',
    "’": "'",
    "–": "-",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "²": "^2",
    "σ": "sigma",
    "λ": "lambda",
}


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace the characters of an encoding error by those of ``_PLAIN``, and others by backslash
    escapes.
    """
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] in _PLAIN:
        return _PLAIN[error.object[error.start]], error.start + 1
    return codecs.backslashreplace_errors(error)


codecs.register_error("privacy_assets.plain", _plain)


@contextmanager
def _showable_output() -> Iterator[None]:
    """Write characters that the encoding of a standard stream lacks in another form, instead of
    failing.
    """
    before = {}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            before[stream] = stream.errors
    for stream in before:
        stream.reconfigure(errors="privacy_assets.plain")
    try:
        yield
    finally:
        for stream, errors in before.items():
            stream.reconfigure(errors=errors)


def _commands() -> Commands:
    parser = Command(
        prog="privacy-assets",
        description="Privacy gate for the publication of synthetic tables.",
        epilog=f"{_EXIT} For other commands, see COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"privacy-assets {PACKAGE_VERSION}")
    commands = Commands(parser)
    _add_evaluate(commands)
    for add in (
        add_power,
        add_run,
        add_audit,
        add_leak_study,
        add_generate,
        add_verify,
        add_releases,
        add_accept,
        add_log,
        add_prune,
        add_inspect,
        add_keys,
    ):
        add(commands)
    add_prepare(commands)
    _add_demo(commands)
    policy = commands.parsers.add_parser(
        "policy",
        help="print a shipped policy as YAML, a template for your own",
        epilog="Example: privacy-assets policy small > policy.yaml",
    )
    policy.add_argument(
        "name",
        nargs="?",
        choices=("default", "small"),
        default="default",
        help="small: 800 to 1,500 people",
    )
    policy.set_defaults(run=_policy)
    return commands


def _add_evaluate(commands: Commands) -> None:
    text = "measure a synthetic table and evaluate a policy on it"
    example = (
        "privacy-assets evaluate --train train.parquet --holdout holdout.parquet --synthetic"
        " synthetic.parquet"
    )
    command = commands.parsers.add_parser(
        "evaluate",
        help=text,
        description=f"{text.capitalize()}.",
        epilog=f"{_EXIT} Example: {example}",
    )
    command.set_defaults(run=_evaluate)
    trained = (
        "rows the generator was trained on: a Parquet or CSV file, a folder, a glob, or - for"
        " standard input"
    )
    command.option("--train", trained, required=True, metavar="FILE")
    command.option(
        "--holdout",
        "rows of the same population that the generator was not trained on",
        required=True,
        metavar="FILE",
    )
    command.option("--synthetic", "the synthetic table to publish", required=True, metavar="FILE")
    command.option(
        "--reference",
        "further rows of the same population that the generator was not trained on",
        metavar="FILE",
    )
    earlier = "an earlier release about the same people; once for each"
    command.option(
        "--earlier-release",
        earlier,
        dest="earlier_releases",
        metavar="FILE",
        action="append",
        default=[],
    )
    command.option(
        "--subject", "column that identifies people (real tables); default: each row is one person"
    )
    command.common("--exact-ids")
    command.option("--each-row", "state that each row is a different person", action="store_true")
    command.common(*COLUMNS)
    most = (
        "maximum number of rows of the synthetic table; default: ten times the training rows, at"
        " least 1,000,000"
    )
    command.option("--max-synthetic-rows", most, type=int, metavar="N")
    command.option(
        "--metrics", "metrics to run, comma-separated; default: those of the policy", metavar="A,B"
    )
    made_by = (
        "generator of the synthetic table, for metrics that attack it: a name, or MODULE:FUNCTION"
    )
    command.option("--generator", made_by)
    command.common("--set")
    command.option(
        "--policy",
        "policy file, or small for 800 to 1,500 people; default: the default limits",
        metavar="YAML",
    )
    command.option("--seed", "the same seed gives the same report (default 0)")
    command.common("--device", "--ray")
    command.option(
        "--no-embedder",
        "leave out the embedded statistics, so that no embedder is trained",
        action="store_true",
    )
    command.option("--json", "write the results as JSON", metavar="OUT")
    command.option("--html", "write the report as one HTML file", metavar="OUT")
    rows = "write the scores of each synthetic row, such as alpha_m, as a private Parquet file"
    command.option("--row-scores", rows, metavar="OUT")
    command.common("--quiet")
    values = "print the private value, not only the position, in an error about a cell"
    command.option("--show-values", values, action="store_true")
    command.verbose()


def _add_demo(commands: Commands) -> None:
    what = "run the whole pipeline on a real health survey"
    command = commands.parsers.add_parser(
        "demo", help=what, epilog="Example: privacy-assets demo --leak"
    )
    command.set_defaults(run=_demo)
    command.option(
        "--leak", "use a generator that memorizes: publication is blocked", action="store_true"
    )
    command.verbose()


_TABLES = ("train", "holdout", "synthetic", "reference", "earlier_releases", "data", "files")
_SUFFIXES = {b"PAR1": ".parquet", b"\x1f\x8b": ".csv.gz"}  # by the first bytes of a file


@contextmanager
def _standard_input(options: argparse.Namespace) -> Iterator[None]:
    """Store standard input, where it is given as a table (-), as a private file that ends with the
    command.
    """
    from privacy_assets.infra.temp_folders import WorkFolder

    n_inputs = list(_paths(options)).count("-")
    if n_inputs > 1:
        raise ConfigError(
            "standard input (-) can be one table only. Fix: pass the paths of the others."
        )
    if not n_inputs:
        yield
        return
    with WorkFolder() as folder:
        file = folder / "standard input"
        with file.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        path = file.rename(f"{file}{_suffix(file)}")
        _replace_input(options, str(path))
        yield


def _paths(options: argparse.Namespace) -> Iterator[str]:
    """Yield the paths of all tables."""
    for name in _TABLES:
        value = getattr(options, name, None)
        if isinstance(value, str):
            yield value
        elif value is not None:
            yield from value


def _suffix(file: Path) -> str:
    """Return the suffix of a table without a name, by its first bytes."""
    with file.open("rb") as stream:
        start = stream.read(4)
    for magic, suffix in _SUFFIXES.items():
        if start.startswith(magic):
            return suffix
    return ".csv"


def _replace_input(options: argparse.Namespace, path: str) -> None:
    """Replace "-" in the options of tables by a path."""
    for name in _TABLES:
        value = getattr(options, name, None)
        if value == "-":
            setattr(options, name, path)
        elif isinstance(value, list) and "-" in value:
            value[value.index("-")] = path


def _look_for_tables(options: argparse.Namespace) -> None:
    """Raise InputError for a missing table, before loading the libraries that read it."""
    paths = list(_paths(options))
    if paths:
        from privacy_assets.tables.files import table_files  # slow to import

        for path in paths:
            table_files(path)


def _evaluate(options: argparse.Namespace) -> int:
    from privacy_assets.evaluation.evaluate import evaluate

    check_out(options.json, options.html, options.row_scores)
    with workers(options), leased(options, used=not options.no_embedder) as device:
        report = evaluate(
            options.train,
            options.holdout,
            options.synthetic,
            reference=options.reference,
            earlier_releases=options.earlier_releases,
            **declarations(options),
            max_synthetic_rows=options.max_synthetic_rows,
            policy=options.policy,
            metrics=options.metrics,
            generator=_generator(options),
            embedder=not options.no_embedder,
            seed=options.seed,
            device=device,
            progress=options.progress,
        )
    _write(report, options.json, options.html, options.row_scores)
    if options.json != "-":
        say(report_text(report, options))
    if report.is_part and report.verdict == "pass":
        return STATUSES["undecided"]
    return STATUSES[report.verdict]


def _generator(options: argparse.Namespace) -> dict[str, Any] | None:
    if options.generator is None:
        if options.set:
            raise ConfigError("--set requires --generator.")
        return None
    return {"name": options.generator, "settings": settings(options.set)}


def _offending(options: argparse.Namespace, error: PrivacyAssetsError) -> str:
    """Read the cell that ``error`` refers to, for display; "" if it refers to none.

    Errors contain no private values. Only the command line displays them, on request.
    """
    if not isinstance(error, InputError) or error.column is None or error.row is None:
        return ""
    from privacy_assets.tables.reading import read_table

    for role in ("train", "holdout", "synthetic", "reference"):
        path = getattr(options, role)
        if path and error.where in (role, path, f"{role} ({path})"):
            table = read_table(path, declared_columns(options).csv_format)
            (value,) = table[error.column].iloc[[error.row]].tolist()
            return f" The value is {repr(value)[:_LONGEST_VALUE]}"
    return ""


def _write(
    report: Report, json_out: str | None, html_out: str | None, rows_out: str | None
) -> None:
    from privacy_assets.infra.files import fix_of, put_atomic
    from privacy_assets.tables.writing import parquet_bytes

    try:
        if json_out:
            write_json(json_out, report.to_json())
        if html_out:
            put_atomic(Path(html_out), report.to_html().encode())
        if rows_out:
            put_atomic(Path(rows_out), parquet_bytes(_row_scores(report)))
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written: {error.strerror}.{fix_of(error)}"
        ) from None


def _row_scores(report: Report) -> pd.DataFrame:
    """Return the scores of each synthetic row. Columns of several metrics are named METRIC.COLUMN.

    Raises:
        ConfigError: If no metric has scores.
    """
    import pandas as pd

    from privacy_assets.metrics.registry import METRICS

    metrics = METRICS.core_and(report.results)
    scoring = [name for name, metric in metrics.items() if metric.scores_rows]
    results = [report.results[name] for name in scoring if name in report.results]
    if not results:
        raise ConfigError(
            "--row-scores: no metric that scores rows was run. Fix: add"
            f" {' or '.join(scoring)} to --metrics."
        )
    scored = [result for result in results if result.row_scores]
    if not scored:
        first = results[0]
        raise ConfigError(f"--row-scores: {first.metric} has no scores: {first.estimates[0].note}")
    if len(scored) == 1:
        return pd.DataFrame(scored[0].row_scores)
    tables = []
    for result in scored:
        tables.append(pd.DataFrame(result.row_scores).add_prefix(f"{result.metric}."))
    return pd.concat(tables, axis="columns")


def _demo(options: argparse.Namespace) -> int:
    from privacy_assets.dagster.demo import run_demo

    return run_demo(
        leak=options.leak, say=_line, format_report=lambda report: report_text(report, options)
    )


def _policy(options: argparse.Namespace) -> int:
    import yaml

    from privacy_assets.metrics.policies import load_policy

    policy = load_policy(options.name).to_dict()
    sys.stdout.write(yaml.safe_dump(policy, sort_keys=False, width=110, allow_unicode=True))
    return YES


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
