"""Audits: known leaks, seeds, threads, interruption, checkpoints, removal, and plans that cannot
work.
"""

from __future__ import annotations

import json
import stat
from math import isnan, log

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.copies import Copy
from privacy_assets.infra.progress import Lines
from privacy_assets.metrics.vulnerability import most_exposed, vulnerability
from privacy_assets.studies.shadow_membership import games
from privacy_assets.studies.shadow_membership.audit import AuditConfig, RecordAudit
from privacy_assets.studies.shadow_membership.rates import auc, choose_cut
from tests.metrics.coded_tables import coded, mixed, repeated, with_gaps
from tests.studies.shadow_standins import (
    Blind,
    CopyCells,
    Shuffled,
    outcome,
    small_audit,
    small_table,
)

WEAK = {"remove": 2, "tests": 40}
QUICK = {"shadows": 8, "tests": 4}


@pytest.fixture(scope="module")
def weak():
    """An audit of a generator that leaks a little."""
    return small_audit(Shuffled(), **WEAK)


def top(cells, coding, records):
    return most_exposed(
        vulnerability(cells, coding), records, np.random.default_rng(0)
    ).ids.tolist()


def wide(g, n):
    return pd.DataFrame(g.integers(0, 3, (n, 25)).astype(str), columns=[f"c{i}" for i in range(25)])


# --- known leaks
# --------------------------------------------------------------------------------------------------


def test_a_copy_gives_every_record_away_and_the_bound_over_records_pays_for_their_number():
    audit = small_audit(CopyCells(), max_targets=4, shadows=200, tests=60)
    assert audit.auc["mean"] == 1 and audit.auc["sd"] == 0
    for record in audit.records:
        assert record.auc.value == 1 and 0.6 < record.auc.low < 1
        assert 0 <= record.epsilon_lower_bound <= record.epsilon.certifiable
    assert (30, 0) in {(record.epsilon.right, record.epsilon.wrong) for record in audit.records}
    tail = (0.05 / 4 / 2) ** (1 / 30)
    assert audit.epsilon_lower_bound == pytest.approx(log(tail / (1 - tail)))
    assert audit.epsilon_lower_bound < max(record.epsilon_lower_bound for record in audit.records)


@pytest.mark.slow
def test_a_generator_that_ignores_its_table_gives_nobody_away():
    audit = small_audit(Blind(), max_targets=12, tests=100)
    assert abs(audit.auc["mean"] - 0.5) < 4 * 0.058 / 12**0.5
    assert audit.epsilon_lower_bound == 0
    assert sum(record.auc.low <= 0.5 <= record.auc.high for record in audit.records) >= 10
    assert audit.auc["low"] < 0.5 < audit.auc["high"]


def test_outliers_leak_more_than_common_rows_through_a_weak_leak():
    frame = mixed(np.random.default_rng(1), 300)
    frame.loc[[7, 8], "wage"] = [1e7, 2e7]
    frame["town"] = frame["town"].mask(frame.index == 7, "nowhere")
    exposed, common = (
        small_audit(Shuffled(), table=coded(frame), ids=(row,), tests=60, size=60)
        for row in (7, 20)
    )
    assert exposed.auc["mean"] > 0.75 > common.auc["mean"]


@pytest.mark.parametrize(
    ("table", "settings"),
    [(with_gaps, {}), (with_gaps, {"sampling": "bootstrap"}),
     pytest.param(wide, {"max_targets": 1, "shadows": 30, "tests": 8}, marks=pytest.mark.slow),
     (mixed, {"sample_size": 400, "size": 20})],
)  # fmt: skip
def test_copies_of_every_kind_of_table_are_found(table, settings):
    found = small_audit(CopyCells(), table=coded(table(np.random.default_rng(4), 240)), **settings)
    assert found.auc["mean"] > 0.95


