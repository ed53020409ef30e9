"""A small version of the study after Kuppa et al.: its measurements, and that it resumes."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks import kuppa, kuppa_radius, kuppa_worlds
from benchmarks.kuppa import Case
from benchmarks.kuppa_worlds import PAPER, Screened, draw_world, generator_of
from privacy_assets.generators.filters import AlphaFilter, MemorizationFilter
from privacy_assets.tables.table import Table
from tests.metrics.surveys import survey

LEAKY = "baynet, 10 % copies"


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 4000)
    numbers = {name: group * 2 + rng.normal(size=len(group)) for name in "ab"}
    return pd.DataFrame(
        {**numbers, "count": rng.poisson(3, len(group)), "group": np.array(["x", "y"])[group]}
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("TRAIN", 600),
        ("AUXILIARY", 1200),
        ("SIZES", (600, 6000)),
        ("AUXILIARIES", (1200,)),
    ):
        monkeypatch.setattr(kuppa, name, value)
    monkeypatch.setattr(kuppa, "BAGGED", (300,))


def distinct(tables: list[Table]) -> int:
    return len(Table.stack(tables).frame().drop_duplicates())


def test_the_sides_of_a_world_are_disjoint(frame: pd.DataFrame) -> None:
    world = draw_world(frame, 600, 1200, 3)
    own, rest = kuppa.surrogate(world)
    sides = [world.train, world.holdout, world.reference, world.outside, world.auxiliary]
    assert [len(side) for side in sides] == [600, 200, 200, 600, 1200]
    inner = [own.train, own.holdout, own.reference, own.outside, rest]
    assert distinct(sides) == 2800
    assert distinct(inner) == sum(map(len, inner)) <= 1200
    assert distinct([*inner, world.auxiliary]) == 1200
    with pytest.raises(SystemExit, match="rows are needed"):
        draw_world(frame, 6000, 10, 0)


def test_screened_releases_pass_the_filter(frame: pd.DataFrame) -> None:
    world = draw_world(frame, 600, 600, 0)
    fitted = Screened(generator_of(LEAKY), world.unseen).fit(world.train, seed=0)
    made = fitted.sample(500, seed=1)
    plain = generator_of(LEAKY).fit(world.train, seed=0).sample(500, seed=1)
    exposed = MemorizationFilter().fit([world.train, world.unseen], world.schema).exposed
    assert len(made) == 500 and not exposed(made).any() and exposed(plain).mean() > 0.05
    assert 0.05 < fitted.dropped < 0.5


def test_generators_of_the_paper_have_its_settings() -> None:
    # its library is optional
    built = {label: generator_of(label) for label in PAPER if label != "ctgan"}
    assert all(len(one.hidden_dims) == 3 and one.epochs == 100 for one in built.values())
    for name in ("dpgan", "pategan"):
        found = [one.epsilon for label, one in built.items() if label.startswith(name)]
        assert found == [0.01, 0.1, 0.5, 1.0, 3.0]
    found = [
        (case.method, case.filter)
        for case in kuppa.paper_cases("table", ["rvae"], 1, [500], 100, 200, {})
    ]
    assert found == [("memorization", ""), ("memorization", "unknown"), ("alpha_m", "unknown")]


def test_a_training_table_is_fitted_once_for_all_sizes_and_filters(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kuppa_worlds.PAPER, "trees", ("synthpop", {"min_samples_leaf": 5}, 0.0))
    world, fits = draw_world(frame, 300, 300, 0), kuppa_worlds.kept("trees").fits
    plain = generator_of("trees").fit(world.train, seed=3).sample(200, seed=1).frame()
    for table, seed in ((world.train, 3), (world.train, 3), (world.outside, 3), (world.train, 4)):
        made = kuppa_worlds.kept("trees").fit(table, seed=seed).sample(200, seed=1).frame()
        assert made.equals(plain) == (table is world.train)
    assert len(fits) == 3


def test_the_filter_of_the_paper_drops_copies(frame: pd.DataFrame) -> None:
    world = draw_world(frame, 600, 600, 0)
    case = Case("table", LEAKY, 600, 600, "unknown", 0, "alpha_m", 600)
    (plain, none), (rows, dropped) = (
        kuppa.released(world, case, filtered) for filtered in (False, True)
    )
    exposed = AlphaFilter().fit([world.train, world.unseen], world.schema).exposed
    assert none == 0 and 0.05 < exposed(plain).mean() == pytest.approx(dropped, abs=0.05)
    assert not exposed(rows, plain).any() and len(rows) == 600
    copied = [one.frame().merge(world.train.frame(), on=["a", "b"]) for one in (plain, rows)]
    assert len(copied[0]) > 40 and len(copied[1]) < len(copied[0]) / 4


@pytest.mark.slow
def test_the_radius_of_the_paper_does_not_see_copies() -> None:
    """Embedded rows have length 1, so a radius of 0.5 contains a large part of a table."""
    tables, embedder = survey(1200, 0), {"max_steps": 20}
    paper = kuppa_radius.measured(
        tables, 400, 0.2, kuppa_radius.SETTINGS["embedded, radius 0.5"], embedder
    )
    default = kuppa_radius.measured(tables, 400, 0.2, {"memorization": {}}, embedder)
    assert paper["training rows near"] > 10 and paper["AUC"] < 0.75 and paper["excess, low"] < 0
    assert default["AUC"] > 0.9 and default["excess, low"] > 0


@pytest.mark.weekly
def test_copies_are_found_before_the_filter_and_not_after(small: None, frame: pd.DataFrame) -> None:
    world = draw_world(frame, 600, 1200, 0)
    found = {
        known: kuppa.attacked(world, Case("table", LEAKY, 6000, 1200, known, 0, train=600))
        for known in ("", "known")
    }
    assert found[""]["holdout"] > 0.58 > 0.56 > found["known"]["holdout"] > 0.42
    assert found[""]["dropped"] == 0 < found["known"]["dropped"]
    assert all(0.7 < x["utility"] <= 1 for x in found.values())


@pytest.mark.weekly
def test_a_study_goes_on_where_it_was(
    small: None,
    frame: pd.DataFrame,
    tmp_path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, image = tmp_path / "kuppa.jsonl", tmp_path / "bars.svg"
    bagging = [
        replace(case, auxiliary=200, shadows=20, tests=10, records=1)
        for case in kuppa.cases("bagging", ["baynet"], 1)
    ]
    chosen = [*kuppa.cases("table", ["baynet"], 1), *bagging]
    assert len(chosen) == 9
    kuppa.run(frame, [chosen[0], *chosen[-3:]], path)
    before = path.read_text()
    monkeypatch.setattr(
        kuppa, "attacked", lambda world, case: {"holdout": 0.6, "outside": math.pi / 6}
    )
    kuppa.run(frame, chosen, path)
    assert path.read_text().startswith(before) and len(path.read_text().splitlines()) == 9
    assert [json.loads(line)["case"]["filter"] for line in before.splitlines()][1:] == [
        "",
        "unknown",
        "known",
    ]
    kuppa.report(path, image)
    told = capsys.readouterr().out
    assert re.search(r"\| baynet \| 6000 \| 1200 \| after, filter known \| 0.600 \| 0.524 \|", told)
    accuracies = re.findall(r"\| 300 \| 200 \| .*? \| (\d\.\d+)", told)
    assert len(accuracies) == 3 and all(0 <= float(value) <= 1 for value in accuracies)
    assert ET.parse(image).getroot().tag == "{http://www.w3.org/2000/svg}svg"
