"""The command ``privacy-assets leak-study``: measure whether the metrics detect leaks of known size
in your data.

The people of --data are split into train, holdout and release. For every fraction and every
noise, that fraction of the release is replaced by noisy training rows, and every metric evaluates
the table (Palacios 4.2). With --overfit, a generator is instead over-fitted to the training rows,
until its loss on people it was not trained on is that many times its minimum. The paper's generator
is used if its library is installed, or --set python=rtf/bin/python names its environment, otherwise
rvae.

The paper's encoder (3 layers of 1,024, no limit on steps or rows) is the embedder of a policy with

  extends: default
  embedder: {{preset: paper}}

Statistics that do not rise with the leak are not useful for these data. Do not share any of the
files.

in FOLDER:
  points.jsonl   one line per table; an interrupted study resumes from it
  leak_study.html, leak_study.json   every statistic by size of the leak, with regression lines

exit status:
  0  the study is complete, whatever its result
  2  bad input or bad settings

example:
  privacy-assets leak-study --data people.parquet --subject person --out study
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from privacy_assets.cli.options import READING, Commands, leased, read_data, say, settings, workers
from privacy_assets.errors import ConfigError, InputError, safe_repr
from privacy_assets.report.text import aligned
from privacy_assets.report.words import number

if TYPE_CHECKING:
    import numpy as np

    from privacy_assets.metrics.inputs import EvaluationInputs
    from privacy_assets.studies.leak_study import StudyCase, StudyPoint

_SHARES = {"train": 1 / 3, "holdout": 1 / 3, "reference": 1 / 3}  # reference: rows of the release
_MIN_ROWS = 20
_N_PEOPLE = 30_000
_N_OVERFIT_PEOPLE = 3_000  # a generator over-fits to a small table sooner
_NOISES = (0.0, 0.05)


def add_leak_study(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add(
        "leak-study",
        _leak_study,
        "leak rows on purpose, and measure which metrics detect it",
        __doc__,
    )
    command.option("--data", required=True)
    out = "folder of the results, as private as counts of the table; created if missing"
    command.option("--out", out, required=True, metavar="FOLDER", type=Path)
    command.option(
        "--subject",
        "column that identifies people; all rows of a person are on one side of the split",
    )
    command.common("--exact-ids", *READING)
    command.option(
        "--fractions",
        "leaked fractions (default: 0 to 1 in steps of 0.1)",
        metavar="A,B",
        type=_numbers,
    )
    noise = (
        "noise levels; all combinations of normal, Poisson and category noise are run (default"
        " 0,0.05)"
    )
    command.option("--noise", noise, metavar="A,B", type=_numbers)
    ratios = "over-fit a generator to these loss ratios (1 to 2) instead of leaking rows"
    command.option("--overfit", ratios, metavar="A,B", type=_numbers)
    command.option(
        "--generator",
        "generator to over-fit: realtabformer, the paper's (default if installed), or rvae",
    )
    command.common("--set")
    command.option(
        "--metrics", "metrics, comma-separated (default: those that evaluate runs)", metavar="A,B"
    )
    policy = (
        "policy whose settings of metrics and of the embedder are used (default: the defaults);"
        " its limits are not"
    )
    command.option("--policy", policy, metavar="FILE_OR_NAME")
    people = "maximum number of people to sample (default 30000, with --overfit 3000)"
    command.option("--people", people, metavar="N", type=int)
    command.option(
        "--no-embedder",
        "leave out the embedded statistics, so that no embedder is trained",
        action="store_true",
    )
    command.option("--device", "auto, cpu, cuda, cuda:N or mps", metavar="NAME")
    command.common("--ray")
    command.option("--seed", "seed of all random draws (default 0)")
    command.common("--quiet")


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers:
        raise argparse.ArgumentTypeError(f"{safe_repr(text)}: expected numbers separated by commas")
    return numbers


def _leak_study(options: argparse.Namespace) -> int:
    from privacy_assets.evaluation.measuring import embedder_settings, with_embedder
    from privacy_assets.metrics.policies import choose_metrics
    from privacy_assets.metrics.registry import study_metrics
    from privacy_assets.studies.leak_study import LEAK, RATIO, leak_study

    _check(options)
    metrics, policy = choose_metrics(options.metrics or study_metrics(), options.policy)
    embedder = embedder_settings(metrics, policy, not options.no_embedder)
    is_overfit = options.overfit is not None
    uses_device = embedder is not None or is_overfit
    with leased(options, used=uses_device) as device, workers(options):
        inputs = _inputs(options, device)
        cases = list(_cases(options, inputs))
        if embedder is not None:
            inputs = with_embedder(inputs, **embedder)
        title = f"Leak study of {Path(options.data).name}"
        axis = RATIO if is_overfit else LEAK
        points = leak_study(inputs, cases, metrics, options.out, title=title, axis=axis)
    _show(options, points, axis)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check the options, and set the default of --people.

    Raises:
        ConfigError: If they do not fit together.
    """
    is_overfit = options.overfit is not None
    if options.people is None:
        options.people = _N_OVERFIT_PEOPLE if is_overfit else _N_PEOPLE
    if options.seed < 0 or options.people < 3:
        raise ConfigError("--seed must be at least 0, and --people at least 3.")
    if not is_overfit and (options.generator or options.set):
        raise ConfigError(
            "--generator and --set can be used only with --overfit. Fix: add --overfit, or"
            " remove them."
        )
    if is_overfit and (options.fractions or options.noise):
        raise ConfigError(
            "--overfit cannot be combined with --fractions or --noise, because it leaks no rows."
        )
    if options.out.exists() and not options.out.is_dir():
        raise ConfigError(f"--out {options.out}: this is a file. Fix: pass a folder.")


