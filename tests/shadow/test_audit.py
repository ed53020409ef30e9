"""Audits: known leaks, seeds, threads, interruption, checkpoints, removal, and plans that cannot work."""

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
from privacy_assets.shadow import games
from privacy_assets.shadow.attacks import ATTACKS
from privacy_assets.shadow.audit import AuditPlan, RecordAudit
from privacy_assets.shadow.rates import auc
from privacy_assets.shadow.selection import most_exposed
from privacy_assets.shadow.vulnerability import vulnerability
from tests.shadow.coded_tables import coded, mixed, repeated, with_gaps
from tests.shadow.shadow_standins import Blind, CopyCells, Shuffled, outcome, small_audit, small_table


def top(table, records):
    cells, coding = table
    return most_exposed(vulnerability(cells, coding), records, np.random.default_rng(0))


# --- known leaks ------------------------------------------------------------------------------------------------------


def test_a_copy_gives_every_record_away():
    audit = small_audit(CopyCells(), records=3)
    assert audit.auc["mean"] == 1 and audit.auc["sd"] == 0
    for record in audit.records:
        assert record.auc.value == 1 and 0.6 < record.auc.low < 1
        assert 0 <= record.epsilon_lower_bound <= record.epsilon.certifiable
    assert max(record.epsilon_lower_bound for record in audit.records) > 0.5


