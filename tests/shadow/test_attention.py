"""Target attention: what it reads of a table, the network against algorithm 1 written out, and what it learns."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.copies import Copy
from privacy_assets.shadow import attention_training, audit
from privacy_assets.shadow.attention import AttentionAttack
from privacy_assets.shadow.attention_settings import AttentionSettings
from privacy_assets.shadow.audit import AuditPlan, run_audit
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.schema import TableSchema, infer_schema
from privacy_assets.tables.table import Table


def table(rows: int, rng: np.random.Generator) -> tuple[Coding, np.ndarray]:
    """Every kind of column, missing values, a constant column, many equal rows."""
    age = pd.array(rng.integers(0, 3, rows), dtype="Int64")
    age[rng.random(rows) < 0.3] = pd.NA
    frame = pd.DataFrame(
        {
            "weight": np.round(rng.normal(size=rows)) * 10.0,
            "age": age,
            "town": rng.choice(["a", "b", None], rows),
            "same": 7.0,
            "smoker": pd.array(rng.random(rows) < 0.5, dtype="boolean"),
            "seen": pd.to_datetime(rng.choice(["2020-01-01", "2020-01-05"], rows)),
        }
    )
    schema = infer_schema(frame)
    canonical = Table.of(frame, schema, where="given")
    coding = Coding.fit([canonical], schema)
    return coding, coding.code(canonical)


def attributes_twin(cells: np.ndarray, pool: np.ndarray, coding: Coding) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, p) scaled over the pool, and categories (n, q) with indicators; only attributes that vary."""
    numbers, codes = [], []
    for column in range(len(cells)):
        known = pool[column][~np.isnan(pool[column])]
        if not coding.is_number[column]:
            if len(np.unique(pool[column])) > 1:
                codes.append(cells[column])
            continue
        if np.isnan(pool[column]).any():
            codes.append(np.isnan(cells[column]).astype(float))
        if known.min() < known.max():
            scaled = (cells[column] - known.min()) / (known.max() - known.min())
            mean = np.mean((known - known.min()) / (known.max() - known.min()))
            numbers.append(np.where(np.isnan(scaled), mean, scaled))
    return np.array(numbers).T, np.array(codes).T


def distance_twin(row: int, numbers: np.ndarray, codes: np.ndarray, aim_numbers: np.ndarray, aim_codes: np.ndarray):
    """Eq. 5 by its one-hot vectors."""
    one_hot = np.concatenate([np.eye(10)[int(code)] for code in codes[row]])
    wanted = np.concatenate([np.eye(10)[int(code)] for code in aim_codes])
    similar = one_hot @ wanted / (np.linalg.norm(one_hot) * np.linalg.norm(wanted))
    lengths = np.linalg.norm(numbers[row]) * np.linalg.norm(aim_numbers)
    cosine = numbers[row] @ aim_numbers / lengths if lengths else float((numbers[row] == aim_numbers).all())
    p, q = len(aim_numbers), len(aim_codes)
    return 1 - q / (p + q) * similar - p / (p + q) * cosine


@pytest.mark.parametrize("closest", [1, 7, 500])
def test_features_are_the_nearest_different_rows_with_how_often_they_occur(closest: int):
    rng = np.random.default_rng(3)
    coding, pool = table(400, rng)
    cells, target = pool[:, rng.integers(0, 400, 300)], pool[:, 5]
    attack = AttentionAttack(coding, pool, AttentionSettings(closest=closest))
    found = attack.features(cells, target)
    numbers, codes = attributes_twin(cells, pool, coding)
    aim_numbers, aim_codes = (part[0] for part in attributes_twin(target[:, None], pool, coding))
    distances = [distance_twin(row, numbers, codes, aim_numbers, aim_codes) for row in range(300)]
    times = Counter(map(tuple, np.nan_to_num(cells, nan=-1).T))
    nearest = {tuple(np.nan_to_num(cells[:, row], nan=-1)): distances[row] for row in range(300)}
    there = min(closest, len(times))
    assert (found[1:, -2] > 0).sum() == there and (found[1 + there :] == 0).all()
    np.testing.assert_allclose(found[1 : 1 + there, -1], sorted(nearest.values())[:there], atol=1e-6)
    if there == len(times):
        assert sorted(found[1 : 1 + there, -2]) == sorted(times.values()) and found[1:, -2].sum() == 300
    assert found[0, -2:].tolist() == [1, 0]
    # Weight, age (filled and with an indicator), town, same, smoker, seen, age is missing; multiplicity, distance.
    assert found.shape[1] == 6 + 1 + 2
    assert found[0, 2] == target[2] and found[0, 4] == target[4] and found[0, 6] == np.isnan(target[1])


