"""CTGAN and TVAE: the library's own samples as oracle, every kind of column, storing, seeds, threads and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import log
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators import Generator, build_generator, generator_info, load_generator
from privacy_assets.generators import ctgan_columns as columns
from privacy_assets.generators.ctgan import CTGAN, TVAE
from privacy_assets.generators.ctgan_columns import CODE, MISSING, NUMBER, Given
from privacy_assets.generators.ctgan_fitting import FittedLibrary, LibraryGenerator
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.schema import TableSchema, infer_schema
from privacy_assets.tables.table import Table
from tests.tables import as_table

BOTH = ("ctgan", "tvae")
QUICK = {
    "ctgan": {"epochs": 2, "batch_size": 60, "pac": 5, "generator_dim": [16, 8], "discriminator_dim": [16]},
    "tvae": {"epochs": 2, "batch_size": 60, "compress_dims": [16], "decompress_dims": [16, 8]},
}


def quick(name: str, **settings: object) -> Generator:
    return build_generator(name, QUICK[name] | settings)


def mixed(n: int, seed: int = 0) -> tuple[pd.DataFrame, TableSchema]:
    """Every kind with missing values, besides constant columns and some without any value."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    frame = pd.DataFrame(
        {
            "age": age,
            "pay": (age * rng.lognormal(size=n)).round(2),
            "plan": np.where(age > 60, "senior", rng.choice(["a", "b", "c"], n)),
            "retired": age > 65,
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(age * 10, unit="D"),
            "time": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**6, n), unit="s"),
        }
    )
    frame = frame.astype(object).mask(rng.random(frame.shape) < 0.2)
    frame["full"] = rng.normal(size=n)
    frame["same"], frame["word"], frame["seven"], frame["none"] = 1.5, "x", pd.Series([7, None] * n)[:n], None
    schema = infer_schema(frame, {"none": "numeric"})
    return Table.of(frame, schema, where="train").frame(), schema


TRAIN, SCHEMA = mixed(150)


def table(**data: object) -> tuple[pd.DataFrame, TableSchema]:
    frame = pd.DataFrame(data)
    schema = infer_schema(frame)
    return Table.of(frame, schema, where="train").frame(), schema


@pytest.fixture(scope="module")
def fitted() -> dict[str, FittedLibrary]:
    found = {name: quick(name).fit(as_table(TRAIN, SCHEMA), seed=0) for name in BOTH}
    assert all(isinstance(one, FittedLibrary) for one in found.values())
    return found  # type: ignore[return-value]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The library's objects of all fits of the test."""
    kept: list[object] = []
    train = LibraryGenerator.train

    def keep(self, *given):
        kept.append(train(self, *given)[0])
        return kept[-1], []

    monkeypatch.setattr(LibraryGenerator, "train", keep)
    return kept


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


# --- the library as oracle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rows"), [("ctgan", 1), ("ctgan", 150), ("tvae", 60)])
def test_samples_are_those_of_the_library(name: str, rows: int, models: list) -> None:
    ours = quick(name, **({"log_frequency": False} if name == "ctgan" else {})).fit(as_table(TRAIN, SCHEMA), seed=3)
    models[0].set_random_state(77)
    theirs = models[0].sample(rows)
    assert len(theirs) == rows and theirs.nunique().max() > rows / 4
    assert np.array_equal(ours.draw(rows, 77), theirs.to_numpy(dtype=np.float64).T)
    assert not np.array_equal(ours.draw(rows, 78), ours.draw(rows, 77))


def test_samples_without_any_category_are_those_of_the_library(models: list) -> None:
    train, schema = table(a=np.arange(40.0) ** 2, b=np.random.default_rng(0).normal(size=40))
    ours = quick("ctgan").fit(as_table(train, schema), seed=0)
    models[0].set_random_state(5)
    assert len(ours.conditions) == 0
    assert np.array_equal(ours.draw(100, 5), models[0].sample(100).to_numpy().T)


