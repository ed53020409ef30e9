"""Classifier attack: the scores of real rows from a classifier that distinguishes synthetic rows
from real ones.

If the generator memorized a row, synthetic rows are more frequent near it than real rows of other
people. The classifier estimates this ratio. It learns from the rows that it scores only through
other people: the people of train and holdout are divided into two halves, and the rows of each half
are scored by a classifier that has learned the synthetic rows against the real rows of the other
half and the reference. Neither the halves nor the classifiers use membership, so the labels stay
exchangeable given the scores, and no people are set aside.

The classifier is a forest of extremely randomized trees (Geurts et al. 2006), see
:class:`sklearn.ensemble.ExtraTreesClassifier`. Numbers are its inputs as encoded, categories as
integer codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats.estimates import StatisticSpec
from privacy_assets.stats.subjects import order_by_content
from privacy_assets.tables.encoding import EncodedTable

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesClassifier

PURPOSE = "membership_inference.classifier"  # random stream of halves, draws and trees
NAME = "classifier"
TREES = 25
MOST_ROWS = 50_000  # maximum number of rows per class and classifier, which limits the cost
_SEEDS = 2**31

AUC = StatisticSpec(
    "auc_classifier",
    "AUC of members versus non-members, by a classifier of synthetic against other real rows;"
    " below 0.5: members are"
    " avoided.",
    "two_sided",
    0.5,
)
ADVANTAGE = StatisticSpec(
    "advantage_classifier",
    "True minus false positive rate of the classifier attack, strongest evidence over all"
    " thresholds.",
    "two_sided",
)


def score_rows(inputs: EvaluationInputs, attacked: np.ndarray | None = None) -> np.ndarray:
    """Score rows by the share of synthetic rows that a classifier expects among rows like them.

    Synthetic and real rows have equal weight. The result does not depend on the order of rows.

    Args:
        inputs: Tables of one release, with at least two people in train and holdout and one
            synthetic row.
        attacked: Positions of the scored rows in train stacked on holdout. None: all rows. Other
            rows are learned nevertheless.

    Returns:
        Probability of being synthetic, float64 (n,) in 0..1; larger ones are more member-like.
    """
    rng = inputs.rng(PURPOSE)
    roles = ["train", "holdout"]
    if inputs.release.reference is not None:
        roles.append("reference")
    real = EncodedTable.stack(inputs.derived.encoded_tables(roles))
    real_ids = inputs.derived.stacked_row_ids(roles)
    attackable_ids = inputs.derived.stacked_row_ids(("train", "holdout"))
    codes = order_by_content(inputs.subject_codes("train", "holdout"), attackable_ids)
    half_of_subject = rng.permutation(int(codes.max()) + 1) % 2
    halves = half_of_subject[codes]
    # rows of the reference are learned for both halves
    groups = np.append(halves, np.full(len(real) - len(halves), 2))
    synthetic = inputs.encoded("synthetic")
    synthetic_ids = inputs.row_ids["synthetic"]
    if attacked is None:
        attacked = np.arange(len(halves))

    scores = np.empty(len(attacked))
    for half in (0, 1):
        non_member_cells = _sample_cells(real, np.flatnonzero(groups != half), real_ids, rng)
        synthetic_cells = _sample_cells(
            synthetic, np.arange(len(synthetic_ids)), synthetic_ids, rng
        )
        model = _fit_classifier(non_member_cells, synthetic_cells, rng)
        in_half = halves[attacked] == half
        cells = _cells(real.take(attacked[in_half]))
        scores[in_half] = model.predict_proba(cells)[:, 1]
    return scores


def _cells(table: EncodedTable) -> np.ndarray:
    """Return encoded cells, float32 (n, columns)."""
    return np.concatenate([table.numeric, table.codes.astype(np.float32)], axis=1)


def _sample_cells(
    table: EncodedTable, rows: np.ndarray, row_ids: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the cells of ``rows``, or of ``MOST_ROWS`` random ones of them, ordered by content."""
    if len(rows) > MOST_ROWS:
        # so that the draw does not depend on the order
        ordered = rows[np.argsort(row_ids[rows], kind="stable")]
        rows = ordered[rng.choice(len(rows), MOST_ROWS, replace=False)]
    cells = _cells(table.take(rows))
    return np.asarray(cells[np.lexsort(cells.T)])


def _fit_classifier(
    real: np.ndarray, synthetic: np.ndarray, rng: np.random.Generator
) -> ExtraTreesClassifier:
    """Return a classifier of ``synthetic`` rows (1) against ``real`` rows (0)."""
    from sklearn.ensemble import ExtraTreesClassifier  # slow to import

    labels = np.repeat([0, 1], [len(real), len(synthetic)])
    model = ExtraTreesClassifier(
        TREES, class_weight="balanced", random_state=int(rng.integers(_SEEDS))
    )
    return model.fit(np.concatenate([real, synthetic]), labels)
