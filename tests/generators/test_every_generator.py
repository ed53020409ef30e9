"""Requirements on every generator of the registry. Rows generated from the demo table must be
readable and useful.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators import (
    FittedGenerator,
    build_generator,
    generator_info,
    load_generator,
)
from privacy_assets.generators.copies import Copy
from privacy_assets.generators.registry import GeneratorInfo
from privacy_assets.networks import private
from privacy_assets.tables.demo import SUBJECT, load_patients
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.roles import foreign_cells, with_roles
from privacy_assets.tables.table import Table
from tests.generators.known import GAPS, KINDS, SCHEMA, TRAIN, of_kind, quick
from tests.helpers.marks import weekly_except
from tests.shipped import GENERATORS

ELSEWHERE = {"realtabformer"}  # needs a separate environment, and has separate tests
PROGRAMS = {"callable", "command"}
TRIED = [name for name in GENERATORS if name not in ELSEWHERE]
# A command differs from a function in its start alone, TVAE from CTGAN in its network; both take
# seconds.
QUICK = [
    pytest.param(name, marks=pytest.mark.slow if name in ("command", "tvae") else ())
    for name in TRIED
]
OURS = [name for name in TRIED if name not in PROGRAMS]
MANY_STEPS = ("dpgan", "dpctgan", "tvae")  # their training of the demo table takes over 10 s
FEWEST = {"wgan_gp": 2, "dpgan": 2, "dpctgan": 2, "pategan": 4}  # minimum number of training rows


@pytest.fixture(autouse=True)
def _some_noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the noise of a budget takes seconds; test_networks_private tests it."""
    if "weekly" not in request.keywords:
        monkeypatch.setattr(private, "noise_for", lambda *_: 2.0)


@cache
def fitted(name: str) -> FittedGenerator:
    """One fit, shared by all tests that do not change it."""
    return quick(name).fit(TRAIN, seed=0)


def test_every_generator_is_tried_here() -> None:
    assert set(TRIED) | ELSEWHERE == set(GENERATORS)
    assert all(info.available for info in generator_info() if info.name in TRIED)