def test_further_batches_of_tvae_are_distributed_as_those_of_the_library(models: list) -> None:
    train, schema = table(a=["x"] * 30 + ["y"] * 10, b=np.random.default_rng(0).normal(size=40))
    ours = quick("tvae", epochs=20).fit(as_table(train, schema), seed=0)
    models[0].set_random_state(5)
    theirs, own = models[0].sample(6000).to_numpy(dtype=np.float64), ours.draw(6000, 6).T
    unit = np.array([1, 10_000])
    assert (own / unit).mean(axis=0) == pytest.approx((theirs / unit).mean(axis=0), abs=0.05)
    assert (own / unit).std(axis=0) == pytest.approx((theirs / unit).std(axis=0), abs=0.05)


@pytest.mark.parametrize("logs", [True, False])
def test_conditions_are_frequencies_where_the_library_takes_logarithms(logs: bool, models: list) -> None:
    counts = {"x": 30, "y": 9, "z": 1}
    train, schema = table(a=np.repeat(list(counts), list(counts.values())), b=np.arange(40) % 4 == 0)
    ours = quick("ctgan", log_frequency=logs).fit(as_table(train, schema), seed=0)
    assert ours.conditions == pytest.approx(np.array([30, 9, 1, 10, 30]) / 80)
    shares = [[log(n + 1) if logs else n for n in column] for column in ([30, 9, 1], [10, 30])]
    ours.conditions = np.concatenate([np.array(column) / sum(column) / 2 for column in shares])
    models[0].set_random_state(1)
    assert np.array_equal(ours.draw(200, 1), models[0].sample(200).to_numpy(dtype=np.float64).T)


def test_curves_are_the_losses_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, own in (("ctgan", {"generator_loss", "discriminator_loss"}), ("tvae", {"loss"})):
        said: list[str] = []
        kept: list = []
        train = LibraryGenerator.train
        monkeypatch.setattr(
            LibraryGenerator, "train", lambda self, *g, t=train, k=kept: (k.append(t(self, *g)), k[0])[1]
        )
        ours = quick(name, epochs=3).fit(as_table(TRAIN, SCHEMA), seed=0, progress=said.append)
        monkeypatch.undo()
        told = kept[0][0].loss_values
        assert [epoch["epoch"] for epoch in ours.history] == [1, 2, 3] and set(ours.history[0]) == {"epoch", *own}
        assert [line.split(",")[0] for line in said] == [f"{name}: epoch {k} of 3" for k in (1, 2, 3)]
        for loss in own:
            column = "Loss" if loss == "loss" else loss.replace("_", " ").title()
            means = told.groupby("Epoch")[column].mean()
            assert [epoch[loss] for epoch in ours.history] == pytest.approx(list(means))


# --- kinds, ranges, odd tables ----------------------------------------------------------------------------------------


def test_given_columns_are_turned_back_exactly() -> None:
    coding = Coding.fit([as_table(TRAIN, SCHEMA)], SCHEMA)
    cells = coding.code(as_table(TRAIN, SCHEMA))
    given = Given.of_cells(cells, coding)
    frame, codes = given.table(cells)
    assert not frame.isna().any().any() and len(frame) == 150
    names = [SCHEMA.names[place] for place, _ in given.parts]
    assert names == ["age"] * 2 + ["pay"] * 2 + ["plan", "retired"] + ["day"] * 2 + ["time"] * 2 + ["full", "seven"]
    assert [frame.columns[at] for at, (_, part) in enumerate(given.parts) if part != NUMBER] == codes
    assert given.parts[4].tolist() == [2, CODE] and given.parts[-2:].tolist() == [[6, NUMBER], [9, MISSING]]
    numbers = frame[[name for name in frame if name not in codes]]
    assert numbers.abs().max().max() < 20e4 and numbers["10"].std(ddof=0) == pytest.approx(1e4)
    back = given.cells(frame.to_numpy(dtype=np.float64).T)
    assert np.array_equal(np.isnan(back), np.isnan(cells))
    np.testing.assert_allclose(back, cells, rtol=1e-12)


