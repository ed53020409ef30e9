"""Fidelity: SDMetrics and naive twins of every statistic, and expected results for tables of known
utility.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sdmetrics.column_pairs import ContingencySimilarity
from sdmetrics.single_column import KSComplement, TVComplement
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_info, threadpool_limits

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.fidelity import ROLES, Compared, Fidelity, Question, auc, tally
from privacy_assets.policy import Limit, judge_limit
from privacy_assets.stats.estimates import MetricResult
from tests.metrics.given_tables import given

QUICK = Fidelity(n_bootstraps=40, targets=("plan",))
STATISTICS = ("column_similarity", "pair_similarity", "prediction")


def people_table(rows: int, seed: int, missing: float = 0.05) -> pd.DataFrame:
    """A table with every kind of column, dependent on each other, and missing values in each."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    plan = np.where(rng.random(rows) < age / 100, "gold", rng.choice(["iron", "lead"], rows))
    frame = pd.DataFrame(
        {
            "income": np.round(rng.lognormal(size=rows) * 10 * age, -1),
            "age": pd.array(age, dtype="Int64"),
            "plan": plan,
            "smoker": pd.array(
                rng.random(rows) < np.where(plan == "gold", 0.1, 0.5), dtype="boolean"
            ),
            "visit": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(age * 3 + rng.integers(0, 90, rows), unit="D"),
        }
    )
    return frame.mask(rng.random(frame.shape) < missing)


def parts(sizes: tuple[int, int, int], seed: int, missing: float = 0.05) -> list[pd.DataFrame]:
    """Train, holdout and fresh rows of one population."""
    table, ends = people_table(sum(sizes), seed, missing), np.cumsum(sizes)
    return [
        table[end - size : end].reset_index(drop=True)
        for size, end in zip(sizes, ends, strict=True)
    ]


def shuffled(table: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The same columns without any relation between them."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {name: table[name].iloc[rng.permutation(len(table))].array for name in table}
    )


def run(
    train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, metric=QUICK, **more
) -> MetricResult:
    return metric.measure(given(train, holdout, synthetic, **more))


def value(result: MetricResult, name: str) -> float:
    return result.estimate(name).value


# ---- oracles ----


def test_statistics_are_those_of_sdmetrics_where_nothing_is_missing() -> None:
    train, holdout, fresh = parts((400, 300, 400), 1, missing=0)
    result = run(train, holdout, fresh)
    rows = {row["column"]: row for row in result.tables["columns"]}
    for name, oracle in {"income": KSComplement, "age": KSComplement, "visit": KSComplement,
                         "plan": TVComplement, "smoker": TVComplement}.items():  # fmt: skip
        assert rows[name]["similarity"] == pytest.approx(
            oracle.compute(holdout[name], fresh[name]), abs=1e-12
        )
        assert rows[name]["similarity_real"] == pytest.approx(
            oracle.compute(holdout[name], train[name]), abs=1e-12
        )
    assert value(result, "column_similarity") == pytest.approx(
        np.mean([row["similarity"] for row in rows.values()])
    )
    for row in result.tables["pairs"]:
        pair = [row["first"], row["second"]]
        if pair == ["plan", "smoker"]:
            oracle = ContingencySimilarity.compute(holdout[pair], fresh[pair])
            assert row["similarity"] == pytest.approx(oracle, abs=1e-12)


def naive_column(a: pd.Series, b: pd.Series, ordered: bool) -> float:
    """Missing is the smallest number, or a category."""
    if ordered:
        x, y = (np.sort(s.astype("float64").fillna(-np.inf)) for s in (a, b))
        return 1 - max(abs((x <= at).mean() - (y <= at).mean()) for at in {*x, *y})
    x, y = (s.astype(object).where(s.notna(), "?") for s in (a, b))
    return 1 - sum(abs((x == at).mean() - (y == at).mean()) for at in {*x, *y}) / 2


