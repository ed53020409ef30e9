"""Singling out: queries that isolate one synthetic row, applied to real people (Palacios eq. 5-7;
Giomi et al.).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.infra.parallel import in_parallel, in_threads
from privacy_assets.infra.settings import Tuple, declared
from privacy_assets.metrics.base import Causes, IntervalPlot, Metric, Plot, Question
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.singling_out.queries import (
    Queries,
    Scheme,
    bin_scheme,
    code_tables,
    matched_subjects,
    multivariate,
    threshold_scheme,
    univariate,
)
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import PermutationResult, extend_to_null
from privacy_assets.stats.intervals import wilson
from privacy_assets.stats.subjects import SETS, Subjects, random_sets
from privacy_assets.tables.arrays import mapped_empty


def label_sets(people: Subjects, n_permutations: int, rng: np.random.Generator) -> np.ndarray:
    """Draw at least ``n_permutations`` random sets of the same number of members, uint64 (people,
    words), one bit per set.

    Each word has its own random stream, so threads do not affect the result.
    """
    streams = rng.spawn(-(-n_permutations // SETS))
    out = mapped_empty((len(people), len(streams)), np.uint64)

    def fill(word: int) -> None:
        out[:, word] = random_sets(len(people), people.members, streams[word])

    in_threads(fill, range(len(streams)))
    return out


@dataclass(frozen=True, eq=False)
class Configuration:
    """Queries of one kind and their matches.

    Attributes:
        attack: Name of the attack.
        columns: Number of columns of a query.
        in_train: Number of members that each query matches, int64 (queries,).
        in_unseen: Number of non-members that each query matches, int64 (queries,).
        null_hits: Number of queries that match exactly one member, for each relabeling, int64
            (n_permutations,).
    """

    attack: str
    columns: int
    in_train: np.ndarray
    in_unseen: np.ndarray
    null_hits: np.ndarray

    def __len__(self) -> int:
        return len(self.in_train)


def exactly_one(total: int, marked: np.ndarray, drawn: int) -> np.ndarray:
    """Return the probability of exactly one of ``marked`` among ``drawn`` of ``total`` subjects."""
    from scipy import stats  # slow to import

    values, inverse = np.unique(marked, return_inverse=True)
    return np.asarray(stats.hypergeom.pmf(1, total, values, drawn))[inverse]


def risks(
    groups: Sequence[Sequence[Configuration]], people: Subjects, fewest: float = 0
) -> PermutationResult:
    """Return the risk of each group of configurations. No group may be without queries.

    The risk is divided by at least ``fewest`` queries.
    """
    found = [_risk(group, people, fewest) for group in groups]
    return PermutationResult(
        np.array([value for value, _ in found]), np.stack([law for _, law in found], axis=1)
    )


def _risk(
    group: Sequence[Configuration], people: Subjects, fewest: float
) -> tuple[float, np.ndarray]:
    """Return the observed risk, and the risk under permuted labels (n_permutations,)."""
    matched = np.concatenate([found.in_train + found.in_unseen for found in group])
    chance = exactly_one(len(people), matched, people.members).sum()
    scale = 1 / (1 - people.members / len(people)) / max(len(matched), fewest)
    hits = sum(int((found.in_train == 1).sum()) for found in group)
    null_hits = np.sum([found.null_hits for found in group], axis=0)
    return scale * (hits - chance), scale * (null_hits - chance)


def describe(found: Configuration, people: Subjects) -> dict[str, Any]:
    """Return the table row of a configuration, without its risk: counts and rates only."""
    attacks, hits = len(found), (found.in_train == 1, found.in_unseen == 1)
    giomi = giomi_risk(
        found.in_train, found.in_unseen, people.members, len(people) - people.members
    )
    return {
        "attack": found.attack,
        "columns": found.columns,
        "attacks": attacks,
        "hits_train": int(hits[0].sum()),
        "hits_unseen": int(hits[1].sum()),
        "rate_train": wilson(hits[0].sum(), attacks)[0],
        "rate_unseen": wilson(hits[1].sum(), attacks)[0],
        "risk": math.nan,
        "low": math.nan,
        "high": math.nan,
        **dict(zip(("giomi", "giomi_low", "giomi_high"), giomi, strict=True)),
    }


def giomi_risk(
    in_train: np.ndarray, in_unseen: np.ndarray, members: int, others: int
) -> tuple[float, float, float]:
    """Return the singling-out risk of the papers: R, R - delta_R and R + delta_R (Palacios eq. 6-7,
    Giomi et al.).

    The success rates r_train and r_control are the centers of Wilson's 95 % intervals, with half
    widths delta_r, and

        R = (r_train - r_control) / (1 - r_control).

    Palacios gives delta_r but no delta_R. It is propagated as in Giomi et al.:

        delta_R^2 = (delta_train / (1 - r_control))^2
            + (delta_control (1 - r_train) / (1 - r_control)^2)^2.

    The papers compare sides of equal size. For other sizes, the hits of the larger side are
    replaced by their expectation in a random subset of the smaller side's size.

    Args:
        in_train: Number of members that each query matches, int64 (queries,).
        in_unseen: Number of non-members that each query matches, int64 (queries,).
        members: Number of members.
        others: Number of non-members.

    Returns:
        R and the ends of its interval, the upper one at most 1. NaN if there are no queries.
    """
    size, queries = min(members, others), len(in_train)
    if queries == 0:
        return math.nan, math.nan, math.nan
    hits = exactly_one(members, in_train, size).sum(), exactly_one(others, in_unseen, size).sum()
    (train, *train_ends), (control, *control_ends) = (wilson(found, queries) for found in hits)
    errors = (np.ptp(train_ends) / 2, np.ptp(control_ends) / 2 * (1 - train) / (1 - control))
    value, half = (train - control) / (1 - control), float(np.hypot(*errors)) / (1 - control)
    return value, value - half, min(value + half, 1.0)


# attack, columns, function that draws queries
_Plan = tuple[str, int, Callable[[np.random.Generator], Queries]]

POOL_FROM = 6  # minimum number of columns of configurations pooled in the limited statistics
_UP_TO_1 = (-math.inf, 1.0)  # a risk can exceed 1 if non-members match too
_NONE = "no query isolates a synthetic row"
NEIGHBOURS = 5  # an outlier is far from its nearest synthetic rows, this many


@declared
class SinglingOut(Metric):
    """Singling-out risk of the synthetic rows.

    An attack predicts that exactly one person of train matches a query. Success by chance is
    subtracted for each query: if k members and m non-members match, k = 1 has the hypergeometric
    probability of drawing one of k + m subjects when the members are drawn from all subjects.

    Args:
        query_sizes: Numbers of columns in a query, one configuration each (at most the number of
            columns of the table).
        n_queries: Maximum number of queries per configuration.
        n_permutations: Number of permutations of the membership labels.
        candidates: Maximum number of candidate queries per configuration.
        patience: Number of consecutive failed candidates that ends a configuration.
        outliers: Number of most isolated synthetic rows that the embedded attack targets.
        negligible: Minimum denominator of the pooled risks as a share of the people of train.

    Attributes:
        risk: Risk of multivariate queries of 6 and more columns (or the largest number there is).
        risk_univariate: Risk of queries on one unique or extreme value.
        risk_embedded: Risk of queries on outliers of the embedding, pooled like ``risk``.
        risk_max: Largest risk over all configurations, which is above 0 by chance.
        risk_giomi: Risk as published ("SO" in table I of Palacios): the largest R of eq. 7 over the
            univariate and multivariate queries, which is above 0 by chance.
        risk_giomi_embedded: The same for queries on outliers of the embedding ("SO + CL").

    Notes:
        A query hits if exactly one subject of train matches it, with one row or several; with one
        row per subject this is "exactly one record" as in the papers. For a set of queries

            risk = sum over queries of ([k = 1] - h(k + m)) / (1 - n_T / (n_T + n_H)) / queries,

        where k members and m non-members match, n counts subjects (H: holdout and reference), and
        h(K) is the probability of drawing exactly one of K when n_T of n_T + n_H are drawn. It is 0
        on average for a table that does not depend on membership, at any sizes, and 1 if every
        query hits one member and no non-member. It can exceed 1 if non-members match too, because h
        decreases; statistics are therefore cut at 1. Intervals permute labels by subject; h is
        exact under permutation.

        Numbers and times are queried by threshold as in the papers (``>= v`` above the median,
        otherwise ``<= v``). In a table of few coarse columns such queries isolate only about a
        tenth of the rows, and the interval is wide. If there are no more of them, the remaining
        queries use the bin that contains the value, as the embedded attack does.

        ``risk`` and ``risk_embedded`` are divided by at least F queries, where F is ``negligible``
        times the smallest of the people of train, the synthetic rows and ``n_queries``. A handful
        of queries is a small part of those possible.

        Queries match exactly one distinct row of S. Otherwise copies could be hidden by writing
        each of them twice, next to irrelevant unique rows, and a table too coarse to single out
        anyone could not be evaluated. Fewer queries than ``n_queries`` mean that S allows hardly
        any more. A configuration without queries is not measurable.

        ``risk_giomi`` and ``risk_giomi_embedded`` are for comparisons with the papers
        (:func:`giomi_risk`). They differ from ``risk`` in three ways. Chance is the success on an
        equal number of non-members, not the probability of each query. The interval treats queries
        as independent, although several can match one person. It belongs to the largest
        configuration alone and ignores that this one was selected. The papers use at most 2,000
        queries per configuration, with 1 and 3 to 12 columns.
    """

    name: ClassVar[str] = "singling_out"
    summary: ClassVar[str] = "Do queries that isolate a synthetic row isolate a real person?"
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference", "embedder"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "risk",
            "Share of descriptions by 6 to 12 columns that fit exactly one person in the"
            " training data, minus the"
            " share expected by chance.",
            leak="{share} of the descriptions by 6 to 12 columns fitted exactly one person in the"
            " training data",
        ),
        StatisticSpec(
            "risk_univariate",
            "Share of descriptions by an extreme or unique value that fit exactly one member,"
            " beyond chance.",
        ),
        StatisticSpec(
            "risk_embedded",
            "Share of queries on outliers of the embedding that isolate a member beyond chance.",
            embedded=True,
        ),
        StatisticSpec(
            "risk_max",
            "Largest risk over all configurations, which is above 0 by chance.",
            null=None,
            embedded=True,
        ),
        StatisticSpec(
            "risk_giomi",
            "Singling-out risk as published by Giomi and Palacios: the largest configuration,"
            " above 0 by chance.",
            null=math.nan,
        ),
        StatisticSpec(
            "risk_giomi_embedded",
            "The published risk of queries on outliers of the embedding, above 0 by chance.",
            null=math.nan,
            embedded=True,
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "singling_out.risk",
            at_most=0.09,
            min_subjects=500,
            source="re-identification ceiling of 0.09 of EMA Policy 0070 and Health Canada",
        ),
        Limit(
            "singling_out.risk",
            at_most=0.01,
            bound="proven",
            source="significant at 95 %; see the lab report on leaks",
        ),
    )

    plots: ClassVar[tuple[Plot, ...]] = (
        IntervalPlot(
            table="configurations",
            caption="Singling-out risk by number of columns in the query: 0 if members are hit as"
            " often as by chance, "
            "1 if every query hits one.",
            x="columns",
            y="risk",
            series=("attack",),
            axis_labels=("columns in the query", "risk"),
        ),
    )
    question: ClassVar[Question | None] = "singling out"
    causes: ClassVar[Causes] = Causes("rare values")

    query_sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Tuple] = Field(
        default=(3, 4, 6, 8, 10, 12),
        min_length=1,
        description="numbers of columns in a query, one configuration each",
    )
    n_queries: int = Field(
        default=8000, ge=1, description="maximum number of queries per configuration"
    )
    n_permutations: int = Field(
        default=1000, ge=99, description="number of permutations of the membership labels"
    )
    candidates: int = Field(
        default=1_000_000, ge=1, description="maximum number of candidate queries per configuration"
    )
    patience: int = Field(
        default=100_000, ge=1, description="consecutive failed candidates that end a configuration"
    )
    outliers: int = Field(
        default=2000, ge=1, description="number of most isolated synthetic rows in the embedding"
    )
    negligible: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="minimum denominator of the pooled risks, as a share of people",
    )

    @classmethod
    def study_estimates(
        cls, tables: Mapping[str, list[dict[str, Any]]]
    ) -> dict[str, tuple[float, float, float]]:
        """Return the risk by number of columns, as in figure 3 of Palacios."""
        return {
            f"risk of {row['columns']} columns": (row["risk"], row["low"], row["high"])
            for row in tables.get("configurations", [])
            if row["attack"] == "multivariate"
            and None not in (row["risk"], row["low"], row["high"])
        }

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the table "configurations"."""
        people = inputs.all_subjects
        if people.smallest_side == 0 or len(inputs.synthetic) == 0:
            note = "train, holdout and synthetic need at least one row each"
            estimates = tuple(spec.missing(note, people.counts) for spec in self.statistics)
            return self.result(inputs, estimates, configurations=[])
        attacked = self._attack(inputs, people)
        measured = [found for found in attacked if len(found)]
        fewest = self.negligible * min(people.members, len(inputs.synthetic), self.n_queries)
        evidence = risks([[found] for found in measured], people) if measured else None
        estimates = (
            self._pooled("risk", _pool(attacked, "multivariate"), people, fewest),
            self._univariate(attacked[0], evidence, people),
            self._pooled("risk_embedded", _pool(attacked, "embedded"), people, fewest),
            self._largest(evidence, people),
            self._published(
                "risk_giomi", [found for found in attacked if found.attack != "embedded"], people
            ),
            self._published(
                "risk_giomi_embedded",
                [found for found in attacked if found.attack == "embedded"],
                people,
            ),
        )
        return self.result(inputs, estimates, configurations=_table(attacked, evidence, people))

    def _pooled(
        self, name: str, pool: Sequence[Configuration], people: Subjects, fewest: float
    ) -> Estimate:
        """Return a statistic pooled over configurations."""
        spec, measured = self.statistic(name), [found for found in pool if len(found)]
        if not measured:
            return spec.missing(_NONE if pool else "no embedder was passed", people.counts)
        widest = max(found.columns for found in pool)
        note = (
            "" if widest >= POOL_FROM else f"queries have {widest} columns, not {POOL_FROM} or more"
        )
        return risks([measured], people, fewest).estimate(
            spec, people.counts, within=_UP_TO_1, note=note
        )

    def _univariate(
        self, found: Configuration, evidence: PermutationResult | None, people: Subjects
    ) -> Estimate:
        spec = self.statistic("risk_univariate")
        if evidence is None or not len(found):
            return spec.missing("no value is unique among the synthetic rows", people.counts)
        return evidence.estimate(spec, people.counts, within=_UP_TO_1)

    def _largest(self, evidence: PermutationResult | None, people: Subjects) -> Estimate:
        spec = self.statistic("risk_max")
        if evidence is None:
            return spec.missing(_NONE, people.counts)
        note = (
            f"the largest of {len(evidence)} configurations; the interval holds for all of them"
            " jointly"
        )
        return evidence.largest(spec, people.counts, note)

    def _published(
        self, name: str, attacked: Sequence[Configuration], people: Subjects
    ) -> Estimate:
        """Return the largest risk of the papers over configurations (Palacios 5.3)."""
        spec, measured = (
            self.statistic(name),
            [describe(found, people) for found in attacked if len(found)],
        )
        if not measured:
            return spec.missing(_NONE if attacked else "no embedder was passed", people.counts)
        most = max(measured, key=lambda row: float(row["giomi"]))
        columns = "1 column" if most["columns"] == 1 else f"{most['columns']} columns"
        note = (
            f"the largest of {len(measured)} configurations: {most['attacks']:,} queries on"
            f" {columns}"
        )
        return spec.estimate(
            most["giomi"], most["giomi_low"], most["giomi_high"], people.counts, note=note
        )

    def _attack(self, inputs: EvaluationInputs, people: Subjects) -> list[Configuration]:
        """Attack with every configuration. Each has its own random stream and thread."""
        # Distinct synthetic rows, sorted by content and then shuffled.
        distinct = np.unique(inputs.row_ids["synthetic"], return_index=True)[1]
        rows = inputs.rng("singling_out rows").permutation(distinct)
        table, real = code_tables([[inputs.synthetic], inputs.real], inputs.schema, rows)
        widths = sorted({min(width, len(table.start)) for width in self.query_sizes})
        plans: list[_Plan] = [("univariate", 1, partial(univariate, table, self.n_queries))]
        aims: list[tuple[str, Sequence[Scheme], np.ndarray]] = [
            ("multivariate", (threshold_scheme(table), bin_scheme(table)), np.arange(len(rows)))
        ]
        if inputs.embedder is not None:
            outliers = _outliers(inputs.embedded("synthetic")[rows], self.outliers, inputs.device)
            aims.append(("embedded", (bin_scheme(table),), outliers))
        sought = partial(multivariate, table, candidates=self.candidates, patience=self.patience)
        for name, schemes, targets in aims:
            for width in widths:
                plans.append(
                    (name, width, partial(sought, schemes, targets, width, self.n_queries))
                )
        labels = label_sets(people, self.n_permutations, inputs.rng("singling_out labels"))

        def attack(planned: tuple[_Plan, np.random.Generator]) -> Configuration:
            (name, width, draw), rng = planned
            counts, hits = matched_subjects(draw(rng), real, people.codes, people.member, labels)
            return Configuration(
                name, width, counts[:, 1], counts[:, 0], hits[: self.n_permutations]
            )

        inputs.progress(f"singling out: {len(plans)} configurations of queries")
        return in_parallel(
            attack, [(plan, inputs.rng(f"singling_out {plan[0]} {plan[1]}")) for plan in plans]
        )


