"""The one form of a metric; assets, checks, command line, report and policy are derived from it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from privacy_assets.metrics.declarations import Causes, Compared, Part, Plot, Protected, Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.results import MetricResult
from privacy_assets.version import ENGINE_VERSION

if TYPE_CHECKING:
    from privacy_assets.generators.base import Generator
    from privacy_assets.policy import Policy


@dataclass(frozen=True, slots=True)
class Measured:
    """What :meth:`Metric.measure` returns: statistics and small tables for the report."""

    estimates: tuple[Estimate, ...]
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)


def rows_of(**columns: Any) -> list[dict[str, Any]]:
    """The rows of a small table, in plain values, of its ``columns``: arrays or lists of one length."""
    plain = [np.asarray(values).tolist() for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True)]


class Metric(ABC):
    """A metric: subclass it as a frozen dataclass whose fields are the settings, each with a default.

    ``name`` is file name, asset name and policy prefix. ``needs`` are the inputs it reads ("train", "holdout",
    "synthetic", "reference", "released", "embedder"); ``optional`` those it uses when there. One that does not run
    ``by_default`` runs when it is asked for, by name or by a limit on one of its statistics, or where all tables of
    ``if_external`` came from outside, so that nobody saw how they were made. One that is not ``in_studies`` speaks of
    what surrounds a table, so that tables of known truth tell nothing about it. One that ``attacks_generator`` is given
    it by :meth:`for_generator`, and states it as its setting "generator".

    What others need to know of it: the ``question`` of the report that its attacks answer; ``plots`` of its tables, the
    first of which is the chart of the question; ``causes`` of limits that do not hold; ``smallest_leak``, by question
    its statistics that say how much of what would have shown;
    ``protections`` that its statistics speak of; ``compared``, the statistic that a filter is judged by;
    ``utility``, its statistics of use, each with that of as many real rows; ``protection_score``, its statistics that
    are a part of Gretel's Data Privacy Score; ``if_generated``, statistics of which one must be limited where columns
    are generated; ``small_limits``, by key, how wide limits are in the policy ``small``.
    """

    part: ClassVar[str] = "metric"
    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    optional: ClassVar[frozenset[str]] = frozenset()
    statistics: ClassVar[tuple[StatisticSpec, ...]]
    default_limits: ClassVar[tuple[Limit, ...]] = ()
    small_limits: ClassVar[Mapping[str, float]] = MappingProxyType({})
    by_default: ClassVar[bool] = True
    if_external: ClassVar[frozenset[str]] = frozenset()
    in_studies: ClassVar[bool] = True
    attacks_generator: ClassVar[bool] = False
    question: ClassVar[Question | None] = None
    plots: ClassVar[tuple[Plot, ...]] = ()
    causes: ClassVar[Causes] = Causes()
    smallest_leak: ClassVar[Mapping[Question, Mapping[str, str]]] = MappingProxyType({})
    protections: ClassVar[tuple[Protected, ...]] = ()
    compared: ClassVar[Compared | None] = None
    utility: ClassVar[Mapping[str, str]] = MappingProxyType({})
    protection_score: ClassVar[Mapping[Part, str]] = MappingProxyType({})
    if_generated: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def spec(cls, name: str) -> StatisticSpec:
        """The spec of the statistic called ``name``; KeyError when there is none."""
        for spec in cls.statistics:
            if spec.name == name:
                return spec
        raise KeyError(f"{cls.name} has no statistic {name!r}")

    @classmethod
    def study_estimates(cls, tables: Mapping[str, list[dict[str, Any]]]) -> dict[str, tuple[float, float, float]]:
        """Further statistics of a study, from the result's tables: value, low and high by what the page calls them."""
        return {}

    def reads(self, role: str) -> bool:
        """True when it is given the input ``role``, where that is there."""
        return role in self.needs | self.optional

    @property
    def uses_device(self) -> bool:
        """True when it runs a network of its own, so that it is given an accelerator where there is one."""
        return False

    def for_generator(self, generator: Generator | None) -> Metric:
        """The metric for tables of ``generator``, where it asks for one; None: an external table without one."""
        return self

    def under(self, policy: Policy, metrics: Mapping[str, Metric]) -> Metric:
        """The metric where it runs under ``policy`` beside ``metrics`` (by name), where it asks for these."""
        return self

    @abstractmethod
    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute statistics and tables. Deterministic for ``inputs.seed``."""

    def not_measurable(self, reason: str, counts: tuple[int, int], **tables: list[dict[str, Any]]) -> Measured:
        """Every statistic without a number, for what these tables are too small for; ``counts`` are rows and
        subjects.
        """
        return Measured(tuple(spec.not_measurable(reason, counts) for spec in self.statistics), tables)

    def settings(self) -> dict[str, Any]:
        """The metric's settings as a plain mapping."""
        return asdict(self) if is_dataclass(self) else {}

    def evaluate(self, inputs: MetricInputs) -> MetricResult:
        """Measure and wrap the outcome with settings, seed, version, input fingerprints and wall seconds."""
        started = time.perf_counter()
        measured = self.measure(inputs)
        read = [role for role in inputs.fingerprints if self.reads(role)]
        return MetricResult(
            metric=self.name,
            estimates=measured.estimates,
            tables=measured.tables,
            settings=self.settings(),
            inputs={role: inputs.fingerprints[role] for role in read},
            seed=inputs.seed,
            engine_version=ENGINE_VERSION,
            seconds=time.perf_counter() - started,
        )