def test_a_registered_generator_goes_through_frames_and_one_row_tells_little(monkeypatch):
    monkeypatch.setattr(games, "threads", lambda: 1)
    audit = small_audit(Copy(), max_targets=1, shadows=20, tests=8)
    assert audit.auc["mean"] == 1 and isnan(audit.auc["sd"])
    assert small_audit(CopyCells(), sample_size=1, tests=60).auc["mean"] < 0.7


def test_repeated_rows_equal_to_the_target_do_not_hide_it():
    table = coded(repeated(np.random.default_rng(0), 400))
    twin = next(row for row in range(400) if (table[0][:, [row]] == table[0]).all(axis=0).sum() > 1)
    assert small_audit(CopyCells(), table=table, ids=(twin,)).auc["mean"] == 1


# --- what is reported
# -------------------------------------------------------------------------------------------------


def test_statistics_come_from_the_scores_of_the_test_sets(weak):
    values = [record.auc.value for record in weak.records]
    for record in weak.records:
        assert len(record.scores) == 40 and record.labels.tolist() == [True, False] * 20
        assert record.auc == auc(record.scores, record.labels)
        assert "not measurable" in record.tpr[0.01].note
    every = (*weak.records, *weak.removal.before, *weak.removal.after)
    assert any(one.epsilon.cut != choose_cut(one.scores, one.labels, 40) for one in every), (
        "test sets choose no cut"
    )
    assert (weak.auc["mean"], weak.auc["sd"]) == pytest.approx(
        (np.mean(values), np.std(values, ddof=1))
    )
    low, high = stats.t.interval(0.95, 1, np.mean(values), stats.sem(values))
    assert (weak.auc["low"], weak.auc["high"]) == pytest.approx((max(low, 0), min(high, 1)))
    assert weak.cpu_seconds >= sum(record.cpu_seconds for record in weak.records) > 0


def test_json_comes_back_as_it_was(weak):
    data = json.loads(json.dumps(weak.to_json(), allow_nan=False))
    assert set(data) >= {"records", "auc", "cpu_seconds"} and set(data["auc"]) >= {"mean", "sd"}
    for record, stored in zip(weak.records, data["records"], strict=True):
        assert set(stored) >= {"id", "vulnerability", "auc", "epsilon_lower_bound"}
        assert set(stored["auc"]) == {"value", "low", "high"}
        assert RecordAudit.from_json(stored).to_json() == stored == record.to_json()


def test_the_most_vulnerable_are_attacked_and_after_removal_the_next_with_and_without_the_removed(
    weak,
):
    cells, coding = small_table()
    scores, gone = vulnerability(cells, coding), top(cells, coding, 2)
    assert [record.id for record in weak.records] == gone == list(weak.removal.removed)
    assert [record.vulnerability for record in weak.records] == scores[gone].tolist()
    rest = np.setdiff1d(np.arange(cells.shape[1]), gone)
    expected = rest[top(cells[:, rest], coding, 2)].tolist()
    before, after = weak.removal.before, weak.removal.after
    assert [record.id for record in before] == [record.id for record in after] == expected
    assert [record.vulnerability for record in before] == scores[expected].tolist()
    assert all(b.vulnerability <= a.vulnerability for b, a in zip(before, after, strict=True))
    means = weak.to_json()["removal"]
    for name, side in (("auc_before", before), ("auc_after", after)):
        assert means[name]["mean"] == pytest.approx(np.mean([record.auc.value for record in side]))


def test_given_rows_and_other_selections_still_tell_the_vulnerability():
    scores = vulnerability(*small_table())
    for select in ("random", "rare_value", "log_likelihood"):
        audit = small_audit(Blind(), select=select, **QUICK)
        assert [record.vulnerability for record in audit.records] == [
            scores[record.id] for record in audit.records
        ]
    audit = small_audit(Blind(), ids=(30, 4, 11), **QUICK)
    assert [record.id for record in audit.records] == [30, 4, 11]
    assert all(
        isnan(record.selected_by) and record.vulnerability == scores[record.id]
        for record in audit.records
    )


# --- people
# --------------------------------------------------------------------------------------------------


