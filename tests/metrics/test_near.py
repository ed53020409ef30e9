"""Near copies: against distances by loops over pairs of rows, planted shares, and fresh rows."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation.evaluate import read_inputs
from privacy_assets.metrics.copies import REACHES, Copies, near_shares, nearness
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.inference import mean_difference
from privacy_assets.stats.subjects import Subjects

ROLES = ("train", "holdout", "reference", "synthetic")


def mixed(number: int, rng: np.random.Generator, missing: float = 0.0) -> pd.DataFrame:
    """Numbers, a date, categories and a constant column; some rows are equal."""
    frame = pd.DataFrame(
        {
            "age": rng.integers(36, 180, number) / 2,
            "pay": rng.lognormal(6, 1, number).round(-2) + 0.5,
            "plan": rng.choice(["a", "b", "c"], number, p=[0.7, 0.2, 0.1]),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 5, number), unit="D"),
        }
    )
    return frame.mask(rng.random(frame.shape) < missing).assign(one=1)


def inputs_of(frames: list[pd.DataFrame], seed: int = 0) -> EvaluationInputs:
    """Train, holdout, reference and release; a column ``who`` of the first three names the person of each row."""
    train, holdout, reference, synthetic = frames
    subject = "who" if "who" in train else None
    return read_inputs(train, holdout, synthetic, reference=reference, subject=subject, seed=seed)


def estimate(frames: list[pd.DataFrame], seed: int = 0) -> Estimate:
    """``near_share``."""
    return Copies(n_permutations=199).measure(inputs_of(frames, seed)).estimate("near_share")


def moved(rows: pd.DataFrame, rng: np.random.Generator, by: float = 0.05) -> pd.DataFrame:
    """Rows with numbers moved by a twentieth of their deviation."""
    numbers = {name: rows[name] + rng.normal(0, by * rows[name].std(), len(rows)) for name in ("age", "pay")}
    return rows.assign(**numbers)


def by_hand(inputs: EvaluationInputs) -> tuple[list[float], dict[int, list[list[float]]], float]:
    """The shares by loops over pairs; the nearness of every row, by person; the mean share of people's own rows."""
    rows, codes = [], inputs.subject_codes(*inputs.real_roles)
    for role in ROLES:
        table = inputs.encoded(role)
        rows.append(
            [[*map(float, n)] + [int(c) for c in code] for n, code in zip(table.numeric, table.codes, strict=True)]
        )
    real, width = [row for part in rows[:3] for row in part], inputs.encoded("train").numeric.shape[1]

    def apart(one: list[float], other: list[float]) -> float:
        squares = sum((a - b) ** 2 for a, b in zip(one[:width], other[:width], strict=True))
        return math.sqrt(squares + sum(a != b for a, b in zip(one[width:], other[width:], strict=True)))

    found: dict[int, list[list[float]]] = {}
    own: dict[int, list[bool]] = {}
    for row, who in zip(real, codes, strict=True):
        others = min(apart(row, other) for other, whose in zip(real, codes, strict=True) if whose != who)
        away = min(apart(row, made) for made in rows[3])
        near = [max(0.0, 1 - (away / (reach * others)) ** 2) if others > 0 else 0.0 for reach in REACHES]
        found.setdefault(who, []).append(near)
        own.setdefault(who, []).append(others > 0)
    members = {*codes[: len(inputs.train)]}
    shares = []
    for at in range(len(REACHES)):
        mean = {who: np.mean([near[at] for near in of]) for who, of in found.items()}
        inside, outside = (
            np.mean([x for who, x in mean.items() if (who in members) == side]) for side in (True, False)
        )
        held = np.mean([np.mean(own[who]) for who in own if who not in members])
        shares.append(float((inside - outside) / (1 - outside / held)))
    return shares, found, float(np.mean([np.mean(of) for of in own.values()]))


def shares(inputs: EvaluationInputs) -> tuple[np.ndarray, np.ndarray]:
    """The metric's shares at each reach, and the nearness of the rows."""
    people, found = inputs.all_subjects, nearness(inputs)
    rng = np.random.default_rng(0)
    difference = partial(mean_difference, subjects=people, n_permutations=199, rng=rng)
    return near_shares(*found, people, difference).observed, found[0]


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("each", [1, 3])
def test_shares_are_those_of_all_pairs(missing: float, each: int) -> None:
    rng = np.random.default_rng(each)
    train, holdout, reference, fresh = (mixed(number, rng, missing) for number in (90, 60, 45, 80))
    train.loc[:2] = holdout.loc[:2].to_numpy()  # shared rows belong to no single person
    frames = [train, holdout, reference, pd.concat([fresh, moved(train.iloc[5:30], rng)])]
    for first, frame in zip((0, 1000, 2000), frames, strict=False):
        frame["who"] = first + np.arange(len(frame)) // each
    frames[3] = frames[3].drop(columns="who", errors="ignore")
    inputs = inputs_of(frames)
    twin, near, held = by_hand(inputs)
    found, rows = shares(inputs)
    assert found == pytest.approx(twin, abs=1e-5) and 0.5 < held < 1
    codes = inputs.subject_codes(*inputs.real_roles)
    for who, of in near.items():
        assert rows[codes == who] == pytest.approx(np.array(of), abs=1e-4)


