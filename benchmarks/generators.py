"""Every generator on your own copy of the data: time, memory, usefulness and every privacy figure.

    python -m benchmarks.generators adult.parquet --results generators.jsonl
    python -m benchmarks.generators adult.parquet --generators dpctgan,privbayes --epsilons 0.01,0.1,0.5,1,3 \\
        --results generators.jsonl
    python -m benchmarks.generators adult.parquet --generators rvae --overfit 1.25,1.5,2 --results generators.jsonl
    python -m benchmarks.generators --report generators.jsonl

--rows rows are the training table (rows with "?" left out), a quarter as many the holdout and the reference. A process
of its own fits each generator with its default settings, draws as many rows, and judges them by the default policy;
each is one line of the results and is never run twice. Fitting and drawing are timed; memory is the most that the
process held before judging.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.engine.generators import GENERATORS, build_generator, generator_info
from privacy_assets.engine.tables.schema import conform, infer_schema, restore
from privacy_assets.report.evaluate import evaluate

APART = {"callable", "command", "realtabformer", "noisy_copy"}  # need something to run; or show nothing more
PRIVATE = ("privbayes", "dpgan", "dpctgan", "pategan")
SHOWN = {
    "fidelity.column_similarity": "columns", "fidelity.pair_similarity": "pairs", "fidelity.prediction": "prediction",
    "singling_out.risk": "singling out", "dcr.privacy_score": "DCR", "dcr.member_excess_any": "member excess",
    "linkability.excess": "linkability", "attribute_inference.excess": "attribute inference",
    "membership_inference.precision": "membership precision",
}  # fmt: skip


def cases(names: Iterable[str], epsilons: list[float], overfit: list[float]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Generators and settings."""
    for name in names:
        yield name, {}
        for epsilon in epsilons if name in PRIVATE else ():
            yield name, {"epsilon": epsilon}
        for ratio in overfit if name == "rvae" else ():
            yield name, {"overfit": ratio}


def parts(path: Path, drop: list[str], rows: int, seed: int) -> list[pd.DataFrame]:
    """Train, holdout and reference."""
    frame = pd.read_parquet(path).drop(columns=drop)
    frame = frame[~(frame.astype(str) == "?").any(axis=1)]
    order = np.random.default_rng(seed).permutation(len(frame))
    ends = np.cumsum([rows, rows // 4, rows // 4])
    if ends[-1] > len(frame):
        raise SystemExit(f"{path}: {len(frame):,} rows are not enough for {ends[-1]:,}; choose fewer --rows")
    return [frame.iloc[chosen].reset_index(drop=True) for chosen in np.split(order[: ends[-1]], ends[:-1])]


def measure(
    name: str, settings: dict[str, Any], tables: list[pd.DataFrame], seed: int, embedder: bool
) -> dict[str, Any]:
    """Fit, draw and judge."""
    train, holdout, reference = tables
    schema = infer_schema(pd.concat(tables))
    canonical = conform(train, schema, where="train")
    start = process_time()
    said: list[str] = []
    fitted = build_generator(name, settings).fit(canonical, schema, seed=seed, progress=said.append)
    middle = process_time()
    made = restore(fitted.sample(len(train), seed=seed), schema)
    end, memory = process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report = evaluate(train, holdout, made, reference=reference, embedder=embedder, seed=seed).to_json()
    figures = {
        f"{metric}.{figure}": [one["value"], one["low"], one["high"]]
        for metric, found in report["metrics"].items()
        for figure, one in found["figures"].items()
    }
    return {
        "fit_cpu": middle - start, "sample_cpu": end - middle, "mb": memory, "epochs": len(fitted.history),
        "last": fitted.history[-1] if fitted.history else {}, "privacy": str(fitted.privacy),
        "verdict": report["verdict"], "figures": figures,
    }  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    tables = parts(options.table, options.drop, options.rows, options.seed)
    held = {key_of(line) for line in lines([options.results])}
    for name, settings in cases(options.generators, options.epsilons, options.overfit):
        head = {"table": options.table.stem, "rows": options.rows, "seed": options.seed, "generator": name,
                "settings": settings, "embedder": not options.no_embedder}  # fmt: skip
        if key_of(head) in held:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as alone:  # its memory is its own
            found = alone.apply(measure, (name, settings, tables, options.seed, not options.no_embedder))
        with options.results.open("a") as file:
            file.write(json.dumps(head | found) + "\n")
        sys.stderr.write(f"{head['table']}, {name} {settings}: {found['fit_cpu']:.1f} CPU s, {found['verdict']}\n")


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """What was measured."""
    return (*(line[key] for key in ("table", "rows", "seed", "generator", "embedder")), json.dumps(line["settings"]))


def lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Results, as far as files exist."""
    return [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]


def report_text(found: list[dict[str, Any]]) -> str:
    """The results as a Markdown table a data set; figures with half the width of their intervals."""
    out = []
    for table in dict.fromkeys((line["table"], line["rows"]) for line in found):
        out += [f"## {table[0]}, {table[1]:,} rows", ""]
        head = ["generator", "fit, CPU s", "rows, CPU s", "MB", *SHOWN.values(), "verdict"]
        out += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        for line in found:
            if (line["table"], line["rows"]) == table:
                settings = ", ".join(f"{key} {value:g}" for key, value in line["settings"].items())
                costs = [f"{line['fit_cpu']:.0f}", f"{line['sample_cpu']:.1f}", f"{line['mb']:.0f}"]
                shown = [_shown(line["figures"].get(key)) for key in SHOWN]
                row = [f"{line['generator']} {settings}".strip(), *costs, *shown, line["verdict"]]
                out.append(f"| {' | '.join(row)} |")
        out.append("")
    return "\n".join(out)


def _shown(figure: list[float | None] | None) -> str:
    if figure is None or any(part is None for part in figure):
        return "–"
    value, low, high = (float(part) for part in figure if part is not None)
    return f"{value:.3f} ± {(high - low) / 2:.3f}"


def numbers(text: str) -> list[float]:
    """Numbers separated by commas."""
    return [float(part) for part in text.split(",") if part]


def main() -> None:
    """Run or report."""
    known = [info.name for info in generator_info() if info.name not in APART and info.available]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, help="a Parquet file; its name stands for the data set")
    parser.add_argument("--drop", action="append", default=[], help="a column to leave out, such as an id (repeatable)")
    parser.add_argument("--rows", type=int, default=10_000, help="training rows")
    parser.add_argument("--generators", default=",".join(known), help="names, comma-separated")
    parser.add_argument("--epsilons", type=numbers, default=[], help="budgets of the private ones beside the default")
    parser.add_argument("--overfit", type=numbers, default=[], help="ratios of loss to which rvae is over-fitted")
    parser.add_argument("--no-embedder", action="store_true", help="leave out the embedded figures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("generators.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, nargs="+", help="files to report on; nothing is run")
    options = parser.parse_args()
    if options.report:
        sys.stdout.write(report_text(lines(options.report)))
        return
    options.generators = options.generators.split(",")
    unknown = [name for name in options.generators if name not in GENERATORS]
    if options.table is None or unknown:
        parser.error(f"unknown generator {unknown[0]}" if unknown else "name a table, or --report files")
    run(options)


if __name__ == "__main__":
    main()
