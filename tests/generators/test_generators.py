"""The generators that leak on purpose, functions as generators, and what is not installed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import own_functions as own
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from privacy_assets.errors import ConfigError, InputError, StepError
from privacy_assets.generators import build_generator, generator_info
from privacy_assets.generators.copies import Copy, NoisyCopy
from privacy_assets.generators.functions import CallableGenerator
from privacy_assets.generators.registry import GeneratorInfo
from privacy_assets.tables.table import Table
from tests.generators.known import GAPS, SCHEMA, TRAIN, table

# Copies


def test_copy_draws_without_and_then_with_replacement() -> None:
    train = table(x=list(range(50)))
    fitted = Copy().fit(train, seed=0)
    assert sorted(fitted.sample(50, seed=0).frame()["x"]) == list(range(50))
    assert fitted.sample(30, seed=0).frame()["x"].is_unique
    counts = Counter(fitted.sample(80, seed=0).frame()["x"])
    assert len(counts) == 50 and sum(counts.values()) == 80


def test_noisy_copy_stays_close_in_range_and_in_form() -> None:
    train = TRAIN.frame()
    noisy, plain = (kind().fit(TRAIN, seed=0).sample(600, seed=0).frame() for kind in (NoisyCopy, Copy))
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
            frame[name][there].astype("int64" if column.kind == "datetime" else float) for frame in (noisy, plain)
        ]
        assert 0.05 < (values[0] - values[1]).std() / values[1].std() < 0.11
    assert (noisy["pay"].dropna().round(2) == noisy["pay"].dropna()).all()
    assert (noisy["joined"].dropna() == noisy["joined"].dropna().dt.normalize()).all()


def test_noisy_copy_without_noise_is_a_copy() -> None:
    still = NoisyCopy(noise=0.0, redraw=0.0).fit(TRAIN, seed=0)
    assert_frame_equal(still.sample(700, seed=2).frame(), Copy().fit(TRAIN, seed=0).sample(700, seed=2).frame())


# Functions


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (own.raises, r"own_functions:raises ended with exit status 1 \(ValueError at .*own_functions\.py:\d+\)"),
        (own.exits, r"own_functions:exits ended with exit status 1\. "),
        (own.returns_text, "returned something that is not a table: return a DataFrame"),
        (own.returns_foreign_columns, r"cannot be written as Parquet \(ValueError\)"),
        (own.mixes_types, "column 'age', row 0: a value is not"),
    ],
)
def test_misbehaving_functions(function: object, message: str) -> None:
    fitted = build_generator(function).fit(TRAIN, seed=0)
    with pytest.raises((InputError, StepError), match=message) as caught:
        fitted.sample(20, seed=0).frame()
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        assert own.SECRET not in str(chain[-1]) and "town" not in str(chain[-1])
        chain.append(chain[-1].__cause__ or chain[-1].__context__)


def test_functions_get_a_fresh_table_in_the_users_dtypes(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": pd.Series([1, 2, 3], dtype="int8"), "c": pd.Series(["a", "b", "a"], dtype="category")})
    spy = CallableGenerator(own.spies, variables=["SEEN"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SEEN", str(tmp_path / "seen"))
        spy.fit(Table.read(frame), seed=0).sample(2, seed=5).frame()
    assert_frame_equal(pd.read_pickle(tmp_path / "seen"), frame)
    fitted = build_generator(own.changes_its_input).fit(TRAIN, seed=0)
    for _ in range(2):
        assert set(fitted.sample(20, seed=0).frame()["age"]) == {0}
    assert set(fitted.train.frame()["age"].dropna()) != {0}


def test_functions_by_name_and_what_cannot_be_imported() -> None:
    by_name = build_generator("own_functions:uniform")
    assert by_name == build_generator(own.uniform) == build_generator("callable", {"function": own.uniform})
    for nameless in (lambda train, rows, seed: train, partial(own.uniform)):
        with pytest.raises(ConfigError, match="cannot be imported by name"):
            CallableGenerator(nameless)
    with pytest.raises(ConfigError, match="three arguments"):
        CallableGenerator(own.takes_one)


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
    assert len(found[1].fit(TRAIN, seed=0).sample(3, seed=0).frame()) == 3
    assert not [name for name in sys.modules if name.startswith("looked_for")]
    for absent in ("looked_for.other:f", "looked_for.part.deeper:f", "looked_for.part"):
        with pytest.raises(ConfigError, match="cannot be imported"):
            build_generator("callable", {"function": absent})
    with pytest.raises(StepError, match=r"looked_for:g cannot be imported in a process of its own \(AttributeError\)"):
        build_generator("looked_for:g").fit(TRAIN, seed=0).sample(3, seed=0).frame()


def test_a_module_in_folders_without_code_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bare_outer" / "inner"
    folder.mkdir(parents=True)
    (folder / "part.py").write_text("def f(train, rows, seed):\n    return train.head(rows)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert build_generator("bare_outer.inner.part:f").settings()["function"] == "bare_outer.inner.part:f"
    assert "bare_outer.inner.part" not in sys.modules


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
