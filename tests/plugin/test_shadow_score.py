"""The score of the generator: asked for by name, bound to the generator, and impossible without one."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import dagster as dg
import pytest
from standins import QUICK, checks, failures, made, people, resources, run, table_of

from privacy_assets import PrivacyGate, build_privacy_checks
from privacy_assets.errors import ConfigError

FEW = {"records": 2, "shadows": 20, "tests": 20, "size": 30}
LIMIT = {"statistic": "shadow_membership.epsilon_lower_bound", "at_most": 9.0, "bound": "lower", "smallest_n": 5}
ASKED = {
    "metrics": {**QUICK["metrics"], "shadow_membership": FEW},
    "policy": {"name": "audited", "limits": [*QUICK["policy"]["limits"], LIMIT]},
    "embedder": False,
}
BROUGHT = {"synthetic": "s.parquet", "train": "t.parquet", "holdout": "h.parquet"}


def table(place: Path, **changes: object) -> dg.Definitions:
    return people_table(place, **{"generator": "baynet", **ASKED, **changes})


def on_device(defs: dg.Definitions) -> dict[str, bool]:
    """Which assets may use a device."""
    return {key.path[-1]: "gpu" in asset.op.required_resource_keys for asset in defs.assets for key in asset.keys}


def test_the_generator_is_attacked_and_the_release_is_bound_to_it(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    first = run(table(tmp_path), instance)
    assert first.success, failures(first)
    found = checks(first)["shadow_membership", "shadow_membership_epsilon_lower_bound_lower"]
    assert found.passed and found.metadata["limit"].value == 9.0
    metadata = made(first)["shadow_membership"]
    assert 0 <= metadata["auc"] <= 1 and metadata["epsilon_lower_bound"] >= 0
    log = "\n".join(r.event_log_entry.to_json() for r in instance.get_records_for_run(first.run_id).records)
    assert "record 2 of 2" in log and "p399" not in log
    incomes = people()["income"].dropna().astype(str)
    numbers = set(re.findall(r"[\d.]+", log))  # whole ones: part of a time of day can look like an income
    assert not numbers & set(incomes[incomes.str.len() > 6])
    page = (tmp_path / "storage/people/privacy_report").rglob("*.html")
    assert any("the record told most easily" in path.read_text(encoding="utf-8") for path in page)
    envelope = json.loads((tmp_path / "storage/people/attestation/attestation.json").read_bytes())
    stated = json.loads(base64.b64decode(envelope["payload"]))
    bound = {"name": "baynet", "settings": {"degree": 1, "bins": 10}}
    assert stated["predicate"]["setup"]["metrics"]["shadow_membership"]["generator"] == bound
    assert stated["predicate"]["results"]["shadow_membership"]["settings"]["generator"] == bound
    other = table(tmp_path, generator={"name": "baynet", "settings": {"degree": 2}})
    refused = run(other, instance, "published")
    reason = failures(refused)["people__published"].user_failure_data.description
    assert "made under other settings (metrics)" in reason


def test_another_generator_than_that_of_the_table_is_not_attested(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Neither when it stands in the metric's settings, nor when the table was made before the generator was changed."""
    harmless = {"name": "privbayes", "settings": {"epsilon": 0.01}}
    asked = {**QUICK["metrics"], "shadow_membership": {**FEW, "generator": harmless}}
    with pytest.raises(ConfigError, match="table people, attacks: .* another generator"):
        table(tmp_path, metrics=asked)
    assert run(table(tmp_path), instance).success
    changed = table(tmp_path, generator=harmless)
    assert run(changed, instance, "shadow_membership").success
    refused = run(changed, instance, "attestation")
    reason = failures(refused)["people__attestation"].user_failure_data.description
    assert "made by another generator than shadow_membership attacks" in reason


def test_it_runs_only_when_it_is_asked_for_and_takes_a_device_only_for_attention() -> None:
    assert "shadow_membership" not in on_device(table_of("people", source="demo"))
    asked = {"source": "demo", "embedder": False}
    by_limit = table_of("people", policy={"extends": "default", "limits": [LIMIT]}, **asked)
    assert not on_device(by_limit)["shadow_membership"] and not on_device(by_limit)["dcr"]
    attention = table_of("people", metrics={"shadow_membership": {"attack": "attention"}}, **asked)
    assert on_device(attention)["shadow_membership"]


def test_a_table_without_a_generator_is_an_error_that_names_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"table claims, attacks: metric shadow_membership .*generator: baynet"):
        table_of("claims", metrics=["dcr", "shadow_membership"], **BROUGHT)
    keys = {"train": "t", "holdout": "h", "synthetic": "s"}
    with pytest.raises(ConfigError, match=r"privacy checks: metric shadow_membership .*generator: baynet"):
        build_privacy_checks(metrics=["shadow_membership"], **keys)
    own = {"shadow_membership": {"generator": "baynet"}}
    assert "shadow_membership" in on_device(table_of("claims", metrics=own, **BROUGHT))
    assert len(build_privacy_checks(metrics=own, embedder=False, **keys)) == 1
    with pytest.raises(ConfigError, match=r"table claims, attacks: .*unknown generator 'baynt'"):
        table_of("claims", metrics={"shadow_membership": {"generator": "baynt"}}, **BROUGHT)


def test_yaml_names_it_as_python_does() -> None:
    attributes = (
        "{name: claims, data: {synthetic: s.parquet, train: t.parquet, holdout: h.parquet}, attacks: {metrics: %s}}"
    )
    gate = PrivacyGate.resolve_from_yaml(attributes % "{shadow_membership: {generator: {name: baynet}, records: 3}}")
    defs = gate.build_defs(dg.ComponentTree.for_test().load_context)
    assert "shadow_membership" in on_device(defs)
