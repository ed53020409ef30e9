"""The deliberately leaky generators."""

from __future__ import annotations

from collections import Counter

from pandas.testing import assert_frame_equal

from privacy_assets.generators.copies import Copy, NoisyCopy
from tests.generators.known import GAPS, SCHEMA, TRAIN, table


def test_copy_draws_without_and_then_with_replacement() -> None:
    train = table(x=list(range(50)))
    fitted = Copy().fit(train, seed=0)
    assert sorted(fitted.sample(50, seed=0).frame()["x"]) == list(range(50))
    assert fitted.sample(30, seed=0).frame()["x"].is_unique
    counts = Counter(fitted.sample(80, seed=0).frame()["x"])
    assert len(counts) == 50 and sum(counts.values()) == 80


def test_noisy_copy_stays_close_in_range_and_in_form() -> None:
    train = TRAIN.frame()
    noisy, plain = (
        kind().fit(TRAIN, seed=0).sample(600, seed=0).frame() for kind in (NoisyCopy, Copy)
    )
    for column in (SCHEMA[name] for name in [*GAPS, "full"] if name != "half"):
        name, there = column.name, plain[column.name].notna()
        assert (noisy[name].isna() == ~there).all()
        moved = (noisy[name] != plain[name])[there].mean()
        if column.kind in ("categorical", "boolean"):
            assert 0 < moved < 0.08
            assert set(noisy[name].dropna()) <= set(train[name].dropna())
            continue
        assert moved > 0.5
        assert noisy[name].min() >= train[name].min() and noisy[name].max() <= train[name].max()
        values = [
            frame[name][there].astype("int64" if column.kind == "datetime" else float)
            for frame in (noisy, plain)
        ]
        assert 0.05 < (values[0] - values[1]).std() / values[1].std() < 0.11
    assert (noisy["pay"].dropna().round(2) == noisy["pay"].dropna()).all()
    assert (noisy["joined"].dropna() == noisy["joined"].dropna().dt.normalize()).all()


def test_noisy_copy_without_noise_is_a_copy() -> None:
    still = NoisyCopy(noise=0.0, redraw=0.0).fit(TRAIN, seed=0)
    assert_frame_equal(
        still.sample(700, seed=2).frame(), Copy().fit(TRAIN, seed=0).sample(700, seed=2).frame()
    )
