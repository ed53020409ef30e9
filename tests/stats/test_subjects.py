"""Subjects of rows: counts, selections, and numbers that do not depend on the order of rows."""

from __future__ import annotations

import numpy as np

from privacy_assets.stats.subjects import Subjects, order_by_content

CODES = np.array([0, 0, 1, 2, 2, 2])  # the first three rows are train


def test_labels_and_counts() -> None:
    found = Subjects.of(CODES, 3)
    assert found.member.tolist() == [True, True, False]
    assert (len(found), found.members, found.smallest_side, found.counts) == (3, 2, 1, (6, 3))
    assert (found.side(True), found.side(False)) == ((3, 2), (3, 1))
    assert found.totals().tolist() == [2, 1, 3] and found.totals(np.arange(6.0)).tolist() == [
        1,
        2,
        12,
    ]
    assert found.relabeled(~found.member).members == 1


def test_a_subject_without_rows_keeps_its_label_and_is_removed_by_a_selection() -> None:
    found = Subjects(np.array([0, 2]), np.array([True, False, False]))
    assert len(found) == 3 and found.counts == (2, 2)
    selected = found.take(np.array([False, True]))
    assert selected.codes.tolist() == [0] and selected.member.tolist() == [False]


def test_numbers_follow_the_content_of_rows() -> None:
    rows = np.array([7, 3, 5, 9, 3, 8])
    plain = Subjects.by_content(CODES, 3, rows)
    names = np.array([1, 2, 0])  # other codes of the same subjects, and their rows in another order
    order = np.array([2, 1, 0, 5, 3, 4])
    other = Subjects.by_content(names[CODES][order], 3, rows[order])
    assert (other.codes == plain.codes[order]).all() and (other.member == plain.member).all()
    # The smallest rows are 3, 5 and 3: the non-member comes first among equal ones.
    assert plain.codes.tolist() == [1, 1, 2, 0, 0, 0]
    assert order_by_content(CODES, rows).tolist() == [0, 0, 2, 1, 1, 1]


def test_fewer_labelings_are_held_for_more_rows() -> None:
    assert Subjects.of(CODES, 3).block == 64
    assert Subjects.of(np.zeros(1_000_000, dtype=np.int64), 1).block == 4
