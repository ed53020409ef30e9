"""A metric of another package cannot change the results of other metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from distributions import METRIC, Installer

from privacy_assets import evaluate
from privacy_assets.errors import StepError
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import Limit, Policy

RESULT = "        return self.result(inputs, [self.statistic"
HIDDEN = "Its message is hidden, because it may contain private values."
CHANGES = """
        for table in inputs.tables.values():
            for column in table.columns.values():
                column.cells[:] = column.cells[::-1].copy()
            inputs.encoded("synthetic").numeric[:] = 0
        for ids in inputs.row_ids.values():
            ids[:] = 0
"""


def people(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"age": rng.integers(20, 80, 300), "size": rng.normal(170, 9, 300).round(1)}
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    monkeypatch.setattr(METRICS, "_loaded", {})
    return Installer(tmp_path, monkeypatch)


def statistics(metrics: list[str]) -> dict[str, float]:
    limits = (Limit("third.share", at_most=0.7, min_subjects=1),) if "third" in metrics else None
    policy = Policy(limits=limits) if limits else None
    tables = {"train": people(1), "holdout": people(2), "synthetic": people(1)[::-1]}
    chosen = {"metrics": metrics, "policy": policy, "subject": {"each_row": True}}
    report = evaluate(**tables, **chosen, embedder=False)
    return {
        f"{name}.{estimate.name}": estimate.value
        for name, result in report.results.items()
        if name != "third"
        for estimate in result.estimates
    }


def test_it_cannot_change_what_other_metrics_measure(install: Installer) -> None:
    install(code=METRIC.replace(RESULT, f"{CHANGES}{RESULT}"))
    expected = statistics(["copies", "linkability"])
    assert expected["copies.copied_share"] > 0.9
    found = statistics(["third", "copies", "linkability"])
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("raise ValueError(str(inputs.train.frame()))", "raised ValueError in line 14 of"),
        ("raise SystemExit(0)", "raised SystemExit in line 14 of"),
        ("raise SystemExit(str(inputs.train.frame()))", "raised SystemExit in line 14 of"),
        ("return None", "returned NoneType. Fix: return what its method"),
    ],
)
def test_an_exception_an_end_of_the_process_and_no_result_stop_the_evaluation(
    install: Installer, line: str, event: str
) -> None:
    install(code=METRIC.replace(RESULT, f"        {line}\n{RESULT}"))
    with pytest.raises(StepError) as caught:
        statistics(["third"])
    text = str(caught.value)
    assert text.startswith(f"metric third of acme 1.5 {event}")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    if "raised" in event:
        assert HIDDEN in text


def test_bounds_that_need_many_draws_hold_on_the_copy_of_train(install: Installer) -> None:
    bounded = METRIC.replace(
        '    name = "third"',
        '    n_permutations: int = Field(default=999, ge=500)\n    name = "third"',
    )
    install(code=f"from pydantic import Field\n{bounded}")
    assert METRICS["third"]().on_smaller_budget().settings() == {"n_permutations": 999}
    assert statistics(["third"]) == {}
