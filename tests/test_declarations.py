"""The fields of ``Declared`` are the only list of declarations: all entry points and signed files
have them, or there is a reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
import pytest

from privacy_assets import Policy, TableSpec, build_privacy_checks, evaluate
from privacy_assets.cli.options import COLUMNS, DECLARATIONS
from privacy_assets.cli.verify import _declarations, _subject_warnings
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.power import power_analysis
from privacy_assets.gate.accepted_settings import entries_of
from privacy_assets.gate.verification import declared_names
from privacy_assets.pipeline.spec import Data
from privacy_assets.policy import Limit
from privacy_assets.tables.declared import Declared

DECLARED: dict[str, Any] = {
    "subject": "person",
    "exact_ids": True,
    "kinds": {"age": "integer"},
    "missing": {"age": [99]},
    "timezone": "Europe/Berlin",
    "read": {"sep": ";"},
    "snapshots": True,
    "drop": ["number"],
    "new_values": {"note": "written by a model"},
    "allowed_values": {"ward": ["a", "b"]},
    "prefix_lengths": {"code": [3]},
    "relations": {"start <= end": False},
}
# forms of subject
FORMS = {"each_row", "exact_ids"}
ASSETS = {role: dg.AssetKey(role) for role in ("train", "holdout", "synthetic")}
ENTRY_POINTS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any], set[str]]] = {
    # outside of a pipeline, no value is shortened
    "evaluate": (evaluate, dict.fromkeys(ASSETS), {"prefix_lengths"}),
    "power_analysis": (power_analysis, {"train": 10, "holdout": 10}, {"prefix_lengths"}),
    # Dagster loads the tables
    "checks": (build_privacy_checks, ASSETS, {"prefix_lengths", "read", "snapshots"}),
}
# only in files of settings
WITHOUT_OPTION = {"prefix_lengths", "relations"}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_an_entry_point_has_all_declarations(name: str) -> None:
    function, arguments, left_out = ENTRY_POINTS[name]
    expected = set(Declared.model_fields) - FORMS - left_out
    parameters = inspect.signature(function).parameters
    assert expected == set(parameters) & set(Declared.model_fields)
    for declaration in expected:
        with pytest.raises(ConfigError, match=f"columns: {declaration}: Input should be"):
            function(**{**arguments, declaration: object()})


def test_a_table_has_all_declarations() -> None:
    assert issubclass(Data, Declared)
    for declaration in Declared.model_fields:
        with pytest.raises(ConfigError, match=f"table people, data: {declaration}: Input should"):
            TableSpec(name="people", data={declaration: object()})


def test_the_command_line_has_all_declarations() -> None:
    expected = set(Declared.model_fields) - FORMS - WITHOUT_OPTION
    assert set(DECLARATIONS) == expected
    options = {option for declaration in DECLARATIONS.values() for option in declaration.options}
    assert options - set(COLUMNS) == {"--subject", "--exact-ids", "--each-row"}


def test_a_signed_declaration_is_accepted_and_shown() -> None:
    signed = Declared.signed_names()
    assert set(signed) == set(Declared.model_fields) - {"each_row", "read"}
    assert set(DECLARED) == set(Declared.model_fields) - {"each_row"}
    declared = Declared(**DECLARED)
    setup = declared.to_setup(lambda text: "keyed")
    assert set(setup) == set(signed)
    accepted = entries_of(Policy((Limit("dcr.member_excess", at_most=0.1),)), setup)
    assert set(accepted) >= set(signed)
    assert set(declared_names()) >= set(signed)


@pytest.mark.parametrize("name", Declared.signed_names())
def test_verify_shows_a_declaration(name: str) -> None:
    further = {"seed": 0, "table_settings": {}}

    def shown(setup: Mapping[str, Any]) -> list[Any]:
        declared = {**further, **Declared.of_setup(setup)}
        return [*_declarations(declared), *_subject_warnings(declared)]

    setup = Declared(**DECLARED).to_setup(lambda text: "keyed")
    assert shown({name: setup[name]}) != shown({})


def test_signed_declarations_are_read_with_defaults() -> None:
    declared = Declared(**DECLARED)
    setup = declared.to_setup(lambda text: "keyed")
    assert Declared.of_setup(setup) == setup
    defaults = Declared.of_setup({})
    assert defaults["subject"] is None
    assert defaults["drop"] == []
    assert defaults["kinds"] == {}
    for form in ({"missing": 3}, {"missing": {"age": 3}}, {"drop": 3}, {"kinds": "age"}):
        with pytest.raises((TypeError, ValueError)):
            Declared.of_setup(form)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"subject": "person", "each_row": True}, "Fix: declare one of the two"),
        ({"exact_ids": True}, "exact ids need the subject"),
    ],
)
def test_people_are_declared_in_one_way(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Declared(**declared)


@pytest.mark.parametrize(
    "setup", [{"drop": "abc"}, {"snapshots": "no"}, {"new_values": ["a"]}, {"exact_ids": 1}]
)
def test_signed_declarations_of_another_form_are_errors(setup: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Declared.of_setup(setup)