def test_a_registered_generator_goes_through_frames(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    audit = small_audit(Copy(), records=1, shadows=20, tests=8)
    assert audit.auc["mean"] == 1 and isnan(audit.auc["sd"])


def test_a_generator_that_ignores_its_table_gives_nobody_away():
    audit = small_audit(Blind(), records=12, tests=100)
    assert abs(audit.auc["mean"] - 0.5) < 4 * 0.058 / 12**0.5
    assert audit.epsilon_lower_bound == 0
    covered = [record.auc.low <= 0.5 <= record.auc.high for record in audit.records]
    assert sum(covered) >= 10
    assert audit.auc["low"] < 0.5 < audit.auc["high"]


def test_outliers_leak_more_than_common_rows_through_a_weak_leak():
    frame = mixed(np.random.default_rng(1), 300)
    frame.loc[[7, 8], "wage"] = [1e7, 2e7]
    frame["town"] = frame["town"].mask(frame.index == 7, "nowhere")
    table = coded(frame)
    exposed, common = (small_audit(Shuffled(), table=table, ids=(row,), tests=60, size=60) for row in (7, 20))
    assert exposed.auc["mean"] > 0.75 > common.auc["mean"]


def test_repeated_rows_equal_to_the_target_do_not_hide_it():
    table = coded(repeated(np.random.default_rng(0), 400))
    twin = next(row for row in range(400) if (table[0][:, [row]] == table[0]).all(axis=0).sum() > 1)
    assert small_audit(CopyCells(), table=table, ids=(twin,)).auc["mean"] == 1


@pytest.mark.parametrize("sampling", ["subsample", "bootstrap"])
def test_missing_values_and_every_kind_of_column_go_through(sampling):
    table = coded(with_gaps(np.random.default_rng(4), 240))
    assert small_audit(CopyCells(), table=table, sampling=sampling).auc["mean"] > 0.95


def test_wide_tables_go_through():
    g = np.random.default_rng(0)
    table = coded(pd.DataFrame(g.integers(0, 3, (240, 25)).astype(str), columns=[f"c{i}" for i in range(25)]))
    audit = small_audit(CopyCells(), table=table, records=1, shadows=30, tests=8)
    assert audit.auc["mean"] == 1


def test_sets_of_other_sizes_go_through():
    audit = small_audit(CopyCells(), sample_size=400, size=20)
    assert audit.auc["mean"] == 1
    assert small_audit(CopyCells(), sample_size=1, tests=60).auc["mean"] < 0.7


# --- what is reported -------------------------------------------------------------------------------------------------


def test_statistics_come_from_the_scores_of_the_test_sets():
    audit = small_audit(Shuffled(), records=3, tests=40)
    values = [record.auc.value for record in audit.records]
    for record in audit.records:
        assert len(record.scores) == 40 and record.labels.tolist() == [True, False] * 20
        assert record.auc == auc(record.scores, record.labels)
        assert "not measurable" in record.tpr[0.01].note
    assert audit.auc["mean"] == pytest.approx(np.mean(values)) and audit.auc["sd"] == pytest.approx(
        np.std(values, ddof=1)
    )
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (audit.auc["low"], audit.auc["high"]) == pytest.approx((max(low, 0), min(high, 1)))
    assert audit.cpu_seconds >= sum(record.cpu_seconds for record in audit.records) > 0


def test_the_bound_over_records_pays_for_their_number():
    audit = small_audit(CopyCells(), records=4, shadows=200, tests=60)
    assert {(record.epsilon.right, record.epsilon.wrong) for record in audit.records} >= {(30, 0)}
    tail = (0.05 / 4 / 2) ** (1 / 30)
    assert audit.epsilon_lower_bound == pytest.approx(log(tail / (1 - tail)))
    assert audit.epsilon_lower_bound < max(record.epsilon_lower_bound for record in audit.records)


def test_the_most_vulnerable_records_are_attacked_first():
    table = small_table()
    expected = top(table, 3)
    audit = small_audit(Blind(), table=table, records=3)
    assert [record.id for record in audit.records] == expected.ids.tolist()
    assert [record.vulnerability for record in audit.records] == expected.scores.tolist()


@pytest.mark.parametrize("select", ["random", "rare_value", "log_likelihood"])
def test_other_selections_still_tell_the_vulnerability(select):
    table = small_table()
    scores = vulnerability(*table)
    audit = small_audit(Blind(), table=table, select=select, shadows=8, tests=4)
    assert [record.vulnerability for record in audit.records] == [scores[record.id] for record in audit.records]


def test_given_rows_are_attacked_in_their_order():
    audit = small_audit(Blind(), ids=(30, 4, 11), shadows=8, tests=4)
    assert [record.id for record in audit.records] == [30, 4, 11]
    assert all(isnan(record.selected_by) and record.vulnerability > 0 for record in audit.records)


def test_json_comes_back_as_it_was():
    audit = small_audit(Shuffled(), ids=(3, 9))
    data = json.loads(json.dumps(audit.to_json(), allow_nan=False))
    assert set(data) >= {"records", "auc", "cpu_seconds"} and set(data["auc"]) >= {"mean", "sd"}
    for record, stored in zip(audit.records, data["records"], strict=True):
        assert set(stored) >= {"id", "vulnerability", "auc", "epsilon_lower_bound"}
        assert set(stored["auc"]) == {"value", "low", "high"}
        assert RecordAudit.from_json(stored).to_json() == stored == record.to_json()


# --- seeds, threads, interruption -------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_audit_on_any_number_of_threads(monkeypatch):
    found = []
    for threads in ("1", "2", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        found.append(outcome(small_audit(Shuffled())))
    assert found[0] == found[1] == found[2]
    assert outcome(small_audit(Shuffled(), seed=1)) != found[0]


class Stop(Exception):
    pass


def interrupted_at(step):
    told = []

    def progress(message):
        told.append(message)
        if len(told) == step:
            raise Stop

    return progress, told


@pytest.mark.parametrize("step", [1, 2, 4, 7, 10])
def test_an_interrupted_audit_goes_on_with_the_same_result(tmp_path, monkeypatch, step):
    monkeypatch.setattr(games, "CODED_BLOCK", 16)
    whole = small_audit(Shuffled(), remove=2)
    progress, _ = interrupted_at(step)
    folder = tmp_path / "new" / "checkpoint"
    with pytest.raises(Stop):
        small_audit(Shuffled(), remove=2, progress=progress, checkpoint=folder)
    _, told = interrupted_at(0)
    again = small_audit(Shuffled(), remove=2, progress=told.append, checkpoint=folder)
    assert outcome(again) == outcome(whole)
    assert len(told) <= 31 - step + (step == 1)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()] if path.is_dir()} == {0o700}
    assert not list(folder.rglob("*.npz")), "features of finished records are dropped"
    done = []
    assert outcome(small_audit(Shuffled(), remove=2, progress=done.append, checkpoint=folder)) == outcome(whole)
    assert done == []


