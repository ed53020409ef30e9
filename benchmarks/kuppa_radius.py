"""Compare settings of ``memorization`` on releases with and without copies: the radius of Kuppa et
al. and the default.

    python -m benchmarks.kuppa_radius adult.parquet

A release consists of rows of other people, of which a share is replaced by copies of training rows.
"AUC" is the probability that a copy has a smaller alpha_m than another row (0.5: guessing).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from privacy_assets import evaluate

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "embedded, spherelet, radius 0.5 (paper)": {
        "spherelet_memorization": {"space": "embedded", "radius": 0.5}
    },
    "embedded, radius 0.5": {"memorization": {"space": "embedded", "radius": 0.5}},
    "embedded, spherelet": {"spherelet_memorization": {"space": "embedded"}},
    "embedded": {"memorization": {"space": "embedded"}},
    "raw, radius 0.5": {"memorization": {"radius": 0.5}},
    "raw (default)": {"memorization": {}},
}


def measured(
    frame: pd.DataFrame,
    rows: int,
    share: float,
    settings: Mapping[str, Mapping[str, Any]],
    embedder: Mapping[str, Any],
) -> dict[str, float]:
    """Evaluate a release of ``rows`` rows, of which ``share`` are copies. Train has ``rows`` rows,
    the holdout half.

    Args:
        frame: At least 3 ``rows`` rows.
        rows: Number of synthetic rows.
        share: Share of copies.
        settings: Settings of one metric, by its name.
        embedder: Settings of the embedder.

    Returns:
        Values by column of the report; "AUC" only if there are copies.
    """
    mixed, copies = frame.sample(frac=1, random_state=0, ignore_index=True), round(share * rows)
    ends = np.cumsum([0, rows, rows // 2, rows, len(mixed)])
    train, holdout, others, rest = (
        mixed.iloc[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)
    )
    release = pd.concat(
        [train.sample(copies, random_state=1), others.iloc[: rows - copies]], ignore_index=True
    )
    policy = {
        "name": "radius",
        "extends": "default",
        "metrics": settings,
        "embedder": embedder,
    }
    reference = rest if len(rest) else None  # its categories are known, nothing else of it is used
    found = evaluate(
        train,
        holdout,
        release,
        reference=reference,
        policy=policy,
        metrics=[*settings],
        device="cpu",
    ).results[next(iter(settings))]
    assert found.row_scores is not None
    alpha, copied = np.asarray(found.row_scores["alpha_m"]), np.arange(rows) < copies
    exposed, excess = found.estimates
    out = {
        "training rows near": float(np.median(found.row_scores["train"])),
        "exposed": exposed.value,
    }
    if exposed.null is not None:
        out["null"] = exposed.null
    out |= {"excess": excess.value, "excess, low": excess.low}
    return {**out, "AUC": float(roc_auc_score(copied, -alpha))} if copies else out


def main() -> None:
    """Print a table of all settings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="a Parquet file")
    parser.add_argument("--rows", type=int, default=2_000, help="synthetic rows")
    parser.add_argument("--share", type=float, default=0.2, help="share of copies")
    options = parser.parse_args()
    frame, columns = (
        pd.read_parquet(options.table),
        ["training rows near", "exposed", "null", "excess", "excess, low"],
    )
    print(
        f"| settings | copies | {' | '.join([*columns, 'AUC'])} |\n|{'---|' * (len(columns) + 3)}"
    )
    for name, settings in SETTINGS.items():
        for share in (0.0, options.share):
            found = measured(frame, options.rows, share, settings, {})
            cells = [f"{found.get(column, float('nan')):.3f}" for column in [*columns, "AUC"]]
            print(f"| {name} | {share:.0%} | {' | '.join(cells)} |".replace("nan", "-"), flush=True)


if __name__ == "__main__":
    main()
