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
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError, InputError, safe_repr
from privacy_assets.evaluation.evaluate import run_metrics
from privacy_assets.generators.copies import jittered, resampled
from privacy_assets.generators.registry import GENERATORS, build_generator
from privacy_assets.infra.files import private_folder, put_atomic
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Progress, advance, silent
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.registry import statistic_specs
from privacy_assets.report.html import render
from privacy_assets.report.svg import SERIES, intervals_svg
from privacy_assets.stats.estimates import to_jsonable
from privacy_assets.tables.column import Column
from privacy_assets.tables.fingerprints import cells_fingerprint
from privacy_assets.tables.table import Table
from privacy_assets.version import ENGINE_VERSION

FRACTIONS = tuple(tenth / 10 for tenth in range(11))
RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0)
POINTS, PAGE, RESULTS = "points.jsonl", "leak_study.html", "leak_study.json"
LEAK, RATIO = (
    "fraction of rows that are training rows",
    "validation loss relative to the best, L/L*",
)
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
        wanted: Requested position on the axis.
        x: Position that was reached.
        estimates: Value, low and high by "metric.statistic". NaN: not measurable.
        seconds: Wall time.
    """

    series: str
    wanted: float
    x: float
    estimates: Mapping[str, tuple[float, float, float]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the point as a JSON object. NaN becomes None."""
        return dict(to_jsonable(asdict(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StudyPoint:
        """Create a point from :meth:`to_json` output."""
        triples = {
            name: tuple(math.nan if part is None else float(part) for part in parts)
            for name, parts in data["estimates"].items()
        }
        return cls(data["series"], data["wanted"], data["x"], triples, data["seconds"])  # type: ignore[arg-type]


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
        rises: False if the interval of a point is entirely on the harmless side of an earlier
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
            seed, settings and engine, so that an interrupted study resumes, and lines of other
            studies are ignored and kept. The files contain statistics only. None: no files.
        title: Title of the page.
        axis: LEAK or RATIO, the position of the cases.

    Returns:
        The points in the order of the cases.

    Raises:
        InputError: If a required input of a metric is missing, or ``points.jsonl`` contains
            something else.
    """
    path = None if folder is None else private_folder(folder) / POINTS
    mark = _mark(inputs, metrics)
    held = (
        {}
        if path is None
        else {(point.series, point.wanted): point for point in read_points(path, mark)}
    )
    points, requested = [], list(cases)
    for number, case in enumerate(requested, start=1):
        point = held.get((case.series, case.x))
        if point is None:
            advance(inputs.progress, "leak study: tables", number - 1, len(requested))
            point = _measure(inputs, case, metrics)
            if path is not None:
                _add_line(path, json.dumps({"mark": mark, **point.to_json()}, allow_nan=False))
        points.append(point)
    advance(inputs.progress, "leak study: tables", None)
    if folder is not None:
        fits = linear_fits(points)
        content = {
            "embedder": None
            if inputs.embedder is None
            else to_jsonable(inputs.embedder.description),
            "points": [point.to_json() for point in points],
            "fits": [to_jsonable(asdict(line)) for line in fits],
        }
        put_atomic(folder / PAGE, _page(title, axis, points, fits).encode())
        put_atomic(folder / RESULTS, json.dumps(content, indent=2, allow_nan=False).encode())
    return points


def read_points(path: Path, mark: str | None = None) -> list[StudyPoint]:
    """Read the points of a file, or those of the study ``mark``. Truncated lines are skipped."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            data = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(data, dict) or not {
            "mark",
            "series",
            "wanted",
            "x",
            "estimates",
            "seconds",
        } <= set(data):
            raise InputError(
                "this file does not contain a leak study", where=str(path), fix="use another file"
            )
        if mark is None or data["mark"] == mark:
            found.append(StudyPoint.from_json(data))
    return found


def linear_fits(points: Iterable[StudyPoint]) -> list[LinearFit]:
    """Fit a line for each series and statistic with at least 3 measured points at distinct
    positions.
    """
    series: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
    for point in points:
        for name, (value, low, high) in point.estimates.items():
            if math.isfinite(value):
                series.setdefault((point.series, name), []).append((point.x, value, low, high))
    fits, specs = [], statistic_specs()
    for (label, name), rows in series.items():
        x, value, low, high = np.array(sorted(rows)).T
        if np.unique(x).size < 3:
            continue
        slope, intercept = np.polyfit(x, value, 1)
        spread = float(((value - value.mean()) ** 2).sum())
        left = float(((value - slope * x - intercept) ** 2).sum())
        r2 = 1 - left / spread if np.ptp(value) > _ROUNDING else 0.0
        if name in specs and specs[name].direction == "lower_is_riskier":
            low, high = -high, -low
        rises = bool((high[1:] >= np.maximum.accumulate(low)[:-1]).all())
        fits.append(LinearFit(label, name, len(x), float(slope), float(intercept), r2, rises))
    return fits


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
    rows, x = case.make()
    results = run_metrics(replace(inputs, tables={**inputs.tables, "synthetic": rows}), metrics)
    estimates = {
        f"{name}.{estimate.name}": (estimate.value, estimate.low, estimate.high)
        for name, result in results.items()
        for estimate in result.estimates
    }
    further = {  # statistics shown in studies only
        f"{name}.{statistic}": ends
        for name, result in results.items()
        for statistic, ends in metrics[name].study_estimates(result.tables).items()
    }
    return StudyPoint(
        case.series, case.x, x, estimates | further, round(time.perf_counter() - started, 3)
    )


def _mark(inputs: EvaluationInputs, metrics: Mapping[str, Metric]) -> str:
    settings = {name: metric.settings() for name, metric in metrics.items()}
    embedder = None if inputs.embedder is None else inputs.embedder.fingerprint()
    return cells_fingerprint(
        np.empty(0), inputs.fingerprints, settings, embedder, inputs.seed, ENGINE_VERSION
    )[:16]


# --- page
# --------------------------------------------------------------------------------------------------


def _page(title: str, axis: str, points: Sequence[StudyPoint], fits: Sequence[LinearFit]) -> str:
    """Return a self-contained page with a plot and the fitted lines of every computed statistic."""
    specs = statistic_specs()
    estimates = [
        {
            "name": name,
            "summary": specs[name].meaning if name in specs else "",
            "plots": list(_plots(points, name, axis)),
            "fits": [line for line in fits if line.statistic == name],
        }
        for name in dict.fromkeys(name for point in points for name in point.estimates)
    ]
    drawn = [estimate for estimate in estimates if estimate["plots"]]
    return render("study.html.j2", {"title": title, "what": _MEANINGS[axis], "estimates": drawn})


def _plots(points: Sequence[StudyPoint], statistic: str, axis: str) -> Iterator[str]:
    """Yield SVGs of one statistic with intervals by ``axis``, each with as many series as there are
    colors.
    """
    names = list(dict.fromkeys(point.series for point in points))
    for first in range(0, len(names), SERIES):
        chosen = names[first : first + SERIES]
        rows = [
            _row(point, statistic)
            for point in points
            if point.series in chosen and statistic in point.estimates
        ]
        svg = intervals_svg(rows, x="x", y="value", series=("series",), labels=(axis, statistic))
        if svg:
            yield svg


def _row(point: StudyPoint, statistic: str) -> dict[str, object]:
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

    sigma: float = Field(
        default=0.0, ge=0, le=10, description="error of numbers and dates in standard deviations"
    )
    lam: float = Field(
        default=0.0, ge=0, le=1000, description="mean of the count added to integers"
    )
    p: float = Field(
        default=0.0, ge=0, le=1, description="probability that a category is resampled"
    )

    def __str__(self) -> str:
        parts = [
            f"{name} {value:g}"
            for name, value in zip(("σ", "λ", "p"), self.values, strict=True)
            if value
        ]
        return ", ".join(parts) or "no noise"

    @property
    def values(self) -> tuple[float, float, float]:
        """sigma, lam and p."""
        return self.sigma, self.lam, self.p

    def added(self, rows: Table, known: Table, rng: np.random.Generator) -> Table:
        """Add noise to ``rows``. Precision, range, spread and categories are computed from
        ``known``.
        """

        def noisy(column: Column) -> Column:
            there = known[column.name].present()
            if len(there) == 0:
                return column
            if column.values is not None:
                return resampled(column, there, self.p, rng)
            if column.kind != "integer":
                return jittered(column, there, self.sigma, rng)
            more = rng.poisson(self.lam, len(column))
            return replace(
                column, cells=np.where(column.missing, column.cells, column.cells + more)
            )

        return rows.map(noisy)


def every_noise(levels: Sequence[float] = (0.0, 0.05)) -> list[Noise]:
    """Return all combinations of sigma, lam and p from ``levels``, the one without noise first."""
    return [Noise(*values) for values in itertools.product(sorted(set(levels)), repeat=3)]


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
    rng, size = np.random.default_rng([seed, 11]), len(release)
    rounds = [rng.permutation(len(train)) for _ in range(-(-size // max(len(train), 1)))]
    leaked = train.take(np.concatenate(rounds)[:size])
    others = release.take(rng.permutation(size))
    noisy = noise.added(leaked, train, np.random.default_rng([seed, 12]))
    count = round(fraction * size)
    return Table.stack([noisy.take(slice(count)), others.take(slice(count, None))])


def leaky_cases(
    train: Table,
    release: Table,
    *,
    fractions: Iterable[float] = FRACTIONS,
    noises: Iterable[Noise] | None = None,
    seed: int = 0,
) -> Iterator[StudyCase]:
    """Yield the cases of the leaky evaluation: every fraction with every noise (default: all of {0,
    0.05}).
    """
    chosen = sorted(set(fractions))
    _check(*chosen)

    def case(noise: Noise, fraction: float) -> StudyCase:
        rows = partial(leaky_table, train, release, fraction, noise, seed)
        return StudyCase(str(noise), fraction, lambda: (rows(), fraction))

    for noise in every_noise() if noises is None else noises:
        yield from (case(noise, fraction) for fraction in chosen)


def _check(*fractions: float) -> None:
    if not all(0 <= fraction <= 1 for fraction in fractions):
        raise ConfigError("fractions must be numbers from 0 to 1.")


# --- tables of an over-fitted generator
# -------------------------------------------------------------------------------


def overfit_cases(
    train: Table,
    rows: int,
    *,
    generator: str | None = None,
    settings: Mapping[str, Any] | None = None,
    ratios: Iterable[float] = RATIOS,
    people: np.ndarray | None = None,
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
        people: Subject of each training row, shape (n_rows,). None: one subject per row.
        seed: Seed of fits and samples.
        device: torch device name.
        progress: Receives progress messages.

    Yields:
        The cases in ascending order of the ratio.

    Raises:
        ConfigError: The generator has no setting "overfit".
    """
    chosen = dict(settings or {})
    if generator is None:
        generator = "realtabformer" if "python" in chosen or find_spec("realtabformer") else "rvae"
    able = sorted(name for name, kind in GENERATORS.items() if hasattr(kind, "overfit"))
    if generator not in able:
        raise ConfigError(
            f"generator {safe_repr(generator)} cannot over-fit to a ratio of losses; these can:"
            f" {', '.join(able)}."
        )
    label = ", ".join(
        [
            generator,
            *(f"{key} {value}" for key, value in chosen.items() if not isinstance(value, str)),
        ]
    )

    def case(ratio: float) -> StudyCase:
        built = build_generator(generator, {**chosen, "overfit": ratio})

        def make() -> tuple[Table, float]:
            fitted = built.fit(train, seed=seed, device=device, progress=progress, people=people)
            reached = [
                row["overfitting_ratio"] for row in fitted.history if "overfitting_ratio" in row
            ]
            return fitted.sample(rows, seed=seed), reached[-1] if reached else 1.0

        return StudyCase(label, ratio, make)

    yield from map(case, sorted(set(ratios)))
