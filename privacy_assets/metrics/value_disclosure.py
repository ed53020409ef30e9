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
from privacy_assets.tables.inference import REAL_ROLES
from privacy_assets.tables.published_categories import count_holders
from privacy_assets.tables.roles import allowed_values, foreign_cells, natural_role

_SIGNS = re.compile(r"[\W_]+")
_END = "\n"  # does not occur in text without punctuation
_SHIFT = np.uint64(29)
_FIRST_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Values of a column.

    Attributes:
        texts: Distinct strings.
        text_index: Position of the string of each non-empty cell, shape (m,).
        rows: Row of each such cell, shape (m,).
        size: Number of rows of the column.
    """

    texts: Sequence[str]
    text_index: np.ndarray
    rows: np.ndarray
    size: int

    def of_length(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return hashes (p,) of values and of their substrings of ``length`` characters, and the
        row (p,) of each.
        """
        text_hashes = pd.util.hash_array(np.array(self.texts, dtype=object), categorize=False)
        substring_hashes, substring_texts = _substrings(self.texts, length)
        hashes = np.concatenate([text_hashes.astype(np.uint64), substring_hashes])
        texts = np.concatenate([np.arange(len(self.texts)), substring_texts])
        hashes = hashes[np.argsort(texts, kind="stable")]

        # The hashes of a text are adjacent now. Each cell takes all those of its text.
        n_hashes = np.bincount(texts, minlength=len(self.texts))
        text_starts = np.cumsum(n_hashes) - n_hashes
        n_of_cell = n_hashes[self.text_index]
        cell_starts = np.cumsum(n_of_cell) - n_of_cell
        offsets = np.arange(n_of_cell.sum()) - np.repeat(cell_starts, n_of_cell)
        positions = np.repeat(text_starts[self.text_index], n_of_cell) + offsets
        return hashes[positions], np.repeat(self.rows, n_of_cell)


def pieces_of(column: Column) -> Pieces:
    """Return the values of a column: letters and digits in lower case."""
    (codes,), distinct = ranked([column])
    plain = [_SIGNS.sub("", str(value).casefold()) for value in distinct.objects()]
    # Values that differ only in case and punctuation have the same text.
    text_of_code, texts = pd.factorize(np.array([*plain, ""], dtype=object))
    # -1 (missing) selects the last one, "": a value of punctuation only carries no information
    text_index = text_of_code[codes]
    rows = np.flatnonzero(text_index != text_of_code[-1])
    return Pieces(texts.tolist(), text_index[rows], rows, len(column))


def together(columns: Sequence[Pieces]) -> Pieces:
    """Join several columns of one table."""
    texts: list[str] = []
    text_index = []
    for pieces in columns:
        text_index.append(pieces.text_index + len(texts))
        texts.extend(pieces.texts)
    rows = np.concatenate([pieces.rows for pieces in columns])
    return Pieces(texts, np.concatenate(text_index), rows, columns[0].size)


