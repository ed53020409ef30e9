"""Inputs of metrics: values that a change of the context keeps, and stored values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.fidelity import Fidelity
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.stored_inputs import digest_of, load_inputs, save_inputs
from tests.tables import with_tables


def stays(seed: int, rows: int = 400) -> pd.DataFrame:
    """Rows with a relation: no stay ends before it starts."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 50, rows)
    return pd.DataFrame(
        {"start": start, "end": start + rng.integers(0, 30, rows), "cost": rng.normal(size=rows)}
    )


def inputs_of_stays() -> EvaluationInputs:
    return read_inputs(stays(0), stays(1), stays(2))


def test_a_changed_context_keeps_the_derived_values_and_other_tables_do_not() -> None:
    inputs = inputs_of_stays()
    encoded, subjects = inputs.encoded("train"), inputs.all_subjects
    other_seed = inputs.with_context(replace(inputs.context, seed=1))
    noted = inputs.with_facts(notes=("a note",))
    for changed in (other_seed, noted):
        assert changed.encoded("train") is encoded and changed.all_subjects is subjects
    assert (other_seed.seed, inputs.seed, noted.release.notes) == (1, 0, ("a note",))
    assert with_tables(inputs, inputs.tables).encoded("train") is not encoded


@pytest.mark.parametrize("name", ["sead", "tables"])
def test_a_wrong_name_is_an_error(name: str) -> None:
    inputs, wrong = inputs_of_stays(), dict[str, Any]({name: {}})
    with pytest.raises(TypeError, match=name):
        replace(inputs.context, **wrong)
    with pytest.raises(TypeError, match=name):
        inputs.with_facts(**wrong)


def test_embeddings_are_those_of_the_embedder() -> None:
    def embedder(value: float) -> Any:
        return SimpleNamespace(embed=lambda table, device: np.full((len(table), 2), value))

    inputs = inputs_of_stays()
    for value in (1.0, 2.0):
        embedded = inputs.with_context(replace(inputs.context, embedder=embedder(value)))
        assert (embedded.embedded("train") == value).all()
        assert embedded.embedded("train") is embedded.embedded("train")
        assert (embedded.with_copy(100).embedded("synthetic") == value).all()


def test_the_digest_is_that_of_what_is_stored() -> None:
    inputs = inputs_of_stays()
    signed = inputs.with_context(replace(inputs.context, envelope=b"signed", seed=1))
    assert digest_of(signed) == digest_of(inputs)
    assert digest_of(inputs.with_facts(notes=("a note",))) != digest_of(inputs)


def test_stored_inputs_give_the_same_result(tmp_path: Path) -> None:
    inputs = inputs_of_stays()
    save_inputs(inputs, tmp_path)
    stored = load_inputs(tmp_path)
    metric = Fidelity(n_bootstraps=20)
    results = [metric.measure(one).to_json() for one in (inputs, stored)]
    assert results[0] == results[1]
    assert [row["relation"] for row in results[1]["tables"]["relations"]] == ["start <= end"]
