"""The oracles of the study of power, beside slow twins and where nothing is copied."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import power


def logs(y: float, release: list[int], population: list[int], copied: list[int]) -> float:
    """Log likelihood of a share y of copies, row by row."""
    chances = [
        (1 - y) * population.count(row) / len(population) + y * copied.count(row) / len(copied) for row in release
    ]
    return sum(math.log(chance) for chance in chances)


def test_the_interval_ends_where_the_likelihood_ratio_has_its_quantile() -> None:
    release, population, copied = [0] * 70 + [1] * 30 + [2] * 20, [0] * 6 + [1] * 3 + [2], [0, 1, 1, 2, 2, 2]
    low, high = power.interval(np.array(release), np.array(population), np.array(copied))
    values = np.linspace(0.001, 0.999, 999)
    fits = [logs(y, release, population, copied) for y in values]
    inside = values[2 * (max(fits) - np.array(fits)) <= 1.959964**2]
    wider = values[2 * (max(fits) - np.array(fits)) <= (1.959964 * 1.1) ** 2]
    assert low == pytest.approx(inside[0], abs=0.004)
    assert high == pytest.approx(wider[-1], abs=0.02)  # the first attempt widens by 1.10 and a bit
    assert power.interval(np.array(release), np.array(population), np.array([], dtype=int)) == (0, 0)


def test_the_interval_of_rows_that_no_fresh_one_equals_is_that_of_a_share() -> None:
    release = np.concatenate([np.arange(40), np.full(960, 1000)])
    low, high = power.interval(release, np.array([1000, 1001]), np.arange(500))
    assert 0.028 < low < 0.04 < high < 0.056
    assert power.interval(np.full(1000, 1000), np.array([1000, 1001]), np.arange(500))[0] == 0


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_the_interval_holds_the_true_share(share: float) -> None:
    rng = np.random.default_rng(1)
    population, inside = rng.integers(0, 50, 3000), 0
    for _ in range(200):
        own = rng.choice(population, 400)
        copies = rng.random(400) < share
        release = np.concatenate([own[copies], rng.choice(population, int((~copies).sum()))])
        low, high = power.interval(release, population, own)
        inside += low - 1e-9 <= share <= high
    assert inside >= 186


@pytest.mark.parametrize(("hits", "count"), [(0, 2), (3, 1), (2, 4), (9, 5)])
def test_gains_are_those_of_every_way_to_make_the_hits(hits: int, count: int) -> None:
    values, times, real, release, dose = np.array([0.001, 0.01]), np.array([90, 7]), 300, 200, 0.1

    def poisson(k: int, mean: float) -> float:
        return mean**k * math.exp(-mean) / math.factorial(k)

    def likelihood(members: int) -> float:
        total = 0.0
        for value, cells in zip(values, times, strict=True):
            for copies in range(min(members, hits) + 1):
                binomial = math.comb(members, copies) * dose**copies * (1 - dose) ** (members - copies)
                fresh = poisson(hits - copies, release * (1 - dose) * value)
                total += cells * poisson(count, real * value) * binomial * fresh
        return math.log(total)

    found = power.gains_of(hits, count, values, times, real, release, dose)
    slow = np.array([likelihood(members) for members in range(count + 1)])
    np.testing.assert_allclose(found - found[0], slow - slow[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dose", [0.0, 0.2])
def test_the_oracles_keep_their_level_and_see_copies(dose: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "TRIALS", 199)
    rng = np.random.default_rng(2)
    population = rng.geometric(0.03, 4000)
    rates, chances = np.unique(population, return_counts=True)[1] / len(population), []
    for _ in range(100):
        real, whose = rng.choice(population, 1200), np.arange(1200) // 2
        member = rng.permutation(600) < 300
        own = real[member[whose]]
        copies = rng.random(len(own)) < dose
        release = np.concatenate([own[copies], rng.choice(population, int((~copies).sum()))])
        chances.append(
            [
                power.chance_given_population(release, population, own, 0.2, rng),
                power.chance_of_labels(release, real, whose, member, rates, 0.2, rng),
            ]
        )
    below = (np.array(chances) < 0.1).mean(axis=0)
    assert (below < 0.2).all() if dose == 0 else (below > [0.85, 0.45]).all(), below


def test_who_is_copied_is_who_may_be_and_the_oracles_see_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": rng.geometric(0.02, 3000), "b": rng.choice(list("xy"), 3000)})
    frame.to_parquet(tmp_path / "small.parquet")
    source = power.Source.read(str(tmp_path / "small.parquet"))
    few, every = (power.drawn(source, 500, 0.1, 0, every=every) for every in (False, True))
    assert few["share"] == pytest.approx(0.1, abs=0.04)
    assert every["share"] == pytest.approx(0.1, abs=0.04)
    assert few["oracle"][0] <= few["share"] <= few["oracle"][1]
    assert "chances" not in few
    seen = np.array([power.drawn(source, 500, 0.1, seed, every=True)["chances"] for seed in range(6)])
    assert (np.median(seen, axis=0) < 0.1).all()


def test_doses_above_one_that_is_always_refused_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = {"share": 0.0, "verdict": "pass", "rare_share": "pass", "exact_share": [0, 0], "oracle": [0, 0.001]}
    always = {**never, "share": 0.02, "verdict": "fail", "rare_share": "fail", "oracle": [0.02, 0.1]}
    monkeypatch.setattr(power, "drawn", lambda *options, every: always if options[2] >= 0.02 else never)
    pd.DataFrame({"a": range(1200)}).to_parquet(tmp_path / "small.parquet")
    for _ in range(2):
        asked = ["--people=200", "--draws=3", f"--results={tmp_path / 'out'}", str(tmp_path / "small.parquet")]
        power.main(asked)
        held = power.lines(tmp_path / "out")
        assert [line["dose"] for line in held] == [0.0, 0.01, 0.015, 0.02]
    assert "| small | 200 | 1.9 % | 1.9 % | 1.9 % | 1.9 % | 1.00 | 1.00 |" in power.report_text(held)
    power.main([f"--report={tmp_path / 'out'}", f"--images={tmp_path}"])
    assert "gate, 200 people in train" in (tmp_path / "power_small.svg").read_text()