def holders_of(
    pieces: np.ndarray, subjects: np.ndarray, max_holders: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the rare pieces, and the first subject of each.

    Args:
        pieces: Hash of each piece, uint64 (p,).
        subjects: Subject of each piece, int64 (p,).
        max_holders: Maximum number of subjects of a rare piece.

    Returns:
        The distinct rare pieces, ascending, and the lowest subject of each.
    """
    if len(pieces) == 0:
        return pieces, subjects
    order = np.lexsort((subjects, pieces))
    pieces = pieces[order]
    subjects = subjects[order]
    is_new_piece = np.append(True, pieces[1:] != pieces[:-1])
    is_new_pair = is_new_piece | np.append(True, subjects[1:] != subjects[:-1])
    codes = np.cumsum(is_new_piece) - 1
    n_holders = np.bincount(codes[is_new_pair])
    is_rare = n_holders <= max_holders
    return pieces[is_new_piece][is_rare], subjects[is_new_piece][is_rare]


def _substrings(texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes (p,) of all substrings of ``length`` characters, and the position (p,) of their
    string.
    """
    joined = _END.join([*texts, ""])
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    if len(characters) < length:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    is_end = characters == ord(_END)
    text_index = np.cumsum(is_end) - is_end
    first_texts = text_index[: len(text_index) - length + 1]
    last_texts = text_index[length - 1 :]
    starts = np.flatnonzero(first_texts == last_texts)
    starts = starts[~is_end[starts + length - 1]]
    return _windows(characters.astype(np.uint64), length)[starts], text_index[starts]


def _windows(characters: np.ndarray, length: int) -> np.ndarray:
    """Return the hash of each window of ``length`` characters, computed recursively from its
    halves.
    """
    if length == 1:
        return _mixed(characters, np.uint64(0))
    left = _windows(characters, length - length // 2)
    right = left if length % 2 == 0 else _windows(characters, length // 2)
    n_windows = len(characters) - length + 1
    return _mixed(left[:n_windows], right[length - length // 2 :][:n_windows])


def _mixed(left: np.ndarray, right: np.ndarray | np.uint64) -> np.ndarray:
    """Combine two hashes. The order matters."""
    mixed = (left * _FIRST_FACTOR) ^ (right + _FIRST_FACTOR + (left << _SHIFT))
    mixed = (mixed ^ (mixed >> _SHIFT)) * _SECOND_FACTOR
    return mixed ^ (mixed >> _SHIFT)


CROWDED = 0.005  # share of subjects matched by chance, above which longer pieces are used
_NO_GENERATED = "no generated column"
_NO_COVERED = "no column of categories, or of numbers of which single people have a value"
_BY_RULE = (
    "by rule: the threshold rule replaced the values of few people, except those of public lists"
)
# people who alone have a value from which a column of numbers or times is covered
_MIN_SOLE_HOLDERS = 20


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
            of the non-members, in the worst column.
        generated_excess: Number of subjects whose text or identifier is in generated columns
            because of membership, divided by the smaller of members and synthetic rows.

    Notes:
        A category is foreign if it occurs in no real table and is not declared, so that it cannot
        carry a message. A number or date is foreign if it is farther outside the real range than
        the width of the range, and not declared. A missing value is foreign if the real rows have
        none.

        ``own_values`` covers categories, and numbers and times of which at least 20 subjects have a
        value that no other subject of the real tables has. Values of public lists are left out. The
        counts of train and non-members are compared exactly, as below, and the interval is
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
        default=(12, 24, 48), min_length=1
    )
    max_holders: int = Field(default=5, ge=1)
    confidence: float = Field(default=0.99, ge=0.5, lt=1)

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
            source="significant at 99 % over all columns jointly; fails for none of the"
            " non-leaking releases (0 of 118 releases of 47 tables; see the benchmark on"
            " rare values)",
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
        subjects = Subjects.of(inputs.subject_codes(*inputs.real_roles), len(inputs.train))
        records = _foreign(inputs)
        foreign_cells = self._foreign_cells(inputs, subjects, records)
        generated_excess = self._generated_excess(inputs, subjects)
        own_values = self._own_values(inputs, subjects, records)
        estimates = (foreign_cells, generated_excess, own_values)
        return self.result(inputs, estimates, columns=records)

    def _foreign_cells(
        self, inputs: EvaluationInputs, subjects: Subjects, records: list[dict[str, Any]]
    ) -> Estimate:
        counts = (len(inputs.synthetic), len(subjects.member))
        worst = math.nan
        if len(inputs.synthetic):
            worst = max((float(record["foreign"]) for record in records), default=0.0)
        names = ", ".join(safe_repr(record["column"]) for record in records if record["foreign"])
        note = f"in {names}" if names else ""
        return self.statistic("foreign_cells").estimate(
            worst, worst, worst, counts, minimum_detectable_effect=0.0, note=note
        )

    def _own_values(
        self, inputs: EvaluationInputs, subjects: Subjects, records: list[dict[str, Any]]
    ) -> Estimate:
        """Estimate ``own_values``, and add the value of each column to its record."""
        spec = self.statistic("own_values")
        counts = (len(inputs.synthetic), subjects.smallest_side)
        columns = [column for column in inputs.schema.columns if column.kind != "boolean"]
        names = [column.name for column in columns if column.name not in inputs.release.ruled]
        _add_own(records, {})
        if columns and not names:
            estimate = spec.estimate(
                0.0, 0.0, 0.0, counts, confidence=self.confidence, note=_BY_RULE
            )
            return replace(estimate, by_rule=True)
        if min(counts) == 0:
            reason = "there are no synthetic rows, or no people on one side"
            return spec.missing(reason, counts, self.confidence)

        evidence = self._own_evidence(inputs, subjects, names)
        _add_own(records, evidence)
        if not evidence:
            return self._nothing(spec, counts, _NO_COVERED)
        disclosed = []
        for name, (_, low, _, _) in evidence.items():
            if low > 0:
                disclosed.append(safe_repr(name))
        note = f"single people are disclosed in {', '.join(disclosed)}" if disclosed else ""
        return self._largest(spec, np.array(list(evidence.values())), counts, note)

    def _own_evidence(
        self, inputs: EvaluationInputs, subjects: Subjects, names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return value, low, high and minimum detectable effect (4,) of each covered column."""
        all_subjects = np.arange(len(subjects))
        confidence = 1 - (1 - self.confidence) / max(len(names), 1)
        evidence = {}
        for name in names:
            matched = _sole_holders(inputs, name, subjects.codes)
            if matched is None:
                continue
            n_leaked = leaked_subjects(all_subjects, matched, subjects.member, confidence)
            evidence[name] = n_leaked / subjects.members
        return evidence

    def _generated_excess(self, inputs: EvaluationInputs, subjects: Subjects) -> Estimate:
        spec = self.statistic("generated_excess")
        n_synthetic = len(inputs.synthetic)
        counts = (n_synthetic, subjects.smallest_side)
        if not inputs.release.generated:
            return self._nothing(spec, counts, _NO_GENERATED)
        names = inputs.release.generated["synthetic"].schema.names
        if not names:
            return self._nothing(spec, counts, _NO_GENERATED)

        order = inputs.rng("value_disclosure.people").permutation(len(subjects))
        comparisons = _comparisons(inputs, names)
        confidence = 1 - (1 - self.confidence) / len(comparisons)
        columns = []
        for pieces in comparisons:
            columns.append(self._excess(pieces, subjects, order, n_synthetic, confidence))
        evidence = np.array(columns)
        if min(counts) == 0 or np.isnan(evidence).any():
            reason = "train or non-members have no rare values"
            return spec.missing(reason, counts, self.confidence)
        return self._largest(spec, evidence, counts)

    def _nothing(self, spec: StatisticSpec, counts: tuple[int, int], note: str) -> Estimate:
        """Return an estimate of exactly 0: no column is covered."""
        return spec.estimate(
            0.0,
            0.0,
            0.0,
            counts,
            confidence=self.confidence,
            minimum_detectable_effect=0.0,
            note=note,
        )

    def _largest(
        self, spec: StatisticSpec, evidence: np.ndarray, counts: tuple[int, int], note: str = ""
    ) -> Estimate:
        """Return the estimate of the column with the largest lower end.

        Args:
            spec: The statistic.
            evidence: Value, low, high and minimum detectable effect of each column, (columns, 4).
            counts: Numbers of rows and subjects.
            note: Note of the estimate.
        """
        order = np.lexsort((-evidence[:, 0], -evidence[:, 1]))
        worst = order[0]  # the first of tied columns
        value, low = evidence[worst, :2].tolist()
        high, smallest_effect = evidence[:, 2:].max(axis=0)
        return spec.estimate(
            value,
            low,
            high,
            counts,
            confidence=self.confidence,
            minimum_detectable_effect=smallest_effect,
            note=note,
        )

    def _excess(
        self,
        pieces: Mapping[str, Pieces],
        subjects: Subjects,
        order: np.ndarray,
        n_synthetic: int,
        confidence: float,
    ) -> np.ndarray:
        """Return value, low, high and minimum detectable effect (4,) of one column. NaN if only one
        side has pieces.
        """
        for length in self.lengths:
            owners, matched = self._matches(pieces, subjects, order, length)
            if len(matched) <= CROWDED * len(owners):
                break
        n_leaked = leaked_subjects(owners, matched, subjects.member, confidence)
        return n_leaked / max(min(subjects.members, n_synthetic), 1)

    def _matches(
        self, pieces: Mapping[str, Pieces], subjects: Subjects, order: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the subjects with rare pieces, and the subjects with such a piece in S."""
        hashes = []
        rows = []
        n_rows = 0
        for role in REAL_ROLES:
            if role in pieces:
                role_hashes, role_rows = pieces[role].of_length(length)
                hashes.append(role_hashes)
                rows.append(role_rows + n_rows)
                n_rows += pieces[role].size
        ranks = order[subjects.codes[np.concatenate(rows)]]
        rare, lowest_ranks = holders_of(np.concatenate(hashes), ranks, self.max_holders)
        owners = np.argsort(order)[lowest_ranks]

        synthetic_hashes, _ = pieces["synthetic"].of_length(length)
        is_matched = np.isin(rare, synthetic_hashes)
        return np.unique(owners), np.unique(owners[is_matched])


def _add_own(records: list[dict[str, Any]], evidence: Mapping[str, np.ndarray]) -> None:
    """Add the value of each column to its record, or None."""
    for record in records:
        record["own"] = None
        if record["column"] in evidence:
            record["own"] = float(evidence[record["column"]][0])


def _comparisons(inputs: EvaluationInputs, names: Sequence[str]) -> list[dict[str, Pieces]]:
    """Return the pieces to compare, by role: each generated column with itself, and all of them
    with all generated columns of the real rows, including the subject.
    """
    columns = {}
    for role, table in inputs.release.generated.items():
        columns[role] = {name: pieces_of(column) for name, column in table.columns.items()}
    comparisons = []
    for name in names:
        comparisons.append({role: columns[role][name] for role in columns})
    if any(len(of_role) > 1 for of_role in columns.values()):
        joined = {role: together(list(of_role.values())) for role, of_role in columns.items()}
        comparisons.append(joined)
    return comparisons


def _sole_holders(
    inputs: EvaluationInputs, name: str, subject_codes: np.ndarray
) -> np.ndarray | None:
    """Return the subjects who alone have a value of the column that is in S.

    Args:
        inputs: Inputs of the metric.
        name: Column.
        subject_codes: Subject of each row of the stacked real tables, int64 (n,).

    Returns:
        Ascending subjects. None: it is a column of numbers or times, and too few subjects alone
        have a value.
    """
    real = _real_columns(inputs, name)
    (codes, synthetic_codes), values = ranked([stacked(real), inputs.synthetic[name]])
    is_present = codes >= 0
    codes = codes[is_present]
    owners = subject_codes[is_present]
    has_one_holder = count_holders(codes, owners, len(values)) == 1
    if real[0].values is None:  # numbers or times
        n_sole_holders = len(np.unique(owners[has_one_holder[codes]]))
        if n_sole_holders < _MIN_SOLE_HOLDERS:
            return None
    n_synthetic = np.bincount(synthetic_codes[synthetic_codes >= 0], minlength=len(values))
    is_disclosed = has_one_holder & (n_synthetic > 0)
    column = inputs.schema[name]
    if column.source:
        public = allowed_values(column, []).objects()
        is_disclosed &= np.isin(values.objects(), public, invert=True)
    return np.unique(owners[is_disclosed[codes]])


def _real_columns(inputs: EvaluationInputs, name: str) -> list[Column]:
    """Return a column of all real tables."""
    return [table[name] for table in inputs.real]


def _foreign(inputs: EvaluationInputs) -> list[dict[str, Any]]:
    """Return role and share of foreign cells of each column."""
    records = []
    for column in inputs.schema.columns:
        real = _real_columns(inputs, column.name)
        is_foreign = foreign_cells(column, real, inputs.synthetic[column.name])
        share = float(is_foreign.mean()) if len(is_foreign) else 0.0
        column_role = column.role or natural_role(column, real)
        records.append({"column": column.name, "role": column_role, "foreign": share})
    return records
