"""Generators: SynthPop against an independent twin, the leaky ones, functions, storing and errors."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import own_functions as own
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from scipy import stats

from privacy_assets.errors import ConfigError, InputError, StepError
from privacy_assets.generators import GENERATORS, build_generator, generator_info, load_generator
from privacy_assets.generators.copies import Copy, NoisyCopy
from privacy_assets.generators.functions import CallableGenerator
from privacy_assets.generators.registry import GeneratorInfo
from privacy_assets.generators.synthpop import FittedSynthPop, SynthPop
from privacy_assets.generators.trees import Tree
from privacy_assets.tables.schema import TableSchema, infer_schema
from privacy_assets.tables.table import Table
from tests.generators.own_functions import SECRET, uniform
from tests.tables import as_table


def mixed(n: int, seed: int = 0, missing: float = 0.15) -> pd.DataFrame:
    """Every kind, missing values in every column, and columns that depend on each other."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    frame = pd.DataFrame(
        {
            "age": age,
            "pay": np.where(rng.random(n) < 0.1, 0.0, (age * rng.lognormal(size=n)).round(2)),
            "plan": np.where(age > 60, "senior", rng.choice(["a", "b", "c"], n)),
            "retired": age + rng.normal(scale=5, size=n) > 65,
            "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(age * 10 + rng.integers(0, 30, n), unit="D"),
            "town": [f"town {k}" for k in rng.integers(0, n, n)],
        }
    )
    return frame.astype(object).mask(rng.random(frame.shape) < missing)


SCHEMA: TableSchema = infer_schema(mixed(300))
TRAIN = Table.of(mixed(600), SCHEMA, where="train").frame()


def table(**columns: object) -> tuple[pd.DataFrame, TableSchema]:
    frame = pd.DataFrame(columns)
    schema = infer_schema(frame)
    return Table.of(frame, schema, where="train").frame(), schema


# What every generator must do

EVERY = [
    ("synthpop", {}),
    ("synthpop", {"min_leaf": 5}),
    ("baynet", {}),
    ("baynet", {"degree": 3}),
    ("copy", {}),
    ("noisy_copy", {}),
    (uniform, {}),
]


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_sample_is_canonical_repeatable_and_survives_storing(name: object, settings: dict, tmp_path: Path) -> None:
    said: list[str] = []
    fitted = build_generator(name, settings).fit(as_table(TRAIN, SCHEMA), seed=0, progress=said.append)
    frame = fitted.sample(700, seed=0).frame()
    assert len(frame) == 700
    assert_frame_equal(Table.of(frame, SCHEMA, where="t").frame(), frame)
    assert_frame_equal(fitted.sample(700, seed=0).frame(), frame)
    assert not fitted.sample(700, seed=1).frame().equals(frame)
    assert len(fitted.sample(1, seed=0).frame()) == 1
    assert frame.isna().any().all(), "every column of the training table has missing values"
    again = build_generator(name, settings).fit(as_table(TRAIN.copy(), SCHEMA), seed=0)
    assert_frame_equal(again.sample(700, seed=0).frame(), frame)
    assert fitted.privacy.epsilon is None and "none" in str(fitted.privacy)
    fitted.save(tmp_path / "model")
    assert {file.suffix for file in (tmp_path / "model").iterdir()} <= {".json", ".npz", ".parquet"}
    loaded = load_generator(tmp_path / "model")
    assert loaded.generator == fitted.generator and loaded.schema == SCHEMA
    assert_frame_equal(loaded.sample(700, seed=0).frame(), frame)
    assert not any("town" in line for line in said)


@pytest.mark.parametrize("name", ["synthpop", "baynet", "copy", "noisy_copy"])
@pytest.mark.parametrize("kind", ["integer", "numeric", "categorical", "boolean", "datetime"])
@pytest.mark.parametrize("n", [1, 120])
def test_one_column_of_each_kind_and_one_row(name: str, kind: str, n: int) -> None:
    rng = np.random.default_rng(0)
    values = {
        "integer": rng.integers(-5, 5, n),
        "numeric": rng.normal(size=n),
        "categorical": rng.choice(["x", "y"], n),
        "boolean": rng.random(n) < 0.5,
        "datetime": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 9, n), unit="h"),
    }
    train, schema = table(x=values[kind])
    assert schema["x"].kind == kind
    frame = build_generator(name).fit(as_table(train, schema), seed=0).sample(50, seed=0).frame()
    low, high = (train["x"].min(), train["x"].max())
    assert frame["x"].between(low, high).all() if kind != "boolean" else set(frame["x"]) <= set(train["x"])


