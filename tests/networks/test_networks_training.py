"""Training of the neural generators: interruption, early stopping and vectors of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import Training
from privacy_assets.infra.progress import Lines
from privacy_assets.networks import private
from privacy_assets.networks.training import Loop, Shape, batches, held_out
from tests.generators.known import TRAIN, quick


@pytest.fixture(autouse=True)
def _some_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the noise of a budget takes seconds; test_networks_private tests it."""
    monkeypatch.setattr(private, "noise_for", lambda *_: 2.0)


@pytest.mark.parametrize(
    "name",
    [
        "rvae",
        "dpgan",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("wgan_gp", "dpctgan", "pategan")),
    ],
)
def test_interrupted_training_ends_as_if_it_had_not_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.networks.training._CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("privacy_assets.infra.progress.EVERY", 0.0)
    generator = quick(name, epochs=4)
    whole = generator.fit(TRAIN, seed=0)

    def interrupt(line: str) -> None:
        if "epochs: 3 of 4" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generator.fit(TRAIN, seed=0, checkpoint=tmp_path / "c", progress=Lines(interrupt))
    said: list[str] = []
    resumed = generator.fit(TRAIN, seed=0, checkpoint=tmp_path / "c", progress=said.append)
    assert any("resuming after epoch 2" in line for line in said)
    assert resumed.history == whole.history
    assert_frame_equal(resumed.sample(200, seed=0).frame(), whole.sample(200, seed=0).frame())
    turned, pairs = TRAIN.take(np.arange(400)[::-1]), np.arange(400) // 2
    for train, seed, people in ((TRAIN, 1, None), (turned, 0, None), (TRAIN, 0, pairs)):
        with pytest.raises(ConfigError, match="belongs to another training"):
            generator.fit(train, seed=seed, checkpoint=tmp_path / "c", subject_codes=people)
    (tmp_path / "c" / "training.pt").write_bytes(b"torn")
    with pytest.raises(InputError, match="checkpoint cannot be read"):
        generator.fit(TRAIN, seed=0, checkpoint=tmp_path / "c")


def test_a_loss_that_is_no_number_ends_training() -> None:
    loop = Loop("x", Training(0), {"part": torch.nn.Linear(1, 1)}, 6)
    with pytest.raises(InputError, match="the loss of x is not a finite number"):
        loop.run(lambda number: {"loss": float("nan")}, "")


# Early stopping


def test_people_are_held_out_with_all_of_their_rows() -> None:
    people = np.repeat(np.arange(50), 4)
    aside = held_out(200, 0.2, people, 0)
    assert aside.sum() == 40 and all(len(set(aside[people == one])) == 1 for one in range(50))
    assert (held_out(200, 0.2, people, 0) == aside).all() and (
        held_out(200, 0.2, people, 1) != aside
    ).any()
    assert held_out(100, 0.1, None, 0).sum() == 10
    assert not held_out(19, 0.5, None, 0).any() and not held_out(100, 0.5, np.zeros(100), 0).any()


@pytest.mark.parametrize(("rows", "size"), [(2, 100), (3, 2), (100, 100), (101, 100), (7, 3)])
def test_batches_hold_every_row_once(rows: int, size: int) -> None:
    parts = batches(rows, size)
    assert (
        sorted(torch.cat(parts).tolist()) == list(range(rows))
        and min(len(part) for part in parts) >= 2
    )


def test_the_best_epoch_is_kept_and_patience_counts_from_it() -> None:
    losses = [3.0, 1.0, 2.0, 1.5, 0.5, 9.0]
    part = torch.nn.Linear(1, 1)

    def epoch(number: int) -> dict[str, float]:
        with torch.no_grad():
            part.weight.fill_(number)
        return {"validation_loss": losses[number]}

    for patience, length, best in ((2, 4, 1), (3, 6, 4), (None, 6, 5)):
        history = Loop("x", Training(0), {"part": part}, 6, patience).run(epoch, "")
        assert len(history) == length and part.weight.item() == best


# The networks


def test_vectors_are_levels_and_one_hot_blocks() -> None:
    shape = Shape(2, [3, 2])
    levels, codes = torch.tensor([[0.1, 0.9]]), torch.tensor([[2, 0]])
    vector = shape.expand(levels, codes)
    assert vector.tolist() == [[pytest.approx(0.1), pytest.approx(0.9), 0, 0, 1, 1, 0]]
    assert [block.argmax(1).item() for block in shape.choices(vector)] == [2, 0]
    logits = torch.log(torch.tensor([[0.5, 0.5, 0.2, 0.3, 0.5, 0.9, 0.1]])).repeat(20_000, 1)
    torch.manual_seed(0)
    drawn = shape.draw_codes(logits)
    assert torch.bincount(drawn[:, 0]).div(20_000).tolist() == pytest.approx(
        [0.2, 0.3, 0.5], abs=0.015
    )
    relaxed = shape.relaxed(logits)
    assert torch.allclose(shape.choices(relaxed)[0].sum(1), torch.ones(20_000), atol=1e-4)
    assert Shape(1, []).draw_codes(torch.zeros(4, 1)).shape == (4, 0)
