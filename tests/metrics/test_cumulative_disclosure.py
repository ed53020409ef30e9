"""Metric ``cumulative_disclosure``: releases that disclose little alone and much together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from privacy_assets import evaluate
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.cumulative_disclosure import (
    CumulativeDisclosure,
    excess,
    isolation_bins,
    merged_ledger,
    table_ratios,
)
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.ledger import Ledger
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.stored_inputs import digest_of, load_inputs, save_inputs
from privacy_assets.report.report import Report
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.splitting import pseudonyms
from tests.metrics.test_holdout_leakage import FRESH, HOLDOUT, REFERENCE, TRAIN, mixed, population
from tests.tables import with_tables

METRIC = CumulativeDisclosure()
Frame = pd.DataFrame


def inputs_of(
    synthetic: Frame, *released: Frame, train: Frame = TRAIN, **more: object
) -> EvaluationInputs:
    return read_inputs(train, HOLDOUT, synthetic, REFERENCE, earlier_releases=released, **more)  # type: ignore[arg-type]


def judged(inputs: EvaluationInputs) -> tuple[MetricResult, str]:
    result = METRIC.measure(inputs)
    return result, default_policy([METRIC.name]).judge({METRIC.name: result}).status


def values(inputs: EvaluationInputs) -> list[tuple[float, float, float]]:
    return [(one.value, one.low, one.high) for one in METRIC.measure(inputs).estimates]


def by_chance(result: MetricResult) -> bool:
    """Whether all statistics are within 2.6 standard errors of 0."""
    return all(abs(one.value) < 2.6 / 1.645 * (one.value - one.low) for one in result.estimates)


def drops(count: int, size: int = 15) -> list[Frame]:
    """Tables in which 1.7 % of the rows are copies; each table copies different training rows."""
    return [
        pd.concat(
            [TRAIN.iloc[k * size : (k + 1) * size], population(900 - size, 100 + k)],
            ignore_index=True,
        )
        for k in range(count)
    ]


def by_ledger(tables: list[Frame]) -> EvaluationInputs:
    """Inputs of the last table, with the ledger of the tables before."""
    ledger: Ledger | None = None
    for table in tables:
        inputs = inputs_of(table)
        real = {role: inputs.tables[role] for role in inputs.real_roles}
        people = {role: pseudonyms(one, b"key") for role, one in real.items()}
        inputs = inputs.with_facts(pseudonyms=people)
        inputs = inputs.with_context(replace(inputs.context, ledger=ledger))
        ledger = merged_ledger(inputs)
    return inputs


def squared_distances(rows: EvaluationInputs, queries: str, points: str) -> np.ndarray:
    """Squared distances between all rows of two tables, by the definition."""
    one, other = rows.encoded(queries), rows.encoded(points)
    numbers = (one.numeric[:, None].astype(float) - other.numeric[None].astype(float)) ** 2
    return np.asarray(numbers.sum(-1) + (one.codes[:, None] != other.codes[None]).sum(-1))


def expected_ratios(inputs: EvaluationInputs, whose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ratio and isolation of each person, from all pairs of rows."""
    roles = inputs.real_roles
    real = np.block([[squared_distances(inputs, one, other) for other in roles] for one in roles])
    nearest = np.vstack([squared_distances(inputs, one, "synthetic") for one in roles]).min(axis=1)
    alone = np.where(whose[:, None] == whose[None], np.inf, real).min(axis=1) ** 0.5
    ratio = alone / np.maximum(nearest**0.5, 1e-6)
    people = range(whose.max() + 1)
    return tuple(
        np.array([of[whose == person].max() for person in people]) for of in (ratio, alone)
    )  # type: ignore[return-value]


