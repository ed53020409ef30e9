"""Disclosure by single values: new values in closed columns, values that one person alone has, and
values of real people in generated columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field

from privacy_assets.errors import ConfigError, safe_repr
from privacy_assets.infra.settings import Tuple, declared
from privacy_assets.metrics.base import Causes, Metric, Question
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.intervals import leaked_subjects
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.column import Column, ranked, stacked
from privacy_assets.tables.contract import REAL_ROLES
from privacy_assets.tables.published_categories import count_holders
from privacy_assets.tables.roles import allowed_values, foreign_cells, natural_role

_SIGNS = re.compile(r"[\W_]+")
_END = "\n"  # does not occur in text without punctuation
_TURN, _FIRST, _SECOND = (np.uint64(x) for x in (29, 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9))


@dataclass(frozen=True, eq=False)
class Pieces:
    """Values of a column.

    Attributes:
        texts: Distinct strings.
        held: Position of the string of each non-empty cell, shape (m,).
        rows: Row of each such cell, shape (m,).
        size: Number of rows of the column.
    """

    texts: Sequence[str]
    held: np.ndarray
    rows: np.ndarray
    size: int

    def of_length(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return hashes (p,) of values and of their substrings of ``length`` characters, and the
        row (p,) of each.
        """
        whole = pd.util.hash_array(np.array(self.texts, dtype=object), categorize=False).astype(
            np.uint64
        )
        text = np.arange(len(self.texts))
        stretches, within = _stretches(self.texts, length)
        hashes = np.concatenate([whole, stretches])
        texts = np.concatenate([text, within])
        order = np.argsort(texts, kind="stable")
        hashes, counts = hashes[order], np.bincount(texts, minlength=len(self.texts))
        starts = np.cumsum(counts) - counts
        times = counts[self.held]
        offset = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        return hashes[np.repeat(starts[self.held], times) + offset], np.repeat(self.rows, times)


def pieces_of(column: Column) -> Pieces:
    """Return the values of a column: letters and digits in lower case."""
    (codes,), different = ranked([column])
    plain = [_SIGNS.sub("", str(value).casefold()) for value in different.objects()]
    own, texts = pd.factorize(np.array([*plain, ""], dtype=object))  # ignores case and punctuation
    # -1 (missing) selects the last one, "": a value of punctuation only carries no information
    held = own[codes]
    rows = np.flatnonzero(held != own[-1])
    return Pieces(texts.tolist(), held[rows], rows, len(column))


def together(parts: Sequence[Pieces]) -> Pieces:
    """Join several columns of one table."""
    starts = np.cumsum([0, *(len(part.texts) for part in parts)])
    held = [part.held + start for part, start in zip(parts, starts[:-1], strict=True)]
    texts = [text for part in parts for text in part.texts]
    return Pieces(
        texts, np.concatenate(held), np.concatenate([part.rows for part in parts]), parts[0].size
    )


