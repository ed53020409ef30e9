"""Roles of columns: which are open, the values that the others may hold, and the declarations of an
owner.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets import evaluate
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.demo import load_patients
from privacy_assets.tables.fingerprints import keyed_fingerprint
from privacy_assets.tables.roles import foreign_cells, with_roles
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

N = 1500
RNG = np.random.default_rng(0)
X = RNG.normal(size=N)


def roles(
    frame: pd.DataFrame, subject: str | None = None, **declared: Any
) -> dict[str, str | None]:
    given = Declared(**declared)
    given.check(list(frame.columns))
    people = None if subject is None else pd.factorize(frame[subject])[0]
    left_out = [name for name in (*given.drop, subject) if name in frame.columns]
    left = frame.drop(columns=left_out)
    schema = in_roles(Table.read(left, kinds=given.kinds), people, given)
    return {column.name: column.role for column in schema.columns}


def in_roles(
    table: Table, people: np.ndarray | None = None, declared: Declared = NOTHING
) -> TableSchema:
    return with_roles(table.schema, [table], people, declared, where="source")


ALONE, KEY = (
    "at least half of the rows have a value of one person only",
    "integers that look like a key",
)
PAIN = "patient {} has pain in her left knee, and more"
OPEN: dict[str, tuple[str, Any]] = {
    "claim": (ALONE, [f"CLM-{i:06d}" for i in range(N)]),
    "note": (ALONE, [f"fell on the {i % 31}st, case {RNG.integers(1e9)}" for i in range(N)]),
    "two_thirds_alone": (ALONE, [f"name{i}" if i % 3 else f"city{i % 12}" for i in range(N)]),
    "code_or_filler": (ALONE, [f"C{i:07d}" if i % 5 < 2 else "unknown" for i in range(N)]),
    "some_notes": ("free text", [f"code{i % 12}" if i % 5 else PAIN.format(i) for i in range(N)]),
    "four_rows_each": (
        "codes that only a few rows share",
        np.repeat([f"name{i}" for i in range(N // 4)], 4),
    ),
    "row_number": (KEY, RNG.permutation(N) + 100),
    "numbers_with_gaps": (KEY, RNG.choice(30_000, N, replace=False)),
    "six_digits_twice": (
        KEY,
        np.repeat(RNG.choice(np.arange(10**5, 10**6), N // 2, replace=False), 2),
    ),
    "leading_zeros_gone": (KEY, RNG.integers(1, 10**9, N)),
    "number_of_four_rows": (KEY, np.repeat(np.arange(N // 4), 4)),
    "mail": ("e-mail addresses", RNG.choice([f"a{i}@b.example" for i in range(10)], N)),
    "some_mail": ("e-mail addresses", [f"p{i}@x.org" if i % 4 == 0 else "none" for i in range(N)]),
    "phone": ("phone numbers", RNG.choice([f"+49 170 12345{i:02d}" for i in range(30)], N)),
    "card": ("payment card numbers", RNG.choice(["4111 1111 1111 1111", "5500-0000-0000-0004"], N)),
    "account": (
        "bank account numbers",
        RNG.choice(["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"], N),
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_an_open_column_is_blocked_by_name_and_without_a_value(name: str) -> None:
    reason, values = OPEN[name]
    frame = pd.DataFrame({"x": X, name: values})
    with pytest.raises(
        InputError, match=rf"values of individual people.*'{name}' \({reason}.*drop: \[{name}\]"
    ) as rejected:
        roles(frame)
    told = str(rejected.value)
    assert "new_values" in told and "kinds" in told
    assert not any(
        str(value) in told
        for value in frame[name].unique()
        if any(c.isdigit() for c in str(value)[3:])
    )
    assert roles(frame, drop=[name]) == {"x": "number"}
    assert roles(frame, new_values={name: "made up"})[name] == "generated"


CLOSED_OR_NUMBER = {
    "thirty of sixty": ("closed", RNG.choice([f"c{i}" for i in range(30)], 60)),
    "ICD, long tail": ("closed", [f"A{min(z, 9999):04d}" for z in RNG.zipf(1.3, N)]),
    "cities, long tail": ("closed", [f"city {min(z, 9999)}" for z in RNG.zipf(1.15, N)]),
    "a third alone": ("closed", [f"city{i % 12}" if i % 3 else f"name{i}" for i in range(N)]),
    "few numbers": ("closed", RNG.choice([0.5, 1.0, 7.25], N)),
    "weights": ("number", RNG.lognormal(12, 0.5, N).astype(int)),
    "amounts": ("number", RNG.integers(0, 10**6, N)),
    "any number up to 1500": ("number", RNG.integers(0, N, N)),
    "ages of sixty": ("number", RNG.integers(18, 90, 60)),
    "years": ("number", np.arange(1700, 2000)),
    "days": ("date", pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(N), unit="h")),
    "truth": ("closed", RNG.random(N) < 0.5),
}


@pytest.mark.parametrize("name", CLOSED_OR_NUMBER)
def test_categories_and_measures_are_not_taken_for_identifiers(name: str) -> None:
    role, values = CLOSED_OR_NUMBER[name]
    assert roles(pd.DataFrame({"it": values})) == {"it": role}


@pytest.mark.slow
def test_real_tables_have_no_open_column(adult: pd.DataFrame, uk_census: pd.DataFrame) -> None:
    from sklearn import datasets

    assert roles(load_patients(), "person")["physical_limitation"] == "closed"
    bunches = [
        getattr(datasets, f"load_{name}")(as_frame=True).frame
        for name in ("iris", "wine", "diabetes")
    ]
    for frame in (*bunches, adult, adult.iloc[:N], uk_census, uk_census.iloc[:N]):
        found = roles(frame.reset_index(drop=True))
        assert "generated" not in found.values() and found.get("fnlwgt", "number") == "number"


def test_a_name_on_all_rows_of_its_person_is_still_that_persons() -> None:
    people = pd.DataFrame(
        {"pid": np.repeat(np.arange(40), 4), "name": np.repeat([f"n{i}" for i in range(40)], 4)}
    )
    with pytest.raises(InputError, match="'name'"):
        roles(people, "pid")
    # the best guess without the subject column
    assert roles(people) == {"pid": "number", "name": "closed"}


def test_domains_are_stated_as_counts_and_keyed_digests() -> None:
    def stated(key: bytes, **allowed_values: list[object]) -> dict[str, object]:
        return Declared(allowed_values=allowed_values).to_setup(
            partial(keyed_fingerprint, key=key)
        )["allowed_values"]

    first = stated(b"a", region=["north", "south", 3], ward=["x"])
    assert [one["values"] for one in first.values()] == [3, 1] and "north" not in str(first)
    assert (
        first
        == stated(b"a", region=[3, "south", "north"], ward=["x"])
        != stated(b"b", region=["north", "south", 3])
    )
    assert first["region"] != stated(b"a", region=["north", "south", "3"])["region"]
    assert first["ward"] != stated(b"a", other=["x"])["other"]
    text = json.dumps(["ward", ['"x"']])
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        != first["ward"]["digest"]
        == keyed_fingerprint(text, b"a")
    )


def test_what_was_declared_a_measure_is_one_and_a_text_is_none() -> None:
    frame = pd.DataFrame({"size": OPEN["row_number"][1], "code": OPEN["claim"][1]})
    assert roles(frame, kinds={"size": "integer"}, drop=["code"]) == {"size": "number"}
    with pytest.raises(InputError, match="'code'"):
        roles(frame, kinds={"size": "integer", "code": "categorical"})
    listed = [*OPEN["claim"][1], "ZZZ"]  # a public list contains all values
    assert roles(frame[["code"]], allowed_values={"code": listed}) == {"code": "closed"}
    with pytest.raises(InputError, match="'code'"):
        roles(frame[["code"]], allowed_values={"code": listed[1:]})


def test_a_public_list_with_an_invalid_character_hides_no_address() -> None:
    frame = pd.DataFrame({"note": ["a", "b"] * 100})
    listed = {"values": ["\ud800", "bob@x.org"], "source": "ISO 1"}
    with pytest.raises(InputError, match="'note' \\(e-mail addresses\\)"):
        roles(frame, allowed_values={"note": listed})


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"drop": "x"}, "list of column names"),
        ({"drop": ["regoin"]}, "Did you mean 'region'"),
        ({"new_values": {"regoin": "made up"}}, "Did you mean 'region'"),
        ({"allowed_values": {"regoin": ["a"]}}, "Did you mean 'region'"),
        ({"new_values": {"region": " "}}, "no reason"),
        ({"new_values": ["region"]}, "Expected: a reason for each column"),
        ({"allowed_values": {"region": "north"}}, "list of strings or numbers"),
        ({"drop": ["region"], "new_values": {"region": "made up"}}, "named twice"),
    ],
)
def test_what_cannot_be_declared_is_told(declared: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        roles(pd.DataFrame({"region": ["a", "b"] * 30}), **declared)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_subject_has_no_role_in_either_unicode_form(form: Any) -> None:
    subject = unicodedata.normalize(form, "prénom")
    with pytest.raises(ConfigError, match="is the subject"):
        Declared(new_values={"prénom": "made up"}, subject=subject)


def test_evaluate_rejects_the_same_columns_and_sets_generated_ones_apart() -> None:
    frame = pd.DataFrame(
        {"id": [f"K{i}" for i in range(600)], "x": X[:600], "e": ["a@b.example"] * 600}
    )
    parts = [frame.iloc[start::2].reset_index(drop=True) for start in (0, 1)]
    with pytest.raises(InputError, match="2 columns contain.*'id'.*'e' \\(e-mail addresses\\)"):
        evaluate(*parts, parts[0], metrics="value_disclosure")
    with pytest.raises(ConfigError, match="is the subject"):
        evaluate(*parts, parts[0], subject="id", new_values={"id": "made up"})
    report = evaluate(
        *parts, parts[0], metrics="value_disclosure", drop=["id", "e"], embedder=False
    )
    assert report.tables["synthetic"]["columns"] == 1
    given = Declared(drop=("e",), new_values={"id": "made up"})
    inputs, other = (
        read_inputs(*parts, made, declared=given) for made in (parts[0], parts[0].assign(id="new"))
    )
    assert inputs.schema.names == list(inputs.train.columns) == ["x"]
    assert {
        role: list(own.columns) for role, own in inputs.release.generated.items()
    } == dict.fromkeys(inputs.tables, ["id"])
    assert other.fingerprints["synthetic"] != inputs.fingerprints["synthetic"]
    assert other.fingerprints["train"] == inputs.fingerprints["train"]


@pytest.mark.parametrize(
    ("values", "new", "foreign"),
    [
        (["a", "b"] * 50, ["a", "c", None], [False, True, True]),
        (["a", None] * 50, ["a", "c", None], [False, True, False]),
        ([1, 2] * 50, [1, 3, 4], [False, False, True]),
        ([0.5, 2.0] * 50, [0.5, 0.75, 4.0], [False, False, True]),
        ([True, True] * 50, [True, False, True], [False, True, False]),
        # too far out
        (list(range(100)), [50, 150, -50, -500, 250], [False, False, False, True, True]),
        (
            list(pd.date_range("2024", periods=100)),
            list(pd.to_datetime(["2024-03-01", "2024-05-01", "2200-01-01"])),
            [False, False, True],
        ),
    ],
)
def test_what_may_not_stand_in_a_column(
    values: list[Any], new: list[Any], foreign: list[bool]
) -> None:
    kinds: Any = {"it": "integer"} if values[0] == 0 else {}
    real = Table.read(pd.DataFrame({"it": values}), kinds=kinds)
    column = in_roles(real, declared=Declared(kinds=kinds))["it"]
    made = Table.of(pd.DataFrame({"it": new}), real.schema, where="made")["it"]
    assert foreign_cells(column, [real["it"]], made).tolist() == foreign


def test_noise_paid_for_by_a_budget_stays_so_where_the_few_values_are_public() -> None:
    table = Table.read(pd.DataFrame({"level": np.arange(N) % 3 * 2.5, "x": X}))
    schema = in_roles(table)
    given = {"bounds": {"level": [0, 10], "x": [-5, 5]}}
    public = TableSchema((replace(schema["level"], allowed_values=(0, 2.5, 5, 10)), schema["x"]))
    read, known = (
        build_generator("privbayes", given).fit(table.with_schema(one), seed=0)
        for one in (schema, public)
    )
    assert set(read.sample(500, seed=0).frame()["level"]) <= {
        0,
        2.5,
        5,
    } and read.privacy.outside_guarantee == ("few values of level",)
    assert (
        set(known.sample(500, seed=0).frame()["level"]) <= {0, 2.5, 5, 10}
        and known.privacy.outside_guarantee == ()
    )


@pytest.mark.parametrize(
    "asked", [{"subject": "pid"}, {"new_values": {"pid": "made up"}}, {"kinds": {"pid": "integer"}}]
)
def test_a_file_without_a_header_shows_no_cell_where_a_column_is_missing(
    asked: dict[str, Any],
) -> None:
    frame = pd.DataFrame({"Jane Doe": np.arange(60.0), "cardiology": np.arange(60.0)})
    with pytest.raises((InputError, ConfigError), match="pid") as caught:
        evaluate(frame, frame, frame, embedder=False, **asked)
    assert "Jane" not in str(caught.value) and "cardiology" not in str(caught.value)


def test_a_dropped_column_of_lists_is_no_id() -> None:
    rng = np.random.default_rng(0)
    parts = [pd.DataFrame({"x": rng.normal(size=200), "tags": [[1, 2]] * 200}) for _ in range(3)]
    report = evaluate(*parts, metrics="dcr", drop=["tags"], embedder=False)
    assert report.tables["train"]["columns"] == 1 and "looks like one" not in report.notes[0]
