"""CTGAN and TVAE: the library's own samples as oracle, its input, threads, and parts that do not
match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal

from privacy_assets.errors import InputError
from privacy_assets.generators import build_generator, generator_info, load_generator
from privacy_assets.generators.base import read_arrays, write_arrays
from privacy_assets.infra.progress import Lines
from privacy_assets.networks import ctgan
from privacy_assets.networks.ctgan import (
    CODE,
    CTGAN,
    MISSING,
    NUMBER,
    TVAE,
    FittedLibrary,
    LibraryColumns,
    LibraryGenerator,
)
from privacy_assets.tables.encoding import MatrixCoding
from tests.generators.known import SCHEMA, TRAIN, quick, table

BOTH = ("ctgan", "tvae")


@pytest.fixture(scope="module")
def fitted() -> FittedLibrary:
    return quick("ctgan").fit(TRAIN, seed=0)  # type: ignore[return-value]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The library's objects of all fits of the test."""
    kept: list[object] = []
    train = LibraryGenerator.train

    def keep(self, *given):
        model, history = train(self, *given)
        kept.append(model)
        return model, history

    monkeypatch.setattr(LibraryGenerator, "train", keep)
    return kept


# --- the library as oracle
# --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("ctgan", 150),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("tvae", 150), ("ctgan", 1), ("tvae", 1))
        ),
    ],
)
def test_samples_are_those_of_the_fitted_model_of_the_library(
    name: str, rows: int, models: list
) -> None:
    ours = quick(name, **({"log_frequency": False} if name == "ctgan" else {})).fit(TRAIN, seed=3)
    models[0].set_random_state(77)
    theirs = models[0].sample(rows)
    assert len(theirs) == rows
    assert np.array_equal(ours.draw(rows, 77), theirs.to_numpy(dtype=np.float64))
    assert np.array_equal(ours.draw(rows, 77), ours.draw(rows, 77))
    assert not np.array_equal(ours.draw(rows, 78), ours.draw(rows, 77))


