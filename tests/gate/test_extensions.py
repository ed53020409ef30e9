"""A metric of another package that a policy limits: its distribution and version are accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributions import Installer
from gate_standins import SETUP, make_gate

from privacy_assets.errors import ConfigError, OutOfDate, SettingsDiffer
from privacy_assets.gate.accepted_settings import AcceptedSettings, entries_of
from privacy_assets.gate.attestation import check_made, check_result
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.generators.base import Generator
from privacy_assets.generators.registry import GENERATORS
from privacy_assets.metrics.policies import load_policy, policy_digest, resolve_policy
from privacy_assets.metrics.registry import METRICS
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.version import PACKAGE_VERSION

LIMITED: dict[str, Any] = {
    "name": "ours",
    "limits": [{"statistic": "third.share", "at_most": 0.7, "min_subjects": 1}],
}
GENERATOR = """
from privacy_assets.generators.copies import Copy
from privacy_assets.infra.settings import declared

@declared
class Mine(Copy):
    name = "mine"
"""


def in_process_with(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    """Install a version of the metric, as in another process."""
    monkeypatch.setattr(METRICS, "_loaded", {})
    Installer(folder / version, monkeypatch)(distribution=f"acme {version}")


def test_the_digest_of_a_policy_covers_distribution_and_version(tmp_path: Path) -> None:
    digests = set()
    for version in ("1.5", "1.6", "1.5"):
        with pytest.MonkeyPatch.context() as patch:
            in_process_with(patch, tmp_path / str(len(digests)), version)
            policy = load_policy(LIMITED)
            assert resolve_policy(policy)["distributions"] == {"third": f"acme {version}"}
            digests.add(policy_digest(policy))
    assert len(digests) == 2
    assert "distributions" not in resolve_policy(load_policy("default"))


def test_another_version_needs_to_be_accepted(tmp_path: Path) -> None:
    gate = make_gate(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        in_process_with(patch, tmp_path / "old", "1.5")
        policy = load_policy(LIMITED)
        AcceptedSettings(gate.private, gate.key).sign("patients", entries_of(policy, SETUP))
        AcceptedSettings(gate.private, gate.key).check("patients", policy, SETUP)
    with pytest.MonkeyPatch.context() as patch:
        in_process_with(patch, tmp_path / "new", "1.6")
        with pytest.raises(SettingsDiffer) as caught:
            AcceptedSettings(gate.private, gate.key).check("patients", load_policy(LIMITED), SETUP)
    assert "distributions 'third': 'acme 1.5' -> 'acme 1.6'" in caught.value.differences
    with pytest.raises(ConfigError, match="unknown statistic 'third.share'. Known: "):
        load_policy(LIMITED)


def test_the_signed_setup_names_the_distributions_of_metrics_and_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GENERATORS, "_loaded", {})
    in_process_with(monkeypatch, tmp_path, "1.5")
    Installer(tmp_path, monkeypatch)(
        "acme_generators:Mine",
        GENERATOR,
        name="mine",
        distribution="acme-generators 3",
        group="privacy_assets.generators",
    )
    ours = {"name": "t", "source": "demo", "data": {"subject": "person"}, "policy": LIMITED}
    table = ResolvedTable.of(TableSpec(**ours, generator={"name": "mine"}))
    assert isinstance(table.generator, Generator)
    assert table.setup(lambda text: text)["distributions"] == {
        "metric third": "acme 1.5",
        "generator mine": "acme-generators 3",
    }
    plain = ResolvedTable.of(TableSpec(name="t", source="demo", data={"subject": "person"}))
    assert "distributions" not in plain.setup(lambda text: text)


def test_a_third_metric_that_is_loaded_changes_no_shipped_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: policy_digest(load_policy(name)) for name in ("default", "small")}
    in_process_with(monkeypatch, tmp_path, "1.5")
    assert METRICS.find("third").runs_by_default
    assert before == {name: policy_digest(load_policy(name)) for name in ("default", "small")}


def test_a_result_of_another_version_is_out_of_date(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        in_process_with(patch, tmp_path / "old", "1.5")
        metric = METRICS.find("third")()
        result = MetricResult("third", (), package_version=PACKAGE_VERSION, distribution="acme 1.5")
        assert MetricResult.from_json(result.to_json()) == result
        check_result(result, {}, metric, 0)
        own = replace(result, distribution="")
        with pytest.raises(OutOfDate, match="by privacy-assets, and is now of acme 1.5"):
            check_result(own, {}, metric, 0)
    with pytest.MonkeyPatch.context() as patch:
        in_process_with(patch, tmp_path / "new", "1.6")
        with pytest.raises(OutOfDate, match="by acme 1.5, and is now of acme 1.6") as caught:
            check_result(result, {}, metric, 0)
    assert caught.value.record == "result"


def test_a_table_of_another_version_of_the_generator_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GENERATORS, "_loaded", {})
    Installer(tmp_path, monkeypatch)(
        "acme_generators:Mine",
        GENERATOR,
        name="mine",
        distribution="acme-generators 3",
        group="privacy_assets.generators",
    )
    made_by = {"name": "mine", "settings": {}, "distribution": "acme-generators 3"}
    snapshot = Snapshot(
        ReleaseTarget("patients"),
        tmp_path,
        "0" * 64,
        n_rows=1,
        train_fingerprint="t",
        content="c",
        dtypes={},
        generator=made_by,
    )
    check_made(snapshot, {"train": "t"}, {}, {})
    older = replace(snapshot, generator={**made_by, "distribution": "acme-generators 2"})
    with pytest.raises(OutOfDate, match="was of acme-generators 2, and is now of .*3") as caught:
        check_made(older, {"train": "t"}, {}, {})
    assert caught.value.record == "generator"


def test_the_version_is_that_of_the_code_that_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process_with(monkeypatch, tmp_path, "1.5")
    METRICS.find("third")
    Installer(tmp_path / "later", monkeypatch)(distribution="acme 1.6")  # first on the path
    assert METRICS.distribution("third") == "acme 1.5"
