"""Dataframes of any library are accepted at every entry point, and no message quotes them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import duckdb
import nanoarrow
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from privacy_assets.errors import InputError
from privacy_assets.evaluation.evaluate import evaluate
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.given import given_frame

SECRET = "Zebulon-77123"


def people(seed: int, rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "name": [f"{SECRET}-{seed}-{row}" for row in range(rows)],
            "age": rng.integers(18, 90, rows),
            "dose": rng.normal(size=rows),
            "plan": rng.choice(["a", "b", None], rows),
            "member": rng.random(rows) < 0.5,
            "since": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 900, rows), unit="D"),
        }
    )


def arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)


def duck(frame: pd.DataFrame) -> Any:
    own = frame  # noqa: F841 (DuckDB looks it up by its name)
    return duckdb.connect().sql("select * from own")


LIBRARIES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "polars lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "duckdb": duck,
    "pyarrow table": arrow,
    "pyarrow batch": lambda frame: arrow(frame).to_batches()[0],
    "pyarrow reader": lambda frame: arrow(frame).to_reader(),
    "nanoarrow": lambda frame: nanoarrow.ArrayStream(arrow(frame)),
    "narwhals": lambda frame: nw.from_native(pl.from_pandas(frame)),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_gives_the_same_inputs(library: str) -> None:
    """A dataframe is not taken for a path, whose message contained the repr of polars and Arrow
    tables.
    """
    frames = {
        "train": people(0),
        "holdout": people(1),
        "reference": people(2),
        "synthetic": people(3),
    }
    frames["synthetic"] = frames["synthetic"].drop(columns="name")
    given = {role: LIBRARIES[library](frame) for role, frame in frames.items()}
    found = read_inputs(
        declared=Declared(subject="name"),
        **given,
        earlier_releases=[LIBRARIES[library](frames["synthetic"])],
    )
    expected = read_inputs(
        declared=Declared(subject="name"), **frames, earlier_releases=[frames["synthetic"]]
    )
    assert found.fingerprints == expected.fingerprints
    assert [c.kind for c in found.schema.columns] == [c.kind for c in expected.schema.columns]
    wrong = frames | {"synthetic": frames["synthetic"].drop(columns="age")}
    with pytest.raises(InputError, match="column 'age': the column is missing") as caught:
        evaluate(
            **{role: LIBRARIES[library](frame) for role, frame in wrong.items()}, subject="name"
        )
    assert SECRET not in "".join(traceback.format_exception(caught.value))


class Stream:
    """Offers Arrow, and raises an error that quotes a cell."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise RuntimeError(SECRET)

    def __repr__(self) -> str:
        return SECRET


@pytest.mark.parametrize(
    "given",
    [
        lambda: pl.LazyFrame({"name": [SECRET]}).select(pl.col("name").cast(pl.Int64)),
        lambda: duckdb.connect().sql(f"select cast(x as int) from (values ('{SECRET}')) t(x)"),
        Stream,
    ],
    ids=["lazy polars that fails", "duckdb that fails", "own stream"],
)
def test_what_a_library_says_is_not_told(given: Callable[[], Any]) -> None:
    with pytest.raises(
        InputError, match=r"^train: the \w+ cannot be read \(\w+\)\. Fix: pass a dataframe"
    ) as caught:
        given_frame(given(), where="train")
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "given", [[SECRET], {"name": [SECRET]}, SECRET.encode(), np.array([SECRET]), iter([SECRET])]
)
def test_what_is_no_table_is_named_by_its_type(given: object) -> None:
    with pytest.raises(
        InputError, match=f"train: it has type {type(given).__name__}, which is not a table"
    ):
        given_frame(given, where="train")


def test_the_text_of_a_table_is_no_path_and_one_table_no_list() -> None:
    rows = people(0).to_csv(index=False)
    for given in (rows, rows.replace("\n", ";")):
        with pytest.raises(
            InputError, match="a string of [0-9]+ characters is not the path"
        ) as caught:
            evaluate(given, given, given)
        assert SECRET not in str(caught.value)
    with pytest.raises(InputError, match="earlier releases: expected a list"):
        read_inputs(people(0), people(1), people(2), earlier_releases=people(3))
