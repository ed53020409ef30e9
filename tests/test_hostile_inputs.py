"""Invalid objects at every entry point of the package: the package's own errors, and no cell in any
message.

A short string given as a name or a path is shown, so that its author can see the typo.
"""

from __future__ import annotations

import logging
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import nanoarrow
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy_assets.dagster.table import resolve_dagster_table
from privacy_assets.errors import PrivacyAssetsError
from privacy_assets.evaluation.evaluate import evaluate
from privacy_assets.metrics.policies import load_policy
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import GROUPS, TableSpec
from privacy_assets.policy import Limit
from privacy_assets.tables.table import Table

NAME, NUMBER = "Zebulon Quist", 771237712377
NOTE = (
    f"{NAME} came at dawn, and was sent on to the next town with a letter about what had been"
    " found in him."
)
CELLS = (NAME, str(NUMBER), "Quist", "1987-06-05")


def people(rows: int = 30, seed: int = 0) -> pd.DataFrame:
    """Rows whose cells are all planted, except in two columns."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "name": [f"{NAME} {row}" for row in range(rows)],
            "number": NUMBER + rng.integers(0, 9, rows) * 10**12,
            "born": pd.Timestamp("1987-06-05")
            + pd.to_timedelta(rng.integers(0, 99, rows), unit="s"),
            "age": rng.integers(18, 90, rows),
            "dose": rng.normal(size=rows),
        }
    )


# --- invalid tables
# --------------------------------------------------------------------------------------------------


def faulty(fault: str) -> pd.DataFrame:
    """The same rows with one fault."""
    frame = people()
    changed = {
        "none": {},
        "gap": {"name": frame["name"].where(frame.index != 7)},
        "stray": {"age": [NAME, *frame["age"].astype(str)[1:]]},
        "texts": {"age": frame["name"], "dose": frame["name"]},
        "lists": {"age": [[NAME, NAME]] * len(frame)},
        "bytes": {"age": [NAME.encode()] * len(frame)},
        "far": {
            "born": pd.Series([pd.Timestamp("9999-06-05")] * len(frame)).astype("datetime64[us]")
        },
        "infinite": {"dose": np.inf},
    }
    others = {
        "lacking": frame[["name", "number"]],
        # cells as names
        "turned": pd.DataFrame([[1] * 10], columns=[f"{NAME} {place}" for place in range(10)]),
        "empty": frame.iloc[:0],
    }
    return frame.assign(**changed[fault]) if fault in changed else others[fault]


FAULTS = [
    "none",
    "gap",
    "stray",
    "texts",
    "lists",
    "bytes",
    "far",
    "infinite",
    "lacking",
    "turned",
    "empty",
]


def _pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def _arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


_DUCK = duckdb.connect()


def _duck(frame: pd.DataFrame) -> Any:
    return _DUCK.from_arrow(_arrow(frame))


def _mislabeled(frame: pd.DataFrame) -> pd.DataFrame:
    return (
        frame.set_axis([NUMBER, NAME, None, 1.5, ("a", NAME)][: frame.shape[1]], axis=1)
        if len(frame) > 1
        else frame
    )


LIBRARIES: list[Callable[[pd.DataFrame], Any]] = [
    _pandas,
    _mislabeled,
    _arrow,
    _duck,
    lambda frame: pl.from_arrow(_arrow(frame)),
    # fails late
    lambda frame: pl.from_arrow(_arrow(frame)).lazy().with_columns(pl.first().cast(pl.Int64)),
    lambda frame: _duck(frame).select(f'cast("{frame.columns[0]}" as int) as x'),
    lambda frame: _arrow(frame).to_reader(),
    lambda frame: nanoarrow.ArrayStream(_arrow(frame)),
]
TABLES = st.builds(
    lambda library, fault: library(faulty(fault)),
    st.sampled_from(LIBRARIES),
    st.sampled_from(FAULTS),
)


# --- other objects
# --------------------------------------------------------------------------------------------------


class Hostile:
    """Shows a cell in every representation, and raises one in every use."""

    def __init__(self, raising: type[BaseException]) -> None:
        self.raising = raising

    def __repr__(self) -> str:
        return NAME

    __str__ = __repr__

    def _raise(self, *_: object, **__: object) -> Any:
        error = self.raising(NAME)
        error.add_note(NAME)
        raise error from ValueError(NAME)

    __fspath__ = __arrow_c_stream__ = __iter__ = __len__ = __bool__ = __call__ = __float__ = (
        __index__
    ) = _raise
    __eq__ = __lt__ = __gt__ = __contains__ = __getitem__ = __format__ = _raise
    __hash__ = None  # type: ignore[assignment]


class PublicationRecord(Hostile):
    """Shows a cell, and can be used as a key."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class Text(str):
    """A string with a different representation."""

    __slots__ = ()

    def __str__(self) -> str:
        return NAME

    def __repr__(self) -> str:
        return NAME

    def __format__(self, _: str) -> str:
        return NAME