@pytest.mark.parametrize("name", BOTH)
def test_every_kind_stays_canonical_within_range_and_whole(name: str, fitted: dict[str, FittedLibrary]) -> None:
    sample = fitted[name].sample(700, seed=0).frame()
    assert len(sample) == 700 and len(fitted[name].sample(1, seed=0).frame()) == 1
    assert_frame_equal(Table.of(sample, SCHEMA, where="t").frame(), sample)
    for kind in ("age", "pay", "day", "time", "full"):
        assert sample[kind].dropna().between(TRAIN[kind].min(), TRAIN[kind].max()).all()
    for kind in ("plan", "retired"):
        assert set(sample[kind].dropna()) <= set(TRAIN[kind].dropna())
    assert (sample["day"].dropna() == sample["day"].dropna().dt.normalize()).all()
    assert (sample["time"].dropna() != sample["time"].dropna().dt.normalize()).any()
    assert set(sample["same"]) == {1.5} and set(sample["word"]) == {"x"} and sample["none"].isna().all()
    assert set(sample["seven"].dropna()) <= {7}
    assert sample["age"].nunique() > 5 and sample["full"].nunique() > 20 and sample["full"].notna().all()


def test_missing_values_are_drawn(fitted: dict[str, FittedLibrary]) -> None:
    absent = fitted["ctgan"].sample(2000, seed=0).frame().isna().mean()
    assert absent[["age", "pay", "plan", "retired", "day", "time", "seven"]].between(0.02, 0.9).all()
    train, schema = table(a=[1.0, 2.0, 3.0, np.nan] * 25, b=["x", "y", "y", None] * 25)
    generator = build_generator("tvae", {"epochs": 80, "batch_size": 20, "loss_factor": 4})
    sample = generator.fit(as_table(train, schema), seed=0).sample(1000, seed=0).frame()
    assert sample.isna().mean().between(0.1, 0.4).all()
    assert (sample["a"].isna() == sample["b"].isna()).mean() > 0.85, "they are missing together"


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", ["integer", "numeric", "categorical", "boolean", "datetime"])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_one_column_of_each_kind_and_few_rows(name: str, kind: str, n: int) -> None:
    values = {
        "integer": np.arange(n) - 1,
        "numeric": np.arange(n) / 7,
        "categorical": np.where(np.arange(n) % 3, "x", "y"),
        "boolean": np.arange(n) % 2 == 0,
        "datetime": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(n), unit="h"),
    }
    train, schema = table(x=values[kind])
    assert schema["x"].kind == kind
    model = quick(name).fit(as_table(train, schema), seed=0)
    sample = model.sample(70, seed=0).frame()["x"]
    assert len(sample) == 70 and sample.notna().all()
    assert (
        set(sample) <= set(train["x"])
        if kind == "boolean"
        else sample.between(train["x"].min(), train["x"].max()).all()
    )
    assert len(model.history) == (0 if n == 1 else 2)


@pytest.mark.parametrize("name", BOTH)
def test_a_table_of_constants_is_repeated_and_stored(name: str, tmp_path: Path) -> None:
    train, schema = table(a=[3], b=["x"], c=[pd.Timestamp("2021-05-06 07:08:09")], d=[True])
    model = quick(name).fit(as_table(train, schema), seed=0)
    model.save(tmp_path)
    for one in (model, load_generator(tmp_path)):
        assert_frame_equal(one.sample(3, seed=1).frame(), train.loc[[0, 0, 0]].reset_index(drop=True))


