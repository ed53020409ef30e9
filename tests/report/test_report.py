"""The report: JSON form, HTML that is safe and self-contained, plain text, plots."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from privacy_assets.errors import ConfigError
from privacy_assets.policy import Policy
from privacy_assets.report import plots
from privacy_assets.report.bars import bars_svg
from privacy_assets.report.report import Report, installed_versions, plain
from privacy_assets.report.text import clean, headline, number, what_to_do, width
from privacy_assets.stats.limits import Limit, judge_limit
from privacy_assets.stats.results import Estimate, MetricResult
from privacy_assets.version import ENGINE_VERSION

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202egnp.exe\x1b[31m\x00\n" + "W" * 5000
PRIVATE_HASH = "f00d" * 16


def estimate(name: str, value: float, low: float, high: float, **more: Any) -> Estimate:
    return Estimate(name, value, low, high, **{"n": 8000, "subjects": 5294, **more})


def dcr(excess: float = 0.004, identical: float = 0.01) -> MetricResult:
    grid = [0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
    distances = [
        {"space": space, "quantile": q, "srd": scale * (1 + 0.1 * identical) * q**0.7, "rrd": scale * q**0.6}
        for space, scale in (("raw", 2.0), ("embedded", 0.4))
        for q in grid
    ]
    tails = [
        {
            "space": s,
            "key": k,
            "tail": t,
            "excess": excess * w,
            "low": excess * w - 0.02 / w,
            "high": excess * w + 0.02 / w,
            "matched": 9,
        }
        for s in ("raw", "embedded")
        for k in ("distance", "ratio")
        for t, w in ((0.005, 0.4), (0.02, 0.6), (0.05, 0.8), (0.2, 1.0))
    ]
    estimates = (
        estimate("privacy_score", 0.001, -0.006, 0.009),
        estimate(
            "member_excess", excess, excess - 0.02, excess + 0.02, direction="two_sided", minimum_detectable_effect=0.03
        ),
        estimate("identical_excess", identical, identical - 0.03, identical + 0.03, n=400, subjects=400),
    )
    settings = {"alpha": 0.02, "bootstrap": 1000, "tails": [0.005, 0.02], "nested": {"k": math.nan}}
    inputs = {"train": PRIVATE_HASH, "synthetic": "ab" * 32}
    return MetricResult(
        "dcr", estimates, {"distances": distances, "tails": tails}, settings, inputs, 3, ENGINE_VERSION, 1.25
    )


def membership(advantage: float = 0.01) -> MetricResult:
    curve = [
        {
            "score": s,
            "fpr": f,
            "tpr": f + advantage,
            "advantage": advantage,
            "low": advantage - 0.03,
            "high": advantage + 0.03,
        }
        for s in ("distance", "distance / reference")
        for f in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    ]
    shares = {"excellent": 0.55, "very good": 0.2, "good": 0.1, "moderate": 0.05, "poor": 0.04, "unavailable": 0.06}
    levels = [{"level": name, "attacks": round(400 * share), "share": share} for name, share in shares.items()]
    note = "fewer than 50 predicted positives"
    estimates = (
        estimate("advantage", advantage, advantage - 0.03, advantage + 0.03, direction="two_sided"),
        estimate("precision", math.nan, math.nan, math.nan, n=0, subjects=0, null=0.5, note=note),
        estimate("protection_score", 91.2, 89.0, 93.0, null=100.0, direction="lower_is_riskier"),
    )
    return MetricResult("membership_inference", estimates, {"curve": curve, "levels": levels}, seed=3, seconds=2.5)


def singling_out() -> MetricResult:
    counts = {
        "attacks": 2000,
        "hits_train": 9,
        "hits_holdout": 2,
        "rate_train": 0.1,
        "rate_holdout": 0.1,
        "giomi": None,
    }
    rows = [
        {"attack": a, "columns": c, "risk": 0.002 * c, "low": 0.002 * c - 0.03, "high": 0.002 * c + 0.03, **counts}
        for a in ("random", "outliers")
        for c in (1, 3, 6, 12)
    ]
    return MetricResult(
        "singling_out", (estimate("risk", 0.012, -0.02, 0.044),), {"configurations": rows}, seed=3, seconds=0.8
    )


LIMITS = (
    Limit("dcr.privacy_score", at_most=0.05, source="set by this project", advice="Train for fewer epochs."),
    Limit("dcr.member_excess", at_most=0.05, advice="Train for fewer epochs, or with more rows."),
    Limit("dcr.identical_excess", at_most=0.09, source="0.09: EMA Policy 0070", advice="Filter the copied rows."),
    Limit("singling_out.risk", at_most=0.09, advice="Drop rare values."),
    Limit("membership_inference.advantage", at_most=0.1, advice="Lower epsilon."),
    Limit("membership_inference.protection_score", at_least=60.0, bound="value", advice="Lower epsilon."),
)
UNJUDGED = Limit("membership_inference.precision", at_most=0.6, advice="Lower epsilon.")


def report(*results: MetricResult, limits: tuple[Limit, ...] = LIMITS, **more: Any) -> Report:
    found = {result.metric: result for result in results or (dcr(), singling_out(), membership())}
    policy = Policy(limits, name=more.pop("policy_name", "default"))
    sizes = {
        "train": {"rows": 12114, "columns": 10, "subjects": 3176},
        "synthetic": {"rows": 12114, "columns": 10, "subjects": 12114},
    }
    details = {
        "title": "patients",
        "tables": sizes,
        "seed": 3,
        "fingerprints": {"synthetic": "ab" * 32},
        "versions": {"python": "3.11"},
    }
    return Report(policy=policy, judgement=policy.judge(found), results=found, **{**details, **more})


def passing() -> Report:
    return report(
        generator={"name": "synthpop", "settings": {"min_leaf": 50}}, embedder={"epochs": 41, "accuracy": 0.103}
    )


def failing() -> Report:
    return report(dcr(0.31, 1.0), singling_out(), membership(0.62), limits=(*LIMITS, UNJUDGED))


def not_assessable() -> Report:
    return report(limits=(*LIMITS, UNJUDGED, Limit("linkability.risk", at_most=0.09)))


def hostile() -> Report:
    """Every text that a user or a metric can choose is hostile."""
    bad = Estimate("risk", 0.5, 0.4, 0.6, 100, 100, note=HOSTILE)
    tables = {
        HOSTILE: [{HOSTILE: HOSTILE, "x": math.nan}],
        "configurations": [{"attack": HOSTILE, "columns": HOSTILE, "risk": 0.5}],
    }
    result = MetricResult("singling_out", (bad,), tables, {HOSTILE: [HOSTILE]}, seed=0, seconds=1.0)
    levels = [{"level": HOSTILE, "attacks": 1, "share": 1.0}]
    curve = [{"score": HOSTILE, "fpr": 0.1, "advantage": 0.2, "low": 0.1, "high": 0.3}]
    other = MetricResult("membership_inference", (), {"levels": levels, "curve": curve})
    distances = [{"space": HOSTILE, "quantile": q, "srd": q, "rrd": q} for q in (0.1, 0.5)]
    limits = (
        Limit("singling_out.risk", at_most=0.1, source=HOSTILE, advice=HOSTILE),
        Limit(f"{HOSTILE.replace('.', '')}.x", at_most=1.0),
    )
    more = {
        "generator": {HOSTILE: HOSTILE},
        "embedder": {HOSTILE: 1},
        "fingerprints": {HOSTILE: HOSTILE},
        "tables": {HOSTILE: {"rows": 1}},
    }
    third = MetricResult("dcr", (), {"distances": distances})
    return report(
        result, other, third, MetricResult(HOSTILE, (bad,)), limits=limits, title=HOSTILE, policy_name=HOSTILE, **more
    )


ALL = (passing, failing, not_assessable, hostile)


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    VOID = frozenset({"meta", "br", "wbr", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def count(page: Page, tag: str, **attrs: str) -> int:
    return sum(name == tag and all(found.get(k) == v for k, v in attrs.items()) for name, found in page.tags)


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
def test_json_has_the_documented_form_and_no_nan(make):
    data = json.loads(json.dumps(make().to_json(), allow_nan=False))
    assert data["verdict"] in {"pass", "fail", "not_assessable"}
    assert (data["engine_version"], data["seed"]) == (ENGINE_VERSION, 3)
    for metric in data["metrics"].values():
        assert set(metric) == {"estimates", "tables", "settings", "seconds"}
        for values in metric["estimates"].values():
            assert {"value", "low", "high", "n", "subjects", "null", "confidence", "direction", "note"} <= set(values)
    for limit in data["limits"]:
        assert {"statistic", "limit", "bound", "measured", "passed", "status", "reason"} <= set(limit)


def test_json_tells_nan_as_null_and_keeps_the_raw_number():
    data = report(dcr(excess=0.123456789), membership()).to_json()
    assert data["metrics"]["membership_inference"]["estimates"]["precision"]["value"] is None
    assert data["metrics"]["dcr"]["settings"]["nested"] == {"k": None}
    assert data["metrics"]["dcr"]["estimates"]["member_excess"]["value"] == 0.123456789


@pytest.mark.parametrize("make", ALL)
def test_from_json_gives_the_same_report_in_every_form(make):
    again = Report.from_json(json.loads(json.dumps(make().to_json(), allow_nan=False)))
    assert again.to_json() == make().to_json()
    assert again.to_html() == make().to_html()
    assert again.to_text() == make().to_text()


def test_a_later_attempt_is_judged_at_its_own_level_wherever_the_report_is_read():
    estimate = Estimate("member_excess", 0.1, 0.0, 0.2, 900, 900, direction="two_sided")
    results = {"dcr": MetricResult("dcr", (estimate,))}
    policy = Policy((Limit("dcr.member_excess", at_most=0.22),))
    shown = {"title": "t", "policy": policy, "results": results, "tables": {}, "seed": 0, "engine_version": "1"}
    first, third = (Report(judgement=policy.judge(results, m), attempt=m, fingerprints={}, **shown) for m in (1, 3))
    assert (first.verdict, third.verdict) == ("pass", "fail")
    again = Report.from_json(json.loads(json.dumps(third.to_json(), allow_nan=False)))
    assert (again.attempt, again.verdict, again.to_json()) == (3, "fail", third.to_json())
    assert "at attempt 3" in again.to_html() and "at attempt 3" in again.to_text()
    with pytest.raises(ConfigError, match="its statistics give"):
        Report.from_json({**third.to_json(), "attempt": 1})


def test_rows_that_failed_before_fail_on_their_page_too():
    told = replace(passing(), remembered=("dcr.member_excess: 0.3 is above the limit 0.1",))
    assert told.verdict == "fail"
    assert "failed before" in told.to_text() and "0.3 is above the limit" in told.to_html()
    again = Report.from_json(json.loads(json.dumps(told.to_json())))
    assert again.verdict == "fail" and again.to_html() == told.to_html()
    assert "remembered" not in passing().to_json()


@pytest.mark.parametrize(("about", "said"), [("release", True), ("gate", False)])
def test_nobody_is_told_to_leave_out_a_limit_that_says_whether_the_gate_sees(about: str, said: bool):
    underpowered = Estimate("false_alarm_rate", math.nan, math.nan, math.nan, 900, 900, about=about)
    outcome = judge_limit(Limit("controls.false_alarm_rate", at_most=0.1), MetricResult("controls", (underpowered,)))
    assert outcome.status == "not_assessable"
    assert ("leave this limit out" in what_to_do(outcome)) is said


def test_from_json_refuses_a_verdict_that_its_statistics_do_not_give():
    with pytest.raises(ConfigError, match="its statistics give 'fail'"):
        Report.from_json({**failing().to_json(), "verdict": "pass"})


def test_fingerprints_of_the_inputs_of_metrics_are_never_shown():
    made = passing()
    for shown in (json.dumps(made.to_json()), made.to_html(), made.to_text(), made._repr_html_()):
        assert PRIVATE_HASH not in shown


def test_plain_names_objects_by_type_only():
    class Holder:
        def __repr__(self) -> str:
            raise AssertionError("a repr could hold private values")

    numpy_values = {"a": np.float64("nan"), "b": np.int64(3), "c": np.array([1.0, np.inf]), "d": np.bool_(True)}
    assert plain({**numpy_values, "e": {2, 1}, "f": len}) == {
        "a": None, "b": 3, "c": [1.0, None], "d": True, "e": [1, 2], "f": "<len>",
    }  # fmt: skip
    assert plain(Holder()).endswith("Holder>")


def test_versions_come_from_what_is_installed():
    found = installed_versions()
    assert found["numpy"] == np.__version__
    made = passing()
    assert (
        Report(title="t", policy=made.policy, judgement=made.judgement, results={}, tables={}, seed=0).versions == found
    )


# --- HTML -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("form", [Report.to_html, Report._repr_html_])
def test_html_is_well_formed_and_can_neither_run_nor_load_anything(make, form):
    text = form(make())
    page = Page(text)
    assert page.open == []
    allowed = {"http://www.w3.org/2000/svg"}
    for tag, attrs in page.tags:
        assert tag not in {"script", "iframe", "object", "embed", "link", "img", "base", "form", "image", "use", "a"}
        assert not [name for name in attrs if name.startswith("on") or name in {"src", "href", "srcset", "action"}]
        assert not [value for value in attrs.values() if "://" in (value or "") and value not in allowed]
    assert "url(" not in text
    assert "@import" not in text


@pytest.mark.parametrize("make", ALL)
def test_hidden_and_control_characters_never_reach_an_output(make):
    made = make()
    for text in (made.to_html(), made._repr_html_(), made.to_text()):
        assert not set(text) & set("\u202e\u2066\x1b\x00\u200b")
    assert max(map(len, made.to_html().split())) < 2000
    assert "W" * 700 not in made.to_html()


def test_hostile_text_is_shown_escaped():
    text = hostile().to_html()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\\u202e" in text
    assert "<script" not in text


def test_page_has_policy_language_width_and_schemes():
    text = passing().to_html()
    page = Page(text)
    csp = next(attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert csp == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert count(page, "html", lang="en") == 1
    assert count(page, "meta", name="viewport") == 1
    assert "prefers-color-scheme: dark" in text
    assert all("scope" in attrs for tag, attrs in page.tags if tag == "th")
    assert [tag for tag, _ in page.tags if tag in {"h1", "h2", "h3"}][:2] == ["h1", "h2"]


def test_the_fragment_for_notebooks_changes_nothing_around_it():
    tags = {tag for tag, _ in Page(failing()._repr_html_()).tags}
    assert not tags & {"style", "html", "body", "head", "script"}


def test_verdict_stands_first_then_what_to_do():
    text = failing().to_html()
    order = [
        "Fail</strong>",
        "are broken",
        "Filter the copied rows.",
        "Every limit of the policy",
        "Every statistic",
        "What was compared",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_limits_that_were_not_judged_are_not_called_broken():
    made = not_assessable()
    assert made.verdict == "not_assessable"
    text = made.to_html()
    assert "Broken limits" not in text
    assert "Fewer than 50 predicted positives." in text
    assert "linkability.risk was not computed." in text
    assert "Run the metric linkability" in text


def test_every_statistic_of_the_registry_is_explained():
    from privacy_assets.metrics.registry import statistic_specs

    for name, spec in statistic_specs().items():
        metric, _, short = name.partition(".")
        result = MetricResult(metric, (Estimate(short, 0.1, 0.0, 0.2, 5, 5),))
        words = " ".join(Page(report(result).to_html()).words)
        assert " ".join(spec.meaning.split()) in words


def test_every_known_table_is_drawn():
    page = Page(passing().to_html())
    assert count(page, "svg", **{"class": "plot"}) == 6  # distances twice, tails, configurations, curve, levels
    assert count(page, "polyline") == 4


def test_the_pairs_of_column_sets_are_drawn():
    rows = [{"sets": at, "columns": "4 + 4", "excess": 0.01, "low": -0.02, "high": 0.04} for at in range(1, 21)]
    page = Page(report(MetricResult("linkability", (), {"sets": rows})).to_html())
    assert count(page, "svg", **{"class": "plot"}) == 1


def test_unknown_metric_and_tables_are_shown_and_nothing_is_drawn():
    later = MetricResult(
        "later", (estimate("surprise", 0.25, 0.2, 0.3),), {"odd_rows": [{"a": 1}, {"b": "x"}], "none": []}, seed=3
    )
    text = report(later, limits=(Limit("later.surprise", at_most=0.5),)).to_html()
    page = Page(text)
    assert "later.surprise" in "".join(page.words)
    assert "Table: odd rows (2 rows)" in page.words
    assert count(page, "svg", **{"class": "plot"}) == 0


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{}],
        [{"space": None, "quantile": None, "srd": math.nan}],
        [
            {
                "fpr": "x",
                "advantage": math.inf,
                "risk": None,
                "columns": [1, 2],
                "excess": "a",
                "level": None,
                "share": -1.0,
            }
        ],
        [
            {
                "columns": [1, 2],
                "risk": 0.5,
                "tail": None,
                "excess": 0.0,
                "fpr": None,
                "advantage": 0,
                "level": 3,
                "share": 1,
                "column": 7,
                "points": True,
            }
        ],
    ],
)
@pytest.mark.parametrize(
    "metric", ["dcr", "singling_out", "linkability", "attribute_inference", "membership_inference"]
)
def test_strange_tables_leave_their_plot_out(metric, rows):
    names = ("distances", "tails", "configurations", "sets", "columns", "curve", "levels")
    result = MetricResult(metric, (), dict.fromkeys(names, rows))
    assert "<h2>How to read this</h2>" in report(result).to_html()


def test_report_without_results_is_not_assessable_and_renders():
    policy = Policy(LIMITS)
    empty = Report(title="", policy=policy, judgement=policy.judge({}), results={}, tables={}, seed=0)
    assert empty.verdict == "not_assessable"
    assert "No statistic was measured." in empty.to_html()
    assert "was not computed" in empty.to_text()


def test_long_tables_are_cut_in_the_page_and_whole_in_the_json():
    rows = [{"i": i} for i in range(500)]
    made = report(MetricResult("later", (), {"long": rows}))
    assert "The first 60 rows; the JSON report holds all." in made.to_html()
    assert len(made.to_json()["metrics"]["later"]["tables"]["long"]) == 500


def test_a_name_missing_from_the_view_is_an_error():
    from jinja2 import UndefinedError

    from privacy_assets.report.html import environment

    with pytest.raises(UndefinedError):
        environment().get_template("report.html.j2").render(title="only this")


@pytest.mark.parametrize("make", ALL)
def test_same_report_gives_the_same_bytes(make):
    for form in (Report.to_html, Report._repr_html_, Report.to_text):
        assert form(make()) == form(make())


# --- plain text -------------------------------------------------------------------------------------------------------


def test_text_is_aligned_and_says_the_verdict_first():
    lines = failing().to_text().splitlines()
    assert lines[0] == "FAIL  patients"
    start = next(i for i, line in enumerate(lines) if line.startswith("statistic"))
    header, rows = lines[start], lines[start + 2 : start + 2 + len(LIMITS) + 1]
    for word in ("value [low, high]", "limit  ", "verdict", "reason"):
        column = header.index(word)
        assert all(row[column - 1] == " " and row[column] != " " for row in rows), word
    assert "1 [0.97, 1.03]" in lines[start + 4]
    assert any("Filter the copied rows." in line for line in lines)
    assert len(rows) == len(LIMITS) + 1


def test_limits_with_the_same_advice_stand_together():
    made = report(dcr(0.31, 1.0), limits=tuple(replace(limit, advice="do this") for limit in LIMITS[:3]))
    assert "  dcr.member_excess, dcr.identical_excess: Do this." in made.to_text().splitlines()
    assert made.to_html().count("What to do.") == 1


def test_text_of_a_pass_has_no_advice():
    assert "What to do" not in passing().to_text()
    assert passing().to_text().startswith("PASS  patients\nAll 6 limits hold")


def test_wide_names_keep_the_columns():
    limits = (Limit("測定値.図", at_most=0.1), Limit("e\u0301tude.x", at_most=0.1), Limit("plain.y", at_most=0.1))
    table = [line for line in report(limits=limits).to_text().splitlines() if "was not computed" in line]
    assert len({width(line[: line.index("not measured")]) for line in table[:3]}) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (passing, "All 6 limits hold"),
        (failing, "3 of 7 limits are broken (dcr.member_excess, dcr.identical_excess, membership_inference.advantage)"),
        (not_assessable, "2 of 8 limits are not judged"),
    ],
)
def test_headline(make, words):
    assert words in headline(make())


def test_the_headline_names_what_needs_an_embedder():
    absent = estimate("privacy_score_embedded", math.nan, math.nan, math.nan, note="not measured: no embedder")
    made = report(replace(dcr(), estimates=(*dcr().estimates, absent)))
    assert "There was no embedder, so nothing is known of dcr.privacy_score_embedded." in made.to_html()
    assert "embedder" not in headline(passing())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.12345, "0.1235"),
        (-0.0, "0"),
        (math.nan, "–"),
        (None, "–"),
        (12114, "12,114"),
        (0.05004, "0.05004"),
        (math.inf, "inf"),
        (1, "1"),
    ],
)
def test_number(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\u202eb", "a\\u202eb"),
        ("a\tb\n\nc", "a b c"),
        ("\x1b[0m", "\\u001b[0m"),
        ("\U000e0041", "\\U000e0041"),
        ("e" + "\u0301" * 9, "e\u0301\u0301\u0301"),
    ],
)
def test_clean(value, shown):
    assert clean(value) == shown


def test_clean_cuts_in_the_middle():
    assert clean("a" * 99 + "b" * 99, 11) == "aaaaa…bbbbb"


# --- plots ------------------------------------------------------------------------------------------------------------

STRANGE = (
    Estimate("f", 0.0, 0.0, 0.0, 5, 5),
    Estimate("f", -1234567.8, -2e9, 3e12, 500, 500, null=math.nan),
    Estimate("f", 0.2, 0.1, math.inf, 5, 5, null=math.nan, direction="two_sided"),
)
OUTCOMES = [
    *(outcome for make in ALL for outcome in make().judgement.outcomes),
    *(judge_limit(Limit("m.f", at_most=limit), MetricResult("m", (f,))) for f in STRANGE for limit in (0.0, 1e-9, 0.1)),
    judge_limit(
        Limit("m.f", at_most=0.0, bound="lower"), MetricResult("m", (replace(STRANGE[0], direction="two_sided"),))
    ),
]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_interval_svg_is_small_well_formed_and_finite(outcome):
    text = plots.interval_svg(outcome)
    assert ET.fromstring(text).tag.endswith("svg")
    assert len(text) < 900
    assert "nan" not in text
    assert "inf" not in text


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_interval_markdown_fits_beside_other_metadata(outcome):
    text = plots.interval_markdown(outcome)
    assert len(text) < 1000
    alt, _, address = text[2:-1].partition("](data:image/svg+xml,")
    assert not set(alt) & set("[]<>\n")
    assert not set(address) & set("[]()<> \n")
    assert ET.fromstring(unquote(address)).tag.endswith("svg")


def test_interval_svg_shows_each_status_in_colour_and_shape():
    base = passing().judgement.outcomes[0]
    texts = {status: plots.interval_svg(replace(base, status=status)) for status in plots.COLOURS}
    for status, text in texts.items():
        assert [s for s, colour in plots.COLOURS.items() if colour in text] == [status]
    without_colour = {text.replace(plots.COLOURS[status], "") for status, text in texts.items()}
    assert len(without_colour) == 3


@pytest.mark.parametrize(("direction", "rects"), [("higher_is_riskier", 1), ("two_sided", 2)])
def test_interval_svg_shades_what_breaks_the_limit(direction, rects):
    found = estimate("f", 0.2, 0.1, 0.3, direction=direction)
    text = plots.interval_svg(judge_limit(Limit("m.f", at_most=0.5), MetricResult("m", (found,))))
    shaded = ET.fromstring(text).findall("{*}rect")
    assert len(shaded) == rects
    dot = float(ET.fromstring(text).find("{*}circle").get("cx"))
    assert not any(float(r.get("x")) <= dot <= float(r.get("x")) + float(r.get("width")) for r in shaded)


def test_interval_svg_shades_below_the_floor_of_a_score():
    found = estimate("f", 40.0, 30.0, 50.0, direction="lower_is_riskier")
    root = ET.fromstring(plots.interval_svg(judge_limit(Limit("m.f", at_least=60.0), MetricResult("m", (found,)))))
    shaded = root.find("{*}rect")
    low = float(root.findall("{*}path")[-2].get("d").split()[0][1:])
    assert float(shaded.get("x")) == 0
    assert low < float(shaded.get("width"))


@pytest.mark.parametrize(
    "values", [[0.0, 1.0], [0.0], [5.0], [-3.0, -3.0], [1e-12, 2e-12], [-1e9, 1e9], [math.nan], [], [0.013, 0.087]]
)
def test_ticks_enclose_the_values(values):
    ticks = plots.nice_ticks(values)
    finite = [v for v in values if math.isfinite(v)]
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))
    assert all(ticks[0] - 1e-9 * abs(ticks[0]) <= v <= ticks[-1] + 1e-9 * abs(ticks[-1]) for v in finite)


def test_logarithmic_places_keep_order_and_leave_out_what_has_no_logarithm():
    rows = [{"x": x, "y": 0.1} for x in (0.5, 0.0101, 0.0099, 0.0, -1.0, None)]
    root = ET.fromstring(plots.intervals_svg(rows, x="x", y="y", series=(), labels=("x", "y"), log=True))
    at = [float(mark.get("d").split()[0][1:]) for mark in root.iter("path") if mark.get("class", "").startswith("mark")]
    assert len(at) == 3
    assert at[0] - at[1] > 100 > at[1] - at[2] > 0
    assert {"0.01", "0.1", "0.5"} <= {text.text for text in root.iter("text")}


def test_curves_and_intervals_are_well_formed_for_hostile_names():
    rows = [{"g": HOSTILE, "x": i, "y": 0.1 * i, "low": 0.0, "high": 1.0} for i in range(30)]
    for text in (
        plots.intervals_svg(rows, x="x", y="y", series=("g",), labels=("a<b", "c&d")),
        plots.curves_svg(rows, {"x < y": ("x", "y")}, ("a<b", "c&d")),
    ):
        assert ET.fromstring(text).get("class") == "plot"


def attribute(*points: float | None) -> MetricResult:
    rows = [{"column": f"c{at}", "points": value, "weight": 0.5} for at, value in enumerate(points)]
    score = estimate("protection_score", 62.5, 60.0, 65.0, null=100.0, direction="lower_is_riskier")
    return MetricResult("attribute_inference", (score,), {"columns": rows}, seed=3, seconds=0.5)


def test_bars_have_the_length_and_the_colour_of_their_points():
    svg = ET.fromstring(
        bars_svg(attribute(100.0, None, 19.9, 60.0, math.nan, -5.0).tables["columns"], "column", "points")
    )
    rects = [(rect.get("class"), float(rect.get("width"))) for rect in svg.iter("rect")]
    full = max(width for _, width in rects)
    assert rects == [
        ("l4", 0),
        ("l4", pytest.approx(0.199 * full, abs=0.1)),
        ("l1", pytest.approx(0.6 * full)),
        ("l0", full),
    ]
    words = [text.text for text in svg.iter("text")]
    assert [word for word in words if word.startswith("c")] == ["c5", "c2", "c3", "c0"]
    many = bars_svg([{"c": HOSTILE, "p": float(at)} for at in range(99)], "c", "p")
    assert len(list(ET.fromstring(many).iter("rect"))) == 40
    assert bars_svg([{"c": "x", "p": None}, {"c": "y", "p": "80"}], "c", "p") == ""


def test_utility_stands_in_every_form_beside_that_of_real_rows():
    names = ("column_similarity", "pair_similarity", "correlation_difference", "prediction")
    found = [
        estimate(name + end, value, value - 0.01, value + 0.01)
        for at, name in enumerate(names)
        for end, value in (("", 0.611 + at / 100), ("_real", 0.711 + at / 100))
    ]
    made = report(dcr(), MetricResult("fidelity", tuple(found)))
    page, text = " ".join(" ".join(Page(made.to_html()).words).split()), " ".join(made.to_text().split())
    note = " ".join(" ".join(Page(made._repr_html_()).words).split())
    assert "0.611 [0.601, 0.621] 0.711 [0.701, 0.721]" in page
    for shown in (text, note):
        assert "column similarity 0.611 (real 0.711), pair similarity 0.621 (real 0.721)" in shown
    for less in (report(dcr()), report(dcr(), MetricResult("fidelity", (estimate("prediction", math.nan, 0, 0),)))):
        assert all("Usefulness" not in shown for shown in (less.to_html(), less.to_text(), less._repr_html_()))


def test_the_data_privacy_score_is_the_mean_with_the_worse_grade():
    both = report(membership(), attribute(80.0, 45.0))
    assert both.data_privacy_score == {
        "score": (91.2 + 62.5) / 2,
        "grade": "Very Good",
        "membership": 91.2,
        "attribute": 62.5,
    }
    assert both.to_json()["data_privacy_score"] == both.data_privacy_score
    assert "Data Privacy Score: 76.85, Very Good" in both.to_html()
    assert Report.from_json(json.loads(json.dumps(both.to_json()))).to_html() == both.to_html()
    for found in (
        report(membership()),
        report(attribute(80.0)),
        report(dcr(), MetricResult("attribute_inference", ()), membership()),
    ):
        assert found.data_privacy_score is None and "Data Privacy Score" not in found.to_html()
