"""Attacks on membership by shadow models: what they look at in a synthetic table, and how they learn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from pydantic import Field

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.settings import declared
from privacy_assets.shadow.attention import AttentionAttack, AttentionSettings
from privacy_assets.shadow.forest import Forest
from privacy_assets.shadow.queries import CountCodes, Queries, matches
from privacy_assets.tables.coding import Coding


class Scorer(Protocol):
    """A fitted attack: the higher the score, the more it takes the target for a member.

    ``unseen`` float64 (s,) holds scores of the shadow sets by models that were not fitted to them, NaN where there is
    none. Thresholds are chosen on them.
    """

    unseen: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Scores float64 (t,) of the features of t synthetic tables, stacked."""


class Attack(Protocol):
    """An attack on one target at a time; it goes to other processes, and its ``features`` are called from threads."""

    def features(self, cells: np.ndarray, target: np.ndarray) -> np.ndarray:
        """What is kept of a synthetic table, cells (F, m): an array of one shape and dtype for all tables of a target.

        The arrays of all shadow sets are held at once and written into the checkpoint. No randomness.
        """

    def fit(
        self, features: np.ndarray, labels: np.ndarray, rng: np.random.Generator, progress: Progress = silent
    ) -> Scorer:
        """Learn from stacked features (s, ...) and labels bool (s,), True where the target was in."""


@declared
class QuerySettings:
    """Settings of the query attack; those of Meeus et al. 2023, section 5.5."""

    part: ClassVar[str] = "attack queries"

    trees: int = Field(default=100, ge=1, description="trees of the forest")
    depth: int = Field(default=10, ge=1, description="of a tree, at most")


class QueryAttack:
    """Counting queries that select the target, and a random forest (Houssiau et al. 2022, Meeus et al. 2023).

    Of each synthetic row it keeps in which columns it matches the target; the queries are counted from that in ``fit``.
    """

    def __init__(self, coding: Coding, settings: QuerySettings | None = None) -> None:
        self.is_number = coding.is_number
        self.settings = settings or QuerySettings()

    def features(self, cells: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Matches uint64 (m, ceil(F / 64)); see :func:`queries.matches`."""
        return matches(cells, target, self.is_number)

    def fit(
        self, features: np.ndarray, labels: np.ndarray, rng: np.random.Generator, progress: Progress = silent
    ) -> Scorer:
        """See :meth:`Attack.fit`."""
        coded = CountCodes.fit(Queries.draw(len(self.is_number), rng), features)
        codes = coded.encode(features)
        usable = coded.distinct(codes)
        settings = self.settings
        return QueryScorer(coded, Forest.fit(codes, labels, usable, rng, trees=settings.trees, depth=settings.depth))


class QueryScorer:
    """The forest and the queries that it was grown on."""

    def __init__(self, coded: CountCodes, forest: Forest) -> None:
        self.coded, self.forest = coded, forest
        self.unseen = forest.unseen

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """See :class:`Scorer`."""
        return self.forest.scores(self.coded.encode(features), len(features))


def _queries(coding: Coding, cells: np.ndarray, settings: QuerySettings) -> Attack:
    return QueryAttack(coding, settings)


ATTACKS: dict[str, tuple[type[Any], Callable[[Coding, np.ndarray, Any], Attack]]] = {
    "queries": (QuerySettings, _queries),
    "attention": (AttentionSettings, AttentionAttack),
}


def build_attack(name: str, coding: Coding, cells: np.ndarray, settings: Mapping[str, Any]) -> Attack:
    """The attack of this name on tables coded like ``cells`` (F, N); ConfigError for an unknown name or setting."""
    return ATTACKS[name][1](coding, cells, attack_settings(name, settings))


def attack_settings(name: str, settings: Mapping[str, Any]) -> Any:
    """The settings of the attack of this name; ConfigError for an unknown name or setting."""
    if name not in ATTACKS:
        raise ConfigError(f"unknown attack {shown(name)}.{did_you_mean(name, ATTACKS)}")
    return ATTACKS[name][0](**settings)
