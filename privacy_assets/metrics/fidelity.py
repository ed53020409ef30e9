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
_BINS = 10  # cells of a number in a pair of columns
_COMMON = 100  # cells of a category in a pair of columns
_STEPS = 1000  # cells of a column in a bootstrap replicate: fine enough for its standard deviation
_REPLICATES_AT_ONCE = 32
_MAX_DISTRIBUTIONS = 3  # columns whose distributions the report displays
_MAX_PREDICTED = 20  # columns, because the cost of each model grows with the width of the table
# scikit-learn's maximum of a categorical feature; columns of more codes are read as numbers
_MAX_CODES = 255
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
    if names is None:
        return None
    return tuple(dict.fromkeys(names))


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

    Args:
        targets: Columns to predict. None: 20 that can be predicted, drawn at random.
        rows: Maximum number of rows that a model learns from.
        pairs: Maximum number of pairs of columns, drawn at random.
        n_bootstraps: Number of bootstrap replicates.

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
    ] = Field(default=None, min_length=1)
    rows: int = Field(default=10_000, ge=10)
    pairs: int = Field(default=300, ge=1)
    n_bootstraps: int = Field(default=200, ge=20)

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the tables "columns", "pairs", "relations" and
        "distributions".
        """
        targets = self._targets(inputs.schema.names)
        compared = Compared.of(inputs)
        if compared.counts[1] < 2:
            reason = "train, holdout and synthetic need at least two rows and two people each"
            return self.not_measurable(inputs, reason, compared.counts)

        rng = inputs.rng("fidelity")
        pairs = compared.pairs(list(compared.columns), self.pairs, rng)
        questions, note = self._questions(compared, targets, inputs.rng("fidelity targets"))
        predictions = predict(compared, questions, self.rows, rng, inputs.progress)
        scorers = _scorers(compared, pairs, predictions)
        scores = _scores(compared, scorers)

        inputs.progress("fidelity: intervals")
        measurable = {name: scorer for name, scorer in scorers.items() if len(scores[name])}
        replicates = _replicates(compared, measurable, self.n_bootstraps, rng)
        columns = _columns(compared, scores["column_similarity"], questions, scores["prediction"])
        lossy = [record["column"] for record in columns[:_MAX_DISTRIBUTIONS]]
        notes = {"prediction": note}
        return self.result(
            inputs,
            self._estimates(scores, replicates, compared.counts, notes),
            columns=columns,
            pairs=_pairs(pairs, scores["pair_similarity"]),
            relations=_relations(inputs),
            distributions=_distributions(compared, lossy),
        )

    def _targets(self, valid_names: Sequence[str]) -> Sequence[str]:
        """Return the names of the columns to predict, all of them by default."""
        if self.targets is None:
            return valid_names
        for name in self.targets:
            if name not in valid_names:
                raise ConfigError(
                    "metric fidelity: no table has a column"
                    f" {safe_repr(name)}.{did_you_mean(name, valid_names)}"
                )
        return self.targets

    def _questions(
        self, compared: Compared, targets: Sequence[str], rng: np.random.Generator
    ) -> tuple[list[Question], str]:
        """Return the questions to predict, and a note that lists their columns if these were
        drawn.
        """
        if len(compared.columns) < 2:
            return [], ""
        questions = []
        for name in targets:
            question = Question.about(name, compared.columns[name])
            if question.is_open:
                questions.append(question)
        if self.targets is not None or len(questions) <= _MAX_PREDICTED:
            return questions, ""
        positions = np.sort(rng.permutation(len(questions))[:_MAX_PREDICTED])
        sample = [questions[i] for i in positions]
        names = ", ".join(repr(question.name) for question in sample)
        return sample, f"{len(sample)} of {len(questions)} columns, drawn at random: {names}"

    def _estimates(
        self,
        scores: Mapping[str, np.ndarray],
        replicates: Mapping[str, np.ndarray],
        counts: tuple[int, int],
        notes: Mapping[str, str],
    ) -> tuple[Estimate, ...]:
        """Average the scores (m, 2); the interval is computed from the averages (2,
        replicates).
        """
        estimates = []
        for spec in self.statistics:
            if spec.name not in replicates:
                estimates.append(spec.not_measurable(_MISSING[spec.name], counts))
                continue
            value, null = scores[spec.name].mean(axis=0)
            values = replicates[spec.name][0]
            distances = np.abs(values - values.mean())
            half = float(np.quantile(distances, CONFIDENCE, method="higher"))
            low = max(value - half, 0)
            high = min(value + half, 1)
            note = notes.get(spec.name, "")
            estimates.append(spec.with_null(null).estimate(value, low, high, counts, note=note))
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
        """Merge cells into bins, by the counts of the real rows.

        Args:
            parts: Approximate number of bins, without those of missing or rare values.
        """
        bins = _bins(self.real_counts(), parts, self.ordered)
        binned = {role: bins[cells] for role, cells in self.cells.items()}
        return Cells(binned, int(bins.max()) + 1, self.ordered)

    def paired_with(self, second: Cells) -> Cells:
        """Return the cells of the pair of columns."""
        pairs = {}
        for role, cells in self.cells.items():
            pairs[role] = cells * np.int32(second.size) + second.cells[role]
        return Cells(pairs, self.size * second.size)

    def real_counts(self) -> np.ndarray:
        """Return the number of real rows in each cell, int64 (size,)."""
        real = np.concatenate([self.cells["holdout"], self.cells["train"]])
        return np.bincount(real, minlength=self.size)


def _bins(counts: np.ndarray, parts: int, ordered: bool) -> np.ndarray:
    """Return the bin of each cell, int32 (size,), from the counts of the real rows (size,).

    Numbers: cell 0 keeps its own bin, the others are cut at the quantiles of the real values.
    Categories: the ``parts`` most common cells keep their own bins, rarer ones share one, and cells
    without a real row share another.
    """
    if ordered:
        n_below = np.cumsum(counts[1:]) - counts[1:]
        quantiles = n_below * parts // max(1, int(counts[1:].sum()))
        _, bins = np.unique(quantiles, return_inverse=True)
        return np.concatenate([[0], 1 + bins]).astype(np.int32)
    ranks = np.empty(len(counts), dtype=np.int32)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return np.where(counts > 0, np.minimum(ranks, parts), parts + 1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Compared:
    """The holdout, and equally many rows of synthetic and train, each sorted by content.

    Attributes:
        subjects: By role, int64 (rows,): subjects numbered from 0. Each synthetic row counts as
            one subject.
    """

    schema: TableSchema
    tables: Mapping[str, Table]
    subjects: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, inputs: EvaluationInputs) -> Compared:
        """Take the rows of ``inputs``, and a random part of the longer one of synthetic and
        train.
        """
        n = min(len(inputs.synthetic), len(inputs.train))
        rng = inputs.rng("fidelity rows")
        tables = {}
        subjects = {}
        for role in ROLES:
            table = inputs.tables[role]
            codes = np.arange(len(table))
            if role != "synthetic":
                codes = inputs.subject_codes(role)
            order = np.lexsort((codes, inputs.row_ids[role]))
            if role in CANDIDATES and len(order) > n:
                order = order[np.sort(rng.permutation(len(order))[:n])]
            tables[role] = table.take(order)
            subjects[role], _ = pd.factorize(codes[order])
        return cls(inputs.schema, tables, subjects)

    @property
    def counts(self) -> tuple[int, int]:
        """Number of rows of holdout and one candidate together; smallest number of subjects of the
        three tables.
        """
        n_rows = len(self.subjects["holdout"]) + len(self.subjects["train"])
        n_subjects = min(_count_subjects(codes) for codes in self.subjects.values())
        return n_rows, n_subjects

    @cached_property
    def columns(self) -> dict[str, Cells]:
        """Every column as cells, by name: 0 for missing, then from 1 in the order of the values."""
        columns = {}
        for column in self.schema.columns:
            codes, values = ranked([self.tables[role][column.name] for role in ROLES])
            cells = {}
            for role, role_codes in zip(ROLES, codes, strict=True):
                cells[role] = (role_codes + 1).astype(np.int32)
            is_ordered = column.kind in _NUMBERS
            columns[column.name] = Cells(cells, len(values) + 1, is_ordered)
        return columns

    def pairs(
        self, names: Sequence[str], most: int, rng: np.random.Generator
    ) -> list[tuple[str, str]]:
        """Return all pairs of the columns in order, or a random part of them.

        Args:
            names: Columns.
            most: Maximum number of pairs.
            rng: Generator of the random part.
        """
        pairs = list(itertools.combinations(names, 2))
        if len(pairs) <= most:
            return pairs
        positions = np.sort(rng.permutation(len(pairs))[:most])
        return [pairs[i] for i in positions]

    def unit_weights(self) -> Weights:
        """Return weight 1 for every row, float64 (rows, 1)."""
        return {role: np.ones((len(codes), 1)) for role, codes in self.subjects.items()}

    def resampled(self, n_bootstraps: int, rng: np.random.Generator) -> Iterator[Weights]:
        """Yield weights of the rows for subjects resampled with replacement in every role.

        Args:
            n_bootstraps: Number of replicates.
            rng: Generator of the draws.

        Yields:
            Weights of up to 32 replicates by role, float32 (rows, b).
        """
        for start in range(0, n_bootstraps, _REPLICATES_AT_ONCE):
            n_replicates = min(_REPLICATES_AT_ONCE, n_bootstraps - start)
            weights = {}
            for role, codes in self.subjects.items():
                weights[role] = _resample(_count_subjects(codes), n_replicates, rng)[codes]
            yield weights


def _count_subjects(codes: np.ndarray) -> int:
    return int(codes.max(initial=-1)) + 1


def _resample(n_subjects: int, n_replicates: int, rng: np.random.Generator) -> np.ndarray:
    """Draw how often each subject is sampled, float32 (subjects, replicates)."""
    counts = []
    for _ in range(n_replicates):
        sample = rng.integers(0, n_subjects, n_subjects)
        counts.append(np.bincount(sample, minlength=n_subjects))
    return np.stack(counts, axis=1).astype(np.float32)


def tally(cells: np.ndarray, size: int, weights: np.ndarray) -> np.ndarray:
    """Sum the weights of the rows in each cell.

    Args:
        cells: Cell of each row in 0..size-1, int32 (n,).
        size: Number of cells.
        weights: Weights of the rows in b replicates, (n, b).

    Returns:
        float64 (size, b).
    """
    from scipy import sparse  # slow to import

    n = len(cells)
    ones = np.ones(n, dtype=weights.dtype)
    indicator = sparse.csc_matrix((ones, cells, np.arange(n + 1)), shape=(size, n))
    return np.asarray(indicator @ weights, dtype=np.float64)


def similarity(columns: Iterable[Cells], weights: Weights) -> np.ndarray:
    """Return 1 - the distance of each column to the holdout.

    The distance is Kolmogorov-Smirnov for ordered cells and total variation otherwise.

    Args:
        columns: Columns, or pairs of columns.
        weights: Weights of the rows in b replicates.

    Returns:
        Similarities of synthetic and train, float64 (columns, 2, b).
    """
    similarities = [_similarity(column, weights) for column in columns]
    if not similarities:
        return np.empty((0, 2, weights["holdout"].shape[1]))
    return np.stack(similarities)


def _similarity(column: Cells, weights: Weights) -> np.ndarray:
    # Most cells of a pair of columns are empty in every table.
    is_occupied = np.zeros(column.size, dtype=bool)
    for cells in column.cells.values():
        is_occupied[cells] = True
    positions = np.cumsum(is_occupied) - 1
    n_occupied = int(is_occupied.sum())

    shares = {}
    for role, cells in column.cells.items():
        counts = tally(positions[cells], n_occupied, weights[role])
        shares[role] = counts / counts.sum(axis=0)
    differences = np.stack([shares[role] - shares["holdout"] for role in CANDIDATES])
    if column.ordered:
        distances = np.abs(np.cumsum(differences, axis=1)).max(axis=1)
    else:
        distances = np.abs(differences).sum(axis=1) / 2
    return np.clip(1 - distances, 0, 1)


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

        Args:
            name: Name of the column.
            column: Its cells.
        """
        counts = column.real_counts()
        if column.ordered:
            cut = int(np.abs(np.cumsum(counts) / counts.sum() - 0.5).argmin())
            answers = {role: cells > cut for role, cells in column.cells.items()}
            return cls(name, "above the middle", answers)
        most_common = int(counts.argmax())
        answers = {role: cells == most_common for role, cells in column.cells.items()}
        return cls(name, "the most common value", answers)

    @property
    def is_open(self) -> bool:
        """Whether the holdout contains both answers."""
        answers = self.answers["holdout"]
        return 0 < int(answers.sum()) < len(answers)


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
        """Return the areas under the ROC curve on the holdout.

        Args:
            weights: Weights of the rows in b replicates.

        Returns:
            float64 (questions, 2, b), for the models that learned from synthetic and train.
        """
        areas = []
        for question, model_ranks in zip(self.questions, self.ranks, strict=True):
            answers = question.answers["holdout"]
            areas.append([auc(answers, ranks, weights["holdout"]) for ranks in model_ranks])
        return np.array(areas).reshape(len(areas), 2, weights["holdout"].shape[1])


