"""The study of refits: its generators are as described, and the report separates generators that
leak from others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import refits
from privacy_assets.tables.table import Table


@pytest.fixture
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    age = rng.integers(18, 90, 1_800)
    numbers = pd.DataFrame({"age": age, "dose": age / 10 + rng.normal(size=1_800)})
    score = np.where(age < 30, np.nan, rng.normal(size=1_800))
    return numbers.assign(ward=rng.choice(list("ABCDE"), 1_800), score=score)


def test_a_copula_keeps_margins_and_dependence(rows: pd.DataFrame) -> None:
    table = Table.read(rows)
    exact, smooth = refits.copula()(table, 0), refits.copula(41)(table, 0)
    for made in (exact, smooth):
        assert made.dtypes.equals(rows.dtypes)
        assert made["score"].isna().mean() == pytest.approx(rows["score"].isna().mean(), abs=0.05)
        assert made["age"].corr(made["dose"]) == pytest.approx(
            rows["age"].corr(rows["dose"]), abs=0.05
        )
    assert exact["dose"].isin(rows["dose"]).all()
    assert smooth["dose"].isin(rows["dose"]).mean() < 0.05
    trees = refits.ours("synthpop", min_samples_leaf=50)(table, 0)
    assert len(trees) == len(rows) and trees.dtypes.equals(rows.dtypes)


@pytest.mark.weekly
def test_a_generator_that_copies_leaks_and_one_that_does_not_is_never_rejected(
    rows: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    makers = {
        "copies": lambda own, seed: own.to_published_frame(),
        "fresh": lambda own, seed: rows.sample(600, random_state=7),
    }
    monkeypatch.setattr(refits, "MAKERS", makers)
    table, results = tmp_path / "table.parquet", tmp_path / "refits.jsonl"
    rows.to_parquet(table)
    refits.main(
        ["--results", str(results), "--draws", "2", "--metrics", "copies", "--", str(table)]
    )
    refits.main(["--report", str(results)])
    told = capsys.readouterr().out
    assert "| copies | 2 of 2 | 0 of 0 | 0 of 2 |" in told
    assert "| fresh | 0 of 0 | 0 of 2 | 0 of 2 |" in told
