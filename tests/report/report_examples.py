"""Reports with every verdict, one with hostile texts, and a page parser for the tests of
reports.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

from privacy_assets.metrics.base import score_row
from privacy_assets.policy import Limit, Policy
from privacy_assets.report.report import Report
from privacy_assets.stats.estimates import Estimate, MetricResult
from privacy_assets.version import PACKAGE_VERSION

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202egnp.exe\x1b[31m\x00\n"
    + "W" * 5000
)
PRIVATE_HASH = "f00d" * 16


def estimate(name: str, value: float, reach: float = 0.02, **more: Any) -> Estimate:
    return Estimate(
        name, value, value - reach, value + reach, **{"n": 8000, "subjects": 5294, **more}
    )


def dcr(excess: float = 0.004, identical: float = 0.01) -> MetricResult:
    distances = [
        {"space": space, "quantile": q, "srd": 2 * q**0.7, "rrd": 2 * q**0.6}
        for space in ("raw", "embedded")
        for q in (0.01, 0.1, 0.5, 0.99)
    ]
    tails = [
        {
            "space": space,
            "key": key,
            "tail": tail,
            "excess": excess,
            "low": excess - 0.02,
            "high": excess + 0.02,
        }
        for space in ("raw", "embedded")
        for key in ("distance", "ratio")
        for tail in (0.005, 0.02, 0.2)
    ]
    estimates = (
        estimate("privacy_score", 0.001, 0.008),
        estimate("member_excess", excess, direction="two_sided", minimum_detectable_effect=0.03),
        estimate("identical_excess", identical, 0.03, n=400, subjects=400),
    )
    settings = {"alpha": 0.02, "tails": [0.005, 0.02], "nested": {"k": math.nan}}
    inputs = {"train": PRIVATE_HASH, "synthetic": "ab" * 32}
    tables = {"distances": distances, "tails": tails}
    return MetricResult("dcr", estimates, tables, settings, inputs, 3, PACKAGE_VERSION, 1.25)


def membership(advantage: float = 0.01) -> MetricResult:
    curve = [
        {
            "score": score,
            "fpr": fpr,
            "advantage": advantage,
            "low": advantage - 0.03,
            "high": advantage + 0.03,
        }
        for score in ("distance", "distance / reference")
        for fpr in (0.01, 0.1, 0.5)
    ]
    note = "fewer than 50 predicted positives"
    estimates = (
        estimate("advantage", advantage, 0.03, direction="two_sided"),
        estimate("precision", math.nan, n=0, subjects=0, null=0.5, note=note),
    )
    return MetricResult("membership_inference", estimates, {"curve": curve}, seed=3, seconds=2.5)


def data_privacy() -> MetricResult:
    """Gretel's score of the membership attacks."""
    shares = {
        "excellent": 0.55,
        "very good": 0.2,
        "good": 0.1,
        "moderate": 0.05,
        "poor": 0.04,
        "unavailable": 0.06,
    }
    levels = [
        {"level": name, "attacks": round(400 * share), "share": share}
        for name, share in shares.items()
    ]
    known = {"null": 100.0, "direction": "lower_is_riskier"}
    estimates = (
        estimate("score", math.nan, n=0, subjects=0, note="one part was not measured", **known),
        estimate("membership_protection_score", 91.2, **known),
    )
    scores = [score_row("membership inference protection", 91.2, "Excellent")]
    return MetricResult(
        "data_privacy", estimates, {"graded_scores": scores, "levels": levels}, seed=3, seconds=0.1
    )


def singling_out() -> MetricResult:
    rows = [
        {
            "attack": attack,
            "columns": columns,
            "risk": 0.002 * columns,
            "low": -0.03,
            "high": 0.06,
            "giomi": None,
        }
        for attack in ("random", "outliers")
        for columns in (1, 3, 12)
    ]
    return MetricResult(
        "singling_out", (estimate("risk", 0.012),), {"configurations": rows}, seed=3, seconds=0.8
    )


