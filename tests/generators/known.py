"""Tables of every kind, and every generator with settings that are quick to fit."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import own_functions as own
import pandas as pd

from privacy_assets.generators import Generator, build_generator
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.table import Table

SAMPLES = """
import random, sys
import pyarrow.parquet as pq
train = pq.read_table(sys.argv[1])
out = train.take(random.Random(int(sys.argv[4])).choices(range(len(train)), k=int(sys.argv[3])))
pq.write_table(out, sys.argv[2])
"""
NETWORK = {"hidden_dims": [16], "epochs": 2, "batch_size": 100}
QUICK: dict[str, dict[str, Any]] = {
    "privbayes": {"epsilon": 10.0},
    "ctgan": {
        "epochs": 2,
        "batch_size": 60,
        "pac": 5,
        "generator_dim": [16, 8],
        "discriminator_dim": [16],
    },
    "tvae": {"epochs": 2, "batch_size": 60, "compress_dims": [16], "decompress_dims": [16, 8]},
    "rvae": {**NETWORK, "latent": 4},
    **dict.fromkeys(("wgan_gp", "dpgan", "dpctgan", "pategan"), NETWORK),
    "callable": {"function": own.uniform},
    "command": {"command": [sys.executable, "-c", SAMPLES, "{train}", "{out}", "{rows}", "{seed}"]},
}


def quick(name: str, **settings: Any) -> Generator:
    """A generator of the registry with settings that are quick to fit."""
    return build_generator(name, {**QUICK.get(name, {}), **settings})


def table(**columns: object) -> Table:
    """A table of these columns."""
    return Table.read(pd.DataFrame(columns))


def mixed(n: int, seed: int = 0, missing: float = 0.15) -> pd.DataFrame:
    """Every kind with missing values, columns that depend on each other, constant ones and one
    without any value.
    """
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    frame = pd.DataFrame(
        {
            "age": age,
            "pay": np.where(rng.random(n) < 0.1, 0.0, (age * rng.lognormal(size=n)).round(2)),
            "plan": np.where(age > 60, "senior", rng.choice(["a", "b", "c"], n)),
            "retired": age + rng.normal(scale=5, size=n) > 65,
            "joined": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(age * 10 + rng.integers(0, 30, n), unit="D"),
            "seen": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 10**6, n), unit="s"),
            "half": rng.choice([0.5, 1.5], n),
            "town": [f"town {k}" for k in rng.integers(0, 40, n)],
        }
    )
    frame = frame.astype(object).mask(rng.random(frame.shape) < missing)
    frame["full"] = rng.normal(size=n)
    frame["same"], frame["word"], frame["none"] = 1.5, "x", None
    return frame


GAPS = ["age", "pay", "plan", "retired", "joined", "seen", "half", "town"]
SCHEMA = infer_schema(mixed(300), {"none": "numeric"})
TRAIN = Table.of(mixed(400), SCHEMA, where="train")


def of_kind(kind: str, n: int) -> Table:
    """A table of one column, whose ``n`` values differ."""
    values: dict[str, object] = {
        "integer": np.arange(n) % 7 - 1,
        "numeric": np.arange(n) / 7,
        "categorical": np.where(np.arange(n) % 3, "x", "y"),
        "boolean": np.arange(n) % 2 == 0,
        "datetime": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(n), unit="h"),
    }
    made = table(x=values[kind])
    assert made.schema["x"].kind == kind
    return made


KINDS = ("integer", "numeric", "categorical", "boolean", "datetime")
