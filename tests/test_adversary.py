"""The adaptive adversary: knows the filter, retries, knows all past releases, refits and
averages.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.generators.filters import MemorizationFilter, SimilarityFilter
from privacy_assets.metrics.cumulative_disclosure import CumulativeDisclosure
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import Limit, judge_limit
from privacy_assets.stats.estimates import Estimate, MetricResult
from privacy_assets.tables.encoding import TabularEncoder
from privacy_assets.tables.inference import infer_schema
from tests.helpers.marks import weekly_except
from tests.tables import as_table, as_tables

LOOKS = default_policy(["dcr", "membership_inference"])


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    return pd.DataFrame(
        {
            "age": age,
            "income": (rng.lognormal(9, 0.6, rows) + 100 * age).round(2),
            "score": rng.normal(0, 1, rows).round(4),
            "plan": rng.choice(
                list("abcdefgh"), rows, p=[0.4, 0.3, 0.1, 0.08, 0.06, 0.03, 0.02, 0.01]
            ),
            "region": rng.choice(["north", "east", "south", "west"], rows),
        }
    )


TRAIN, HOLDOUT, FRESH = people(2400, 1), people(800, 2), people(2400, 3)
SCHEMA = infer_schema(pd.concat([TRAIN, HOLDOUT]))


def verdict(synthetic: pd.DataFrame) -> str:
    inputs = read_inputs(TRAIN, HOLDOUT, synthetic)
    return LOOKS.judge(
        run_metrics(inputs, {name: build_metric(name) for name in LOOKS.metrics}, LOOKS.limits)
    ).status


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", weekly_except((SimilarityFilter, MemorizationFilter), SimilarityFilter)
)
def test_copies_moved_just_out_of_the_filter_are_rejected(kind: type) -> None:
    """The adversary knows the radius: every copy is moved by one and a half times it, and passes
    the filter.
    """
    fitted = kind().fit(as_tables([TRAIN, HOLDOUT], SCHEMA), SCHEMA)
    evading = TRAIN.assign(
        score=(TRAIN["score"] + 1.5 * fitted.radius * TRAIN["score"].std()).round(4)
    )
    hidden = evading[~fitted.exposed(as_table(evading, SCHEMA))]
    assert len(hidden) > 600 and fitted.radius > 0
    assert not pd.concat([hidden, TRAIN]).duplicated().any()
    assert verdict(hidden.reset_index(drop=True)) == "fail"
    # a fifth of the table
    few = pd.concat([hidden.iloc[:480], FRESH.iloc[480:]], ignore_index=True)
    assert verdict(few) == "fail"
    assert verdict(FRESH) == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("policy_counts", [True, False])
def test_whoever_tries_again_and_again_seldom_passes_a_leak(policy_counts: bool) -> None:
    """500 adversaries whose true leak is just above the limit, 50 tries each: a conservative bound
    is within it only by luck.
    """
    rng, limit, error = np.random.default_rng(0), Limit("m.f", at_most=0.1), 0.02
    values = rng.normal(0.1, error, (500, 50))
    passed = 0
    for tries in values:
        for number, value in enumerate(tries, start=1):
            half = 1.959964 * error
            estimate = Estimate("f", value, value - half, value + half, 1000, 1000)
            attempt = number if policy_counts else 1
            if judge_limit(limit, MetricResult("m", (estimate,)), attempt).passed:
                passed += 1
                break
    share = passed / len(values)
    assert share < 0.035 if policy_counts else share > 0.4


@pytest.mark.slow
def test_refitting_and_averaging_add_up() -> None:
    """Trees with small leaves, fitted six times.

    All six tables together reveal members better than one, and the union shows it.
    """
    generator = build_generator(
        "synthpop", {"min_samples_leaf": 12, "shrinkage": 0, "smoothing": False}
    )
    train = as_table(TRAIN, SCHEMA)
    made = [generator.fit(train, seed=seed).sample(len(train), seed=seed) for seed in range(6)]
    tables = [table.frame() for table in made]
    found = []
    for earlier in (tables[1:2], tables[1:]):
        inputs = read_inputs(TRAIN, HOLDOUT, tables[0], earlier_releases=earlier)
        found.append(CumulativeDisclosure().measure(inputs).estimates)
    two, six = ({estimate.name: estimate for estimate in estimates} for estimates in found)
    assert six["excess"].value > two["excess"].value
    assert six["excess"].low > 0.025
    results = {"cumulative_disclosure": MetricResult("cumulative_disclosure", found[1])}
    assert default_policy(["cumulative_disclosure"]).judge(results).status == "fail"

    # Independently of the metric: the adversary averages the closeness of all tables to a row, and
    # gains over one table.
    encoder = TabularEncoder.fit([train], SCHEMA, later=made)
    rows = [encoder.transform(table).dense for table in (train, as_table(HOLDOUT, SCHEMA), *made)]
    sides, released = rows[:2], rows[2:]
    scores = [np.mean([_nearest(side, table) for table in released], axis=0) for side in sides]
    alone = [_nearest(side, released[0]) for side in sides]
    assert _auc(*scores) > _auc(*alone) > 0.5


def _nearest(rows: np.ndarray, table: np.ndarray) -> np.ndarray:
    squared = (rows**2).sum(1)[:, None] + (table**2).sum(1)[None] - 2 * rows @ table.T
    return np.sqrt(np.maximum(squared, 0)).min(axis=1)


def _auc(members: np.ndarray, others: np.ndarray) -> float:
    """Probability that a member is nearer than a non-member."""
    return float(
        (members[:, None] < others[None]).mean() + (members[:, None] == others[None]).mean() / 2
    )
