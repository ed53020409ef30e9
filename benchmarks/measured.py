"""Measure one task in its own process: a metric of this project, or a peer in the peers'
environment.

:mod:`benchmarks.peers` starts this file with a task as JSON and reads a line of JSON: CPU seconds,
peak memory, answer. Both sides read the same Parquet files and import their library only after the
task is known.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROLES = ("train", "holdout", "synthetic")
CANDIDATES = 1_000_000  # maximum number of candidates per singling-out configuration, on both sides
WARM_ROWS, WARM_ATTACKS = 1_000, 50

Answer = dict[str, list[float]]  # statistic: value, and the interval if there is one
Steps = tuple[Callable[..., Any], Callable[[Any], Answer]]  # tables to inputs, inputs to answer


def spent() -> float:
    """Return user and system seconds of this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def peak() -> float:
    """Return the peak memory of this process in MB. Linux only: ru_maxrss would include the
    parent's.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cost(work: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """Return CPU seconds of ``work`` and its result."""
    gc.collect()
    before = spent()
    found = work(*given)
    return spent() - before, found


# --- this side
# --------------------------------------------------------------------------------------------------


def metric(name: str, estimates: Sequence[str], **settings: Any) -> Steps:
    """Prepare inputs as for every other metric, and measure one metric of the registry."""
    from privacy_assets.evaluation.reading import read_inputs
    from privacy_assets.metrics.registry import build_metric

    chosen = build_metric(name, settings)

    def measure(inputs: Any) -> Answer:
        result = chosen.measure(inputs)
        return {
            one: [getattr(result.estimate(one), part) for part in ("value", "low", "high")]
            for one in estimates
        }

    return read_inputs, measure


def whole(paths: Sequence[str]) -> Steps:
    """Evaluate files by the default metrics. The answer is the CPU seconds of each metric, in
    order.
    """
    from privacy_assets import evaluate

    def default_metrics(_: Any) -> Answer:
        marks = [("reading and encoder", spent())]

        def note(message: str) -> None:
            if message.startswith("measuring "):
                marks.append((message.removeprefix("measuring "), spent()))

        evaluate(*paths, progress=note)
        marks.append(("", spent()))
        return {name: [end - start] for (name, start), (_, end) in pairwise(marks)}

    return as_they_are, default_metrics


# --- peers
# --------------------------------------------------------------------------------------------------


def singling_out(columns: Sequence[int], attacks: int) -> Steps:
    """Run anonymeter once per number of columns; 1 is its univariate attack."""
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
    """Run anonymeter with one pair of column sets."""
    from anonymeter.evaluators import LinkabilityEvaluator

    def attack(tables: Any) -> Answer:
        train, holdout, synthetic = tables
        # it raises for more; the metric limits them itself
        possible = min(attacks, len(train), len(holdout))
        evaluator = LinkabilityEvaluator(
            train, synthetic, tuple(columns), possible, control=holdout
        )
        risk = evaluator.evaluate(n_jobs=1).risk()
        return {"risk": [risk.value, *risk.ci]}

    return as_they_are, attack


def inference(attacks: int) -> Steps:
    """Run anonymeter once per secret column, all others known, and return the worst column."""
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
    """Run SDMetrics DCROverfittingProtection: 1 is best, 0 worst."""
    from sdmetrics.single_table import DCROverfittingProtection

    def score(tables: Any) -> Answer:
        train, holdout, synthetic = tables
        return {
            "score": [
                DCROverfittingProtection.compute(train, synthetic, holdout, metadata(train), None)
            ]
        }

    return as_they_are, score


def baseline() -> Steps:
    """Run SDMetrics DCRBaselineProtection, which uses no holdout: 1 is best, 0 worst."""
    from sdmetrics.single_table import DCRBaselineProtection

    def score(tables: Any) -> Answer:
        train, _, synthetic = tables
        return {"score": [DCRBaselineProtection.compute(train, synthetic, metadata(train), None)]}

    return as_they_are, score


def quality() -> Steps:
    """Run the quality report of SDMetrics: similarity of all columns and of all pairs of
    columns.
    """
    from sdmetrics.reports.single_table import QualityReport

    def score(tables: Any) -> Answer:
        train, _, synthetic = tables
        report = QualityReport()
        report.generate(train, synthetic, metadata(train), verbose=False)
        return {"score": [report.get_score()]}

    return as_they_are, score


def as_they_are(*tables: Any) -> tuple[Any, ...]:
    """Return the frames unchanged: all of a peer's work is in the measured call."""
    return tables


def metadata(frame: Any) -> dict[str, Any]:
    """Return the column metadata that SDMetrics requires."""
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    kinds = {
        name: "numerical" if is_numeric_dtype(frame[name]) else "categorical"
        for name in frame.columns
    }
    kinds |= {name: "datetime" for name in frame.columns if is_datetime64_any_dtype(frame[name])}
    kinds |= {name: "boolean" for name in frame.columns if is_bool_dtype(frame[name])}
    return {"columns": {name: {"sdtype": kind} for name, kind in kinds.items()}}


TOOLS = {
    tool.__name__: tool
    for tool in (
        metric,
        whole,
        singling_out,
        linkability,
        inference,
        overfitting,
        baseline,
        quality,
    )
}


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Run the task ("tool", "settings", "tables": a path per role); return CPU seconds, MB and the
    answer.

    "compiling" is a warm-up on a few rows in which each side compiles; "preparing" turns frames
    into inputs shared by all metrics; "cpu" is the rest. Importing and reading are not counted. A
    task with "warm" False has no warm-up, so that "cpu" includes compilation.
    """
    import pandas as pd

    tool, settings = TOOLS[task["tool"]], task["settings"]
    tables = [pd.read_parquet(task["tables"][role]) for role in ROLES]
    few = {**settings, "attacks": WARM_ATTACKS} if "attacks" in settings else settings
    prepare, work = tool(**few)
    warm = 0.0
    if task.get("warm", True):
        warm, _ = cost(lambda: work(prepare(*(table[:WARM_ROWS] for table in tables))))
    prepare, work = tool(**settings)
    preparing, inputs = cost(prepare, *tables)
    working, answer = cost(work, inputs)
    return {
        "compiling": warm,
        "preparing": preparing,
        "cpu": working,
        "mb": peak(),
        "answer": answer,
    }


def versions() -> dict[str, str]:
    """Return the versions of the relevant installed packages."""
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
