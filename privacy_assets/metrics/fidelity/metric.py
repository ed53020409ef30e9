"""Fidelity: how useful is the synthetic table, beside as many real rows? (train on synthetic, test on real: Esteban et
al., "Real-valued (medical) time series generation with recurrent conditional GANs"; similarities as in SDMetrics.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.declarations import Causes
from privacy_assets.metrics.fidelity.measures import correlation_differences, related, similarity
from privacy_assets.metrics.fidelity.prediction import Predictions, predict
from privacy_assets.metrics.fidelity.tables import Compared, Weights
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.settings import Tuple, declared
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import CONFIDENCE
from privacy_assets.stats.limits import Limit

_BINS, _COMMON = 10, 100  # cells of a number and of a category in a pair
_STEPS = 1000  # cells of a column in a replicate: enough for its deviation
_NAN = float("nan")
_MISSING = {
    "column_similarity": "no column",
    "pair_similarity": "a pair of columns is needed",
    "correlation_difference": "two columns of numbers are needed that vary in the holdout",
    "prediction": "two columns are needed, and one to predict that varies in the holdout",
}
_AS_MANY = "The same for as many rows of train, which are fresh to the holdout: what a perfect generator would get."

Scorer = Callable[[Weights], np.ndarray]  # weights to scores (entries, 2, b)


def _once(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(dict.fromkeys(names))


@declared
class Fidelity(Metric):
    """Likeness of the synthetic table to unseen people, each statistic beside that of as many real rows.

    The yardstick is the *holdout*: held against train, a table would gain by copying. ``*_real`` is the fresh-sample
    value: the same with rows of train in place of the synthetic ones, since to the holdout train is a fresh sample of
    the population. A generator adds no knowledge of the population to that of train, so that it gets beyond it by
    chance alone; a verbatim copy of train has exactly its values. Likeness depends on the number of rows: both have
    n = min(n_S, n_T) rows, drawn at random from the longer one; the holdout has all. The null of a statistic is its
    fresh-sample value.

    *column_similarity*, the mean over columns of 1 - D: for numbers, whole numbers and datetimes D is the largest
    distance of the distribution functions (Kolmogorov-Smirnov), missing counting as a value below all others; for
    categories and booleans half the sum of differences of shares (total variation), missing being a category. Without
    missing values these are KSComplement and TVComplement of SDMetrics.

    *pair_similarity*, the mean over pairs of columns of 1 - total variation distance of the pair: numbers in up to ten
    bins at the deciles of the real rows, missing in one more; categories beyond the 100 most common together
    (ContingencySimilarity of SDMetrics, which has bins of equal width).

    *correlation_difference*, the mean over pairs of columns of numbers of the absolute difference of Spearman
    correlations, 0 to 2. Rows that miss one of both are left out; a correlation that is not defined in the synthetic
    rows counts as 0, pairs for which it is not defined in the holdout are left out.

    *prediction*, the mean over columns of the area under the ROC curve with which gradient boosting
    (HistGradientBoostingClassifier) of the other columns answers a question about the column for unseen people: is the
    value above the middle (a missing one is not), or is it the most common category. 0.5 is guessing. *prediction_real*
    learns from real rows, *prediction_loss* is the difference. Columns that the holdout answers in one way only are
    left out; a model that saw one answer only guesses.

    Intervals: people of the holdout and of train, and synthetic rows, are resampled with replacement; the value plus
    and minus what 95 % of the replicates keep within from their mean. Models are not trained anew, and ranks stay.
    Labels are not permuted: likeness to unseen people says nothing of who was in train.

    Settings: ``targets``, names of columns to predict (every one); ``rows`` to learn from at most; ``pairs`` of columns
    at most, drawn at random beyond; ``replicates``. With fewer than two rows or people a side nothing is measurable.

    Table "columns": likeness and area by column. Table "pairs": by pair, those that fall behind the real rows most come
    first. Nothing is limited by default: what a table must be good for is for its users to say.
    """

    name: ClassVar[str] = "fidelity"
    summary: ClassVar[str] = "How useful is the synthetic table, beside as many real rows?"
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "column_similarity", "Likeness of single columns to unseen people: 1 is equal.", "lower_is_riskier", None
        ),
        StatisticSpec("column_similarity_real", _AS_MANY, "lower_is_riskier", _NAN),
        StatisticSpec(
            "pair_similarity", "Likeness of pairs of columns to unseen people: 1 is equal.", "lower_is_riskier", None
        ),
        StatisticSpec("pair_similarity_real", _AS_MANY, "lower_is_riskier", _NAN),
        StatisticSpec(
            "correlation_difference",
            "Mean difference of rank correlations from those among unseen people: 0 is equal.",
            null=None,
            range=(0.0, 2.0),
        ),
        StatisticSpec("correlation_difference_real", _AS_MANY, null=_NAN, range=(0.0, 2.0)),
        StatisticSpec(
            "prediction",
            "How well models that learn from the table predict columns of unseen people: 0.5 is guessing, 1 perfect.",
            "lower_is_riskier",
            None,
        ),
        StatisticSpec("prediction_real", _AS_MANY, "lower_is_riskier", _NAN),
        StatisticSpec("prediction_loss", "What models lose by learning from the table instead of real rows."),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = ()

    causes: ClassVar[Causes] = Causes("poor fit")
    utility: ClassVar[Mapping[str, str]] = {
        name: f"{name}_real"
        for name in ("column_similarity", "pair_similarity", "correlation_difference", "prediction")
    }

    targets: Annotated[tuple[str, ...] | None, Tuple, AfterValidator(_once)] = Field(
        default=None, min_length=1, description="columns that models predict; without, all that can be"
    )
    rows: int = Field(default=10_000, ge=10, description="rows that models learn from, at most")
    pairs: int = Field(default=300, ge=1, description="pairs of columns, at most")
    replicates: int = Field(default=200, ge=20, description="bootstraps of people")

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistics and the tables "columns" and "pairs"."""
        targets = self._targets(inputs.schema.names)
        compared = Compared.of(inputs)
        if compared.counts[1] < 2:
            reason = "train, holdout and synthetic need at least two rows and two people each"
            return self.not_measurable(reason, compared.counts)
        names, rng = list(compared.columns), inputs.rng("fidelity")
        pairs = compared.pairs(names, self.pairs, rng)
        ordered = [name for name in names if compared.columns[name].ordered]
        numbers = related(compared.columns, compared.pairs(ordered, self.pairs, rng))
        predictions = predict(compared, targets, self.rows, rng, inputs.progress)
        scorers = _scorers(compared, pairs, numbers, predictions)
        once = compared.as_they_are()
        found = {name: score(once)[:, :, 0] for name, score in scorers.items()}
        found["column_similarity"] = similarity(list(compared.columns.values()), once)[:, :, 0]
        inputs.progress("fidelity: intervals")
        measurable = {name: score for name, score in scorers.items() if len(found[name])}
        drawn = _replicates(compared, measurable, self.replicates, rng)
        asked = {question.name: question.asks for question in predictions.questions}
        return Measured(
            self._estimates(found, drawn, compared.counts),
            {
                "columns": _columns(names, found["column_similarity"], asked, found["prediction"]),
                "pairs": _pairs(pairs, found["pair_similarity"], numbers, found["correlation_difference"]),
            },
        )

    def _targets(self, known: Sequence[str]) -> Sequence[str]:
        for name in self.targets or ():
            if name not in known:
                raise ConfigError(f"metric fidelity: no table has a column {shown(name)}.{did_you_mean(name, known)}")
        return known if self.targets is None else self.targets

    def _estimates(
        self, found: dict[str, np.ndarray], drawn: dict[str, np.ndarray], counts: tuple[int, int]
    ) -> tuple[Estimate, ...]:
        """Means over the entries (m, 2) with intervals from the means (2, replicates)."""
        estimates = []
        for spec in self.statistics:
            name = spec.name.removesuffix("_real").removesuffix("_loss")
            if name not in drawn:
                estimates.append(spec.not_measurable(_MISSING[name], counts))
                continue
            (value, real), (values, reals) = found[name].mean(axis=0), drawn[name]
            if spec.name.endswith("_real"):
                estimates.append(_estimate(spec, real, reals, counts))
            elif spec.name.endswith("_loss"):
                estimates.append(_estimate(spec, real - value, reals - values, counts))
            else:
                estimates.append(_estimate(spec, value, values, counts, float(real)))
        return tuple(estimates)