LIMITS = (
    Limit(
        "dcr.privacy_score",
        at_most=0.05,
        source="set by this project",
        advice="Train for fewer epochs.",
    ),
    Limit("dcr.member_excess", at_most=0.05, advice="Train for fewer epochs, or with more rows."),
    Limit(
        "dcr.identical_excess",
        at_most=0.09,
        source="0.09: EMA Policy 0070",
        advice="Filter the copied rows.",
    ),
    Limit("singling_out.risk", at_most=0.09, advice="Drop rare values."),
    Limit("membership_inference.advantage", at_most=0.1, advice="Lower epsilon."),
    Limit(
        "data_privacy.membership_protection_score",
        at_least=60.0,
        bound="value",
        advice="Lower epsilon.",
    ),
)
UNJUDGED = Limit("membership_inference.precision", at_most=0.6, advice="Lower epsilon.")


def report(*results: MetricResult, limits: tuple[Limit, ...] = LIMITS, **more: Any) -> Report:
    shown = results or (dcr(), singling_out(), membership(), data_privacy())
    found = {result.metric: result for result in shown}
    policy = Policy(limits, name="example")
    sizes = {"train": {"rows": 12114, "columns": 10, "subjects": 3176}}
    details = {
        "title": "patients",
        "tables": sizes,
        "seed": 3,
        "versions": {"python": "3.11"},
        **more,
    }
    return Report(policy=policy, policy_verdict=policy.judge(found), results=found, **details)


def passing() -> Report:
    return report(
        generator={"name": "synthpop", "settings": {"min_samples_leaf": 50}},
        embedder={"epochs": 41},
    )


def failing() -> Report:
    return report(
        dcr(0.31, 1.0), singling_out(), membership(0.62), data_privacy(), limits=(*LIMITS, UNJUDGED)
    )


def undecided() -> Report:
    return report(limits=(*LIMITS, UNJUDGED, Limit("linkability.risk", at_most=0.09)))


def hostile() -> Report:
    """Every text that a user or a metric can choose is hostile."""
    bad = Estimate("risk", 0.5, 0.4, 0.6, 100, 100, note=HOSTILE)
    tables = {
        HOSTILE: [{HOSTILE: HOSTILE, "x": math.nan}],
        "configurations": [{"attack": HOSTILE, "columns": HOSTILE, "risk": 0.5}],
    }
    levels = [{"level": HOSTILE, "attacks": 1, "share": 1.0}]
    scored = score_row(HOSTILE, 1.0, HOSTILE, HOSTILE)
    curve = [{"score": HOSTILE, "fpr": 0.1, "advantage": 0.2, "low": 0.1, "high": 0.3}]
    results = (
        MetricResult("singling_out", (bad,), tables, {HOSTILE: [HOSTILE]}, seconds=1.0),
        MetricResult("membership_inference", (), {"curve": curve}),
        MetricResult("data_privacy", (), {"levels": levels, "graded_scores": [scored]}),
        MetricResult(
            "dcr",
            (),
            {"distances": [{"space": HOSTILE, "quantile": q, "srd": q} for q in (0.1, 0.5)]},
        ),
        MetricResult(HOSTILE, (bad,)),
    )
    limits = (
        Limit("singling_out.risk", at_most=0.1, source=HOSTILE, advice=HOSTILE),
        Limit(f"{HOSTILE.replace('.', '')}.x", at_most=1.0),
    )
    budget = {
        "epsilon": 1.5,
        "outside_guarantee": [HOSTILE],
        "accountant": HOSTILE,
        "covers": HOSTILE,
    }
    more = {
        "generator": {HOSTILE: HOSTILE, "overfitting": {HOSTILE: HOSTILE}, "privacy": budget},
        "embedder": {HOSTILE: 1},
        "fingerprints": {HOSTILE: HOSTILE},
        "tables": {HOSTILE: {"rows": 1}},
    }
    return report(*results, limits=limits, title=HOSTILE, **more)


ALL = (passing, failing, undecided, hostile)


class ParsedPage(HTMLParser):
    """Tags with their attributes, unclosed tags, and the words of a page."""

    VOID = frozenset({"meta", "br", "wbr", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self._data: list[str] = []
        self.feed(text)
        self.close()
        self.words = " ".join(" ".join(self._data).split())

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
        self._data.append(data)

    def count(self, tag: str, **attrs: str) -> int:
        return sum(
            name == tag and all(found.get(k) == v for k, v in attrs.items())
            for name, found in self.tags
        )


SHARES_ROOM = 324  # width in pixels of a full axis of shares


def svg_words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter("text")]


def bars(svg: str) -> list[tuple[str | None, float]]:
    return [
        (rect.get("class"), float(rect.get("width"))) for rect in ET.fromstring(svg).iter("rect")
    ]