def expected_excess(near: np.ndarray, member: np.ndarray, bins: np.ndarray) -> tuple[float, float]:
    """The weighted difference and its error, bin by bin."""
    found = []
    for at in np.unique(bins):
        t, u, both = near[(bins == at) & member], near[(bins == at) & ~member], near[bins == at]
        if min(len(t), len(u)) >= 30:
            weight = len(both) / max(both.var(), 0.005)
            found.append((weight, t.mean() - u.mean(), t.var() / len(t) + u.var() / len(u)))
    weight, difference, variance = np.array(found).T
    return float(weight @ difference / weight.sum()), float(
        (weight**2 @ variance) ** 0.5 / weight.sum()
    )


@pytest.mark.parametrize("subjects", [False, True])
def test_the_statistics_are_those_of_all_pairs_of_rows(subjects: bool) -> None:
    """People of several rows count by their nearest row, and their own rows do not reduce their
    isolation.
    """
    rng = np.random.default_rng(3)
    frames = [population(rows, seed) for rows, seed in ((900, 1), (500, 2), (400, 3))]
    frames = [frame.assign(x=frame.x.where(rng.random(len(frame)) > 0.1)) for frame in frames]
    copied = pd.concat([frames[0].iloc[:30], population(700, 4)])
    if subjects:
        frames = [
            frame.assign(who=first + np.arange(len(frame)) // 3)
            for first, frame in zip((0, 1000, 2000), frames, strict=True)
        ]
    inputs = read_inputs(
        frames[0],
        frames[1],
        copied,
        frames[2],
        declared=Declared(subject="who" if subjects else None),
    )
    whose = inputs.subject_codes(*inputs.real_roles)
    ratio, alone = expected_ratios(inputs, whose)
    number = inputs.all_subjects.codes
    order = np.array([number[whose == person][0] for person in range(whose.max() + 1)])
    found, isolation = table_ratios(inputs)
    np.testing.assert_allclose(found[order], ratio, rtol=1e-5)
    np.testing.assert_allclose(isolation[order], alone, rtol=1e-9)
    near, member = found > 4, inputs.all_subjects.member
    assert member.sum() == (300 if subjects else 900)
    bins = isolation_bins(isolation, member)
    assert len(np.unique(bins)) == (5 if subjects else 10)
    weighted, plain = METRIC.measure(inputs).estimates
    for estimate, at in ((weighted, bins), (plain, 0 * bins)):
        value, error = expected_excess(near, member, at)
        assert estimate.value == pytest.approx(value) and value > 0.01
        assert estimate.value - estimate.low == pytest.approx(1.6449 * error, rel=1e-4)
        assert estimate.high - estimate.value == pytest.approx(1.6449 * error, rel=1e-4)


def test_the_difference_of_two_shares() -> None:
    near = np.repeat([True, False, True, False], [10, 90, 30, 170])
    member = np.arange(300) < 100
    value, error = excess(near, member)
    assert value == pytest.approx(0.10 - 0.15)
    assert error == pytest.approx((0.10 * 0.90 / 100 + 0.15 * 0.85 / 200) ** 0.5)
    assert excess(near, ~member)[0] == pytest.approx(0.05)
    assert excess(near * False, member) == (0, 0) and excess(member, member) == (1, 0)
    few = np.where(np.arange(300) % 10 == 0, 0, 1)  # ten members in bin 0
    assert excess(near, member, few)[0] == pytest.approx(
        excess(near[few == 1], member[few == 1])[0]
    )
    assert np.isnan(excess(near, member, np.arange(300) // 15)).all(), (
        "no bin has 30 people of each side"
    )
    assert (
        np.isnan(excess(near[:0], member[:0])).all()
        and np.isnan(excess(near[:1], member[:1])).all()
    )


def test_the_error_is_that_of_shuffled_sides() -> None:
    """If membership does not matter, the weighted difference spreads as its standard error
    states.
    """
    rng = np.random.default_rng(0)
    isolation = rng.gamma(2, 1, 2000)
    near, member = rng.random(2000) < 0.3 * np.exp(-isolation), np.arange(2000) < 1000
    bins = isolation_bins(isolation, member)
    shuffled = [excess(near, rng.permutation(member), bins) for _ in range(400)]
    drawn, errors = np.array(shuffled).T
    assert abs(drawn.mean()) < 4 * drawn.std() / 20
    assert drawn.std() == pytest.approx(errors.mean(), rel=0.1)


def test_a_copy_is_the_worst_and_fresh_rows_are_nothing() -> None:
    result, status = judged(inputs_of(TRAIN))
    assert [one.value for one in result.estimates] == [1, 1] and status == "fail"
    result, status = judged(inputs_of(FRESH))
    assert status == "pass" and by_chance(result)
    copied = [
        values(inputs_of(mixed((TRAIN, share), (FRESH, 900 - share))))[0][0]
        for share in (18, 90, 450)
    ]
    assert np.all(np.diff(copied) > 0.05)


def test_the_order_of_rows_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    synthetic = mixed((TRAIN, 40), (FRESH, 500))
    shuffled = [
        frame.iloc[rng.permutation(len(frame))] for frame in (TRAIN, HOLDOUT, synthetic, REFERENCE)
    ]
    assert values(read_inputs(*shuffled)) == values(inputs_of(synthetic))
    assert values(inputs_of(pd.concat([synthetic, synthetic]))) == values(inputs_of(synthetic)), (
        "repeated rows"
    )


@pytest.mark.parametrize("sides", [1, 3])
def test_nobody_is_singled_out_by_a_row_of_several_people(sides: int) -> None:
    """Of two equal rows the isolation is 0, so a copy of both is not near. Their people are left
    out of ``excess``.
    """
    tables = [TRAIN, HOLDOUT, REFERENCE]
    halves = [table.iloc[: len(table) // 2] for table in tables[:sides]]
    tables[:sides] = [pd.concat([half, half], ignore_index=True) for half in halves]
    train, holdout, reference = (
        table.assign(who=1000 * at + np.arange(len(table))) for at, table in enumerate(tables)
    )
    result = METRIC.measure(
        read_inputs(train, holdout, tables[0], reference, declared=Declared(subject="who"))
    )
    assert result.estimate("share").value == 0
    few = result.estimate("excess")
    assert (few.value, few.low, few.high) == (0, 0, 0) and few.note.startswith(
        "nearly every person shares"
    )


def test_an_outlier_of_one_person_is_not_a_leak_and_changes_nothing_else() -> None:
    far = TRAIN.iloc[[0]].assign(x=500.0, y=90_000.0)
    train = pd.concat([far, TRAIN.iloc[1:]], ignore_index=True)
    with_it, status = judged(inputs_of(pd.concat([FRESH, far]), train=train))
    without = METRIC.measure(inputs_of(pd.concat([FRESH, FRESH.iloc[[0]]]), train=train))
    assert status == "pass"
    assert with_it.estimate("share").value - without.estimate("share").value == pytest.approx(
        1 / 900
    )


@pytest.mark.parametrize(
    ("train", "synthetic"), [(0, 900), (1, 900), (19, 900), (900, 0), (900, 19)]
)
def test_too_few_people_or_rows_are_not_measurable(train: int, synthetic: int) -> None:
    inputs = inputs_of(FRESH)
    tables = {
        **inputs.tables,
        "train": inputs.train.take(slice(train)),
        "synthetic": inputs.synthetic.take(slice(synthetic)),
    }
    result, status = judged(with_tables(inputs, tables))
    assert status == "undecided"
    assert all(np.isnan(one.value) for one in result.estimates)
    assert all("need at least 20 people" in one.note for one in result.estimates)


@pytest.mark.slow
def test_each_leaks_too_little_and_the_union_too_much() -> None:
    """The ledger, with tables in any order, equals the union of the tables."""
    tables = drops(4)
    assert [judged(inputs_of(table))[1] for table in tables[:2]] == ["pass"] * 2
    union, status = judged(inputs_of(tables[-1], *tables[:-1]))
    assert status == "fail"
    found = {}
    for name, series in (("in order", tables), ("reversed", [*tables[-2::-1], tables[-1]])):
        found[name] = by_ledger(series)
        assert METRIC.measure(found[name]).estimates == union.estimates
    people = [merged_ledger(inputs) for inputs in found.values()]
    assert people[0] is not None and people[1] is not None
    assert np.array_equal(people[0].ratio, people[1].ratio) and len(people[0].exact) == 1500
    report = evaluate(
        TRAIN, HOLDOUT, tables[0], earlier_releases=tables[1:], metrics=METRIC.name, embedder=False
    )
    assert report.verdict == "fail"
    with pytest.raises(ConfigError, match="no metric uses them"):
        evaluate(
            TRAIN, HOLDOUT, tables[0], earlier_releases=tables[1:], metrics="dcr", embedder=False
        )


def test_honest_releases_may_be_many() -> None:
    result, status = judged(by_ledger([population(900, 200 + k) for k in range(6)]))
    assert status == "pass" and by_chance(result)


def test_noisy_copies_of_other_people_add_up() -> None:
    rng = np.random.default_rng(5)
    tables = drops(4, size=20)
    for table in tables:
        table.loc[:19, "x"] = (table.x[:20] + rng.normal(0, 0.01, 20)).round(3)
    assert judged(inputs_of(tables[0]))[1] == "pass"
    assert judged(by_ledger(tables))[1] == "fail"


def test_a_ledger_needs_to_know_the_people() -> None:
    inputs = by_ledger([FRESH, FRESH])
    assert merged_ledger(inputs_of(FRESH)) is None
    with pytest.raises(InputError, match="no pseudonyms of people"):
        METRIC.measure(inputs.with_facts(pseudonyms={}))


def test_people_are_stored_with_the_inputs(tmp_path: object) -> None:
    inputs = by_ledger([FRESH])
    inputs = inputs.with_context(replace(inputs.context, ledger=None))
    save_inputs(inputs, tmp_path)  # type: ignore[arg-type]
    again = load_inputs(tmp_path)  # type: ignore[arg-type]
    assert {role: of.tolist() for role, of in again.release.pseudonyms.items()} == {
        role: of.tolist() for role, of in inputs.release.pseudonyms.items()
    }
    one, other = merged_ledger(again), merged_ledger(inputs)
    assert one is not None and other is not None and one.to_bytes() == other.to_bytes()
    assert digest_of(again) == digest_of(inputs) != digest_of(inputs_of(FRESH))


def test_a_column_that_came_or_went_since_does_not_stop_anything() -> None:
    older = population(300, 8).drop(columns="n").assign(gone=1)
    result, status = judged(inputs_of(FRESH, older))
    assert status == "pass" and result.estimates != METRIC.measure(inputs_of(FRESH)).estimates


def test_renamed_columns_and_other_kinds_hide_no_copy() -> None:
    """Releases are compared in the columns that they share, so a copy remains a copy."""
    copied = TRAIN.rename(columns={"x": "other", "c": "kind"}).assign(n="text")
    assert judged(inputs_of(FRESH, copied, population(300, 8)))[1] == "fail"


def test_releases_without_a_common_column_are_rejected() -> None:
    strange = population(300, 8).rename(columns=str.upper)
    with pytest.raises(
        InputError, match="earlier releases: they and this table have no common column"
    ):
        judged(inputs_of(FRESH, FRESH, strange))


def test_the_report_states_numbers_of_all_releases_only_if_there_are_several() -> None:
    first, second = drops(2)
    for earlier, stated in (([], 0), ([first], 2)):
        found = evaluate(
            TRAIN,
            HOLDOUT,
            second,
            reference=REFERENCE,
            earlier_releases=earlier,
            metrics=METRIC.name,
            embedder=False,
        )
        again = Report.from_json(found.to_json())
        for report in (found, again):
            notes = [note for note in report.page().notes if "All releases together" in note]
            assert len(notes) == stated, "one for each limit"
            assert not any("%" in note for note in notes)
