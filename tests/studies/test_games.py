"""Training sets of the shadow game, and the two ways in which generators run on them."""

from __future__ import annotations

import numpy as np
import pytest
import wrong_functions

from privacy_assets.errors import StepError
from privacy_assets.generators.copies import Copy, NoisyCopy
from privacy_assets.generators.user_code import CallableGenerator
from privacy_assets.studies.shadow_membership import games
from privacy_assets.studies.shadow_membership.attacks import QueryAttack
from privacy_assets.studies.shadow_membership.games import Game, blocks, without
from tests.metrics.coded_tables import coded, repeated, with_gaps
from tests.studies.shadow_standins import CopyCells, small_table

TARGET = 5


def game(table=None, bootstrap=False, size=30, seed=0, shadows=8, tests=4, target=TARGET):
    cells, coding = table or small_table()
    ids = np.arange(6, cells.shape[1])
    auxiliary, test = ids[:120], ids[120:]
    return Game(cells, coding, target, auxiliary, test, shadows, tests, size, 25, bootstrap, seed)


# --- training sets
# --------------------------------------------------------------------------------------------------


def test_half_of_the_sets_hold_the_target_once_and_no_row_twice():
    played = game(shadows=40, tests=10)
    assert played.labels.tolist() == [True, False] * 25
    for number, inside in enumerate(played.labels):
        rows, _ = played.training_rows(number)
        assert len(rows) == len(np.unique(rows)) == 30
        assert (rows == TARGET).sum() == inside
        assert np.isin(rows[rows != TARGET], played.auxiliary if number < 40 else played.test).all()


def test_a_bootstrap_draws_with_replacement_and_forces_the_target_in():
    played = game(bootstrap=True, size=300)
    for number in range(6):
        rows, _ = played.training_rows(number)
        assert len(rows) == 300 and (rows == TARGET).sum() == (number % 2 == 0)
        assert len(np.unique(rows)) < 150


def test_every_row_and_every_place_is_as_likely_as_any_other():
    played = game(shadows=4000)
    drawn = np.stack([played.training_rows(number)[0] for number in range(0, 4000, 2)])
    places = np.bincount(np.argmax(drawn == TARGET, axis=1), minlength=30)
    assert places.min() > 35 and places.max() < 105  # 67 expected
    others = np.bincount(drawn[drawn != TARGET], minlength=126)[played.auxiliary]
    assert abs(others.mean() - 2000 * 29 / 120) < 1e-9 and others.std() < 45


def test_sets_depend_on_seed_record_and_number_only():
    rows, seed = game().training_rows(7)
    same = game(shadows=40, tests=10).training_rows(7)
    assert rows.tolist() == same[0].tolist() and seed == same[1]
    for other in (
        game(seed=1).training_rows(7),
        game(target=4).training_rows(7),
        game().training_rows(5),
    ):
        assert other[0].tolist() != rows.tolist() and other[1] != seed


def test_rows_equal_to_the_target_are_left_out_missing_values_included():
    cells, _ = coded(repeated(np.random.default_rng(0), 200))
    ids = np.arange(200)
    for target in range(20):
        kept = without(cells, ids, target)
        equal = [np.array_equal(cells[:, row], cells[:, target], equal_nan=True) for row in ids]
        assert kept.tolist() == np.flatnonzero(~np.array(equal)).tolist() and target not in kept


# --- generators
# --------------------------------------------------------------------------------------------------


def features(played, generator, first=0):
    attack = QueryAttack(played.coding)
    return np.concatenate([block for block, _ in blocks(played, generator, attack, first)])


def test_features_are_those_of_what_the_generator_makes():
    played = game()
    found = features(played, CopyCells())
    assert found.shape == (12, 25, 1)
    for number in range(12):
        rows, seed = played.training_rows(number)
        made = CopyCells().drawer(played.cells, played.coding)(rows, 25, seed)
        expected = QueryAttack(played.coding).features(made, played.cells[:, TARGET])
        np.testing.assert_array_equal(found[number], expected)


@pytest.mark.parametrize("generator", [CopyCells(), NoisyCopy()], ids=lambda one: one.name)
def test_beginning_later_gives_the_rest(generator, monkeypatch):
    monkeypatch.setattr(games, "threads", lambda: 1)
    monkeypatch.setattr(games, "CODED_BLOCK", 5)
    np.testing.assert_array_equal(
        features(game(), generator, first=7), features(game(), generator)[7:]
    )


@pytest.mark.slow
def test_processes_change_nothing_and_tell_what_they_cost(monkeypatch):
    played = game(table=coded(with_gaps(np.random.default_rng(3), 200)))
    attack, found, spent = QueryAttack(played.coding), [], []
    for threads in (1, 2):
        monkeypatch.setattr(games, "threads", lambda many=threads: many)
        parts = list(blocks(played, NoisyCopy(), attack, 0))
        found.append(np.concatenate([features for features, _ in parts]))
        spent.append(sum(seconds for _, seconds in parts))
    np.testing.assert_array_equal(*found)
    assert spent[0] == 0 < spent[1]


def test_frames_of_every_kind_reach_the_generator_as_they_were(monkeypatch):
    monkeypatch.setattr(games, "threads", lambda: 1)
    played = game(
        table=coded(with_gaps(np.random.default_rng(2), 200)), size=25, shadows=4, tests=4
    )
    attack = QueryAttack(played.coding)
    for number, found in enumerate(features(played, Copy())):
        train = played.cells[:, played.training_rows(number)[0]]
        expected = attack.features(train, played.cells[:, TARGET])
        assert sorted(found[:, 0].tolist()) == sorted(expected[:, 0].tolist())


@pytest.mark.slow
def test_an_error_comes_back_from_another_process_as_it_was(monkeypatch):
    monkeypatch.setattr(games, "threads", lambda: 2)
    with pytest.raises(
        StepError, match=r"^generator callable: wrong_functions:returns_too_few failed, "
    ):
        features(game(shadows=4), CallableGenerator(wrong_functions.returns_too_few))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_generator_that_breaks_tells_no_value(monkeypatch, threads):
    monkeypatch.setattr(games, "threads", lambda: threads)
    with pytest.raises(StepError, match="raises_a_row failed") as caught:
        features(game(shadows=4), CallableGenerator(wrong_functions.raises_a_row))
    assert str(game().cells[0, 0]) not in str(caught.value)
