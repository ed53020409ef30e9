"""Tables in any form become metric inputs; bad input gets one clear error and no private value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation.evaluate import evaluate
from privacy_assets.evaluation.measuring import fit_embedder
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.policies import choose_metrics, default_policy
from privacy_assets.policy import Limit, Policy
from privacy_assets.report.report import Report
from privacy_assets.tables.declared import Declared

SECRET = "Zebulon-77123"


def people(start: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(start)
    return pd.DataFrame(
        {
            "person": np.arange(start, start + rows) // 2,
            "age": rng.integers(18, 90, rows),
            "dose": rng.normal(size=rows),
            "plan": rng.choice(["a", "b", "c"], rows),
        }
    )


@pytest.fixture
def tables() -> dict[str, pd.DataFrame]:
    return {
        "train": people(0, 60),
        "holdout": people(1000, 30),
        "reference": people(2000, 30),
        "synthetic": people(3000, 50).drop(columns="person"),
    }


def test_frames_and_files_give_the_same_inputs(
    tables: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    direct = read_inputs(declared=Declared(subject="person"), **tables)
    for suffix in ("parquet", "csv"):
        paths = {}
        for role, frame in tables.items():
            paths[role] = tmp_path / f"{role}.{suffix}"
            frame.to_parquet(paths[role]) if suffix == "parquet" else frame.to_csv(
                paths[role], index=False
            )
        assert (
            read_inputs(declared=Declared(subject="person"), **paths).fingerprints
            == direct.fingerprints
        )
    assert set(direct.train.columns) == {"age", "dose", "plan"}
    assert len(np.unique(direct.subject_codes("train", "holdout"))) == 30 + 15


def test_without_a_subject_column_each_row_is_a_person_and_equal_rows_of_one_side_are_one(
    tables: dict[str, pd.DataFrame],
) -> None:
    bare = {role: frame.drop(columns="person", errors="ignore") for role, frame in tables.items()}
    assert len(np.unique(read_inputs(**bare).subject_codes("train", "holdout"))) == 90
    bare["train"] = pd.concat([bare["train"], bare["train"].iloc[[0, 0, 1]]], ignore_index=True)
    codes = read_inputs(**bare).subject_codes("train", "holdout")
    assert len(codes) == 93
    assert len(np.unique(codes)) == 90
    assert codes[0] == codes[60] == codes[61]
    bare["holdout"] = pd.concat([bare["holdout"], bare["train"].iloc[[0]]], ignore_index=True)
    assert len(np.unique(read_inputs(**bare).subject_codes("train", "holdout"))) == 94


def put(
    column: str, row: int, value: object, kind: str = "object"
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A function that puts one value into a table."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: kind})
        frame.loc[row, column] = value
        return frame

    return change


BROKEN: list[tuple[str, Callable[[pd.DataFrame], pd.DataFrame], list[str]]] = [
    ("synthetic", lambda frame: frame.drop(columns="dose"), ["'dose'", "missing"]),
    ("holdout", lambda frame: frame.assign(extra=1), ["'extra'"]),
    ("synthetic", put("age", 7, SECRET), ["'age'", "row 7"]),
    ("synthetic", put("dose", 7, np.inf, "float"), ["'dose'", "row 7", "infinite"]),
    ("holdout", lambda frame: frame.iloc[:0], ["0 rows"]),
    ("train", lambda frame: frame.assign(plan=[[SECRET]] * 60), ["'plan'", "list"]),
    ("synthetic", lambda frame: pd.concat([frame, frame[["age"]]], axis=1), ["column 3", "twice"]),
    ("holdout", lambda frame: frame.drop(columns="person"), ["'person'", "does not exist"]),
    ("holdout", put("person", 3, pd.NA, "Int64"), ["'person'", "row 3"]),
    ("synthetic", lambda frame: frame.assign(person=1), ["'person'"]),
    ("holdout", put("person", 0, 0), ["1 subjects", "train"]),
    (
        "holdout",
        lambda frame: put("person", 0, "0")(frame.astype({"person": str})),
        ["1 subjects", "train"],
    ),
    ("reference", put("person", 0, 0), ["1 subjects", "train"]),
    (
        "holdout",
        lambda _: people(0, 60).iloc[:30].assign(person=range(5000, 5030)),
        ["holdout: far more people than expected by chance share a row"],
    ),
]


@pytest.mark.parametrize(
    ("role", "change", "words"), BROKEN, ids=[f"{role} {words}" for role, _, words in BROKEN]
)
def test_bad_tables_get_one_clear_error(
    tables: dict[str, pd.DataFrame],
    role: str,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    words: list[str],
) -> None:
    with pytest.raises(InputError) as caught:
        read_inputs(declared=Declared(subject="person"), **{**tables, role: change(tables[role])})
    text = str(caught.value)
    assert all(word in text for word in [role, "Fix:", *words]), text
    assert SECRET not in text


def test_a_column_without_any_value_is_blocked(tables: dict[str, pd.DataFrame]) -> None:
    empty = {role: frame.assign(plan=None) for role, frame in tables.items() if role != "synthetic"}
    with pytest.raises(InputError, match="'plan'.*missing"):
        read_inputs(declared=Declared(subject="person"), **{**tables, **empty})


def test_a_holdout_made_of_train_is_blocked_without_subjects(
    tables: dict[str, pd.DataFrame],
) -> None:
    bare = {role: frame.drop(columns="person", errors="ignore") for role, frame in tables.items()}
    for holdout in (
        bare["train"],
        pd.concat([bare["holdout"], bare["train"].iloc[:25]], ignore_index=True),
    ):
        with pytest.raises(InputError, match="share a row with a person in train") as caught:
            read_inputs(**{**bare, "holdout": holdout})
        assert not any(character.isdigit() for character in str(caught.value)), (
            "a count of private rows"
        )


def test_rows_that_stand_twice_by_chance_or_in_one_household_are_no_overlap() -> None:
    rng = np.random.default_rng(0)
    # 2.5 people a row on average
    rows = pd.DataFrame(rng.integers(0, 40, (4000, 2)), columns=["a", "b"])
    read_inputs(rows[:2000], rows[2000:3000], rows[3000:])
    # all rows of one train person equal those of one holdout person
    alike = people(0, 60).assign(person=1)
    train = pd.concat([alike, people(100, 60)], ignore_index=True)
    holdout = pd.concat([alike.assign(person=2000), people(5000, 60)], ignore_index=True)
    read_inputs(
        train, holdout, people(0, 50).drop(columns="person"), declared=Declared(subject="person")
    )


def test_metrics_and_policy_are_chosen_from_each_other() -> None:
    policy = Policy((Limit("dcr.privacy_score", 0.1),))
    assert list(choose_metrics(None, policy)[0]) == ["dcr"]
    metrics, chosen = choose_metrics("dcr, singling_out", None)
    assert list(metrics) == ["dcr", "singling_out"]
    assert set(chosen.metrics) == {"dcr", "singling_out"}
    assert (chosen.name, chosen.part_of, chosen.title) == (
        "custom",
        "default",
        "custom, a part of default",
    )
    assert choose_metrics(None, None)[1] == default_policy()
    with pytest.raises(ConfigError, match="Did you mean 'singling_out'"):
        choose_metrics(["singlin_out"], None)
    with pytest.raises(ConfigError, match="no metric"):
        choose_metrics("", None)
    with pytest.raises(ConfigError, match="has no limits: every table would pass"):
        choose_metrics("fidelity", None)
    few = replace(default_policy(), name="few", settings={"linkability": {"n_splits": 3}})
    assert choose_metrics(None, few)[0]["linkability"].n_splits == 3
    for wrong in (5, "n_splits", ["n_splits"]):
        with pytest.raises(ConfigError, match="metric 'dcr': settings must be a mapping"):
            choose_metrics({"dcr": wrong}, None)


PAPER = {"preset": "paper", "width": 8, "max_epochs": 3}


@pytest.mark.slow
def test_the_report_contains_the_training_of_the_embedder(
    tables: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    """The settings come from the policy, and the figures from the kept epoch."""
    rows = [tables.pop(role) for role in ("train", "holdout", "synthetic")]
    asked: dict[str, Any] = {"subject": "person", "metrics": ["dcr"], "device": "cpu"}
    policy = {"extends": "default", "embedder": PAPER}
    told: list[str] = []
    report = evaluate(*rows, policy=policy, progress=told.append, **asked)
    inputs = read_inputs(*rows, declared=Declared(subject="person"))
    embedder = fit_embedder(inputs.real, PAPER, seed=inputs.seed)
    kept = min(embedder.history, key=lambda epoch: epoch.validation_loss or math.nan)
    found = report.to_json()["embedder"]
    assert found["settings"]["preset"] == "paper" and found["settings"]["max_steps"] is None
    assert (found["settings"]["width"], found["settings"]["dims"]) == (8, 10)
    assert (found["epochs"], found["kept_epoch"]) == (3, kept.epoch)
    assert found["validation_loss"] == pytest.approx(kept.validation_loss, abs=1e-4)
    assert found["validation_accuracy"] == pytest.approx(kept.validation_accuracy, abs=1e-4)
    assert any(
        line.startswith("the embedder was trained for 3 epochs: validation loss") for line in told
    )
    assert report.estimate("dcr.privacy_score_embedded").measurable
    assert (
        Report.from_json(report.to_json()).embedder == found
        and "validation_accuracy" in report.to_html()
    )
    plain = evaluate(*rows, embedder=False, progress=told.append, **asked)
    assert plain.to_json()["embedder"] is None


def test_settings_of_the_embedder_outside_of_the_policy_are_an_error(
    tables: dict[str, pd.DataFrame],
) -> None:
    rows = [tables.pop(role) for role in ("train", "holdout", "synthetic")]
    with pytest.raises(ConfigError, match=r"extends: default\nembedder: \{preset: \.\.\.\}"):
        evaluate(*rows, embedder={"preset": "paper"}, metrics=["dcr"])  # type: ignore[arg-type]
