"""Table settings cannot weaken a policy under its name, and there is no other way to run fewer
metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from privacy_assets import Policy, TableSpec, build_privacy_checks, evaluate
from privacy_assets.distances.embedder_settings import EmbedderSettings
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators.registry import as_generator
from privacy_assets.infra.settings import settings_of
from privacy_assets.metrics.policies import (
    choose_metrics,
    default_policy,
    load_policy,
    policy_digest,
    small_policy,
)
from privacy_assets.metrics.registry import build_metric, default_metrics
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.policy import Limit
from tests.metrics.given_tables import cut
from tests.metrics.test_every_metric import SHORT
from tests.shipped import METRICS

SETTINGS = [(name, setting) for name, metric in METRICS.items() for setting in settings_of(metric)]
FLAGGED = {(name, setting.name) for name, setting in SETTINGS if setting.by_table}
# For each flagged setting: values that try to hide a leak.
ADVERSARIAL: dict[tuple[str, str], list[Any]] = {
    ("membership_inference", "subgroups"): [["sex"], ["sex", "race"], ["workclass"]],
    ("shadow_membership", "generator"): [
        "privbayes",
        {"name": "synthpop", "settings": {"min_samples_leaf": 500}},
    ],
}
EXTERNAL = {"train": "t.csv", "holdout": "h.csv", "reference": "r.csv", "synthetic": "s.csv"}
ASSETS: dict[str, Any] = {"train": "t", "holdout": "h", "synthetic": "s"}
ENTRY_POINTS: dict[str, Callable[..., object]] = {
    "table": lambda **asked: plan(**asked),
    "checks": lambda policy=None, **asked: build_privacy_checks(**ASSETS, policy=policy, **asked),
    "evaluate": lambda **asked: evaluate("t.csv", "h.csv", "s.csv", **asked),
}


def plan(
    policy: Any = None, data: Any = None, generator: Any = "synthpop", **attacks: Any
) -> ResolvedTable:
    """The resolved settings of a table."""
    spec = TableSpec(
        name="t",
        data=data or {"source": "demo"},
        policy=policy,
        evaluation=attacks,
        generator=generator,
    )
    return ResolvedTable.of(spec)


@pytest.mark.parametrize(
    ("name", "setting"), SETTINGS, ids=lambda value: getattr(value, "name", value)
)
def test_a_table_sets_flagged_settings_only(name: str, setting: Any) -> None:
    value = {"subgroups": ["smoker"], "generator": "baynet"}.get(setting.name, setting.default)
    given = {name: {setting.name: value}}
    generator = as_generator("baynet")
    if setting.by_table:
        metrics, policy = choose_metrics(
            {**dict.fromkeys(default_policy().metrics), **given}, None, generator
        )
        assert (
            policy.name == "default"
            and not policy.settings
            and getattr(metrics[name], setting.name)
        )
        return
    for policy in (None, small_policy(), Policy((Limit("dcr.privacy_score", 0.1),), name="own")):
        with pytest.raises(
            ConfigError, match=rf"{name}\.{setting.name} is a setting of the policy, not of a table"
        ):
            choose_metrics(given, policy, generator)


@pytest.mark.parametrize("entry", ENTRY_POINTS)
@pytest.mark.parametrize(
    "weak",
    [
        {"metrics": {"dcr": {"alpha": 1e-6}, "singling_out": {"n_queries": 1}}},
        {"metrics": {"linkability": {"column_sets": [["age"], ["plan"]]}}},
        {"metrics": {"copies": {"max_targets": 1000}}, "policy": "small"},
        {"metrics": {"dcr": {"alpha": 0.5}}, "policy": {"name": "own", "extends": "default"}},
        {"embedder": False, "policy": "default"},
        {"embedder": False, "policy": "small"},
        {"embedder": False, "policy": {"name": "own", "extends": "default"}},
    ],
    ids=str,
)
def test_the_error_shows_the_policy_to_write(entry: str, weak: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"of the policy, not of a table|depends on the embedder"
    ) as caught:
        ENTRY_POINTS[entry](**weak)
    given = weak.get("policy")
    written = yaml.safe_load(
        str(caught.value).partition("lines:\n" if not isinstance(given, dict) else "own:\n")[2]
    )
    if isinstance(given, dict):
        written = {**given, **written}
    assert written["name"] != "default" and written["extends"] == (
        given if isinstance(given, str) else "default"
    )
    asked = weak.get("metrics", {})
    blank = {name: dict.fromkeys(settings, "...") for name, settings in asked.items()}
    assert written.get("metrics", {}) == blank, "values can be cells of a table"
    written |= {"metrics": asked} if asked else {}
    found = plan(policy=written, embedder=weak.get("embedder", True))
    assert found.policy.settings == weak.get("metrics", {})
    assert (
        policy_digest(found.policy) != policy_digest(default_policy())
        or "linkability" in found.policy.settings
    )
    assert (found.embedder is None) == ("embedder" in weak)


def test_settings_of_the_embedder_belong_to_the_policy() -> None:
    for setting in settings_of(EmbedderSettings):
        value = 3 if setting.default is None else setting.default
        with pytest.raises(
            ConfigError,
            match=rf"table t, evaluation: embedder\.{setting.name} is a setting of the policy",
        ):
            plan(embedder={setting.name: value})
    own = {"name": "own", "extends": "default", "embedder": {"width": 8}}
    assert plan(policy=own).embedder == {"width": 8}
    assert plan().embedder == {} == plan(embedder={}).embedder


def test_without_the_embedder_no_verdict_is_one_of_the_default_policy() -> None:
    for metrics in (None, default_metrics()):
        found = plan(metrics=metrics, embedder=False).policy
        assert (found.name, found.part_of, found.embedder) == ("custom", "default", False)
        assert policy_digest(found) != policy_digest(default_policy())
    raw = {"limits": [{"statistic": "copies.copied_share", "at_most": 0.1}]}
    # no limited statistic depends on it
    assert plan(policy=raw, embedder=False).policy == load_policy(raw)


@pytest.mark.slow
def test_a_limit_on_what_is_left_out_is_undecided(adult: Any) -> None:
    parts = cut(adult, 300, 200, 300)
    limits = tuple(
        Limit(f"{x}_embedded", 0.5)
        for x in ("dcr.privacy_score", "dcr.member_excess", "singling_out.risk")
    )
    few = {"dcr": SHORT["dcr"], "singling_out": SHORT["singling_out"]}
    known = {name: sorted(adult[name].unique()) for name in adult.select_dtypes(exclude="number")}
    own = Policy(limits, settings=few, embedder=False)
    report = evaluate(*parts, policy=own, allowed_values=known, embedder=False, device="cpu")
    assert [outcome.status for outcome in report.policy_verdict.outcomes] == ["undecided"] * 3
    again = evaluate(*parts, policy=own, allowed_values=known, device="cpu")
    assert again.policy_verdict == report.policy_verdict  # the policy itself omits it as well


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("policy", [None, "default", "small"])
def test_naming_metrics_or_a_policy_leaves_no_check_of_external_tables_out(
    policy: str | None, printed: bool
) -> None:
    given = load_policy(policy).to_dict() if policy and printed else policy
    found = plan(given, EXTERNAL)
    assert "holdout_leakage" in found.metrics and "holdout_leakage" in found.policy.metrics
    assert found.policy.name == (policy or "default")
    if policy is None:
        some = plan(None, EXTERNAL, metrics=list(default_policy().metrics)).policy
        assert (some.name, some.part_of) == ("custom", "default")
        return
    with pytest.raises(
        ConfigError, match=r"the policy limits holdout_leakage.*is not among the metrics"
    ):
        plan(given, EXTERNAL, metrics=list(default_policy().metrics))


def test_what_a_policy_fixes_no_table_sets() -> None:
    fixed = {
        "name": "own",
        "extends": "default",
        "metrics": {"membership_inference": {"subgroups": ["ward"]}},
    }
    (metric,) = (x for name, x in plan(fixed).metrics.items() if name == "membership_inference")
    assert metric.settings()["subgroups"] == ("ward",)
    with pytest.raises(ConfigError, match=r"membership_inference\.subgroups is a setting of"):
        plan(fixed, metrics={"membership_inference": {"subgroups": ["sex"]}})


def test_each_flagged_setting_is_attacked() -> None:
    assert set(ADVERSARIAL) == FLAGGED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        pytest.param(*key, value, marks=pytest.mark.slow if number else ())
        for key, values in ADVERSARIAL.items()
        for number, value in enumerate(values)
    ],
    ids=str,
)
def test_no_flagged_setting_makes_a_leak_pass(
    adult: Any, name: str, setting: str, value: Any
) -> None:
    """The release is a copy of train, made by a copying generator."""
    generator, limits = as_generator("copy"), METRICS[name].default_limits
    given = {name: {setting: value}}
    if METRICS[name].attacks_generator:
        with pytest.raises(ConfigError, match="another generator than the synthetic table"):
            choose_metrics(given, None, generator)
        return
    train, holdout = cut(adult, 1_000, 500)
    inputs = read_inputs(train, holdout, train)
    few = replace(Policy(limits), settings={name: {"n_permutations": 199}})
    chosen, _ = choose_metrics(given, few)
    usual = run_metrics(inputs, {name: build_metric(name, {"n_permutations": 199})})
    weak = run_metrics(inputs, chosen)
    assert few.judge(usual).status == "fail" == few.judge(weak).status
    limited = {limit.statistic.partition(".")[2] for limit in limits}
    for spec in METRICS[name].statistics:
        if spec.name in limited:
            assert usual[name].estimate(spec.name) == weak[name].estimate(spec.name)


def test_the_yaml_of_a_dagster_component_is_one_of_a_table(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "generators.md"
    (block,) = [
        part
        for part in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
        if "type:" in part
    ]
    (tmp_path / "defs.yaml").write_text(block)
    written = yaml.safe_load(block)["attributes"]
    assert TableSpec.load(tmp_path / "defs.yaml") == TableSpec.of(written, tmp_path)
    for wrong in (
        block + "  schedule: '@daily'\n",
        block.replace("privacy_assets.", "other."),
        block + "more: 1\n",
    ):
        (tmp_path / "defs.yaml").write_text(wrong)
        with pytest.raises(ConfigError, match="has no setting|has two keys"):
            TableSpec.load(tmp_path / "defs.yaml")


@pytest.mark.parametrize("written", ["codes.csv", "[codes.csv]", "3"])
def test_allowed_values_of_another_type_are_a_setting_error(tmp_path: Path, written: str) -> None:
    (tmp_path / "people.yaml").write_text(f"name: people\ndata: {{allowed_values: {written}}}\n")
    with pytest.raises(ConfigError, match="people, data: allowed_values"):
        TableSpec.load(tmp_path / "people.yaml")
