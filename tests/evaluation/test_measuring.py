"""Parts of an evaluation, in their order."""

from __future__ import annotations

import pandas as pd
import pytest

from privacy_assets.errors import InputError
from privacy_assets.evaluation.measuring import embedder_settings, measure, measure_release
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import choose_metrics, load_policy


def inputs_of(release: pd.DataFrame, messages: list[str]) -> EvaluationInputs:
    train = pd.DataFrame({"age": [*range(20, 50)] * 2, "plan": ["gold"] * 30 + ["silver"] * 30})
    train = pd.concat([train, train.iloc[:2]])
    holdout = pd.DataFrame({"age": [*range(50, 80)] * 2, "plan": ["gold", "silver"] * 30})
    return read_inputs(train, holdout, release, progress=messages.append)


RELEASE = pd.DataFrame({"age": range(20, 60), "plan": ["silver", "gold"] * 20})


def test_a_release_is_described_before_it_is_measured() -> None:
    messages: list[str] = []
    inputs = inputs_of(RELEASE, messages)
    measured = measure_release(inputs, {}, load_policy("small"), None)
    assert measured.inputs.release.notes[-2:] == (
        "Train and holdout differ in 'age' (a simple model distinguishes them with AUC 1.00; 0.5:"
        " not at all). Statistics that compare them measure this difference, too.",
        "Equal rows of one table count as the same person.",
    )
    assert messages[-1].startswith("Train has 62 people, fewer than 800")
    assert measured.results == {}
    assert measured.attempt == 1


def test_unknown_categories_stop_an_evaluation() -> None:
    inputs = inputs_of(RELEASE.replace("gold", "bronze"), [])
    with pytest.raises(InputError, match="synthetic, column 'plan'"):
        measure_release(inputs, {}, None, None)


def test_an_attempt_is_counted_after_the_metrics_ran() -> None:
    messages: list[str] = []
    inputs = inputs_of(RELEASE, messages)
    metrics, _ = choose_metrics(["dcr"], None)

    def count_attempt() -> int:
        messages.append("counted")
        return 3

    measured = measure(inputs, metrics, (), is_external=False, count_attempt=count_attempt)
    assert messages[-2:] == ["measuring dcr", "counted"]
    assert measured.attempt == 3


def test_an_embedder_is_trained_only_if_a_metric_wants_it() -> None:
    metrics, policy = choose_metrics(["dcr"], {"extends": "default", "name": "custom"})
    assert embedder_settings(metrics, policy) == {}
    assert embedder_settings(metrics, None) == {}
    assert embedder_settings(metrics, policy, embedder=False) is None
    assert embedder_settings({}, policy) is None
