"""One piece of work in a process of its own, measured: a metric of this project, or a peer in the peers' environment.

:mod:`benchmarks.peers` starts this file with a task as JSON and reads a line of JSON: CPU seconds, peak memory, answer.
Both sides read the same Parquet files, and nothing of either is imported before it is known which one is asked.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROLES = ("train", "holdout", "synthetic")
CANDIDATES = 1_000_000  # queries that a configuration of singling out tries at most, on both sides
WARM_ROWS, WARM_ATTACKS = 1_000, 50

Answer = dict[str, list[float]]  # what was asked for: value, and the interval if there is one
Steps = tuple[Callable[..., Any], Callable[[Any], Answer]]  # tables to inputs, inputs to answer


def spent() -> float:
    """User and system seconds of this process and of those it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def peak() -> float:
    """Most memory that this process ever held, in MB. Linux only: ru_maxrss would hold that of the starting process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cost(work: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """CPU seconds of ``work``, and what it returned."""
    gc.collect()
    before = spent()
    found = work(*given)
    return spent() - before, found


# --- this side --------------------------------------------------------------------------------------------------------


def metric(name: str, estimates: Sequence[str], **settings: Any) -> Steps:
    """A metric of the registry; its inputs are prepared from the frames as for every other metric."""
    from privacy_assets.evaluation import prepare_inputs
    from privacy_assets.metrics.registry import build_metric

    chosen = build_metric(name, settings)

    def measure(inputs: Any) -> Answer:
        result = chosen.evaluate(inputs)
        return {one: [getattr(result.estimate(one), part) for part in ("value", "low", "high")] for one in estimates}

    return prepare_inputs, measure


# --- peers ------------------------------------------------------------------------------------------------------------


def singling_out(columns: Sequence[int], attacks: int) -> Steps:
    """Anonymeter, once for each number of columns; 1 is its univariate attack."""
    from anonymeter.evaluators import SinglingOutEvaluator

    def attack(tables: Any) -> Answer:
        train, holdout, synthetic = tables
        found = {}
        for width in columns:
            evaluator = SinglingOutEvaluator(
                train, synthetic, attacks, width, control=holdout, max_attempts=CANDIDATES, seed=0
            )
            risk = evaluator.evaluate(mode="univariate" if width == 1 else "multivariate").risk()
            found["univariate" if width == 1 else f"{width} columns"] = [risk.value, *risk.ci]
        return found

    return as_they_are, attack


def linkability(columns: Sequence[Sequence[str]], attacks: int) -> Steps:
    """Anonymeter, with one pair of column sets."""
    from anonymeter.evaluators import LinkabilityEvaluator

    def attack(tables: Any) -> Answer:
        train, holdout, synthetic = tables
        possible = min(attacks, len(train), len(holdout))  # it raises for more; the metric cuts them down by itself
        evaluator = LinkabilityEvaluator(train, synthetic, tuple(columns), possible, control=holdout)
        risk = evaluator.evaluate(n_jobs=1).risk()
        return {"risk": [risk.value, *risk.ci]}

    return as_they_are, attack


def inference(attacks: int) -> Steps:
    """Anonymeter, once for each column as the secret, all others known; the answer is that of the worst column."""
    from anonymeter.evaluators import InferenceEvaluator
    from pandas.api.types import is_numeric_dtype

    def attack(tables: Any) -> Answer:
        train, holdout, synthetic = tables
        risks = []
        for secret in train.columns:
            known = [name for name in train.columns if name != secret]
            evaluator = InferenceEvaluator(
                train, synthetic, known, secret, is_numeric_dtype(train[secret]), attacks, holdout
            )
            risks.append(evaluator.evaluate(n_jobs=1).risk())
        worst = max(risks, key=lambda risk: risk.value)
        return {"worst column": [worst.value, *worst.ci]}

    return as_they_are, attack


def overfitting() -> Steps:
    """SDMetrics DCROverfittingProtection: 1 is best, 0 worst."""
    from sdmetrics.single_table import DCROverfittingProtection

    def score(tables: Any) -> Answer:
        train, holdout, synthetic = tables
        return {"score": [DCROverfittingProtection.compute(train, synthetic, holdout, metadata(train), None)]}

    return as_they_are, score


def baseline() -> Steps:
    """SDMetrics DCRBaselineProtection: 1 is best, 0 worst; it reads no holdout."""
    from sdmetrics.single_table import DCRBaselineProtection

    def score(tables: Any) -> Answer:
        train, _, synthetic = tables
        return {"score": [DCRBaselineProtection.compute(train, synthetic, metadata(train), None)]}

    return as_they_are, score


def as_they_are(*tables: Any) -> tuple[Any, ...]:
    """Peers take the frames themselves: all their work is in the call that is measured."""
    return tables


def metadata(frame: Any) -> dict[str, Any]:
    """What SDMetrics wants to know about the columns."""
    from pandas.api.types import is_numeric_dtype

    kinds = {name: "numerical" if is_numeric_dtype(frame[name]) else "categorical" for name in frame.columns}
    return {"columns": {name: {"sdtype": kind} for name, kind in kinds.items()}}


TOOLS = {tool.__name__: tool for tool in (metric, singling_out, linkability, inference, overfitting, baseline)}


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Do the task ("tool", "settings", "tables": a path for each role): CPU seconds, MB and the answer.

    "compiling" is a warm-up on a few rows, in which each side compiles what it compiles; "preparing" is what turns
    frames into inputs, and serves all metrics alike; "cpu" is the rest. Importing and reading are in none of them.
    """
    import pandas as pd

    tool, settings = TOOLS[task["tool"]], task["settings"]
    tables = [pd.read_parquet(task["tables"][role]) for role in ROLES]
    few = {**settings, "attacks": WARM_ATTACKS} if "attacks" in settings else settings
    prepare, work = tool(**few)
    warm, _ = cost(lambda: work(prepare(*(table[:WARM_ROWS] for table in tables))))
    prepare, work = tool(**settings)
    preparing, inputs = cost(prepare, *tables)
    working, answer = cost(work, inputs)
    return {"compiling": warm, "preparing": preparing, "cpu": working, "mb": peak(), "answer": answer}


def versions() -> dict[str, str]:
    """Of the packages that matter here, those that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for name in ("anonymeter", "sdmetrics", "polars", "pandas", "numpy", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    import numpy as np

    np.random.seed(0)  # noqa: NPY002 - peers draw from the global state
    warnings.simplefilter("ignore")
    print(json.dumps(run(json.loads(sys.argv[1])) if len(sys.argv) > 1 else versions()))
