"""A study: tables of known truth judged by every metric, one resumable line each, and how the statistics follow."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privacy_assets.compute.progress import advance
from privacy_assets.errors import InputError
from privacy_assets.evaluation import run_metrics
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.registry import statistic_specs
from privacy_assets.stats.estimates import plain
from privacy_assets.storage.files import put_atomic
from privacy_assets.tables.fingerprints import cells_fingerprint
from privacy_assets.tables.table import Table
from privacy_assets.version import ENGINE_VERSION

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Case:
    """A table to be made: the ``series`` of points it belongs to, where on the axis, and how.

    ``make`` gives the rows, and where they came to lie on the axis.
    """

    series: str
    x: float
    make: Callable[[], tuple[Table, float]]


@dataclass(frozen=True, slots=True)
class Point:
    """One table judged. ``estimates``: value, low and high by name ("metric.statistic"); NaN: not measurable.

    ``wanted`` is the place on the axis that was asked for, ``x`` the one that was reached.
    """

    series: str
    wanted: float
    x: float
    estimates: Mapping[str, tuple[float, float, float]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """A plain mapping; NaN becomes None."""
        return dict(plain(asdict(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Point:
        """Inverse of :meth:`to_json`."""
        triples = {
            name: tuple(math.nan if part is None else float(part) for part in parts)
            for name, parts in data["estimates"].items()
        }
        return cls(data["series"], data["wanted"], data["x"], triples, data["seconds"])  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Fit:
    """How one statistic of one series follows the axis: a straight line by least squares.

    ``r2`` is its share of the variance; ``rises`` is False when a point's whole interval lies on the harmless side of
    an earlier one: below, or above for a statistic of which less is riskier.
    """

    series: str
    statistic: str
    points: int
    slope: float
    intercept: float
    r2: float
    rises: bool


def run_study(
    inputs: MetricInputs, cases: Iterable[Case], metrics: Mapping[str, Metric], path: Path | None = None
) -> list[Point]:
    """Judge every case by ``metrics`` and give the points in the order of the cases.

    ``inputs`` hold the real tables (and the embedder); in place of a synthetic one stand the rows of the release, which
    are not judged themselves. With a ``path`` each point is a line of that file as soon as it is there, under what it
    was computed from (rows, seed, settings, engine): a study that was stopped goes on, and another one in the same file
    is neither taken up nor lost. The lines hold statistics only.
    """
    mark = _mark(inputs, metrics)
    held = {} if path is None else {(p.series, p.wanted): p for p in read_points(path, mark)}
    points, asked = [], list(cases)
    for number, case in enumerate(asked, start=1):
        point = held.get((case.series, case.x))
        if point is None:
            advance(inputs.progress, "study: tables", number - 1, len(asked))
            point = _judged(inputs, case, metrics)
            if path is not None:
                _add_line(path, json.dumps({"mark": mark, **point.to_json()}, allow_nan=False))
        points.append(point)
    advance(inputs.progress, "study: tables", None)
    return points


def read_points(path: Path, mark: str | None = None) -> list[Point]:
    """The points that a file holds, all or those of one study; a line that was cut off is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            data = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(data, dict) or not {"mark", "series", "wanted", "x", "estimates", "seconds"} <= set(data):
            raise InputError("this is no file of a study", where=str(path), fix="name another file")
        if mark is None or data["mark"] == mark:
            found.append(Point.from_json(data))
    return found


def fits(points: Iterable[Point]) -> list[Fit]:
    """A line for each series and statistic with at least 3 measured points at different places."""
    series: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
    for point in points:
        for name, (value, low, high) in point.estimates.items():
            if math.isfinite(value):
                series.setdefault((point.series, name), []).append((point.x, value, low, high))
    found, specs = [], statistic_specs()
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
        found.append(Fit(label, name, len(x), float(slope), float(intercept), r2, rises))
    return found


def _add_line(path: Path, line: str) -> None:
    """Place the file anew with one line more: none is ever cut off, nor added to one that somebody else cut off."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    end = "" if before.endswith("\n") or not before else "\n"
    put_atomic(path, f"{before}{end}{line}\n".encode())


def _judged(inputs: MetricInputs, case: Case, metrics: Mapping[str, Metric]) -> Point:
    started = time.perf_counter()
    rows, x = case.make()
    results = run_metrics(replace(inputs, tables={**inputs.tables, "synthetic": rows}), metrics)
    estimates = {
        f"{name}.{estimate.name}": (estimate.value, estimate.low, estimate.high)
        for name, result in results.items()
        for estimate in result.estimates
    }
    further = {  # what metrics show in studies alone
        f"{name}.{statistic}": ends
        for name, result in results.items()
        for statistic, ends in metrics[name].study_estimates(result.tables).items()
    }
    return Point(case.series, case.x, x, estimates | further, round(time.perf_counter() - started, 3))


def _mark(inputs: MetricInputs, metrics: Mapping[str, Metric]) -> str:
    settings = {name: metric.settings() for name, metric in metrics.items()}
    embedder = None if inputs.embedder is None else inputs.embedder.fingerprint()
    return cells_fingerprint(np.empty(0), inputs.fingerprints, settings, embedder, inputs.seed, ENGINE_VERSION)[:16]