def test_every_row_comes_with_its_own_multiplicity():
    coding, pool = table(300, np.random.default_rng(4))
    attack = AttentionAttack(coding, pool, AttentionSettings(closest=300, scale="none"))
    cells = pool[:, :200]
    found = attack.features(cells, pool[:, 250])[1:]
    found = found[found[:, -2] > 0]
    rows = [tuple(np.where(row[6] == 1, [row[0], -1, *row[2:6]], row[:6])) for row in found]
    given = Counter(map(tuple, np.nan_to_num(cells, nan=-1).T.astype(np.float32)))
    assert dict(zip(rows, found[:, -2], strict=True)) == given


def test_the_order_of_the_rows_changes_nothing():
    rng = np.random.default_rng(5)
    coding, pool = table(300, rng)
    attack = AttentionAttack(coding, pool, AttentionSettings(closest=9))
    first = attack.features(pool, pool[:, 0])
    for _ in range(3):
        np.testing.assert_array_equal(attack.features(pool[:, rng.permutation(300)], pool[:, 0]), first)


@pytest.mark.parametrize("columns", [[2, 4], [0, 5], [3]], ids=["categories only", "numbers only", "constant"])
def test_tables_of_one_kind_of_column(columns: list[int]):
    coding, pool = table(50, np.random.default_rng(6))
    schema = TableSchema(tuple(coding.schema.columns[column] for column in columns))
    part = Coding(schema, tuple(coding.values[column] for column in columns))
    attack = AttentionAttack(part, pool[columns], AttentionSettings(closest=3))
    found = attack.features(pool[columns][:, :1], pool[columns][:, 0])
    assert found[1, -2] == 1 and (found[2:] == 0).all() and np.isfinite(found).all()
    assert found[1, -1] == pytest.approx(0 if columns != [3] else 1)


def logits_twin(network, rows: np.ndarray, target: np.ndarray, scores: str) -> float:
    """Algorithm 1, line by line, for one set."""
    first, second, query, key, value, third, last, b1, b2, b3, b4 = [
        view.double().numpy() for view in network.views(network.weights)
    ]

    def embed(x: np.ndarray) -> np.ndarray:
        return np.maximum(x @ first.T + b1, 0) @ second.T + b2

    asked, keys, values = embed(target) @ query.T, embed(rows) @ key.T, embed(rows) @ value.T
    a = (keys if scores == "key" else values) @ asked[0]
    a = np.exp(a - a.max()) / np.exp(a - a.max()).sum()
    return float((np.maximum((a @ values) @ third.T + b3, 0) @ last.T + b4)[0])


@pytest.mark.parametrize("scores", ["key", "value"])
def test_forward_pass_is_algorithm_1_for_any_number_of_rows(scores: str):
    rng = np.random.default_rng(7)
    settings = AttentionSettings(scores=scores)
    network = attention_training.Network(11, settings, torch.Generator().manual_seed(0))
    network.weights *= 2  # far from the flat start
    rows, target = rng.normal(size=(4, 6, 11)), rng.normal(size=(1, 11))
    there = np.arange(6) < np.array([[6], [1], [4], [3]])
    as_tensor = [torch.from_numpy(part.astype(np.float32)) for part in (rows, target)]
    found = network.logits(network.weights, as_tensor[0], torch.from_numpy(there), as_tensor[1])
    expected = [logits_twin(network, rows[i][there[i]], target, scores) for i in range(4)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 0.01


def test_padding_is_not_attended_to():
    """A set read with room to spare has the scores that it has without."""
    coding, pool = table(60, np.random.default_rng(8))
    sets = [pool[:, at : at + 3] for at in range(0, 30, 3)]
    scores = []
    for closest in (3, 40):
        settings = AttentionSettings(closest=closest)
        attack = AttentionAttack(coding, pool, settings)
        features = np.stack([attack.features(cells, pool[:, 0]) for cells in sets])
        held = attention_training.Sets(features, attack.sizes, torch.device("cpu"))
        network = attention_training.Network(held.width, settings, torch.Generator().manual_seed(1))
        everything = torch.arange(len(held))
        scores.append(network.logits(network.weights, held.inputs(everything), held.there, held.target).numpy())
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-4, atol=1e-6)


