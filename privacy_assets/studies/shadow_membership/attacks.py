"""Membership attacks by shadow models: their features and classifiers.

The features of the query attack are the numbers of rows of a synthetic table that match the target
in a set of columns. Houssiau et al. 2022; Meeus et al. 2023 ("Achilles' heels"), section 5.1:
Q_A(x) = COUNT WHERE AND_{i in A} (a_i = x_i), with ``<=`` instead of ``=`` for numbers, integers
and datetimes.

Its classifier is a random forest (Breiman 2001), as defined by
``sklearn.ensemble.RandomForestClassifier``: bootstrap, Gini, sqrt(features) per node, each leaf
predicts its share of members. Counts fit one byte, so splits are found by a histogram instead of
sorting, in a third of scikit-learn's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from math import comb, isqrt
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError, did_you_mean, require, safe_repr
from privacy_assets.infra.parallel import in_threads
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.infra.settings import declared
from privacy_assets.studies.shadow_membership.attention import AttentionSettings
from privacy_assets.tables.encoding import MatrixCoding

MOST_COLUMNS = 20  # maximum number of columns for which all sets are counted together
MOST_QUERIES = 1 << 17  # all sets of 17 columns; the number of sets drawn for 18 to 20
WIDE_QUERIES = 1 << 14  # number of sets for more than 20 columns, where each is counted separately
MOST_ORDER = 6  # maximum number of columns in a query if there are more than 20
MOST_SETS = (1 << MOST_COLUMNS) - 1  # all sets of 20 columns
_BLOCK = 64  # sets counted at a time


def matches(cells: np.ndarray, target: np.ndarray, is_number: np.ndarray) -> np.ndarray:
    """Compute the columns in which rows match a target.

    A number matches if it is at most the target's, a category or boolean if it is equal. A missing
    cell matches only a missing target.

    Args:
        cells: Coded rows, shape (F, m).
        target: Coded cells of the target, shape (F,).
        is_number: True for numbers, bool (F,).

    Returns:
        Matches, uint64 (m, ceil(F / 64)), bit j for column j.
    """
    from privacy_assets.studies.shadow_membership._kernels import match_bits

    return np.asarray(
        match_bits(np.ascontiguousarray(cells), np.ascontiguousarray(target), is_number)
    )


@dataclass(frozen=True, eq=False)
class Queries:
    """The sets of columns to count: int64 bit masks (Q,), or int16 (Q, 6) padded with -1 for more
    than 20 columns.
    """

    columns: int
    column_sets: np.ndarray

    @classmethod
    def draw(cls, columns: int, rng: np.random.Generator, number: int | None = None) -> Queries:
        """Select the queries.

        Up to 20 columns: sets drawn uniformly without replacement, or all non-empty sets if there
        are not more than ``number``. Beyond: sets of 1 to 6 columns, equally many of each size, or
        all sets of a size if there are fewer.

        Args:
            columns: Number of columns.
            rng: Generator of the draws.
            number: Maximum number of queries. None: 131,072 for up to 20 columns (all sets of 17),
                16,384 beyond.

        Returns:
            The queries.
        """
        if columns > MOST_COLUMNS:
            if number is None:
                number = WIDE_QUERIES
            return cls(columns, _by_order(columns, rng, number))
        if number is None:
            number = MOST_QUERIES
        n_all = (1 << columns) - 1
        if n_all <= number:
            return cls(columns, np.arange(1, n_all + 1))
        masks = rng.choice(n_all, number, replace=False, shuffle=False) + 1
        return cls(columns, np.sort(masks))

    def counts(self, matched: np.ndarray) -> np.ndarray:
        """Count the rows that match in all columns of each query.

        Args:
            matched: Matches of the sets, uint64 (sets, m, words).

        Returns:
            Counts, int16 (sets, Q), or int32 for more than 32,767 rows per set.
        """
        from privacy_assets.studies.shadow_membership._kernels import count_each, count_wide

        dtype: type[np.signedinteger[Any]] = np.int32
        if matched.shape[1] <= np.iinfo(np.int16).max:
            dtype = np.int16
        counts = np.empty((len(matched), len(self.column_sets)), dtype=dtype)
        if self.columns > MOST_COLUMNS:
            count_wide(matched, self.column_sets, counts)
            return counts
        masks = np.ascontiguousarray(matched[:, :, 0])
        scratch = np.empty(1 << self.columns, dtype=dtype)
        count_each(masks, self.column_sets, scratch, counts)
        return counts


@dataclass(frozen=True, eq=False)
class CountCodes:
    """One-byte encoding of counts: (count - ``low`` (Q,)) >> ``shift`` (Q,), clipped to the fitted
    range.

    It is exact for queries whose counts over the fitted sets span at most 255. This is nearly
    always the case: counts of 1,000 rows have standard deviations of about 20.
    """

    queries: Queries
    low: np.ndarray
    shift: np.ndarray

    @classmethod
    def fit(cls, queries: Queries, matched: np.ndarray) -> CountCodes:
        """Fit the ranges of the counts.

        Args:
            queries: The queries.
            matched: Matches of the sets, uint64 (sets, m, words).
        """

        def extremes(block: slice) -> tuple[np.ndarray, np.ndarray]:
            counts = queries.counts(matched[block])
            return counts.min(axis=0), counts.max(axis=0)

        lows, highs = zip(*in_threads(extremes, _blocks(len(matched))), strict=True)
        low = np.min(lows, axis=0).astype(np.int32)
        span = np.max(highs, axis=0) - low
        n_bits = np.ceil(np.log2(span + 1)).astype(np.int32)
        return cls(queries, low, np.maximum(n_bits - 8, 0))

    def encode(self, matched: np.ndarray) -> np.ndarray:
        """Encode the counts of the queries.

        4,000 sets take 131 MB for 15 columns and 524 MB for 17 or more; no larger array is
        allocated.

        Args:
            matched: Matches of the sets, uint64 (sets, m, words).

        Returns:
            Codes, uint8 (Q, sets), padded with columns of 0 to a multiple of eight sets.
        """
        from privacy_assets.studies.shadow_membership._kernels import put_codes

        codes = np.zeros((len(self.low), -(-len(matched) // 8) * 8), dtype=np.uint8)

        def put(block: slice) -> None:
            put_codes(self.queries.counts(matched[block]), self.low, self.shift, codes, block.start)

        in_threads(put, _blocks(len(matched)))
        return codes

    def distinct(self, codes: np.ndarray) -> np.ndarray:
        """Find the queries that vary, without duplicates.

        Args:
            codes: Codes of the queries, uint8 (Q, sets).

        Returns:
            Their ascending positions, int64 (q,).
        """
        first: dict[tuple[bytes, int, int], int] = {}
        for query in np.flatnonzero(codes.any(axis=1)).tolist():
            digest = blake2b(codes[query], digest_size=16).digest()
            key = (digest, int(self.low[query]), int(self.shift[query]))
            first.setdefault(key, query)
        return np.array(list(first.values()), dtype=np.int64)


def _by_order(columns: int, rng: np.random.Generator, number: int) -> np.ndarray:
    """Draw ``number`` sets of 1 to 6 columns (Q, 6), equally many of each size, or all of a size if
    there are fewer.
    """
    column_sets: list[tuple[int, ...]] = []
    for order in range(1, MOST_ORDER + 1):
        size = (number - len(column_sets)) // (MOST_ORDER + 1 - order)
        if comb(columns, order) <= size:
            column_sets += combinations(range(columns), order)
            continue
        sample: set[tuple[int, ...]] = set()
        while len(sample) < size:
            columns_of_query = rng.choice(columns, order, replace=False).tolist()
            sample.add(tuple(sorted(columns_of_query)))
        column_sets += sorted(sample)
    padded = np.full((len(column_sets), MOST_ORDER), -1, dtype=np.int16)
    for i, column_set in enumerate(column_sets):
        padded[i, : len(column_set)] = column_set
    return padded


def _blocks(sets: int) -> list[slice]:
    return [slice(start, min(start + _BLOCK, sets)) for start in range(0, sets, _BLOCK)]


ForestTree = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Forest:
    """Fitted trees.

    Attributes:
        trees: The trees.
        held_out_scores: Out-of-bag scores of the training sets, float64 of shape (sets,). NaN if
            every tree drew the set.
    """

    trees: list[ForestTree]
    held_out_scores: np.ndarray

    @classmethod
    def fit(
        cls,
        codes: np.ndarray,
        member: np.ndarray,
        usable: np.ndarray,
        rng: np.random.Generator,
        *,
        trees: int = 100,
        depth: int = 10,
    ) -> Forest:
        """Fit the trees. The result does not depend on the number of threads.

        Args:
            codes: Codes of the features, uint8 (features, at least s).
            member: Labels of the sets, bool (s,).
            usable: Features to draw from, int64 (f,). Empty: every score is the share of members.
            rng: Generator of all draws.
            trees: Number of trees.
            depth: Maximum depth of a tree.
        """
        from privacy_assets.studies.shadow_membership._kernels import add_shares, grow

        n_sets = len(member)
        n_tries = max(1, isqrt(len(usable)))

        def grow_tree(tree_rng: np.random.Generator) -> tuple[ForestTree, np.ndarray, np.ndarray]:
            n_draws = np.bincount(tree_rng.integers(0, n_sets, n_sets), minlength=n_sets)
            tree = grow(codes, member, n_draws, usable, depth, n_tries, tree_rng)
            held_out_scores = np.flatnonzero(n_draws == 0)
            scores = np.zeros(n_sets)
            votes = np.zeros(n_sets)
            add_shares(codes, *tree, held_out_scores, scores, votes)
            return tree, scores, votes

        grown, scores_by_tree, votes_by_tree = zip(
            *in_threads(grow_tree, rng.spawn(trees)), strict=True
        )
        scores = np.sum(scores_by_tree, axis=0)
        votes = np.sum(votes_by_tree, axis=0)
        held_out_scores = np.where(votes > 0, scores / np.maximum(votes, 1), np.nan)
        return cls(list(grown), held_out_scores)

    def scores(self, codes: np.ndarray, sets: int) -> np.ndarray:
        """Return the mean predicted share of members of each set, float64 (sets,).

        Args:
            codes: Codes of the features, uint8 (features, at least ``sets``).
            sets: Number of sets, the first columns of ``codes``.
        """
        from privacy_assets.studies.shadow_membership._kernels import add_shares

        scores = np.zeros(sets)
        votes = np.zeros(sets)
        columns = np.arange(sets)
        for tree in self.trees:
            add_shares(codes, *tree, columns, scores, votes)
        return scores / len(self.trees)


class Scorer(Protocol):
    """A fitted attack. Higher scores indicate membership of the target.

    Attributes:
        held_out_scores: Scores of the shadow sets by models not fitted to them, float64 of shape
            (s,), NaN if there are none. Thresholds are chosen on them.
    """

    held_out_scores: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the scores, float64 (t,), for the stacked features of t synthetic tables."""


