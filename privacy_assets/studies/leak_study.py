"""Leak study: metrics on tables of known truth, and a page with each statistic by the size of the
leak.

The tables either contain a known fraction of training rows (Palacios 4.2, figures 2 and 3), or are
sampled from a deliberately over-fitted generator (figure 4).
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError, InputError, safe_repr
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.generators.copies import jittered, resampled
from privacy_assets.generators.registry import GENERATORS, build_generator
from privacy_assets.infra.files import private_folder, put_atomic
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Progress, advance, silent
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.registry import statistic_spec
from privacy_assets.report.html import render
from privacy_assets.report.svg import SERIES, intervals_svg
from privacy_assets.stats.estimates import to_jsonable
from privacy_assets.tables.column import Column
from privacy_assets.tables.fingerprints import cells_fingerprint
from privacy_assets.tables.table import Table
from privacy_assets.version import PACKAGE_VERSION

FRACTIONS = tuple(tenth / 10 for tenth in range(11))
RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0)
POINTS = "points.jsonl"
PAGE = "leak_study.html"
RESULTS = "leak_study.json"
LEAK = "fraction of rows that are training rows"
RATIO = "validation loss relative to the best, L/L*"
_MEANINGS = {
    LEAK: "Each table consists of training rows, with or without noise, and rows of other people. A"
    " statistic that is"
    " useful for these data rises with the fraction of training rows. Bars are confidence"
    " intervals.",
    RATIO: "Each table is sampled from a deliberately overfitted generator. A statistic that is"
    " useful for these data"
    " rises with the validation loss. Bars are confidence intervals.",
}
_ROUNDING = 1e-12
_FIELDS = frozenset({"mark", "series", "requested", "x", "estimates", "seconds"})  # of a line


@dataclass(frozen=True, slots=True)
class StudyCase:
    """A table to evaluate.

    Attributes:
        series: Series of points that the case belongs to.
        x: Requested position on the axis.
        make: Creates the table. Returns it with the position that was reached.
    """

    series: str
    x: float
    make: Callable[[], tuple[Table, float]]


@dataclass(frozen=True, slots=True)
class StudyPoint:
    """Result for one table.

    Attributes:
        series: Series that the point belongs to.
        requested: Requested position on the axis.
        x: Position that was reached.
        estimates: Value, low and high by "metric.statistic". NaN: not measurable.
        seconds: Wall time.
    """

    series: str
    requested: float
    x: float
    estimates: Mapping[str, tuple[float, float, float]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the point as a JSON object. NaN becomes None."""
        return dict(to_jsonable(asdict(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StudyPoint:
        """Create a point from :meth:`to_json` output."""
        estimates = {}
        for name, (value, low, high) in data["estimates"].items():
            estimates[name] = (_to_float(value), _to_float(low), _to_float(high))
        return cls(data["series"], data["requested"], data["x"], estimates, data["seconds"])


def _to_float(number: float | None) -> float:
    """Return a number of a JSON file. None becomes NaN."""
    return math.nan if number is None else float(number)


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Least-squares line of one statistic of one series over the axis.

    Attributes:
        series: Series of the points.
        statistic: Name, "metric.statistic".
        points: Number of points.
        slope: Slope of the line.
        intercept: Value of the line at 0.
        r2: Coefficient of determination. 0 if the statistic is constant.
        rises: False if the interval of a point is entirely on the non-leaking side of an earlier
            interval: below it, or above it if lower values are riskier.
    """

    series: str
    statistic: str
    points: int
    slope: float
    intercept: float
    r2: float
    rises: bool


@isolated()
def leak_study(
    inputs: EvaluationInputs,
    cases: Iterable[StudyCase],
    metrics: Mapping[str, Metric],
    folder: Path | None = None,
    *,
    title: str = "Leak study",
    axis: str = LEAK,
) -> list[StudyPoint]:
    """Evaluate every case, and write points, page and JSON.

    Args:
        inputs: Real tables, embedder and seed. The synthetic table is replaced by that of each
            case.
        cases: Tables to evaluate, see :func:`leaky_cases` and :func:`overfit_cases`.
        metrics: Metrics by name.
        folder: Folder of the files, readable by the current user only. ``points.jsonl`` receives
            one line per point as soon as it is computed. Each line is labeled with a hash of rows,
            seed, settings and package version, so that an interrupted study resumes, and lines of
            other studies are ignored and kept. The files contain statistics only. None: no files.
        title: Title of the page.
        axis: LEAK or RATIO, the position of the cases.

    Returns:
        The points in the order of the cases.

    Raises:
        InputError: If a required input of a metric is missing, or ``points.jsonl`` contains
            something else.
    """
    path = None
    if folder is not None:
        path = private_folder(folder) / POINTS
    mark = _mark(inputs, metrics)
    stored = {}
    if path is not None:
        for point in read_points(path, mark):
            stored[point.series, point.requested] = point
    requested = list(cases)
    points = []
    for n_done, case in enumerate(requested):
        if (case.series, case.x) in stored:
            points.append(stored[case.series, case.x])
            continue
        advance(inputs.progress, "leak study: tables", n_done, len(requested))
        point = _measure(inputs, case, metrics)
        if path is not None:
            _add_line(path, json.dumps({"mark": mark, **point.to_json()}, allow_nan=False))
        points.append(point)
    advance(inputs.progress, "leak study: tables", None)
    if folder is not None:
        _write_results(folder, inputs, points, title, axis)
    return points


def _write_results(
    folder: Path,
    inputs: EvaluationInputs,
    points: Sequence[StudyPoint],
    title: str,
    axis: str,
) -> None:
    """Write the page and the JSON file."""
    fits = linear_fits(points)
    embedder = None
    if inputs.embedder is not None:
        embedder = to_jsonable(inputs.embedder.description)
    content = {
        "embedder": embedder,
        "points": [point.to_json() for point in points],
        "fits": [to_jsonable(asdict(fit)) for fit in fits],
    }
    put_atomic(folder / PAGE, _page(title, axis, points, fits).encode())
    put_atomic(folder / RESULTS, json.dumps(content, indent=2, allow_nan=False).encode())


def read_points(path: Path, mark: str | None = None) -> list[StudyPoint]:
    """Read the points of a file. Truncated lines are skipped.

    Args:
        path: File with a point a line. It need not exist.
        mark: Hash of the study whose points are returned. None: all studies.

    Returns:
        The points in the order of the lines.

    Raises:
        InputError: A line is JSON but no point.
    """
    if not path.exists():
        return []
    points = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(fields, dict) or not set(fields) >= _FIELDS:
            raise InputError(
                "this file does not contain a leak study", where=str(path), fix="use another file"
            )
        if mark is None or fields["mark"] == mark:
            points.append(StudyPoint.from_json(fields))
    return points


class _Measurement(NamedTuple):
    """Estimate of one statistic at one position. Tuples are sorted by position."""

    x: float
    value: float
    low: float
    high: float


def linear_fits(points: Iterable[StudyPoint]) -> list[LinearFit]:
    """Fit a line for each series and statistic with at least 3 measured points at distinct
    positions.
    """
    by_line: dict[tuple[str, str], list[_Measurement]] = {}
    for point in points:
        for name, (value, low, high) in point.estimates.items():
            if math.isfinite(value):
                measurements = by_line.setdefault((point.series, name), [])
                measurements.append(_Measurement(point.x, value, low, high))
    fits = []
    for (series, name), measurements in by_line.items():
        if np.unique([measurement.x for measurement in measurements]).size < 3:
            continue
        spec = statistic_spec(name)
        low_is_risky = spec is not None and spec.direction == "lower_is_riskier"
        fits.append(_linear_fit(series, name, measurements, low_is_risky))
    return fits


def _linear_fit(
    series: str, name: str, measurements: Sequence[_Measurement], low_is_risky: bool
) -> LinearFit:
    """Fit a line to measurements at three or more positions."""
    x, value, low, high = np.array(sorted(measurements)).T
    slope, intercept = np.polyfit(x, value, 1)
    r2 = 0.0
    if np.ptp(value) > _ROUNDING:
        total = float(((value - value.mean()) ** 2).sum())
        residual = float(((value - slope * x - intercept) ** 2).sum())
        r2 = 1 - residual / total
    if low_is_risky:
        low, high = -high, -low
    highest_low = np.maximum.accumulate(low)
    rises = bool((high[1:] >= highest_low[:-1]).all())
    return LinearFit(series, name, len(x), float(slope), float(intercept), r2, rises)


def _add_line(path: Path, line: str) -> None:
    """Append a line by replacing the file atomically, so that no line is truncated or joined to a
    truncated one.
    """
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    end = "" if before.endswith("\n") or not before else "\n"
    put_atomic(path, f"{before}{end}{line}\n".encode())


def _measure(
    inputs: EvaluationInputs, case: StudyCase, metrics: Mapping[str, Metric]
) -> StudyPoint:
    started = time.perf_counter()
    table, x = case.make()
    tables = {**inputs.tables, "synthetic": table}
    release = replace(inputs.release, tables=tables)
    results = run_metrics(EvaluationInputs.of(release, inputs.context), metrics)
    estimates = {}
    for name, result in results.items():
        for estimate in result.estimates:
            ends = (estimate.value, estimate.low, estimate.high)
            estimates[f"{name}.{estimate.name}"] = ends
    for name, result in results.items():  # statistics displayed in studies only
        for statistic, ends in metrics[name].study_estimates(result.tables).items():
            estimates[f"{name}.{statistic}"] = ends
    seconds = round(time.perf_counter() - started, 3)
    return StudyPoint(case.series, case.x, x, estimates, seconds)


def _mark(inputs: EvaluationInputs, metrics: Mapping[str, Metric]) -> str:
    """Return the hash that labels the lines of a study."""
    settings = {}
    for name, metric in metrics.items():
        settings[name] = metric.settings()
    embedder = None
    if inputs.embedder is not None:
        embedder = inputs.embedder.fingerprint()
    return cells_fingerprint(
        np.empty(0), inputs.fingerprints, settings, embedder, inputs.seed, PACKAGE_VERSION
    )[:16]


# --- page
# --------------------------------------------------------------------------------------------------


def _page(title: str, axis: str, points: Sequence[StudyPoint], fits: Sequence[LinearFit]) -> str:
    """Return a self-contained page with a plot and the fitted lines of every computed statistic."""
    statistics: dict[str, None] = {}  # a set with the order of the points
    for point in points:
        statistics.update(dict.fromkeys(point.estimates))
    estimates = []
    for name in statistics:
        plots = list(_plots(points, name, axis))
        if not plots:
            continue
        spec = statistic_spec(name)
        estimates.append(
            {
                "name": name,
                "summary": "" if spec is None else spec.meaning,
                "plots": plots,
                "fits": [fit for fit in fits if fit.statistic == name],
            }
        )
    return render(
        "study.html.j2", {"title": title, "what": _MEANINGS[axis], "estimates": estimates}
    )


def _plots(points: Sequence[StudyPoint], statistic: str, axis: str) -> Iterator[str]:
    """Yield SVGs of one statistic with intervals by ``axis``, each with as many series as there are
    colors.
    """
    names = []
    for point in points:
        if point.series not in names:
            names.append(point.series)
    for first in range(0, len(names), SERIES):
        names_of_plot = names[first : first + SERIES]
        chart_points = []
        for point in points:
            if point.series in names_of_plot and statistic in point.estimates:
                chart_points.append(_chart_point(point, statistic))
        svg = intervals_svg(
            chart_points, x="x", y="value", series=("series",), labels=(axis, statistic)
        )
        if svg:
            yield svg


def _chart_point(point: StudyPoint, statistic: str) -> dict[str, object]:
    value, low, high = point.estimates[statistic]
    return {
        "series": point.series,
        "x": round(point.x, 3),
        "value": value,
        "low": low,
        "high": high,
    }


# --- tables with leaked rows
# ------------------------------------------------------------------------------------------


@declared
class Noise:
    """Noise added to training rows before they are leaked. Missing values stay missing.

    Attributes:
        sigma: Standard deviation of the normal error of numbers and dates, in standard deviations
            of the column (the paper gives no unit). Results are rounded to the precision and
            clipped to the range of the column.
        lam: Mean of the Poisson count added to integers.
        p: Probability that a category or boolean is resampled from its column.
    """

    part: ClassVar[str] = "noise"

    sigma: float = Field(default=0.0, ge=0, le=10)
    lam: float = Field(default=0.0, ge=0, le=1000)
    p: float = Field(default=0.0, ge=0, le=1)

    def __str__(self) -> str:
        errors = []
        for symbol, value in zip(("σ", "λ", "p"), self.values, strict=True):
            if value:
                errors.append(f"{symbol} {value:g}")
        return ", ".join(errors) or "no noise"

    @property
    def values(self) -> tuple[float, float, float]:
        """sigma, lam and p."""
        return self.sigma, self.lam, self.p

    def added(self, rows: Table, real: Table, rng: np.random.Generator) -> Table:
        """Add noise to a table.

        Args:
            rows: Rows to change.
            real: Table with the same columns, which states precision, range, spread and categories.
            rng: Generator of the noise.

        Returns:
            The rows with noise.
        """

        def noisy(column: Column) -> Column:
            present = real[column.name].present()
            if len(present) == 0:
                return column
            if column.values is not None:
                return resampled(column, present, self.p, rng)
            if column.kind != "integer":
                return jittered(column, present, self.sigma, rng)
            errors = rng.poisson(self.lam, len(column))
            cells = np.where(column.missing, column.cells, column.cells + errors)
            return replace(column, cells=cells)

        return rows.map(noisy)


def every_noise(levels: Sequence[float] = (0.0, 0.05)) -> list[Noise]:
    """Return all combinations of sigma, lam and p from ``levels``, the one without noise first."""
    combinations = itertools.product(sorted(set(levels)), repeat=3)
    return list(itertools.starmap(Noise, combinations))


def leaky_table(train: Table, release: Table, fraction: float, noise: Noise, seed: int) -> Table:
    """Replace a fraction of the rows of a release by noisy training rows.

    Training rows are drawn without replacement, and each is used once before any is used twice:
    with equal numbers of rows, fraction 1 is a copy of train. For the same seed a larger fraction
    contains the rows of a smaller one, with the same noise.

    Args:
        train: Training rows.
        release: Table of the same schema; determines the number of rows.
        fraction: Share of leaked rows, from 0 to 1.
        noise: Noise of the leaked rows.
        seed: Seed of all draws.

    Returns:
        The table, leaked rows first.

    Raises:
        ConfigError: The fraction is out of range.
    """
    _check(fraction)
    rng = np.random.default_rng([seed, 11])
    n_rows = len(release)
    n_rounds = -(-n_rows // max(len(train), 1))
    rounds = [rng.permutation(len(train)) for _ in range(n_rounds)]
    leaked = train.take(np.concatenate(rounds)[:n_rows])
    other_rows = release.take(rng.permutation(n_rows))
    noisy = noise.added(leaked, train, np.random.default_rng([seed, 12]))
    n_leaked = round(fraction * n_rows)
    return Table.stack([noisy.take(slice(n_leaked)), other_rows.take(slice(n_leaked, None))])


def leaky_cases(
    train: Table,
    release: Table,
    *,
    fractions: Iterable[float] = FRACTIONS,
    noises: Iterable[Noise] | None = None,
    seed: int = 0,
) -> Iterator[StudyCase]:
    """Yield the cases of the leaky evaluation: every fraction with every noise.

    Args:
        train: Training rows.
        release: Table of the same schema that contains no training rows.
        fractions: Shares of leaked rows, from 0 to 1.
        noises: Noise of the leaked rows. None: all of {0, 0.05}.
        seed: Seed of all draws.

    Yields:
        The cases by noise, then in ascending order of the fraction.

    Raises:
        ConfigError: A fraction is out of range.
    """
    distinct_fractions = sorted(set(fractions))
    _check(*distinct_fractions)

    def case(noise: Noise, fraction: float) -> StudyCase:
        table = partial(leaky_table, train, release, fraction, noise, seed)
        return StudyCase(str(noise), fraction, lambda: (table(), fraction))

    if noises is None:
        noises = every_noise()
    for noise in noises:
        for fraction in distinct_fractions:
            yield case(noise, fraction)


def _check(*fractions: float) -> None:
    """Raise ConfigError if a fraction is out of range."""
    for fraction in fractions:
        if not 0 <= fraction <= 1:
            raise ConfigError("fractions must be numbers from 0 to 1.")


# --- tables of an over-fitted generator
# -------------------------------------------------------------------------------


def overfit_cases(  # noqa: PLR0913
    train: Table,
    rows: int,
    *,
    generator: str | None = None,
    settings: Mapping[str, Any] | None = None,
    ratios: Iterable[float] = RATIOS,
    subject_codes: np.ndarray | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = silent,
) -> Iterator[StudyCase]:
    """Yield a case for each ratio f_o = L/L* of the validation loss to its minimum (Palacios 4.2,
    5.2, figure 4).

    L* is the least loss of the training with early stopping and of the one that over-fits.

    Args:
        train: Training rows.
        rows: Number of rows of each table.
        generator: Name of a generator with the setting "overfit". GANs have no such loss. None:
            that of the paper, ``realtabformer``, if its library is installed or ``settings`` name
            the "python" of its environment; otherwise ``rvae``.
        settings: Further settings of the generator.
        ratios: Ratios in [1, 2]; 1 is the generator with early stopping. A training that ends
            earlier is recorded at the ratio that it reached.
        subject_codes: Subject of each training row, shape (n_rows,). None: one subject per row.
        seed: Seed of fits and samples.
        device: torch device name.
        progress: Receives progress messages.

    Yields:
        The cases in ascending order of the ratio.

    Raises:
        ConfigError: The generator has no setting "overfit".
    """
    fixed = dict(settings or {})
    if generator is None:
        generator = _default_generator(fixed)
    if not hasattr(GENERATORS.find(generator), "overfit"):
        able = []
        for name, kind in sorted(GENERATORS.shipped().items()):
            if hasattr(kind, "overfit"):
                able.append(name)
        raise ConfigError(
            f"generator {safe_repr(generator)} cannot over-fit to a ratio of losses; these can:"
            f" {', '.join(able)}."
        )
    label = generator
    for key, value in fixed.items():
        if not isinstance(value, str):
            label += f", {key} {value}"

    def case(ratio: float) -> StudyCase:
        built = build_generator(generator, {**fixed, "overfit": ratio})

        def make() -> tuple[Table, float]:
            fitted = built.fit(
                train, seed=seed, device=device, progress=progress, subject_codes=subject_codes
            )
            reached = 1.0
            for epoch in fitted.history:
                reached = epoch.get("overfitting_ratio", reached)
            return fitted.sample(rows, seed=seed), reached

        return StudyCase(label, ratio, make)

    yield from map(case, sorted(set(ratios)))


def _default_generator(settings: Mapping[str, Any]) -> str:
    """Return the generator of the paper, if it can run, or ``rvae``."""
    if "python" in settings or find_spec("realtabformer"):
        return "realtabformer"
    return "rvae"
