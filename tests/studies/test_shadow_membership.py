"""Shadow membership: statistics against written-out counts, extremes, its output on records, and
when it runs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import CodedGenerator
from privacy_assets.generators.bayes import BayNet, PrivBayes
from privacy_assets.metrics.policies import choose_metrics, default_policy, load_policy
from privacy_assets.metrics.registry import build_metric, default_metrics
from privacy_assets.studies.shadow_membership import audit
from privacy_assets.studies.shadow_membership import metric as shadow_membership
from privacy_assets.studies.shadow_membership.audit import RecordAudit
from privacy_assets.studies.shadow_membership.metric import ShadowMembership
from privacy_assets.studies.shadow_membership.rates import auc, epsilon_bound
from privacy_assets.tables.encoding import MatrixCoding
from tests.metrics.given_tables import given, mixed

SECRET = 987_654.25
SMALL = {"max_targets": 3, "shadows": 60, "tests": 100, "size": 20}


@dataclass(frozen=True)
class Copies(CodedGenerator):
    """Copies a share of the training rows, and draws the others from the whole table."""

    name = "copies"
    summary = ""
    share: float = 1.0

    def _fit(self, train, schema, training):
        raise NotImplementedError

    @classmethod
    def load(cls, folder, manifest):
        raise NotImplementedError

    def drawer(self, cells, coding):
        def draw(rows, size, seed):
            rng = np.random.default_rng(seed)
            copied = np.resize(rows, size)
            return cells[
                :,
                np.where(
                    rng.random(size) < self.share, copied, rng.integers(0, cells.shape[1], size)
                ),
            ]

        return draw


def inputs(**more):
    train, holdout = mixed(90, 1), mixed(60, 2)
    holdout.loc[7, ["income", "region"]] = SECRET, "nowhere"
    return given(train, holdout, mixed(90, 3), **more)


def measured(share: float, **settings):
    return ShadowMembership(generator=Copies(share), **{**SMALL, **settings}).measure(inputs())


def judged(result):
    return default_policy(["shadow_membership"]).judge({"shadow_membership": result})


# --- the statistics
# --------------------------------------------------------------------------------------------------


def test_the_statistics_are_those_of_the_audit_written_out():
    metric, tables = ShadowMembership(generator=Copies(0.3), **SMALL), inputs()
    found = {estimate.name: estimate for estimate in metric.measure(tables).estimates}
    seed = int(tables.rng("shadow_membership").integers(2**31))
    coding = MatrixCoding.fit([tables.train, tables.holdout], tables.schema)
    cells = np.concatenate([coding.code(one) for one in (tables.train, tables.holdout)], axis=1)
    records = audit.run_audit(
        cells, coding, audit.AuditConfig(Copies(0.3), **SMALL), seed=seed
    ).records
    areas = []
    for record in records:
        inside, outside = record.scores[record.labels], record.scores[~record.labels]
        areas.append(np.mean([(a > b) + (a == b) / 2 for a in inside for b in outside]))
    assert found["auc"].value == pytest.approx(np.mean(areas))
    student = stats.t.ppf(0.975, 2) * np.std(areas, ddof=1) / math.sqrt(3)
    tests = math.sqrt(sum(((record.auc.high - record.auc.low) / 2) ** 2 for record in records)) / 3
    assert found["auc"].high - found["auc"].value == pytest.approx(max(student, tests))
    assert found["auc_worst"].value == pytest.approx(max(areas))
    rates = [auc(record.scores, record.labels, 1 - 0.05 / 3) for record in records]
    assert (found["auc_worst"].low, found["auc_worst"].high) == (
        max(r.low for r in rates),
        max(r.high for r in rates),
    )
    assert found["auc_worst"].high > max(record.auc.high for record in records)
    assert (found["auc"].n, found["auc_worst"].n) == (300, 100)
    assert found["auc"].subjects == found["auc_worst"].subjects == SMALL["shadows"]
    bounds = [
        epsilon_bound(record.scores, record.labels, record.epsilon.cut, 1 - 0.05 / 3)
        for record in records
    ]
    epsilon = found["epsilon_lower_bound"]
    assert epsilon.low == epsilon.value == epsilon.high == max(bound.value for bound in bounds)
    most = math.log(stats.beta.ppf(0.05 / 6, 50, 1) / stats.beta.ppf(1 - 0.05 / 6, 1, 50))
    assert epsilon.note == f"a lower bound; these counts can show {most:.3g} at most"


def test_copies_are_the_worst_and_a_table_of_its_own_is_at_the_null():
    worst, null = measured(1.0), measured(0.0)
    assert worst.estimate("auc").value > 0.97 and worst.estimate("epsilon_lower_bound").value > 1.2
    area = null.estimate("auc")
    assert area.low < 0.5 < area.high and area.high < area.minimum_detectable_effect + 0.02
    assert null.estimate("epsilon_lower_bound").value < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("share", "verdict"), [(1.0, "fail"), (0.0, "pass")])
def test_the_verdict_of_copies_and_of_a_table_of_its_own(share, verdict):
    found = measured(share, max_targets=8, tests=200, shadows=1000)
    assert judged(found).status == verdict


def test_few_tests_are_undecided():
    found = measured(0.0, max_targets=1, tests=20)
    assert {outcome.status for outcome in judged(found).outcomes} == {"undecided"}
    low = found.estimate("tpr_at_low_fpr")
    assert not low.measurable and "at least 1,000 test sets" in low.note


@pytest.mark.slow
@pytest.mark.parametrize(
    "weaker",
    [{"shadows": 20}, {"select": "random"}, {"sample_size": 1}, {"attack_settings": {"trees": 1}}],
    ids=lambda weaker: next(iter(weaker)),
)
def test_a_weak_attack_is_no_evidence_of_safety(weaker):
    found = measured(0.0, **{"max_targets": 2, "tests": 500, "shadows": 1000, **weaker})
    assert {outcome.status for outcome in judged(found).outcomes} == {"undecided"}


def test_a_stronger_attack_is_evidence_too():
    metric = ShadowMembership(generator=Copies(0.0), attack_settings={"trees": 200}, shadows=1000)
    assert metric._shadows_as_evidence() == 1000
    attention = {"attack": "attention", "shadows": 1000}
    stronger = {"device": "cuda", "patience": None, "epochs": 600}
    assert ShadowMembership(**attention, attack_settings=stronger)._shadows_as_evidence() == 1000
    assert (
        ShadowMembership(**attention, attack_settings={"learning_rate": 1.0})._shadows_as_evidence()
        == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize(("records", "tests"), [(1, 200), (5, 60)])
def test_the_minimum_detectable_effect_holds_what_no_leak_shows(records: int, tests: int):
    rng = np.random.default_rng(0)
    labels = np.arange(tests) % 2 == 0
    together = 1 - 0.05 / records
    ends = []
    for _ in range(300):
        audited = tuple(record(rng.random(tests), labels) for _ in range(records))
        worst = max(auc(one.scores, labels, together).high for one in audited)
        ends.append((shadow_membership._mean(audited)[2], worst))
    bounds = shadow_membership._null_bounds(audited, together, rng)
    above = (np.array(ends) > bounds).mean(axis=0)
    assert (above <= 0.02).all() and bounds[0] < 0.75


def record(scores: np.ndarray, labels: np.ndarray):
    return RecordAudit(
        0,
        0.0,
        0.0,
        auc(scores, labels),
        {},
        epsilon_bound(scores, labels, None),
        labels,
        scores,
        0.0,
    )


def test_the_curve_counts_tables_above_the_threshold():
    rng = np.random.default_rng(1)
    scores, labels = np.round(rng.normal(size=300), 1), rng.random(300) < 0.4
    outside, inside = scores[~labels], scores[labels]
    for fpr, found in zip(
        shadow_membership._CURVE, shadow_membership._tpr(scores, labels), strict=True
    ):
        if fpr * len(outside) < 1 - 1e-9:
            assert math.isnan(found)
            continue
        reached = [
            (inside > cut).mean()
            for cut in [-np.inf, *outside]
            if (outside > cut).mean() <= fpr + 1e-12
        ]
        assert found == pytest.approx(max(reached))
    assert fpr == found == 1


# --- output on records
# ------------------------------------------------------------------------------------------------


def test_records_are_named_by_role_and_row_and_show_no_values():
    result = measured(0.5)
    rows = result.tables["records"]
    assert (rows[0]["role"], rows[0]["row"]) == ("holdout", 7)
    assert [row["record"] for row in rows] == [1, 2, 3]
    assert [row["vulnerability"] for row in rows] == sorted(
        (row["vulnerability"] for row in rows), reverse=True
    )
    text = json.dumps(result.to_json(), allow_nan=False)
    assert str(SECRET) not in text and "nowhere" not in text
    curve = result.tables["roc"]
    assert [row["fpr"] for row in curve] == sorted(row["fpr"] for row in curve)
    assert curve[-1] == {"fpr": 1.0, "all": 1.0, "worst": 1.0}


def test_every_real_table_is_audited_and_the_synthetic_one_is_not(monkeypatch: pytest.MonkeyPatch):
    seen = {}

    def spy(cells, coding, plan, **more):
        seen.update(more, rows=cells.shape[1], plan=plan)
        raise InputError("enough")

    monkeypatch.setattr(audit, "run_audit", spy)
    people = {"train": np.arange(90) // 3, "holdout": 100 + np.arange(60) // 2}
    for declared in ({}, people):
        with pytest.raises(InputError, match="enough"):
            ShadowMembership(generator=Copies(), attack="attention").measure(
                inputs(subjects=declared, device="mps")
            )
        assert seen["rows"] == 150
        codes = seen["subjects"]
        assert (
            codes is None
            if not declared
            else (codes[:4].tolist() == [0, 0, 0, 1] and codes.max() == 59)
        )
    assert seen["plan"].attack_settings == {"device": "mps"}
    with pytest.raises(InputError, match="enough"):
        ShadowMembership(generator=Copies()).measure(inputs())
    assert seen["plan"].attack_settings == {} and seen["plan"].shadows == 4000


def test_too_few_rows_are_an_error_that_says_so():
    with pytest.raises(InputError, match="training sets 1000"):
        ShadowMembership(generator=Copies()).measure(inputs())


# --- when it runs
# --------------------------------------------------------------------------------------------------


def test_it_runs_when_it_is_asked_for():
    assert (
        "shadow_membership" not in default_metrics()
        and "shadow_membership" not in default_policy().metrics
    )
    limit = {"statistic": "shadow_membership.auc", "at_most": 0.6}
    metrics, _ = choose_metrics(
        None, load_policy({"extends": "default", "limits": [limit]}), BayNet()
    )
    assert set(metrics) == {*default_policy().metrics, "shadow_membership"}
    assert metrics["shadow_membership"].settings()["generator"] == {
        "name": "baynet",
        "settings": BayNet().settings(),
    }
    alone, in_force = choose_metrics("shadow_membership", None, BayNet())
    assert set(alone) == {"shadow_membership"} and (in_force.name, in_force.part_of) == (
        "custom",
        "default",
    )


def test_no_generator_but_that_of_the_table_is_attacked():
    own = {"shadow_membership": {"generator": {"name": "baynet", "settings": {"degree": 2}}}}
    for made_by in (None, BayNet(degree=2)):
        metric = choose_metrics(own, None, made_by)[0]["shadow_membership"]
        assert metric.settings()["generator"]["settings"]["degree"] == 2
    for made_by in (BayNet(), PrivBayes(degree=2)):
        with pytest.raises(ConfigError, match="another generator than the synthetic table"):
            choose_metrics(own, None, made_by)
    settings = ShadowMembership(generator=Copies(0.25)).settings()
    assert settings["generator"] == {"name": "copies", "settings": {"share": 0.25}}


def test_without_a_generator_it_is_an_error_that_names_the_fix():
    with pytest.raises(ConfigError, match="generator: baynet"):
        choose_metrics("shadow_membership", None)
    with pytest.raises(ConfigError, match="generator: baynet"):
        build_metric("shadow_membership").measure(inputs())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tests": 99}, "tests: Input should be a multiple of 2"),
        ({"attack": "attention", "attack_settings": {"epoch": 1}}, "no setting 'epoch'"),
        ({"generator": {"name": "baynet", "degree": 2}}, "a mapping of 'name' and 'settings'"),
        (
            {"generator": {"name": "baynet", "settings": 2}},
            "settings of a generator must be a mapping",
        ),
        ({"generator": 3}, "generator must be a name"),
    ],
)
def test_settings_that_cannot_be_used_are_errors_at_once(settings: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        build_metric("shadow_membership", settings)


def test_the_interval_of_one_record_is_its_own():
    one = record(np.arange(20.0), np.arange(20) % 2 == 0)
    assert shadow_membership._mean((one,)) == (one.auc.value, one.auc.low, one.auc.high)
