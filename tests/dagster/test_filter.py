"""A filtered table, from its settings to its attestation."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from drawing import half_memorized
from standins import (
    QUICK,
    attested,
    blocking_error,
    checks,
    failures,
    made,
    people_table,
    reported,
    run,
    table_of,
)  # fmt: skip

from privacy_assets import read_published
from privacy_assets.dagster.resources import load_value
from privacy_assets.errors import ConfigError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.generators.filters import as_filters
from privacy_assets.tables.table import Table, subject_codes_of

FILTER = {"name": "memorization", "settings": {"quantile": 0.2, "crowd": 3}}
OUTLIERS = {"name": "outliers", "settings": {"quantile": 0.8}}
ROLES = ("train", "holdout", "reference")


@pytest.mark.slow
def test_a_filtered_table_is_published_and_says_so(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Each filter appears in metadata, report and attestation with its settings and its count."""
    metrics = [*QUICK["metrics"], "membership_inference", "memorization"]
    filtered = people_table(
        tmp_path, generator=half_memorized, filter=[OUTLIERS, FILTER], metrics=metrics
    )
    result = run(filtered, instance)
    assert result.success, failures(result)
    told = made(result)["synthetic"]
    assert told["filter"] == "memorization, outliers" and told["radius of memorization"] > 0
    assert told["rows drawn"] >= told["rows dropped"] + told["dagster/row_count"]
    each = [told[f"rows dropped by {name}"] for name in ("memorization", "outliers")]
    assert min(each) > 0 and max(each) <= told["rows dropped"] <= sum(each)
    assert each[0] >= told["dagster/row_count"] // 3
    upstream = {
        found.asset_key.path[-1] for found in told["dagster/column_lineage"].deps_by_column["age"]
    }
    assert upstream == set(ROLES)

    stored = tmp_path / "storage/people"
    tables = [load_value(stored / role, dg.AssetKey(role), None, Table) for role in ROLES]
    released = Table.of(
        read_published(tmp_path / "releases", "people"), tables[0].schema, where="released"
    )
    assert len(released) == len(tables[0])
    real = [table.without_subject() for table in tables]
    for chosen in as_filters([FILTER, OUTLIERS]):
        assert (
            not chosen.fit(real, tables[0].schema, subject_codes_of(tables)).exposed(released).any()
        )

    page = next((tmp_path / "storage/people/privacy_report").rglob("*.html")).read_text()
    assert (
        f"{told['rows dropped']:,}" in page.replace("\u202f", ",")
        and "filter.filters.memorization.crowd" in page
    )
    assert "generated rows were removed" in page and "Before and after the filter" in page
    report = reported(tmp_path)
    assert report["generator"]["filter"]["dropped_by"] == dict(
        zip(("memorization", "outliers"), each, strict=True)
    )
    before = report["generator"]["filter"]["before"]["memorization"]["estimates"]["exposed"][
        "value"
    ]
    assert before > 0.2 > report["metrics"]["memorization"]["estimates"]["exposed"]["value"]
    rows = {row["name"]: row for row in report["privacy_configuration"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "similarity": "off",
        "memorization": "on",
        "outliers": "on",
        "alpha_m": "off",
        "over-fitting": "unknown",
        "differential privacy": "unknown",
    }
    assert (
        "quantile 0.8" in rows["outliers"]["how"] and f"{each[1]:,} of" in rows["outliers"]["how"]
    )

    predicate = attested(tmp_path)
    assert "filter.before" not in page and "before" not in str(predicate)
    assert predicate["setup"]["filter"] == {
        one.name: one.settings() for one in as_filters([FILTER, OUTLIERS])
    }
    turned = people_table(
        tmp_path, generator=half_memorized, filter=[FILTER, OUTLIERS], metrics=metrics
    )
    assert run(turned, instance, "published").success  # in any order


@pytest.mark.slow
def test_the_report_tells_how_a_private_generator_protects_its_rows(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """The report uses the signed snapshot, and states that a filter reads the real rows outside of
    the budget.
    """
    private = {"name": "privbayes", "settings": {"epsilon": 3}}
    limit = {"statistic": "data_privacy.configuration", "at_least": 90, "min_subjects": 5}
    limited = {"metrics": ["data_privacy"], "policy": {"limits": [limit]}}
    result = run(people_table(tmp_path, generator=private, filter=FILTER, **limited), instance)
    assert result.success, failures(result)
    for asset in ("attestation", "privacy_report"):
        assert made(result)[asset]["Privacy Configuration"] == 100
        assert "Privacy Configuration: Excellent" in made(result)[asset]["grades"]
        assert "Data Privacy Score" not in made(result)[asset]  # no limit asks for the attacks
    report = reported(tmp_path)
    (score,) = report["metrics"]["data_privacy"]["tables"]["graded_scores"]
    assert (score["score"], score["grade"]) == (100, "Excellent")
    rows = {row["name"]: row for row in report["privacy_configuration"]}
    for name, words in (
        ("over-fitting", "at most 1 parents"),
        ("differential privacy", "epsilon 3, delta 0"),
    ):
        assert rows[name]["state"] == "on" and words in rows[name]["how"]
    assert {rows[name]["state"] for name in ("similarity", "outliers")} == {"off"}
    assert report["generator"]["privacy"]["epsilon"] == 3
    outside = "rows that the filters memorization left out"
    assert outside in report["generator"]["privacy"]["outside_guarantee"]
    assert outside in rows["differential privacy"]["how"]
    assert "not covered: range or few values of age" in rows["differential privacy"]["how"]

    result = run(people_table(tmp_path, generator=private, **limited), instance)
    assert not result.success and "data_privacy.configuration" in blocking_error(
        result, "attestation"
    )
    (score,) = reported(tmp_path)["metrics"]["data_privacy"]["tables"]["graded_scores"]
    assert score["grade"] == "Very Good"


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, FILTER])
def test_checks_ask_for_a_filter_where_one_would_do(
    tmp_path: Path, instance: dg.DagsterInstance, name: object
) -> None:
    never = {
        "limits": [
            {
                "statistic": "memorization.exposed",
                "at_most": 0.0,
                "bound": "value",
                "min_subjects": 5,
            }
        ]
    }
    result = run(
        people_table(tmp_path, filter=name, metrics=["memorization"], policy=never), instance
    )
    found = {asset: check for (asset, _), check in checks(result).items()}["attestation"]
    assert found.passed is (name is not None)
    if name is None:
        assert "filter: memorization" in " ".join(
            record.data["what"] for record in found.metadata["advice"].records
        )


