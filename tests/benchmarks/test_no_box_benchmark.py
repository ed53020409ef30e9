"""The study of the no-box attacks on small tables of made-up rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.no_box import measure, table
from benchmarks.releases import draw_world
from privacy_assets.metrics.membership_inference import MembershipInference


def frame(rows: int) -> pd.DataFrame:
    """Two numbers and a category."""
    rng = np.random.default_rng(0)
    numbers = {"age": rng.integers(18, 90, rows), "income": rng.lognormal(3, 0.5, rows)}
    return pd.DataFrame({**numbers, "region": rng.choice(list("abc"), rows)})


@pytest.mark.parametrize("repeated", [False, True])
def test_the_study_measures_what_the_metric_does(repeated: bool) -> None:
    world = draw_world(frame(3000), (600, 300, 600), 0, repeated=repeated)
    fresh, copied = (
        measure(world, name, repeated=repeated, n_permutations=199)
        for name in ("fresh rows", "100 % copies")
    )
    names = [estimate.name for estimate in fresh]
    assert names == [
        "auc_reference_ratio",
        "auc_dpi",
        "auc_domias",
        "auc_gen_lra",
        "epsilon_one_run",
    ]
    assert set(names) < {spec.name for spec in MembershipInference.statistics}
    assert copied[0].low > fresh[0].high and copied[-1].value > 0.5
    lines = table({"fresh rows": [fresh, fresh], "100 % copies": [copied]}).splitlines()
    assert len(lines) == 4
    assert lines[0] == "| release | " + " | ".join(f"`{name}`" for name in names) + " |"
    assert lines[3].startswith(f"| 100 % copies | {copied[0].value:.3f} (0.00, 1.00) |")
