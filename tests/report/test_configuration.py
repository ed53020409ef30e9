"""The privacy configuration: what is told of a table's protections, and where it is shown."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

from privacy_assets import evaluate
from privacy_assets.generators import GENERATORS, PrivacyBudget, build_generator
from privacy_assets.generators.filters import FILTERS, build_filter
from privacy_assets.metrics.registry import statistic_specs
from privacy_assets.report.configuration import privacy_configuration
from privacy_assets.tables.schema import infer_schema
from tests.report.report_examples import Page, report
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


def test_every_protection_is_told_with_its_settings_beside_statistics_that_there_are():
    assert states(TOLD) == {
        "memorization": ("on", "quantile 0.02, crowd 5, 1,200 of 12,000 rows left out"),
        "similarity": ("off", ""),
        "outliers": ("on", "neighbours 5, quantile 0.9, 400 of 12,000 rows left out"),
        "over-fitting": ("on", "leaves of 50 rows"),
        "differential privacy": ("on", "epsilon 1.5, delta 1e-05, for one row, by Renyi; outside of it: range of age"),
    }
    assert list(states(TOLD)) == [*FILTERS, "over-fitting", "differential privacy"]
    for protection in privacy_configuration(None):
        assert protection.covers and set(protection.statistics) <= set(statistic_specs())


@pytest.mark.parametrize(
    ("generator", "filters", "overfitting", "privacy"),
    [
        (None, "unknown", "unknown", "unknown"),
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


def test_page_text_and_json_show_it():
    made = report(generator=TOLD)
    page, text = Page(made.to_html()).words, made.to_text()
    assert "Privacy configuration" in page and "On” says what was done, not that it sufficed" in page
    for one in privacy_configuration(TOLD):
        assert one.title.capitalize() in page and one.title in text
        assert one.covers.removesuffix(".")[1:] in page
        assert one.how.split(",")[0] in page and one.how.split(",")[0] in text
    assert "dcr. identical_excess 0.01 [-0.02, 0.04]" in page
    assert "Nothing was measured." in page  # of memorization
    assert [row["state"] for row in made.to_json()["privacy_configuration"]] == ["off", "on", "on", "on", "on"]
    assert report().to_text().count("unknown") == 5


def test_evaluate_knows_the_generator_that_it_is_told_and_no_more(monkeypatch):
    monkeypatch.setattr("privacy_assets.report.evaluate.run_metrics", lambda inputs, chosen: {})
    frame = pd.DataFrame({"a": range(40), "b": list("xy") * 20})
    sides = [frame[:20], frame[20:], frame]
    made = evaluate(*sides, metrics=["dcr"], embedder=False)
    assert {one.state for one in made.privacy_configuration} == {"unknown"}
    made = evaluate(*sides, metrics=["shadow_membership"], generator="baynet", embedder=False)
    assert made.generator["name"] == "baynet"
    found = {one.name: one.state for one in made.privacy_configuration}
    assert found.pop("over-fitting") == "on" and set(found.values()) == {"unknown"}


@pytest.mark.parametrize("name", sorted(set(GENERATORS) - {"callable", "command"}))
def test_every_generator_tells_how_it_protects_its_rows(name):
    elsewhere = {"realtabformer": {"python": sys.executable}}  # its library is not installed here
    protection = build_generator(name, elsewhere.get(name)).overfitting_protection()
    assert protection is None or isinstance(protection, str)
    assert not (name.endswith("copy") and protection), "copies protect nothing"


def test_the_protection_of_trees_and_networks_goes_by_their_settings():
    leaf = [build_generator("synthpop", {"min_leaf": n}).overfitting_protection() for n in (1, 5, 50)]
    assert leaf == ["", *(f"every leaf holds rows of at least {n} training people" for n in (5, 50))]
    assert "at most 3 parents" in build_generator("baynet", {"degree": 3}).overfitting_protection()


def own(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """A generator of one's own."""
    return train.sample(rows, replace=True, random_state=seed)


@pytest.mark.parametrize(("generator", "privacy"), [("copy", "off"), (own, "unknown")])
def test_a_fitted_generator_describes_itself(generator, privacy):
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5] * 20, "b": list("xyz") * 20})
    fitted = build_generator(generator).fit(as_table(frame, infer_schema(frame)), seed=0)
    told = json.loads(json.dumps(fitted.described()))
    assert set(told) == {"name", "settings", "overfitting", "privacy"}
    known = privacy != "unknown"
    assert told["privacy"]["known"] is known and (told["overfitting"] is not None) is known
    assert states({**told, "filter": None})["differential privacy"][0] == privacy
    assert "2.5" not in json.dumps({key: told[key] for key in ("overfitting", "privacy")})


def test_an_unknown_budget_says_so():
    assert str(PrivacyBudget(known=False)) == "none known (code of your own)"
    assert str(PrivacyBudget()) == "none (no formal guarantee)"
