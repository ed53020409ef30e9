"""The privacy configuration: what is told of a table's protections, and where it is shown."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
import pytest
from test_report import HOSTILE, Page, report

from privacy_assets import evaluate
from privacy_assets.generators import GENERATORS, PrivacyBudget, build_generator
from privacy_assets.generators.filters import FILTERS, build_filter
from privacy_assets.metrics.registry import statistic_specs
from privacy_assets.report.configuration import privacy_configuration
from privacy_assets.report.report import Report
from privacy_assets.tables.schema import infer_schema
from tests.tables import as_table

BUDGET = {
    "epsilon": 1.5,
    "delta": 1e-5,
    "outside_guarantee": ["range of age"],
    "accountant": "Renyi",
    "covers": "one row",
}
TOLD = {
    "name": "synthpop",
    "filter": {
        "filters": {name: build_filter(name).settings() for name in ("memorization", "outliers")},
        "drawn": 12_000, "dropped": 1_500, "dropped_by": {"memorization": 1_200, "outliers": 400}, "before": {},
    },
    "overfitting": "leaves of 50 rows", "privacy": BUDGET,
}  # fmt: skip


def states(generator):
    return {one.name: (one.state, one.how) for one in privacy_configuration(generator)}


def test_every_protection_is_told_with_its_settings():
    found = states(TOLD)
    assert list(found) == [*FILTERS, "over-fitting", "differential privacy"]
    assert found["similarity"] == ("off", "")
    assert found["memorization"] == ("on", "quantile 0.02, crowd 5, 1,200 of 12,000 rows left out")
    assert found["outliers"] == ("on", "neighbours 5, quantile 0.9, 400 of 12,000 rows left out")
    assert found["over-fitting"] == ("on", "leaves of 50 rows")
    words = "epsilon 1.5, delta 1e-05, for one row, by Renyi; outside of it: range of age"
    assert found["differential privacy"] == ("on", words)


@pytest.mark.parametrize(
    ("generator", "filters", "overfitting", "privacy"),
    [
        (None, "unknown", "unknown", "unknown"),
        ({"name": "unknown: an external table"}, "unknown", "unknown", "unknown"),
        ({"filter": {"name": "memorization", "settings": {}}}, "unknown", "unknown", "unknown"),
        ({"filter": None, "overfitting": None, "privacy": {"epsilon": None}}, "off", "unknown", "off"),
        ({"filter": None, "overfitting": "", "privacy": {"epsilon": None, "known": False}}, "off", "off", "unknown"),
        ({"filter": {"filters": {}}, "overfitting": "small", "privacy": {"epsilon": 0.1}}, "off", "on", "on"),
    ],
)
def test_what_is_not_told_is_unknown_and_never_off(generator, filters, overfitting, privacy):
    found = {name: state for name, (state, _) in states(generator).items()}
    assert {found[name] for name in FILTERS} == {filters}
    assert (found["over-fitting"], found["differential privacy"]) == (overfitting, privacy)


def test_each_protection_stands_beside_statistics_that_there_are():
    for protection in privacy_configuration(None):
        assert protection.covers and set(protection.statistics) <= set(statistic_specs())


def test_page_text_and_json_show_it():
    made = report(generator=TOLD)
    page, text = " ".join(" ".join(Page(made.to_html()).words).split()), made.to_text()
    assert "Privacy configuration" in page and "On” says what was done, not that it sufficed" in page
    for one in privacy_configuration(TOLD):
        assert one.title.capitalize() in page and one.title in text
        assert one.covers.removesuffix(".") in page.replace("Rows that", "rows that") or one.covers[1:] in page
        assert one.how.split(",")[0] in page and one.how.split(",")[0] in text
    assert "dcr. identical_excess 0.01 [-0.02, 0.04]" in page.replace("dcr.identical", "dcr. identical")
    assert "Nothing was measured." in page  # of memorization
    data = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert [row["state"] for row in data["privacy_configuration"]] == ["off", "on", "on", "on", "on"]
    assert Report.from_json(data).to_json() == data
    assert Report.from_json(data).to_html() == made.to_html()


def test_without_a_generator_everything_is_unknown():
    made = report()
    assert {one.state for one in made.privacy_configuration} == {"unknown"}
    assert made.to_text().count("unknown") == 5


def test_hostile_words_stay_words():
    hostile = {**TOLD, "overfitting": HOSTILE, "privacy": {**BUDGET, "outside_guarantee": [HOSTILE], "covers": HOSTILE}}
    page = report(generator=hostile).to_html()
    assert "<script>alert" not in page and "<img" not in page and "\u202e" not in page
    assert "\x1b" not in report(generator=hostile).to_text()


def test_evaluate_knows_the_generator_that_it_is_told_and_no_more():
    frame = pd.DataFrame({"a": range(40), "b": list("xy") * 20})
    sides = [frame[:20], frame[20:], frame]
    assert {one.state for one in evaluate(*sides, metrics=["dcr"], embedder=False).privacy_configuration} == {"unknown"}
    frame = pd.DataFrame({"a": np.arange(400) / 7, "b": list("xyzw") * 100})
    sides, small = [frame[:200], frame[200:], frame], {"records": 3, "tests": 100, "shadows": 60, "size": 20}
    made = evaluate(*sides, metrics={"shadow_membership": small}, generator="baynet", embedder=False)
    found = {one.name: one.state for one in made.privacy_configuration}
    assert found.pop("over-fitting") == "on" and set(found.values()) == {"unknown"}


@pytest.mark.parametrize("name", sorted(set(GENERATORS) - {"callable", "command"}))
def test_every_generator_tells_how_it_protects_its_rows(name):
    elsewhere = {"realtabformer": {"python": sys.executable}}  # its library is not installed here
    generator = build_generator(name, elsewhere.get(name))
    protection = generator.overfitting_protection()
    assert protection is None or isinstance(protection, str)
    assert not (name.endswith("copy") and protection), "copies protect nothing"


def test_the_protection_of_trees_and_networks_goes_by_their_settings():
    leaf = [build_generator("synthpop", {"min_leaf": n}).overfitting_protection() for n in (1, 5, 50)]
    assert leaf == ["", "every leaf holds at least 5 training rows", "every leaf holds at least 50 training rows"]
    assert "at most 3 parents" in build_generator("baynet", {"degree": 3}).overfitting_protection()


def own(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """A generator of one's own."""
    return train.sample(rows, replace=True, random_state=seed)


@pytest.mark.parametrize(("generator", "known"), [("privbayes", True), ("synthpop", True), (own, False)])
def test_a_fitted_generator_describes_itself(generator, known):
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5] * 20, "b": list("xyz") * 20})
    schema = infer_schema(frame)
    fitted = build_generator(generator).fit(as_table(frame, schema), seed=0)
    told = json.loads(json.dumps(fitted.described()))
    assert set(told) == {"name", "settings", "overfitting", "privacy"}
    assert told["privacy"]["known"] is known and (told["overfitting"] is not None) is known
    found = states({**told, "filter": None})
    expected = "unknown" if not known else "on" if generator == "privbayes" else "off"
    assert found["differential privacy"][0] == expected
    assert "2.5" not in json.dumps({key: told[key] for key in ("overfitting", "privacy")})


def test_an_unknown_budget_says_so():
    assert str(PrivacyBudget(known=False)) == "none known (code of your own)"
    assert str(PrivacyBudget()) == "none (no formal guarantee)"