@pytest.mark.parametrize("name", ["synthpop", "baynet", "privbayes", "copy", "noisy_copy"])
def test_columns_without_any_value(name: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "n": [None] * 3, "c": [None] * 3, "d": [None] * 3, "b": ["x", "y", "x"]})
    schema = infer_schema(frame, {"n": "numeric", "c": "categorical", "d": "datetime"})
    fitted = build_generator(name).fit(as_table(frame, schema), seed=0)
    fitted.save(tmp_path)
    for generator in (fitted, load_generator(tmp_path)):
        sample = generator.sample(20, seed=0).frame()
        assert sample[["n", "c", "d"]].isna().all().all() and sample[["a", "b"]].notna().all().all()


def test_bad_calls() -> None:
    generator = SynthPop()
    with pytest.raises(InputError, match="1 columns do not stand in the schema"):
        generator.fit(as_table(TRAIN.assign(person=1), SCHEMA), seed=0)
    with pytest.raises(InputError, match="no rows"):
        generator.fit(as_table(TRAIN.iloc[:0], SCHEMA), seed=0)
    with pytest.raises(InputError, match="0 synthetic rows"):
        generator.fit(as_table(TRAIN, SCHEMA), seed=0).sample(0, seed=0).frame()


# SynthPop


def twin_leaf_of(tree: Tree, row: list[float]) -> int:
    """Walk one row down by hand."""
    node = 0
    while tree.feature[node] >= 0:
        node = node + 1 if row[tree.feature[node]] <= tree.threshold[node] else int(tree.right[node])
    return node


def test_every_value_comes_from_the_leaf_of_its_row() -> None:
    """Twin: rebuild each leaf from the training rows one by one, without the stored donors."""
    fitted = SynthPop(min_leaf=20).fit(as_table(TRAIN, SCHEMA), seed=0)
    assert isinstance(fitted, FittedSynthPop)
    sample = fitted.sample(400, seed=3).frame()
    codes = {
        name: {value: code for code, value in enumerate(sorted(TRAIN[name].dropna().unique()))} for name in fitted.order
    }

    def coded(frame: pd.DataFrame, name: str) -> list[int]:
        return [len(codes[name]) if pd.isna(value) else codes[name][value] for value in frame[name]]

    train, drawn = ({name: coded(frame, name) for name in fitted.order} for frame in (TRAIN, sample))
    leaves_seen = 0
    for position, name in enumerate(fitted.order):
        before = fitted.order[:position]
        for part, tree in enumerate(fitted.steps[position]):

            def leaf(data: dict[str, list[int]], row: int, tree: Tree = tree, before: list[str] = before) -> int:
                values = [float(tree.table(f)[data[before[c]][row]]) for f, c in enumerate(tree.columns)]
                return twin_leaf_of(tree, values)

            missing = len(codes[name])
            donors: dict[int, list[int]] = {}
            for row, code in enumerate(train[name]):
                if part == 0 or code != missing:
                    donors.setdefault(leaf(train, row), []).append(code)
            assert min(map(len, donors.values())) >= 20
            leaves_seen += len(donors)
            for row, code in enumerate(drawn[name]):
                if part == 0 and len(fitted.steps[position]) == 2:
                    allowed = {c == missing for c in donors[leaf(drawn, row)]}
                    assert (code == missing) in allowed
                elif part == 0 or code != missing:
                    assert code in donors[leaf(drawn, row)]
    assert leaves_seen > 40, "trees without splits would make this test empty"


def test_donors_are_drawn_uniformly_from_the_leaf() -> None:
    train, schema = table(g=["a"] * 60 + ["b"] * 60, x=list(range(120)))
    sample = SynthPop(min_leaf=60).fit(as_table(train, schema), seed=0).sample(24_000, seed=0).frame()
    assert ((sample["x"] < 60) == (sample["g"] == "a")).all()
    counts = np.bincount(sample["x"].to_numpy(dtype=int), minlength=120)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_fewer_rows_than_a_leaf_are_drawn_independently() -> None:
    train, schema = table(a=list(range(30)), b=list(range(30)))
    sample = SynthPop().fit(as_table(train, schema), seed=0).sample(3000, seed=0).frame()
    assert set(sample["a"]) == set(range(30))
    assert abs(np.corrcoef(sample["a"].astype(float), sample["b"].astype(float))[0, 1]) < 0.06


