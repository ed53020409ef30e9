"""The policies in examples/policies reject a copy of train, and accept rows of other people."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml

from privacy_assets import evaluate
from privacy_assets.metrics.policies import load_policy
from privacy_assets.report.report import Report
from tests.metrics.surveys import parts

FOLDER = Path(__file__).parents[2] / "examples" / "policies"
PAPERS = FOLDER / "papers.yaml"


@pytest.fixture(scope="module")
def tables() -> list[pd.DataFrame]:
    """Train, holdout and fresh rows of one population."""
    return parts((500, 400, 500), 1)


def report(tables: list[pd.DataFrame], synthetic: pd.DataFrame) -> Report:
    quick = {
        name: {"n_permutations": 199}
        for name in ("dcr", "singling_out", "linkability", "attribute_inference")
    }
    quick |= {name: {"n_permutations": 199} for name in ("membership_inference", "memorization")}
    policy = {**yaml.safe_load(PAPERS.read_text()), "metrics": quick, "embedder": {"max_steps": 5}}
    return evaluate(*tables[:2], synthetic, policy=policy, device="cpu")


@pytest.mark.slow
def test_a_copy_of_train_breaks_every_limit_of_the_papers(tables: list[pd.DataFrame]) -> None:
    found = report(tables, tables[0])
    assert found.verdict == "fail"
    assert [
        outcome.limit.key for outcome in found.policy_verdict.outcomes if outcome.status != "fail"
    ] == []


@pytest.mark.slow
def test_rows_of_other_people_pass_the_limits_of_the_papers(tables: list[pd.DataFrame]) -> None:
    found = report(tables, tables[2])
    assert [
        (outcome.limit.key, outcome.status)
        for outcome in found.policy_verdict.outcomes
        if outcome.status != "pass"
    ] == []
    assert found.verdict == "pass"


def test_every_limit_states_its_source() -> None:
    assert all(limit.source for limit in load_policy(PAPERS).limits)