@pytest.mark.parametrize("name", BOTH)
def test_numbers_of_any_size_keep_their_spread(name: str) -> None:
    x = np.random.default_rng(0).normal(size=60)
    numbers = {"tiny": x * 1e-9, "far": 1e12 + x, "huge": x * 1e300, "least": np.where(x > 0, 5e-324, 0.0)}
    train, schema = table(**numbers, whole=np.where(x > 0, 2**62, -(2**62)))
    sample = quick(name, epochs=1).fit(as_table(train, schema), seed=0).sample(300, seed=0).frame()
    for column in ("tiny", "far", "huge"):
        inner = sample[column][(sample[column] > train[column].min()) & (sample[column] < train[column].max())]
        size = train[column].abs().max()
        assert inner.nunique() > 50 and (inner / size).std() > (train[column] / size).std() / 10, column
    assert set(sample["least"]) <= {0.0, 5e-324} and sample["whole"].between(-(2**62), 2**62).all()


def test_very_many_categories(monkeypatch: pytest.MonkeyPatch) -> None:
    train, schema = table(a=[f"secret {k}" for k in range(300)], b=np.arange(300) % 5)
    sample = quick("ctgan").fit(as_table(train, schema), seed=0).sample(200, seed=0).frame()
    assert sample["a"].nunique() > 30
    monkeypatch.setattr(columns, "_MOST_CELLS", 300 * 310)
    with pytest.raises(InputError, match="column 'a': 300 different values in 300 rows are more") as caught:
        quick("ctgan").fit(as_table(train, schema), seed=0)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tvae", {"epochs": 60, "compress_dims": [64], "decompress_dims": [64], "embedding_dim": 8}),
        (
            "ctgan",
            {"epochs": 30, "pac": 1, "embedding_dim": 8, "generator_dim": [64], "discriminator_dim": [64]}
            | {"generator_lr": 5e-3, "discriminator_lr": 5e-3},
        ),
    ],
)
def test_what_depends_on_each_other_is_learned(name: str, settings: dict) -> None:
    rng = np.random.default_rng(0)
    group = np.where(rng.random(240) < 0.7, "p", "q")
    train, schema = table(g=group, x=np.where(group == "p", 10.0, 20.0) + rng.normal(size=240))
    sample = (
        build_generator(name, {"batch_size": 60} | settings)
        .fit(as_table(train, schema), seed=0)
        .sample(2000, seed=0)
        .frame()
    )
    assert ((sample["x"] < 15) == (sample["g"] == "p")).mean() > 0.95
    assert (sample["g"] == "p").mean() == pytest.approx((group == "p").mean(), abs=0.08)
    for value in ("p", "q"):
        assert sample["x"][sample["g"] == value].mean() == pytest.approx(train["x"][group == value].mean(), abs=1)


# --- seeds, threads, states -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
def test_the_same_seed_gives_the_same_rows_whatever_the_threads(
    name: str, fitted: dict[str, FittedLibrary], four_threads: None
) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    again = quick(name).fit(as_table(TRAIN.copy(), SCHEMA), seed=0)
    sample = again.sample(130, seed=4).frame()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert torch.get_num_threads() == 4
    assert_frame_equal(fitted[name].sample(130, seed=4).frame(), sample)
    assert all(np.array_equal(weight, fitted[name].weights[key]) for key, weight in again.weights.items())
    assert again.history == fitted[name].history
    assert_frame_equal(again.sample(7, seed=4).frame(), sample.head(7))
    assert not again.sample(130, seed=5).frame().equals(sample)
    other = quick(name).fit(as_table(TRAIN, SCHEMA), seed=1)
    assert not other.sample(130, seed=4).frame().equals(sample)