def auc(answers: np.ndarray, ranks: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the area under the ROC curve. Ties count half.

    Args:
        answers: Whether each row is positive, bool (n,).
        ranks: Ranks of the scores from 0, int (n,).
        weights: Weights of the rows in b replicates, (n, b).

    Returns:
        float64 (b,). 0.5 if one of the answers has no weight.
    """
    n_ranks = int(ranks.max()) + 1
    positive = tally(ranks[answers], n_ranks, weights[answers])
    negative = tally(ranks[~answers], n_ranks, weights[~answers])
    n_below = np.cumsum(negative, axis=0) - negative
    n_ordered = (positive * (n_below + negative / 2)).sum(axis=0)
    n_pairs = positive.sum(axis=0) * negative.sum(axis=0)
    return np.where(n_pairs > 0, n_ordered / np.where(n_pairs > 0, n_pairs, 1), 0.5)


def predict(
    compared: Compared,
    questions: Sequence[Question],
    rows: int,
    rng: np.random.Generator,
    progress: Progress,
) -> Predictions:
    """Answer questions about columns by models that learn from all other columns.

    Args:
        compared: The tables.
        questions: Questions with both answers in the holdout.
        rows: Maximum number of rows that a model learns from.
        rng: Generator that draws these rows and the seed of the models.
        progress: Receives a message.

    Returns:
        Scores of the holdout rows, by two models for each question.
    """
    real = [compared.tables["holdout"], compared.tables["train"]]
    coding = MatrixCoding.fit(real, compared.schema)
    cells = {role: coding.code(table).T for role, table in compared.tables.items()}
    is_categorical = (coding.sizes > 0) & (coding.sizes <= _MAX_CODES)
    names = np.array(compared.schema.names)
    n = len(cells["train"])
    learned_rows = {}
    for role in CANDIDATES:
        learned_rows[role] = np.sort(rng.permutation(n)[:rows])
    seed = int(rng.integers(2**31))
    progress(f"fidelity: predictions of {len(questions)} columns")

    def ranks(model: tuple[Question, str]) -> np.ndarray:
        question, role = model
        is_feature = names != question.name
        rows = learned_rows[role]
        return _ranks(
            cells[role][rows][:, is_feature],
            question.answers[role][rows],
            cells["holdout"],
            is_feature,
            is_categorical[is_feature],
            seed,
        )

    models = list(itertools.product(questions, CANDIDATES))
    model_ranks = in_threads(ranks, models)
    by_question = list(zip(model_ranks[::2], model_ranks[1::2], strict=True))
    return Predictions(questions, by_question)


def _ranks(
    learned: np.ndarray,
    answers: np.ndarray,
    holdout: np.ndarray,
    is_feature: np.ndarray,
    is_categorical: np.ndarray,
    seed: int,
) -> np.ndarray:
    """Fit gradient boosting to ``learned`` rows and return the ranks of its scores of ``holdout``.

    ``is_feature`` selects the columns of ``holdout``. All ranks are equal if there is only one
    answer. A model uses one thread, because OpenMP threads that wait for each other spin and slow
    down other work.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # slow to import
    from threadpoolctl import threadpool_limits

    if answers.all() or not answers.any():
        return np.zeros(len(holdout), dtype=np.int32)
    # scikit-learn cannot bin a column without a value
    learned = np.where(np.isnan(learned).all(axis=0), 0.0, learned)
    model = HistGradientBoostingClassifier(
        **_MODEL, categorical_features=is_categorical, random_state=seed
    )
    with threadpool_limits(1, user_api="openmp"):
        model.fit(learned, answers)
        scores = []
        for start in range(0, len(holdout), _ROWS_AT_ONCE):
            rows = holdout[start : start + _ROWS_AT_ONCE, is_feature]
            scores.append(model.decision_function(rows))
    _, ranks = np.unique(np.concatenate(scores), return_inverse=True)
    return ranks.astype(np.int32)


def _scorers(
    compared: Compared, pairs: Sequence[tuple[str, str]], predictions: Predictions
) -> dict[str, Scorer]:
    """Return a scorer for each statistic, with columns in coarser steps than for the value
    itself.
    """
    bins = {}
    for name, column in compared.columns.items():
        bins[name] = column.binned(_BINS if column.ordered else _COMMON)
    steps = [column.binned(_STEPS) for column in compared.columns.values()]

    def pair_similarity(weights: Weights) -> np.ndarray:
        # One pair at a time: the cells of all pairs would not fit in memory for millions of rows.
        pair_cells = (bins[first].paired_with(bins[second]) for first, second in pairs)
        return similarity(pair_cells, weights)

    return {
        "column_similarity": lambda weights: similarity(steps, weights),
        "pair_similarity": pair_similarity,
        "prediction": predictions.auc,
    }


def _scores(compared: Compared, scorers: Mapping[str, Scorer]) -> dict[str, np.ndarray]:
    """Return the scores of the tables themselves, (m, 2), by statistic."""
    weights = compared.unit_weights()
    scores = {name: scorer(weights)[:, :, 0] for name, scorer in scorers.items()}
    exact = list(compared.columns.values())
    scores["column_similarity"] = similarity(exact, weights)[:, :, 0]
    return scores


def _replicates(
    compared: Compared, scorers: dict[str, Scorer], n_bootstraps: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return the mean score of each bootstrap replicate, (2, replicates), for each scorer."""
    blocks: dict[str, list[np.ndarray]] = {name: [] for name in scorers}
    for weights in compared.resampled(n_bootstraps, rng):
        for name, scorer in scorers.items():
            blocks[name].append(scorer(weights).mean(axis=0))
    return {name: np.concatenate(means, axis=1) for name, means in blocks.items()}


def _columns(
    compared: Compared,
    similarities: np.ndarray,
    questions: Sequence[Question],
    areas: np.ndarray,
) -> list[dict[str, Any]]:
    """Return a record for each column, with the areas under the ROC curve of predicted ones."""
    records = {}
    for name, (synthetic, real) in zip(compared.columns, similarities.tolist(), strict=True):
        records[name] = {"column": name, "similarity": synthetic, "similarity_real": real}
    for question, (synthetic, real) in zip(questions, areas.tolist(), strict=True):
        records[question.name] |= {
            "question": question.asks,
            "prediction": synthetic,
            "prediction_real": real,
        }
    return sorted(records.values(), key=_loss)


def _loss(record: Mapping[str, Any]) -> float:
    """Return minus the loss of similarity, rounded: equal losses keep their order in spite of
    rounding errors.
    """
    return round(record["similarity"] - record["similarity_real"], 12)


def _relations(inputs: EvaluationInputs) -> list[dict[str, Any]]:
    """Return a record for each relation, those that most synthetic rows break first."""
    records = []
    for relation in inputs.release.relations:
        is_broken = {}
        for role in ROLES:
            table = inputs.tables[role]
            is_broken[role] = relation.is_broken(table[relation.first], table[relation.second])
        real = np.concatenate([is_broken["train"], is_broken["holdout"]])
        record = {
            "relation": relation.name,
            "broken_real": float(real.mean()),
            "broken_synthetic": float(is_broken["synthetic"].mean()),
        }
        records.append(record)
    return sorted(records, key=lambda record: -record["broken_synthetic"])


def _distributions(compared: Compared, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the shares of real and synthetic rows in the parts of columns. Values are not
    named.
    """
    records = []
    for name in names:
        column = compared.columns[name].binned(_BINS)
        shares = {}
        for role in ("holdout", "synthetic"):
            counts = np.bincount(column.cells[role], minlength=column.size)
            shares[role] = (counts / counts.sum()).tolist()
        for part in range(column.size):
            real = shares["holdout"][part]
            synthetic = shares["synthetic"][part]
            if real or synthetic:
                label = _part_name(part, column)
                record = {"column": name, "part": label, "real": real, "synthetic": synthetic}
                records.append(record)
    return records


def _part_name(part: int, column: Cells) -> str:
    """Return the name of a cell of :meth:`Cells.binned` without its values."""
    if column.ordered:
        return "missing" if part == 0 else f"tenth {part}"
    if part < _BINS:
        return f"category {part + 1}"
    return "other categories" if part == _BINS else "no real row"


def _pairs(pairs: Sequence[tuple[str, str]], similarities: np.ndarray) -> list[dict[str, Any]]:
    """Return a record for each pair, the largest loss of similarity first."""
    records = []
    for (first, second), (synthetic, real) in zip(pairs, similarities.tolist(), strict=True):
        record = {
            "first": first,
            "second": second,
            "similarity": synthetic,
            "similarity_real": real,
        }
        records.append(record)
    return sorted(records, key=_loss)