def split(
    seed: int, number: int = 500, missing: float = 0.0, numbers: str = "xy"
) -> tuple[list[pd.DataFrame], np.random.Generator]:
    """Train, holdout, reference and fresh rows, with more columns of ``numbers`` that make all rows differ."""
    rng = np.random.default_rng(seed)
    frames = [mixed(size, rng, missing) for size in (number, int(0.6 * number), int(0.4 * number), number)]
    return [frame.assign(**{name: rng.normal(size=len(frame)) for name in numbers}) for frame in frames], rng


def test_a_copy_of_train_is_one_and_of_the_holdout_negative() -> None:
    (train, holdout, reference, _), _ = split(1)
    assert estimate([train, holdout, reference, train.copy()]).value == pytest.approx(1, abs=0.02)
    found = estimate([train, holdout, reference, pd.concat([holdout, reference])])
    assert found.value == -1 and found.high < -0.5


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_moved_and_whole_copies_are_seen(share: float, missing: float) -> None:
    (train, holdout, reference, fresh), rng = split(2, missing=missing)
    taken = rng.random(len(train)) < share
    for rows, least in ((train[taken], 0.8), (moved(train[taken], rng), 0.5)):
        found = estimate([train, holdout, reference, pd.concat([fresh[~taken], rows])])
        assert found.low > 0 and least * taken.mean() < found.value < 1.2 * taken.mean()


@pytest.mark.slow
def test_fresh_rows_are_at_the_null() -> None:
    found = [estimate(split(seed, number=300, numbers="xy" if seed % 2 else "")[0], seed) for seed in range(15)]
    assert sum(one.low <= 0 <= one.high for one in found) >= 13
    assert abs(np.mean([one.value for one in found])) < 0.02


def test_neither_the_order_of_rows_nor_repeating_the_release_changes_it() -> None:
    (train, holdout, reference, fresh), rng = split(3)
    release = pd.concat([fresh.iloc[60:], moved(train.iloc[:60], rng)])
    frames = [train, holdout, reference, release]
    first = estimate(frames)
    assert first.low > 0
    assert estimate([frame.sample(frac=1, random_state=1) for frame in frames]) == first
    assert estimate([*frames[:3], pd.concat([release] * 3)]) == first


def test_one_person_repeated_counts_once() -> None:
    (train, holdout, reference, fresh), _ = split(4)
    found = estimate([train, holdout, reference, pd.concat([fresh, train.iloc[[7] * 200]])])
    assert found.value < 0.02 and found.low <= 0 <= found.high


def test_a_persons_own_rows_do_not_hide_each_other() -> None:
    """Five nearly equal rows per person: the distance to another person's row counts."""
    (train, holdout, reference, fresh), rng = split(5, number=200)
    many = [
        moved(frame.loc[frame.index.repeat(5)].reset_index(drop=True), rng, 0.001).assign(
            who=first + np.arange(5 * len(frame)) // 5
        )
        for first, frame in zip((0, 1000, 2000), (train, holdout, reference), strict=True)
    ]
    copied = moved(train.iloc[:60], rng, 0.01)
    found = estimate([*many, pd.concat([fresh.iloc[60:], copied])])
    assert found.subjects == 400 and found.low > 0.1 and found.value == pytest.approx(0.3, abs=0.08)


def test_where_every_row_is_shared_it_is_zero() -> None:
    frame = pd.DataFrame({"a": list("ab") * 50, "one": 1.0})
    found = estimate([frame, frame.iloc[:60], frame.iloc[:40], frame])
    assert (found.value, found.low, found.high) == (0, 0, 0)
    constant = pd.DataFrame({"one": np.ones(50)})
    found = estimate([constant, constant.iloc[:30], constant.iloc[:30], constant])
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_where_all_have_near_copies_nothing_can_be_seen() -> None:
    """The release has a near copy of every person: the share has no scale, and stays within its range."""
    (train, holdout, reference, _), _ = split(6, number=100)
    found = estimate([train, holdout, reference, pd.concat([train, holdout, reference])])
    assert -1 <= found.low <= found.value <= found.high <= 1 and found.value == pytest.approx(0, abs=1e-9)


def test_too_few_people_or_rows_are_not_measurable() -> None:
    (train, holdout, reference, fresh), _ = split(7, number=100)
    assert not estimate([train.iloc[:19], holdout, reference, fresh]).measurable
    assert not estimate([train.iloc[:20], holdout, reference, fresh.iloc[:19]]).measurable
    assert estimate([train.iloc[:20], holdout, reference, fresh.iloc[:20]]).measurable


def test_permuted_labels_are_by_person() -> None:
    """All rows of a person are on the same side, so the null deviation is computed from people, not rows."""
    rng = np.random.default_rng(8)
    near = np.repeat(rng.random((100, len(REACHES))), 4, axis=0)
    people = Subjects(np.repeat(np.arange(100), 4), np.arange(100) < 60)
    difference = partial(mean_difference, subjects=people, n_permutations=999, rng=rng)
    found = near_shares(near, np.ones(400, dtype=bool), people, difference)
    scale = 1 - near[4 * 60 :].mean(axis=0)
    assert found.null.std(axis=0) * scale == pytest.approx(near.std(axis=0) * (1 / 60 + 1 / 40) ** 0.5, rel=0.1)
