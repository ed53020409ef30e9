"""Writes an invented private table, data/claims.csv: in its place stands a table of yours."""

from pathlib import Path

import numpy as np
import pandas as pd

PATIENTS = 4000
rng = np.random.default_rng(0)
age = rng.integers(18, 90, PATIENTS)
visits = rng.poisson(1 + age / 30)
claims = pd.DataFrame(
    {
        "patient_id": np.arange(PATIENTS),
        "age": age,
        "region": rng.choice(["north", "south", "east", "west"], PATIENTS, p=[0.4, 0.3, 0.2, 0.1]),
        "smoker": rng.random(PATIENTS) < 0.3,
        "visits": visits,
        "cost": (visits * rng.gamma(4, 30, PATIENTS)).round(-1).astype(int),
    }
)
folder = Path(__file__).resolve().parent / "data"
folder.mkdir(exist_ok=True)
claims.to_csv(folder / "claims.csv", index=False)
