"""The statistics, verdicts and reports of frozen releases of known truth stay what they are."""

from __future__ import annotations

import pytest
from golden import RELEASES, Golden, moved

QUICK = ("patients/copies",)  # by subject, with all metrics and an encoder
EACH = [pytest.param(one, marks=[] if one.name in QUICK else pytest.mark.slow, id=one.name) for one in RELEASES]


@pytest.mark.parametrize("release", EACH)
def test_nothing_moved(release: Golden) -> None:
    """On purpose? Then see the first lines of golden.py."""
    found, expected = release.found(), release.expected()
    different = moved(expected, found)
    assert not different, f"{len(different)} numbers moved: {dict(list(different.items())[:10])}"


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_the_expected_verdicts_are_those_of_the_truth(release: Golden) -> None:
    """These tables are small: without a leak some limits are not assessable, but none fails."""
    report = release.expected()
    failed = [limit["statistic"] for limit in report["limits"] if limit["status"] == "fail"]
    assert (report["verdict"] == "fail") == bool(failed) == release.leaks


def test_a_number_that_moves_is_told() -> None:
    report = RELEASES[0].expected()
    assert moved(report, report) == {}
    metric = report["metrics"]["dcr"]["estimates"]["member_excess"]
    other = {**report, "metrics": {"dcr": {"estimates": {"member_excess": {**metric, "low": metric["low"] + 1e-5}}}}}
    path = "/metrics/dcr/estimates/member_excess/low"
    assert moved(report, other)[path] == (metric["low"], metric["low"] + 1e-5)
    assert len(moved(report, other)) > 1000  # what is missing counts