def test_statistics_with_missing_values_are_those_of_naive_twins() -> None:
    train, holdout, fresh = parts((300, 200, 300), 2, missing=0.2)
    fresh["plan"] = fresh["plan"].fillna("never seen")
    for table in (train, holdout, fresh):
        table["visit"] = (table["visit"] - pd.Timestamp("2020-01-01")).dt.days.astype("Float64")
    result = run(train, holdout, fresh)
    for row in result.tables["columns"]:
        name = row["column"]
        ordered = name not in ("plan", "smoker")
        assert row["similarity"] == pytest.approx(
            naive_column(holdout[name], fresh[name], ordered), abs=1e-12
        )
        assert row["similarity_real"] == pytest.approx(
            naive_column(holdout[name], train[name], ordered), abs=1e-12
        )


def test_pairs_are_compared_in_bins_of_equally_many_real_rows() -> None:
    train, holdout, fresh = parts((500, 500, 500), 3, missing=0.1)
    compared = Compared.of(given(train, holdout, fresh))
    cells = compared.columns["income"].binned(10)
    real = np.concatenate([cells.cells["holdout"], cells.cells["train"]])
    counts = np.bincount(real)
    missing = int(train["income"].isna().sum() + holdout["income"].isna().sum())
    assert counts[0] == missing and len(counts) == 11
    assert counts[1:].max() < 1.3 * counts[1:].min()
    frames = {
        role: pd.DataFrame({"a": cells.cells[role], "b": compared.columns["plan"].cells[role]})
        for role in ROLES
    }
    oracle = ContingencySimilarity.compute(frames["holdout"], frames["synthetic"])
    pairs = run(train, holdout, fresh).tables["pairs"]
    found = next(row for row in pairs if (row["first"], row["second"]) == ("income", "plan"))
    assert found["similarity"] == pytest.approx(oracle, abs=1e-12)


def test_rare_categories_stand_together_and_invented_ones_apart() -> None:
    train, holdout, fresh = (
        pd.DataFrame({"a": [f"v{i}" for i in rows]})
        for rows in ([0, 0, 1, 1, 2], [0, 1, 3], [9] * 5)
    )
    cells = Compared.of(given(train, holdout, fresh)).columns["a"].binned(2)
    own, other, rare = (set(cells.cells[role].tolist()) for role in ROLES)
    assert own | rare == {0, 1, 2} and other == {3}


def test_the_area_is_that_of_scikit_learn_under_weights() -> None:
    rng = np.random.default_rng(4)
    answers, ranks = rng.random(80) < 0.4, rng.integers(0, 12, 80).astype(np.int32)
    weights = rng.integers(0, 3, (80, 5)).astype(np.float32)
    found = auc(answers, ranks, weights)
    for at in range(5):
        assert found[at] == pytest.approx(
            roc_auc_score(answers, ranks, sample_weight=weights[:, at]), abs=1e-12
        )
    assert auc(answers, ranks, weights * answers[:, None]).tolist() == [0.5] * 5
    naive = [weights[ranks == cell].sum(axis=0) for cell in range(12)]
    assert np.allclose(tally(ranks, 12, weights), naive)


def test_questions_halve_numbers_and_ask_for_the_most_common_category() -> None:
    train, holdout, fresh = parts((300, 300, 300), 5, missing=0.1)
    for table in (train, holdout, fresh):
        table["zeros"] = np.where(np.arange(300) < 270, 0, np.arange(300))
    columns = Compared.of(given(train, holdout, fresh)).columns
    asked = {name: Question.about(name, column) for name, column in columns.items()}
    real = {
        name: np.concatenate([q.answers["holdout"], q.answers["train"]]).mean()
        for name, q in asked.items()
    }
    assert abs(real["visit"] - 0.5) < 0.02 and abs(real["age"] - 0.5) < 0.02
    assert real["zeros"] == pytest.approx(0.1)
    both = pd.concat([train, holdout])
    assert real["plan"] == pytest.approx((both["plan"] == "gold").mean())
    assert real["smoker"] == pytest.approx((both["smoker"] == False).fillna(False).mean())  # noqa: E712


