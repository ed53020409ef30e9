"""The oracles of the power study, compared with slow twins, and where no row is copied."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import power

SHAPES = [(0, 2), (3, 1), (2, 4), (9, 5)]  # hits and real rows of a cell


def logs(y: float, release: list[int], population: list[int], copied: list[int]) -> float:
    """Log-likelihood of a share y of copies, row by row."""
    chances = [
        (1 - y) * population.count(row) / len(population) + y * copied.count(row) / len(copied)
        for row in release
    ]
    return sum(math.log(chance) for chance in chances)


def likelihood(
    hits: int, members: int, rates: list[float], weights: list[float], chance: float
) -> float:
    """Likelihood of the hits, over every number of copies and every rate of fresh rows."""
    total = 0.0
    for rate, weight in zip(rates, weights, strict=True):
        for copies in range(min(members, hits) + 1):
            binomial = (
                math.comb(members, copies) * chance**copies * (1 - chance) ** (members - copies)
            )
            fresh = rate ** (hits - copies) * math.exp(-rate) / math.factorial(hits - copies)
            total += weight * binomial * fresh
    return math.log(total)


def test_the_interval_ends_where_the_likelihood_ratio_has_its_quantile() -> None:
    release, population, copied = (
        [0] * 70 + [1] * 30 + [2] * 20,
        [0] * 6 + [1] * 3 + [2],
        [0, 1, 1, 2, 2, 2],
    )
    low, high = power.interval_of_population(
        np.array(release), np.array(population), np.array(copied)
    )
    values = np.linspace(0.001, 0.999, 999)
    lost = 2 * (
        max(fits := [logs(y, release, population, copied) for y in values]) - np.array(fits)
    )
    assert low == pytest.approx(values[lost <= 1.96**2][0], abs=0.002)
    # 1.10 at the first attempt
    assert high == pytest.approx(values[lost <= (1.96 * 1.1043) ** 2][-1], abs=0.002)
    nobody = np.array([], dtype=int)
    assert power.interval_of_population(np.array(release), np.array(population), nobody) == (0, 0)


def test_the_interval_of_rows_that_no_fresh_one_equals_is_that_of_a_share() -> None:
    release = np.concatenate([np.arange(40), np.full(960, 1000)])
    low, high = power.interval_of_population(release, np.array([1000, 1001]), np.arange(500))
    assert 0.028 < low < 0.04 < high < 0.056
    assert (
        power.interval_of_population(np.full(1000, 1000), np.array([1000, 1001]), np.arange(500))[0]
        == 0
    )


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.weekly
def test_the_intervals_hold_the_true_share_of_copies_and_who_knows_more_is_surer(
    share: float,
) -> None:
    rng = np.random.default_rng(1)
    ends, widths = np.zeros(2), np.zeros(2)
    for _ in range(30):
        population = rng.geometric(0.01, 4000)
        real, others = population[:800], population[800:]
        copies = rng.random(400) < share
        release = np.concatenate([real[:400][copies], rng.choice(others, int((~copies).sum()))])
        every = np.ones(800, dtype=bool)
        found = (
            power.interval_of_population(release, others, real[:400]),
            power.interval_of_tables(release, real, others, every, 400, 1.0),
        )
        ends += [low - 1e-4 <= share <= high for low, high in found]
        widths += [high - low for low, high in found]
    assert (ends >= 26).all(), ends
    assert widths[0] < widths[1]


@pytest.mark.parametrize(("hits", "count"), SHAPES)
def test_likelihoods_are_those_of_every_way_to_make_the_hits(hits: int, count: int) -> None:
    rates, weights = [0.2, 1.7, 6.0], [90.0, 7.0, 2.0]
    found = power.likelihoods(hits, count, np.array(rates), np.array(weights), 0.1)
    slow = [likelihood(hits, members, rates, weights, 0.1) for members in range(count + 1)]
    np.testing.assert_allclose(found, slow, rtol=1e-9)


def test_a_cell_that_no_fresh_row_can_lie_in_is_hit_by_copies_only() -> None:
    none = power.likelihoods(2, 3, np.array([0.0]), np.array([1.0]), 0.1)
    assert (none[:2] < -600).all()
    assert none[2] == pytest.approx(math.log(0.01))


@pytest.mark.weekly
@pytest.mark.parametrize("dose", [0.0, 0.2])
def test_the_most_powerful_tests_keep_their_level_and_see_copies(
    dose: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "TRIALS", 199)
    rng = np.random.default_rng(2)
    population = rng.geometric(0.03, 4000)
    sizes, chances = np.unique(population, return_counts=True)[1], []
    for _ in range(100):
        real, whose = rng.choice(population, 1200), np.arange(1200) // 2
        member = rng.permutation(600) < 300
        own = real[member[whose]]
        copies = rng.random(len(own)) < dose
        release = np.concatenate([own[copies], rng.choice(population, int((~copies).sum()))])
        chances.append(
            [
                power.chance_of_population(release, population, own, 0.2, rng),
                power.chance_of_labels(release, real, whose, member, sizes, 0.2, rng),
            ]
        )
    below = (np.array(chances) < 0.1).mean(axis=0)
    assert (below < 0.2).all() if dose == 0 else (below > [0.85, 0.45]).all(), below


@pytest.mark.slow
def test_who_is_copied_is_who_may_be_and_the_oracles_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "TRIALS", 199)
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": rng.geometric(0.02, 3000), "b": rng.choice(list("xy"), 3000)})
    frame.to_parquet(tmp_path / "small.parquet")
    source = power.Source.read(str(tmp_path / "small.parquet"))
    draw = power.split(source, 500, 0.1, 0, every=False)
    real = pd.Series(source.cells[np.concatenate(list(draw.sides.values()))])
    np.testing.assert_array_equal(draw.own, real.map(real.value_counts()) <= 2)
    few, every = (power.drawn(source, 500, 0.1, 0, every=every) for every in (False, True))
    assert few["share"] == pytest.approx(0.1, abs=0.04)
    assert every["share"] == pytest.approx(0.1, abs=0.04)
    assert few["population"][0] <= few["share"] <= few["population"][1]
    assert "chances" not in few
    assert "oracle" not in every
    seen = np.array(
        [power.drawn(source, 500, 0.1, seed, every=True)["chances"] for seed in range(6)]
    )
    assert (np.median(seen, axis=0) < 0.1).all()


def test_doses_above_one_that_is_always_rejected_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = {"share": 0.0, "verdict": "pass", "copied_share": "pass"}
    never = {**never, "oracle": [0, 0.001], "population": [0, 0.001]}
    always = {**never, "share": 0.02, "verdict": "fail", "copied_share": "fail"}
    always = {**always, "oracle": [0.02, 0.1], "population": [0.02, 0.1]}
    monkeypatch.setattr(
        power, "drawn", lambda *options, every: always if options[2] >= 0.02 else never
    )
    pd.DataFrame({"a": range(1200)}).to_parquet(tmp_path / "small.parquet")
    for _ in range(2):
        asked = [
            "--people=200",
            "--draws=3",
            f"--results={tmp_path / 'out'}",
            str(tmp_path / "small.parquet"),
        ]
        power.main(asked)
        held = power.lines(tmp_path / "out")
        assert [line["dose"] for line in held] == [0.0, 0.01, 0.015, 0.02]
    assert (
        "| small | 200 | 1.9 % | 1.9 % | 1.9 % | 1.9 % | 1.9 % | 1.00 | 1.00 |"
        in power.report_text(held)
    )
    power.main([f"--report={tmp_path / 'out'}", f"--images={tmp_path}"])
    assert "gate, 200 people in train" in (tmp_path / "power_small.svg").read_text()
