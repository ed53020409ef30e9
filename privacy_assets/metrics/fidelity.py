"""Utility of the synthetic table: similarity to the holdout, and prediction of holdout rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import AfterValidator, BeforeValidator, Field

from privacy_assets.errors import ConfigError, did_you_mean, safe_repr
from privacy_assets.infra.parallel import in_threads
from privacy_assets.infra.progress import Progress
from privacy_assets.infra.settings import Tuple, declared
from privacy_assets.metrics.base import Causes, Metric, Plot, SharePlot
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.intervals import CONFIDENCE
from privacy_assets.tables.column import ranked
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.names import as_named
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

# compared with the holdout: the synthetic rows, and equally many real rows
CANDIDATES = ("synthetic", "train")
ROLES = ("holdout", *CANDIDATES)
_NUMBERS = ("numeric", "integer", "datetime")
_BINS, _COMMON = 10, 100  # cells of a number and of a category in a pair of columns
_STEPS = 1000  # cells of a column in a bootstrap replicate: fine enough for its standard deviation
_REPLICATES_AT_ONCE = 32
_MOST_DRAWN = 3  # columns whose distributions are drawn
_MOST_PREDICTED = 20  # columns, because the cost of each model grows with the width of the table
# scikit-learn's maximum of a categorical feature; columns of more codes are read as numbers
_MOST_CODES = 255
_ROWS_AT_ONCE = 1 << 16  # rows to score in one call, because scikit-learn copies them
_MODEL = {"max_iter": 40, "learning_rate": 0.25, "max_leaf_nodes": 8, "early_stopping": False}
_MISSING = {
    "column_similarity": "no column",
    "pair_similarity": "a pair of columns is required",
    "prediction": "two columns are required, and one to predict that varies in the holdout",
}

Weights = Mapping[str, np.ndarray]  # by role (rows, b): weight of each row in each of b replicates
# weights to scores (entries, 2, b), the last but one: synthetic, train
Scorer = Callable[[Weights], np.ndarray]


def _unique(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(dict.fromkeys(names))


@declared
class Fidelity(Metric):
    """Similarity of the synthetic rows to the holdout, compared with the same number of train rows.

    The null value of each statistic is the same statistic of rows of train, which are a fresh
    sample of the population to the holdout. A generator adds no knowledge of the population to
    train, so it exceeds this baseline only by chance, and a copy of train reaches it exactly.
    Similarity depends on the number of rows: both sides have n = min(n_S, n_T) rows, a random part
    of the longer table. All holdout rows are used.

    Intervals resample subjects of the holdout and of train, and synthetic rows: the value plus and
    minus the 95 % quantile of the replicates' distance to their mean. Models and ranks are not
    computed again. Labels are not permuted, because fidelity does not depend on membership. No
    limit is set by default.

    Attributes:
        column_similarity: Mean of 1 - D over columns. D is the Kolmogorov-Smirnov distance for
            numbers and times, with missing as a value below all others, and half the sum of
            absolute differences of shares for categories and booleans, with missing as a category.
            Without missing values: KSComplement and TVComplement of SDMetrics.
        pair_similarity: Mean of 1 - total variation distance over pairs of columns. Numbers have up
            to ten bins at the deciles of the real rows and one for missing values. Categories after
            the 100 most common share a cell.
        prediction: Mean area under the ROC curve of gradient boosting that learns from the table
            and predicts each column of the holdout from all others: whether a number is above the
            median (missing: no), or whether a category is the most common one. 0.5 is guessing.
            Columns with a single answer in the holdout are skipped. Without ``targets``, at most 20
            columns are predicted, drawn at random by the seed and listed in the report.

    Notes:
        Train on synthetic, test on real: Esteban, Hyland and Rätsch (2017), "Real-valued (medical)
        time series generation with recurrent conditional GANs". Tables: "columns" and "pairs", the
        largest loss of similarity first. "relations": share of the rows of train and holdout, and
        of synthetic, that break each relation between columns. "distributions": shares of real and
        synthetic rows in the parts of the three columns that lose most: tenths of the real numbers,
        and the most common categories, without their names. Not measurable with fewer than two rows
        or subjects in a table.
    """

    name: ClassVar[str] = "fidelity"
    summary: ClassVar[str] = (
        "How useful are the synthetic rows, compared with the same number of real ones?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "column_similarity",
            "Similarity of columns to the holdout: 1 is equal.",
            "lower_is_riskier",
            None,
        ),
        StatisticSpec(
            "pair_similarity",
            "Similarity of pairs of columns to the holdout: 1 is equal.",
            "lower_is_riskier",
            None,
        ),
        StatisticSpec(
            "prediction",
            "Prediction of holdout columns by models that learn from the table: 0.5 is"
            " guessing, 1 perfect.",
            "lower_is_riskier",
            None,
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = ()
    causes: ClassVar[Causes] = Causes("poor fit")
    seen_in_copy: ClassVar[bool] = False
    utility: ClassVar[tuple[str, ...]] = ("column_similarity", "pair_similarity", "prediction")
    plots: ClassVar[tuple[Plot, ...]] = (
        SharePlot(
            table="relations",
            caption="Share of the rows that break a relation between columns of the real rows.",
            label="relation",
            series={"broken_real": "real rows", "broken_synthetic": "synthetic rows"},
        ),
        SharePlot(
            table="distributions",
            caption="Column {}: share of the rows in each tenth of the real numbers, or with"
            " each of"
            " the most common"
            " categories.",
            facet="column",
            label="part",
            series={"real": "real rows", "synthetic": "synthetic rows"},
        ),
    )

    targets: Annotated[
        tuple[str, ...] | None, Tuple, BeforeValidator(as_named), AfterValidator(_unique)
    ] = Field(
        default=None,
        min_length=1,
        description="columns to predict; default: 20 that can be predicted, drawn at random",
    )
    rows: int = Field(
        default=10_000, ge=10, description="maximum number of rows that a model learns from"
    )
    pairs: int = Field(
        default=300, ge=1, description="maximum number of pairs of columns, drawn at random"
    )
    n_bootstraps: int = Field(default=200, ge=20, description="bootstrap replicates")

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the tables "columns", "pairs", "relations" and
        "distributions".
        """
        targets = self._targets(inputs.schema.names)
        compared = Compared.of(inputs)
        if compared.counts[1] < 2:
            reason = "train, holdout and synthetic need at least two rows and two people each"
            return self.not_measurable(inputs, reason, compared.counts)
        names, rng = list(compared.columns), inputs.rng("fidelity")
        pairs = compared.pairs(names, self.pairs, rng)
        questions, drawn_from = self._questions(compared, targets, inputs.rng("fidelity targets"))
        predictions = predict(compared, questions, self.rows, rng, inputs.progress)
        scorers = _scorers(compared, pairs, predictions)
        once = compared.unit_weights()
        found = {name: score(once)[:, :, 0] for name, score in scorers.items()}
        found["column_similarity"] = similarity(list(compared.columns.values()), once)[:, :, 0]
        inputs.progress("fidelity: intervals")
        measurable = {name: score for name, score in scorers.items() if len(found[name])}
        drawn = _replicates(compared, measurable, self.n_bootstraps, rng)
        asked = {question.name: question.asks for question in predictions.questions}
        columns = _columns(names, found["column_similarity"], asked, found["prediction"])
        return self.result(
            inputs,
            self._estimates(found, drawn, compared.counts, {"prediction": drawn_from}),
            columns=columns,
            pairs=_pairs(pairs, found["pair_similarity"]),
            relations=_relations(inputs),
            distributions=_distributions(
                compared, [row["column"] for row in columns[:_MOST_DRAWN]]
            ),
        )

    def _targets(self, known: Sequence[str]) -> Sequence[str]:
        for name in self.targets or ():
            if name not in known:
                raise ConfigError(
                    "metric fidelity: no table has a column"
                    f" {safe_repr(name)}.{did_you_mean(name, known)}"
                )
        return known if self.targets is None else self.targets

    def _questions(
        self, compared: Compared, targets: Sequence[str], rng: np.random.Generator
    ) -> tuple[list[Question], str]:
        """Return the questions to predict, and a note that lists their columns if these were
        drawn.
        """
        if len(compared.columns) < 2:
            return [], ""
        questions = [Question.about(name, compared.columns[name]) for name in targets]
        questions = [question for question in questions if question.is_open]
        if self.targets is not None or len(questions) <= _MOST_PREDICTED:
            return questions, ""
        drawn = [
            questions[place] for place in np.sort(rng.permutation(len(questions))[:_MOST_PREDICTED])
        ]
        names = ", ".join(repr(question.name) for question in drawn)
        return drawn, f"{len(drawn)} of {len(questions)} columns, drawn at random: {names}"

    def _estimates(
        self,
        found: dict[str, np.ndarray],
        drawn: dict[str, np.ndarray],
        counts: tuple[int, int],
        notes: Mapping[str, str],
    ) -> tuple[Estimate, ...]:
        """Average the entries (m, 2); the interval is computed from the averages (2,
        replicates).
        """
        estimates = []
        for spec in self.statistics:
            if spec.name not in drawn:
                estimates.append(spec.not_measurable(_MISSING[spec.name], counts))
                continue
            (value, real), values = found[spec.name].mean(axis=0), drawn[spec.name][0]
            half = float(np.quantile(np.abs(values - values.mean()), CONFIDENCE, method="higher"))
            low, high = max(value - half, 0), min(value + half, 1)
            note = notes.get(spec.name, "")
            estimates.append(spec.with_null(real).estimate(value, low, high, counts, note=note))
        return tuple(estimates)


