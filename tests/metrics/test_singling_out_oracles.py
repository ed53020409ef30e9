"""Singling out against anonymeter at equal sizes, and against a twin that evaluates every query on
the raw tables.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from oracles.anonymeter_singling_out import COPIES, digest, tables
from test_predicates import WORDS, mixed

from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.singling_out import SinglingOut
from privacy_assets.metrics.singling_out import metric as singling_out
from privacy_assets.metrics.singling_out.queries import Queries
from privacy_assets.tables.declared import Declared

ORACLE = json.loads((Path(__file__).parent / "oracles" / "singling_out.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "found", ORACLE["found"], ids=lambda found: f"{found['case']}, {found['leak']}"
)
def test_rates_and_giomis_risk_are_anonymeters(found: dict, request: pytest.FixtureRequest) -> None:
    adult = request.getfixturevalue("adult") if found["case"] == "adult" else None
    given = tables(found["case"], COPIES[found["leak"]], adult)
    assert digest(given) == found["tables"]
    widths = tuple(peer["columns"] for peer in found["attacks"])
    attacks = ORACLE["made"]["attacks"]
    result = SinglingOut(query_sizes=widths, n_queries=attacks, n_permutations=99).measure(
        read_inputs(**given)
    )
    rows = {row["columns"]: row for row in result.tables["configurations"] if row["columns"] > 1}
    rows[1] = result.tables["configurations"][0]
    for peer in found["attacks"]:
        ours = rows[peer["columns"]]
        assert ours["attacks"] == attacks
        for side, theirs in (("hits_train", "hits_train"), ("hits_non_members", "hits_holdout")):
            # for two samples of the existing queries
            share = (ours[side] + peer[theirs]) / (2 * attacks)
            assert abs(ours[side] - peer[theirs]) <= 3.5 * math.sqrt(
                2 * attacks * share * (1 - share)
            )
        half = (peer["high"] - peer["low"]) / 2  # anonymeter cuts its statistics off at 0 and 1
        assert (
            peer["low"] - 2 * half <= min(max(ours["giomi"], 0.0), 1.0) <= peer["high"] + 2 * half
        )
        if peer["low"] > 0 and peer["high"] < 1 and ours["giomi_high"] < 1:
            assert ours["giomi_high"] - ours["giomi_low"] == pytest.approx(2 * half, rel=0.25)


# ---- the twin ----


def ordered_values(columns: list[pd.Series]) -> list[object]:
    """All values of a column in ascending order; code k means the k-th value."""
    values = {value for column in columns for value in column.astype(object).dropna()}
    return sorted(values)


def mask_of(
    frame: pd.DataFrame, name: str, values: list[object], low: int, high: int
) -> np.ndarray:
    """Rows of a raw table whose value is in a range of codes; code 0 is missing."""
    column = frame[name].astype(object)
    inside = column.isin(values[max(low, 1) - 1 : high]).to_numpy() & column.notna().to_numpy()
    return inside | (column.isna().to_numpy() if low == 0 else False)


def chance_of_one(total: int, marked: int, drawn: int) -> float:
    return marked * math.comb(total - marked, drawn - 1) / math.comb(total, drawn)


@pytest.mark.slow
def test_every_query_on_odd_values_is_counted_as_plain_masks_of_the_raw_tables_do(
    monkeypatch,
) -> None:
    words = [word for word in WORDS if word]  # an empty cell is missing
    given = {
        "train": mixed(90, 1, [*words, "train only"]),
        "holdout": mixed(70, 2, [*words, "real only"]),
        "synthetic": mixed(80, 3, [*words, "synthetic only"]),
    }
    for role, people in (("train", range(30)), ("holdout", range(30, 65))):
        given[role]["person"] = np.resize(people, len(given[role]))
    kept: list[tuple[Queries, np.ndarray]] = []
    asks = singling_out.matched_subjects

    def keep(queries: Queries, *others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        counts, hits = asks(queries, *others)
        kept.append((queries, counts))
        return counts, hits

    monkeypatch.setattr(singling_out, "matched_subjects", keep)
    # queries are kept in the order of the configurations
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    metric = SinglingOut(
        query_sizes=(1, 2, 3, 8), n_queries=60, n_permutations=99, candidates=8_000, patience=1_200
    )
    result = metric.measure(read_inputs(declared=Declared(subject="person"), **given))
    names = list(given["synthetic"].columns)
    values = {name: ordered_values([frame[name] for frame in given.values()]) for name in names}
    distinct = (
        given["synthetic"].astype(object).where(given["synthetic"].notna(), None).drop_duplicates()
    )
    sizes = [row["attacks"] for row in result.tables["configurations"]]
    assert [len(queries) for queries, _ in kept] == sizes and sum(sizes) > 120
    missing, excess = 0, []
    for queries, counts in kept:
        for at, columns in enumerate(queries.columns):
            ranges = list(zip(columns, queries.low[at], queries.high[at], strict=True))
            missing += sum(low == 0 for _, low, _ in ranges)

            def matched(frame: pd.DataFrame, ranges: list = ranges) -> np.ndarray:
                return np.all(
                    [
                        mask_of(frame, names[j], values[names[j]], low, high)
                        for j, low, high in ranges
                    ],
                    axis=0,
                )

            assert matched(distinct).sum() == 1
            k, m = (
                given[role].loc[matched(given[role]), "person"].nunique()
                for role in ("train", "holdout")
            )
            assert counts[at].tolist() == [m, k]
            excess.append((k == 1) - chance_of_one(65, k + m, 30))
    assert missing > 20
    shares = [own.sum() / (1 - 30 / 65) for own in np.split(excess, np.cumsum(sizes)[:-1])]
    for row, share in zip(result.tables["configurations"], shares, strict=True):
        assert row["risk"] == pytest.approx(min(share / row["attacks"], 1), abs=1e-12)
    widest, fewest = shares[-1], 0.25 * 30
    risk = next(estimate for estimate in result.estimates if estimate.name == "risk")
    assert risk.value == pytest.approx(min(widest / max(sizes[-1], fewest), 1), abs=1e-12)