class Attack(Protocol):
    """An attack on one target at a time.

    Instances are sent to other processes, and ``features`` is called from several threads.
    """

    def features(self, cells: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return the features of a synthetic table.

        All shadow sets' features are held in memory and written to the checkpoint. Must be
        deterministic.

        Args:
            cells: Coded synthetic table, shape (F, m).
            target: Coded target record, shape (F,).

        Returns:
            An array whose shape and dtype are the same for all tables of a target.
        """

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        rng: np.random.Generator,
        progress: Progress = silent,
    ) -> Scorer:
        """Fit the attack.

        Args:
            features: Stacked features, shape (s, ...).
            labels: True for tables generated with the target, shape (s,).
            rng: Generator of all draws.
            progress: Called with messages.
        """


@declared
class QuerySettings:
    """Settings of the query attack; defaults from Meeus et al. 2023, section 5.5.

    Attributes:
        queries: Maximum number of queries, see :meth:`Queries.draw`. The paper draws 100,000.
        trees: Number of trees.
        depth: Maximum depth of a tree.
    """

    part: ClassVar[str] = "attack queries"

    queries: int | None = Field(default=None, ge=1, le=MOST_SETS)
    trees: int = Field(default=100, ge=1)
    depth: int = Field(default=10, ge=1)


class QueryAttack:
    """Counting queries and a random forest (Houssiau et al. 2022, Meeus et al. 2023).

    Features are the columns in which each synthetic row matches the target. ``fit`` computes the
    query counts from them.
    """

    def __init__(self, coding: MatrixCoding, settings: QuerySettings | None = None) -> None:
        self.is_number = coding.is_number
        self.settings = settings or QuerySettings()

    def features(self, cells: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return matches, uint64 (m, ceil(F / 64)); see :func:`matches`."""
        return matches(cells, target, self.is_number)

    def fit(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        rng: np.random.Generator,
        progress: Progress = silent,
    ) -> Scorer:
        """Implement :meth:`Attack.fit`."""
        settings = self.settings
        queries = Queries.draw(len(self.is_number), rng, settings.queries)
        coded = CountCodes.fit(queries, features)
        codes = coded.encode(features)
        usable = coded.distinct(codes)
        forest = Forest.fit(codes, labels, usable, rng, trees=settings.trees, depth=settings.depth)
        return QueryScorer(coded, forest)


class QueryScorer:
    """The fitted forest and its queries."""

    def __init__(self, coded: CountCodes, forest: Forest) -> None:
        self.coded = coded
        self.forest = forest
        self.held_out_scores = forest.held_out_scores

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Implement :class:`Scorer`."""
        return self.forest.scores(self.coded.encode(features), len(features))


def _queries(coding: MatrixCoding, cells: np.ndarray, settings: QuerySettings) -> Attack:
    return QueryAttack(coding, settings)


def _attention(coding: MatrixCoding, cells: np.ndarray, settings: AttentionSettings) -> Attack:
    require("torch", "the attack attention", "torch", "use the attack queries")
    from privacy_assets.studies.shadow_membership.attention_network import AttentionAttack

    return AttentionAttack(coding, cells, settings)


class _AttackKind(NamedTuple):
    """Class of the settings of an attack, and the function that creates the attack."""

    settings: type[Any]
    build: Callable[[MatrixCoding, np.ndarray, Any], Attack]


ATTACKS: dict[str, _AttackKind] = {
    "queries": _AttackKind(QuerySettings, _queries),
    "attention": _AttackKind(AttentionSettings, _attention),
}


def build_attack(
    name: str, coding: MatrixCoding, cells: np.ndarray, settings: Mapping[str, Any]
) -> Attack:
    """Create an attack by name.

    Args:
        name: Name of the attack.
        coding: Coding of the audited table.
        cells: Coded cells of the audited table, shape (F, N).
        settings: Settings of the attack; missing ones have their defaults.

    Raises:
        ConfigError: If the name or a setting is unknown.
    """
    checked = attack_settings(name, settings)
    return ATTACKS[name].build(coding, cells, checked)


def attack_settings(name: str, settings: Mapping[str, Any]) -> Any:
    """Create the settings of an attack by name.

    Raises:
        ConfigError: If the name or a setting is unknown.
    """
    if name not in ATTACKS:
        raise ConfigError(f"unknown attack {safe_repr(name)}.{did_you_mean(name, ATTACKS)}")
    return ATTACKS[name].settings(**settings)
