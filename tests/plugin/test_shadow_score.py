"""The score of the generator: asked for by name, bound to the generator, and impossible without one."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from standins import QUICK, attested, checks, failures, made, people_table, refusal, run, table_of

from privacy_assets import build_privacy_checks
from privacy_assets.errors import ConfigError

FEW = {"records": 2, "shadows": 20, "tests": 20, "size": 30}
LIMIT = {"statistic": "shadow_membership.epsilon_lower_bound", "at_most": 9.0, "bound": "lower", "smallest_n": 5}
ASKED = {
    "metrics": {**QUICK["metrics"], "shadow_membership": FEW},
    "policy": {"name": "audited", "limits": [*QUICK["policy"]["limits"], LIMIT]},
    "embedder": False,
}
HARMLESS = {"name": "privbayes", "settings": {"epsilon": 0.01}}
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
    assert "shadow_membership" in log and "p399" not in log
    page = (tmp_path / "storage/people/privacy_report").rglob("*.html")
    assert any("the record told most easily" in path.read_text(encoding="utf-8") for path in page)
    stated, bound = attested(tmp_path), {"name": "baynet", "settings": {"degree": 1, "bins": 10}}
    assert stated["setup"]["metrics"]["shadow_membership"]["generator"] == bound
    assert stated["results"]["shadow_membership"]["settings"]["generator"] == bound
    # Neither an attestation of then, nor a table that was made before the generator was changed, will do.
    changed = table(tmp_path, generator=HARMLESS)
    assert "made under other settings (metrics)" in refusal(run(changed, instance, "published"), "published")
    assert run(changed, instance, "shadow_membership").success
    told = refusal(run(changed, instance, "attestation"), "attestation")
    assert "made by another generator than shadow_membership attacks" in told


def test_the_settings_name_no_other_generator_than_that_of_the_table(tmp_path: Path) -> None:
    asked = {**QUICK["metrics"], "shadow_membership": {**FEW, "generator": HARMLESS}}
    with pytest.raises(ConfigError, match="table people, attacks: .* another generator"):
        table(tmp_path, metrics=asked)


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
