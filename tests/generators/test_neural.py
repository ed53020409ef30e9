"""Neural generators: interrupted training, early stopping, over-fitting on purpose, and their networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal

from privacy_assets.compute.progress import Lines
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators import build_generator, load_generator
from privacy_assets.generators.base import Training
from privacy_assets.generators.networks import accounting
from privacy_assets.generators.networks.blocks import Shape
from privacy_assets.generators.networks.gan import gradient_penalty, sliced_distance
from privacy_assets.generators.networks.rvae import RvaeNetwork
from privacy_assets.generators.networks.training import Loop, batches, held_out
from tests.generators.known import TRAIN, quick


@pytest.fixture(autouse=True)
def _some_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much a budget asks for takes seconds to find; that it is found, and used, is in test_private_training."""
    monkeypatch.setattr(accounting, "noise_for", lambda *_: 2.0)


@pytest.mark.parametrize("name", ["rvae", "wgan_gp", "dpgan", "dpctgan", "pategan"])
def test_interrupted_training_ends_as_if_it_had_not_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.generators.networks.training._EVERY", 0.0)
    monkeypatch.setattr("privacy_assets.compute.progress.EVERY", 0.0)
    generator = quick(name, epochs=4)
    whole = generator.fit(TRAIN, seed=0)

    def interrupt(line: str) -> None:
        if "epochs: 3 of 4" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generator.fit(TRAIN, seed=0, checkpoint=tmp_path / "c", progress=Lines(interrupt))
    said: list[str] = []
    resumed = generator.fit(TRAIN, seed=0, checkpoint=tmp_path / "c", progress=said.append)
    assert any("going on after epoch 2" in line for line in said)
    assert resumed.history == whole.history
    assert_frame_equal(resumed.sample(200, seed=0).frame(), whole.sample(200, seed=0).frame())
    turned, pairs = TRAIN.take(np.arange(400)[::-1]), np.arange(400) // 2
    for train, seed, people in ((TRAIN, 1, None), (turned, 0, None), (TRAIN, 0, pairs)):
        with pytest.raises(ConfigError, match="belongs to another training"):
            generator.fit(train, seed=seed, checkpoint=tmp_path / "c", people=people)
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
    assert (held_out(200, 0.2, people, 0) == aside).all() and (held_out(200, 0.2, people, 1) != aside).any()
    assert held_out(100, 0.1, None, 0).sum() == 10
    assert not held_out(19, 0.5, None, 0).any() and not held_out(100, 0.5, np.zeros(100), 0).any()


@pytest.mark.parametrize(("rows", "size"), [(2, 100), (3, 2), (100, 100), (101, 100), (7, 3)])
def test_batches_hold_every_row_once(rows: int, size: int) -> None:
    parts = batches(rows, size)
    assert sorted(torch.cat(parts).tolist()) == list(range(rows)) and min(len(part) for part in parts) >= 2


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


@pytest.mark.slow
def test_overfitting_goes_on_to_the_ratio_that_was_asked_for(tmp_path: Path) -> None:
    train = TRAIN.take(slice(120))
    chosen = {"hidden": [64], "epochs": 60, "batch": 30, "patience": 5, "latent": 8}
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
    chosen = {"hidden": [4], "latent": 2, "epochs": 2, "learning_rate": 1e-6, "overfit": 2}
    build_generator("rvae", chosen).fit(TRAIN, seed=0, progress=told.append)
    assert any("after 100 epochs, 2 was not reached" in line for line in told)


# The networks


def test_vectors_are_levels_and_one_hot_blocks() -> None:
    shape = Shape(2, [3, 2])
    levels, codes = torch.tensor([[0.1, 0.9]]), torch.tensor([[2, 0]])
    vector = shape.expand(levels, codes)
    assert vector.tolist() == [[pytest.approx(0.1), pytest.approx(0.9), 0, 0, 1, 1, 0]]
    assert [block.argmax(1).item() for block in shape.choices(vector)] == [2, 0]
    logits = torch.log(torch.tensor([[0.5, 0.5, 0.2, 0.3, 0.5, 0.9, 0.1]])).repeat(20_000, 1)
    torch.manual_seed(0)
    drawn = shape.drawn(logits)
    assert torch.bincount(drawn[:, 0]).div(20_000).tolist() == pytest.approx([0.2, 0.3, 0.5], abs=0.015)
    relaxed = shape.relaxed(logits)
    assert torch.allclose(shape.choices(relaxed)[0].sum(1), torch.ones(20_000), atol=1e-4)
    assert Shape(1, []).drawn(torch.zeros(4, 1)).shape == (4, 0)


def test_the_loss_of_rvae_is_its_definition() -> None:
    """Cell by cell: a mixture of the decoder's likelihood and a wide one, and the divergence of the posterior."""
    torch.manual_seed(0)
    network = RvaeNetwork(Shape(2, [3]), [5], 2, 0.0)
    levels, codes, clean = torch.tensor([[0.3, 0.8], [0.5, 0.1]]), torch.tensor([[1], [2]]), 0.9
    scores = torch.special.ndtri(levels)
    torch.manual_seed(1)
    found = network.loss(levels, codes, clean)
    torch.manual_seed(1)
    total = 0.0
    mean, log_variance = network.encoder(network.shape.expand(scores, codes)).chunk(2, dim=1)
    z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    out = network.decoder(z)
    for row in range(2):
        for number in range(2):
            own = torch.distributions.Normal(out[row, number], 1.0).log_prob(scores[row, number]).exp()
            wide = torch.distributions.Normal(0.0, 2.0).log_prob(scores[row, number]).exp()
            total -= torch.log(clean * own + (1 - clean) * wide)
        share = torch.softmax(out[row, 2:], 0)[codes[row, 0]]
        total -= torch.log(clean * share + (1 - clean) / 3)
        posterior = torch.distributions.Normal(mean[row], (0.5 * log_variance[row]).exp())
        total += torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum()
    assert float(found) == pytest.approx(float(total) / 2, rel=1e-5)


def test_an_outlier_moves_a_robust_loss_less() -> None:
    torch.manual_seed(0)
    network = RvaeNetwork(Shape(1, []), [5], 2, 0.0)
    codes = torch.zeros(1, 0, dtype=torch.int64)

    def rise(clean: float) -> float:
        losses = []
        for level in (0.5, 0.9999):
            torch.manual_seed(1)
            losses.append(float(network.loss(torch.tensor([[level]]), codes, clean)))
        return losses[1] - losses[0]

    network.log_sigma.data.fill_(-1.0)
    assert rise(0.95) < rise(1.0) / 2


def test_the_penalty_is_the_distance_of_the_gradient_norm_from_one() -> None:
    real, fake = torch.rand(6, 3), torch.rand(6, 3)
    weights = torch.tensor([3.0, 4.0, 0.0])
    assert float(gradient_penalty(lambda rows: rows @ weights, real, fake)) == pytest.approx(16.0)


def test_the_sliced_distance() -> None:
    rows = torch.rand(200, 4)
    assert sliced_distance(rows, rows[torch.randperm(200)], 0) < 1e-6
    assert sliced_distance(rows, torch.rand(200, 4), 0) < sliced_distance(rows, torch.rand(200, 4) + 0.2, 0)
    assert sliced_distance(rows, rows + 1.0, 0) == pytest.approx(sliced_distance(rows + 1.0, rows, 0))
