"""Tables in any form become metric inputs; bad input gets one clear error and no private value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation import choose_metrics, prepare_inputs, run_metrics
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit

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


def test_frames_and_files_give_the_same_inputs(tables: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    direct = prepare_inputs(**tables, subject="person")
    for suffix in ("parquet", "csv"):
        paths = {}
        for role, frame in tables.items():
            paths[role] = tmp_path / f"{role}.{suffix}"
            frame.to_parquet(paths[role]) if suffix == "parquet" else frame.to_csv(paths[role], index=False)
        assert prepare_inputs(**paths, subject="person").fingerprints == direct.fingerprints
    assert set(direct.train.columns) == {"age", "dose", "plan"}
    assert len(np.unique(direct.subject_codes("train", "holdout"))) == 30 + 15


def test_one_person_a_row_without_a_subject_column(tables: dict[str, pd.DataFrame]) -> None:
    inputs = prepare_inputs(**{k: v.drop(columns="person", errors="ignore") for k, v in tables.items()})
    assert len(np.unique(inputs.subject_codes("train", "holdout"))) == 90


def test_equal_rows_that_the_split_kept_together_are_one_witness(tables: dict[str, pd.DataFrame]) -> None:
    bare = {role: frame.drop(columns="person", errors="ignore") for role, frame in tables.items()}
    bare["train"] = pd.concat([bare["train"], bare["train"].iloc[[0, 0, 1]]], ignore_index=True)
    codes = prepare_inputs(**bare).subject_codes("train", "holdout")
    assert len(codes) == 93
    assert len(np.unique(codes)) == 90
    assert codes[0] == codes[60] == codes[61]
    bare["holdout"] = pd.concat([bare["holdout"], bare["train"].iloc[[0]]], ignore_index=True)
    assert len(np.unique(prepare_inputs(**bare).subject_codes("train", "holdout"))) == 94


def broken(tables: dict[str, pd.DataFrame], how: str) -> dict[str, pd.DataFrame]:
    out = {role: frame.copy() for role, frame in tables.items()}
    if how == "column gone":
        out["synthetic"] = out["synthetic"].drop(columns="dose")
    elif how == "column more":
        out["holdout"]["extra"] = 1
    elif how == "text in numbers":
        out["synthetic"]["age"] = out["synthetic"]["age"].astype(object)
        out["synthetic"].loc[7, "age"] = SECRET
    elif how == "fraction":
        out["synthetic"]["age"] = out["synthetic"]["age"].astype(float)
        out["synthetic"].loc[7, "age"] = 30.5
    elif how == "infinite":
        out["synthetic"].loc[7, "dose"] = np.inf
    elif how == "empty":
        out["holdout"] = out["holdout"].iloc[:0]
    elif how == "all missing":
        for role in ("train", "holdout", "reference"):
            out[role]["plan"] = None
    elif how == "twice":
        out["synthetic"] = pd.concat([out["synthetic"], out["synthetic"][["age"]]], axis=1)
    elif how == "no subject":
        out["holdout"] = out["holdout"].drop(columns="person")
    elif how == "subject missing":
        out["holdout"]["person"] = out["holdout"]["person"].astype("Int64")
        out["holdout"].loc[3, "person"] = pd.NA
    elif how == "subject in synthetic":
        out["synthetic"]["person"] = 1
    elif how == "shared subject":
        out["holdout"].loc[0, "person"] = 0
    elif how == "shared reference":
        out["reference"].loc[0, "person"] = 0
    elif how == "shared as text":
        out["holdout"]["person"] = ["0", *out["holdout"]["person"].astype(str)[1:]]
    elif how == "holdout of train":
        out["holdout"] = out["train"].iloc[:30].assign(person=np.arange(5000, 5030))
    elif how == "text in train":
        out["train"]["age"] = out["train"]["age"].astype(object)
        out["train"].loc[7, "age"] = SECRET
    elif how == "list":
        out["train"]["plan"] = [[SECRET]] * 60
    return out


@pytest.mark.parametrize(
    ("how", "words"),
    [("column gone", ["synthetic", "'dose'", "missing"]), ("column more", ["holdout", "'extra'"]),
     ("text in numbers", ["synthetic", "'age'", "row 7"]), ("fraction", ["synthetic", "'age'", "row 7", "whole"]),
     ("infinite", ["synthetic", "'dose'", "row 7", "infinite"]), ("empty", ["holdout", "0 rows"]),
     ("all missing", ["'plan'", "missing"]), ("twice", ["synthetic", "column 3", "twice"]),
     ("no subject", ["holdout", "'person'", "missing"]), ("subject missing", ["holdout", "'person'", "row 3"]),
     ("subject in synthetic", ["synthetic", "'person'"]), ("shared subject", ["1 subjects", "train", "holdout"]),
     ("shared reference", ["1 subjects", "train", "reference"]), ("shared as text", ["1 subjects", "holdout"]),
     ("holdout of train", ["holdout", "30 rows stand in train"]), ("list", ["'plan'", "list"])],
)  # fmt: skip
def test_bad_tables_get_one_clear_error(tables: dict[str, pd.DataFrame], how: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        prepare_inputs(**broken(tables, how), subject="person")
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert SECRET not in text
    assert "Fix:" in text


def test_a_holdout_made_of_train_is_refused_without_subjects(tables: dict[str, pd.DataFrame]) -> None:
    bare = {role: frame.drop(columns="person", errors="ignore") for role, frame in tables.items()}
    for holdout in (bare["train"], pd.concat([bare["holdout"], bare["train"].iloc[:25]], ignore_index=True)):
        with pytest.raises(InputError, match="rows stand in train too"):
            prepare_inputs(**{**bare, "holdout": holdout})


def test_rows_that_stand_twice_by_chance_or_in_one_household_are_no_overlap() -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.integers(0, 40, (4000, 2)), columns=["a", "b"])  # 2.5 people a row on average
    prepare_inputs(rows[:2000], rows[2000:3000], rows[3000:])
    alike = people(0, 60).assign(person=1)  # all rows of one person of train are those of one person of holdout
    train = pd.concat([alike, people(100, 60)], ignore_index=True)
    holdout = pd.concat([alike.assign(person=2000), people(5000, 60)], ignore_index=True)
    prepare_inputs(train, holdout, people(0, 50).drop(columns="person"), subject="person")


def test_metrics_and_policy_are_chosen_from_each_other() -> None:
    policy = Policy((Limit("dcr.privacy_score", 0.1),))
    assert list(choose_metrics(None, policy)[0]) == ["dcr"]
    metrics, chosen = choose_metrics("dcr, singling_out", None)
    assert list(metrics) == ["dcr", "singling_out"]
    assert set(chosen.metrics) == {"dcr", "singling_out"}
    assert chosen.name == "default, of dcr and singling_out only"
    assert choose_metrics(None, None)[1] == Policy.default()
    with pytest.raises(ConfigError, match="Did you mean 'singling_out'"):
        choose_metrics(["singlin_out"], None)
    with pytest.raises(ConfigError, match="no metric"):
        choose_metrics("", None)
    assert choose_metrics({"dcr": None, "linkability": {"halves": 3}}, None)[0]["linkability"].halves == 3
    for wrong in (5, "halves", ["halves"]):
        with pytest.raises(ConfigError, match="metric 'dcr': settings must be a mapping"):
            choose_metrics({"dcr": wrong}, None)


def test_a_small_release_is_measured_and_not_passed(tables: dict[str, pd.DataFrame]) -> None:
    metrics, policy = choose_metrics(None, None)
    results = run_metrics(prepare_inputs(**tables, subject="person"), metrics)
    assert policy.judge(results).verdict != "pass"


def test_the_same_seed_gives_the_same_results(tables: dict[str, pd.DataFrame]) -> None:
    metrics, _ = choose_metrics(None, None)
    runs = [run_metrics(prepare_inputs(**tables, subject="person", seed=0), metrics) for _ in range(2)]
    for name in metrics:
        first, second = (run[name].to_json() for run in runs)
        assert {**first, "seconds": 0} == {**second, "seconds": 0}
