"""Schema and value checks, and the check of exchangeability."""

from __future__ import annotations

import pandas as pd
import pytest
from standins import people

from privacy_assets.dagster.checks import exchangeability_result, expectation_result
from privacy_assets.evaluation.exchangeability import Exchangeability
from privacy_assets.pipeline.expectations import check_contract
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared


def broken(frame: pd.DataFrame) -> set[tuple[str, str]]:
    table = canonical_table(people(), Declared(subject="pid"))
    return {
        (o.name, o.column) for o in check_contract(frame, [table.without_subject()]) if not o.passed
    }


def canonical() -> pd.DataFrame:
    return canonical_table(people(), Declared(subject="pid")).without_subject().frame()


def test_the_training_rows_themselves_hold() -> None:
    assert broken(canonical()) == set()


@pytest.mark.parametrize(
    ("column", "value", "expectation"),
    [
        ("region", "east", "expect_column_values_to_be_in_set"),
        ("age", 999, "expect_column_values_to_be_between"),
        ("age", pd.NA, "expect_column_values_to_not_be_null"),
        ("income", -1e6, "expect_column_values_to_be_between"),
        ("joined", pd.Timestamp("2031-01-01"), "expect_column_values_to_be_between"),
    ],
)
def test_one_wrong_value_is_found(column: str, value: object, expectation: str) -> None:
    frame = canonical()
    frame.loc[3, column] = value
    assert broken(frame) == {(expectation, column)}


def test_wrong_columns_and_types_are_found() -> None:
    frame = canonical()
    assert ("expect_table_columns_to_match_ordered_list", "") in broken(frame[frame.columns[::-1]])
    assert broken(frame.assign(age=frame["age"].astype("float64"))) == {
        ("expect_column_values_to_be_in_type_list", "age")
    }


def test_the_result_holds_no_private_value() -> None:
    frame = canonical()
    frame.loc[0, "region"] = "SECRET"
    table = canonical_table(people(), Declared(subject="pid"))
    result = expectation_result(check_contract(frame, [table.without_subject()]))
    assert not result.passed
    assert "SECRET" not in repr(result) and "north" not in repr(result)


def test_the_column_that_differs_is_named_in_the_metadata_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = (
        {"column": "age", "z": 1.0, "p_value": 1.0},
        {"column": "income", "z": 9.0, "p_value": 0.0005},
    )
    found = Exchangeability(0.0005, columns, 10, 10)
    monkeypatch.setattr(
        "privacy_assets.evaluation.exchangeability.exchangeability", lambda _: found
    )
    monkeypatch.setattr("privacy_assets.dagster.checks.build_inputs", lambda *_, **__: None)
    table = canonical_table(people(), Declared(subject="pid"))
    result = exchangeability_result({"train": table, "holdout": table}, 0)
    assert not result.passed and "income" not in str(result.description)
    assert [record.data["column"] for record in result.metadata["columns"].records] == [
        "income",
        "age",
    ]
