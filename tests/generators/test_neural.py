"""Neural generators: what all must do, interrupted training, early stopping, and over-fitting on purpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators import build_generator, load_generator
from privacy_assets.generators.base import Training
from privacy_assets.generators.networks import accounting
from privacy_assets.generators.networks.blocks import Shape
from privacy_assets.generators.networks.gan import gradient_penalty, sliced_distance
from privacy_assets.generators.networks.rvae import RvaeNetwork
from privacy_assets.generators.networks.training import Loop, batches, held_out
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.table import Table
from tests.tables import as_table

SMALL = {"hidden": [16], "epochs": 2, "batch": 100}
PRIVATE = ["dpgan", "dpctgan", "pategan"]
NAMES = ["rvae", "wgan_gp", *PRIVATE]
MORE = {"rvae": {"latent": 4}, "pategan": {"teachers": 10}}


def mixed(n: int, seed: int = 0, missing: float = 0.15) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    frame = pd.DataFrame(
        {
            "age": age,
            "pay": np.where(rng.random(n) < 0.3, 0.0, (age * rng.lognormal(size=n)).round(2)),
            "plan": np.where(age > 60, "senior", rng.choice(["a", "b", "c"], n)),
            "retired": age + rng.normal(scale=5, size=n) > 65,
            "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(age * 10 + rng.integers(0, 30, n), unit="D"),
        }
    )
    return frame.astype(object).mask(rng.random(frame.shape) < missing)


SCHEMA = infer_schema(mixed(300))
TRAIN = Table.of(mixed(400), SCHEMA, where="train").frame()


@pytest.fixture(autouse=True)
def _some_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much a budget asks for takes seconds to find; that it is found, and used, is in test_private_training."""
    monkeypatch.setattr(accounting, "noise_for", lambda *_: 2.0)


def small(name: str, **settings: object):
    return build_generator(name, {**SMALL, **MORE.get(name, {}), **settings})


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_canonical_repeatable_and_survive_storing(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    fitted = small(name).fit(as_table(TRAIN, SCHEMA), seed=0, progress=said.append)
    frame = fitted.sample(500, seed=0).frame()
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert len(frame) == 500 and len(fitted.sample(1, seed=0).frame()) == 1
    assert_frame_equal(Table.of(frame, SCHEMA, where="t").frame(), frame)
    assert_frame_equal(fitted.sample(500, seed=0).frame(), frame)
    assert not fitted.sample(500, seed=1).frame().equals(frame)
    again = small(name).fit(as_table(TRAIN.copy(), SCHEMA), seed=0)
    assert_frame_equal(again.sample(500, seed=0).frame(), frame)
    assert not small(name).fit(as_table(TRAIN, SCHEMA), seed=1).sample(500, seed=0).frame().equals(frame)
    assert [row["epoch"] for row in fitted.history] == [1, 2] and sum("epoch 2" in line for line in said) == 1
    fitted.save(tmp_path / "model")
    assert {file.suffix for file in (tmp_path / "model").iterdir()} == {".json", ".npz", ".safetensors"}
    loaded = load_generator(tmp_path / "model")
    assert (loaded.generator, loaded.privacy, loaded.history) == (fitted.generator, fitted.privacy, fitted.history)
    assert_frame_equal(loaded.sample(500, seed=0).frame(), frame)
    assert fitted.generator.overfitting_protection()
    (tmp_path / "model" / "network.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="not complete"):
        load_generator(tmp_path / "model")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["integer", "numeric", "categorical", "boolean", "datetime"])
def test_one_column_of_each_kind(name: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    values = {
        "integer": rng.integers(-5, 5, 60),
        "numeric": rng.normal(size=60),
        "categorical": rng.choice(["x", "y"], 60),
        "boolean": rng.random(60) < 0.5,
        "datetime": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 9, 60), unit="h"),
    }
    frame = pd.DataFrame({"x": values[kind]})
    schema = infer_schema(frame)
    train = Table.of(frame, schema, where="t").frame()
    made = small(name).fit(as_table(train, schema), seed=0).sample(40, seed=0).frame()["x"]
    assert made.notna().all()
    if kind in ("boolean", "categorical"):
        assert set(made) <= set(train["x"])
    else:
        assert made.between(train["x"].min(), train["x"].max()).all()


@pytest.mark.parametrize("name", ["rvae", "wgan_gp"])
@pytest.mark.parametrize("n", [2, 5])
def test_hardly_any_rows_and_constant_columns(name: str, n: int) -> None:
    frame = pd.DataFrame({"a": range(n), "b": ["x"] * n, "c": [None] * n})
    schema = infer_schema(frame, {"c": "numeric"})
    made = small(name).fit(as_table(frame, schema), seed=0).sample(30, seed=0).frame()
    assert set(made["b"]) == {"x"} and made["c"].isna().all() and made["a"].between(0, n - 1).all()


