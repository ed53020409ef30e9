"""Study of nights: people, leaks, simulated series."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from benchmarks.nights import YEAR, main, moved, series, simulated, stop_after, with_luck
from tests.metrics.test_holdout_leakage import population


@pytest.mark.parametrize("kind", ["fresh rows", "copies", "slow"])
def test_one_percent_is_exchanged_and_sides_are_kept(kind: str) -> None:
    out = np.zeros(5000, dtype=bool)
    side: dict[int, str] = {}
    nights = []
    for night in series(kind, 3, 1000, 20, out):
        for role, people in night.roles.items():
            assert all(side.setdefault(person, role) == role for person in people.tolist())
        there = np.concatenate(list(night.roles.values()))
        assert len(set(there.tolist())) == 1000 and not np.isin(night.fresh, there).any()
        assert np.isin(night.leaked, night.roles["train"]).all() and not out[night.leaked].any()
        share = {"fresh rows": 0, "copies": 0.05, "slow": 0.002}[kind]
        assert len(night.leaked) == round(share * len(night.roles["train"]))
        out[night.leaked] = kind == "slow"
        nights.append(there)
    assert [len(np.setdiff1d(one, other)) for one, other in pairwise(nights)] == [10] * 19


def test_only_numbers_of_many_values_move() -> None:
    rows = population(300, 0).assign(few=np.arange(300) % 5)
    shifted = moved(rows, np.random.default_rng(0))
    assert (abs(shifted.x - rows.x) / rows.x.std()).to_numpy() == pytest.approx(np.full(300, 0.1))
    assert shifted.n.dtype == rows.n.dtype and (shifted.n != rows.n).all()
    pd.testing.assert_frame_equal(shifted[["c", "few"]], rows[["c", "few"]])


def test_a_series_stops_at_four_of_the_last_seven() -> None:
    assert stop_after(np.array([1, 0, 1, 0, 1, 0, 1, 0, 0])) == 7
    assert stop_after(np.array([1, 1, 1, 0, 0, 0, 0, 1, 1])) == 9 and stop_after(np.zeros(9)) == 9
    fails, passes = [["fail"] * 4], [["pass"] * 4]
    assert simulated(np.random.default_rng(0), fails, []) == ["fail"] * 4  # type: ignore[arg-type]
    assert simulated(np.random.default_rng(0), passes, ["pass", "fail"]) == [
        "pass",
        "fail",
        *["pass"] * 363,
    ]  # type: ignore[arg-type]
    leaking = simulated(np.random.default_rng(0), passes, [], fails)  # type: ignore[arg-type]
    assert leaking == ["pass"] * 199 + ["fail"] * 4
    later = simulated(np.random.default_rng(0), [["undecided", "pass", "fail", "fail"]], [])  # type: ignore[list-item]
    assert later[:4] == ["undecided", "pass"] * 2, (
        "a night is evaluated at the attempt that the series has reached"
    )


def test_luck_is_shared_by_the_nights_of_a_series() -> None:
    rng = np.random.default_rng(0)
    apart, alike = (with_luck(rng, 0.1, luck, 2000) for luck in (0.0, 0.5))
    assert apart.shape == (2000, YEAR) and apart.mean() == pytest.approx(0.1, abs=0.002)
    assert alike.mean() == pytest.approx(0.1, abs=0.01)
    both = [(failed[:, 0] & failed[:, 1]).mean() for failed in (apart, alike)]
    assert both[0] == pytest.approx(0.01, abs=0.007)
    normal = rng.multivariate_normal([0, 0], [[1, 0.5 * 0.99**0.5], [0.5 * 0.99**0.5, 1]], 200_000)
    assert both[1] == pytest.approx(
        (normal > NormalDist().inv_cdf(0.9)).all(axis=1).mean(), abs=0.02
    )


def test_years_are_measured_once_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    population(2500, 1).to_parquet(tmp_path / "some.parquet")
    results = tmp_path / "years.jsonl"
    asked = [
        "years",
        str(tmp_path / "some.parquet"),
        "--results",
        str(results),
        "--people",
        "1200",
        "--nights",
        "3",
    ]
    for _ in range(2):  # the second time there is nothing to do
        main([*asked, "--kinds", "fresh rows", "copies", "moved"])
        found = [json.loads(line) for line in results.read_text().splitlines()]
        assert [line["night"] for line in found] == [1, 2, 3] * 3
    verdicts = {
        kind: [line["verdict"] for line in found if line["kind"] == kind]
        for kind in ("fresh rows", "copies")
    }
    assert verdicts["fresh rows"] == ["pass"] * 3 and "fail" in verdicts["copies"]
    assert [line["out"] for line in found if line["kind"] == "fresh rows"] == [0, 0, 0]
    main(["report", str(results)])
    assert "| some | copies | 1 | 3 |" in capsys.readouterr().out