def test_missing_values_follow_the_other_columns() -> None:
    group = np.repeat(["a", "b"], 500)
    value = np.where(group == "a", np.nan, np.arange(1000.0))
    train, schema = table(g=group, x=value, y=np.isnan(value))
    for visit in (["g", "x", "y"], ["y", "x", "g"], ["x", "g", "y"]):
        sample = SynthPop(visit=visit).fit(as_table(train, schema), seed=0).sample(2000, seed=0).frame()
        assert list(sample) == ["g", "x", "y"]
        assert (sample["x"].isna() == (sample["g"] == "a")).all(), visit
        assert (sample["y"].astype(bool) == sample["x"].isna()).all(), visit
        assert 0.45 < sample["x"].isna().mean() < 0.55


def test_extreme_numbers_come_back_exactly() -> None:
    values = [2**62, 2**62 + 1, -(2**62), 0]
    train, schema = table(a=np.repeat(values, 50), f=np.repeat([1e300, -1e300, 5e-324, 0.1], 50), g=np.arange(200) % 2)
    sample = SynthPop(min_leaf=10).fit(as_table(train, schema), seed=0).sample(500, seed=0).frame()
    assert set(sample["a"]) == set(values)
    assert set(sample["f"]) == {1e300, -1e300, 5e-324, 0.1}
    assert (sample["f"][sample["a"] == 2**62] == 1e300).all(), "whole numbers beyond 2**53 are told apart"
    assert (sample["f"][sample["a"] == 2**62 + 1] == -1e300).all()


def test_rare_categories_cannot_look_the_target_up() -> None:
    """Names that each stand once carry nothing over to the next column, however well they fit in training."""
    rng = np.random.default_rng(0)
    train, schema = table(name=[f"n{k}" for k in range(1000)], x=rng.normal(size=1000))
    known = dict(zip(train["name"], train["x"], strict=True))
    sample = SynthPop().fit(as_table(train, schema), seed=0).sample(2000, seed=0).frame()
    assert abs(np.corrcoef(sample["name"].map(known), sample["x"])[0, 1]) < 0.08


def test_many_categories_cost_little_and_keep_what_depends_on_them() -> None:
    rng = np.random.default_rng(0)
    town = rng.integers(0, 300, 30_000)
    train, schema = table(
        town=[f"t{t}" for t in town], level=(town % 3).astype(str), word=rng.integers(0, 5000, 30_000).astype(str)
    )
    sample = SynthPop().fit(as_table(train, schema), seed=0).sample(5000, seed=0).frame()
    assert (sample["town"].str[1:].astype(int) % 3 == sample["level"].astype(int)).mean() > 0.97
    assert sample["word"].nunique() > 2000


@pytest.mark.parametrize("settings", [{"min_leaf": 0}, {"min_leaf": 2.5}, {"min_leaf": True}, {"visit": "age"}])
def test_bad_settings(settings: dict) -> None:
    with pytest.raises(ConfigError, match="synthpop"):
        build_generator("synthpop", settings)


def test_visit_must_name_every_column_once() -> None:
    for visit in (SCHEMA.names[1:], [*SCHEMA.names, "age"]):
        with pytest.raises(ConfigError, match="every column once"):
            SynthPop(visit=visit).fit(as_table(TRAIN, SCHEMA), seed=0)
    with pytest.raises(ConfigError, match="Did you mean 'age'"):
        SynthPop(visit=["aeg", *SCHEMA.names[1:]]).fit(as_table(TRAIN, SCHEMA), seed=0)


def test_marginals_and_pairs_of_adult(adult: pd.DataFrame) -> None:
    schema = infer_schema(adult)
    whole = Table.of(adult, schema, where="adult").frame()
    train, fresh = whole.iloc[:20_000], whole.iloc[20_000:40_000].reset_index(drop=True)
    sample = SynthPop().fit(as_table(train.reset_index(drop=True), schema), seed=0).sample(20_000, seed=0).frame()

    def distance(frame: pd.DataFrame, names: list[str]) -> float:
        left, right = (x.groupby(names, dropna=False).size() / len(x) for x in (train, frame))
        return float(left.sub(right, fill_value=0).abs().sum() / 2)

    words = schema.of_kind("categorical")
    for name in schema.names:
        if name in words:
            assert distance(sample, [name]) < 0.02
        else:
            assert stats.ks_2samp(train[name].astype(float), sample[name].astype(float)).statistic < 0.02
    pairs = [[a, b] for i, a in enumerate(words) for b in words[:i]]
    ours, sampling = (np.mean([distance(frame, pair) for pair in pairs]) for frame in (sample, fresh))
    assert ours < 1.5 * sampling
    exact = train.merge(sample.drop_duplicates(), how="inner")
    assert len(exact) / len(train) < 0.02, "leaves of 50 rows copy few rows of Adult"