def test_who_is_removed_and_the_targets_other_rows_are_in_no_training_set(monkeypatch):
    drawn, original = [], games.Game.training_rows

    def spied(self, number):
        rows, seed = original(self, number)
        drawn.append((self.target, set(rows.tolist())))
        return rows, seed

    monkeypatch.setattr(games.Game, "training_rows", spied)
    people = np.arange(240) // 3
    audit = small_audit(Blind(), max_targets=1, remove=2, shadows=40, tests=20, subjects=people)
    gone = set(audit.removal.removed)
    assert len(gone) == 6 and gone == set(
        np.flatnonzero(np.isin(people, people[list(gone)])).tolist()
    )
    assert people[audit.removal.after[0].id] not in people[list(gone)]
    assert len(drawn) == 180
    assert any(rows & gone for _, rows in drawn[60:120]) and not any(
        rows & gone for _, rows in drawn[120:]
    )
    for target, rows in drawn:
        assert rows & set(np.flatnonzero(people == people[target]).tolist()) <= {target}
    assert len(set().union(*(rows for _, rows in drawn))) > 200


def test_rows_of_the_same_person_are_no_neighbors_and_one_of_them_is_chosen():
    frame = (
        mixed(np.random.default_rng(12), 200)
        .iloc[[0] * 6 + list(range(6, 200))]
        .reset_index(drop=True)
    )
    table, people = coded(frame), np.maximum(np.arange(200), 5)
    assert small_audit(Blind(), table=table, ids=(0,), **QUICK).records[0].vulnerability == 0
    assert (
        small_audit(Blind(), table=table, ids=(0,), subjects=people, **QUICK)
        .records[0]
        .vulnerability
        > 0
    )
    few = small_audit(
        Blind(), table=table, subjects=np.arange(200) // 100, max_targets=3, size=20, **QUICK
    ).records
    assert sorted(record.id // 100 for record in few) == [0, 1]  # of two people there are two
    with pytest.raises(InputError, match=r"subjects must have shape \(200,\), got \(199,\)"):
        small_audit(Blind(), table=table, subjects=people[1:])
    with pytest.raises(InputError, match="no subject remains"):
        small_audit(Blind(), table=table, remove=198, subjects=np.arange(200) // 3)


# --- seeds, threads, interruption
# -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_seed_gives_the_same_audit_on_any_number_of_threads(monkeypatch, weak):
    monkeypatch.setattr("privacy_assets.infra.parallel.threads", lambda: 3)
    assert outcome(small_audit(Shuffled(), **WEAK)) == outcome(weak)
    assert outcome(small_audit(Shuffled(), seed=1, **WEAK))["records"] != outcome(weak)["records"]


class Stop(Exception):
    pass


@pytest.fixture(autouse=True)
def _every_step_is_told(monkeypatch):
    monkeypatch.setattr("privacy_assets.infra.progress.EVERY", 0.0)


def interrupted(folder, step, **settings):
    """Run into ``folder`` until the given number of progress messages."""
    told = []

    def progress(message):
        told.append(message)
        if len(told) == step:
            raise Stop

    with pytest.raises(Stop):
        small_audit(progress=Lines(progress), checkpoint=folder, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 4, 10])
def test_an_interrupted_audit_goes_on_with_the_same_result(tmp_path, monkeypatch, weak, step):
    monkeypatch.setattr(games, "CODED_BLOCK", 16)
    folder, told = tmp_path / "new" / "checkpoint", []
    interrupted(folder, step, generator=Shuffled(), **WEAK)
    again = small_audit(Shuffled(), progress=Lines(told.append), checkpoint=folder, **WEAK)
    assert outcome(again) == outcome(weak)
    assert len(told) == 43 - step + (step == 1)  # 1 of the selection, 7 blocks of 6 records
    paths = [folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
    assert not list(folder.rglob("*.npz")), "features of finished records are dropped"
    told.clear()
    assert outcome(
        small_audit(Shuffled(), progress=Lines(told.append), checkpoint=folder, **WEAK)
    ) == outcome(weak)
    assert told == []


def test_a_checkpoint_of_another_audit_is_blocked(tmp_path):
    same = {"generator": Blind(), **QUICK, "checkpoint": tmp_path / "c"}
    small_audit(**same)
    table = small_table()
    table[0][0, 0] += 1
    for other in (
        {"shadows": 10},
        {"seed": 1},
        {"table": table},
        {"ids": (1, 2)},
        {"generator": CopyCells()},
    ):
        with pytest.raises(ConfigError, match="another audit"):
            small_audit(**{**same, **other})
    small_audit(**same)


def test_a_folder_that_holds_something_else_and_a_damaged_checkpoint_are_named(
    tmp_path, monkeypatch
):
    (tmp_path / "thesis.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(ConfigError, match="not a checkpoint"):
            small_audit(Blind(), checkpoint=folder)
    monkeypatch.setattr(games, "CODED_BLOCK", 16)
    interrupted(tmp_path / "c", 3, generator=Blind())
    (block, *_) = (tmp_path / "c" / "records").glob("*.npz")
    block.write_bytes(block.read_bytes()[:100])
    with pytest.raises(InputError, match="npz: the checkpoint cannot be read"):
        small_audit(Blind(), checkpoint=tmp_path / "c")
    block.unlink()
    small_audit(Blind(), checkpoint=tmp_path / "c")


# --- plans that cannot work
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shadows": 7}, "multiple of 2"),
        ({"attack": "querys"}, "'queries' or 'attention'"),
        ({"ids": ()}, "distinct rows"),
        ({"ids": (3, 3)}, "distinct rows"),
        ({"attack_settings": {"tree": 5}}, "Did you mean 'trees'"),
        ({"attack_settings": {"depth": 0}}, "depth"),
        ({"attack_settings": {1: 2}}, "attack_settings"),
    ],
)
def test_bad_plans_are_rejected_when_they_are_made(settings, words):
    with pytest.raises(ConfigError, match=words):
        AuditConfig(Blind(), **settings)


TWINS = pd.DataFrame({"a": [1] * 100 + list(range(2, 102)), "b": ["x"] * 200})
BOOLEANS = pd.DataFrame(np.random.default_rng(0).random((240, 2)) < 0.5, columns=["a", "b"])
ONE = mixed(np.random.default_rng(0), 1)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"size": 1000}, InputError, "auxiliary part has 160 rows .* training sets 1000"),
        ({"size": 100}, InputError, "test part has 80 rows"),
        ({"auxiliary_rows": 200, "test_rows": 41}, InputError, "exceed its 240 rows"),
        ({"auxiliary_rows": 240, "sampling": "bootstrap"}, InputError, "test part has 0 rows"),
        ({"table": coded(ONE)}, InputError, "auxiliary part has 0 rows"),
        ({"table": coded(TWINS), "ids": (0,), "size": 50}, InputError, "rows to draw from"),
        (
            {"table": coded(BOOLEANS), "select": "rare_value"},
            InputError,
            "no row is selected by rare_value",
        ),
        ({"ids": (3, 240)}, ConfigError, "no row 240"),
        ({"ids": (-1,)}, ConfigError, "no row -1"),
        ({"remove": 239}, ConfigError, "239 of 240"),
        ({"seed": -1}, ConfigError, "seed"),
    ],
)
def test_plans_that_do_not_fit_the_table_are_rejected(settings, error, words, tmp_path):
    with pytest.raises(error, match=words):
        small_audit(Blind(), **{"checkpoint": tmp_path / "c", **settings})


def test_parts_of_the_table_have_the_sizes_asked_for(monkeypatch):
    seen, original = [], games.blocks

    def spied(game, *rest):
        seen.append(game)
        return original(game, *rest)

    monkeypatch.setattr("privacy_assets.studies.shadow_membership.audit.blocks", spied)
    small_audit(Blind(), ids=(0,), auxiliary_rows=100, test_rows=60, **QUICK)
    (game,) = seen
    assert (
        len(game.auxiliary) + len(game.test) in (159, 160)
        and not np.intersect1d(game.auxiliary, game.test).size
    )