def test_a_checkpoint_of_another_audit_is_refused(tmp_path):
    small_audit(Blind(), shadows=8, tests=4, checkpoint=tmp_path / "c")
    table = small_table()
    table[0][0, 0] += 1
    others = [{"shadows": 10}, {"seed": 1}, {"table": table}, {"ids": (1, 2)}, {"remove": 1}]
    for other in others:
        with pytest.raises(ConfigError, match="another audit"):
            small_audit(Blind(), **{"shadows": 8, "tests": 4, "checkpoint": tmp_path / "c", **other})
    with pytest.raises(ConfigError, match="another audit"):
        small_audit(CopyCells(), shadows=8, tests=4, checkpoint=tmp_path / "c")
    small_audit(Blind(), shadows=8, tests=4, checkpoint=tmp_path / "c")


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(ConfigError, match="not a checkpoint"):
            small_audit(Blind(), checkpoint=folder)


def test_a_damaged_checkpoint_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(games, "CODED_BLOCK", 16)
    progress, _ = interrupted_at(3)
    with pytest.raises(Stop):
        small_audit(Blind(), progress=progress, checkpoint=tmp_path / "c")
    (block, *_) = (tmp_path / "c" / "records").glob("*.npz")
    block.write_bytes(block.read_bytes()[:100])
    with pytest.raises(InputError, match="npz: the checkpoint cannot be read"):
        small_audit(Blind(), checkpoint=tmp_path / "c")
    block.unlink()
    small_audit(Blind(), checkpoint=tmp_path / "c")


# --- removal ----------------------------------------------------------------------------------------------------------


def test_after_removal_the_next_are_attacked_with_and_without_the_removed():
    table = small_table()
    audit = small_audit(CopyCells(), table=table, records=2, remove=3)
    removal = audit.removal
    gone = top(table, 3).ids.tolist()
    assert list(removal.removed) == gone and [record.id for record in audit.records] == gone[:2]
    cells, coding = table
    rest = np.setdiff1d(np.arange(cells.shape[1]), gone)
    expected = rest[top((cells[:, rest], coding), 2).ids].tolist()
    for side in (removal.before, removal.after):
        assert [record.id for record in side] == expected
        assert all(record.auc.value == 1 for record in side)
    whole = vulnerability(cells, coding)
    assert [record.vulnerability for record in removal.before] == [whole[row] for row in expected]
    assert all(b.vulnerability <= a.vulnerability for b, a in zip(removal.before, removal.after, strict=True))
    assert audit.to_json()["removal"]["auc_before"]["mean"] == 1


def test_removed_rows_are_in_no_training_set(monkeypatch):
    drawn, original = [], games.Game.training_rows

    def spied(self, number):
        rows, seed = original(self, number)
        drawn.append((self.target, set(rows.tolist())))
        return rows, seed

    monkeypatch.setattr(games.Game, "training_rows", spied)
    audit = small_audit(Blind(), records=1, remove=5, shadows=40, tests=20)
    gone = set(audit.removal.removed)
    (first, after) = (audit.records[0].id, audit.removal.after[0].id)
    assert first != after and len(drawn) == 180
    assert any(rows & gone for _, rows in drawn[60:120]) and not any(rows & gone for _, rows in drawn[120:])


def test_a_removed_person_leaves_with_all_rows():
    table = small_table()
    people = np.arange(table[0].shape[1]) // 3
    audit = small_audit(Blind(), table=table, records=2, remove=2, shadows=8, tests=8, subjects=people)
    gone = audit.removal.removed
    assert len(gone) == 6 and sorted(gone) == np.flatnonzero(np.isin(people, people[list(gone)])).tolist()
    assert not {people[record.id] for record in audit.removal.after} & set(people[list(gone)])
    with pytest.raises(InputError, match="nobody is left"):
        small_audit(Blind(), table=table, remove=table[0].shape[1] - 2, subjects=people)


