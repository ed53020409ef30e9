"""Singling out: queries that isolate one synthetic row, applied to real people (Palacios eq. 5-7;
Giomi et al.).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from privacy_assets.infra.parallel import in_parallel, in_threads
from privacy_assets.infra.settings import Tuple, declared
from privacy_assets.metrics.base import Causes, IntervalPlot, Metric, Plot, Question
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.singling_out.queries import (
    CodedTable,
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


def label_sets(subjects: Subjects, n_permutations: int, rng: np.random.Generator) -> np.ndarray:
    """Draw random sets of as many subjects as there are members.

    Each word has its own random stream, so threads do not affect the result.

    Args:
        subjects: The s subjects, with their membership.
        n_permutations: Minimum number of sets.
        rng: Source of the random streams.

    Returns:
        uint64 (s, words), one bit per set.
    """
    n_words = -(-n_permutations // SETS)
    streams = rng.spawn(n_words)
    words = mapped_empty((len(subjects), n_words), np.uint64)

    def fill(word: int) -> None:
        words[:, word] = random_sets(len(subjects), subjects.members, streams[word])

    in_threads(fill, range(n_words))
    return words


@dataclass(frozen=True, eq=False)
class Configuration:
    """Queries of one kind and their matches.

    Attributes:
        attack: Name of the attack.
        columns: Number of columns of a query.
        in_train: Number of members that each query matches, int64 (queries,).
        in_non_members: Number of non-members that each query matches, int64 (queries,).
        null_hits: Number of queries that match exactly one member, for each relabeling, int64
            (n_permutations,).
    """

    attack: str
    columns: int
    in_train: np.ndarray
    in_non_members: np.ndarray
    null_hits: np.ndarray

    def __len__(self) -> int:
        return len(self.in_train)


def exactly_one(n_subjects: int, n_marked: np.ndarray, n_sampled: int) -> np.ndarray:
    """Return the hypergeometric probability that a sample contains exactly one marked subject.

    Args:
        n_subjects: Number of subjects.
        n_marked: Number of marked subjects of each query, int64 (queries,).
        n_sampled: Number of subjects in the sample.

    Returns:
        float64 (queries,).
    """
    from scipy import stats  # slow to import

    distinct, positions = np.unique(n_marked, return_inverse=True)
    probabilities = stats.hypergeom.pmf(1, n_subjects, distinct, n_sampled)
    return np.asarray(probabilities)[positions]


def risks(
    groups: Sequence[Sequence[Configuration]], subjects: Subjects, min_queries: float = 0
) -> PermutationResult:
    """Return the risk of each group of configurations.

    Args:
        groups: Configurations of each group, with at least one query.
        subjects: The subjects, with their membership.
        min_queries: Minimum denominator of a risk.

    Returns:
        The observed risks, and the risks under permuted labels.
    """
    observed = []
    null = []
    for group in groups:
        risk, null_risks = _risk(group, subjects, min_queries)
        observed.append(risk)
        null.append(null_risks)
    return PermutationResult(np.array(observed), np.stack(null, axis=1))


def _risk(
    group: Sequence[Configuration], subjects: Subjects, min_queries: float
) -> tuple[float, np.ndarray]:
    """Return the observed risk, and the risk under permuted labels (n_permutations,)."""
    hits = 0
    null_hits = np.zeros_like(group[0].null_hits)
    matched_by_configuration = []
    for queries in group:
        hits += int((queries.in_train == 1).sum())
        null_hits += queries.null_hits
        matched_by_configuration.append(queries.in_train + queries.in_non_members)

    n_matched = np.concatenate(matched_by_configuration)
    chance = exactly_one(len(subjects), n_matched, subjects.members).sum()
    share_members = subjects.members / len(subjects)
    scale = 1 / (1 - share_members) / max(len(n_matched), min_queries)
    return scale * (hits - chance), scale * (null_hits - chance)


def describe(configuration: Configuration, subjects: Subjects) -> dict[str, Any]:
    """Return the table row of a configuration, without its risk: counts and rates only."""
    in_train = configuration.in_train
    in_non_members = configuration.in_non_members
    n_others = len(subjects) - subjects.members
    giomi, giomi_low, giomi_high = giomi_risk(in_train, in_non_members, subjects.members, n_others)

    n_queries = len(configuration)
    hits_train = (in_train == 1).sum()
    hits_non_members = (in_non_members == 1).sum()
    rate_train, _, _ = wilson(hits_train, n_queries)
    rate_non_members, _, _ = wilson(hits_non_members, n_queries)
    return {
        "attack": configuration.attack,
        "columns": configuration.columns,
        "attacks": n_queries,
        "hits_train": int(hits_train),
        "hits_non_members": int(hits_non_members),
        "rate_train": rate_train,
        "rate_non_members": rate_non_members,
        "risk": math.nan,
        "low": math.nan,
        "high": math.nan,
        "giomi": giomi,
        "giomi_low": giomi_low,
        "giomi_high": giomi_high,
    }


def giomi_risk(
    in_train: np.ndarray, in_non_members: np.ndarray, n_members: int, n_others: int
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
        in_non_members: Number of non-members that each query matches, int64 (queries,).
        n_members: Number of members.
        n_others: Number of non-members.

    Returns:
        R and the ends of its interval, the upper one at most 1. NaN if there are no queries.
    """
    n_queries = len(in_train)
    if n_queries == 0:
        return math.nan, math.nan, math.nan
    size = min(n_members, n_others)
    train_hits = exactly_one(n_members, in_train, size).sum()
    control_hits = exactly_one(n_others, in_non_members, size).sum()
    r_train, *train_ends = wilson(train_hits, n_queries)
    r_control, *control_ends = wilson(control_hits, n_queries)

    risk = (r_train - r_control) / (1 - r_control)
    train_error = np.ptp(train_ends) / 2
    control_error = np.ptp(control_ends) / 2 * (1 - r_train) / (1 - r_control)
    delta = float(np.hypot(train_error, control_error)) / (1 - r_control)
    return risk, risk - delta, min(risk + delta, 1.0)