@pytest.mark.slow
def test_intervals_are_as_wide_as_statistics_spread_over_samples() -> None:
    results = [run(*parts((200, 150, 200), 100 + seed)) for seed in range(16)]
    for name in STATISTICS:
        values = np.array([value(result, name) for result in results])
        half = np.mean([(r.estimate(name).high - r.estimate(name).low) / 2 for r in results])
        assert 0.6 < half / (1.96 * values.std(ddof=1)) < 2.2, name


def test_people_with_several_rows_are_one_witness() -> None:
    tables = parts((100, 100, 400), 7)
    repeated = [table.loc[table.index.repeat(4)].reset_index(drop=True) for table in tables[:2]]
    owners = {"train": np.repeat(np.arange(100), 4), "holdout": np.repeat(np.arange(100, 200), 4)}
    metric, everybody = (
        Fidelity(targets=("plan",)),
        {"train": np.arange(400), "holdout": np.arange(400, 800)},
    )
    wide, narrow = (
        run(*repeated, tables[2], metric, subjects=subjects) for subjects in (owners, everybody)
    )
    assert {(f.n, f.subjects) for f in wide.estimates} == {(800, 100)}
    for name, times in {"prediction": 1.6}.items():
        widths = [
            result.estimate(name).high - result.estimate(name).low for result in (wide, narrow)
        ]
        assert widths[0] > times * widths[1], name


# ---- expected results ----


@pytest.fixture(scope="module")
def tables() -> list[pd.DataFrame]:
    return parts((800, 800, 800), 9)


@pytest.fixture(scope="module")
def good(tables) -> MetricResult:
    """Fresh rows."""
    return run(*tables)


def test_a_copy_of_the_holdout_is_perfect_and_a_copy_of_train_is_as_good_as_real_rows(
    tables,
) -> None:
    train, holdout, _ = tables
    perfect, equal = run(train, holdout, holdout), run(train, holdout, train)
    assert value(perfect, "column_similarity") == value(perfect, "pair_similarity") == 1
    for name in STATISTICS:
        assert value(equal, name) == equal.estimate(name).null


def test_fresh_rows_are_as_good_as_real_ones_and_worse_tables_fall_behind(
    tables, good: MetricResult
) -> None:
    train, holdout, fresh = tables
    loose = run(train, holdout, shuffled(fresh))
    for name in STATISTICS:
        assert good.estimate(name).null == pytest.approx(value(good, name), abs=0.05)
    assert value(loose, "column_similarity") == value(good, "column_similarity")
    assert loose.estimate("pair_similarity").high < good.estimate("pair_similarity").low
    assert abs(value(loose, "prediction") - 0.5) < 0.1
    limits = (
        Limit("fidelity.pair_similarity", at_least=0.82),
        Limit("fidelity.prediction", at_least=0.6),
    )
    assert [judge_limit(limit, good).status for limit in limits] == ["pass", "pass"]
    assert [judge_limit(limit, loose).status for limit in limits] == ["fail", "fail"]


def test_likeness_falls_with_the_share_of_wrong_rows(tables, good: MetricResult) -> None:
    train, holdout, fresh = tables
    wrong = shuffled(fresh).assign(income=1.0)
    mixed = [pd.concat([fresh[k:], wrong[:k]], ignore_index=True) for k in (150, 600)]
    results = [good, *(run(train, holdout, table) for table in mixed)]
    for name in ("column_similarity", "pair_similarity"):
        values = [value(result, name) for result in results]
        assert values == sorted(values, reverse=True) and values[0] > values[-1] + 0.1


