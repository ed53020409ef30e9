"""A holdout that differs from train for its own reasons is no copy, and does not hide copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets import Report, evaluate
from privacy_assets.evaluation.exchangeability import _auc, exchangeability
from privacy_assets.evaluation.reading import read_inputs
from tests.helpers.marks import weekly_except


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 12, rows).round()
    return pd.DataFrame(
        {
            "age": age,
            "income": (age * 800 + rng.normal(0, 9_000, rows)).round(-2),
            "sex": rng.choice(["F", "M"], rows),
            "visits": rng.poisson(4, rows),
            "weight": rng.normal(75, 12, rows).round(1),
        }
    )


TRAIN, HOLDOUT, FRESH = people(1500, 1), people(1200, 2), people(1200, 3)
SHIFTS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "lower case": lambda frame: frame.assign(sex=frame["sex"].str.lower()),
    "cents": lambda frame: frame.assign(income=frame["income"] * 100),
    "later years": lambda frame: frame.assign(age=frame["age"] + 9, income=frame["income"] + 9_000),
    "an empty column": lambda frame: frame.assign(weight=np.nan),
}


def judged(holdout: pd.DataFrame, synthetic: pd.DataFrame, **more: object) -> Report:
    tables = TRAIN, holdout, synthetic
    return evaluate(
        *tables, metrics=["dcr", "copies", "membership_inference"], embedder=False, **more
    )  # type: ignore[arg-type]


def statuses(report: Report) -> dict[str, str]:
    return {outcome.limit.key: outcome.status for outcome in report.policy_verdict.outcomes}


SOME = weekly_except(SHIFTS, "cents", "later years")


@pytest.mark.slow
@pytest.mark.parametrize("shift", SOME)
def test_fresh_rows_never_fail_next_to_a_shifted_holdout(shift: str) -> None:
    report = judged(SHIFTS[shift](HOLDOUT), FRESH)
    assert report.verdict != "fail", statuses(report)
    (note,) = [note for note in report.notes if note.startswith("Train and holdout differ in ")]
    assert "AUC" in note
    reasons = [
        outcome.reason
        for outcome in report.policy_verdict.outcomes
        if outcome.status == "undecided"
    ]
    for reason in reasons:
        assert "copies" not in reason
    column = {
        "lower case": "sex",
        "cents": "income",
        "later years": "age",
        "an empty column": "weight",
    }[shift]
    shifted = [reason for reason in reasons if "train and holdout differ in" in reason]
    assert all(f"'{column}'" in reason for reason in shifted)
    if shift in ("lower case", "cents"):
        assert shifted


@pytest.mark.slow
@pytest.mark.parametrize("shift", SOME)
@pytest.mark.parametrize("share", weekly_except((1.0, 0.2), 0.2))
def test_copies_fail_next_to_a_shifted_holdout(shift: str, share: float) -> None:
    copied = int(share * len(FRESH))
    made = pd.concat([TRAIN[:copied], FRESH[copied:]], ignore_index=True)
    assert judged(SHIFTS[shift](HOLDOUT), made).verdict == "fail"


@pytest.mark.slow
def test_a_table_that_is_not_shifted_is_judged_as_before() -> None:
    report = judged(HOLDOUT, FRESH)
    assert report.verdict == "pass"
    assert not [note for note in report.notes if "holdout differ" in note]


def test_the_auc_is_a_half_for_equal_and_one_for_separate_tables() -> None:
    assert _auc(read_inputs(TRAIN, HOLDOUT, FRESH)) == pytest.approx(0.5, abs=0.03)
    apart = read_inputs(TRAIN, HOLDOUT.assign(age=HOLDOUT["age"] + 500), FRESH)
    assert _auc(apart) > 0.95 and exchangeability(apart).p_value <= 0.001


@pytest.mark.slow
def test_a_pipeline_of_brought_tables_asks_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import yaml

    from privacy_assets.cli.main import main

    shifted = SHIFTS["cents"](HOLDOUT)
    for role, frame in {"train": TRAIN, "holdout": shifted, "synthetic": FRESH}.items():
        frame.to_parquet(tmp_path / f"{role}.parquet")
    data = {role: f"{role}.parquet" for role in ("train", "holdout", "synthetic")}
    limit = {"statistic": "dcr.privacy_score", "at_most": 0.12}
    settings = {
        "name": "people",
        "data": data,
        "subject": {"each_row": True},
        "evaluation": {"embedder": False},
        "policy": {"name": "distance", "limits": [{**limit, "min_subjects": 100}]},
    }
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(settings))
    main(["run", str(tmp_path / "people.yaml"), "--home", str(tmp_path / "home")])
    told = "".join(capsys.readouterr())
    assert "differ in 'income'" in told
