"""The command ``privacy-assets generate``: a synthetic table from a generator.

What is written is not judged: no attack was run on it, and it can repeat private rows. Keep people aside who are not in
--data (a holdout), and judge the table by `privacy-assets evaluate` before anybody sees it. Files and folders that are
written are for your own user only.

exit status:
  0  the table was written
  2  bad input, bad settings or a generator that failed: no table was written
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from privacy_assets.cli.command import COLUMNS, Command, Commands
from privacy_assets.cli.shared import check_out, read_data, settings
from privacy_assets.errors import ConfigError
from privacy_assets.storage.files import private_folder, put_atomic, sync_folder

if TYPE_CHECKING:
    from privacy_assets.generators import FittedGenerator

# Options that are of no use to a saved model.
_TRAINING = ("generator", "set", "subject", *COLUMNS, "device", "checkpoint", "model")


def add_generate(commands: Commands) -> None:
    """Add the command to the command line."""
    what = "train a generator on a private table, and write synthetic rows"
    command = commands.add("generate", _generate, what, __doc__)
    _add_training(command)
    command.option("--rows", "synthetic rows to write (default: as many as --data)", type=int, metavar="N")
    seed = "the same seed gives the same file (default 0; a secret one where noise is made from it: keep yours secret)"
    command.option("--seed", seed, default=None, metavar="S")
    out = "the synthetic table, .parquet (keeps types as pandas reads them) or .csv; one that is there is replaced"
    command.option("--out", out, required=True, metavar="FILE")
    command.option("--quiet", "no progress on standard error, warnings only")


def _add_training(command: Command) -> None:
    source = command.add_mutually_exclusive_group(required=True)
    data = "the private table to train on: a Parquet or CSV file, a folder or a glob"
    source.add_argument("--data", metavar="FILE", help=data)
    loaded = "sample from what --model saved, without training; trust its maker: a model can name a program to run"
    source.add_argument("--from-model", metavar="FOLDER", type=Path, help=loaded)
    own = "one that `privacy-assets generators` lists, or MODULE:FUNCTION of your own (found on PYTHONPATH)"
    command.option("--generator", own)
    command.common("--set")
    command.option("--subject", "column that tells people apart: left out of training and of the synthetic table")
    command.common("--kind", "--drop", "--generated", "--domain")
    device = "for generators that train on torch: auto, cpu, cuda, cuda:N or mps (default auto)"
    command.option("--device", device, default=None, metavar="NAME")
    kept = "where long training keeps what it has done and goes on from; as private as the table"
    command.option("--checkpoint", kept)
    model = "save the trained generator in this new folder, for --from-model; as private as the table"
    command.option("--model", model, metavar="FOLDER", type=Path)


def _generate(options: argparse.Namespace) -> int:
    _check(options)
    notify = options.progress
    fitted, rows = _loaded(options) if options.from_model else _trained(options)
    notify(f"drawing {rows:,} rows")
    _write(fitted, rows, options)
    notify(f"wrote {rows:,} rows of {len(fitted.schema.columns)} columns to {options.out}")
    _warn(fitted, options)
    return 0


def _loaded(options: argparse.Namespace) -> tuple[FittedGenerator, int]:
    from privacy_assets.generators import load_generator

    return load_generator(options.from_model), options.rows


def _trained(options: argparse.Namespace) -> tuple[FittedGenerator, int]:
    from privacy_assets.compute.devices import lease_device, pick_device
    from privacy_assets.generators import build_generator
    from privacy_assets.tables.writing import table_bytes

    generator = build_generator(options.generator, settings(options.set))
    wanted = options.device or ("auto" if "torch" in generator.modules else "cpu")
    notify = options.progress
    pick_device(wanted)  # one that is not there is an error before anything is read
    train, people = read_data(options)
    if train.schema.generated and not generator.invents:
        text = f"--generated: {generator.name} copies the values of real rows. Fix: name a function of your own"
        raise ConfigError(f"{text} (MODULE:FUNCTION), or leave the column out by --drop.")
    if _kind(options.out) == "csv":  # before the training: what the private table loses, the synthetic one would too
        table_bytes(train, "csv", where=options.data)
    if options.checkpoint:
        private_folder(options.checkpoint)
    notify(f"training {generator.name} on {len(train):,} rows of {len(train.columns)} columns")
    seed = options.seed
    if generator.secret_seed and seed is None:
        if options.checkpoint:
            raise ConfigError(f"{generator.name}: --checkpoint needs a --seed, a large number that nobody can guess.")
        seed = secrets.randbits(63)
        notify("the noise is made from a seed drawn at random, which is told nobody")
    with lease_device(device=wanted, on_wait=notify) as device:
        fitted = generator.fit(
            train, seed=seed or 0, device=device, progress=notify, checkpoint=options.checkpoint, people=people
        )
    if options.model:
        _save(fitted, options.model.resolve())
        notify(f"saved the trained generator in {options.model}: keep it as private as the table")
    return fitted, len(train) if options.rows is None else options.rows


def _save(fitted: FittedGenerator, folder: Path) -> None:
    """Save into a hidden folder beside ``folder`` and rename it: there is a whole model, or none."""
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        fitted.save(staging)
        os.replace(staging, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write(fitted: FittedGenerator, rows: int, options: argparse.Namespace) -> None:
    from privacy_assets.tables.writing import table_bytes

    table = fitted.sample(rows, seed=options.seed or 0)
    data = table_bytes(table, _kind(options.out), where="the synthetic table")
    try:
        put_atomic(Path(options.out), data)
    except OSError as error:
        raise ConfigError(f"{options.out}: cannot be written ({error.strerror}).") from None


def _warn(fitted: FittedGenerator, options: argparse.Namespace) -> None:
    judge = ["privacy-assets", "evaluate", "--train", options.data or "TRAIN", "--holdout", "HOLDOUT"]
    judge += ["--synthetic", options.out, *(["--subject", options.subject] if options.subject else [])]
    for option in COLUMNS:
        judge += [word for given in getattr(options, option) for word in (f"--{option}", given)]
    lines = [
        f"privacy budget: {fitted.privacy}",
        f"NOT JUDGED: {options.out} can repeat private rows, and no attack was run on it. Before anybody sees it, run",
        f"  {shlex.join(judge)}",
        "where HOLDOUT are rows of the same population, but of people whom the generator has not seen.",
    ]
    if not fitted.generator.repeatable:
        lines.insert(1, f"{fitted.generator.name} does not promise the same rows for the same seed")
    sys.stderr.write("\n".join(lines) + "\n")


# --- what is checked before the training ------------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> None:
    if options.rows is not None and options.rows < 1:
        raise ConfigError(f"--rows {options.rows}: ask for at least one row.")
    if options.seed is not None and options.seed < 0:
        raise ConfigError(f"--seed {options.seed}: the seed must be at least 0.")
    if options.from_model:
        given = [name for name in _TRAINING if getattr(options, name)]
        if given:
            raise ConfigError(f"--{given[0]} is for training: leave it out with --from-model.")
        if options.rows is None:
            raise ConfigError("--from-model needs --rows.")
    elif options.generator is None:
        raise ConfigError("--data needs --generator: `privacy-assets generators` lists them.")
    _check_folders(options)
    _check_out(Path(options.out), options)


def _check_folders(options: argparse.Namespace) -> None:
    model, checkpoint = options.model, options.checkpoint
    if checkpoint and checkpoint.exists() and not checkpoint.is_dir():
        raise ConfigError(f"{checkpoint}: this is not a folder. Fix: name a folder for --checkpoint.")
    if not model:
        return
    if model.exists() and (not model.is_dir() or any(model.iterdir())):
        raise ConfigError(f"{model}: there is something already. Fix: name a new folder for --model.")
    if checkpoint and checkpoint.resolve() == model.resolve():
        raise ConfigError(f"{model}: --model and --checkpoint must be two folders.")
    _check_writable(model)


def _check_out(out: Path, options: argparse.Namespace) -> None:
    """ConfigError unless the table can be written, to a place of its own."""
    from privacy_assets.tables.files import SUFFIXES

    if out.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{out}: the kind of file is told by the suffix. Fix: name a .parquet or .csv file.")
    check_out(options.out)
    for folder in (options.from_model, options.model, options.checkpoint):
        if folder and out.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{out}: this is inside {folder}. Fix: write the table elsewhere.")
    if options.data and _is_part(out, options.data):
        raise ConfigError(f"{out}: this is, or would be read as, a part of --data. Fix: write the table elsewhere.")
    _check_writable(out)


def _is_part(out: Path, data: str) -> bool:
    """Whether ``out`` is a file that ``data`` (a file, a folder or a glob) names, or would be once it is there."""
    from privacy_assets.tables.files import table_files

    if out.exists() and any(isinstance(file, Path) and out.samefile(file) for file in table_files(data)):
        return True
    place, pattern = Path(os.path.realpath(out)), Path(os.path.realpath(data))
    return place.parent == pattern if pattern.is_dir() else place.match(str(pattern))


def _check_writable(path: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: nothing can be written there ({error.strerror}).") from None


def _kind(out: str) -> str:
    from privacy_assets.tables.files import SUFFIXES

    return SUFFIXES[Path(out).suffix.lower()]
