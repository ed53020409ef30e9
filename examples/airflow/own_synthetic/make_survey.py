"""Write train, holdout and synthetic to data/. Replace them with your synthetic table and its real
rows.
"""

import sys
from pathlib import Path

import numpy as np

from privacy_assets.cli.main import main
from privacy_assets.tables.demo import load_patients

folder = Path(__file__).resolve().parent / "data"
folder.mkdir(exist_ok=True)
rows = load_patients()
people = np.random.default_rng(0).permutation(rows["person"].unique())
half = rows["person"].isin(people[: len(people) // 2])  # by person: each is on one side only
rows[half].to_parquet(folder / "train.parquet")
rows[~half].to_parquet(folder / "holdout.parquet")
made = [
    "generate",
    f"--data={folder / 'train.parquet'}",
    "--subject=person",
    "--generator=synthpop",
]
sys.exit(main([*made, f"--out={folder / 'synthetic.parquet'}", "--quiet"]))