@pytest.mark.slow
def test_another_filter_is_another_setup(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """A table made with another filter cannot be attested, and an older attestation cannot be
    published.
    """
    assert run(people_table(tmp_path, filter=FILTER), instance).success
    now = people_table(tmp_path, filter=[FILTER, "outliers"])
    assert "other settings (filter)" in blocking_error(run(now, instance, "published"), "published")
    assert "made with another filter" in blocking_error(
        run(now, instance, "attestation"), "attestation"
    )
    assert len(ReleaseStore(tmp_path / "releases").history(ReleaseTarget("people"))) == 1


def test_the_filter_reads_every_real_table() -> None:
    for filters, expected in ((None, {"train"}), (["outliers", "memorization"], set(ROLES))):
        defs = table_of("people", source="demo", filter=filters)
        spec = next(
            s for asset in defs.assets for s in asset.specs if s.key.path[-1] == "synthetic"
        )
        assert {dep.asset_key.path[-1] for dep in spec.deps} == {*expected, "generator"}
        assert ("filtered by memorization, outliers" in spec.description) == (len(expected) > 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": "demo", "filter": "memorisation"}, "people.*Did you mean 'memorization'"),
        (
            {"synthetic": "s.csv", "train": "t.csv", "holdout": "h.csv", "filter": "memorization"},
            "draws further rows",
        ),
    ],
)
def test_wrong_filters_fail_when_the_code_location_loads(
    arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        table_of("people", **arguments)