def test_inputs_are_one_hot_categories_beside_numbers_whatever_was_asked_before():
    coding, pool = table(80, np.random.default_rng(9))
    attack = AttentionAttack(coding, pool, AttentionSettings(closest=5))
    features = np.stack([attack.features(pool[:, at : at + 8], pool[:, 0]) for at in range(0, 80, 8)])
    held = attention_training.Sets(features, attack.sizes, torch.device("cpu"))
    rows = features[:, 1:]
    starts = np.cumsum(attack.sizes) - attack.sizes
    for asked in ([3, 1], [0, 9], [4, 4], [2]):
        expected = np.zeros((len(asked), 5, held.width), dtype=np.float32)
        for i, chosen in enumerate(asked):
            for row in range(5):
                coded = [int(starts[c] + rows[chosen, row, c]) for c in np.flatnonzero(attack.sizes)]
                expected[i, row, coded] = 1
        expected[..., held.ones :] = np.delete(rows[asked], np.flatnonzero(attack.sizes), axis=2)
        np.testing.assert_array_equal(held.inputs(torch.tensor(asked)).numpy(), expected)


def test_dropout_keeps_the_mean():
    network = attention_training.Network(3, AttentionSettings(), torch.Generator().manual_seed(0))
    dropped = network._drop(torch.ones(100_000), torch.Generator().manual_seed(1))
    assert float((dropped == 0).float().mean()) == pytest.approx(0.15, abs=0.006)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.01)


def played(sets: int, planted: bool, settings: AttentionSettings, seed: int):
    """Features and labels of ``sets`` tables; a planted target stands in each table whose label is True."""
    rng = np.random.default_rng(seed)
    coding, pool = table(500, np.random.default_rng(0))
    target = np.array([35.0, 1.0, 0.0, 7.0, 1.0, pool[5, 0]])
    attack = AttentionAttack(coding, pool, settings)
    labels, features = np.arange(sets) % 2 == 0, []
    for label in labels:
        cells = pool[:, rng.integers(0, 500, rng.integers(5, 60))].copy()
        if planted and label:
            cells[:, -1] = target
        features.append(attack.features(cells, target))
    return attack, np.stack(features), labels


def auc(settings: AttentionSettings, planted: bool) -> float:
    attack, features, labels = played(300, planted, settings, 1)
    score = attack.fit(features, labels, np.random.default_rng(2))
    _, unseen, truth = played(400, planted, settings, 3)
    return float(roc_auc_score(truth, score(unseen)))


@pytest.mark.parametrize("scores", ["key", pytest.param("value", marks=pytest.mark.slow)])
def test_a_planted_target_is_found(scores: str):
    assert auc(AttentionSettings(closest=12, epochs=90, scores=scores), planted=True) > 0.9


def test_nothing_is_found_where_there_is_nothing():
    assert auc(AttentionSettings(closest=12, epochs=15), planted=False) == pytest.approx(
        0.5, abs=0.09
    )  # three deviations at 200 + 200 sets