@pytest.mark.parametrize("name", ["age", "smoker"])
def test_missing_values_of_numbers_and_categories_count(name: str) -> None:
    train, holdout, fresh = parts((300, 300, 300), 11, missing=0)
    for missing, likeness in ((120, 0.6), (300, 0)):
        gone = fresh.assign(**{name: fresh[name].mask(np.arange(300) < missing)})
        result = run(train, holdout, gone)
        rows = {row["column"]: row for row in result.tables["columns"]}
        assert rows[name]["similarity"] <= likeness + 1e-12
        assert all(estimate.measurable for estimate in result.estimates)


def test_longer_tables_are_cut_to_the_same_number_of_rows() -> None:
    train, holdout, fresh = parts((300, 200, 900), 13)
    result = run(train, holdout, fresh)
    assert {estimate.n for estimate in result.estimates} == {500}
    assert value(result, "pair_similarity") == pytest.approx(
        result.estimate("pair_similarity").null, abs=0.05
    )
    few = run(train, holdout, fresh[:40])
    assert {(estimate.n, estimate.subjects) for estimate in few.estimates} == {(240, 40)}
    assert few.estimate("pair_similarity").null < result.estimate("pair_similarity").null - 0.05


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given_, found = parts((200, 150, 260), 14), []
    for count in (1, 3):
        monkeypatch.setattr("privacy_assets.infra.parallel.threads", lambda count=count: count)
        found.append(repr(run(*given_).estimates))
    assert found[0] == found[1]


