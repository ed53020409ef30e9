"""Target attention: its input, the network against algorithm 1 written out, and its learning."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.infra.progress import Lines
from privacy_assets.studies.shadow_membership import attention_network
from privacy_assets.studies.shadow_membership.attention import AttentionSettings
from privacy_assets.studies.shadow_membership.attention_network import AttentionAttack
from privacy_assets.studies.shadow_membership.audit import AuditConfig
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.schema import TableSchema
from tests.metrics.coded_tables import coded, pairwise
from tests.studies.shadow_standins import CopyCells, small_audit


def frame_of(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Every kind of column, missing values, a constant column, many equal rows."""
    age = pd.array(rng.integers(0, 3, rows), dtype="Int64")
    age[rng.random(rows) < 0.3] = pd.NA
    return pd.DataFrame(
        {
            "weight": np.round(rng.normal(size=rows)) * 10.0,
            "age": age,
            "town": rng.choice(["a", "b", None], rows),
            "same": 7.0,
            "smoker": pd.array(rng.random(rows) < 0.5, dtype="boolean"),
            "seen": pd.to_datetime(rng.choice(["2020-01-01", "2020-01-05"], rows)),
        }
    )


def table(rows: int, rng: np.random.Generator) -> tuple[MatrixCoding, np.ndarray]:
    cells, coding = coded(frame_of(rows, rng))
    return coding, cells


@pytest.mark.parametrize("closest", [1, 7, 500])
def test_features_are_the_nearest_different_rows_with_how_often_they_occur(closest: int):
    rng = np.random.default_rng(3)
    frame, drawn = frame_of(400, rng), rng.integers(0, 400, 300)
    pool, coding = coded(frame)
    cells, target = pool[:, drawn], pool[:, 5]
    attack = AttentionAttack(coding, pool, AttentionSettings(closest=closest))
    found = attack.features(cells, target)
    np.testing.assert_array_equal(attack.features(cells[:, rng.permutation(300)], target), found)
    rows = list(map(tuple, np.nan_to_num(cells, nan=-1).T))
    nearest = dict(zip(rows, pairwise(frame, "cosine")[drawn, 5], strict=True))
    there = min(closest, len(nearest))
    assert (found[1:, -2] > 0).sum() == there and (found[1 + there :] == 0).all()
    np.testing.assert_allclose(
        found[1 : 1 + there, -1], sorted(nearest.values())[:there], atol=1e-6
    )
    assert found[0, -2:].tolist() == [1, 0]
    # Weight, age (filled and with an indicator), town, same, smoker, seen, age is missing;
    # multiplicity, distance.
    assert found.shape[1] == 6 + 1 + 2
    assert (
        found[0, 2] == target[2] and found[0, 4] == target[4] and found[0, 6] == np.isnan(target[1])
    )


@pytest.mark.slow
def test_every_row_comes_with_its_own_multiplicity():
    coding, pool = table(300, np.random.default_rng(4))
    attack = AttentionAttack(coding, pool, AttentionSettings(closest=300, scale="none"))
    cells = pool[:, :200]
    found = attack.features(cells, pool[:, 250])[1:]
    found = found[found[:, -2] > 0]
    rows = [tuple(np.where(row[6] == 1, [row[0], -1, *row[2:6]], row[:6])) for row in found]
    given = Counter(map(tuple, np.nan_to_num(cells, nan=-1).T.astype(np.float32)))
    assert dict(zip(rows, found[:, -2], strict=True)) == given


@pytest.mark.parametrize(
    "columns", [[2, 4], [0, 5], [3]], ids=["categories only", "numbers only", "constant"]
)
def test_tables_of_one_kind_of_column(columns: list[int]):
    coding, pool = table(50, np.random.default_rng(6))
    schema = TableSchema(tuple(coding.schema.columns[column] for column in columns))
    part = MatrixCoding(schema, tuple(coding.values[column] for column in columns))
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
    """Padding rows are not attended to."""
    rng = np.random.default_rng(7)
    settings = AttentionSettings(scores=scores)
    network = attention_network.Network(11, settings, torch.Generator().manual_seed(0))
    network.weights *= 2  # away from the uniform start
    rows, target = rng.normal(size=(4, 6, 11)), rng.normal(size=(1, 11))
    there = np.arange(6) < np.array([[6], [1], [4], [3]])
    as_tensor = [torch.from_numpy(part.astype(np.float32)) for part in (rows, target)]
    found = network.logits(network.weights, as_tensor[0], torch.from_numpy(there), as_tensor[1])
    expected = [logits_twin(network, rows[i][there[i]], target, scores) for i in range(4)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 0.01


def test_inputs_are_one_hot_categories_beside_numbers_whatever_was_asked_before():
    coding, pool = table(80, np.random.default_rng(9))
    # of 8 rows: some do not exist
    attack = AttentionAttack(coding, pool, AttentionSettings(closest=10))
    features = np.stack(
        [attack.features(pool[:, at : at + 8], pool[:, 0]) for at in range(0, 80, 8)]
    )
    held = attention_network.Sets(features, attack.sizes, torch.device("cpu"))
    rows, coded_columns = features[:, 1:], np.flatnonzero(attack.sizes)
    np.testing.assert_array_equal(held.exists.numpy(), rows[:, :, -2] > 0)
    starts = (np.cumsum(attack.sizes) - attack.sizes)[coded_columns]
    for asked in ([3, 1], [0, 9], [4, 4], [2]):
        expected = np.zeros((len(asked), 10, held.width), dtype=np.float32)
        np.put_along_axis(
            expected, (rows[asked][..., coded_columns] + starts).astype(int), 1, axis=2
        )
        expected[..., held.n_one_hot :] = np.delete(rows[asked], coded_columns, axis=2)
        np.testing.assert_array_equal(held.inputs(torch.tensor(asked)).numpy(), expected)


def test_dropout_keeps_the_mean():
    network = attention_network.Network(3, AttentionSettings(), torch.Generator().manual_seed(0))
    dropped = network._drop(torch.ones(100_000), torch.Generator().manual_seed(1))
    assert float((dropped == 0).float().mean()) == pytest.approx(0.15, abs=0.006)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.01)