@pytest.mark.parametrize("name", PRIVATE)
def test_tables_that_a_private_generator_cannot_learn(name: str) -> None:
    frame = pd.DataFrame({"b": ["x"] * 40})
    schema = infer_schema(frame)
    with pytest.raises(InputError, match="no column has more than one value"):
        small(name).fit(as_table(frame, schema), seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_interrupted_training_ends_as_if_it_had_not_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.generators.networks.training._EVERY", 0.0)
    generator = small(name, epochs=4)
    whole = generator.fit(as_table(TRAIN, SCHEMA), seed=0)

    def interrupt(line: str) -> None:
        if "epoch 3" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generator.fit(as_table(TRAIN, SCHEMA), seed=0, checkpoint=tmp_path / "c", progress=interrupt)
    said: list[str] = []
    resumed = generator.fit(as_table(TRAIN, SCHEMA), seed=0, checkpoint=tmp_path / "c", progress=said.append)
    assert any("going on after epoch 2" in line for line in said)
    assert resumed.history == whole.history
    assert_frame_equal(resumed.sample(200, seed=0).frame(), whole.sample(200, seed=0).frame())
    with pytest.raises(ConfigError, match="belongs to another training"):
        generator.fit(as_table(TRAIN, SCHEMA), seed=1, checkpoint=tmp_path / "c")
    with pytest.raises(ConfigError, match="belongs to another training"):
        generator.fit(as_table(TRAIN.iloc[::-1].reset_index(drop=True), SCHEMA), seed=0, checkpoint=tmp_path / "c")
    with pytest.raises(ConfigError, match="belongs to another training"):
        generator.fit(as_table(TRAIN, SCHEMA), seed=0, checkpoint=tmp_path / "c", people=np.arange(400) // 2)
    (tmp_path / "c" / "training.pt").write_bytes(b"torn")
    with pytest.raises(InputError, match="checkpoint cannot be read"):
        generator.fit(as_table(TRAIN, SCHEMA), seed=0, checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("rvae", {"epochs": 0}, "epochs must be a whole number from 1"),
        ("rvae", {"epochs": 2.5}, "epochs must be a whole number"),
        ("rvae", {"epochs": True}, "epochs must be a whole number"),
        ("rvae", {"overfit": 0.5}, "overfit must be a number from 1 to 2"),
        ("rvae", {"hidden": [0]}, "hidden must be a list"),
        ("rvae", {"hidden": "256"}, "hidden must be a list"),
        ("wgan_gp", {"learning_rate": float("nan")}, "learning_rate must be a number"),
        ("dpgan", {"epsilon": -1}, "epsilon must be a number"),
        ("dpctgan", {"counts_share": 1}, "counts_share must be a number"),
        ("dpctgan", {"bounds": {"age": 5}}, "bounds must give a list"),
        ("pategan", {"teachers": 1}, "teachers must be a whole number from 2"),
        ("pategan", {"teachers": 10.5}, "teachers must be a whole number from 2"),
    ],
)
def test_bad_settings(name: str, settings: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build_generator(name, settings)


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


def test_overfitting_goes_on_to_the_ratio_that_was_asked_for() -> None:
    train = TRAIN.iloc[:120].reset_index(drop=True)
    chosen = {"hidden": [64], "epochs": 60, "batch": 30, "patience": 5, "latent": 8}
    best = min(
        row["validation_loss"] for row in build_generator("rvae", chosen).fit(as_table(train, SCHEMA), seed=0).history
    )
    fitted = build_generator("rvae", {**chosen, "overfit": 1.2}).fit(as_table(train, SCHEMA), seed=0)
    last = fitted.history[-1]
    assert last["overfitting_ratio"] == pytest.approx(last["validation_loss"] / best)
    assert last["overfitting_ratio"] >= 1.2 or last["epoch"] == 100
    assert fitted.history[-2]["overfitting_ratio"] < 1.2 or last["epoch"] == 100
    assert last["loss"] < best, "it has learned its rows better than those of others"
    assert fitted.generator.overfitting_protection() == ""


def test_overfitting_that_does_not_get_there_says_so() -> None:
    told: list[str] = []
    chosen = {"hidden": [4], "latent": 2, "epochs": 2, "learning_rate": 1e-6, "overfit": 2}
    build_generator("rvae", chosen).fit(as_table(TRAIN, SCHEMA), seed=0, progress=told.append)
    assert any("after 100 epochs, 2 was not reached" in line for line in told)


@pytest.mark.parametrize("name", ["rvae", "dpgan"])
@pytest.mark.parametrize("damage", ["cut", "flip", "list", "empty"])
def test_a_damaged_model_says_that_it_is(name: str, damage: str, tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    build_generator(name, {"epochs": 1, "hidden": [4]}).fit(as_table(TRAIN, SCHEMA), seed=0).save(tmp_path)
    path = tmp_path / ("generator.json" if damage == "list" else "layout.npz")
    whole = path.read_bytes()
    middle = len(whole) // 3
    damaged = {
        "cut": whole[: len(whole) // 2], "list": b"[]", "empty": b"",
        "flip": whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 40]) + whole[middle + 40 :],
    }[damage]  # fmt: skip
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"is not complete \(|no fitted generator can be read"):
        load_generator(tmp_path)


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
