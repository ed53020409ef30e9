"""Does a table hold values that it must not: in closed columns new ones, in generated columns those of people?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.declarations import Causes, Question
from privacy_assets.metrics.inputs import REAL_ROLES, MetricInputs
from privacy_assets.metrics.value_disclosure.pieces import Pieces, holders_of, pieces_of, together
from privacy_assets.settings import Tuple, declared
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.leaked import leaked_subjects
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.roles import foreign_cells, natural_role

_NONE = "no generated column"


@declared
class ValueDisclosure(Metric):
    """What single cells give away, whatever their rows are near to.

    ``foreign_cells``: of the closed columns the worst, as the share of its cells whose value stands in no real table
    and no declared domain; so that a category cannot carry a message. Of numbers and dates, the share of those farther
    outside of the real range than it is wide. A missing value is foreign where no real row has one. Exact: there is no
    chance in it.

    ``generated_excess``, of the worst generated column, or of all together beside all of the real rows and their
    subjects (simultaneous over these): pieces are whole values and their stretches of so many characters, without
    case and signs. Those count that at most ``few`` real people have; those of holdout and reference, who are all
    unseen, are the others. Each piece belongs to one of its people, drawn without a look at who is a member. Of u
    people with pieces, u_T are members; k of the u have one standing in S, k_T of them members: hypergeometric(u,
    u_T, k) while S does not depend on who was in T. The statistic is the number of matches that only membership
    explains (:mod:`privacy_assets.stats.leaked`), over the members or the rows of S, whichever are fewer.
    Of the ``lengths`` the shortest is taken at which chance leaves at most the share ``crowded`` of people matched,
    a choice that sees no labels either.
    """

    lengths: Annotated[tuple[Annotated[int, Field(ge=4)], ...], Tuple] = Field(
        default=(12, 24, 48), min_length=1, description="lengths of pieces of text, rising"
    )
    few: int = Field(default=5, ge=1, description="people who may share a piece that is one's own")
    crowded: float = Field(
        default=0.005, gt=0, le=0.5, description="share of people met by chance: more ask for longer pieces"
    )
    confidence: float = Field(default=0.99, ge=0.5, lt=1, description="of the interval, over all columns together")

    name: ClassVar[str] = "value_disclosure"
    summary: ClassVar[str] = "Are there values that no real row has, or identifiers and text of real people?"
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional: ClassVar[frozenset[str]] = frozenset({"reference"})
    in_studies: ClassVar[bool] = False
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec("foreign_cells", "Share of cells, in the worst column, whose value no real row has."),
        StatisticSpec(
            "generated_excess",
            "Share of people whose own text or identifier stands in generated columns because they are members.",
            "two_sided",
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit("value_disclosure.foreign_cells", at_most=0.0, smallest_n=1, source="exact: there is no chance in it"),
        Limit(
            "value_disclosure.generated_excess",
            at_most=0.0,
            bound="lower",
            source="significant at 99 %, by an exact interval; nothing is tolerated",
        ),
    )

    question: ClassVar[Question | None] = "linking"
    causes: ClassVar[Causes] = Causes("foreign values", {"generated_excess": "identifiers"})
    if_generated: ClassVar[tuple[str, ...]] = ("generated_excess",)

    def __post_init__(self) -> None:
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ConfigError("metric value_disclosure: lengths must rise.")

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistics, and the table "columns": the role of each and its share of foreign cells."""
        people = Subjects.of(inputs.subject_codes(*_real(inputs)), len(inputs.train))
        columns = _foreign(inputs)
        rows = len(inputs.synthetic)
        worst = max((float(column["foreign"]) for column in columns), default=0.0) if rows else math.nan
        foreign = self.spec("foreign_cells").estimate(
            worst, worst, worst, (rows, len(people.member)), minimum_detectable_effect=0.0
        )
        return Measured((foreign, self._generated_excess(inputs, people)), {"columns": columns})

    def _generated_excess(self, inputs: MetricInputs, people: Subjects) -> Estimate:
        n, spec = len(inputs.synthetic), self.spec("generated_excess")
        counts = (n, people.smallest_side)
        names = inputs.generated["synthetic"].schema.names if inputs.generated else []
        if not names:
            return spec.estimate(
                0.0, 0.0, 0.0, counts, confidence=self.confidence, minimum_detectable_effect=0.0, note=_NONE
            )
        order = inputs.rng("value_disclosure.people").permutation(len(people))
        parts = {
            role: {name: pieces_of(column) for name, column in table.columns.items()}
            for role, table in inputs.generated.items()
        }
        # Each column beside itself, and all that is generated beside all that the real rows hold, the subject included.
        asked = [{role: own[name] for role, own in parts.items()} for name in names]
        if any(len(own) > 1 for own in parts.values()):
            asked.append({role: together(list(own.values())) for role, own in parts.items()})
        confidence = 1 - (1 - self.confidence) / len(asked)
        found = np.array([self._excess(pieces, people, order, n, confidence) for pieces in asked])
        if min(counts) == 0 or np.isnan(found).any():
            return spec.missing("no values of their own on one of the sides", counts, self.confidence)
        value, low = max(found[:, :2].tolist(), key=lambda ends: (ends[1], ends[0]))
        high, mde = found[:, 2:].max(axis=0)
        return spec.estimate(value, low, high, counts, confidence=self.confidence, minimum_detectable_effect=mde)

    def _excess(
        self, pieces: Mapping[str, Pieces], people: Subjects, order: np.ndarray, n: int, confidence: float
    ) -> np.ndarray:
        """Value, low, high and minimum detectable effect (4,) of one column; NaN where only one side has pieces."""
        for length in self.lengths:
            owners, matched = self._matches(pieces, people, order, length)
            if len(matched) <= self.crowded * len(owners):
                break
        return leaked_subjects(owners, matched, people.member, confidence) / max(min(people.members, n), 1)

    def _matches(
        self, pieces: Mapping[str, Pieces], people: Subjects, order: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """People with pieces of their own, and those of them with a piece that stands in S."""
        found = {role: own.of_length(length) for role, own in pieces.items()}
        real = [role for role in REAL_ROLES if role in pieces]
        starts = np.cumsum([0, *(pieces[role].size for role in real)])
        rows = np.concatenate([found[role][1] + start for role, start in zip(real, starts[:-1], strict=True)])
        every = np.concatenate([found[role][0] for role in real])
        own, owner = holders_of(every, order[people.codes[rows]], self.few)
        person = np.argsort(order)[owner]
        return np.unique(person), np.unique(person[np.isin(own, found["synthetic"][0])])


def _real(inputs: MetricInputs) -> list[str]:
    return [role for role in REAL_ROLES if role in inputs.tables]


def _foreign(inputs: MetricInputs) -> list[dict[str, Any]]:
    """Of each column its role and its share of foreign cells."""
    records = []
    for column in inputs.schema.columns:
        real = [inputs.tables[role][column.name] for role in _real(inputs)]
        cells = foreign_cells(column, real, inputs.synthetic[column.name])
        role = column.role or natural_role(column, real)
        records.append({"column": column.name, "role": role, "foreign": float(cells.mean()) if len(cells) else 0.0})
    return records
