"""Measure time, memory, utility and all privacy statistics of every generator on a given table.

    python -m benchmarks.generators adult.parquet --results generators.jsonl
    python -m benchmarks.generators adult.parquet --generators dpctgan,privbayes --epsilons \\
        0.01,0.1,0.5,1,3 \\
        --results generators.jsonl
    python -m benchmarks.generators adult.parquet --generators rvae --overfit 1.25,1.5,2 \\
        --results generators.jsonl
    python -m benchmarks.generators --report generators.jsonl

Train has --rows rows (rows with "?" are dropped), holdout and reference a quarter of that. Each
generator is fitted with its default settings in its own process and generates --rows rows, which
the default policy evaluates. Each run is one line of the results and is made once. Fitting and
sampling are timed; memory is the peak of the process. All evaluations share one encoder of the
training rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.study import append, lines, run_or_report, study_parser
from privacy_assets.distances.embedder import Embedder
from privacy_assets.evaluation.measuring import attach_embedder, fit_embedder, run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators import GENERATORS, build_generator, generator_info
from privacy_assets.metrics.policies import choose_metrics
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

# need an external program, or add no information
APART = {"callable", "command", "realtabformer", "noisy_copy"}
OURS = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
PRIVATE = ("privbayes", "dpgan", "dpctgan", "pategan")
SHOWN = {
    "fidelity.column_similarity": "columns",
    "fidelity.pair_similarity": "pairs",
    "fidelity.prediction": "prediction",
    "membership_inference.precision": "membership precision",
    "membership_inference.advantage_any": "advantage",
    "memorization.exposed": "memorized",
}
PALACIOS = {
    "singling_out.risk_giomi": "SO",
    "singling_out.risk_giomi_embedded": "SO + CL",
    "singling_out.risk": "our SO",
    "singling_out.risk_embedded": "our SO + CL",
    "dcr.privacy_score": "DCR",
    "dcr.privacy_score_embedded": "DCR + CL",
    "linkability.risk": "linkability",
    "attribute_inference.risk": "inference",
}
# each including its embedded statistics
MEASURED = ("dcr", "singling_out", "linkability", "attribute_inference")
Made = tuple[pd.DataFrame, dict[str, Any]]


def cases(
    names: Iterable[str], epsilons: list[float], overfit: list[float], settings: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return generators with their settings."""
    for name in names:
        yield name, settings
        for epsilon in epsilons if name in PRIVATE else ():
            yield name, {**settings, "epsilon": epsilon}
        for ratio in overfit if name == "rvae" else ():
            yield name, {**settings, "overfit": ratio}