def _outliers(embedding: np.ndarray, number: int, device: str) -> np.ndarray:
    """Return the positions of the ``number`` rows with the largest mean distance to their 5 nearest
    other rows.
    """
    neighbours = min(NEIGHBOURS, len(embedding) - 1)
    if neighbours == 0:
        return np.arange(len(embedding))
    from privacy_assets.distances.nearest import nearest

    found = nearest(embedding, embedding, neighbours, exclude_self=True, device=device)
    return np.argsort(-found.distances.mean(axis=1), kind="stable")[:number]


def _pool(attacked: Sequence[Configuration], attack: str) -> list[Configuration]:
    """Return the configurations pooled in a limited statistic: 6 columns and more, or the largest
    number there is.
    """
    own = [found for found in attacked if found.attack == attack]
    widest = max((found.columns for found in own), default=0)
    return [found for found in own if found.columns >= min(POOL_FROM, widest)]


def _table(
    attacked: Sequence[Configuration], evidence: PermutationResult | None, people: Subjects
) -> list[dict[str, Any]]:
    """Return a row for each configuration, with simultaneous intervals."""
    rows = [describe(found, people) for found in attacked]
    if evidence is not None:
        ends = np.minimum([evidence.observed, *extend_to_null(evidence.band(), 0.0)], 1.0)
        for row, found in zip(
            (row for row in rows if row["attacks"]), ends.T.tolist(), strict=True
        ):
            row |= dict(zip(("risk", "low", "high"), found, strict=True))
    return rows
