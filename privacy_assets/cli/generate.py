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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.options import (
    COLUMNS,
    READING,
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
    from privacy_assets.tables.threshold_rule import ColumnRule

_RULES = "threshold_rule.bin"  # in the folder of a saved model
# Options that do not apply to a saved model.
_TRAINING = ("generator", "set", "subject", "exact_ids", *COLUMNS, "device", "checkpoint", "model")
_WIDTH = 96  # characters in a line of the list


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
    own = (
        "name of a generator (see --list), or MODULE:FUNCTION found on PYTHONPATH; default: that"
        " of `run`"
    )
    command.option("--generator", own)
    command.common("--set")
    command.option(
        "--subject",
        "column that identifies subjects; left out of training and of the synthetic table",
    )
    command.common("--exact-ids", *READING, "--drop", "--new-values", "--allowed-values")
    device = "for generators that train on torch: auto, cpu, cuda, cuda:N or mps (default auto)"
    command.option("--device", device, default=None, metavar="NAME")
    kept = (
        "folder for checkpoints, from which interrupted training resumes; as private as the table"
    )
    command.option("--checkpoint", kept)
    model = (
        "save the trained generator in this new folder, for --from-model; as private as the table"
    )
    command.option("--model", model, metavar="FOLDER", type=Path)


def _generate(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    _check(options)
    notify = options.progress
    fitted, rules, rows = _loaded(options) if options.from_model else _trained(options)
    notify(f"drawing {rows:,} rows")
    _write(fitted, rules, rows, options)
    notify(f"wrote {rows:,} rows of {len(fitted.schema.columns)} columns to {options.out}")
    _warn(fitted, options)
    return 0


def _loaded(options: argparse.Namespace) -> tuple[FittedGenerator, Mapping[str, ColumnRule], int]:
    from privacy_assets.generators import load_generator
    from privacy_assets.tables.threshold_rule import load_rules

    return load_generator(options.from_model), load_rules(options.from_model / _RULES), options.rows


def _trained(options: argparse.Namespace) -> tuple[FittedGenerator, Mapping[str, ColumnRule], int]:
    from privacy_assets.generators import build_generator
    from privacy_assets.generators.registry import DEFAULT_GENERATOR
    from privacy_assets.infra.devices import lease_device, pick_device
    from privacy_assets.policy import MIN_HOLDERS
    from privacy_assets.tables.canonical import subject_codes_of, without_rare_values
    from privacy_assets.tables.threshold_rule import outside_guarantee
    from privacy_assets.tables.writing import table_bytes

    generator = build_generator(options.generator or DEFAULT_GENERATOR, settings(options.set))
    wanted = options.device or ("auto" if "torch" in generator.modules else "cpu")
    notify = options.progress
    pick_device(wanted)  # fails before reading data if the device does not exist
    tables = {"train": read_private(options)}
    declared = declared_columns(options)
    private = without_rare_values(tables, MIN_HOLDERS, declared, generator.bounded_columns)["train"]
    for note in private.notes:
        notify(note)
    train = private.for_training()
    subject_codes = subject_codes_of([private])
    if train.schema.generated and not generator.creates_values:
        text = (
            f"--new-values: {generator.name} copies the values of real rows. Fix: name a custom"
            " generator"
        )
        raise ConfigError(f"{text} (MODULE:FUNCTION), or leave the column out with --drop.")
    if _kind(options.out) == "csv":  # fails before training if CSV cannot represent the table
        table_bytes(train, "csv", where=options.data)
    if options.checkpoint:
        private_folder(options.checkpoint)
    notify(f"training {generator.name} on {len(train):,} rows of {len(train.columns)} columns")
    seed = options.seed
    if generator.secret_seed and seed is None:
        if options.checkpoint:
            raise ConfigError(
                f"{generator.name}: --checkpoint requires --seed. Fix: pass a large secret"
                " random number."
            )
        seed = secrets.randbits(63)
        notify("the seed of the privacy noise is drawn at random, and is not shown")
    with lease_device(device=wanted, on_wait=notify) as device:
        fitted = generator.fit(
            train,
            seed=seed or 0,
            device=device,
            progress=notify,
            checkpoint=options.checkpoint,
            subject_codes=subject_codes,
        )
    if fitted.privacy.epsilon is not None:
        outside = (*fitted.privacy.outside_guarantee, *outside_guarantee(private.rules))
        fitted.privacy = replace(fitted.privacy, outside_guarantee=outside)
    if options.model:
        _save(fitted, private.rules, options.model.resolve())
        notify(f"saved the trained generator in {options.model}: keep it as private as the table")
    return fitted, private.rules, len(train) if options.rows is None else options.rows


def _save(fitted: FittedGenerator, rules: Mapping[str, ColumnRule], folder: Path) -> None:
    """Save the model and the threshold rule atomically: write a hidden folder next to ``folder``,
    then rename it.
    """
    from privacy_assets.tables.threshold_rule import save_rules

    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        fitted.save(staging)
        save_rules(staging / _RULES, rules)
        os.replace(staging, folder)
        with folders.opened(folder.parent) as parent:
            folders.sync(parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write(
    fitted: FittedGenerator, rules: Mapping[str, ColumnRule], rows: int, options: argparse.Namespace
) -> None:
    from privacy_assets.tables.roles import check_published
    from privacy_assets.tables.writing import table_bytes

    table = fitted.sample(rows, seed=options.seed or 0).without_rare(rules)
    check_published(table, rules, where="the synthetic table")
    data = table_bytes(table, _kind(options.out), where="the synthetic table")
    try:
        put_atomic(Path(options.out), data)
    except OSError as error:
        raise ConfigError(
            f"{options.out}: cannot be written ({error.strerror}).{fix_of(error)}"
        ) from None


def _warn(fitted: FittedGenerator, options: argparse.Namespace) -> None:
    judge = [
        "privacy-assets",
        "evaluate",
        "--train",
        options.data or "TRAIN",
        "--holdout",
        "HOLDOUT",
    ]
    judge += [
        "--synthetic",
        options.out,
        *(["--subject", options.subject] if options.subject else []),
    ]
    judge += ["--exact-ids"] if options.exact_ids else []
    for option in COLUMNS:
        given = getattr(options, option)
        if given is True:
            judge.append(f"--{option}")
            continue
        listed = given if isinstance(given, list) else [given] if given else []
        judge += [word for value in listed for word in (f"--{option.replace('_', '-')}", value)]
    lines = [
        f"privacy budget: {fitted.privacy}",
        f"NOT EVALUATED: {options.out} can repeat private rows, and no attack was run on it."
        " Before you share it, run",
        f"  {shlex.join(judge)}",
        "where HOLDOUT contains rows of other people of the same population.",
    ]
    if not fitted.generator.repeatable:
        lines.insert(
            1, f"{fitted.generator.name} does not guarantee the same rows for the same seed"
        )
    sys.stderr.write("\n".join(lines) + "\n")


# --- checks before training
# -------------------------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> None:
    if options.rows is not None and options.rows < 1:
        raise ConfigError(f"--rows {options.rows}: must be at least 1.")
    if options.seed is not None and options.seed < 0:
        raise ConfigError(f"--seed {options.seed}: must be at least 0.")
    if options.from_model:
        given = [name.replace("_", "-") for name in _TRAINING if getattr(options, name)]
        if given:
            raise ConfigError(
                f"--{given[0]} cannot be combined with --from-model, because it affects"
                " training only. Fix: remove it."
            )
        if options.rows is None:
            raise ConfigError("--from-model requires --rows.")
    if options.json:
        raise ConfigError("--json requires --list.")
    if options.out is None:
        raise ConfigError(
            "--out is missing. Fix: name the file of the synthetic table, for example"
            " synthetic.parquet."
        )
    _check_folders(options)
    _check_out(Path(options.out), options)


def _check_folders(options: argparse.Namespace) -> None:
    model, checkpoint = options.model, options.checkpoint
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
    if options.data and _is_part(out, options.data):
        raise ConfigError(
            f"{out}: this is, or would be read as, a part of --data. Fix: write the table"
            " elsewhere."
        )
    _check_writable(out)


def _is_part(out: Path, data: str) -> bool:
    """Return True if ``data`` (a file, a folder or a glob) includes ``out``, or would once it is
    written.
    """
    from privacy_assets.tables.files import table_files

    if out.exists() and any(
        isinstance(file, Path) and out.samefile(file) for file in table_files(data)
    ):
        return True
    place, pattern = Path(os.path.realpath(out)), Path(os.path.realpath(data))
    return place.parent == pattern if pattern.is_dir() else place.match(str(pattern))


def _check_writable(path: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from None


def _kind(out: str) -> str:
    from privacy_assets.tables.folders import SUFFIXES

    return SUFFIXES[Path(out).suffix.lower()]


# --- list
# --------------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    from privacy_assets.generators import generator_info
    from privacy_assets.report.text import aligned

    found = generator_info()
    if options.json:
        say(
            json.dumps(
                {"generators": [info.to_json() for info in found]}, indent=2, allow_nan=False
            )
        )
        return 0
    head = ["name", "runs here", "same seed, same rows", "licence", "extra"]
    top, rule, *rows = aligned([head, *(_row(info) for info in found)])
    say(
        top,
        rule,
        *(line for row, info in zip(rows, found, strict=True) for line in (row, *_details(info))),
    )
    return 0


def _row(info: GeneratorInfo) -> list[str]:
    from privacy_assets.report.words import NOTHING

    repeats = "yes" if info.repeatable else "not promised"
    here = "no" if not info.available else "elsewhere" if info.separate_environment else "yes"
    return [info.name, here, repeats, info.licence, info.extra or NOTHING]


def _details(info: GeneratorInfo) -> list[str]:
    lines = [info.summary]
    given = [
        *(f"{name} (required)" for name in info.required),
        *(_default(*pair) for pair in info.settings.items()),
    ]
    if given:
        lines.append(f"--set: {', '.join(given)}")
    if info.install:
        lines.append(f"Needs {', '.join(info.missing)}: {info.install}")
    if info.separate_environment:
        lines.append(
            f"Needs a separate environment, whose Python is a setting: {info.separate_environment}"
        )
    return [
        f"    {part}"
        for line in lines
        for part in textwrap.wrap(line, _WIDTH, break_long_words=False)
    ]


def _default(name: str, value: Any) -> str:
    return name if value is None or value == () else f"{name} ({json.dumps(value)})"