class ReleaseTarget(type(Path())):  # type: ignore[misc]
    """A path that shows a cell."""

    def __str__(self) -> str:
        return NAME

    __repr__ = __fspath__ = __str__


def _rows() -> Iterator[list[object]]:
    yield from people().to_numpy().tolist()


OBJECTS: list[Callable[[], Any]] = [
    lambda: Hostile(ValueError),
    lambda: Hostile(KeyError),
    lambda: PublicationRecord(RuntimeError),
    lambda: Text("people"),
    lambda: ReleaseTarget("people.csv"),
    lambda: people().to_csv(),
    lambda: people().to_json(orient="records"),
    lambda: people().to_csv().encode(),
    lambda: people().to_numpy().tolist(),
    lambda: people().to_dict(),
    lambda: people().to_dict("records"),
    lambda: people().to_numpy(),
    lambda: people()["name"],
    lambda: people()["number"],
    lambda: pl.Series([NAME]),
    lambda: {"name": [NAME], NOTE: {"deep": [[NAME]]}, NUMBER: 1},
    lambda: {PublicationRecord(KeyError): NAME},
    lambda: [NOTE, [NAME, [NAME]]] * 9,
    lambda: {NOTE} | {f"{NOTE} {row}" for row in range(20)},
    lambda: NAME.encode(),
    lambda: pickle.dumps(people()),
    lambda: memoryview(NAME.encode()),
    lambda: ValueError(NAME),
    lambda: pd.Timestamp("1987-06-05 01:02:03"),
    lambda: NUMBER,
    lambda: float(NUMBER),
    lambda: -NUMBER,
    lambda: 10**400,
    lambda: float("nan"),
    lambda: True,
    lambda: object,
    _rows,
    lambda: _rows,
]
ANYTHING = st.sampled_from(OBJECTS).map(lambda make: make())

# --- entry points
# --------------------------------------------------------------------------------------------------

TRAIN, HOLDOUT = (
    people().drop(columns=["name", "number"]),
    people(seed=1).drop(columns=["name", "number"]),
)
EVALUATE = {
    "train": TRAIN,
    "holdout": HOLDOUT,
    "synthetic": TRAIN.iloc[::-1],
    "reference": None,
    "earlier_releases": (),
    "subject": None,
    "kinds": None,
    "policy": None,
    "metrics": "dcr",
    "generator": None,
    "embedder": False,
    "seed": 0,
    "device": "cpu",
}
TABLE = (
    *("name", "source", "subject", "generator", "policy", "data", "split", "evaluation", "run"),
    *(f"{group.part}.{setting}" for group in GROUPS for setting in group.model_fields),
)
LIMIT = ("statistic", "at_most", "at_least", "bound", "min_subjects", "source", "advice")


def _evaluated(argument: str, value: Any) -> None:
    evaluate(**{**EVALUATE, "progress": lambda _: None, argument: value})


def _defined(argument: str, value: Any) -> None:
    group, _, setting = argument.rpartition(".")
    given = {group: {setting: value}} if group else {argument: value}
    ResolvedTable.of(TableSpec(**{"name": "people", "source": "demo", **given}))


def _in_dagster(argument: str, value: Any) -> None:
    resolve_dagster_table(TableSpec(name="people", source="demo"), **{argument: value})


def _limited(argument: str, value: Any) -> None:
    load_policy({"limits": [{"statistic": "dcr.privacy_score", "at_most": 0.1, argument: value}]})


def _made(argument: str, value: Any) -> None:
    Limit(**{"statistic": "dcr.privacy_score", "at_most": 0.1, argument: value})


def _set(name: str) -> Callable[[str, Any], None]:
    return lambda argument, value: _defined(
        "evaluation.metrics", {"dcr": {}, name: {argument: value}}
    )  # checked, but not run


