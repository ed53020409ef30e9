"""GANs with differential privacy: their budget, their teachers and their noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators import build_generator
from privacy_assets.generators.base import Training
from privacy_assets.networks import private
from privacy_assets.networks.gans import bin_positions
from privacy_assets.tables.table import Table
from tests.generators.known import TRAIN, quick, table


def test_rows_of_a_person_go_to_one_teacher() -> None:
    generator = build_generator("pategan", {"teachers": 8})
    people = np.random.default_rng(0).integers(0, 60, 400)
    parts = generator._parts(400, Training(0, subject_codes=people))
    assert sorted(np.concatenate(parts).tolist()) == list(range(400)) and len(parts) == 8
    assert all(
        len({place for place, part in enumerate(parts) if one in people[part]}) == 1
        for one in range(60)
    )
    with pytest.raises(InputError, match="3 people are too few for 8 teachers"):
        generator._parts(400, Training(0, subject_codes=np.arange(400) % 3))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "searched"), [("dpgan", 1), ("dpctgan", 2), ("pategan", 0)])
def test_noise_is_searched_for_the_budget_that_is_told(
    name: str, searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DPCTGAN spends part of the budget on its counts first; PATE-GAN's noise has a formula."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(private, "noise_for", lambda *given: asked.append(given) or 2.0)
    settings = {"epsilon": 2.0, "delta": 1e-6, "batch_size": 200, "epochs": 3}
    people = np.arange(len(TRAIN)) // 4
    spent = quick(name, **settings).fit(TRAIN, seed=0, subject_codes=people).privacy
    assert (spent.epsilon, spent.delta) == (2.0, 1e-6)
    assert ("one person" in spent.covers) == (name == "pategan")
    counts = [(0.2, 1e-6, 1.0, 1)] if name == "dpctgan" else []
    before = [((2.0, 1.0, 1),)] if name == "dpctgan" else []
    expected = [*counts, (2.0, 1e-6, 0.5, 6, *before)] if searched else []
    assert [tuple(one) for one in asked] == [
        pytest.approx(one) if len(one) == 4 else one for one in expected
    ]


def test_positions_of_bins_depend_on_public_bounds_only() -> None:
    generator = build_generator("pategan", {"bins": 4, "bounds": {"x": [0, 8]}})
    found = []
    for values in ([0.5, 1.5, np.nan], [7.0, 2.0, np.nan]):
        _, _, layout = generator._coded(
            Table.read(pd.DataFrame({"x": values, "y": [True, False, True]}))
        )
        found.append(bin_positions(layout).numpy())
        assert layout.sizes == [5, 2], "four bins and missing values; true and false"
    np.testing.assert_array_equal(*found)
    standard = np.array([-1.5, -0.5, 0.5, 1.5])
    np.testing.assert_allclose(found[0][:, 0], [*(standard / standard.std()), 0, 0, 0], rtol=1e-6)


def dependent(n: int, seed: int) -> pd.DataFrame:
    """A number that determines a binary column, and two columns that depend on it with noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, n)
    noisy = np.where(rng.random(n) < 0.8, np.digitize(x, [2.5, 5, 7.5]), rng.integers(0, 4, n))
    z = np.clip(x / 2 + rng.normal(0, 1, n), -3, 8)
    return pd.DataFrame(
        {"x": x, "y": np.where(x > 5, "yes", "no"), "c": [f"k{code}" for code in noisy], "z": z}
    )


@pytest.mark.weekly
def test_pategan_learns_with_a_large_epsilon() -> None:
    """A constant guess has an accuracy of 0.5; linear teachers gave 0.47 and a correlation of
    0.01.
    """
    train, unseen, found = Table.read(dependent(1500, 0)), dependent(1000, 1), {}
    public = {
        "bounds": {"x": [0, 10], "z": [-3, 8]},
        "categories": {"y": ["no", "yes"], "c": ["k0", "k1", "k2", "k3"]},
    }
    settings: dict[str, dict[str, Any]] = {
        "pategan": {"epsilon": 1000, "teachers": 20, "epochs": 120, "batch_size": 256, **public},
        "wgan_gp": {"epochs": 40, "batch_size": 250, "hidden_dims": [64], "learning_rate": 1e-3},
    }
    for name, more in settings.items():
        made = build_generator(name, more).fit(train, seed=0).sample(1500, seed=0).frame().dropna()
        model = RandomForestClassifier(50, random_state=0).fit(
            made[["x", "z"]], made["y"].astype(str)
        )
        accuracy = (model.predict(unseen[["x", "z"]]) == unseen["y"]).mean()
        found[name] = accuracy, np.corrcoef(made["x"].astype(float), made["y"] == "yes")[0, 1]
    assert found["pategan"][0] > found["wgan_gp"][0] - 0.1 > 0.7
    assert found["pategan"][1] > 0.6  # real rows: 0.87


@pytest.mark.slow
def test_rows_do_not_repeat_the_noise_of_fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed of sampling may be known and equal that of fitting, so fitting uses another random
    stream.
    """
    monkeypatch.setattr(private, "noise_for", lambda *_: 2.0)
    fitted = quick("dpctgan").fit(TRAIN, seed=0)
    torch.manual_seed(0)
    first = torch.randn(500, fitted.network.noise)
    drawn: list[torch.Tensor] = []
    inner = fitted.network.body.forward
    fitted.network.body.forward = lambda rows: drawn.append(rows) or inner(rows)
    fitted.sample(500, seed=0)
    again = np.isin(first.flatten().numpy(), drawn[0][:, : fitted.network.noise].flatten().numpy())
    assert again.mean() < 0.05, "some of 32 bits are equal by chance"


def test_a_generator_that_would_take_no_step() -> None:
    with pytest.raises(ConfigError, match="would not be trained"):
        quick("dpgan", critic_steps=100).fit(TRAIN, seed=0)


def test_a_column_without_gaps_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "noise_for", lambda *_: 2.0)
    train = table(x=np.arange(60) % 7, y=np.arange(60) % 2 == 0, z=list("abc") * 20)
    made = quick("dpgan", bounds={"x": [0, 9]}).fit(train, seed=0).sample(300, seed=0).frame()
    assert (
        made.notna().all().all() and set(made["z"]) <= set("abc") and made["x"].between(0, 9).all()
    )


@pytest.mark.weekly
def test_more_budget_makes_better_rows() -> None:
    train = table(
        x=np.where(np.arange(600) % 10 == 0, "rare", "common"), y=np.arange(600) % 10 == 0
    )
    errors = []
    for epsilon in (0.3, 50.0):
        # All rows are in each step, which is quicker to account for.
        chosen = {
            "hidden_dims": [16],
            "epochs": 100,
            "batch_size": 600,
            "epsilon": epsilon,
            "learning_rate": 5e-3,
        }
        made = build_generator("dpctgan", chosen).fit(train, seed=0).sample(1000, seed=0).frame()
        errors.append(
            abs((made["x"] == "rare").mean() - 0.1) + ((made["x"] == "rare") != made["y"]).mean()
        )
    assert errors[1] < errors[0] and errors[1] < 0.25
