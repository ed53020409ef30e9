"""Bypasses of the cells of a user's own table: data hidden in the encoding of its rows (see
test_bypasses).

An author who has seen the training rows hides them in a table that looks harmless: below the
precision of a column, in the order of rows, in unused dictionary values, in the metadata of the
file. A publisher that only stock checks guard passes all of it on. The gate rewrites the rows in
the one canonical form, so the same rows always give the same file.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bypasses import World, gated, released, stock
from standins import LENIENT, independent, people

from privacy_assets import read_published
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.pipeline.row_sources import select_partition
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared

pytestmark = pytest.mark.slow

MEMBER = {
    "policy": {**LENIENT, "limits": [{**limit, "at_most": 0.6} for limit in LENIENT["limits"]]}
}
DIGITS = 1e7  # digits of an income below this precision hold the hidden data
Hide = Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]


def honest(world: World) -> pd.DataFrame:
    """An honest table that copies no person: each column is drawn independently, and all incomes
    are present.
    """
    made = independent(world.private, len(world.private), 0)
    return made.assign(income=made["income"].fillna(1234.5))


def spelled(private: pd.DataFrame) -> list[str]:
    """Whole private rows as texts."""
    return [json.dumps(row) for row in private.astype(object).astype(str).to_dict("records")]


def in_digits(made: pd.DataFrame, private: pd.DataFrame) -> pd.DataFrame:
    """The age of row k is hidden below the cents of income k, and as the microseconds of date k."""
    ages = private["age"].to_numpy()
    return made.assign(
        income=made["income"] + ages / DIGITS,
        joined=made["joined"] + pd.to_timedelta(ages, unit="us"),
    )


def in_order(made: pd.DataFrame, private: pd.DataFrame) -> pd.DataFrame:
    """The order of the rows follows the incomes of the private rows, each close to the place of a
    person.
    """
    ranks = private["income"].fillna(0).rank(method="first").to_numpy().astype(int) - 1
    return made.sort_values("income").iloc[ranks].reset_index(drop=True)


def in_unused_values(made: pd.DataFrame, private: pd.DataFrame) -> pd.DataFrame:
    """Whole private rows are categories that no row has."""
    categories = [*"cab", *dict.fromkeys(spelled(private))]
    return made.assign(plan=pd.Categorical(made["plan"].astype(object), categories=categories))


def in_metadata(made: pd.DataFrame, private: pd.DataFrame) -> pd.DataFrame:
    """The metadata of the file, which pandas stores in the attributes of a frame, holds whole
    private rows.
    """
    made.attrs = {"rows": spelled(private)}
    return made


def ages(public: pd.DataFrame) -> set[tuple[int, ...]]:
    """Digits below the precision of numbers and of dates."""
    income = public["income"].to_numpy()
    hidden = np.rint((income - np.round(income, 2)) * DIGITS).astype(int)
    micros = public["joined"].astype("datetime64[us]").astype("int64").to_numpy() % 1_000_000
    return {tuple(hidden), tuple(micros)}


def everything(file: Path) -> str:
    """All contents of a Parquet file besides its rows: metadata, and the values of its
    dictionaries.
    """
    table = pq.ParquetFile(file, read_dictionary=["plan", "region"]).read()
    columns = [table.schema.field(name).metadata for name in table.column_names]
    chunks = [
        column.combine_chunks() for column in table.columns if pa.types.is_dictionary(column.type)
    ]
    return f"{table.schema.metadata} {columns} {[chunk.dictionary.to_pylist() for chunk in chunks]}"


def published(world: World, hide: Hide) -> tuple[Path, Path]:
    """The files of a stock publisher and of the gate for one table with hidden data."""

    def made(*_: object) -> pd.DataFrame:
        return hide(honest(world), world.private)

    name, given = hide.__name__, world.root / f"{hide.__name__}.parquet"
    result = world.run(stock(world, name, generator=made))
    assert result.success
    made().to_parquet(given, index=False)
    files = {
        "train": world.root / "people.parquet",
        "holdout": world.root / "holdout.parquet",
        "synthetic": given,
    }
    assert world.run(gated(world, f"gated_{name}", **MEMBER, **files)).success
    (release,) = released(world, f"gated_{name}")
    return world.root / "public" / name / f"{result.run_id}.parquet", release.table


@pytest.fixture(scope="module")
def files(world: World) -> dict[Hide, tuple[Path, Path]]:
    """The same honest table with data hidden in each way, as it was submitted and as it was
    released.
    """
    unseen = people(100, 1).assign(pid=lambda frame: "h" + frame["pid"])
    unseen.to_parquet(world.root / "holdout.parquet")
    return {
        hide: published(world, hide)
        for hide in (in_digits, in_order, in_unused_values, in_metadata)
    }


Files = dict[Hide, tuple[Path, Path]]


def test_bypass_37_rows_in_the_low_digits_of_numbers(world: World, files: Files) -> None:
    taken, released_file = files[in_digits]
    secret, rows = tuple(world.private["age"]), len(world.private)
    assert ages(pd.read_parquet(taken)) == {secret}
    assert ages(pd.read_parquet(released_file)) == {(0,) * rows}
    # Hidden data does not change any statistic: the scored rows are the published ones.
    real = [
        pd.read_parquet(world.root / f"{name}.parquet").drop(columns="pid")
        for name in ("people", "holdout")
    ]
    plain, hidden = (
        read_inputs(*real, made)
        for made in (honest(world), in_digits(honest(world), world.private))
    )
    assert hidden.fingerprints["synthetic"] == plain.fingerprints["synthetic"]


def test_bypass_37_rows_in_the_low_digits_of_a_generator_of_ones_own(world: World) -> None:
    defs = gated(world, "generated_digits", generated_digits, **MEMBER)
    assert world.run(defs).success
    public = read_published(world.root / "releases", "generated_digits")
    assert ages(public.assign(income=public["income"].fillna(0))) == {(0,) * len(public)}


def generated_digits(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    made = independent(train, rows, seed)
    return in_digits(made, made)


def test_bypass_37_the_precision_is_that_of_all_partitions(world: World) -> None:
    """A part of the source keeps the precision of the whole, even if its own rows happen to be
    coarse.
    """
    frame = people(100)
    coarse = frame.assign(income=frame["income"].where(frame["region"] == "south", 100.0))
    whole = canonical_table(coarse, Declared(subject="pid"))
    north = select_partition(whole.frame(), "region", "north", None, where="source")
    assert set(north["income"]) == {100.0}
    found = {column.name: column.precision for column in whole.schema.columns}
    assert (found["income"], found["age"], found["joined"], found["plan"]) == (2, 0, "day", None)


def test_bypass_38_rows_in_the_order_of_the_private_ones(world: World, files: Files) -> None:
    private = world.private["income"].fillna(0).rank()
    taken, own = (
        float(private.corr(pd.read_parquet(file)["income"].rank())) for file in files[in_order]
    )
    assert taken > 0.99
    assert abs(own) < 0.35  # five standard deviations


def test_bypass_39_rows_in_unused_dictionary_values(world: World, files: Files) -> None:
    taken, released_file = files[in_unused_values]
    assert set(spelled(world.private)) <= set(pd.read_parquet(taken)["plan"].cat.categories)
    assert everything(released_file).count('"age"') == everything(released_file).count("{") == 0
    public = read_published(world.root / "releases", "gated_in_unused_values")
    assert set(public["plan"].cat.categories) == {"a", "b", "c"}


def test_bypass_40_rows_in_file_metadata(world: World, files: Files) -> None:
    taken, released_file = files[in_metadata]
    assert pd.read_parquet(taken).attrs["rows"] == spelled(world.private)
    metadata = pq.ParquetFile(released_file).metadata
    assert metadata.metadata is None and everything(released_file).startswith("None [None, None")
    assert read_published(world.root / "releases", "gated_in_metadata").attrs == {}


def test_whatever_was_hidden_the_released_file_is_the_same(world: World, files: Files) -> None:
    """The file of the honest rows, in the dtypes of the private table, with rare incomes and ages
    replaced.
    """
    assert len({released_file.read_bytes() for _, released_file in files.values()}) == 1
    public = read_published(world.root / "releases", "gated_in_order")
    assert public.dtypes.astype(str).to_dict() == world.private.dtypes.astype(str).to_dict()
    kept, own = ["joined", "plan", "region", "member"], honest(world)
    rows = [
        frame[kept].astype({"plan": object}).sort_values(kept, ignore_index=True)
        for frame in (public, own)
    ]
    pd.testing.assert_frame_equal(*rows, check_dtype=False)
    assert abs(public["income"].median() - own["income"].median()) < 100
    assert np.abs(np.sort(public["age"]) - np.sort(own["age"])).max() <= 3, (
        "ages of few people are replaced"
    )