# Copies


def test_copy_draws_without_and_then_with_replacement() -> None:
    train, schema = table(x=list(range(50)))
    fitted = Copy().fit(as_table(train, schema), seed=0)
    assert sorted(fitted.sample(50, seed=0).frame()["x"]) == list(range(50))
    assert fitted.sample(30, seed=0).frame()["x"].is_unique
    counts = Counter(fitted.sample(80, seed=0).frame()["x"])
    assert len(counts) == 50 and sum(counts.values()) == 80


def test_noisy_copy_stays_close_in_range_and_in_form() -> None:
    fitted = NoisyCopy().fit(as_table(TRAIN, SCHEMA), seed=0)
    noisy, plain = (
        fitted.sample(600, seed=0).frame(),
        Copy().fit(as_table(TRAIN, SCHEMA), seed=0).sample(600, seed=0).frame(),
    )
    for column in SCHEMA.columns:
        name, there = column.name, plain[column.name].notna()
        assert (noisy[name].isna() == ~there).all()
        moved = (noisy[name] != plain[name])[there].mean()
        if column.kind in ("categorical", "boolean"):
            assert 0 < moved < 0.08
            assert set(noisy[name].dropna()) <= set(TRAIN[name].dropna())
            continue
        assert moved > 0.5
        assert noisy[name].min() >= TRAIN[name].min() and noisy[name].max() <= TRAIN[name].max()
        values = [
            frame[name][there].astype("int64" if column.kind == "datetime" else float) for frame in (noisy, plain)
        ]
        assert 0.05 < (values[0] - values[1]).std() / values[1].std() < 0.11
    assert (noisy["pay"].dropna().round(2) == noisy["pay"].dropna()).all()
    assert (noisy["joined"].dropna() == noisy["joined"].dropna().dt.normalize()).all()


def test_noisy_copy_without_noise_is_a_copy() -> None:
    still = NoisyCopy(noise=0.0, redraw=0.0).fit(as_table(TRAIN, SCHEMA), seed=0)
    assert_frame_equal(
        still.sample(700, seed=2).frame(), Copy().fit(as_table(TRAIN, SCHEMA), seed=0).sample(700, seed=2).frame()
    )
    with pytest.raises(ConfigError, match="redraw"):
        NoisyCopy(redraw=1.5)


def test_demonstration_is_said_loudly() -> None:
    assert all("DEMONSTRATION ONLY" in GENERATORS[name].summary for name in ("copy", "noisy_copy"))


# Functions


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (own.raises, r"own_functions:raises ended with exit status 1 \(ValueError at .*own_functions\.py:\d+\)"),
        (own.exits, r"own_functions:exits ended with exit status 1\. "),
        (own.returns_text, "returned something that is not a table: return a DataFrame"),
        (own.returns_foreign_columns, r"cannot be written as Parquet \(ValueError\)"),
        (own.drops_a_column, "column 'age': the column is missing"),
        (own.returns_too_few, "19 rows came where 20 were asked for"),
        (own.returns_wrong_types, "column 'age', row 0: a value is not"),
        (own.mixes_types, "column 'age', row 0: a value is not"),
    ],
)
def test_misbehaving_functions(function: object, message: str) -> None:
    fitted = build_generator(function).fit(as_table(TRAIN, SCHEMA), seed=0)
    with pytest.raises((InputError, StepError), match=message) as caught:
        fitted.sample(20, seed=0).frame()
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        assert SECRET not in str(chain[-1]) and "town" not in str(chain[-1])
        chain.append(chain[-1].__cause__ or chain[-1].__context__)


