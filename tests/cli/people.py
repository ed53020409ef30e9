"""A private table for the commands that read one."""

from __future__ import annotations

import numpy as np
import pandas as pd

SECRET = "Zebulon-77123"  # a value of the table, which no message may show
ROWS = 240


def people() -> pd.DataFrame:
    """A table with every dtype, missing values and two rows per person."""
    g = np.random.default_rng(0)
    born = pd.Series(
        pd.Timestamp("1950-01-01") + pd.to_timedelta(g.integers(0, 20_000, ROWS), unit="D")
    )
    frame = pd.DataFrame(
        {"person": np.arange(ROWS) // 2, "age": g.integers(18, 90, ROWS).astype("int8")}
    )
    frame = frame.assign(
        wage=g.lognormal(10, 1, ROWS),
        score=g.normal(size=ROWS).astype("float32"),
        visits=pd.array(g.integers(0, 9, ROWS), dtype="Int64"),
        town=g.choice(list("abcd"), ROWS),
        grade=pd.Categorical(g.choice(["low", "high"], ROWS)),
        smoker=g.random(ROWS) < 0.3,
        insured=pd.array(g.random(ROWS) < 0.5, dtype="boolean"),
        born=born.astype("datetime64[ns]"),
        seen=born.dt.tz_localize("Europe/Berlin") + pd.Timedelta("61s"),
    )
    for place, column in enumerate(["wage", "visits", "town", "grade", "insured", "born", "seen"]):
        frame.loc[place::7, column] = None
    frame.loc[17, "town"] = SECRET
    return frame
