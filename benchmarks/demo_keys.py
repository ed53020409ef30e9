"""Check under many split keys that `make demo` publishes and that the leaky demo is blocked.

    OMP_NUM_THREADS=1 nice python -m benchmarks.demo_keys --results demo-keys.jsonl
    OMP_NUM_THREADS=1 nice python -m benchmarks.demo_keys --leak --results demo-keys-leak.jsonl
    python -m benchmarks.demo_keys --metrics controls --results controls.jsonl  # other metrics, another file
    python -m benchmarks.demo_keys --report controls.jsonl others.jsonl

Key n represents a deployment with the split key "demo key n". The demo table is split, its generator
fitted and sampled, and the metrics evaluated with the limits of the demo, using the functions of
the assets without Dagster and files. The encoder is trained for each of the first ``--embedded``
keys; other lines omit embedded statistics and are marked. ``--leak`` gives every row its own leaf.
The first violated limit blocks that demo, so the cheapest metrics run first and the rest are
skipped. Each key is one line and is computed once.
"""  # noqa: E501

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.study import append, limits_alone, lines, study_parser
from privacy_assets.dagster.demo import demo_spec
from privacy_assets.evaluation.measuring import run_metrics, with_embedder
from privacy_assets.evaluation.reading import build_inputs
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.row_sources import source_table
from privacy_assets.policy import Policy, Status
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.fingerprints import derive_key
from privacy_assets.tables.splitting import split_rows
from privacy_assets.tables.table import Table, subject_codes_of

# run first in the leaky demo
CHEAPEST = ("dcr", "membership_inference", "linkability", "singling_out")
WORST_FIRST = ("fail", "undecided", "pass")


@cache
def source(settings: ResolvedTable) -> Table:
    """Return the private table in canonical form."""
    return source_table(settings, None, None, None)


def demo_inputs(settings: ResolvedTable, key: int, embedded: bool) -> EvaluationInputs:
    """Return the inputs of the demo metrics under this key."""
    split_key = derive_key(f"demo key {key}, of at least 16 bytes".encode(), "split")
    table = source(settings)
    tables = {
        role: table.take(rows)
        for role, rows in split_rows(table, split_key, settings.shares).items()
    }
    train = tables["train"]
    fitted = settings.generator.fit(
        train.without_subject(),
        seed=settings.spec.run.seed,
        subject_codes=subject_codes_of([train]),
    )
    made = fitted.sample(len(train), seed=settings.spec.run.seed)
    inputs = build_inputs(tables, made, seed=settings.spec.run.seed)
    return with_embedder(inputs, **(settings.embedder or {})) if embedded else inputs


def scored(
    settings: ResolvedTable, inputs: EvaluationInputs, chosen: list[str], first_only: bool
) -> dict[str, Any]:
    """Return verdict, violated limits, limited statistics and seconds; ``first_only`` stops at the
    first violation.
    """
    results: dict[str, MetricResult] = {}
    broken: dict[str, str] = {}
    estimates: dict[str, float | None] = {}
    seconds: dict[str, float] = {}
    verdict: Status = "pass"
    for name in chosen:
        limits = tuple(limit for limit in settings.policy.limits if limit.metric == name)
        if not limits:
            continue
        started = time.process_time()
        results |= run_metrics(inputs, {name: settings.metrics[name]})
        seconds[name] = round(time.process_time() - started, 2)
        policy_verdict = limits_alone(Policy(limits), results)
        verdict = min(verdict, policy_verdict.status, key=WORST_FIRST.index)
        broken |= {outcome.limit.key: outcome.reason for outcome in policy_verdict.not_passed}
        estimates |= {
            o.limit.key: round(o.compared, 5) if math.isfinite(o.compared) else None
            for o in policy_verdict.outcomes
        }
        if broken and first_only:
            break
    return {"verdict": verdict, "broken": broken, "estimates": estimates, "seconds": seconds}


def report(*paths: Path) -> None:
    """Print verdicts, violated limits and the range of the value compared with each limit.

    Several files with different metrics count as one run over the keys that all of them contain.
    """
    files = [{line["key"]: line for line in lines(path)} for path in paths]
    found = [
        joined([file[key] for file in files]) for key in sorted(set.intersection(*map(set, files)))
    ]
    print(f"{len(found)} keys, {sum(one['embedded'] for one in found)} with the encoder:", end=" ")
    print(dict(Counter(one["verdict"] for one in found)))
    for limit, count in Counter(key for one in found for key in one["broken"]).most_common():
        print(f"  {limit} broke for {count}")
    print("\n| limit | measured: lowest | median | highest | not measured |\n|---|---|---|---|---|")
    for limit in dict.fromkeys(key for one in found for key in one["estimates"]):
        values = pd.Series(
            [one["estimates"].get(limit) for one in found if limit in one["estimates"]], dtype=float
        )
        cells = " | ".join(
            f"{value:.4f}" for value in (values.min(), values.median(), values.max())
        )
        print(f"| {limit} | {cells} | {values.isna().sum()} |")
    seconds = pd.DataFrame([one["seconds"] for one in found]).median()
    print(
        "\nCPU seconds (medians):",
        ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()),
    )


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the lines of one key, each with other metrics."""
    whole = {"verdict": min((part["verdict"] for part in parts), key=WORST_FIRST.index)}
    for name in ("broken", "estimates", "seconds"):
        whole[name] = {limit: value for part in parts for limit, value in part[name].items()}
    return {**whole, "embedded": any(part["embedded"] for part in parts)}


def main(arguments: list[str] | None = None) -> None:
    """Run the missing keys, or report."""
    parser = study_parser(__doc__, "demo-keys.jsonl")
    parser.add_argument("--keys", type=int, default=100, help="number of keys, from --first")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--embedded", type=int, default=100, help="the encoder is trained for keys below this"
    )
    parser.add_argument(
        "--leak", action="store_true", help="the leaky demo, up to the first failed limit"
    )
    parser.add_argument(
        "--metrics", help="some of the metrics, with commas between them (all that have limits)"
    )
    options = parser.parse_args(arguments)
    if options.report:
        report(*options.report)
        return
    settings = ResolvedTable.of(demo_spec(leak=options.leak))
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
        append(options.results, {"key": key, "leak": options.leak, "embedded": embedded, **found})
        sys.stderr.write(
            f"key {key}: {found['verdict']} {list(found['broken'])} {found['seconds']}\n"
        )
    report(options.results)


if __name__ == "__main__":
    main()
