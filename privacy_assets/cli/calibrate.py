"""The command ``privacy-assets calibrate``: do the metrics see a leak in your own data, and how large a one?

The people of --data are split into training, control and release. A table as large as the release is made of training
rows (a fraction of it) and of release rows, and every metric judges it, for every fraction and with every noise on the
training rows (Palacios 4.2). With --overfit, a generator is over-fitted to the training rows instead, until its loss on
unseen people is that many times the best.

Statistics that do not rise with the leak are of no use on these data. Nothing that is made here may be shared.

in FOLDER:
  points.jsonl   one line a table; a study that was stopped goes on from there
  calibration.html, calibration.json   every statistic over the leak, and the straight lines through them

exit status:
  0  the study is done, whatever it found
  2  bad input or bad settings
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from privacy_assets.cli.command import Commands, say
from privacy_assets.cli.shared import leased, read_data, settings, workers
from privacy_assets.errors import ConfigError, InputError, shown
from privacy_assets.report.text import aligned, number
from privacy_assets.storage.files import private_folder

if TYPE_CHECKING:
    from privacy_assets.calibration import Case, Point
    from privacy_assets.metrics.inputs import MetricInputs

_SHARES = {"train": 1 / 3, "holdout": 1 / 3, "reference": 1 / 3}  # reference: what is released
_SMALLEST = 20


def add_calibrate(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("calibrate", _calibrate, "leak on purpose, and see what the metrics say", __doc__)
    command.option("--data", required=True)
    out = "where results go; as private as counts of the table (made when it is not there)"
    command.option("--out", out, required=True, metavar="FOLDER", type=Path)
    command.option("--subject", "column that tells people apart: all rows of a person stand on one side")
    command.common("--kind", "--drop")
    command.option("--fractions", "fractions to leak (default 0 to 1 by 0.1)", metavar="A,B", type=_numbers)
    noise = "levels of noise; all configurations of normal, Poisson and category noise are run (default 0,0.05)"
    command.option("--noise", noise, metavar="A,B", type=_numbers)
    ratios = "over-fit a generator to these ratios of loss (1 to 2) instead of leaking rows"
    command.option("--overfit", ratios, metavar="A,B", type=_numbers)
    command.option("--generator", "which one to over-fit (default rvae)")
    command.common("--set")
    command.option("--metrics", "metrics, comma-separated (default: those that evaluate runs)", metavar="A,B")
    people = "at most so many people of the table, drawn by --seed (default 30000)"
    command.option("--people", people, metavar="N", type=int, default=30_000)
    plain = "leave the embedded statistics out, and the time to train an encoder"
    command.option("--no-embedder", plain, action="store_true")
    command.option("--device", "auto, cpu, cuda, cuda:N or mps", metavar="NAME")
    command.common("--ray")
    command.option("--seed", "the same seed gives the same study (default 0)")
    command.common("--quiet")


def _numbers(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise argparse.ArgumentTypeError(f"{shown(text)}: write numbers separated by commas")
    return found


def _calibrate(options: argparse.Namespace) -> int:
    from privacy_assets.calibration import run_study
    from privacy_assets.evaluation import attach_embedder, choose_metrics, fit_embedder, wants_embedder
    from privacy_assets.metrics.registry import study_metrics
    from privacy_assets.report.study import POINTS

    _check(options)
    metrics, _ = choose_metrics(options.metrics or study_metrics(), None)
    embeds = not options.no_embedder and wants_embedder(metrics.values())
    with leased(options, used=embeds or options.overfit is not None) as device, workers(options):
        inputs = _inputs(options, device)
        cases = list(_cases(options, inputs))
        private_folder(options.out)
        if embeds:
            inputs = attach_embedder(inputs, fit_embedder(inputs))
        points = run_study(inputs, cases, metrics, options.out / POINTS)
    _write(options, points)
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.seed < 0 or options.people < 3:
        raise ConfigError("--seed must be at least 0, and --people at least 3.")
    if options.overfit is None and (options.generator or options.set):
        raise ConfigError("--generator and --set are for --overfit, which was not given.")
    if options.overfit is not None and (options.fractions or options.noise):
        raise ConfigError("--overfit leaks no rows: leave --fractions and --noise out.")
    if options.out.exists() and not options.out.is_dir():
        raise ConfigError(f"--out {options.out}: this is a file. Fix: name a folder.")


def _inputs(options: argparse.Namespace, device: str) -> MetricInputs:
    """Inputs with train and control, where the release rows stand in place of a synthetic table."""
    import numpy as np

    from privacy_assets.metrics.inputs import MetricInputs
    from privacy_assets.tables.splitting import split_table

    table, people = read_data(options)
    whose, frame = np.arange(len(table)) if people is None else people, table.frame()
    drawn = np.random.default_rng([options.seed, 1]).permutation(np.unique(whose))[: options.people]
    if people is not None:
        frame = frame.assign(**{options.subject: people})
    key = f"calibrate {options.seed}".encode()
    parts = split_table(frame[np.isin(whose, drawn)], options.subject, key, _SHARES, where=options.data)
    smallest = min(len(part) for part in parts.values())
    if smallest < _SMALLEST:
        fix = "give more rows"
        raise InputError(f"a third of the people has {smallest} rows, {_SMALLEST} needed", where=options.data, fix=fix)
    roles = {"train": "train", "holdout": "holdout", "synthetic": "reference"}
    tables = {role: table.take(parts[part].index.to_numpy()) for role, part in roles.items()}
    subjects = (
        {} if people is None else {role: parts[role][options.subject].to_numpy() for role in ("train", "holdout")}
    )
    return MetricInputs(table.schema, tables, subjects, seed=options.seed, device=device, progress=options.progress)


def _cases(options: argparse.Namespace, inputs: MetricInputs) -> Iterable[Case]:
    from privacy_assets.calibration import every_noise, leaky_cases, overfit_cases
    from privacy_assets.calibration.leaky import FRACTIONS

    if options.overfit is None:
        return leaky_cases(
            inputs.train, inputs.synthetic, fractions=options.fractions or FRACTIONS,
            noises=every_noise(options.noise or (0.0, 0.05)), seed=options.seed,
        )  # fmt: skip
    return overfit_cases(
        inputs.train, len(inputs.synthetic), generator=options.generator or "rvae",
        settings=settings(options.set), ratios=options.overfit, people=inputs.subjects.get("train"), seed=options.seed,
        device=inputs.device, progress=inputs.progress,
    )  # fmt: skip


def _write(options: argparse.Namespace, points: list[Point]) -> None:
    from privacy_assets.report.study import LEAK, PAGE, RATIO, write_study

    axis = LEAK if options.overfit is None else RATIO
    lines = write_study(options.out, f"Calibration of {Path(options.data).name}", points, axis=axis)
    first = points[0].series
    shown = sorted((point for point in points if point.series == first), key=lambda point: point.x)
    rows = [["statistic", *(f"{point.x:g}" for point in shown), "slope", "R²", "never back"]]
    for line in lines:
        if line.series == first:
            values = [number(point.estimates.get(line.statistic, (math.nan,))[0]) for point in shown]
            rows.append([line.statistic, *values, number(line.slope), number(line.r2), "yes" if line.rises else "NO"])
    missed = [f"{point.wanted:g} (ended at {point.x:.3g})" for point in points if point.x < point.wanted]
    say(
        f"{first}; {axis}:",
        "",
        *aligned(rows),
        "",
        *([f"Not reached: {', '.join(missed)}.", ""] if missed else []),
        f"All series, with intervals and plots: {options.out / PAGE}",
    )