def test_a_model_takes_one_thread_of_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads would wait for each other by spinning."""
    seen, fit = [], HistGradientBoostingClassifier.fit

    def watched(model: Any, *tables: Any) -> Any:
        seen.extend(
            pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"
        )
        return fit(model, *tables)

    monkeypatch.setattr(HistGradientBoostingClassifier, "fit", watched)
    monkeypatch.setattr(
        "privacy_assets.metrics.fidelity.in_threads", lambda work, parts: [*map(work, parts)]
    )
    with threadpool_limits(2, user_api="openmp"):  # of this thread, in which the models now run
        run(*parts((120, 100, 120), 14))
    assert seen and set(seen) == {1}


@pytest.mark.slow
def test_constant_columns_and_columns_without_a_real_value() -> None:
    train, holdout, fresh = parts((200, 200, 200), 15)
    for table in (train, holdout, fresh):
        table["same"], table["one"] = 3, "x"
        table["none"] = pd.Series(
            1.5 if table is fresh else pd.NA, index=table.index, dtype="Float64"
        )
    result = run(train, holdout, fresh, Fidelity(n_bootstraps=20))
    rows = {row["column"]: row for row in result.tables["columns"]}
    assert [rows[name]["similarity"] for name in ("same", "one", "none")] == [1, 1, 0]
    assert all(
        rows[name]["similarity_real"] == 1 and "prediction" not in rows[name]
        for name in ("same", "one", "none")
    )
    assert sum("prediction" in row for row in rows.values()) == 5
    assert all(estimate.measurable for estimate in result.estimates)
    # Constant in the synthetic table only: unrelated to every column, and no model can learn it.
    flat = run(train, holdout, fresh.assign(plan="gold", age=50))
    assert value(flat, "prediction") == 0.5
    assert all(estimate.measurable for estimate in flat.estimates)


def test_what_cannot_be_measured_says_why_and_passes_no_limit() -> None:
    train, holdout, fresh = parts((50, 50, 50), 16)
    one_person = {"train": np.zeros(50, dtype=int), "holdout": np.arange(1, 51)}
    for few in (run(train[:1], holdout, fresh), run(train, holdout, fresh, subjects=one_person)):
        for estimate in few.estimates:
            assert not estimate.measurable and estimate.note.startswith(
                "not measurable: train, holdout and synthetic"
            )
    single = run(train[["plan"]], holdout[["plan"]], fresh[["plan"]])
    assert [f.name for f in single.estimates if f.measurable] == ["column_similarity"]
    assert (
        judge_limit(Limit("fidelity.pair_similarity", at_least=0.5), single).status == "undecided"
    )


def test_settings() -> None:
    train, holdout, fresh = parts((200, 200, 200), 18)
    result = run(
        train,
        holdout,
        fresh,
        Fidelity(targets=["smoker", "plan", "plan"], pairs=3, rows=50, n_bootstraps=20),
    )
    assert [row["column"] for row in result.tables["columns"] if "prediction" in row] == [
        "plan",
        "smoker",
    ]
    assert sum("similarity" in row for row in result.tables["pairs"]) == 3
    with pytest.raises(ConfigError, match="Did you mean 'smoker'"):
        run(train, holdout, fresh, Fidelity(targets=["smokr"]))


def test_nearly_unique_texts_and_many_categories() -> None:
    rng, tables = np.random.default_rng(20), []
    for table in parts((400, 300, 400), 20):
        texts = rng.choice(10**9, len(table)).astype(str)
        tables.append(
            table.assign(
                text=[f"t{x}" for x in texts], code=rng.integers(0, 280, len(table)).astype(str)
            )
        )
    metric = Fidelity(n_bootstraps=20, targets=("text", "code", "plan"))
    result = metric.measure(given(*tables))
    rows = {row["column"]: row for row in result.tables["columns"]}
    assert rows["text"]["similarity"] == rows["text"]["similarity_real"] == 0
    assert all(estimate.measurable for estimate in result.estimates)


def wide_parts(columns: int) -> list[pd.DataFrame]:
    """Train, holdout and fresh rows with independent columns ``x00``, ``x01``, ... and a constant
    one.
    """
    values = np.random.default_rng(30).integers(0, 9, (180, columns))
    table = pd.DataFrame(values, columns=[f"x{at:02}" for at in range(columns)]).assign(constant=1)
    return [table[start : start + 60].reset_index(drop=True) for start in (0, 60, 120)]


@pytest.mark.slow
def test_wide_tables_predict_20_drawn_columns_that_the_note_lists() -> None:
    tables, metric = wide_parts(23), Fidelity(n_bootstraps=20)
    asked, notes = [], []
    for seed in (0, 0, 1):
        result = metric.measure(given(*tables, seed=seed))
        asked.append(
            sorted(row["column"] for row in result.tables["columns"] if "prediction" in row)
        )
        notes.append(result.estimate("prediction").note)
    assert asked[0] == asked[1] != asked[2] and len(asked[0]) == len(set(asked[0])) == 20
    assert notes[0] == f"20 of 23 columns, drawn at random: {', '.join(map(repr, asked[0]))}"
    drawn = {
        row["column"]: row["prediction"] for row in result.tables["columns"] if "prediction" in row
    }
    assert value(result, "prediction") == pytest.approx(np.mean(list(drawn.values())))
    # Each column is predicted as if it had been named, whichever others are drawn.
    named = Fidelity(n_bootstraps=20, targets=tuple(asked[2])).measure(given(*tables, seed=1))
    assert named.estimate("prediction").note == ""
    assert {
        row["column"]: row["prediction"] for row in named.tables["columns"] if "prediction" in row
    } == drawn


@pytest.mark.slow
@pytest.mark.parametrize("columns", [2, 20])
def test_up_to_20_columns_are_all_predicted(columns: int) -> None:
    result = Fidelity(n_bootstraps=20).measure(given(*wide_parts(columns)))
    assert sum("prediction" in row for row in result.tables["columns"]) == columns
    assert result.estimate("prediction").note == ""


@pytest.mark.slow
def test_named_targets_are_never_drawn() -> None:
    tables = wide_parts(23)
    every = tuple(name for name in tables[0] if name != "constant")
    result = Fidelity(n_bootstraps=20, targets=every).measure(given(*tables))
    assert sum("prediction" in row for row in result.tables["columns"]) == 23