class _Plan(NamedTuple):
    """Attack of one configuration.

    Attributes:
        attack: Name of the attack.
        columns: Number of columns of a query.
        draw: Draws the queries.
    """

    attack: str
    columns: int
    draw: Callable[[np.random.Generator], Queries]


class _Aim(NamedTuple):
    """Rows that an attack aims at.

    Attributes:
        attack: Name of the attack.
        schemes: Predicates, in the order in which they are tried.
        targets: Positions of the synthetic rows.
    """

    attack: str
    schemes: Sequence[Scheme]
    targets: np.ndarray


POOL_FROM = 6  # minimum number of columns of configurations pooled in the limited statistics
_UP_TO_1 = (-math.inf, 1.0)  # a risk can exceed 1 if non-members match too
_NO_QUERY = "no query isolates a synthetic row"
_NO_EMBEDDER = "no embedder was passed"
NEIGHBORS = 5  # an outlier is far from its nearest synthetic rows, this many


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
            source="significant at 95 %; see the benchmark on leaks",
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
        default=(3, 4, 6, 8, 10, 12), min_length=1
    )
    n_queries: int = Field(default=8000, ge=1)
    n_permutations: int = Field(default=1000, ge=99)
    candidates: int = Field(default=1_000_000, ge=1)
    patience: int = Field(default=100_000, ge=1)
    outliers: int = Field(default=2000, ge=1)
    negligible: float = Field(default=0.25, ge=0, le=1)

    @classmethod
    def study_estimates(
        cls, tables: Mapping[str, list[dict[str, Any]]]
    ) -> dict[str, tuple[float, float, float]]:
        """Return the risk by number of columns, as in figure 3 of Palacios."""
        estimates = {}
        for row in tables.get("configurations", []):
            risk = (row["risk"], row["low"], row["high"])
            if row["attack"] == "multivariate" and None not in risk:
                estimates[f"risk of {row['columns']} columns"] = risk
        return estimates

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the table "configurations"."""
        subjects = inputs.all_subjects
        if subjects.smallest_side == 0 or len(inputs.synthetic) == 0:
            note = "train, holdout and synthetic need at least one row each"
            estimates = tuple(spec.missing(note, subjects.counts) for spec in self.statistics)
            return self.result(inputs, estimates, configurations=[])

        configurations = self._attack(inputs, subjects)
        with_queries = _with_queries(configurations)
        evidence = None
        if with_queries:
            evidence = risks([[configuration] for configuration in with_queries], subjects)
        univariate_risk = self._univariate(configurations[0], evidence, subjects)
        largest = self._largest(evidence, subjects)

        embedded = _of_attack(configurations, "embedded")
        by_columns = _of_attack(configurations, "multivariate")
        n_possible = min(subjects.members, len(inputs.synthetic), self.n_queries)
        min_queries = self.negligible * n_possible
        risk = self._pooled("risk", _pool(by_columns), subjects, min_queries)
        risk_embedded = self._pooled("risk_embedded", _pool(embedded), subjects, min_queries)
        raw = [configurations[0], *by_columns]
        risk_giomi = self._published("risk_giomi", raw, subjects)
        giomi_embedded = self._published("risk_giomi_embedded", embedded, subjects)
        estimates = (
            risk,
            univariate_risk,
            risk_embedded,
            largest,
            risk_giomi,
            giomi_embedded,
        )
        records = _table(configurations, evidence, subjects)
        return self.result(inputs, estimates, configurations=records)

    def _pooled(
        self, name: str, pool: Sequence[Configuration], subjects: Subjects, min_queries: float
    ) -> Estimate:
        """Return a statistic pooled over configurations."""
        spec = self.statistic(name)
        if not pool:
            return spec.missing(_NO_EMBEDDER, subjects.counts)
        with_queries = _with_queries(pool)
        if not with_queries:
            return spec.missing(_NO_QUERY, subjects.counts)
        note = ""
        widest = _widest(pool)
        if widest < POOL_FROM:
            note = f"queries have {widest} columns, not {POOL_FROM} or more"
        evidence = risks([with_queries], subjects, min_queries)
        return evidence.estimate(spec, subjects.counts, within=_UP_TO_1, note=note)

    def _univariate(
        self, queries: Configuration, evidence: PermutationResult | None, subjects: Subjects
    ) -> Estimate:
        spec = self.statistic("risk_univariate")
        if evidence is None or len(queries) == 0:
            return spec.missing("no value is unique among the synthetic rows", subjects.counts)
        return evidence.estimate(spec, subjects.counts, within=_UP_TO_1)

    def _largest(self, evidence: PermutationResult | None, subjects: Subjects) -> Estimate:
        spec = self.statistic("risk_max")
        if evidence is None:
            return spec.missing(_NO_QUERY, subjects.counts)
        note = (
            f"the largest of {len(evidence)} configurations; the interval holds for all of them"
            " jointly"
        )
        return evidence.largest(spec, subjects.counts, note)

    def _published(
        self, name: str, configurations: Sequence[Configuration], subjects: Subjects
    ) -> Estimate:
        """Return the largest risk of the papers over configurations (Palacios 5.3)."""
        spec = self.statistic(name)
        if not configurations:
            return spec.missing(_NO_EMBEDDER, subjects.counts)
        records = [describe(queries, subjects) for queries in _with_queries(configurations)]
        if not records:
            return spec.missing(_NO_QUERY, subjects.counts)
        largest = max(records, key=lambda record: float(record["giomi"]))
        columns = "1 column" if largest["columns"] == 1 else f"{largest['columns']} columns"
        note = (
            f"the largest of {len(records)} configurations: {largest['attacks']:,} queries on"
            f" {columns}"
        )
        return spec.estimate(
            largest["giomi"],
            largest["giomi_low"],
            largest["giomi_high"],
            subjects.counts,
            note=note,
        )

    def _attack(self, inputs: EvaluationInputs, subjects: Subjects) -> list[Configuration]:
        """Attack with every configuration. Each has its own random stream and thread."""
        # Distinct synthetic rows, sorted by content and then shuffled.
        _, distinct = np.unique(inputs.row_ids["synthetic"], return_index=True)
        rows = inputs.rng("singling_out rows").permutation(distinct)
        tables = [[inputs.synthetic], inputs.real]
        synthetic, real = code_tables(tables, inputs.schema, rows)
        plans = self._plans(inputs, synthetic, rows)
        labels = label_sets(subjects, self.n_permutations, inputs.rng("singling_out labels"))

        def attack(planned: tuple[_Plan, np.random.Generator]) -> Configuration:
            plan, rng = planned
            queries = plan.draw(rng)
            n_matched, null_hits = matched_subjects(
                queries, real, subjects.codes, subjects.member, labels
            )
            in_train = n_matched[:, 1]
            in_non_members = n_matched[:, 0]
            null_hits = null_hits[: self.n_permutations]
            return Configuration(plan.attack, plan.columns, in_train, in_non_members, null_hits)

        inputs.progress(f"singling out: {len(plans)} configurations of queries")
        planned = []
        for plan in plans:
            rng = inputs.rng(f"singling_out {plan.attack} {plan.columns}")
            planned.append((plan, rng))
        return in_parallel(attack, planned)

    def _plans(self, inputs: EvaluationInputs, table: CodedTable, rows: np.ndarray) -> list[_Plan]:
        """Return the attacks of all configurations, the univariate one first.

        Args:
            inputs: Inputs of the metric.
            table: Coded distinct synthetic rows.
            rows: Position of each of them in the synthetic table, int64 (n,).
        """
        thresholds = threshold_scheme(table)
        bins = bin_scheme(table)
        aims = [_Aim("multivariate", (thresholds, bins), np.arange(len(rows)))]
        if inputs.embedder is not None:
            embedding = inputs.embedded("synthetic")[rows]
            outliers = _outliers(embedding, self.outliers, inputs.device)
            aims.append(_Aim("embedded", (bins,), outliers))

        plans = [_Plan("univariate", 1, partial(univariate, table, self.n_queries))]
        widths = {min(width, len(table.start)) for width in self.query_sizes}
        for aim in aims:
            for width in sorted(widths):
                draw = partial(
                    multivariate,
                    table,
                    aim.schemes,
                    aim.targets,
                    width,
                    self.n_queries,
                    candidates=self.candidates,
                    patience=self.patience,
                )
                plans.append(_Plan(aim.attack, width, draw))
        return plans


def _outliers(embedding: np.ndarray, n_outliers: int, device: str) -> np.ndarray:
    """Return the positions of the ``n_outliers`` rows with the largest mean distance to their 5
    nearest other rows.
    """
    n_neighbors = min(NEIGHBORS, len(embedding) - 1)
    if n_neighbors == 0:
        return np.arange(len(embedding))
    from privacy_assets.distances.nearest import nearest

    neighbors = nearest(embedding, embedding, n_neighbors, exclude_self=True, device=device)
    mean_distances = neighbors.distances.mean(axis=1)
    return np.argsort(-mean_distances, kind="stable")[:n_outliers]


def _of_attack(configurations: Sequence[Configuration], attack: str) -> list[Configuration]:
    return [queries for queries in configurations if queries.attack == attack]


def _with_queries(configurations: Sequence[Configuration]) -> list[Configuration]:
    return [queries for queries in configurations if len(queries) > 0]


def _widest(configurations: Sequence[Configuration]) -> int:
    """Return the largest number of columns of a query. 0 if there are no configurations."""
    return max((queries.columns for queries in configurations), default=0)


def _pool(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return the configurations pooled in a limited statistic: 6 columns and more, or the largest
    number there is.
    """
    min_columns = min(POOL_FROM, _widest(configurations))
    return [queries for queries in configurations if queries.columns >= min_columns]


def _table(
    configurations: Sequence[Configuration],
    evidence: PermutationResult | None,
    subjects: Subjects,
) -> list[dict[str, Any]]:
    """Return a row for each configuration, with simultaneous intervals."""
    records = [describe(queries, subjects) for queries in configurations]
    if evidence is None:
        return records
    low, high = extend_to_null(evidence.band(), 0.0)
    intervals = np.minimum([evidence.observed, low, high], 1.0)
    with_queries = [record for record in records if record["attacks"]]
    for record, interval in zip(with_queries, intervals.T.tolist(), strict=True):
        record["risk"], record["low"], record["high"] = interval
    return records