# --- the same for all ---


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_same_seed_gives_the_same_rows_and_they_are_a_table_of_the_schema(name: str) -> None:
    said: list[str] = []
    states = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    again = quick(name).fit(TRAIN, seed=0, progress=said.append)
    rows = again.sample(500, seed=0).frame()
    assert torch.equal(torch.random.get_rng_state(), states[0]), (
        "the global states are left as they were"
    )
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert_frame_equal(fitted(name).sample(500, seed=0).frame(), rows)
    assert again.history == fitted(name).history and len(again.history) in (0, 2)
    assert not again.sample(500, seed=1).frame().equals(rows)
    assert len(again.sample(1, seed=0)) == 1
    assert not any("town " in line for line in said), "values begin like this"

    assert_frame_equal(Table.of(rows, SCHEMA, where="t").frame(), rows)
    train = TRAIN.frame()
    for column in SCHEMA.columns:
        known, drawn = train[column.name].dropna(), rows[column.name].dropna()
        if column.kind in ("categorical", "boolean"):
            assert set(drawn) <= set(known), column.name
        else:
            assert drawn.between(known.min(), known.max()).all(), column.name
    assert (rows["joined"].dropna() == rows["joined"].dropna().dt.normalize()).all()
    assert (rows["seen"].dropna() != rows["seen"].dropna().dt.normalize()).any()
    assert set(rows["same"]) == {1.5} and set(rows["word"]) == {"x"} and rows["none"].isna().all()
    assert rows["full"].notna().all() and rows["full"].nunique() > 20
    if name != "tvae":  # which takes the likeliest category, so rare ones are lost
        assert rows[GAPS].isna().any().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_what_was_stored_is_read_again(name: str, tmp_path: Path) -> None:
    one = fitted(name)
    one.save(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} <= {".json", ".npz", ".parquet"}, (
        "never pickle"
    )
    state = torch.get_rng_state()
    loaded = load_generator(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert (loaded.generator, loaded.schema, loaded.privacy) == (one.generator, SCHEMA, one.privacy)
    assert (loaded.history, loaded.levels) == (one.history, one.levels)
    assert_frame_equal(loaded.sample(300, seed=9).frame(), one.sample(300, seed=9).frame())


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_a_damaged_folder_is_told(name: str, tmp_path: Path) -> None:
    """Files and parts of them can be missing, truncated or changed."""
    folder = tmp_path / "model"
    fitted(name).save(folder)
    whole = {path: path.read_bytes() for path in folder.glob("[!.]*")}

    def rejected() -> None:
        with pytest.raises(
            InputError, match=r"is incomplete \(|no fitted generator can|unknown generator"
        ) as caught:
            load_generator(folder)
        assert caught.value.__cause__ is None
        for path, data in whole.items():
            path.write_bytes(data)

    for path, data in whole.items():
        middle = len(data) // 3
        flipped = (
            data[:middle]
            + bytes(255 - byte for byte in data[middle : middle + 40])
            + data[middle + 40 :]
        )
        for damaged in (
            b"",
            b"[]",
            data[: len(data) // 2],
            *([flipped] if path.suffix != ".parquet" else []),
        ):
            path.write_bytes(damaged)
            rejected()
        path.unlink()
        rejected()
    manifest = json.loads(whole[folder / "generator.json"])
    for key in manifest:
        (folder / "generator.json").write_text(
            json.dumps({k: v for k, v in manifest.items() if k != key})
        )
        rejected()
    if folder / "arrays.npz" in whole:
        with np.load(folder / "arrays.npz") as stored:
            arrays = dict(stored)
        needed = [key for key in arrays if "num_batches_tracked" not in key]  # which are never read
        for key in needed[:: max(len(needed) // 20, 1)]:
            np.savez(folder / "arrays.npz", **{k: v for k, v in arrays.items() if k != key})
            rejected()
        np.savez(folder / "arrays.npz", **{**arrays, key: np.array([object()])})
        rejected()


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_column_of_each_kind(name: str, kind: str) -> None:
    train = of_kind(kind, 60)
    made, known = (
        one.frame()["x"] for one in (quick(name).fit(train, seed=0).sample(40, seed=0), train)
    )
    assert made.notna().all()
    assert (
        set(made) <= set(known)
        if kind == "boolean"
        else made.between(known.min(), known.max()).all()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_hardly_any_rows_and_columns_without_choice(name: str, n: int, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": range(n), "b": "x", "t": pd.Timestamp("2021-05-06 07:08:09"), **dict.fromkeys("ncd")}
    )
    train = Table.read(frame, kinds={"n": "numeric", "c": "categorical", "d": "datetime"})
    if n < FEWEST.get(name, 1):
        with pytest.raises(
            InputError, match=r"too few|at least two rows|no column has more than one value"
        ):
            quick(name).fit(train, seed=0)
        return
    one = quick(name).fit(train, seed=0)
    one.save(tmp_path)
    made = one.sample(30, seed=0).frame()
    assert made["a"].between(0, n - 1).all() and made[["n", "c", "d"]].isna().all().all()
    assert set(made["b"]) == {"x"} and set(made["t"]) == set(frame["t"])
    assert_frame_equal(load_generator(tmp_path).sample(30, seed=0).frame(), made)


@pytest.mark.parametrize("name", ["synthpop", "baynet", "privbayes"])
def test_fits_on_coded_cells_are_those_of_the_seed_in_any_thread(name: str) -> None:
    coding = MatrixCoding.fit([TRAIN], SCHEMA)
    cells = coding.code(TRAIN)
    draw = quick(name).drawer(cells, coding)  # type: ignore[attr-defined]
    sets = [np.random.default_rng(seed).integers(0, 400, 200) for seed in range(40)]
    alone = [draw(rows, 50, seed) for seed, rows in enumerate(sets)]
    assert alone[0].shape == (len(SCHEMA.names), 50) and alone[0].dtype == np.float64
    np.testing.assert_array_equal(draw(sets[0], 50, 0), alone[0])
    assert not np.array_equal(draw(sets[0], 50, 1), alone[0], equal_nan=True)
    assert not np.array_equal(draw(sets[1], 50, 0), alone[0], equal_nan=True)
    with ThreadPoolExecutor(8) as pool:
        for one, other in zip(alone, pool.map(draw, sets, [50] * 40, range(40)), strict=True):
            np.testing.assert_array_equal(one, other)
    if name == "privbayes":  # whose noise creates values that no row has
        return
    for rows in ([7], [7, 7, 7], [3, 4]):
        drawn = draw(np.array(rows), 20, 0)
        for column in np.flatnonzero(~coding.is_number):
            assert set(drawn[column]) <= set(cells[column, rows])


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_no_rows_to_learn_from_and_none_to_draw(name: str) -> None:
    with pytest.raises(InputError, match="without rows"):
        quick(name).fit(TRAIN.take(slice(0)), seed=0)
    with pytest.raises(InputError, match="0 synthetic rows"):
        fitted(name).sample(0, seed=0)


ARGUMENTS = ["x", "{train}{out}{rows}{seed}"]
PARTS = {"train": ["x", "{train}{model}{seed}"], "command": ["x", "{model}{out}{rows}{seed}"]}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("synthpopp", {}, "Did you mean 'synthpop'"),
        (
            "synthpop",
            {"min_sample_leaf": 5},
            "no setting 'min_sample_leaf'.*Did you mean 'min_samples_leaf'",
        ),
        ("copy", {"noise": 1}, "no setting 'noise'"),
        ("noisy_copy", {"redraw": 1.5}, "redraw: Input should be less than or equal to 1"),
        ("baynet", {"degree": 4}, "baynet: degree"),
        ("rvae", {"overfit": 0.5}, "overfit: Input should be greater than or equal to 1"),
        ("pategan", {"teachers": 1}, "teachers: Input should be greater than or equal to 2"),
        ("ctgan", {"batch_size": 505}, r"even and a multiple of pac \(10\)"),
        ("ctgan", {"pac": 7}, r"multiple of pac \(7\)"),
        ("privbayes", {"bounds": [1, 2]}, "privbayes: bounds must give a list"),
        ("dpctgan", {"bounds": {"age": 5}}, "dpctgan: bounds must give a list"),
        ("dpgan", {"categories": {"plan": []}}, "one or more strings"),
        ("callable", {}, "needs the settings function"),
        ("callable", {"function": 3}, "is not a function"),
        ("os.path:nothing", {}, "cannot be imported"),
        ("os.path:join", {"a": 1}, "takes no settings"),
        ("command", {"timeout": 3}, r"needs the settings command\."),
        (
            "command",
            {"command": "python x.py {train} {out} {rows} {seed}"},
            "command: Input should be a valid tuple",
        ),
        (
            "command",
            {"command": ARGUMENTS, "variables": "HOME"},
            "variables: Input should be a valid tuple",
        ),
        ("command", {"command": ["x", "{train}", "{out}", "{rows}"]}, r"\{seed\} is missing"),
        ("command", {"command": ["{train}"]}, r"\{train\} is missing"),
        (
            "command",
            {**PARTS, "train": ["x", "{train}{model}"]},
            r"\{seed\} is missing in the arguments of train",
        ),
        (
            "command",
            {**PARTS, "command": ARGUMENTS},
            r"\{model\} is missing in the arguments of command",
        ),
        (
            "command",
            {**PARTS, "command": ["x", "{train}{model}{out}{rows}{seed}"]},
            r"cannot use \{train\} if",
        ),
        (
            "realtabformer",
            {"python": "p", "overfit": 1.5, "patience": 0},
            "overfit needs validation and patience",
        ),
        (
            "realtabformer",
            {"python": "p", "overfit": 1.5, "n_critic": 1},
            "patience above 0, and n_critic 0",
        ),
    ],
)
def test_wrong_names_and_settings(name: str, settings: dict[str, Any], message: str) -> None:
    """test_settings tests the types and bounds of every setting."""
    build_generator("command", PARTS)
    with pytest.raises(ConfigError, match=message):
        build_generator(name, settings)


def test_settings_of_a_stored_generator_are_checked(tmp_path: Path) -> None:
    fitted("ctgan").save(tmp_path)
    manifest = json.loads((tmp_path / "generator.json").read_text())
    (tmp_path / "generator.json").write_text(json.dumps({**manifest, "settings": {"epochs": 0}}))
    with pytest.raises(ConfigError, match="ctgan: epochs"):
        load_generator(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(InputError, match=r"generator\.json"):
        load_generator(tmp_path)


@pytest.mark.parametrize("name", ["privbayes", "dpgan", "dpctgan", "pategan"])
def test_what_a_private_generator_spends_and_what_it_reads_besides(name: str) -> None:
    train = Table.read(TRAIN.frame()[["age", "pay", "plan", "retired", "joined"]])
    bounds = {"age": [0, 120], "pay": [0, 1e4], "joined": ["2020-01-01", "2023-01-01"]}
    ranges = tuple(f"range or few values of {column}" for column in bounds)
    public = {"epsilon": 2, "bounds": bounds}
    for given, outside in (
        ({"epsilon": 2}, (*ranges[:2], "values of plan", ranges[2])),
        (public, ("values of plan",)),
        ({**public, "categories": {"plan": ["a", "b", "c", "senior", "none"]}}, ()),
    ):
        spent = quick(name, **given).fit(train, seed=0).privacy
        assert spent.epsilon == 2.0 and spent.outside_guarantee == outside
        assert "unless the seed is known" in spent.covers and spent.accountant
        assert str(spent).endswith(
            f"; not covered: {', '.join(outside)}" if outside else f"({spent.accountant})"
        )
    assert spent.delta == (0.0 if name == "privbayes" else 1e-5)


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(info.available for info in generator_info())
    monkeypatch.setattr(Copy, "modules", ("no_such_module.part",))
    monkeypatch.setattr(Copy, "extra", "ctgan")
    found = {info.name: info for info in generator_info()}
    missing = ("no_such_module.part",)
    assert found["copy"] == GeneratorInfo(
        "copy", Copy.summary, "Apache-2.0", "ctgan", missing, True, {}, (), None
    )
    assert not found["copy"].available and found["synthpop"].install is None
    assert (
        found["command"].required == ("command",) and found["command"].settings["timeout"] == 3600
    )
    with pytest.raises(ConfigError, match=r"pip install 'privacy-assets\[ctgan\]'"):
        build_generator("copy")


# --- the demo table ---

SHORT: dict[str, dict[str, object]] = {
    "privbayes": {"epsilon": 10.0},
    "ctgan": {"epochs": 5, "batch_size": 100},
    "tvae": {"epochs": 60, "batch_size": 100},
    "rvae": {"epochs": 10, "hidden_dims": [64]},
    "wgan_gp": {"epochs": 5, "batch_size": 100, "hidden_dims": [64]},
    "dpgan": {"epochs": 5, "epsilon": 10.0},
    "dpctgan": {"epochs": 5, "epsilon": 10.0},
    "pategan": {"epochs": 10, "epsilon": 10.0},
}
CHANCE = 0.5  # independent rows have a total variation well above it in half of the columns


def demo() -> tuple[pd.DataFrame, np.ndarray]:
    """Rows with every kind of column and some missing values, and the person of each row."""
    whole = load_patients().iloc[:2000]
    people = pd.factorize(whole[SUBJECT])[0]
    rng = np.random.default_rng(0)
    frame = whole.drop(columns=SUBJECT).reset_index(drop=True)
    frame["seen"] = pd.Timestamp("1975-01-01") + pd.to_timedelta(
        rng.integers(0, 1800, len(frame)), unit="D"
    )
    frame["grade"] = rng.choice([0, 1, 2, 5, 40], len(frame))  # values in between do not occur
    frame["again"] = rng.random(len(frame)) < 0.3
    return frame.mask(rng.random(frame.shape) < 0.05), people


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    weekly_except(OURS, *(name for name in OURS if name not in ("dpgan", "dpctgan", "tvae"))),
)
def test_rows_of_the_demo_table(name: str) -> None:
    frame, people = demo()
    real = Table.read(frame, where="demo")
    assert {column.kind for column in real.schema.columns} == {
        "integer",
        "numeric",
        "categorical",
        "boolean",
        "datetime",
    }
    schema = with_roles(real.schema, [real], people, where="demo")
    fitted = build_generator(name, SHORT.get(name)).fit(
        real.with_schema(schema), seed=0, subject_codes=people
    )
    drawn = fitted.sample(1500, seed=0)
    train, made = real.frame(), drawn.frame()
    assert_frame_equal(fitted.sample(1500, seed=0).frame(), made)
    closed = [column.name for column in schema.columns if column.role == "closed"]
    assert {"physical_limitation", "grade"} <= set(closed)
    for column in schema.columns:
        assert not foreign_cells(column, [real[column.name]], drawn[column.name]).any(), column.name
    restored = drawn.to_published_frame()
    assert len(restored) == 1500 and list(restored.columns) == list(frame.columns)
    if name != "tvae":  # which takes the likeliest category, so rare ones are lost
        assert made.isna().any().sum() >= len(schema.names) / 2, "missing values come back"
    apart = [_variation(train[column], made[column]) for column in schema.names]
    assert np.median(apart) < CHANCE, dict(zip(schema.names, np.round(apart, 2), strict=True))


def _variation(real: pd.Series, made: pd.Series) -> float:
    """Total variation between two columns. Numbers are binned by the real ones' fifths; missing is
    a separate value.
    """
    if pd.api.types.is_numeric_dtype(real) and real.nunique() > 5:
        edges = np.unique(np.quantile(real.dropna().astype(float), [0.2, 0.4, 0.6, 0.8]))
        real, made = (
            pd.Series(np.digitize(x.astype(float), edges)).where(x.notna().to_numpy())
            for x in (real, made)
        )
    elif pd.api.types.is_datetime64_any_dtype(real):
        real, made = real.dt.year, made.dt.year
    first, second = (x.astype(str).value_counts(normalize=True) for x in (real, made))
    return float(first.sub(second, fill_value=0).abs().sum() / 2)