@dataclass(frozen=True, eq=False)
class Cells:
    """One column, or a pair of columns, as cell numbers.

    Attributes:
        cells: By role, int32 (rows,) in 0..size-1. Cell 0 of a number is missing.
        size: Number of cells.
        ordered: True for numbers and times.
    """

    cells: Mapping[str, np.ndarray]
    size: int
    ordered: bool = False

    def binned(self, parts: int) -> Cells:
        """Merge cells into about ``parts`` bins, by the counts of the real rows."""
        real = np.concatenate([self.cells["holdout"], self.cells["train"]])
        bins = _bins(np.bincount(real, minlength=self.size), parts, self.ordered)
        binned = {role: bins[cells] for role, cells in self.cells.items()}
        return Cells(binned, int(bins.max()) + 1, self.ordered)

    def with_(self, other: Cells) -> Cells:
        """Return the cells of the pair of columns."""
        joined = {
            role: cells * np.int32(other.size) + other.cells[role]
            for role, cells in self.cells.items()
        }
        return Cells(joined, self.size * other.size)


def _bins(counts: np.ndarray, parts: int, ordered: bool) -> np.ndarray:
    """Return the bin of each cell, int32 (size,), from the counts of the real rows (size,).

    Numbers: cell 0 keeps its own bin, the others are cut at the quantiles of the real values.
    Categories: the ``parts`` most common cells keep their own bins, rarer ones share one, and cells
    without a real row share another.
    """
    if ordered:
        below = np.cumsum(counts[1:]) - counts[1:]
        part = below * parts // max(1, int(counts[1:].sum()))
        return np.concatenate([[0], 1 + np.unique(part, return_inverse=True)[1]]).astype(np.int32)
    place = np.empty(len(counts), dtype=np.int32)
    place[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return np.where(counts > 0, np.minimum(place, parts), parts + 1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Compared:
    """The holdout, and equally many rows of synthetic and train, each sorted by content.

    Attributes:
        people: By role, int64 (rows,): subjects numbered from 0. Each synthetic row counts as one
            subject.
    """

    schema: TableSchema
    tables: Mapping[str, Table]
    people: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, inputs: EvaluationInputs) -> Compared:
        """Take the rows of ``inputs``, and a random part of the longer one of synthetic and
        train.
        """
        n = min(len(inputs.synthetic), len(inputs.train))
        rng = inputs.rng("fidelity rows")
        tables, people = {}, {}
        for role in ROLES:
            table = inputs.tables[role]
            owner = np.arange(len(table)) if role == "synthetic" else inputs.subject_codes(role)
            order = np.lexsort((owner, inputs.row_ids[role]))
            if role in CANDIDATES and len(order) > n:
                order = order[np.sort(rng.permutation(len(order))[:n])]
            tables[role] = table.take(order)
            people[role] = pd.factorize(owner[order])[0]
        return cls(inputs.schema, tables, people)

    @property
    def counts(self) -> tuple[int, int]:
        """Number of rows of holdout and one candidate together; smallest number of subjects of the
        three tables.
        """
        return len(self.people["holdout"]) + len(self.people["train"]), min(
            map(_distinct, self.people.values())
        )

    @cached_property
    def columns(self) -> dict[str, Cells]:
        """Every column as cells, by name: 0 for missing, then from 1 in the order of the values."""
        found = {}
        for column in self.schema.columns:
            codes, values = ranked([self.tables[role][column.name] for role in ROLES])
            cells = {
                role: (code + 1).astype(np.int32) for role, code in zip(ROLES, codes, strict=True)
            }
            found[column.name] = Cells(cells, len(values) + 1, column.kind in _NUMBERS)
        return found

    def pairs(
        self, names: Sequence[str], most: int, rng: np.random.Generator
    ) -> list[tuple[str, str]]:
        """Return all pairs of the columns in order, or ``most`` of them drawn at random."""
        pairs = list(itertools.combinations(names, 2))
        if len(pairs) <= most:
            return pairs
        return [pairs[place] for place in np.sort(rng.permutation(len(pairs))[:most])]

    def unit_weights(self) -> Weights:
        """Return weight 1 for every row, float64 (rows, 1)."""
        return {role: np.ones((len(people), 1)) for role, people in self.people.items()}

    def resampled(self, n_bootstraps: int, rng: np.random.Generator) -> Iterator[Weights]:
        """Yield blocks of float32 weights (rows, b) from subjects resampled with replacement in
        every role.
        """
        for start in range(0, n_bootstraps, _REPLICATES_AT_ONCE):
            block = min(_REPLICATES_AT_ONCE, n_bootstraps - start)
            yield {role: _times(people, block, rng)[people] for role, people in self.people.items()}


def _distinct(people: np.ndarray) -> int:
    return int(people.max(initial=-1)) + 1


def _times(people: np.ndarray, n_bootstraps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw how often each subject is sampled, float32 (subjects, replicates)."""
    total = _distinct(people)
    drawn = [
        np.bincount(rng.integers(0, total, total), minlength=total) for _ in range(n_bootstraps)
    ]
    return np.stack(drawn, axis=1).astype(np.float32)


def tally(cells: np.ndarray, size: int, weights: np.ndarray) -> np.ndarray:
    """Sum the weights (n, b) of the rows in each cell, float64 (size, b)."""
    from scipy import sparse  # slow to import

    n = len(cells)
    table = sparse.csc_matrix(
        (np.ones(n, dtype=weights.dtype), cells, np.arange(n + 1)), shape=(size, n)
    )
    return np.asarray(table @ weights, dtype=np.float64)


def similarity(columns: Iterable[Cells], weights: Weights) -> np.ndarray:
    """Return 1 - the distance of each column to the holdout, float64 (columns, 2, b), for synthetic
    and train.

    The distance is Kolmogorov-Smirnov for ordered cells and total variation otherwise.
    """
    found = [_similarity(column, weights) for column in columns]
    return np.stack(found) if found else np.empty((0, 2, weights["holdout"].shape[1]))


def _similarity(column: Cells, weights: Weights) -> np.ndarray:
    # most cells of a pair of columns are empty in every table
    occupied = np.zeros(column.size, dtype=bool)
    for cells in column.cells.values():
        occupied[cells] = True
    place, size = np.cumsum(occupied) - 1, int(occupied.sum())
    counts = {
        role: tally(place[cells], size, weights[role]) for role, cells in column.cells.items()
    }
    shares = {role: count / count.sum(axis=0) for role, count in counts.items()}
    apart = np.stack([shares[role] - shares["holdout"] for role in CANDIDATES])
    distance = (
        np.abs(np.cumsum(apart, axis=1)).max(axis=1)
        if column.ordered
        else np.abs(apart).sum(axis=1) / 2
    )
    return np.clip(1 - distance, 0, 1)


@dataclass(frozen=True, eq=False)
class Question:
    """A yes-or-no question about a column.

    Attributes:
        name: The column.
        asks: The question, for the report.
        answers: By role, bool (rows,).
    """

    name: str
    asks: str
    answers: dict[str, np.ndarray]

    @classmethod
    def about(cls, name: str, column: Cells) -> Question:
        """Ask whether a number is above the cut nearest to the real rows' median, or a category the
        most common one.
        """
        counts = np.bincount(
            np.concatenate([column.cells["holdout"], column.cells["train"]]), minlength=column.size
        )
        if column.ordered:
            cut = int(np.abs(np.cumsum(counts) / counts.sum() - 0.5).argmin())
            return cls(
                name,
                "above the middle",
                {role: cells > cut for role, cells in column.cells.items()},
            )
        common = int(counts.argmax())
        return cls(
            name,
            "the most common value",
            {role: cells == common for role, cells in column.cells.items()},
        )

    @property
    def is_open(self) -> bool:
        """Whether the holdout contains both answers."""
        return 0 < int(self.answers["holdout"].sum()) < len(self.answers["holdout"])


@dataclass(frozen=True, eq=False)
class Predictions:
    """Scores of the holdout rows by two models for each question, one that learned from synthetic
    and one from train.

    Attributes:
        questions: The questions.
        ranks: For each question and model, the ranks of the scores, int32 (rows,). Equal scores
            have equal ranks.
    """

    questions: Sequence[Question]
    ranks: Sequence[Sequence[np.ndarray]]

    def auc(self, weights: Weights) -> np.ndarray:
        """Return the area under the ROC curve on the holdout, float64 (questions, 2, b)."""
        found = [
            [auc(question.answers["holdout"], ranks, weights["holdout"]) for ranks in both]
            for question, both in zip(self.questions, self.ranks, strict=True)
        ]
        return np.array(found).reshape(len(found), 2, weights["holdout"].shape[1])


def auc(answers: np.ndarray, ranks: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the area under the ROC curve (b,) of int ranks (n,) for bool answers (n,) and weights
    (n, b).

    Ties count half. The area is 0.5 if one of the answers has no weight.
    """
    size = int(ranks.max()) + 1
    yes, no = (tally(ranks[side], size, weights[side]) for side in (answers, ~answers))
    below = np.cumsum(no, axis=0) - no
    total = yes.sum(axis=0) * no.sum(axis=0)
    return np.where(
        total > 0, (yes * (below + no / 2)).sum(axis=0) / np.where(total > 0, total, 1), 0.5
    )


def predict(
    compared: Compared,
    questions: Sequence[Question],
    rows: int,
    rng: np.random.Generator,
    progress: Progress,
) -> Predictions:
    """Answer each of ``questions`` from all other columns, with models that learn from at most
    ``rows`` rows.
    """
    coding = MatrixCoding.fit(
        [compared.tables[role] for role in ("holdout", "train")], compared.schema
    )
    cells = {role: coding.code(table).T for role, table in compared.tables.items()}
    n = len(cells["train"])
    learnt = {role: np.sort(rng.permutation(n)[:rows]) for role in CANDIDATES}
    seed = int(rng.integers(2**31))
    progress(f"fidelity: predictions of {len(questions)} columns")

    def ranks(model: tuple[Question, str]) -> np.ndarray:
        question, role = model
        others = np.array(compared.schema.names) != question.name
        kinds = ((coding.sizes > 0) & (coding.sizes <= _MOST_CODES))[others]
        known = cells[role][learnt[role]][:, others]
        return _ranks(
            known, question.answers[role][learnt[role]], cells["holdout"], others, kinds, seed
        )

    found = in_threads(ranks, [(question, role) for question in questions for role in CANDIDATES])
    return Predictions(questions, [found[at : at + 2] for at in range(0, len(found), 2)])


def _ranks(
    known: np.ndarray,
    answers: np.ndarray,
    asked: np.ndarray,
    others: np.ndarray,
    categorical: np.ndarray,
    seed: int,
) -> np.ndarray:
    """Fit gradient boosting to ``known`` rows and return the ranks of its scores of ``asked``.

    ``others`` selects the columns of ``asked``. All ranks are equal if there is only one answer. A
    model uses one thread, because OpenMP threads that wait for each other spin and slow down other
    work.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # slow to import
    from threadpoolctl import threadpool_limits

    if answers.all() or not answers.any():
        return np.zeros(len(asked), dtype=np.int32)
    # scikit-learn cannot bin a column without a value
    known = np.where(np.isnan(known).all(axis=0), 0.0, known)
    model = HistGradientBoostingClassifier(
        **_MODEL, categorical_features=categorical, random_state=seed
    )
    with threadpool_limits(1, user_api="openmp"):
        model.fit(known, answers)
        starts = range(0, len(asked), _ROWS_AT_ONCE)
        scores = np.concatenate(
            [
                model.decision_function(asked[start : start + _ROWS_AT_ONCE, others])
                for start in starts
            ]
        )
    return np.unique(scores, return_inverse=True)[1].astype(np.int32)


def _scorers(
    compared: Compared, pairs: Sequence[tuple[str, str]], predictions: Predictions
) -> dict[str, Scorer]:
    """Return a scorer for each statistic, with columns in coarser steps than for the value
    itself.
    """
    columns = compared.columns
    cells = {
        name: column.binned(_BINS if column.ordered else _COMMON)
        for name, column in columns.items()
    }
    steps = [column.binned(_STEPS) for column in columns.values()]
    return {
        "column_similarity": lambda weights: similarity(steps, weights),
        # One pair at a time: the cells of all pairs would not fit in memory for millions of rows.
        "pair_similarity": lambda weights: similarity(
            (cells[a].with_(cells[b]) for a, b in pairs), weights
        ),
        "prediction": predictions.auc,
    }


def _replicates(
    compared: Compared, scorers: dict[str, Scorer], n_bootstraps: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return the mean score of each bootstrap replicate, (2, replicates), for each scorer."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in scorers}
    for weights in compared.resampled(n_bootstraps, rng):
        for name, score in scorers.items():
            parts[name].append(score(weights).mean(axis=0))
    return {name: np.concatenate(means, axis=1) for name, means in parts.items()}


def _columns(
    names: Sequence[str], likeness: np.ndarray, asked: dict[str, str], areas: np.ndarray
) -> list[dict[str, Any]]:
    """Return a row for each column, with the areas under the ROC curve of predicted ones."""
    table = {
        name: {"column": name, "similarity": float(own), "similarity_real": float(real)}
        for name, (own, real) in zip(names, likeness, strict=True)
    }
    for (name, question), (own, real) in zip(asked.items(), areas, strict=True):
        table[name] |= {
            "question": question,
            "prediction": float(own),
            "prediction_real": float(real),
        }
    return sorted(table.values(), key=_loss)


def _loss(row: Mapping[str, Any]) -> float:
    """Return minus the loss of similarity, rounded: equal losses keep their order in spite of
    rounding errors.
    """
    return round(row["similarity"] - row["similarity_real"], 12)


def _relations(inputs: EvaluationInputs) -> list[dict[str, Any]]:
    """Return a row for each relation, those that most synthetic rows break first."""
    rows = []
    for relation in inputs.relations:
        shares = {}
        for role in ("train", "holdout", "synthetic"):
            table = inputs.tables[role]
            shares[role] = relation.is_broken(table[relation.first], table[relation.second])
        real = np.concatenate([shares["train"], shares["holdout"]])
        rows.append({
            "relation": relation.name,
            "broken_real": float(real.mean()),
            "broken_synthetic": float(shares["synthetic"].mean()),
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["broken_synthetic"])


def _distributions(compared: Compared, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the shares of real and synthetic rows in the parts of columns. Values are not
    named.
    """
    rows = []
    for name in names:
        cells = compared.columns[name].binned(_BINS)
        shares = {
            role: np.bincount(cells.cells[role], minlength=cells.size)
            for role in ("holdout", "synthetic")
        }
        for part in range(cells.size):
            real = float(shares["holdout"][part] / shares["holdout"].sum())
            synthetic = float(shares["synthetic"][part] / shares["synthetic"].sum())
            if real or synthetic:
                label = _part_name(part, cells)
                rows.append({"column": name, "part": label, "real": real, "synthetic": synthetic})
    return rows


def _part_name(part: int, cells: Cells) -> str:
    """Return the name of a cell of :meth:`Cells.binned` without its values."""
    if cells.ordered:
        return "missing" if part == 0 else f"tenth {part}"
    if part < _BINS:
        return f"category {part + 1}"
    return "other categories" if part == _BINS else "no real row"


def _pairs(pairs: Sequence[tuple[str, str]], likeness: np.ndarray) -> list[dict[str, Any]]:
    """Return a row for each pair, the largest loss of similarity first."""
    table = [
        {"first": first, "second": second, "similarity": own, "similarity_real": real}
        for (first, second), (own, real) in zip(pairs, likeness.tolist(), strict=True)
    ]
    return sorted(table, key=_loss)