def test_no_other_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library hands tables of 500 rows and more to as many processes as there are cores."""
    jobs: list[int] = []

    class Watched(joblib.Parallel):
        def __call__(self, tasks):
            jobs.append(self._effective_n_jobs())
            return super().__call__(tasks)

    monkeypatch.setattr("ctgan.data_transformer.Parallel", Watched)
    monkeypatch.setattr("joblib.parallel.cpu_count", lambda *given, **named: 4)
    train, schema = table(a=np.arange(600) % 7, b=np.arange(600) % 3 == 0)
    quick("tvae", epochs=1).fit(as_table(train, schema), seed=0)
    assert jobs == [1]


@pytest.mark.parametrize(("asked", "used"), [("cpu", "cpu"), ("mps", "cpu"), ("cuda:0", "cuda:0")])
def test_the_library_trains_on_the_device(asked: str, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctgan

    seen: list[str] = []

    def note(self, *given):
        seen.append(str(self._device))
        raise KeyboardInterrupt

    monkeypatch.setattr(ctgan.TVAE, "fit", note)
    with pytest.raises(KeyboardInterrupt):
        quick("tvae").fit(as_table(TRAIN, SCHEMA), seed=0, device=asked)
    assert seen == [used]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", BOTH)
def test_on_cuda(name: str) -> None:
    torch.cuda.manual_seed_all(7)
    before = torch.cuda.get_rng_state()
    one, two = (quick(name).fit(as_table(TRAIN, SCHEMA), seed=0, device="cuda:0") for _ in range(2))
    assert torch.equal(torch.cuda.get_rng_state(), before)
    for loss in set(one.history[0]):
        assert one.history[0][loss] == pytest.approx(two.history[0][loss], abs=1e-3)
    assert_frame_equal(
        Table.of(one.sample(100, seed=0).frame(), SCHEMA, where="t").frame(), one.sample(100, seed=0).frame()
    )


# --- storing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
def test_stored_without_pickle_and_read_again(name: str, fitted: dict[str, FittedLibrary], tmp_path: Path) -> None:
    fitted[name].save(tmp_path / "one")
    sample = fitted[name].sample(200, seed=9).frame()
    state = torch.get_rng_state()
    loaded = load_generator(tmp_path / "one")
    assert torch.equal(torch.get_rng_state(), state)
    assert {file.name for file in (tmp_path / "one").iterdir()} == {"generator.json", "ctgan.npz"}
    assert_frame_equal(loaded.sample(200, seed=9).frame(), sample)
    assert loaded.generator == fitted[name].generator and loaded.history == fitted[name].history
    loaded.save(tmp_path / "two")
    with np.load(tmp_path / "one" / "ctgan.npz") as first, np.load(tmp_path / "two" / "ctgan.npz") as second:
        assert set(first) == set(second)
        for key in first:
            np.testing.assert_array_equal(first[key], second[key])


def broken_array(folder: Path, **changes: object) -> None:
    with np.load(folder / "ctgan.npz") as stored:
        arrays = dict(stored)
    for key, value in changes.items():
        name = {"weight": next(key for key in arrays if key.startswith("network."))}.get(key, key.replace("_", "."))
        if value is None:
            del arrays[name]
        else:
            arrays[name] = value(arrays[name])  # type: ignore[operator]
    np.savez(folder / "ctgan.npz", **arrays)


def broken_manifest(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / "generator.json").read_text())
    manifest.update(changes)
    (folder / "generator.json").write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "ctgan.npz").unlink(),
        lambda folder: (folder / "ctgan.npz").write_bytes((folder / "ctgan.npz").read_bytes()[:500]),
        lambda folder: (folder / "ctgan.npz").write_bytes(b""),
        lambda folder: np.savez(folder / "ctgan.npz", parts=np.array([object()])),
        lambda folder: broken_array(folder, weight=None),
        lambda folder: broken_array(folder, weight=lambda part: part[:-1]),
        lambda folder: broken_array(folder, weight=lambda part: part * np.nan),
        lambda folder: broken_array(folder, scales=None),
        lambda folder: broken_array(folder, scales=lambda part: part[:-1]),
        lambda folder: broken_array(folder, base=lambda part: part[1:]),
        lambda folder: broken_array(folder, parts=lambda part: part[:-1]),
        lambda folder: broken_array(folder, parts=lambda part: part + 50),
        lambda folder: broken_array(folder, values_0=lambda part: part[:-1]),
        lambda folder: broken_array(folder, values_1=lambda part: part + 0.5),
        lambda folder: broken_array(folder, values_4=lambda part: part + 10),
        lambda folder: broken_array(folder, deviations_0=lambda part: part[:0]),
        lambda folder: broken_array(folder, deviations_0=lambda part: part[:-1]),
        lambda folder: broken_array(folder, conditions=lambda part: np.append(part, 0.5)),
        lambda folder: broken_manifest(folder, values=None),
        lambda folder: broken_manifest(folder, values=[]),
        lambda folder: broken_manifest(folder, schema=None),
        lambda folder: broken_manifest(folder, settings={"epochs": 0}),
        lambda folder: broken_manifest(folder, settings={"epochs": 2}),
        lambda folder: broken_manifest(folder, settings={"other": 2}),
    ],
)
def test_folders_that_were_changed(name: str, damage: object, fitted: dict[str, FittedLibrary], tmp_path: Path) -> None:
    fitted[name].save(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(InputError, match=r"not complete \(\w+\)\. Fix: fit it again") as caught:
        load_generator(tmp_path)
    assert caught.value.__context__ is None


def test_shares_that_are_none(fitted: dict[str, FittedLibrary], tmp_path: Path) -> None:
    fitted["ctgan"].save(tmp_path)
    broken_array(tmp_path, conditions=lambda part: part * 2)
    with pytest.raises(InputError, match="not complete"):
        load_generator(tmp_path)


# --- settings and errors ----------------------------------------------------------------------------------------------


def test_settings_are_those_of_the_library() -> None:
    import inspect

    import ctgan

    for ours, theirs in ((CTGAN, ctgan.CTGAN), (TVAE, ctgan.TVAE)):
        known = {key: value.default for key, value in inspect.signature(theirs).parameters.items()}
        assert {**known, **ours().settings()} == known
        assert set(known) - set(ours().settings()) == {"verbose", "enable_gpu", "cuda"}
    infos = {info.name: info for info in generator_info()}
    assert all(infos[name].licence == "BUSL-1.1" and infos[name].extra == "ctgan" for name in BOTH)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ctgan", {"epochs": 0}, "epochs must be a whole number of at least 1"),
        ("ctgan", {"epochs": True}, "epochs"),
        ("ctgan", {"batch_size": 505}, r"even and a multiple of pac \(10\)"),
        ("ctgan", {"batch_size": 64}, "multiple of pac"),
        ("ctgan", {"pac": 7}, r"multiple of pac \(7\)"),
        ("ctgan", {"generator_dim": []}, "generator_dim must be a list"),
        ("ctgan", {"generator_dim": "256"}, "generator_dim"),
        ("ctgan", {"discriminator_dim": [16, 0]}, "discriminator_dim"),
        ("ctgan", {"generator_lr": 0}, "generator_lr must be a number above 0"),
        ("ctgan", {"discriminator_lr": float("nan")}, "discriminator_lr"),
        ("ctgan", {"generator_decay": -1e-9}, "generator_decay must be a number from 0"),
        ("ctgan", {"log_frequency": 1}, "log_frequency must be true or false"),
        ("ctgan", {"discriminator_step": 1}, "Did you mean 'discriminator_steps'"),
        ("tvae", {"batch_size": 2.5}, "tvae: batch_size"),
        ("tvae", {"loss_factor": 0}, "loss_factor must be a number above 0"),
        ("tvae", {"l2scale": "1"}, "l2scale must be a number"),
        ("tvae", {"compress_dims": None}, "compress_dims"),
    ],
)
def test_bad_settings(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_generator(name, settings)


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
        quick(name, **settings).fit(as_table(TRAIN, SCHEMA), seed=0)
