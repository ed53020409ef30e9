"""The study of half-built rows: its weights against loops, and its statistics for releases made by
hand.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import halves


def test_the_weights_are_those_of_loops() -> None:
    rng = np.random.default_rng(0)
    known, release = (rng.integers(0, 3, (4, size)) for size in (40, 30))
    asked, chosen = known[:, :15], np.array(list(itertools.combinations(range(4), 2)))
    for given in (None, known):
        for one, found in zip(
            asked.T, halves.half_weights(asked, given, release, chosen), strict=True
        ):
            told = []
            for columns in chosen:
                hits, here, every = (
                    (part[columns] == one[columns][:, None]).all(axis=0).sum()
                    for part in (release, asked, known)
                )
                told.append(
                    hits / every if given is not None else hits / (here + hits - 1) if hits else 0
                )
            assert found == pytest.approx(np.mean(told))


def test_all_halves_are_looked_at_where_there_are_few() -> None:
    rng = np.random.default_rng(0)
    assert len(halves.halves(6, rng)) == 20 and len(halves.halves(40, rng)) == halves.MOST_HALVES
    assert halves.halves(40, rng).shape[1] == 20


@pytest.mark.weekly
def test_a_study_sees_half_built_rows_and_no_fresh_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 40, (1800, 6))
    frame = pd.DataFrame(values, columns=list("abcdef")).assign(g=rng.choice(["x", "y"], 1800))
    frame.to_parquet(tmp_path / "many.parquet")
    told = tmp_path / "halves.jsonl"
    asked = [
        "--people",
        "500",
        "--draws",
        "3",
        "--results",
        str(told),
        str(tmp_path / "many.parquet"),
    ]
    halves.main(asked)
    fresh, built = (json.loads(line)["drawn"] for line in told.read_text().splitlines())
    assert all(chance <= 0.02 for one in built for chance in one["chances"])
    assert np.mean([one["chances"] for one in fresh]) > 0.2
    before = told.read_text()
    halves.main(asked)
    assert told.read_text() == before, "finished cases are not run again"
    halves.main(["--report", str(told)])
    assert "| many, 500 | 20 % half built | 100 % | 100 % | 100 % |" in capsys.readouterr().out
