"""Writes three invented tables to data/: train, holdout, and the synthetic one that somebody made of train."""

from pathlib import Path

import numpy as np
import pandas as pd


def people(rows: int, seed: int) -> pd.DataFrame:
    """Fresh people of one population: what the best of all generators would make."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    return pd.DataFrame(
        {
            "age": age,
            "ward": rng.choice(["medical", "surgical", "maternity"], rows, p=[0.5, 0.4, 0.1]),
            "nights": rng.poisson(1 + age / 20),
            "emergency": rng.random(rows) < 0.2 + age / 300,
        }
    )


folder = Path(__file__).resolve().parent / "data"
folder.mkdir(exist_ok=True)
for seed, (name, rows) in enumerate({"train": 2500, "holdout": 1500, "synthetic": 2500}.items()):
    people(rows, seed).to_parquet(folder / f"{name}.parquet")
