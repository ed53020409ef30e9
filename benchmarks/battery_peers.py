"""Evaluate releases with a peer, inside the peer's environment: read Parquet files, write JSON.

:mod:`benchmarks.battery` starts this file with the peer's name and writes one task per line: paths
of "train", "holdout" and "synthetic". One process handles all releases, because the peers take
longer to start and compile than to evaluate.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import redirect_stdout
from typing import Any

ATTACKS = 200
CANDIDATES = 20_000  # maximum number of queries per singling-out attack of anonymeter
SECRETS = 3  # number of evenly spread columns attacked by anonymeter's inference
ROWS = 1_000  # rows per table, of which SDMetrics compares all pairs
# with fewer, mostlyai-qa's own report stops early
FEWEST = {"synthetic": 100, "train": 90, "holdout": 10}

Figures = dict[str, Any]


def anonymeter(train: Any, holdout: Any, synthetic: Any) -> Figures:
    """Return each risk with its bounds at 95 %, individually and jointly for all attacks, or an
    error message.

    Singling out gets equally many rows of train and holdout. With all rows (8,000 and 2,000 of
    Adult) it reports risks of 0.15 (univariate) and 0.20 for fresh rows, with intervals far above
    0.
    """
    from anonymeter.evaluators import InferenceEvaluator, LinkabilityEvaluator, SinglingOutEvaluator
    from pandas.api.types import is_numeric_dtype

    train, holdout, synthetic = (as_numbers_and_text(part) for part in (train, holdout, synthetic))
    columns, attacks = list(train.columns), min(ATTACKS, len(train), len(holdout))
    halves = (columns[: len(columns) // 2], columns[len(columns) // 2 :])
    secrets = [columns[round(i)] for i in spread(len(columns), min(SECRETS, len(columns)))]
    number = 3 + len(secrets)

    even = min(len(train), len(holdout))
    sides = [part.sample(even, random_state=0).reset_index(drop=True) for part in (train, holdout)]

    def singling_out(mode: str) -> Any:
        made = SinglingOutEvaluator(
            sides[0], synthetic, attacks, 3, control=sides[1], max_attempts=CANDIDATES, seed=0
        )
        return made.evaluate(mode=mode)

    def linkability() -> Any:
        return LinkabilityEvaluator(train, synthetic, halves, attacks, control=holdout).evaluate(
            n_jobs=1
        )

    def inference(secret: str) -> Any:
        known = [name for name in columns if name != secret]
        numeric = is_numeric_dtype(train[secret])
        return InferenceEvaluator(
            train, synthetic, known, secret, numeric, attacks, holdout
        ).evaluate(n_jobs=1)

    work = {"singling out, univariate": lambda: singling_out("univariate")}
    work |= {
        "singling out, 3 columns": lambda: singling_out("multivariate"),
        "linkability": linkability,
    }
    work |= {
        f"inference of {secret}": lambda secret=secret: inference(secret) for secret in secrets
    }
    found: Figures = {}
    for name, attack in work.items():
        try:
            done = attack()
            risk, together = done.risk(), done.risk(confidence_level=1 - 0.05 / number)
            found[name] = [risk.value, *risk.ci, *together.ci]
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:200]
    return found


def sdmetrics(train: Any, holdout: Any, synthetic: Any) -> Figures:
    """Return the score (1 is best) and the share of synthetic rows nearer to train, with tables of
    equal size.
    """
    from sdmetrics.single_table import DCROverfittingProtection

    rows = min(ROWS, len(train), len(holdout), len(synthetic))
    described = {"columns": {name: {"sdtype": sdtype(train[name])} for name in train.columns}}
    fit = DCROverfittingProtection.compute_breakdown(
        train, synthetic, holdout, described, None, num_rows_subsample=rows
    )
    nearer = fit["synthetic_data_percentages"]["closer_to_training"]
    return {"overfitting": fit["score"], "nearer to train": nearer, "rows": rows}


def mostlyai(train: Any, holdout: Any, synthetic: Any) -> Figures:
    """Compute the "distances" of ``qa.report`` with its own functions and its embedder.

    The other parts of the report (accuracy, similarity, the page) take ten times as long and do not
    measure privacy.
    """
    from mostlyai.qa import _distances as distances
    from mostlyai.qa._sampling import prepare_data_for_embeddings

    for role, part in {"synthetic": synthetic, "train": train, "holdout": holdout}.items():
        if len(part) < FEWEST[role]:
            raise ValueError(f"fewer than {FEWEST[role]} rows of {role}")
    encoded = prepare_data_for_embeddings(
        syn_tgt_data=synthetic, trn_tgt_data=train, hol_tgt_data=holdout
    )
    made = dict(zip(("syn_embeds", "trn_embeds", "hol_embeds"), encoded, strict=True))
    found = distances.calculate_distances(**made)
    near, far = found["dcr_syn_trn"], found["dcr_syn_hol"]
    return {
        "DCR share": float(distances.calculate_dcr_share(near, far)),
        "identical to train": float(distances.calculate_ims(near)),
        "identical to holdout": float(distances.calculate_ims(far)),
        "rows": len(near),
        # number of column sets, of which it reports the largest share
        "looks": 7 if encoded[0].shape[1] > 10 else 1,
    }


def as_numbers_and_text(frame: Any) -> Any:
    """Convert dates to seconds and booleans to text, as anonymeter requires."""
    import pandas as pd
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype

    out = frame.copy()
    for name in out.columns:
        if is_datetime64_any_dtype(out[name]):
            out[name] = (out[name] - pd.Timestamp(0)).dt.total_seconds()
        elif is_bool_dtype(out[name]):
            out[name] = out[name].astype(str)
    return out


def sdtype(column: Any) -> str:
    """Return SDMetrics' name of a column's type."""
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    if is_datetime64_any_dtype(column):
        return "datetime"
    if is_bool_dtype(column):
        return "boolean"
    return "numerical" if is_numeric_dtype(column) else "categorical"


def spread(columns: int, number: int) -> list[float]:
    """Return ``count`` evenly spread column positions, including both ends."""
    return [i * (columns - 1) / max(number - 1, 1) for i in range(number)]


TOOLS = {tool.__name__: tool for tool in (anonymeter, sdmetrics, mostlyai)}


def answer(tool: str, paths: dict[str, str]) -> dict[str, Any]:
    """Return the statistics of one release or its error, and CPU seconds."""
    import numpy as np
    import pandas as pd

    np.random.seed(0)  # noqa: NPY002 - peers draw from the global state
    tables = [pd.read_parquet(paths[role]) for role in ("train", "holdout", "synthetic")]
    before = time.process_time()
    try:
        found: dict[str, Any] = {"estimates": TOOLS[tool](*tables)}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:200]}
    return found | {"seconds": time.process_time() - before}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        with redirect_stdout(sys.stderr):
            found = answer(sys.argv[1], json.loads(line))
        print(json.dumps(found), flush=True)