DOORS: list[tuple[Callable[[str, Any], None], tuple[str, ...]]] = [
    (_evaluated, tuple(EVALUATE)),
    (_defined, TABLE),
    (
        _in_dagster,
        ("assets", "gpu_tags", "partitions_def", "owners", "tags", "group_name", "key_prefix"),
    ),
    (_limited, LIMIT),
    (_made, LIMIT),
    (lambda _, value: Table.read(value), ("",)),
    (lambda _, value: load_policy(value), ("",)),
    (lambda _, value: load_policy(value), ("",)),
    (lambda argument, value: load_policy({argument: value}), ("limits", "name", "extends")),
    (lambda argument, value: evaluate(value, value, value), ("",)),
    (lambda argument, value: _evaluated("policy", {"limits": [value]}), ("",)),
    (_set("dcr"), ("max_targets", "n_permutations", "negligible", NOTE)),
    (_set("fidelity"), ("targets", "rows")),
    (_set("memorization"), ("space", "distance")),
    (_set("vulnerability"), ("distance", "max_targets")),
    (
        lambda argument, value: _defined(
            "generator", {"name": "rvae", "settings": {argument: value}}
        ),
        ("hidden_dims", "epochs"),
    ),
    (
        lambda argument, value: _defined(
            "generator", {"name": "tvae", "settings": {argument: value}}
        ),
        ("loss_factor",),
    ),
    (
        lambda argument, value: _defined("evaluation.embedder", {argument: value}),
        ("preset", "max_epochs"),
    ),
]
CALLS = st.sampled_from(
    [
        (redact_foreign_errors, argument)
        for redact_foreign_errors, arguments in DOORS
        for argument in arguments
    ]
)
VALUES = st.one_of(TABLES, ANYTHING)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        yield from chain(error.__cause__)
        error = error.__context__


def assert_told_nothing(text: str) -> None:
    assert not [cell for cell in CELLS if cell in text], text


def knock(
    call: tuple[Callable[[str, Any], None], str], value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    redact_foreign_errors, argument = call
    caplog.clear()
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        try:
            redact_foreign_errors(argument, value)
        except PrivacyAssetsError as raised:
            for error in chain(raised):
                parts = [
                    str(error),
                    repr(error),
                    *map(str, error.args),
                    *getattr(error, "__notes__", ()),
                ]
                assert_told_nothing(" ".join(parts))
            assert_told_nothing("".join(traceback.format_exception(raised)))
    assert_told_nothing(" ".join(str(one.message) for one in warned) + caplog.text)


FEW = settings(max_examples=60)


@FEW
@given(CALLS, VALUES)
def test_no_message_holds_a_cell(
    caplog: pytest.LogCaptureFixture, call: tuple[Callable[[str, Any], None], str], value: Any
) -> None:
    knock(call, value, caplog)


@pytest.mark.slow
@settings(FEW, max_examples=500)
@given(CALLS, VALUES)
def test_no_message_holds_a_cell_in_many_draws(
    caplog: pytest.LogCaptureFixture, call: tuple[Callable[[str, Any], None], str], value: Any
) -> None:
    knock(call, value, caplog)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_a_table_is_told_with_a_cell(
    caplog: pytest.LogCaptureFixture, library: Callable[[pd.DataFrame], Any], fault: str
) -> None:
    if fault == "turned" and library is not _pandas:
        return
    knock((_evaluated, "train"), library(faulty(fault)), caplog)


@pytest.mark.parametrize("make", OBJECTS)
def test_no_object_is_told_where_a_table_is_wanted(
    caplog: pytest.LogCaptureFixture, make: Callable[[], Any]
) -> None:
    for role in ("train", "holdout", "synthetic", "reference", "earlier_releases"):
        knock((_evaluated, role), make(), caplog)
    with pytest.raises(PrivacyAssetsError):
        evaluate(make(), HOLDOUT, TRAIN)


@pytest.mark.parametrize("redact_foreign_errors", [_made, _limited])
def test_a_limit_takes_no_object(
    caplog: pytest.LogCaptureFixture, redact_foreign_errors: Callable[[str, Any], None]
) -> None:
    for argument in LIMIT:
        knock((redact_foreign_errors, argument), Hostile(ValueError), caplog)
        with pytest.raises(PrivacyAssetsError):
            redact_foreign_errors(argument, Hostile(ValueError))


def test_no_part_of_a_long_text_is_told_as_the_name_of_a_metric(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for text in (people().to_json(orient="records", date_format="iso"), people().to_csv()):
        knock((_evaluated, "metrics"), text, caplog)
