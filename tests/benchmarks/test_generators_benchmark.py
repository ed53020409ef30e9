"""The benchmark of the generators: its cases, and the parts of its table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import generators


def test_cases_and_parts(tmp_path: Path) -> None:
    found = list(generators.cases(["privbayes", "rvae", "copy"], [0.1], [1.5], {}))
    assert next(generators.cases(["rvae"], [], [], {"epochs": 3})) == ("rvae", {"epochs": 3})
    private, overfitted = ("privbayes", {"epsilon": 0.1}), ("rvae", {"overfit": 1.5})
    assert found == [("privbayes", {}), private, ("rvae", {}), overfitted, ("copy", {})]
    frame = pd.DataFrame({"id": range(60), "c": ["?", "x", "y"] * 20})
    frame.to_parquet(tmp_path / "t.parquet")
    train, holdout, reference = generators.parts(tmp_path / "t.parquet", [], 20, 0)
    ids = pd.concat([train, holdout, reference])["id"]
    assert [len(part) for part in (train, holdout, reference)] == [20, 5, 5] and ids.is_unique
    assert (ids % 3 != 0).all()
    with pytest.raises(SystemExit, match="not enough"):
        generators.parts(tmp_path / "t.parquet", ["id"], 40, 0)
