"""Names of columns and partitions have one spelling, and contain no invisible characters."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from dagster._core.errors import DagsterInvalidDefinitionError

from privacy_assets import build_privacy_assets
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.metrics.fidelity import Fidelity
from privacy_assets.metrics.linkability import Linkability
from privacy_assets.metrics.membership_inference.metric import MembershipInference
from privacy_assets.pipeline.partitions import KeyPartitions
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.row_sources import select_partition
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.given import given_frame, load
from privacy_assets.tables.names import name_fault
from privacy_assets.tables.reading import read_table

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
UNSEEN = {
    "control": "a\x07",
    "newline": "a\nb",
    "tab": "a\tb",
    "delete": "a\x7f",
    "C1": "a\x85",
    "zero width space": "a\u200b",
    "joiner": "a\u200d",
    "right to left": "a\u202eb",
    "byte order mark": "\ufeffa",
    "soft hyphen": "a\u00ad",
    "tag": "a\U000e0041",
    "private use": "a\ue000",
    "unassigned": "a\u0378",
    "noncharacter": "a\uffff",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "no-break space": "a\u00a0b",
    "ideographic space": "a\u3000b",
    "Hangul filler": "a\u3164",
    "Hangul choseong filler": "a\u115f",
    "halfwidth filler": "a\uffa0",
    "variation selector": "a\ufe0f",
    "supplement": "a\U000e0100",
    "Mongolian selector": "a\u180b",
    "grapheme joiner": "a\u034f",
    "Khmer": "a\u17b4",
    "Braille blank": "a\u2800",
    "null notehead": "a\U0001d159",
    "Khitan filler": "a\U00016fe4",
    "object replacement": "a\ufffc",
    "Egyptian blank": "a\U00013441",
}
FINE = [
    "a",
    "Name, first",
    " a b ",
    "caf\u00e9",
    "\u540d\u524d",
    "\u0627\u0633\u0645",
    "a" * 128,
    "x=1|y",
    "%_-\u20ac",
]


@pytest.mark.parametrize("name", UNSEEN.values(), ids=UNSEEN)
def test_a_name_with_a_character_that_cannot_be_seen_is_blocked(name: str, tmp_path: Path) -> None:
    code = "U\\+[0-9A-F]{4,6}"
    with pytest.raises(
        InputError,
        match=f"the name of column 1 contains a character that readers cannot see .{code}",
    ):
        canonical_table(pd.DataFrame({"b": [1, 2], name: [1, 2]}))
    pd.DataFrame({"b": [1, 2], name: [1, 2]}).to_parquet(tmp_path / "t.parquet")
    for read in (read_table, load):
        with pytest.raises(
            InputError, match=r"t\.parquet: the name of column 1 contains a character"
        ):
            read(tmp_path / "t.parquet")
    with pytest.raises(
        ConfigError,
        match=f"partitions: key .* contains a character that readers cannot see .{code}",
    ):
        KeyPartitions(("north", name))
    with pytest.raises((ConfigError, DagsterInvalidDefinitionError), match="partition.* key"):
        build_privacy_assets(
            TableSpec(name="t", data={"source": "t_{partition}.csv"}),
            partitions_def=dg.StaticPartitionsDefinition(["north", name]),
        )


def test_surrogates_lengths_and_forms() -> None:
    assert [name_fault(name) for name in FINE] == [""] * len(FINE)
    assert name_fault("a\ud800") == "contains a character that readers cannot see (U+D800)"
    assert name_fault("a" * 129) == "has 129 characters, and at most 128 are allowed"
    assert name_fault(DECOMPOSED) == "is not in Unicode form NFC"
    assert name_fault("") == "is empty"
    for key in ("", " ", " a", "a ", "a" * 129, DECOMPOSED, 3):
        with pytest.raises(ConfigError, match="partitions: key "):
            KeyPartitions(("north", key))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("character", "most"), [("a", 128), ("\u044f", 33), ("\u6f22", 22), ("\U0001f600", 16)]
)
def test_the_folder_of_every_accepted_key_can_be_created(
    character: str, most: int, tmp_path: Path
) -> None:
    KeyPartitions((character * most,))
    ReleaseTarget("t" * 128, character * most).below(tmp_path).mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=r"partitions: key .* (is too long .* Fix: shorten|has 129 characters)"
    ):
        KeyPartitions((character * (most + 1),))


@pytest.mark.parametrize("dtype", ["object", "category"])
def test_values_of_the_partition_column_match_the_key_in_any_form(dtype: str) -> None:
    frame = pd.DataFrame(
        {"city": pd.Series([COMPOSED, DECOMPOSED, "b", None], dtype=dtype), "n": range(4)}
    )
    assert list(select_partition(frame, "city", COMPOSED, None, where="t")["n"]) == [0, 1]
    assert list(select_partition(frame, "n", "2", None, where="t")["n"]) == [2]


def test_metrics_name_columns_in_one_form() -> None:
    assert MembershipInference(subgroups=[DECOMPOSED]).subgroups == (COMPOSED,)  # type: ignore[arg-type]
    assert Linkability(column_sets=[[DECOMPOSED], ["b"]]).column_sets == ((COMPOSED,), ("b",))  # type: ignore[arg-type]
    assert Fidelity(targets=[DECOMPOSED]).targets == (COMPOSED,)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_names_of_a_file_are_read_in_one_form(kind: str, tmp_path: Path) -> None:
    frame, file = pd.DataFrame({DECOMPOSED: ["x", "y"], "b": [1, 2]}), tmp_path / f"t.{kind}"
    frame.to_parquet(file) if kind == "parquet" else frame.to_csv(file, index=False)
    for found in (
        read_table(file),
        load(file),
        given_frame(frame, where="t"),
        given_frame(pa.table(frame), where="t"),
    ):
        assert list(found.columns) == [COMPOSED, "b"] and list(found[COMPOSED]) == ["x", "y"]
    frame[COMPOSED] = [3, 4]
    frame.to_parquet(file) if kind == "parquet" else frame.to_csv(file, index=False)
    for read in (
        lambda: read_table(file),
        lambda: load(file),
        lambda: given_frame(frame, where="t"),
    ):
        with pytest.raises(InputError, match="columns 0 and 2 are equal in Unicode form NFC"):
            read()
    indexed = pd.DataFrame({"b": [1]}, index=pd.Index([1], name=DECOMPOSED))
    indexed.to_parquet(tmp_path / "i.parquet")
    assert COMPOSED in load(tmp_path / "i.parquet").columns


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_declared_name_matches_that_of_the_file_in_any_form(form: str) -> None:
    name = unicodedata.normalize(form, "pati\u00ebnt")
    data: dict[str, Any] = {"subject": name, "kinds": {name: "integer"}, "partition_column": name}
    plan = ResolvedTable.of(TableSpec(name="t", data={"source": "t.csv", **data}), partitioned=True)
    assert {plan.spec.data.subject, plan.spec.data.partition_column, *plan.spec.data.kinds} == {
        "pati\u00ebnt"
    }
    found = Declared(drop=[name], allowed_values={f"{name}2": ["x"]})
    assert found.drop == ("pati\u00ebnt",) and list(found.allowed_values) == ["pati\u00ebnt2"]
    frame = pd.DataFrame({"pati\u00ebnt": range(40), "b": [1, 2] * 20})
    assert canonical_table(frame, Declared(subject=name)).subject is not None
