"""Compiled loops of :mod:`privacy_assets.tables.published_numbers`. Imports numba, so import it
lazily.

Cells are sorted by value, and ``ranks`` is the position of a cell's value among the distinct
values.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.infra.compiling import compiled, inlined


@compiled
def count_value_holders(
    ranks: np.ndarray,
    columns: np.ndarray,
    subject_codes: np.ndarray,
    last_value: np.ndarray,
    holders: np.ndarray,
) -> None:
    """Count the subjects that have each value.

    Args:
        ranks: Ranks of the sorted cells, int64 (n,).
        columns: Column of each cell, int64 (n,).
        subject_codes: Subject of each cell, int64 (n,).
        last_value: Scratch, -1, int64 (columns, subjects).
        holders: 0, int64 (values, columns). It receives the counts.
    """
    for cell in range(len(ranks)):
        value = ranks[cell]
        column = columns[cell]
        subject = subject_codes[cell]
        if last_value[column, subject] != value:
            last_value[column, subject] = value
            holders[value, column] += 1


@inlined
def _add_member(
    members: np.ndarray, counts: np.ndarray, group: int, column: int, subject: int
) -> None:
    """Add a subject to a group, which remembers at most k of them in each column."""
    n_members = counts[group, column]
    if n_members == members.shape[2]:
        return
    for i in range(n_members):
        if members[group, column, i] == subject:
            return
    members[group, column, n_members] = subject
    counts[group, column] += 1


@inlined
def _has_enough(counts: np.ndarray, has_column: np.ndarray, group: int, k: int) -> bool:
    """Return True if at least ``k`` subjects have a value of the group, in each column that has
    one.
    """
    has_enough = True
    for column in range(counts.shape[1]):
        if has_column[group, column] and counts[group, column] < k:
            has_enough = False
    return has_enough


@compiled
def cut_groups(
    first_cells: np.ndarray,
    columns: np.ndarray,
    subject_codes: np.ndarray,
    is_frequent: np.ndarray,
    jumps: np.ndarray,
    last_group: np.ndarray,
    starts: np.ndarray,
    is_complete: np.ndarray,
    has_column: np.ndarray,
    counts: np.ndarray,
    members: np.ndarray,
) -> int:
    """Cut the distinct values, in ascending order, into groups.

    Each frequent value is a group of its own. Other values are added to a group until k subjects
    have a value of it, and then for as long as fewer than k subjects have the added ones. The group
    ends before the largest jump among these, or before a frequent value or the end of the column,
    if that is among them. A column that is not in the group yet ends it, because k subjects must
    have a value of each column.

    Args:
        first_cells: Position of the first cell of each value, and the number of cells, int64
            (values + 1,).
        columns: Column of each cell, int64 (n,).
        subject_codes: Subject of each cell, int64 (n,).
        is_frequent: True for values with a group of their own, bool (values,).
        jumps: Jump from the previous value to each value, uint64 (values,).
        last_group: Scratch, -1, int64 (subjects,).
        starts: Output, int64 (groups + 1,): the position of the first value of each group.
        is_complete: False, bool (groups,). It receives True for groups that enough subjects have.
        has_column: False, bool (groups, columns). It receives True if a column has a value of the
            group.
        counts: 0, int64 (groups, columns). It receives the number of subjects of each group, at
            most k.
        members: Scratch, int64 (groups, columns, k). It receives these subjects.

    Returns:
        Number of groups.
    """
    n_values = len(is_frequent)
    k = members.shape[2]
    n_groups = 0
    value = 0
    while value < n_values:
        group = n_groups
        n_groups += 1
        starts[group] = value
        has_enough = False
        while value < n_values:
            for cell in range(first_cells[value], first_cells[value + 1]):
                has_column[group, columns[cell]] = True
                if subject_codes[cell] >= 0:
                    _add_member(members, counts, group, columns[cell], subject_codes[cell])
            has_enough = is_frequent[value] or _has_enough(counts, has_column, group, k)
            value += 1
            if has_enough or (value < n_values and is_frequent[value]):
                break
        is_complete[group] = has_enough
        if not has_enough or is_frequent[starts[group]]:
            continue
        cut = value
        n_added = 0
        while value < n_values and not is_frequent[value]:
            is_in_group = True
            for cell in range(first_cells[value], first_cells[value + 1]):
                is_in_group = is_in_group and has_column[group, columns[cell]]
                subject = subject_codes[cell]
                if last_group[subject] != group:
                    last_group[subject] = group
                    n_added += 1
            if n_added >= k or not is_in_group:
                break
            value += 1
            if value == n_values or is_frequent[value] or jumps[value] > jumps[cut]:
                cut = value
        value = cut
    starts[n_groups] = n_values
    return n_groups


@compiled
def join_groups(
    starts: np.ndarray,
    gaps: np.ndarray,
    is_complete: np.ndarray,
    has_column: np.ndarray,
    counts: np.ndarray,
    members: np.ndarray,
    frequent_values: np.ndarray,
    previous: np.ndarray,
    following: np.ndarray,
) -> bool:
    """Join each group that is not complete with its nearer neighbor (a tie: the lower one), until
    all are complete.

    Args:
        starts: Position of the first value of each group, int64 (groups,).
        gaps: Distance of each value from the previous one, in any monotone unit, uint64 (values,).
        is_complete: True for groups that enough subjects have, bool (groups,).
        has_column: True if a column has a value of the group, bool (groups, columns).
        counts: Number of subjects of each group, at most k, int64 (groups, columns).
        members: These subjects, int64 (groups, columns, k).
        frequent_values: Position of the frequent value of each group, or -1, int64 (groups,).
        previous: Position of the previous group, -1 for the first, int64 (groups,).
        following: Position of the next group, the number of groups for the last, int64 (groups,).
            Both are updated: groups that were joined to the one before have 0 there.

    Returns:
        False if all values together have too few subjects.
    """
    n_groups = len(starts)
    k = members.shape[2]
    group = 0
    while group < n_groups:
        if is_complete[group]:
            group = following[group]
            continue
        before = previous[group]
        after = following[group]
        if before < 0 and after == n_groups:
            return False
        left = group
        if before >= 0 and (after == n_groups or gaps[starts[group]] <= gaps[starts[after]]):
            left = before
        right = following[left]
        # Only groups of a single column have values of a public list, which are complete with fewer
        # subjects.
        is_complete[left] = counts.shape[1] == 1 and (is_complete[left] or is_complete[right])
        for column in range(counts.shape[1]):
            has_column[left, column] = has_column[left, column] or has_column[right, column]
            for i in range(counts[right, column]):
                _add_member(members, counts, left, column, members[right, column, i])
        if frequent_values[left] < 0:
            frequent_values[left] = frequent_values[right]
        is_complete[left] = is_complete[left] or _has_enough(counts, has_column, left, k)
        following[left] = following[right]
        following[right] = 0
        if following[left] < n_groups:
            previous[following[left]] = left
        group = left
    return True