def holders_of(
    pieces: np.ndarray, people: np.ndarray, max_holders: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ``pieces`` (p,) of at most ``max_holders`` ``people`` (p,), with the
    first subject.
    """
    order = np.lexsort((people, pieces))
    pieces, people = pieces[order], people[order]
    new = np.append(True, pieces[1:] != pieces[:-1]) if len(pieces) else np.empty(0, dtype=bool)
    pair = new | np.append(True, people[1:] != people[:-1]) if len(pieces) else new
    which = np.cumsum(new) - 1
    rare = np.bincount(which[pair], minlength=int(new.sum())) <= max_holders
    return pieces[new][rare], people[new][rare]


def _stretches(texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes (p,) of all substrings of ``length`` characters, and the position (p,) of their
    string.
    """
    joined = _END.join([*texts, ""])
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    if len(characters) < length:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    end = characters == ord(_END)
    text = np.cumsum(end) - end
    starts = np.flatnonzero(text[: len(text) - length + 1] == text[length - 1 :])
    starts = starts[~end[starts + length - 1]]
    return _windows(characters.astype(np.uint64), length)[starts], text[starts]


def _windows(characters: np.ndarray, length: int) -> np.ndarray:
    """Return the hash of each window of ``length`` characters, computed recursively from its
    halves.
    """
    if length == 1:
        return _mixed(characters, np.uint64(0))
    left = _windows(characters, length - length // 2)
    right = left if length % 2 == 0 else _windows(characters, length // 2)
    count = len(characters) - length + 1
    return _mixed(left[:count], right[length - length // 2 :][:count])


def _mixed(left: np.ndarray, right: np.ndarray | np.uint64) -> np.ndarray:
    """Combine two hashes. The order matters."""
    mixed = (left * _FIRST) ^ (right + _FIRST + (left << _TURN))
    mixed = (mixed ^ (mixed >> _TURN)) * _SECOND
    return mixed ^ (mixed >> _TURN)


CROWDED = 0.005  # share of subjects matched by chance, above which longer pieces are used
_NONE, _NO_OWN = (
    "no generated column",
    "no column of categories, or of numbers of which single people have a value",
)
_BY_RULE = (
    "by rule: the threshold rule replaced the values of few people, except those of public lists"
)
# people with a value of their own from which a column of numbers or times is covered
_MIN_ALONE = 20


@declared
class ValueDisclosure(Metric):
    """Disclosure by single cells, independently of distances between rows.

    Args:
        lengths: Lengths of pieces of text, ascending.
        max_holders: Maximum number of subjects sharing a piece that counts as rare.
        confidence: Simultaneous confidence level of ``generated_excess``.

    Attributes:
        foreign_cells: Share of foreign cells in the worst column. Exact, without sampling error.
        own_values: Share of subjects of train who alone have a value that is in S, less this share
            of the unseen subjects, in the worst column.
        generated_excess: Number of subjects whose text or identifier is in generated columns
            because of membership, divided by the smaller of members and synthetic rows.

    Notes:
        A category is foreign if it occurs in no real table and is not declared, so that it cannot
        carry a message. A number or date is foreign if it is farther outside the real range than
        the width of the range, and not declared. A missing value is foreign if the real rows have
        none.

        ``own_values`` covers categories, and numbers and times of which at least 20 subjects have a
        value that no other subject of the real tables has. Values of public lists are left out. The
        counts of train and unseen subjects are compared exactly, as below, and the interval is
        simultaneous over the columns. A generator that copies single cells from train is seen, even
        if it copies no row. In a pipeline, columns of the threshold rule are left out, because no
        subject alone has one of their published values.

        ``generated_excess`` is the largest over each generated column, and over all of them
        compared with all generated columns and subjects of the real rows; the interval is
        simultaneous. Pieces are whole values and their substrings of a fixed length, without case
        and punctuation. Pieces of at most ``max_holders`` real subjects are used. Each piece is
        assigned to one of its subjects, drawn independently of the labels. Non-members are the
        subjects of holdout and reference. Of u subjects with pieces, u_T are members; k of the u
        have a piece in S, k_T of them members. If S does not depend on T, k_T is hypergeometric(u,
        u_T, k), which gives the number of matches explained only by membership
        (:mod:`privacy_assets.stats.intervals`). The shortest of ``lengths`` at which at most 0.5 %
        of subjects match is used, independently of the labels.
    """

    lengths: Annotated[tuple[Annotated[int, Field(ge=4)], ...], Tuple] = Field(
        default=(12, 24, 48), min_length=1, description="lengths of pieces of text, ascending"
    )
    max_holders: int = Field(
        default=5, ge=1, description="maximum number of people sharing a rare piece"
    )
    confidence: float = Field(
        default=0.99, ge=0.5, lt=1, description="simultaneous confidence level of generated_excess"
    )

    name: ClassVar[str] = "value_disclosure"
    summary: ClassVar[str] = (
        "Are there values that no real row has, or identifiers and text of real people?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference"})
    in_leak_studies: ClassVar[bool] = False
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "foreign_cells",
            "Share of cells, in the worst column, whose value no real row has.",
            leak="{share} of the cells of a column had a value that no real row has",
        ),
        StatisticSpec(
            "generated_excess",
            "Share of people in the training data whose text or identifier is in a generated"
            " column, minus the same"
            " share of held-out people.",
            "two_sided",
            leak="it published the text or identifier of {share} of the people in the training"
            " data{people}",
        ),
        StatisticSpec(
            "own_values",
            "Share of people in the training data with a value that no other person has and"
            " that is in the release,"
            " minus the same share of held-out people.",
            "two_sided",
            leak="it published, for {share} of the people in the training data{people}, a value"
            " that no other person"
            " has",
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "value_disclosure.foreign_cells",
            at_most=0.0,
            min_subjects=1,
            source="exact, without sampling error",
        ),
        Limit(
            "value_disclosure.own_values",
            at_most=0.005,
            bound="proven",
            source="significant at 99 % over all columns jointly; refuses no fresh rows"
            " (0 of 118 releases of 47 tables; see the lab report on rare values)",
        ),
        Limit(
            "value_disclosure.generated_excess",
            at_most=0.0,
            bound="proven",
            source="significant at 99 % by an exact interval, without tolerance",
        ),
    )

    question: ClassVar[Question | None] = "values"
    # a copy has no foreign values, and no rare ones where the pipeline made train
    seen_in_copy: ClassVar[bool] = False
    causes: ClassVar[Causes] = Causes(
        "values of no real row",
        {"generated_excess": "identifiers", "own_values": "values of one person"},
    )
    generated_column_statistics: ClassVar[tuple[str, ...]] = ("generated_excess",)

    def __post_init__(self) -> None:
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ConfigError("metric value_disclosure: lengths must be ascending.")

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics, and the table "columns" with role, share of foreign cells and own
        values.
        """
        people = Subjects.of(inputs.subject_codes(*_real(inputs)), len(inputs.train))
        columns = _foreign(inputs)
        rows = len(inputs.synthetic)
        worst = (
            max((float(column["foreign"]) for column in columns), default=0.0) if rows else math.nan
        )
        named = ", ".join(
            safe_repr(column["column"]) for column in columns if column["foreign"] > 0
        )
        foreign = self.statistic("foreign_cells").estimate(
            worst, worst, worst, (rows, len(people.member)), minimum_detectable_effect=0.0,
            note=f"in {named}" if named else "",
        )  # fmt: skip
        own = self._own_values(inputs, people, columns)
        return self.result(
            inputs, (foreign, self._generated_excess(inputs, people), own), columns=columns
        )

    def _own_values(
        self, inputs: EvaluationInputs, people: Subjects, records: list[dict[str, Any]]
    ) -> Estimate:
        """Estimate ``own_values``, and add the value of each column to its record."""
        spec, counts = self.statistic("own_values"), (len(inputs.synthetic), people.smallest_side)
        columns = [column for column in inputs.schema.columns if column.kind != "boolean"]
        names = [column.name for column in columns if column.name not in inputs.ruled]
        for record in records:
            record["own"] = None
        if columns and not names:
            estimate = spec.estimate(
                0.0, 0.0, 0.0, counts, confidence=self.confidence, note=_BY_RULE
            )
            return replace(estimate, by_rule=True)
        if min(counts) == 0:
            return spec.missing(
                "there are no synthetic rows, or no people on one side", counts, self.confidence
            )
        every = np.arange(len(people))
        confidence, found = 1 - (1 - self.confidence) / max(len(names), 1), {}
        for name in names:
            matched = _people_with_own(inputs, name, people.codes)
            if matched is not None:
                found[name] = (
                    leaked_subjects(every, matched, people.member, confidence) / people.members
                )
        for record in records:
            if record["column"] in found:
                record["own"] = float(found[record["column"]][0])
        if not found:
            return spec.estimate(
                0.0,
                0.0,
                0.0,
                counts,
                confidence=self.confidence,
                minimum_detectable_effect=0.0,
                note=_NO_OWN,
            )
        ends = np.array(list(found.values()))
        at = int(np.lexsort((ends[:, 0], ends[:, 1]))[-1])
        listed = [safe_repr(name) for name, one in found.items() if one[1] > 0]
        note = f"single people are disclosed in {', '.join(listed)}" if listed else ""
        (value, low), (high, mde) = ends[at, :2], ends[:, 2:].max(axis=0)
        return spec.estimate(
            value,
            low,
            high,
            counts,
            confidence=self.confidence,
            minimum_detectable_effect=mde,
            note=note,
        )

    def _generated_excess(self, inputs: EvaluationInputs, people: Subjects) -> Estimate:
        n, spec = len(inputs.synthetic), self.statistic("generated_excess")
        counts = (n, people.smallest_side)
        names = inputs.generated["synthetic"].schema.names if inputs.generated else []
        if not names:
            return spec.estimate(
                0.0,
                0.0,
                0.0,
                counts,
                confidence=self.confidence,
                minimum_detectable_effect=0.0,
                note=_NONE,
            )
        order = inputs.rng("value_disclosure.people").permutation(len(people))
        parts = {
            role: {name: pieces_of(column) for name, column in table.columns.items()}
            for role, table in inputs.generated.items()
        }
        # Each column with itself, and all generated columns with all of the real rows, including
        # the subject.
        asked = [{role: own[name] for role, own in parts.items()} for name in names]
        if any(len(own) > 1 for own in parts.values()):
            asked.append({role: together(list(own.values())) for role, own in parts.items()})
        confidence = 1 - (1 - self.confidence) / len(asked)
        found = np.array([self._excess(pieces, people, order, n, confidence) for pieces in asked])
        if min(counts) == 0 or np.isnan(found).any():
            return spec.missing(
                "train or unseen people have no rare values", counts, self.confidence
            )
        value, low = max(found[:, :2].tolist(), key=lambda ends: (ends[1], ends[0]))
        high, mde = found[:, 2:].max(axis=0)
        return spec.estimate(
            value, low, high, counts, confidence=self.confidence, minimum_detectable_effect=mde
        )

    def _excess(
        self,
        pieces: Mapping[str, Pieces],
        people: Subjects,
        order: np.ndarray,
        n: int,
        confidence: float,
    ) -> np.ndarray:
        """Return value, low, high and minimum detectable effect (4,) of one column. NaN if only one
        side has pieces.
        """
        for length in self.lengths:
            owners, matched = self._matches(pieces, people, order, length)
            if len(matched) <= CROWDED * len(owners):
                break
        return leaked_subjects(owners, matched, people.member, confidence) / max(
            min(people.members, n), 1
        )

    def _matches(
        self, pieces: Mapping[str, Pieces], people: Subjects, order: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the subjects with pieces of their own, and the subjects with such a piece in S."""
        found = {role: own.of_length(length) for role, own in pieces.items()}
        real = [role for role in REAL_ROLES if role in pieces]
        starts = np.cumsum([0, *(pieces[role].size for role in real)])
        rows = np.concatenate(
            [found[role][1] + start for role, start in zip(real, starts[:-1], strict=True)]
        )
        every = np.concatenate([found[role][0] for role in real])
        own, owner = holders_of(every, order[people.codes[rows]], self.max_holders)
        person = np.argsort(order)[owner]
        return np.unique(person), np.unique(person[np.isin(own, found["synthetic"][0])])


def _people_with_own(inputs: EvaluationInputs, name: str, people: np.ndarray) -> np.ndarray | None:
    """Return the subjects who alone have a value of the column that is in S.

    None: it is a column of numbers or times, and too few subjects have a value of their own.

    ``people`` is the subject of each row of the stacked real tables, shape (n,).
    """
    real = [inputs.tables[role][name] for role in _real(inputs)]
    (codes, made), values = ranked([stacked(real), inputs.synthetic[name]])
    there = codes >= 0
    codes, owners = codes[there], people[there]
    alone = count_holders(codes, owners, len(values)) == 1
    if real[0].values is None and len(np.unique(owners[alone[codes]])) < _MIN_ALONE:
        return None
    alone &= np.bincount(made[made >= 0], minlength=len(values)) > 0
    column = inputs.schema[name]
    if column.source:
        alone &= np.isin(values.objects(), allowed_values(column, []).objects(), invert=True)
    return np.unique(owners[alone[codes]])


def _real(inputs: EvaluationInputs) -> list[str]:
    return [role for role in REAL_ROLES if role in inputs.tables]


def _foreign(inputs: EvaluationInputs) -> list[dict[str, Any]]:
    """Return role and share of foreign cells of each column."""
    records = []
    for column in inputs.schema.columns:
        real = [inputs.tables[role][column.name] for role in _real(inputs)]
        cells = foreign_cells(column, real, inputs.synthetic[column.name])
        role = column.role or natural_role(column, real)
        records.append(
            {
                "column": column.name,
                "role": role,
                "foreign": float(cells.mean()) if len(cells) else 0.0,
            }
        )
    return records