def test_the_same_seed_gives_the_same_scores_and_no_global_state_moves():
    attack, features, labels = played(60, True, AttentionSettings(closest=5, epochs=3), 1)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first, again, other = (attack.fit(features, labels, np.random.default_rng(seed))(features) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and first.dtype == np.float64
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_the_weights_of_the_lowest_validation_loss_are_kept(monkeypatch: pytest.MonkeyPatch):
    attack, features, labels = played(60, True, AttentionSettings(closest=5, epochs=3), 1)

    def scores(epochs: int) -> np.ndarray:
        attack.settings = AttentionSettings(closest=5, epochs=epochs)
        losses = iter([3.0, 2.0, 1.0, 1.0, 5.0])
        monkeypatch.setattr(attention_training._Run, "_judged", lambda run: next(losses))
        return attack.fit(features, labels, np.random.default_rng(0))(features)

    np.testing.assert_array_equal(scores(5), scores(3))


def test_training_ends_when_patience_does():
    told: list[str] = []
    attack, features, labels = played(40, False, AttentionSettings(closest=5, epochs=400, patience=2), 1)
    attack.fit(features, labels, np.random.default_rng(0), told.append)
    assert len(told) < 400 // 50
    attack.settings = AttentionSettings(closest=5, epochs=50, patience=None)
    attack.fit(features, labels, np.random.default_rng(0), told.append)
    assert told[-1].startswith("attention: epoch 50 of at most 50, lowest validation loss 0.")


def test_a_tenth_of_the_sets_chooses_the_epoch_and_is_scored_as_unseen():
    attack, features, labels = played(60, True, AttentionSettings(closest=5, epochs=3), 1)
    scorer = attack.fit(features, labels, np.random.default_rng(0))
    held_out = np.isfinite(scorer.unseen)
    assert scorer.unseen.shape == (60,) and held_out.sum() == 6
    np.testing.assert_allclose(scorer.unseen[held_out], scorer(features)[held_out], rtol=1e-5)
    attack.fit(features[:2], labels[:2], np.random.default_rng(0))


def test_wrong_settings_and_data_are_errors():
    for wrong in ({"closest": 0}, {"patience": 0}, {"scores": "query"}, {"scale": "log"}, {"dropout": 1.0}):
        with pytest.raises(ConfigError):
            AttentionSettings(**wrong)
    attack, features, labels = played(20, False, AttentionSettings(closest=5, epochs=2), 1)
    with pytest.raises(InputError, match="at least 2"):
        attack.fit(features[:1], labels[:1], np.random.default_rng(0))
    features[:, :, 0] = np.inf
    with pytest.raises(InputError, match="not a finite number"):
        attack.fit(features, labels, np.random.default_rng(0))


@pytest.mark.slow
def test_an_audit_by_attention_finds_copies_and_tells_how_far_it_is():
    coding, cells = table(300, np.random.default_rng(11))
    settings = {"closest": 10, "epochs": 60, "batch": 10}
    plan = AuditPlan(
        Copy(), records=1, shadows=160, tests=40, size=20, attack="attention", attack_settings=settings
    )  # fmt: skip
    told: list[str] = []
    found = run_audit(cells, coding, plan, seed=0, progress=told.append)
    assert found.records[0].auc.low > 0.8
    assert any(text.startswith("record 1 of 1: attention: epoch 50") for text in told)
    again = run_audit(cells, coding, plan, seed=0)
    np.testing.assert_array_equal(again.records[0].scores, found.records[0].scores)
    with pytest.raises(ConfigError, match="no setting 'epoch'. Did you mean 'epochs'"):
        AuditPlan(Copy(), attack="attention", attack_settings={"epoch": 3})


def test_other_rows_of_the_person_leave_the_game_and_the_neighbours():
    coding, cells = table(200, np.random.default_rng(12))
    cells[0, 0] = 1000.0  # nobody else is like it
    cells[:, 1:3] = cells[:, [0]]  # equal rows leave the game whose they are, others only as the person's
    cells[0, 3:6] = [500.0, 501, 502]
    people = np.arange(200)
    people[:6] = 0
    plan = AuditPlan(Copy(), ids=(0,), neighbours=2, shadows=4, tests=4, size=10)
    run = audit._Run(cells, coding, plan, 0, people, audit.build_attack("queries", coding, cells, {}))
    game = run.game(0, ())
    drawn = np.concatenate([game.auxiliary, game.test])
    assert not np.isin(drawn, np.arange(6)).any() and 6 in drawn and len(drawn) > 150
    assert run_audit(cells, coding, plan, seed=0).records[0].vulnerability == 0
    assert run_audit(cells, coding, plan, seed=0, subjects=people).records[0].vulnerability > 0
    chosen = run_audit(cells, coding, replace(plan, ids=None, records=3), seed=0, subjects=people).records
    assert len({people[record.id] for record in chosen}) == 3
    alike = run_audit(cells, coding, replace(plan, ids=None, records=3), seed=0, subjects=np.arange(200) // 100)
    assert len(alike.records) == 2  # of two people there are two
    with pytest.raises(InputError, match="199 subject codes for 200 rows"):
        run_audit(cells, coding, plan, seed=0, subjects=people[1:])