@pytest.mark.slow
def test_samples_without_any_category_are_those_of_the_library(models: list) -> None:
    train = table(a=np.arange(40.0) ** 2, b=np.random.default_rng(0).normal(size=40))
    ours = quick("ctgan").fit(train, seed=0)
    models[0].set_random_state(5)
    assert len(ours.decoder.conditions) == 0
    assert np.array_equal(ours.draw(100, 5), models[0].sample(100).to_numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_long_tables_are_drawn_in_blocks_that_differ(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = quick(name).fit(TRAIN, seed=0)
    first = ours.draw(100, 5)
    monkeypatch.setattr(ctgan, "_N_BLOCK_ROWS", 100)
    values = ours.draw(250, 5)
    assert (
        len(values) == 250
        and np.array_equal(values[:100], first)
        and np.array_equal(ours.draw(250, 5), values)
    )
    assert not np.array_equal(values[100:200], first)


@pytest.mark.slow
@pytest.mark.parametrize("logs", [True, False])
def test_conditions_are_frequencies_where_the_library_takes_logarithms(
    logs: bool, models: list
) -> None:
    counts = {"x": 30, "y": 9, "z": 1}
    train = table(a=np.repeat(list(counts), list(counts.values())), b=np.arange(40) % 4 == 0)
    ours = quick("ctgan", log_frequency=logs).fit(train, seed=0)
    assert ours.decoder.conditions == pytest.approx(np.array([30, 9, 1, 10, 30]) / 80)
    shares = [[log(n + 1) if logs else n for n in column] for column in ([30, 9, 1], [10, 30])]
    theirs = np.concatenate([np.array(column) / sum(column) / 2 for column in shares])
    ours.decoder = replace(ours.decoder, conditions=theirs)
    models[0].set_random_state(1)
    assert np.array_equal(ours.draw(200, 1), models[0].sample(200).to_numpy(dtype=np.float64))


@pytest.mark.slow
def test_curves_are_the_losses_of_the_library(
    models: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.infra.progress.EVERY", 0.0)
    for name, own in (("ctgan", {"generator_loss", "discriminator_loss"}), ("tvae", {"loss"})):
        said: list[str] = []
        ours = quick(name, epochs=3).fit(TRAIN, seed=0, progress=Lines(said.append))
        told = models[-1].loss_values
        assert [epoch["epoch"] for epoch in ours.history] == [1, 2, 3] and set(ours.history[0]) == {
            "epoch",
            *own,
        }
        assert [line.split(",")[0] for line in said] == [
            f"{name}: epochs: {k} of 3" for k in (1, 2, 3)
        ]
        for loss in own:
            column = "Loss" if loss == "loss" else loss.replace("_", " ").title()
            means = told.groupby("Epoch")[column].mean()
            assert [epoch[loss] for epoch in ours.history] == pytest.approx(list(means))


# --- kinds, ranges, odd tables
# ----------------------------------------------------------------------------------------


def test_columns_are_turned_back_exactly() -> None:
    coding = MatrixCoding.fit([TRAIN], SCHEMA)
    cells = coding.code(TRAIN)
    columns = LibraryColumns.fit(cells, coding)
    frame, codes = columns.table(cells)
    assert not frame.isna().any().any() and len(frame) == 400
    parts = [(SCHEMA.names[place], part) for place, part in columns.parts]
    numbers = [(name, part) for name in ("age", "pay") for part in (NUMBER, MISSING)]
    times = [(name, part) for name in ("joined", "seen", "half") for part in (NUMBER, MISSING)]
    assert parts == [
        *numbers,
        ("plan", CODE),
        ("retired", CODE),
        *times,
        ("town", CODE),
        ("full", NUMBER),
    ]
    assert [
        frame.columns[at] for at, (_, part) in enumerate(columns.parts) if part != NUMBER
    ] == codes
    scaled = frame[[name for name in frame if name not in codes]]
    assert scaled.abs().max().max() < 20e4 and scaled.iloc[:, -1].std(ddof=0) == pytest.approx(1e4)
    back = columns.cells(frame.to_numpy(dtype=np.float64))
    assert np.array_equal(np.isnan(back), np.isnan(cells))
    np.testing.assert_allclose(back, cells, rtol=1e-12)


@pytest.mark.slow
def test_values_that_are_missing_together_are_drawn_so() -> None:
    train = table(a=[1.0, 2.0, 3.0, np.nan] * 25, b=["x", "y", "y", None] * 25)
    generator = build_generator("tvae", {"epochs": 80, "batch_size": 20, "loss_factor": 4})
    sample = generator.fit(train, seed=0).sample(1000, seed=0).frame()
    assert sample.isna().mean().between(0.1, 0.4).all()
    assert (sample["a"].isna() == sample["b"].isna()).mean() > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_numbers_of_any_size_keep_their_spread(name: str) -> None:
    x = np.random.default_rng(0).normal(size=60)
    numbers = {
        "tiny": x * 1e-9,
        "far": 1e12 + x,
        "huge": x * 1e300,
        "least": np.where(x > 0, 5e-324, 0.0),
    }
    whole = table(**numbers, whole=np.where(x > 0, 2**62, -(2**62)))
    sample = quick(name, epochs=1).fit(whole, seed=0).sample(300, seed=0).frame()
    train = whole.frame()
    for column in ("tiny", "far", "huge"):
        inner = sample[column][
            (sample[column] > train[column].min()) & (sample[column] < train[column].max())
        ]
        size = train[column].abs().max()
        assert inner.nunique() > 50 and (inner / size).std() > (train[column] / size).std() / 10, (
            column
        )
    assert set(sample["least"]) <= {0.0, 5e-324} and sample["whole"].between(-(2**62), 2**62).all()


@pytest.mark.slow
def test_very_many_categories(monkeypatch: pytest.MonkeyPatch) -> None:
    train = table(a=[f"secret {k}" for k in range(300)], b=np.arange(300) % 5)
    sample = quick("ctgan").fit(train, seed=0).sample(200, seed=0).frame()
    assert sample["a"].nunique() > 30
    monkeypatch.setattr(ctgan, "_MAX_CELLS", 300 * 310)
    with pytest.raises(
        InputError, match="column 'a': 300 distinct values in 300 rows exceed"
    ) as caught:
        quick("ctgan").fit(train, seed=0)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "tvae",
            {"epochs": 60, "compress_dims": [64], "decompress_dims": [64], "embedding_dim": 8},
        ),
        (
            "ctgan",
            {
                "epochs": 30,
                "pac": 1,
                "embedding_dim": 8,
                "generator_dim": [64],
                "discriminator_dim": [64],
            }
            | {"generator_lr": 5e-3, "discriminator_lr": 5e-3},
        ),
    ],
)
def test_what_depends_on_each_other_is_learned(name: str, settings: dict) -> None:
    rng = np.random.default_rng(0)
    group = np.where(rng.random(240) < 0.7, "p", "q")
    train = table(g=group, x=np.where(group == "p", 10.0, 20.0) + rng.normal(size=240))
    sample = (
        build_generator(name, {"batch_size": 60} | settings)
        .fit(train, seed=0)
        .sample(2000, seed=0)
        .frame()
    )
    assert ((sample["x"] < 15) == (sample["g"] == "p")).mean() > 0.95
    assert (sample["g"] == "p").mean() == pytest.approx((group == "p").mean(), abs=0.08)
    for value, mean in (("p", 10), ("q", 20)):
        assert sample["x"][sample["g"] == value].mean() == pytest.approx(mean, abs=1)


