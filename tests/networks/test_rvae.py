"""Deliberate overfitting of RVAE."""

from __future__ import annotations

from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from privacy_assets.generators import build_generator, load_generator
from tests.generators.known import TRAIN


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "from_second"), [(60, False), (1, True)])
def test_overfitting_goes_on_to_the_ratio_that_was_asked_for(
    epochs: int, from_second: bool, tmp_path: Path
) -> None:
    """L* is the least loss of both trainings. After a first training of one epoch, the second one
    has it.
    """
    train = TRAIN.take(slice(120))
    chosen = {"hidden_dims": [64], "epochs": epochs, "batch_size": 30, "patience": 5, "latent": 8}
    first = [
        row["validation_loss"] for row in build_generator("rvae", chosen).fit(train, seed=0).history
    ]
    fitted = build_generator("rvae", {**chosen, "overfit": 1.2}).fit(train, seed=0)
    second = [row["validation_loss"] for row in fitted.history]
    best = min(first + second)
    assert (min(second) < min(first)) or not from_second
    ratios = [row["overfitting_ratio"] for row in fitted.history]
    assert ratios == pytest.approx([loss / best for loss in second])
    assert 1.2 <= ratios[-1] < 1.6 and len(second) < 1000, "a generator that over-fits"
    for end in range(1, len(second)):
        assert second[end - 1] < 1.2 * min(first + second[:end])
    assert fitted.history[-1]["loss"] < best, "it has learned its rows better than those of others"
    assert fitted.generator.overfitting_protection() == {}
    fitted.save(tmp_path)
    assert_frame_equal(
        load_generator(tmp_path).sample(50, seed=0).frame(), fitted.sample(50, seed=0).frame()
    )


def test_overfitting_that_does_not_get_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy_assets.networks.rvae._OVERFIT_EPOCHS", 5)
    told: list[str] = []
    chosen = {"hidden_dims": [4], "latent": 2, "epochs": 2, "learning_rate": 1e-6, "overfit": 2}
    build_generator("rvae", chosen).fit(TRAIN, seed=0, progress=told.append)
    assert any("after 5 epochs, 2 was not reached" in line for line in told)
