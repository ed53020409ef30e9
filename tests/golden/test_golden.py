"""The statistics, verdicts and reports of frozen releases of known truth do not change."""

from __future__ import annotations

from typing import Any

import pytest
from golden import RELEASES, Golden, moved

from privacy_assets.dagster.metadata import failed_limits_metadata, limit_metadata
from privacy_assets.report.report import Report
from tests.helpers.marks import weekly_except

ON_PUSH = ("adult/copy", "census/overfitted", "patients/copies", "stays/moved")


@pytest.mark.slow
@pytest.mark.parametrize("name", weekly_except([release.name for release in RELEASES], *ON_PUSH))
def test_nothing_moved(name: str) -> None:
    """For deliberate changes see the first lines of golden.py."""
    (release,) = (release for release in RELEASES if release.name == name)
    found, expected = release.found(), release.expected()
    different = moved(expected, found)
    assert not different, f"{len(different)} numbers moved: {dict(list(different.items())[:10])}"


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_the_expected_verdicts_are_those_of_the_truth(release: Golden) -> None:
    """The tables are small: without a leak some limits are undecided, but none fails."""
    report = release.expected()
    failed = [limit["statistic"] for limit in report["limits"] if limit["status"] == "fail"]
    assert (report["verdict"] == "fail") == bool(failed) == release.leaks


def test_a_number_that_moves_is_told() -> None:
    report = RELEASES[0].expected()
    assert moved(report, report) == {}
    metric = report["metrics"]["dcr"]["estimates"]["member_excess"]
    other = {
        **report,
        "metrics": {
            "dcr": {"estimates": {"member_excess": {**metric, "low": metric["low"] + 1e-5}}}
        },
    }
    path = "/metrics/dcr/estimates/member_excess/low"
    assert moved(report, other)[path] == (metric["low"], metric["low"] + 1e-5)
    assert len(moved(report, other)) > 1000  # missing values count


@pytest.mark.parametrize(
    "release", [one for one in RELEASES if one.leaks], ids=lambda release: release.name
)
def test_no_check_contradicts_the_cause_that_the_report_tells(release: Golden) -> None:
    """A score asset has only its own metric, so its checks give no cause.

    With all limits known, checks and report agree.
    """
    expected = release.expected()
    metrics = {name: {**entry, "seconds": 0.0} for name, entry in expected["metrics"].items()}
    absent: dict[str, Any] = {"package_version": "", "fingerprints": {}, "versions": {}}
    report = Report.from_json({**expected, **absent, "metrics": metrics})
    told = {cause["cause"] for cause in report.advice}
    assert told
    for outcome in report.policy_verdict.not_passed:
        alone, beside = limit_metadata(outcome), limit_metadata(outcome, report.advice)
        assert "see privacy_report" in alone["advice"]
        causes = {record.data["cause"] for record in getattr(beside.get("advice"), "records", ())}
        assert causes == {
            one["cause"] for one in report.advice if outcome.limit.key in one["limits"]
        }
    held = failed_limits_metadata(report.policy_verdict.not_passed, report.advice)["advice"]
    assert {record.data["cause"] for record in held.records} == told