def _scorers(
    compared: Compared, pairs: Sequence[tuple[str, str]], numbers: Sequence[tuple[str, str]], predictions: Predictions
) -> dict[str, Scorer]:
    """By statistic; columns in steps, which a replicate needs no finer."""
    columns = compared.columns
    cells = {name: column.binned(_BINS if column.ordered else _COMMON) for name, column in columns.items()}
    steps = [column.binned(_STEPS) for column in columns.values()]
    return {
        "column_similarity": lambda weights: similarity(steps, weights),
        # One pair at a time: all of them together would not fit for millions of rows.
        "pair_similarity": lambda weights: similarity((cells[a].with_(cells[b]) for a, b in pairs), weights),
        "correlation_difference": lambda weights: correlation_differences(columns, numbers, weights),
        "prediction": predictions.auc,
    }


def _replicates(
    compared: Compared, scorers: dict[str, Scorer], replicates: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Means over the entries of each scorer, (2, replicates), with people resampled."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in scorers}
    for weights in compared.resampled(replicates, rng):
        for name, score in scorers.items():
            parts[name].append(score(weights).mean(axis=0))
    return {name: np.concatenate(means, axis=1) for name, means in parts.items()}


def _estimate(
    spec: StatisticSpec, value: float, drawn: np.ndarray, counts: tuple[int, int], null: float | None = None
) -> Estimate:
    half = float(np.quantile(np.abs(drawn - drawn.mean()), CONFIDENCE, method="higher"))
    bottom, top = {"correlation_difference": (0, 2), "prediction_loss": (-1, 1)}.get(spec.name, (0, 1))
    low, high = max(value - half, bottom), min(value + half, top)
    return spec.estimate(value, low, high, counts, null=null)


def _columns(
    names: Sequence[str], likeness: np.ndarray, asked: dict[str, str], areas: np.ndarray
) -> list[dict[str, Any]]:
    """One row a column, with the area of the ROC curve where there is a question about it."""
    table = {
        name: {"column": name, "similarity": float(own), "similarity_real": float(real)}
        for name, (own, real) in zip(names, likeness, strict=True)
    }
    for (name, question), (own, real) in zip(asked.items(), areas, strict=True):
        table[name] |= {"question": question, "prediction": float(own), "prediction_real": float(real)}
    return list(table.values())


def _pairs(
    pairs: Sequence[tuple[str, str]], likeness: np.ndarray, numbers: Sequence[tuple[str, str]], apart: np.ndarray
) -> list[dict[str, Any]]:
    """One row a pair, the largest loss of likeness first; differences of correlations of numbers."""
    names = ("similarity", "similarity_real"), ("correlation_difference", "correlation_difference_real")
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for keys, entries, values in ((names[0], pairs, likeness), (names[1], numbers, apart)):
        for pair, two in zip(entries, values.tolist(), strict=True):
            row = table.setdefault(pair, {"first": pair[0], "second": pair[1]})
            row |= dict(zip(keys, two, strict=True))

    def lost(row: Mapping[str, Any]) -> float:
        """Rounded: equal differences of sums stay in the order of the columns, whatever their last digits."""
        return round(row.get("similarity", 0) - row.get("similarity_real", 0), 12)

    return sorted(table.values(), key=lost)
