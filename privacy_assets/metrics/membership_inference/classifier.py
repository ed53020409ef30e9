"""Classifier attack: the scores of real rows from a classifier that distinguishes synthetic rows from real ones.

If the generator memorized a row, synthetic rows are more frequent near it than real rows of other people. The
classifier estimates this ratio. It learns from the rows that it scores only through other people: the people of train
and holdout are divided into two halves, and the rows of each half are scored by a classifier that has learned the
synthetic rows against the real rows of the other half and the reference. Neither the halves nor the classifiers use
membership, so the labels stay exchangeable given the scores, and no people are set aside.

The classifier is a forest of extremely randomized trees (Geurts et al. 2006), see
:class:`sklearn.ensemble.ExtraTreesClassifier`. Numbers are its inputs as encoded, categories as integer codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats.estimates import StatisticSpec
from privacy_assets.stats.subjects import order_by_content

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesClassifier

PURPOSE = "membership_inference.classifier"  # random stream of halves, draws and trees
NAME = "classifier"
TREES = 25
MOST_ROWS = 50_000  # maximum number of rows per class and classifier, which limits the cost
_SEEDS = 2**31

AUC = StatisticSpec(
    "auc_classifier",
    "AUC of members versus non-members, by a classifier of synthetic against other real rows; below 0.5: members are"
    " avoided.",
    "two_sided",
    0.5,
)
ADVANTAGE = StatisticSpec(
    "advantage_classifier",
    "True minus false positive rate of the classifier attack, strongest evidence over all thresholds.",
    "two_sided",
)


def score_rows(inputs: EvaluationInputs, attacked: np.ndarray | None = None) -> np.ndarray:
    """Score rows by the share of synthetic rows that a classifier expects among rows like them.

    Synthetic and real rows have equal weight. The result does not depend on the order of rows.

    Args:
        inputs: Tables of one release, with at least two people in train and holdout and one synthetic row.
        attacked: Positions of the scored rows in train stacked on holdout. None: all rows. Other rows are learned
            nevertheless.

    Returns:
        Probability of being synthetic, float64 (n,) in 0..1; larger ones are more member-like.
    """
    rng = inputs.rng(PURPOSE)
    content = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    codes = order_by_content(inputs.subject_codes("train", "holdout"), content)
    half = (rng.permutation(int(codes.max()) + 1) % 2 == 1)[codes]
    real = np.concatenate([_cells(inputs, "train"), _cells(inputs, "holdout")])
    known = np.empty((0, real.shape[1]), np.float32) if inputs.reference is None else _cells(inputs, "reference")
    synthetic = _cells(inputs, "synthetic")
    rows = np.arange(len(real)) if attacked is None else attacked
    scores = np.empty(len(rows))
    for side in (False, True):
        model = _learned(synthetic, np.concatenate([real[half != side], known]), rng)
        asked = half[rows] == side
        scores[asked] = model.predict_proba(real[rows[asked]])[:, 1]
    return scores


def _cells(inputs: EvaluationInputs, role: str) -> np.ndarray:
    """Return the encoded cells of a table, float32 (n, columns)."""
    encoded = inputs.encoded(role)
    return np.concatenate([encoded.numeric, encoded.codes.astype(np.float32)], axis=1)


def _learned(synthetic: np.ndarray, real: np.ndarray, rng: np.random.Generator) -> ExtraTreesClassifier:
    """Return a classifier of ``synthetic`` rows (1) against ``real`` rows (0)."""
    from sklearn.ensemble import ExtraTreesClassifier  # slow to import

    parts = [_drawn(rows, rng) for rows in (real, synthetic)]
    labels = np.repeat([0, 1], [len(rows) for rows in parts])
    model = ExtraTreesClassifier(TREES, class_weight="balanced", random_state=int(rng.integers(_SEEDS)))
    return model.fit(np.concatenate(parts), labels)


def _drawn(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows ordered by content, or a random selection of ``MOST_ROWS`` of them."""
    ordered = rows[np.lexsort(rows.T)]
    if len(rows) <= MOST_ROWS:
        return ordered
    return ordered[np.sort(rng.choice(len(rows), MOST_ROWS, replace=False))]
