"""Train on synthetic rows, test on real ones (TSTR), beside train on real, test on real (TRTR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privacy_assets.compute.parallel import in_threads
from privacy_assets.compute.progress import Progress
from privacy_assets.metrics.fidelity.tables import CANDIDATES, Cells, Compared, Weights, tally
from privacy_assets.tables.coding import Coding

_MOST_CODES = 255  # that the library takes for a category; columns of more are read as numbers
_ROWS = 1 << 16  # asked about at a time: the library copies them
_MODEL = {"max_iter": 40, "learning_rate": 0.25, "max_leaf_nodes": 8, "early_stopping": False}


@dataclass(frozen=True, eq=False)
class Question:
    """A yes-or-no question about column ``name``: bool answers of every row of every role."""

    name: str
    asks: str
    answers: dict[str, np.ndarray]

    @classmethod
    def about(cls, name: str, column: Cells) -> Question:
        """A number: is it above the cut that halves the real rows best? A category: is it their most common value?"""
        counts = np.bincount(np.concatenate([column.cells["holdout"], column.cells["train"]]), minlength=column.size)
        if column.ordered:
            cut = int(np.abs(np.cumsum(counts) / counts.sum() - 0.5).argmin())
            return cls(name, "above the middle", {role: cells > cut for role, cells in column.cells.items()})
        common = int(counts.argmax())
        return cls(name, "the most common value", {role: cells == common for role, cells in column.cells.items()})

    @property
    def is_open(self) -> bool:
        """True when the holdout holds both answers."""
        return 0 < int(self.answers["holdout"].sum()) < len(self.answers["holdout"])


@dataclass(frozen=True, eq=False)
class Predictions:
    """Per question what both models say about the holdout: ranks of their scores, int32 (rows,), equal when tied."""

    questions: Sequence[Question]
    ranks: Sequence[Sequence[np.ndarray]]

    def auc(self, weights: Weights) -> np.ndarray:
        """Float64 (questions, 2, b): area under the ROC curve of both models on the holdout."""
        found = [
            [auc(question.answers["holdout"], ranks, weights["holdout"]) for ranks in both]
            for question, both in zip(self.questions, self.ranks, strict=True)
        ]
        return np.array(found).reshape(len(found), 2, weights["holdout"].shape[1])


def auc(answers: np.ndarray, ranks: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Area (b,) under the ROC curve of int ``ranks`` (n,) for bool ``answers`` (n,) and weights (n, b).

    Ties count half; 0.5 where one of the answers has no weight.
    """
    size = int(ranks.max()) + 1
    yes, no = (tally(ranks[side], size, weights[side]) for side in (answers, ~answers))
    below = np.cumsum(no, axis=0) - no
    total = yes.sum(axis=0) * no.sum(axis=0)
    return np.where(total > 0, (yes * (below + no / 2)).sum(axis=0) / np.where(total > 0, total, 1), 0.5)


def predict(
    compared: Compared, targets: Sequence[str], rows: int, rng: np.random.Generator, progress: Progress
) -> Predictions:
    """Ask about each of ``targets``, from all other columns; models learn from ``rows`` rows at most.

    Questions that the holdout answers in one way only are left out. Nothing is left with fewer than two columns.
    """
    questions = [Question.about(name, compared.columns[name]) for name in targets]
    questions = [question for question in questions if question.is_open] if len(compared.columns) > 1 else []
    coding = Coding.fit([compared.tables[role] for role in ("holdout", "train")], compared.schema)
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
        return _ranks(known, question.answers[role][learnt[role]], cells["holdout"], others, kinds, seed)

    found = in_threads(ranks, [(question, role) for question in questions for role in CANDIDATES])  # two a question
    return Predictions(questions, [found[at : at + 2] for at in range(0, len(found), 2)])


def _ranks(
    known: np.ndarray, answers: np.ndarray, asked: np.ndarray, others: np.ndarray, categorical: np.ndarray, seed: int
) -> np.ndarray:
    """Ranks of the scores of ``asked`` by gradient boosting on ``known`` rows, the columns ``others`` of it; all equal
    after one answer only.

    A model takes one thread: those of OpenMP wait for each other by spinning, which beside other work takes minutes.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # slow to import
    from threadpoolctl import threadpool_limits

    if answers.all() or not answers.any():
        return np.zeros(len(asked), dtype=np.int32)
    known = np.where(np.isnan(known).all(axis=0), 0.0, known)  # the library cannot bin a column without a value
    model = HistGradientBoostingClassifier(**_MODEL, categorical_features=categorical, random_state=seed)
    with threadpool_limits(1, user_api="openmp"):
        model.fit(known, answers)
        scores = np.concatenate(
            [model.decision_function(asked[start : start + _ROWS, others]) for start in range(0, len(asked), _ROWS)]
        )
    return np.unique(scores, return_inverse=True)[1].astype(np.int32)