def test_functions_get_a_fresh_table_in_the_users_dtypes(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": pd.Series([1, 2, 3], dtype="int8"), "c": pd.Series(["a", "b", "a"], dtype="category")})
    schema = infer_schema(frame)
    spy = CallableGenerator(own.spies, variables=["SEEN"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SEEN", str(tmp_path / "seen"))
        spy.fit(as_table(frame, schema), seed=0).sample(2, seed=5).frame()
    assert_frame_equal(pd.read_pickle(tmp_path / "seen"), frame)
    fitted = build_generator(own.changes_its_input).fit(as_table(TRAIN, SCHEMA), seed=0)
    for _ in range(2):
        assert set(fitted.sample(20, seed=0).frame()["age"]) == {0}
    assert set(TRAIN["age"].dropna()) != {0}


def test_functions_by_name_and_what_cannot_be_imported() -> None:
    by_name = build_generator("own_functions:uniform")
    assert by_name == build_generator(uniform) == build_generator("callable", {"function": uniform})
    for nameless in (lambda train, rows, seed: train, partial(uniform)):
        with pytest.raises(ConfigError, match="cannot be imported by name"):
            CallableGenerator(nameless)


def test_a_module_is_looked_for_and_not_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its top level is code of the user's too, and this process may hold keys."""
    package = tmp_path / "looked_for"
    package.mkdir()
    for file in (package / "__init__.py", package / "part.py"):
        file.write_text(
            "import own_functions\n\ndef f(train, rows, seed):\n    return own_functions.uniform(train, rows, seed)\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    found = [build_generator(f"looked_for{part}:f") for part in ("", ".part")]
    assert len(found[1].fit(as_table(TRAIN, SCHEMA), seed=0).sample(3, seed=0).frame()) == 3
    assert not [name for name in sys.modules if name.startswith("looked_for")]
    for absent in ("looked_for.other:f", "looked_for.part.deeper:f", "looked_for.part"):
        with pytest.raises(ConfigError, match="cannot be imported"):
            build_generator("callable", {"function": absent})
    with pytest.raises(StepError, match=r"looked_for:g cannot be imported in a process of its own \(AttributeError\)"):
        build_generator("looked_for:g").fit(as_table(TRAIN, SCHEMA), seed=0).sample(3, seed=0).frame()


def test_a_function_of_a_script(tmp_path: Path) -> None:
    """Its main block is not run again."""
    (tmp_path / "script.py").write_text(
        "import pandas as pd\n"
        "from privacy_assets.generators import build_generator\n"
        "from privacy_assets.tables.table import Table\n"
        "def f(train, rows, seed):\n    return train.sample(rows, replace=True, random_state=seed)\n"
        "if __name__ == '__main__':\n"
        "    frame = pd.DataFrame({'a': [1, 2, 3]})\n"
        "    fitted = build_generator(f).fit(Table.read(frame), seed=0)\n"
        "    print(len(fitted.sample(5, seed=0)))\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False)
    assert done.stdout == "5\n", done.stderr


@pytest.mark.parametrize(
    ("generator", "settings", "message"),
    [
        ("synthpopp", {}, "Did you mean 'synthpop'"),
        ("synthpop", {"minleaf": 5}, "Did you mean 'min_leaf'"),
        ("copy", {"noise": 1}, "no setting 'noise'"),
        ("callable", {}, "needs the settings function"),
        ("command", {"timeout": 3}, "needs the settings command\\."),
        ("noisy_copy", {"noise": "much"}, "noise must be a number of at least 0"),
        ("callable", {"function": 3}, "is not a function"),
        ("os.path:nothing", {}, "cannot be imported"),
        ("no_such_module:f", {}, "cannot be imported"),
        ("os.path:join", {"a": 1}, "takes no settings"),
        (own.takes_one, {}, "three arguments"),
        (lambda: None, {}, "cannot be imported by name"),
    ],
)
def test_wrong_names_and_settings(generator: object, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_generator(generator, settings)


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(info.available for info in generator_info())
    monkeypatch.setattr(Copy, "modules", ("no_such_module.part",))
    monkeypatch.setattr(Copy, "extra", "ctgan")
    found = {info.name: info for info in generator_info()}
    missing = ("no_such_module.part",)
    assert found["copy"] == GeneratorInfo("copy", Copy.summary, "Apache-2.0", "ctgan", missing, True, {}, (), None)
    assert not found["copy"].available and found["synthpop"].install is None
    assert found["command"].required == ("command",) and found["command"].settings["timeout"] == 3600
    with pytest.raises(ConfigError, match=r"pip install 'privacy-assets\[ctgan\]'"):
        build_generator("copy")


def test_folders_that_hold_no_generator(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"generator\.json"):
        load_generator(tmp_path)
    (tmp_path / "generator.json").write_text('{"name": "synthpopp"}')
    with pytest.raises(InputError, match="Did you mean 'synthpop'"):
        load_generator(tmp_path)
