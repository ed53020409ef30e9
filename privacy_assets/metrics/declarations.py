"""What a metric declares of itself beside its statistics, in plain values: a new one says all of it in its own file.

How a plot looks and how advice is worded is up to ``privacy_assets.report``, which reads this and knows no metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Question = Literal["copies", "singling out", "linking", "inference", "membership"]
Cause = Literal[
    "copied rows", "over-fitting", "rare values", "members avoided", "identifiers", "foreign values",
    "earlier releases", "poor fit", "small holdout", "seen holdout", "few tests",
]  # fmt: skip
Part = Literal["membership", "attribute"]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """How the rows of the result's ``table`` are drawn, under a ``caption`` of one or two sentences.

    With ``by``, a column, there is a plot for each of its values, which stands in the caption at ``{}``.
    """

    table: str
    caption: str
    by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Intervals(Plot):
    """The column ``y`` with its interval (columns "low" and "high") by the column ``x`` and those of ``series``.

    ``labels`` are those of the axes, x first. ``log``: the axis of x is logarithmic. A line is drawn at ``null``.
    """

    x: str
    y: str
    labels: tuple[str, str]
    series: tuple[str, ...] = ()
    log: bool = False
    null: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Curves(Plot):
    """A curve for each entry of ``curves``: what it is called -> its columns of x and of y.

    ``labels`` are those of the axes, x first. ``log``: both axes are logarithmic.
    """

    curves: Mapping[str, tuple[str, str]]
    labels: tuple[str, str]
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Grades(Plot):
    """A bar for each row: column ``points``, from 0 to 100, in the colour of its grade, beside column ``label``."""

    label: str
    points: str


@dataclass(frozen=True, kw_only=True)
class Levels(Plot):
    """A pie of the columns "level", "attacks" and "share"."""


@dataclass(frozen=True, kw_only=True)
class Shares(Plot):
    """Bars from 0 to 1 for each row and entry of ``series`` (column -> words), beside column ``label``.

    ``log``: their axis is logarithmic.
    """

    label: str
    series: Mapping[str, str]
    log: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """A statistic that is set beside itself as it was before the filters: its name, short words for it, its meaning."""

    statistic: str
    words: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Protected:
    """Statistics that measure what a protection, ``by`` its name in the privacy configuration, is for.

    Those of metrics that measure it ``mainly`` stand first.
    """

    by: str
    statistics: tuple[str, ...]
    mainly: bool = True


@dataclass(frozen=True, slots=True)
class Causes:
    """What a limit of the metric speaks of when it does not hold, see :mod:`privacy_assets.report.advice`.

    ``broken`` is the cause of broken limits, ``by_statistic`` that of those on the statistics named. None: any leak
    breaks them, so that they tell no cause from another. ``doubt`` is why a limit could not be judged.
    """

    broken: Cause | None = None
    by_statistic: Mapping[str, Cause] = field(default_factory=dict)
    doubt: Cause = "small holdout"