def _inputs(options: argparse.Namespace, device: str) -> EvaluationInputs:
    """Return inputs with train and holdout, in which the release rows are the synthetic table."""
    from privacy_assets.evaluation.reading import build_inputs
    from privacy_assets.tables.column import Column
    from privacy_assets.tables.splitting import split_rows

    table, subject_codes = read_data(options)
    rows = _sampled_rows(subject_codes, len(table), options)
    ids = None
    if subject_codes is not None:
        ids = Column(options.subject, "integer", subject_codes)
    key = f"calibrate {options.seed}".encode()
    sample = table.with_subject(ids).take(rows)
    split = split_rows(sample, key, _SHARES, where=options.data)
    parts = {role: sample.take(positions) for role, positions in split.items()}
    n_smallest = min(map(len, parts.values()))
    if n_smallest < _MIN_ROWS:
        raise InputError(
            f"a third of the people has {n_smallest} rows, {_MIN_ROWS} needed",
            where=options.data,
            fix="use more rows",
        )
    release = parts.pop("reference")
    return build_inputs(
        parts,
        release,
        where=options.data,
        seed=options.seed,
        device=device,
        progress=options.progress,
    )


def _sampled_rows(
    subject_codes: np.ndarray | None, n_rows: int, options: argparse.Namespace
) -> np.ndarray:
    """Return the positions of all rows of --people random people, ascending int64 (n_sampled,).

    Args:
        subject_codes: Subject code of each row, int64 (n_rows,). None: each row is one person.
        n_rows: Number of rows.
        options: Parsed options.
    """
    import numpy as np

    if subject_codes is None:
        subject_codes = np.arange(n_rows)
    rng = np.random.default_rng([options.seed, 1])
    sampled_codes = rng.permutation(np.unique(subject_codes))[: options.people]
    return np.flatnonzero(np.isin(subject_codes, sampled_codes))


def _cases(options: argparse.Namespace, inputs: EvaluationInputs) -> Iterable[StudyCase]:
    from privacy_assets.studies.leak_study import (
        FRACTIONS,
        every_noise,
        leaky_cases,
        overfit_cases,
    )

    if options.overfit is None:
        return leaky_cases(
            inputs.train,
            inputs.synthetic,
            fractions=options.fractions or FRACTIONS,
            noises=every_noise(options.noise or _NOISES),
            seed=options.seed,
        )
    return overfit_cases(
        inputs.train,
        len(inputs.synthetic),
        generator=options.generator,
        settings=settings(options.set),
        ratios=options.overfit,
        subject_codes=inputs.release.subjects.get("train"),
        seed=options.seed,
        device=inputs.device,
        progress=inputs.progress,
    )


def _show(options: argparse.Namespace, points: Sequence[StudyPoint], axis: str) -> None:
    """Print the statistics of the first series by position, with their regression lines."""
    from privacy_assets.studies.leak_study import PAGE, linear_fits

    series = points[0].series
    displayed = [point for point in points if point.series == series]
    displayed.sort(key=lambda point: point.x)
    positions = [f"{point.x:g}" for point in displayed]
    rows = [["statistic", *positions, "slope", "R²", "never back"]]
    for line in linear_fits(displayed):
        values = []
        for point in displayed:
            estimate = point.estimates.get(line.statistic, (math.nan,))
            values.append(number(estimate[0]))
        rises = "yes" if line.rises else "NO"
        rows.append([line.statistic, *values, number(line.slope), number(line.r2), rises])
    say(f"{series}; {axis}:", "", *aligned(rows), "")
    missed = []
    for point in points:
        if point.x < point.requested:
            missed.append(f"{point.requested:g} (ended at {point.x:.3g})")
    if missed:
        say(f"Not reached: {', '.join(missed)}.", "")
    say(f"All series, with intervals and plots: {options.out / PAGE}")
