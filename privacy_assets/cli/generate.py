"""The command ``privacy-assets generate``: write a synthetic table.

The table is not judged: no attack was run on it, and it can repeat private rows. Keep people aside
who are not in --data (a holdout), and evaluate the table with `privacy-assets evaluate` before you
share it. Only your user can read the files and folders that are written. --list lists the
generators instead, with the packages that are missing here.

exit status:
  0  the table was written, or the generators were listed
  2  no table was written: bad input, bad settings, or the generator failed

examples:
  privacy-assets generate --data train.parquet --out synthetic.parquet
  privacy-assets generate --list
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from privacy_assets.cli.options import (
    COLUMNS,
    Command,
    Commands,
    check_out,
    declared_columns,
    read_private,
    say,
    settings,
)
from privacy_assets.errors import ConfigError
from privacy_assets.infra import folders
from privacy_assets.infra.files import fix_of, private_folder, put_atomic

if TYPE_CHECKING:
    from privacy_assets.generators import FittedGenerator, GeneratorInfo
    from privacy_assets.generators.base import Generator
    from privacy_assets.tables.column_rule import ColumnRule
    from privacy_assets.tables.table import Table

_RULES = "threshold_rule.bin"  # in the folder of a saved model
# Options that do not apply to a saved model.
_TRAINING = (
    "--generator",
    "--set",
    "--subject",
    "--exact-ids",
    *COLUMNS,
    "--device",
    "--checkpoint",
    "--model",
)
_WIDTH = 96  # characters in a line of the list
_HEADER = ["name", "runs here", "same seed, same rows", "license", "extra"]


class Sampler(NamedTuple):
    """A trained generator, and how to sample from it.

    Attributes:
        fitted: The trained generator.
        rules: Threshold rule of each column of its training table.
        n_rows: Number of rows to sample.
    """

    fitted: FittedGenerator
    rules: Mapping[str, ColumnRule]
    n_rows: int


def add_generate(commands: Commands) -> None:
    """Add the command to the command line."""
    what = "train a generator on a private table, and write synthetic rows"
    command = commands.add("generate", _generate, what, __doc__)
    _add_training(command)
    command.option(
        "--rows", "number of synthetic rows (default: as many as in --data)", type=int, metavar="N"
    )
    seed = (
        "seed of all random draws (default 0; for privacy noise: a random secret, as your own"
        " must be)"
    )
    command.option("--seed", seed, default=None, metavar="S")
    out = (
        "synthetic table, .parquet (keeps types as pandas reads them) or .csv; an existing file"
        " is replaced"
    )
    command.option("--out", out, metavar="FILE")
    command.option("--json", "with --list: print JSON", action="store_true")
    command.option("--quiet", "show only warnings on standard error, without progress")


def _add_training(command: Command) -> None:
    source = command.add_mutually_exclusive_group(required=True)
    data = "the private table to train on: a Parquet or CSV file, a folder or a glob"
    source.add_argument("--data", metavar="FILE", help=data)
    loaded = (
        "sample from a folder saved by --model; its author must be trusted, because a model can"
        " name a program to run"
    )
    source.add_argument("--from-model", metavar="FOLDER", type=Path, help=loaded)
    source.add_argument("--list", action="store_true", help="list the generators")
    generator = (
        "name of a generator (see --list), or MODULE:FUNCTION found on PYTHONPATH; default: that"
        " of `run`"
    )
    command.option("--generator", generator)
    command.common("--set")
    command.option(
        "--subject",
        "column that identifies subjects; left out of training and of the synthetic table",
    )
    command.common("--exact-ids", *COLUMNS)
    device = "for generators that train on torch: auto, cpu, cuda, cuda:N or mps (default auto)"
    command.option("--device", device, default=None, metavar="NAME")
    checkpoint = (
        "folder for checkpoints, from which interrupted training resumes; as private as the table"
    )
    command.option("--checkpoint", checkpoint)
    model = (
        "save the trained generator in this new folder, for --from-model; as private as the table"
    )
    command.option("--model", model, metavar="FOLDER", type=Path)


def _generate(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    _check(options)
    notify = options.progress
    sampler = _load(options) if options.from_model else _train(options)
    notify(f"drawing {sampler.n_rows:,} rows")
    _write(sampler, options)
    n_columns = len(sampler.fitted.schema.columns)
    notify(f"wrote {sampler.n_rows:,} rows of {n_columns} columns to {options.out}")
    _warn(sampler.fitted, options)
    return 0


def _load(options: argparse.Namespace) -> Sampler:
    from privacy_assets.generators import load_generator
    from privacy_assets.tables.column_rule import load_rules

    fitted = load_generator(options.from_model)
    rules = load_rules(options.from_model / _RULES)
    return Sampler(fitted, rules, options.rows)


def _train(options: argparse.Namespace) -> Sampler:
    from privacy_assets.generators import build_generator
    from privacy_assets.generators.registry import DEFAULT_GENERATOR
    from privacy_assets.infra.devices import pick_device
    from privacy_assets.policy import MIN_HOLDERS
    from privacy_assets.tables.threshold_rule import outside_guarantee, without_rare_values

    generator = build_generator(options.generator or DEFAULT_GENERATOR, settings(options.set))
    device = options.device or ("auto" if "torch" in generator.modules else "cpu")
    pick_device(device)  # fails before reading data if the device does not exist
    tables = {"train": read_private(options)}
    declared = declared_columns(options)
    private = without_rare_values(tables, MIN_HOLDERS, declared, generator.bounded_columns)["train"]
    for note in private.notes:
        options.progress(note)
    fitted = _fit(generator, private, device, options)
    if fitted.privacy.epsilon is not None:
        outside = (*fitted.privacy.outside_guarantee, *outside_guarantee(private.rules))
        fitted.privacy = replace(fitted.privacy, outside_guarantee=outside)
    if options.model:
        _save(fitted, private.rules, options.model.resolve())
        options.progress(
            f"saved the trained generator in {options.model}: keep it as private as the table"
        )
    n_rows = len(private) if options.rows is None else options.rows
    return Sampler(fitted, private.rules, n_rows)


def _fit(
    generator: Generator, private: Table, device: str, options: argparse.Namespace
) -> FittedGenerator:
    """Train a generator.

    Args:
        generator: Generator.
        private: The private table, with the column of its subjects.
        device: See :func:`.matching_devices`.
        options: Parsed options.

    Raises:
        ConfigError: If the generator cannot create allowed new values, or its seed would be lost.
        InputError: If a CSV file cannot represent the table.
    """
    from privacy_assets.infra.devices import lease_device
    from privacy_assets.tables.table import subject_codes_of
    from privacy_assets.tables.writing import table_bytes

    notify = options.progress
    train = private.for_training()
    subject_codes = subject_codes_of([private])
    if train.schema.generated and not generator.creates_values:
        raise ConfigError(
            f"--new-values: {generator.name} copies the values of real rows. Fix: name a custom"
            " generator (MODULE:FUNCTION), or leave the column out with --drop."
        )
    if _kind(options.out) == "csv":  # fails before training if CSV cannot represent the table
        table_bytes(train, "csv", where=options.data)
    if options.checkpoint:
        private_folder(options.checkpoint)
    notify(f"training {generator.name} on {len(train):,} rows of {len(train.columns)} columns")
    seed = _seed(generator, options)
    with lease_device(device=device, on_wait=notify) as leased:
        return generator.fit(
            train,
            seed=seed,
            device=leased,
            progress=notify,
            checkpoint=options.checkpoint,
            subject_codes=subject_codes,
        )


def _seed(generator: Generator, options: argparse.Namespace) -> int:
    """Return the seed of --seed, or its default: 0, or a random number for privacy noise.

    Raises:
        ConfigError: If a resumed run would have another random number.
    """
    seed: int | None = options.seed
    if seed is not None:
        return seed
    if not generator.secret_seed:
        return 0
    if options.checkpoint:
        raise ConfigError(
            f"{generator.name}: --checkpoint requires --seed. Fix: pass a large secret random"
            " number."
        )
    seed = secrets.randbits(63)
    options.progress("the seed of the privacy noise is drawn at random, and is not shown")
    return seed


def _save(fitted: FittedGenerator, rules: Mapping[str, ColumnRule], folder: Path) -> None:
    """Save the model and the threshold rule atomically: write a hidden folder next to ``folder``,
    then rename it.
    """
    from privacy_assets.tables.column_rule import save_rules

    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        fitted.save(staging)
        save_rules(staging / _RULES, rules)
        os.replace(staging, folder)
        with folders.opened(folder.parent) as parent:
            folders.sync(parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write(sampler: Sampler, options: argparse.Namespace) -> None:
    from privacy_assets.tables.writing import table_bytes

    where = "the synthetic table"
    table = sampler.fitted.sample(sampler.n_rows, seed=options.seed or 0)
    table = table.without_rare(sampler.rules, where=where)
    data = table_bytes(table, _kind(options.out), where=where)
    try:
        put_atomic(Path(options.out), data)
    except OSError as error:
        raise ConfigError(
            f"{options.out}: cannot be written ({error.strerror}).{fix_of(error)}"
        ) from None


def _warn(fitted: FittedGenerator, options: argparse.Namespace) -> None:
    lines = [f"privacy budget: {fitted.privacy}"]
    if not fitted.generator.repeatable:
        lines.append(f"{fitted.generator.name} does not guarantee the same rows for the same seed")
    lines += [
        f"NOT EVALUATED: {options.out} can repeat private rows, and no attack was run on it."
        " Before you share it, run",
        f"  {shlex.join(_evaluate_command(options))}",
        "where HOLDOUT contains rows of other people of the same population.",
    ]
    sys.stderr.write("\n".join(lines) + "\n")


def _evaluate_command(options: argparse.Namespace) -> list[str]:
    """Return the words of the command that evaluates the synthetic table."""
    words = ["privacy-assets", "evaluate", "--train", options.data or "TRAIN"]
    words += ["--holdout", "HOLDOUT", "--synthetic", options.out]
    if options.subject:
        words += ["--subject", options.subject]
    if options.exact_ids:
        words.append("--exact-ids")
    for option in COLUMNS:
        value = _value_of(options, option)
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            for entry in value:
                words += [option, entry]
        elif value:
            words += [option, value]
    return words


def _value_of(options: argparse.Namespace, option: str) -> Any:
    """Return the parsed value of an option such as "--new-values"."""
    return getattr(options, option.removeprefix("--").replace("-", "_"))


def _check(options: argparse.Namespace) -> None:
    """Check the options before reading data.

    Raises:
        ConfigError: If one is invalid, or they do not fit together.
    """
    if options.rows is not None and options.rows < 1:
        raise ConfigError(f"--rows {options.rows}: must be at least 1.")
    if options.seed is not None and options.seed < 0:
        raise ConfigError(f"--seed {options.seed}: must be at least 0.")
    if options.from_model:
        _check_from_model(options)
    if options.json:
        raise ConfigError("--json requires --list.")
    if options.out is None:
        raise ConfigError(
            "--out is missing. Fix: name the file of the synthetic table, for example"
            " synthetic.parquet."
        )
    _check_folders(options)
    _check_out(Path(options.out), options)


def _check_from_model(options: argparse.Namespace) -> None:
    for option in _TRAINING:
        if _value_of(options, option):
            raise ConfigError(
                f"{option} cannot be combined with --from-model, because it"
                " affects training only. Fix: remove it."
            )
    if options.rows is None:
        raise ConfigError("--from-model requires --rows.")


def _check_folders(options: argparse.Namespace) -> None:
    model = options.model
    checkpoint = options.checkpoint
    if checkpoint and checkpoint.exists() and not checkpoint.is_dir():
        raise ConfigError(
            f"{checkpoint}: this is not a folder. Fix: name a folder for --checkpoint."
        )
    if not model:
        return
    if model.exists() and (not model.is_dir() or any(model.iterdir())):
        raise ConfigError(f"{model}: exists already. Fix: name a new folder for --model.")
    if checkpoint and checkpoint.resolve() == model.resolve():
        raise ConfigError(
            f"{model}: --model and --checkpoint name the same folder. Fix: name two folders."
        )
    _check_writable(model)


def _check_out(out: Path, options: argparse.Namespace) -> None:
    """Check that the table can be written and would not overwrite or join input, model or
    checkpoint.

    Raises:
        ConfigError: If it cannot.
    """
    from privacy_assets.tables.folders import SUFFIXES

    if out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{out}: unknown suffix. Fix: name a .parquet or .csv file.")
    check_out(options.out)
    for folder in (options.from_model, options.model, options.checkpoint):
        if folder and out.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{out}: this is inside {folder}. Fix: write the table elsewhere.")
    if options.data and _is_in_data(out, options.data):
        raise ConfigError(
            f"{out}: this is, or would be read as, a part of --data. Fix: write the table"
            " elsewhere."
        )
    _check_writable(out)


def _is_in_data(out: Path, data: str) -> bool:
    """Return True if ``data`` (a file, a folder or a glob) includes ``out``, or would once it is
    written.
    """
    from privacy_assets.infra.storage import local_path
    from privacy_assets.tables.files import table_files

    if out.exists():
        for file in table_files(data):
            local = local_path(file)
            if local is not None and out.samefile(local):
                return True
    path = Path(os.path.realpath(out))
    pattern = Path(os.path.realpath(data))
    if pattern.is_dir():
        return path.parent == pattern
    return path.match(str(pattern))


def _check_writable(path: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from None


def _kind(out: str) -> str:
    from privacy_assets.tables.folders import SUFFIXES

    return SUFFIXES[Path(out).suffix.lower()]


def _list(options: argparse.Namespace) -> int:
    from privacy_assets.generators import GENERATORS, generator_info
    from privacy_assets.report.text import aligned

    generators = generator_info()
    distributions = {}
    for name, extension in GENERATORS.of_others().items():
        distributions[name] = str(extension)
    if options.json:
        facts = {
            "generators": [info.to_json() for info in generators],
            "of_other_packages": distributions,
        }
        say(json.dumps(facts, indent=2, allow_nan=False))
        return 0
    header, rule, *rows = aligned([_HEADER, *map(_row, generators)])
    say(header, rule)
    for row, info in zip(rows, generators, strict=True):
        say(row, *_details(info))
    for name, distribution in distributions.items():
        say(f"{name} ({distribution})")
    return 0


def _row(info: GeneratorInfo) -> list[str]:
    from privacy_assets.report.words import NOTHING

    runs_here = "yes"
    if not info.available:
        runs_here = "no"
    elif info.separate_environment:
        runs_here = "elsewhere"
    repeats = "yes" if info.repeatable else "not promised"
    return [info.name, runs_here, repeats, info.license, info.extra or NOTHING]


def _details(info: GeneratorInfo) -> Iterator[str]:
    """Yield the lines below the row of a generator."""
    texts = [info.summary]
    options = []
    for name in info.required:
        options.append(f"{name} (required)")
    for name, value in info.settings.items():
        has_default = value is not None and value != ()
        options.append(f"{name} ({json.dumps(value)})" if has_default else name)
    if options:
        texts.append(f"--set: {', '.join(options)}")
    if info.install:
        texts.append(f"Needs {', '.join(info.missing)}: {info.install}")
    if info.separate_environment:
        texts.append(
            f"Needs a separate environment, whose Python is a setting: {info.separate_environment}"
        )
    for text in texts:
        for line in textwrap.wrap(text, _WIDTH, break_long_words=False):
            yield f"    {line}"