# --- plans that cannot work -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"records": 0}, "records"), ({"shadows": 7}, "even"), ({"tests": 2}, "at least 4"), ({"size": 1}, "size"),
     ({"auxiliary": 1.0}, "above 0 and below 1"), ({"sampling": "bootstrp"}, "Did you mean 'bootstrap'"),
     ({"attack": "querys"}, "Did you mean 'queries'"), ({"remove": -1}, "remove"), ({"sample_size": 0}, "sample_size"),
     ({"neighbours": 0}, "neighbours"), ({"records": True}, "records"), ({"ids": ()}, "ids"),
     ({"ids": (3, 3)}, "different rows")],
)  # fmt: skip
def test_bad_plans_are_refused_when_they_are_made(settings, words):
    with pytest.raises(ConfigError, match=words):
        AuditPlan(Blind(), **settings)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [({"size": 1000}, InputError, "auxiliary part has 160 rows .* training sets 1000"),
     ({"size": 100}, InputError, "test part has 80 rows"),
     ({"auxiliary_rows": 200, "test_rows": 41}, InputError, "more than its 240 rows"),
     ({"auxiliary_rows": 240, "sampling": "bootstrap"}, InputError, "test part has 0 rows"),
     ({"ids": (3, 240)}, ConfigError, "no row 240"), ({"ids": (-1,)}, ConfigError, "no row -1"),
     ({"select": "distanc"}, ConfigError, "Did you mean 'distance'"), ({"distance": "cosin"}, ConfigError, "'cosine'"),
     ({"remove": 239}, ConfigError, "239 of 240"), ({"seed": -1}, ConfigError, "seed"),
     ({"attack_settings": {"tree": 5}}, ConfigError, "Did you mean 'trees'"),
     ({"attack_settings": {"depth": 0}}, ConfigError, "depth")],
)  # fmt: skip
def test_plans_that_do_not_fit_the_table_are_refused(settings, error, words, tmp_path):
    with pytest.raises(error, match=words):
        small_audit(Blind(), **{"checkpoint": tmp_path / "c", **settings})


def test_a_selection_of_nobody_is_refused():
    g = np.random.default_rng(0)
    table = coded(pd.DataFrame({"a": g.random(240) < 0.5, "b": g.random(240) < 0.5}))
    with pytest.raises(InputError, match="no row is selected by rare_value"):
        small_audit(Blind(), table=table, select="rare_value")


def test_a_table_of_one_row_is_refused():
    with pytest.raises(InputError, match="auxiliary part has 0 rows"):
        small_audit(Blind(), table=coded(mixed(np.random.default_rng(0), 1)))


def test_a_pool_that_is_too_small_without_the_targets_twins_is_refused():
    table = coded(pd.DataFrame({"a": [1] * 100 + list(range(2, 102)), "b": ["x"] * 200}))
    with pytest.raises(InputError, match="rows to draw from"):
        small_audit(Blind(), table=table, ids=(0,), size=50)


def test_parts_of_the_table_have_the_sizes_asked_for(monkeypatch):
    seen = {}

    def spied(game, *rest):
        seen["sizes"] = (len(game.auxiliary), len(game.test))
        seen["shared"] = np.intersect1d(game.auxiliary, game.test).size
        return original(game, *rest)

    original = games.blocks
    monkeypatch.setattr("privacy_assets.shadow.audit.blocks", spied)
    small_audit(Blind(), ids=(0,), auxiliary_rows=100, test_rows=60, shadows=8, tests=4)
    assert sum(seen["sizes"]) in (159, 160) and seen["shared"] == 0


def test_the_attacks_are_registered_by_name():
    assert "queries" in ATTACKS