def parts(
    path: Path, drop: list[str], rows: int, seed: int, *, as_text: bool = False
) -> list[pd.DataFrame]:
    """Return train, holdout and reference."""
    frame = pd.read_parquet(path).drop(columns=drop)
    frame = "=" + frame.astype(str) if as_text else frame
    frame = frame[~(frame.astype(str) == "?").any(axis=1)]
    order = np.random.default_rng(seed).permutation(len(frame))
    ends = np.cumsum([rows, rows // 4, rows // 4])
    if ends[-1] > len(frame):
        raise SystemExit(
            f"{path}: {len(frame):,} rows are not enough for {ends[-1]:,}; choose fewer --rows"
        )
    return [
        frame.iloc[chosen].reset_index(drop=True)
        for chosen in np.split(order[: ends[-1]], ends[:-1])
    ]


def generate(
    name: str, settings: dict[str, Any], train: pd.DataFrame, schema: TableSchema, seed: int
) -> Made:
    """Generate a table of the size of train and measure the cost."""
    table = Table.of(train, schema, where="train")
    start = cpu_seconds()
    fitted = build_generator(name, settings).fit(table, seed=seed)
    middle = cpu_seconds()
    made = fitted.sample(len(train), seed=seed).to_published_frame()
    return made, {
        "fit_cpu": middle - start, "sample_cpu": cpu_seconds() - middle, "mb": most_memory(),
        "epochs": len(fitted.history), "last": fitted.history[-1] if fitted.history else {},
        "privacy": str(fitted.privacy),
    }  # fmt: skip


def cpu_seconds() -> float:
    """Return CPU seconds of this process and its child processes."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, OURS))


def most_memory() -> float:
    """Return the peak memory of this process or a child in MB; ``ru_maxrss`` would include the
    parent's.
    """
    own = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def judge(
    tables: list[pd.DataFrame], made: pd.DataFrame, encoder: Embedder | None, seed: int
) -> dict[str, Any]:
    """Return every statistic, the seconds of every metric and the verdict of the default policy."""
    train, holdout, reference = tables
    inputs = read_inputs(
        train, holdout, made, reference, schema=infer_schema(pd.concat(tables)), seed=seed
    )
    metrics, policy = choose_metrics(None, None)
    results = run_metrics(
        inputs if encoder is None else attach_embedder(inputs, encoder), metrics, policy.limits
    )
    estimates = {
        f"{name}.{one.name}": [one.value, one.low, one.high]
        for name, r in results.items()
        for one in r.estimates
    }
    return {
        "verdict": policy.judge(results).status, "estimates": estimates,
        "seconds": {name: result.seconds for name, result in results.items()},
    }  # fmt: skip


def encoder_of(tables: list[pd.DataFrame], seed: int) -> tuple[Embedder, float]:
    """Return the encoder of the real rows and its training seconds."""
    train, holdout, reference = tables
    inputs = read_inputs(
        train, holdout, holdout, reference, schema=infer_schema(pd.concat(tables)), seed=seed
    )
    start = perf_counter()
    embedder = fit_embedder(inputs.real, {}, seed=inputs.seed, device=inputs.device)
    return embedder, perf_counter() - start


def run(options: argparse.Namespace) -> None:
    """Run the generators that the results do not contain yet."""
    tables = parts(options.table, options.drop, options.rows, options.seed, as_text=options.as_text)
    schema = infer_schema(pd.concat(tables))
    held = {key_of(line) for line in lines(options.results)}
    common = {"table": options.table.stem, "rows": options.rows, "seed": options.seed}
    encoder, took = (None, 0.0) if options.no_embedder else encoder_of(tables, options.seed)
    for name, settings in cases(
        options.generators, options.epsilons, options.overfit, options.settings
    ):
        head = {
            **common,
            "generator": name,
            "settings": shown_settings(settings),
            "embedder": encoder is not None,
        }
        if key_of(head) in held:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as alone:  # separate peak memory
            made, costs = alone.apply(generate, (name, settings, tables[0], schema, options.seed))
        found = judge(tables, made, encoder, options.seed)
        append(options.results, head | costs | found | {"embedder_seconds": took})
        sys.stderr.write(
            f"{options.table.stem}, {name} {head['settings']}: {costs['fit_cpu']:.1f} CPU s, "
            f"{sum(found['seconds'].values()):.0f} s to judge, {found['verdict']}\n"
        )


def shown_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without paths of this machine."""
    return {key: value for key, value in settings.items() if not isinstance(value, str)}


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """Identify the run of a line."""
    return (
        *(line[key] for key in ("table", "rows", "seed", "generator", "embedder")),
        json.dumps(line["settings"]),
    )


def report_text(found: list[dict[str, Any]]) -> str:
    """Return two Markdown tables per data set; statistics with half the width of their
    intervals.
    """
    out = []
    for table in dict.fromkeys((line["table"], line["rows"]) for line in found):
        these = [line for line in found if (line["table"], line["rows"]) == table]
        out += [f"## {table[0]}, {table[1]:,} rows", ""]
        head = ["generator", "fit, CPU s", "rows, CPU s", "MB", *SHOWN.values(), "verdict"]
        out += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        for line in these:
            costs = [f"{line['fit_cpu']:.0f}", f"{line['sample_cpu']:.1f}", f"{line['mb']:,.0f}"]
            shown = [_shown(line["estimates"].get(key)) for key in SHOWN]
            out.append(f"| {' | '.join([_name(line), *costs, *shown, line['verdict']])} |")
        out.append("")
        embedded = [line for line in these if line["embedder"]]
        if embedded:
            head = ["generator", *PALACIOS.values()]
            out += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
            for line in embedded:
                shown = [_shown(line["estimates"].get(key)) for key in PALACIOS]
                out.append(f"| {' | '.join([_name(line), *shown])} |")
            took = {
                name: sum(line["seconds"][name] for line in embedded) / len(embedded)
                for name in MEASURED
            }
            costs = [f"{name} {seconds:.2f}" for name, seconds in took.items()]
            trained = max(line["embedder_seconds"] for line in embedded)
            out += ["", f"Seconds, mean: {', '.join(costs)}; the encoder {trained:.0f}.", ""]
    return "\n".join(out)


def _name(line: dict[str, Any]) -> str:
    return (
        f"{line['generator']}"
        f" {', '.join(f'{key} {value:g}' for key, value in line['settings'].items())}"
    ).strip()


def _shown(estimate: list[float | None] | None) -> str:
    if estimate is None or any(part is None for part in estimate):
        return "–"
    value, low, high = (float(part) for part in estimate if part is not None)
    return f"{value:.3f} ± {(high - low) / 2:.3f}"


def numbers(text: str) -> list[float]:
    """Parse numbers separated by commas."""
    return [float(part) for part in text.split(",") if part]


def names(text: str) -> list[str]:
    """Read names of generators, separated by commas."""
    found = text.split(",")
    if unknown := [name for name in found if name not in GENERATORS.shipped()]:
        raise argparse.ArgumentTypeError(f"unknown generator {unknown[0]}")
    return found


def main() -> None:
    """Run or report."""
    known = [info.name for info in generator_info() if info.name not in APART and info.available]
    parser = study_parser(__doc__, "generators.jsonl")
    parser.add_argument(
        "table", nargs="?", type=Path, help="a Parquet file; its name stands for the data set"
    )
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        help="a column to leave out, such as an id (repeatable)",
    )
    parser.add_argument("--as-text", action="store_true", help="every column is a category")
    parser.add_argument("--rows", type=int, default=10_000, help="training rows")
    parser.add_argument("--generators", type=names, default=known, help="names, comma-separated")
    parser.add_argument(
        "--epsilons", type=numbers, default=[], help="additional budgets of the private generators"
    )
    parser.add_argument(
        "--overfit", type=numbers, default=[], help="ratios of loss to which rvae is over-fitted"
    )
    parser.add_argument(
        "--settings", type=json.loads, default={}, help="of the generators, as JSON"
    )
    parser.add_argument(
        "--no-embedder", action="store_true", help="leave out the embedded statistics"
    )
    parser.add_argument("--seed", type=int, default=0)
    run_or_report(parser, None, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
