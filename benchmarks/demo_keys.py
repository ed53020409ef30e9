"""Does `make demo` publish whatever the key of the split, and is the leaky demo always blocked?

    OMP_NUM_THREADS=1 nice python -m benchmarks.demo_keys --results demo-keys.jsonl
    OMP_NUM_THREADS=1 nice python -m benchmarks.demo_keys --leak --results demo-keys-leak.jsonl
    python -m benchmarks.demo_keys --metrics controls --results controls.jsonl  # beside other metrics in another file
    python -m benchmarks.demo_keys --report controls.jsonl others.jsonl

Key n stands for a home with the secret "demo key n": the demo table is split, its generator fitted and sampled, and the
metrics judged by the limits of the demo, by the functions that the assets call, without Dagster and files. The encoder
is trained anew for each of the first ``--embedded`` keys; without it the statistics and entries in the embedding are
missing, and the line says so. ``--leak`` runs the demo with a leaf for every row; it is blocked by the first limit that
breaks, so the cheapest metrics come first and the rest is not run. One line a key, never computed twice.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from privacy_assets.dagster.demo import demo_spec
from privacy_assets.evaluation import attach_embedder, fit_embedder, run_metrics
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.pipeline.measuring import metric_inputs
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.private_table import PrivateTable, people_of
from privacy_assets.pipeline.row_sources import source_table
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Verdict
from privacy_assets.stats.results import MetricResult
from privacy_assets.tables.fingerprints import derived

CHEAPEST = ("dcr", "membership_inference", "linkability", "singling_out")  # in the leaky demo, before all others
WORST_FIRST = ("fail", "not_assessable", "pass")


@cache
def source(settings: TablePlan) -> PrivateTable:
    """The private table in canonical form."""
    return source_table(settings, None, None, None)


def demo_inputs(settings: TablePlan, key: int, embedded: bool) -> MetricInputs:
    """What the metrics of the demo read in a home of this key."""
    secret = derived(f"demo key {key}, of at least 16 bytes".encode(), "split")
    tables = source(settings).split(secret, settings.shares)
    train = tables["train"]
    fitted = settings.generator.fit(train.rows, seed=settings.seed, people=people_of([train]))
    made = fitted.sample(len(train), seed=settings.seed)
    inputs = metric_inputs(tables, made, seed=settings.seed)
    return attach_embedder(inputs, fit_embedder(inputs, **(settings.embedder or {}))) if embedded else inputs


def scored(settings: TablePlan, inputs: MetricInputs, chosen: list[str], first_only: bool) -> dict[str, Any]:
    """Verdict, broken limits, statistics under a limit and seconds; ``first_only`` ends with the first broken limit."""
    results: dict[str, MetricResult] = {}
    broken: dict[str, str] = {}
    estimates: dict[str, float | None] = {}
    seconds: dict[str, float] = {}
    verdict: Verdict = "pass"
    for name in chosen:
        limits = tuple(limit for limit in settings.policy.limits if limit.metric == name)
        if not limits:
            continue
        started = time.process_time()
        results |= run_metrics(inputs, {name: settings.metrics[name]})
        seconds[name] = round(time.process_time() - started, 2)
        judgement = Policy(limits).judge(results)
        verdict = min(verdict, judgement.verdict, key=WORST_FIRST.index)
        broken |= {outcome.limit.key: outcome.reason for outcome in judgement.broken}
        estimates |= {
            o.limit.key: round(o.measured, 5) if math.isfinite(o.measured) else None for o in judgement.outcomes
        }
        if broken and first_only:
            break
    return {"verdict": verdict, "broken": broken, "estimates": estimates, "seconds": seconds}


def lines(path: Path) -> list[dict[str, Any]]:
    """What a file of results holds; nothing when there is none yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(*paths: Path) -> None:
    """Print verdicts, broken limits and the range of what was held against each limit.

    Several files, of other metrics each, are one run: of the keys that stand in all of them.
    """
    files = [{line["key"]: line for line in lines(path)} for path in paths]
    found = [joined([file[key] for file in files]) for key in sorted(set.intersection(*map(set, files)))]
    print(f"{len(found)} keys, {sum(one['embedded'] for one in found)} with the encoder:", end=" ")
    print(dict(Counter(one["verdict"] for one in found)))
    for limit, count in Counter(key for one in found for key in one["broken"]).most_common():
        print(f"  {limit} broke for {count}")
    print("\n| limit | measured: lowest | median | highest | not measured |\n|---|---|---|---|---|")
    for limit in dict.fromkeys(key for one in found for key in one["estimates"]):
        values = pd.Series([one["estimates"].get(limit) for one in found if limit in one["estimates"]], dtype=float)
        cells = " | ".join(f"{value:.4f}" for value in (values.min(), values.median(), values.max()))
        print(f"| {limit} | {cells} | {values.isna().sum()} |")
    seconds = pd.DataFrame([one["seconds"] for one in found]).median()
    print("\nCPU seconds (medians):", ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The lines of one key, of other metrics each, as one."""
    whole = {"verdict": min((part["verdict"] for part in parts), key=WORST_FIRST.index)}
    for name in ("broken", "estimates", "seconds"):
        whole[name] = {limit: value for part in parts for limit, value in part[name].items()}
    return {**whole, "embedded": any(part["embedded"] for part in parts)}


def main(arguments: list[str] | None = None) -> None:
    """Run the keys that are not there yet, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100, help="so many, from --first")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--embedded", type=int, default=100, help="the encoder is trained for keys below this")
    parser.add_argument("--leak", action="store_true", help="the leaky demo, up to the first broken limit")
    parser.add_argument("--metrics", help="some of the metrics, with commas between them (all that have limits)")
    parser.add_argument("--results", type=Path, default=Path("demo-keys.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, nargs="+", help="files to report on; nothing is run")
    options = parser.parse_args(arguments)
    if options.report:
        report(*options.report)
        return
    settings = TablePlan.of(demo_spec(leak=options.leak))
    chosen = options.metrics.split(",") if options.metrics else list(settings.policy.metrics)
    if options.leak:
        chosen.sort(key=lambda name: CHEAPEST.index(name) if name in CHEAPEST else len(CHEAPEST))
    uses = any(settings.uses_embedder(settings.metrics[name]) for name in chosen)
    done = {line["key"] for line in lines(options.results)}
    for key in sorted(set(range(options.first, options.first + options.keys)) - done):
        started = time.process_time()
        embedded = uses and key < options.embedded
        inputs = demo_inputs(settings, key, embedded)
        prepared = {"preparing": round(time.process_time() - started, 2)}
        found = scored(settings, inputs, chosen, options.leak)
        found["seconds"] = prepared | found["seconds"]
        with options.results.open("a") as file:
            file.write(json.dumps({"key": key, "leak": options.leak, "embedded": embedded, **found}) + "\n")
        sys.stderr.write(f"key {key}: {found['verdict']} {list(found['broken'])} {found['seconds']}\n")
    report(options.results)


if __name__ == "__main__":
    main()