def played(sets: int, planted: bool, seed: int = 1, **settings):
    """Features and labels of ``sets`` tables; each table with label True contains a planted
    target.
    """
    rng = np.random.default_rng(seed)
    coding, pool = table(500, np.random.default_rng(0))
    target = np.array([35.0, 1.0, 0.0, 7.0, 1.0, pool[5, 0]])
    attack = AttentionAttack(
        coding, pool, AttentionSettings(**{"closest": 5, "epochs": 3, **settings})
    )
    labels, features = np.arange(sets) % 2 == 0, []
    for label in labels:
        cells = pool[:, rng.integers(0, 500, rng.integers(5, 60))].copy()
        if planted and label:
            cells[:, -1] = target
        features.append(attack.features(cells, target))
    return attack, np.stack(features), labels


@pytest.mark.parametrize(
    ("planted", "settings", "low", "high"),
    [
        pytest.param(True, {"epochs": 90}, 0.9, 1, marks=pytest.mark.slow),
        pytest.param(True, {"epochs": 90, "scores": "value"}, 0.9, 1, marks=pytest.mark.slow),
        (False, {"epochs": 15}, 0.41, 0.59),  # three standard deviations at 200 + 200 sets
    ],
)
def test_a_planted_target_is_found_and_nothing_where_there_is_nothing(planted, settings, low, high):
    attack, features, labels = played(300, planted, closest=12, **settings)
    score = attack.fit(features, labels, np.random.default_rng(2))
    _, held_out_scores, truth = played(400, planted, seed=3, closest=12)
    assert low < roc_auc_score(truth, score(held_out_scores)) <= high


def test_the_same_seed_gives_the_same_scores_and_no_global_state_moves():
    attack, features, labels = played(60, True)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first, again, other = (
        attack.fit(features, labels, np.random.default_rng(seed))(features) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and first.dtype == np.float64
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_the_weights_of_the_lowest_validation_loss_are_kept(monkeypatch: pytest.MonkeyPatch):
    def scores(epochs: int) -> np.ndarray:
        attack, features, labels = played(60, True, epochs=epochs)
        losses = iter([3.0, 2.0, 1.0, 1.0, 5.0])
        monkeypatch.setattr(attention_network._Run, "_validation_loss", lambda run: next(losses))
        return attack.fit(features, labels, np.random.default_rng(0))(features)

    np.testing.assert_array_equal(scores(5), scores(3))


@pytest.fixture(autouse=True)
def _every_step_is_told(monkeypatch):
    monkeypatch.setattr("privacy_assets.infra.progress.EVERY", 0.0)


def test_training_ends_when_patience_does_and_tells_how_far_it_is():
    told: list[str] = []
    attack, features, labels = played(40, False, epochs=400, patience=2)
    attack.fit(features, labels, np.random.default_rng(0), Lines(told.append))
    assert 0 < len(told) < 400
    attack.settings = AttentionSettings(closest=5, epochs=50, patience=None)
    attack.fit(features, labels, np.random.default_rng(0), Lines(told.append))
    assert told[-1].startswith("attention: epochs: 50 of 50")


def test_a_tenth_of_the_sets_chooses_the_epoch_and_is_scored_as_unseen():
    attack, features, labels = played(60, True)
    scorer = attack.fit(features, labels, np.random.default_rng(0))
    held_out = np.isfinite(scorer.held_out_scores)
    assert scorer.held_out_scores.shape == (60,) and held_out.sum() == 6
    np.testing.assert_allclose(
        scorer.held_out_scores[held_out], scorer(features)[held_out], rtol=1e-5
    )
    attack.fit(features[:2], labels[:2], np.random.default_rng(0))


def test_wrong_settings_and_data_are_errors():
    with pytest.raises(ConfigError, match="no setting 'epoch'. Did you mean 'epochs'"):
        AuditConfig(CopyCells(), attack="attention", attack_settings={"epoch": 3})
    attack, features, labels = played(20, False)
    with pytest.raises(InputError, match="at least 2"):
        attack.fit(features[:1], labels[:1], np.random.default_rng(0))
    features[:, :, 0] = np.inf
    with pytest.raises(InputError, match="not a finite number"):
        attack.fit(features, labels, np.random.default_rng(0))


@pytest.mark.slow
def test_an_audit_by_attention_finds_copies():
    settings = {"closest": 10, "epochs": 60, "batch_size": 10}
    how = {
        "max_targets": 1,
        "shadows": 120,
        "tests": 40,
        "size": 20,
        "attack": "attention",
        "attack_settings": settings,
    }
    told: list[str] = []
    found = small_audit(
        CopyCells(),
        table=table(300, np.random.default_rng(11))[::-1],
        progress=Lines(told.append),
        **how,
    )
    assert found.records[0].auc.low > 0.8
    assert any(text.startswith("attention: epochs: 50 of 60") for text in told)
