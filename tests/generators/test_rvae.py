"""Deliberate overfitting of RVAE."""

from __future__ import annotations

from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from privacy_assets.generators import build_generator, load_generator
from tests.generators.known import TRAIN


@pytest.mark.slow
def test_overfitting_goes_on_to_the_ratio_that_was_asked_for(tmp_path: Path) -> None:
    train = TRAIN.take(slice(120))
    chosen = {"hidden_dims": [64], "epochs": 60, "batch_size": 30, "patience": 5, "latent": 8}
    best = min(row["validation_loss"] for row in build_generator("rvae", chosen).fit(train, seed=0).history)
    fitted = build_generator("rvae", {**chosen, "overfit": 1.2}).fit(train, seed=0)
    last = fitted.history[-1]
    assert last["overfitting_ratio"] == pytest.approx(last["validation_loss"] / best)
    assert last["overfitting_ratio"] >= 1.2 or last["epoch"] == 100
    assert fitted.history[-2]["overfitting_ratio"] < 1.2 or last["epoch"] == 100
    assert last["loss"] < best, "it has learned its rows better than those of others"
    assert fitted.generator.overfitting_protection() == ""
    fitted.save(tmp_path)
    assert_frame_equal(load_generator(tmp_path).sample(50, seed=0).frame(), fitted.sample(50, seed=0).frame())


def test_overfitting_that_does_not_get_there_says_so() -> None:
    told: list[str] = []
    chosen = {"hidden_dims": [4], "latent": 2, "epochs": 2, "learning_rate": 1e-6, "overfit": 2}
    build_generator("rvae", chosen).fit(TRAIN, seed=0, progress=told.append)
    assert any("after 100 epochs, 2 was not reached" in line for line in told)
