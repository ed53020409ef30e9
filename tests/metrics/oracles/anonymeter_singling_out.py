"""Singling out by anonymeter, the package of Giomi et al., on tables that the tests make again.

Run where anonymeter is installed, which needs other versions than this project does:

    pip install anonymeter==1.1.0
    cd tests/metrics/oracles
    python anonymeter_singling_out.py adult.parquet > singling_out.json

All tables of a case have the same size and no row twice: at unequal sizes anonymeter's control is a
fit of its own.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import version

import numpy as np
import pandas as pd

ATTACKS = 1_000
COPIES = {"fresh": 0.0, "a fifth copied": 0.2, "copy": 1.0}
CASES = {
    "survey": {"rows": 2_000, "columns": [3, 6]},
    "adult": {"rows": 9_758, "columns": [1, 4, 8]},
}


def survey(rows: int) -> pd.DataFrame:
    """Distinct rows of integers, strings and booleans, from uniform numbers only: the same on any
    machine.
    """
    u = np.random.default_rng(7).random((2 * rows, 8))
    frame = pd.DataFrame(
        {
            "income": (100 / (0.02 + u[:, 0])).astype(int) * 10,
            "age": (18 + 70 * u[:, 1] * (0.5 + u[:, 0] / 2)).astype(int),
            "town": np.array(["Ash", "Bray", "Cove", "Dale", "Eye"])[
                (5 * u[:, 2] ** 2).astype(int)
            ],
            "smokes": u[:, 3] < 0.2 + 0.2 * u[:, 1],
            "children": (6 * u[:, 4] ** 3).astype(int),
            "weight": (50 + 60 * u[:, 5] * u[:, 1]).astype(int),
            "work": np.array(["none", "part", "full"])[(3 * u[:, 6]).astype(int)],
            "visits": (1 / (0.01 + u[:, 7])).astype(int),
        }
    )
    return frame.drop_duplicates(ignore_index=True)[:rows]


def tables(case: str, share: float, adult: pd.DataFrame | None = None) -> dict[str, pd.DataFrame]:
    """Train, holdout and synthetic rows of different people, except that the given share are rows
    of train.
    """
    rows = CASES[case]["rows"]
    frame = survey(3 * rows) if case == "survey" else adult.drop_duplicates(ignore_index=True)
    train, holdout, fresh = (
        frame[at * rows : (at + 1) * rows].reset_index(drop=True) for at in range(3)
    )
    copied = round(share * rows)
    return {
        "train": train,
        "holdout": holdout,
        "synthetic": pd.concat([train[:copied], fresh[copied:]]),
    }


def digest(given: dict[str, pd.DataFrame]) -> str:
    """Short hash of the tables of a case."""
    text = "".join(frame.to_csv(index=False, lineterminator="\n") for frame in given.values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def attack(given: dict[str, pd.DataFrame], columns: int) -> dict[str, object]:
    """Counts and statistics of one attack; 1 column is the univariate one."""
    from anonymeter.evaluators import SinglingOutEvaluator

    evaluator = SinglingOutEvaluator(
        given["train"], given["synthetic"], ATTACKS, columns, control=given["holdout"], seed=0
    )
    results = evaluator.evaluate("univariate" if columns == 1 else "multivariate").results()
    risk = results.risk()
    return {
        "columns": columns,
        "hits_train": int(results.n_success),
        "hits_holdout": int(results.n_control),
        "risk": risk.value,
        "low": risk.ci[0],
        "high": risk.ci[1],
    }


def main() -> None:
    """Print the statistics of all cases."""
    adult = pd.read_parquet(sys.argv[1]).sample(frac=1, random_state=0).reset_index(drop=True)
    found = []
    for case, settings in CASES.items():
        for leak, share in COPIES.items():
            given = tables(case, share, adult)
            attacks = [attack(given, columns) for columns in settings["columns"]]
            found.append({"case": case, "leak": leak, "tables": digest(given), "attacks": attacks})
            print(found[-1], file=sys.stderr)
    made = {
        "package": f"anonymeter {version('anonymeter')}",
        "attacks": ATTACKS,
        "by": "anonymeter_singling_out.py",
    }
    print(json.dumps({"made": made, "found": found}, indent=1))


if __name__ == "__main__":
    main()
