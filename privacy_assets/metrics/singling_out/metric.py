"""Singling out: queries that isolate one synthetic row, asked of real people (Palacios eq. 5-7; Giomi et al.).

An attack is the guess "exactly one person of the train table matches this query". Guesses come true by chance as well,
so each is held against its own chance: a query that k members and m other people match has k = 1 with the
hypergeometric probability of drawing one of k + m when the members were drawn from everyone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.compute.parallel import in_parallel
from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.declarations import Causes, Intervals, Plot, Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.singling_out.evidence import Configuration, describe, label_sets, risks
from privacy_assets.metrics.singling_out.predicates import (
    Queries,
    Scheme,
    bin_scheme,
    code_tables,
    matched_subjects,
    multivariate,
    threshold_scheme,
    univariate,
)
from privacy_assets.settings import Tuple, declared
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import Evidence, reaching
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import Subjects

_Plan = tuple[str, int, Callable[[np.random.Generator], Queries]]  # attack, columns, and how queries are drawn

POOL_FROM = 6  # configurations of this many columns and more are pooled in the limited statistics
_UP_TO_1 = (-math.inf, 1.0)  # where others match too a risk can exceed 1
_NONE = "no query isolates a synthetic row"
NEIGHBOURS = 5  # an outlier is far from this many of its nearest synthetic rows


@declared
class SinglingOut(Metric):
    """Singling-out risk of the synthetic rows.

    A query *hits* when exactly one person of the train table matches it, with one row or several: the law speaks of
    people. With one row a person this is the papers' "exactly one record". For a configuration, that is an attack with
    a number of columns,

        risk = sum over its queries of ([k = 1] - h(k + m)) / (1 - n_T / (n_T + n_H)) / queries,

    where k members and m unseen people match, n counts people (H: of the holdout, and of the reference where there is
    one: the more people, the narrower the interval), and h(K) is the probability of drawing exactly one of K
    when n_T of all n_T + n_H are drawn. It is 0 on average for a table that does not depend on who was in train, at
    any sizes, and 1 when every query hits one member and nobody else. It can exceed 1 when others match too (h falls),
    so statistics are cut off at 1. Intervals permute the labels of people; h is exact under that law, with several rows
    a person as well.

    Numbers and times are asked for by threshold, as in the papers (``>= v`` above the median, ``<= v`` else). On a
    table of few coarse columns such queries isolate its corners only, a tenth of the rows, and the interval is wide;
    so where there are no more of them the rest of the attacks asks for the bin that holds the value, as the embedded
    attack does. ``risk`` and ``risk_embedded``, which pool configurations, count fewer queries than F as F:
    ``negligible`` times the people of train, or the synthetic rows or ``attacks`` where those are fewer. Where a coarse
    table allows a handful of queries, they are a small part of what could be asked.

    Queries must match exactly one row of S, rows that S repeats counting once: otherwise writing every copy twice,
    beside rows of no interest that stand once, would hide it, and a table too coarse to single anyone out could not be
    judged.
    Fewer attacks than wanted mean that S holds hardly any more of them; a configuration without any is not measurable.

    Settings: ``columns`` of a query (at most the table's), ``attacks`` a configuration, ``permutations`` of labels,
    ``candidates`` tried a configuration at most, ``patience`` candidates in a row without success, ``outliers`` the
    number of most isolated synthetic rows that the embedded attack aims at, ``negligible`` the share of the
    people below which a number of queries does not count as all.
    """

    name: ClassVar[str] = "singling_out"
    summary: ClassVar[str] = "How often queries that isolate a synthetic row isolate a real person."
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional: ClassVar[frozenset[str]] = frozenset({"reference", "embedder"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec("risk", "Share of multivariate queries (6 to 12 columns) that isolate a member beyond chance."),
        StatisticSpec(
            "risk_univariate", "Share of queries on one extreme or unique value that isolate a member beyond chance."
        ),
        StatisticSpec(
            "risk_embedded", "Share of queries on outliers of the embedding that isolate a member beyond chance."
        ),
        StatisticSpec(
            "risk_max",
            "The largest risk over all configurations: the best of several, so above 0 by chance.",
            null=None,
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "singling_out.risk",
            at_most=0.09,
            smallest_n=500,
            source="re-identification ceiling of 0.09 of EMA Policy 0070 and Health Canada",
        ),
    )

    plots: ClassVar[tuple[Plot, ...]] = (
        Intervals(
            table="configurations",
            caption="Singling-out risk by number of columns in the query: 0 when members are hit no more often than "
            "chance gives, 1 when every query hits one.",
            x="columns",
            y="risk",
            series=("attack",),
            labels=("columns in the query", "risk"),
        ),
    )
    question: ClassVar[Question | None] = "singling out"
    causes: ClassVar[Causes] = Causes("rare values")

    columns: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Tuple] = Field(
        default=(3, 4, 6, 8, 10, 12), min_length=1, description="numbers of columns in a query, a configuration each"
    )
    attacks: int = Field(default=8000, ge=1, description="queries a configuration, at most")
    permutations: int = Field(default=1000, ge=99, description="permutations of the labels of people")
    candidates: int = Field(default=1_000_000, ge=1, description="queries that are tried for these, at most")
    patience: int = Field(default=100_000, ge=1, description="tries without a new query that end a configuration")
    outliers: int = Field(default=2000, ge=1, description="synthetic rows farthest from others in the embedding")
    negligible: float = Field(default=0.25, ge=0, le=1, description="share of people that fewer queries count as")

    @classmethod
    def study_estimates(cls, tables: Mapping[str, list[dict[str, Any]]]) -> dict[str, tuple[float, float, float]]:
        """The risk by the number of columns of the queries, as Palacios' figure 3 has it."""
        return {
            f"risk of {row['columns']} columns": (row["risk"], row["low"], row["high"])
            for row in tables.get("configurations", [])
            if row["attack"] == "multivariate" and None not in (row["risk"], row["low"], row["high"])
        }

    def measure(self, inputs: MetricInputs) -> Measured:
        """Attack with every configuration; see the class for the definitions."""
        people = inputs.everyone
        if people.smallest_side == 0 or len(inputs.synthetic) == 0:
            note = "train, holdout and synthetic need at least one row each"
            estimates = tuple(spec.missing(note, people.counts) for spec in self.statistics)
            return Measured(estimates, {"configurations": []})
        attacked = self._attack(inputs, people)
        measured = [found for found in attacked if len(found)]
        fewest = self.negligible * min(people.members, len(inputs.synthetic), self.attacks)
        evidence = risks([[found] for found in measured], people) if measured else None
        estimates = (
            self._pooled("risk", _pool(attacked, "multivariate"), people, fewest),
            self._univariate(attacked[0], evidence, people),
            self._pooled("risk_embedded", _pool(attacked, "embedded"), people, fewest),
            self._largest(evidence, people),
        )
        return Measured(estimates, {"configurations": _table(attacked, evidence, people)})

    def _pooled(self, name: str, pool: Sequence[Configuration], people: Subjects, fewest: float) -> Estimate:
        """The statistic of some configurations together."""
        spec, measured = self.spec(name), [found for found in pool if len(found)]
        if not measured:
            return spec.missing(_NONE if pool else "no embedder was given", people.counts)
        widest = max(found.columns for found in pool)
        note = "" if widest >= POOL_FROM else f"queries have {widest} columns, not {POOL_FROM} and more"
        return risks([measured], people, fewest).estimate(spec, people.counts, within=_UP_TO_1, note=note)

    def _univariate(self, found: Configuration, evidence: Evidence | None, people: Subjects) -> Estimate:
        spec = self.spec("risk_univariate")
        if evidence is None or not len(found):
            return spec.missing("no value is unique among the synthetic rows", people.counts)
        return evidence.estimate(spec, people.counts, within=_UP_TO_1)

    def _largest(self, evidence: Evidence | None, people: Subjects) -> Estimate:
        spec = self.spec("risk_max")
        if evidence is None:
            return spec.missing(_NONE, people.counts)
        note = f"the largest of {len(evidence)} configurations; its interval holds for all of them at once"
        return evidence.largest(spec, people.counts, note)

    def _attack(self, inputs: MetricInputs, people: Subjects) -> list[Configuration]:
        """Every configuration with the people that its queries match; each has its own random stream and thread."""
        # Distinct synthetic rows, shuffled from an order that only their content decides.
        distinct = np.unique(inputs.row_ids["synthetic"], return_index=True)[1]
        rows = inputs.rng("singling_out rows").permutation(distinct)
        table, real = code_tables([[inputs.synthetic], inputs.real], inputs.schema, rows)
        widths = sorted({min(width, len(table.start)) for width in self.columns})
        plans: list[_Plan] = [("univariate", 1, partial(univariate, table, self.attacks))]
        aims: list[tuple[str, Sequence[Scheme], np.ndarray]] = [
            ("multivariate", (threshold_scheme(table), bin_scheme(table)), np.arange(len(rows)))
        ]
        if inputs.embedder is not None:
            outliers = _outliers(inputs.embedded("synthetic")[rows], self.outliers, inputs.device)
            aims.append(("embedded", (bin_scheme(table),), outliers))
        sought = partial(multivariate, table, candidates=self.candidates, patience=self.patience)
        for name, schemes, targets in aims:
            for width in widths:
                plans.append((name, width, partial(sought, schemes, targets, width, self.attacks)))
        labels = label_sets(people, self.permutations, inputs.rng("singling_out labels"))

        def attack(planned: tuple[_Plan, np.random.Generator]) -> Configuration:
            (name, width, draw), rng = planned
            counts, hits = matched_subjects(draw(rng), real, people.codes, people.member, labels)
            return Configuration(name, width, counts[:, 1], counts[:, 0], hits[: self.permutations])

        inputs.progress(f"singling out: {len(plans)} configurations of queries")
        return in_parallel(attack, [(plan, inputs.rng(f"singling_out {plan[0]} {plan[1]}")) for plan in plans])


def _outliers(embedding: np.ndarray, number: int, device: str) -> np.ndarray:
    """Positions of the ``number`` rows with the largest mean distance to their 5 nearest other rows."""
    neighbours = min(NEIGHBOURS, len(embedding) - 1)
    if neighbours == 0:
        return np.arange(len(embedding))
    from privacy_assets.neighbours.nearest import nearest

    found = nearest(embedding, embedding, neighbours, exclude_self=True, device=device)
    return np.argsort(-found.distances.mean(axis=1), kind="stable")[:number]


def _pool(attacked: Sequence[Configuration], attack: str) -> list[Configuration]:
    """The configurations that a limited statistic pools: 6 columns and more, else the widest there is."""
    own = [found for found in attacked if found.attack == attack]
    widest = max((found.columns for found in own), default=0)
    return [found for found in own if found.columns >= min(POOL_FROM, widest)]


def _table(attacked: Sequence[Configuration], evidence: Evidence | None, people: Subjects) -> list[dict[str, Any]]:
    """One row a configuration; intervals hold for all at once."""
    rows = [describe(found, people) for found in attacked]
    if evidence is not None:
        ends = np.minimum([evidence.observed, *reaching(evidence.band(), 0.0)], 1.0)
        for row, found in zip((row for row in rows if row["attacks"]), ends.T.tolist(), strict=True):
            row |= dict(zip(("risk", "low", "high"), found, strict=True))
    return rows