# --- threads, processes, devices
# --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_threads_change_nothing(fitted: FittedLibrary) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        again = quick("ctgan").fit(TRAIN, seed=0)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)
    for name, weights in again.network.state_dict().items():
        assert torch.equal(weights, fitted.network.state_dict()[name])
    sample = again.sample(130, seed=4).frame()
    assert_frame_equal(fitted.sample(130, seed=4).frame(), sample)
    assert_frame_equal(again.sample(7, seed=4).frame(), sample.head(7))


def test_no_other_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library distributes tables of 500 rows and more over one process per core."""
    jobs: list[int] = []

    class Watched(joblib.Parallel):
        def __call__(self, tasks):
            jobs.append(self._effective_n_jobs())
            return super().__call__(tasks)

    monkeypatch.setattr("ctgan.data_transformer.Parallel", Watched)
    monkeypatch.setattr("joblib.parallel.cpu_count", lambda *given, **named: 4)
    train = table(a=np.arange(600) % 7, b=np.arange(600) % 3 == 0)
    quick("tvae", epochs=1).fit(train, seed=0)
    assert jobs == [1]


@pytest.mark.parametrize(("asked", "used"), [("cpu", "cpu"), ("mps", "cpu"), ("cuda:0", "cuda:0")])
def test_the_library_trains_on_the_device(
    asked: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctgan

    seen: list[str] = []

    def note(self, *given):
        seen.append(str(self._device))
        raise KeyboardInterrupt

    monkeypatch.setattr(ctgan.TVAE, "fit", note)
    with pytest.raises(KeyboardInterrupt):
        quick("tvae").fit(TRAIN, seed=0, device=asked)
    assert seen == [used]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", BOTH)
def test_on_cuda(name: str) -> None:
    torch.cuda.manual_seed_all(7)
    before = torch.cuda.get_rng_state()
    one, two = (quick(name).fit(TRAIN, seed=0, device="cuda:0") for _ in range(2))
    assert torch.equal(torch.cuda.get_rng_state(), before)
    for loss in set(one.history[0]):
        assert one.history[0][loss] == pytest.approx(two.history[0][loss], abs=1e-3)
    assert len(one.sample(100, seed=0)) == 100


# --- storing
# --------------------------------------------------------------------------------------------------


DAMAGES: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [
    ("weight", lambda part: part[:-1]),
    ("scales", lambda part: part[:-1]),
    ("scales", lambda part: part * np.nan),
    ("base", lambda part: part[1:]),
    ("parts", lambda part: part[:-1]),
    ("parts", lambda part: part + 50),
    ("sizes", lambda part: part[:-1]),
    ("sizes", lambda part: part[::-1]),
    ("values", lambda part: part[:-1]),
    ("values", lambda part: part + 0.5),
    ("values", lambda part: part + 10),
    ("values", lambda part: part * np.nan),
    ("deviations", lambda part: part[:-1]),
    ("deviations", lambda part: -part),
    ("deviations", lambda part: part * np.nan),
    ("deviations", lambda part: np.ones_like(part)),
    ("conditions", lambda part: np.append(part, 0.5)),
    ("conditions", lambda part: part * 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_parts_that_do_not_fit_each_other(
    name: str, damage: Callable[[np.ndarray], np.ndarray], fitted: FittedLibrary, tmp_path: Path
) -> None:
    fitted.save(tmp_path)
    arrays = read_arrays(tmp_path)
    key = next(key for key in arrays if key.startswith("network.")) if name == "weight" else name
    write_arrays(tmp_path, arrays | {key: damage(arrays[key])})
    with pytest.raises(InputError, match=r"incomplete \(\w+\)\. Fix: fit it again"):
        load_generator(tmp_path)


def test_weights_that_are_no_numbers(fitted: FittedLibrary, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    arrays = read_arrays(tmp_path)
    key = next(key for key in arrays if key.startswith("network."))
    write_arrays(tmp_path, arrays | {key: arrays[key] * np.nan})
    with pytest.raises(InputError, match="generator ctgan are not finite numbers"):
        load_generator(tmp_path)


# --- settings and errors
# ----------------------------------------------------------------------------------------------


def test_settings_are_those_of_the_library() -> None:
    import inspect

    import ctgan

    for ours, theirs in ((CTGAN, ctgan.CTGAN), (TVAE, ctgan.TVAE)):
        known = {key: value.default for key, value in inspect.signature(theirs).parameters.items()}
        assert {**known, **ours().settings()} == known
    infos = {info.name: info for info in generator_info()}
    assert all(infos[name].license == "BUSL-1.1" and infos[name].extra == "ctgan" for name in BOTH)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ctgan", {"generator_lr": 1e30, "epochs": 5}),
        ("ctgan", {"generator_lr": 1e30}),
        ("tvae", {"loss_factor": 1e38}),
    ],
)
def test_training_that_diverges_is_an_error(name: str, settings: dict) -> None:
    with pytest.raises(InputError, match=f"generator {name} are not finite numbers"):
        quick(name, **settings).fit(TRAIN, seed=0)
