"""Measure how well tests that know the construction of half-built rows detect them.

    python -m benchmarks.halves --results halves.jsonl DIRECTORY/*.parquet \\
        tests/data/uk_census.parquet demo
    python -m benchmarks.halves --report halves.jsonl

In a fifth of the release rows, half of the cells, drawn per row, come from a training row and the
others from a fresh row, as in :mod:`benchmarks.leaks`. If the halves of a row were independent, the
locally most powerful permutation test would sum over the halves of the columns the count of a real
row's half in the release, divided by its expected count. It is computed twice: with expectations
from the real tables and the release, as a gate could, and from the whole table, which no gate has.
A test that knew the probability of whole rows would detect more. With many columns, 300 halves are
drawn at random. Labels are permuted by person. Each table and release is one line and is measured
once."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.copies import table_of
from benchmarks.leaks import LEAKS, released, sizes
from benchmarks.power import HARMLESS_REFUSED
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.policies import default_policy
from privacy_assets.policy import Policy
from privacy_assets.stats.inference import mean_difference
from privacy_assets.tables.column import ranked
from privacy_assets.tables.table import Table

KINDS = ("fresh rows", "20 % half built")
MOST_HALVES = 300
PERMUTATIONS = 999
PARTIAL = Policy(
    tuple(limit for limit in default_policy().limits if limit.statistic == "copies.partial_excess")
)


def halves(columns: int, rng: np.random.Generator) -> np.ndarray:
    """Return all halves of the columns, or a random sample of them: int64 (halves, columns //
    2).
    """
    size = columns // 2
    if math.comb(columns, size) <= MOST_HALVES:
        return np.array(list(itertools.combinations(range(columns), size)))
    return np.array([rng.choice(columns, size, replace=False) for _ in range(MOST_HALVES)])


def half_weights(
    asked: np.ndarray, known: np.ndarray | None, release: np.ndarray, chosen: np.ndarray
) -> np.ndarray:
    """Return the mean weight (n,) of the halves of each row of ``asked`` in the ``release``.

    Expected counts come from the ``known`` rows alone or, without them, from ``asked`` and the
    release. All are int64 (F, rows) codes, equal where values are equal; ``asked`` rows are among
    ``known``; ``chosen`` has shape (halves, columns).
    """
    among = asked if known is None else known
    number, most = (
        asked.shape[1],
        1 + max(int(part.max(initial=0)) for part in (asked, among, release)),
    )
    # Sums of random words represent the values of a half; two collide with probability 2^-64.
    words = np.random.default_rng(0).integers(0, 2**63, (len(asked), most), dtype=np.uint64)
    every = np.take_along_axis(words, np.hstack([asked, among, release]), axis=1)
    total = np.zeros(number)
    for columns in chosen:
        cell = np.unique(every[columns].sum(axis=0), return_inverse=True)[1]
        count, real, hits = (
            np.bincount(part, minlength=cell.max() + 1)
            for part in np.split(cell, [number, number + among.shape[1]])
        )
        found = np.zeros(len(count))
        here = count > 0
        found[here] = hits[here] / (np.maximum(real + hits - 1, 1) if known is None else real)[here]
        total += found[cell[:number]]
    return total / len(chosen)


def coded(*tables: Sequence[Table]) -> list[np.ndarray]:
    """Return int64 codes (F, rows) of the stacked tables; missing values have their own code."""
    names = tables[0][0].schema.names
    flat = list(itertools.chain.from_iterable(tables))
    codes = (
        np.array([np.concatenate(ranked([table[name] for table in flat])[0]) for name in names]) + 1
    )
    return np.split(codes, np.cumsum([sum(map(len, each)) for each in tables])[:-1], axis=1)


def drawn(name: str, people: int, kind: str, seed: int) -> dict[str, Any]:
    """Return one-sided p-values of both tests on one release, and whether the gate rejects it by
    ``copies.partial_excess``.
    """
    frame, whose = table_of(name, None)
    inputs = released(frame, whose, people, kind, seed, LEAKS)
    subjects, rows = inputs.all_subjects, inputs.all_subjects.totals()
    whole = Table.read(frame.reset_index(drop=True), where=name)
    asked, release, known = coded(inputs.real, [inputs.synthetic], [whole])
    chosen = halves(len(asked), np.random.default_rng(seed))
    chances = []
    for frequencies in (None, known):
        values = subjects.totals(half_weights(asked, frequencies, release, chosen)) / rows
        found = mean_difference(
            values[:, None], subjects, PERMUTATIONS, np.random.default_rng([seed, 1])
        )
        chances.append(
            float((1 + (found.null[:, 0] >= found.observed[0]).sum()) / (1 + PERMUTATIONS))
        )
    return {
        "chances": chances,
        "fails": PARTIAL.judge({"copies": Copies().measure(inputs)}).status == "fail",
    }


def run(options: argparse.Namespace) -> None:
    """Measure the releases that the results do not contain yet."""
    held = {(line["table"], line["people"], line["kind"]) for line in lines(options.results)}
    for name in options.tables:
        every = int(table_of(name, None)[1].max()) + 1
        for people, kind in itertools.product(sizes(every, [options.people]), KINDS):
            record = {"table": Path(name).stem, "people": people, "kind": kind}
            if tuple(record.values()) in held:
                continue
            found = [drawn(name, people, kind, seed) for seed in range(options.draws)]
            append(options.results, {**record, "drawn": found})
            sys.stderr.write(f"{', '.join(map(str, record.values()))}\n")


def report_text(found: Sequence[dict[str, Any]]) -> str:
    """Return Markdown with the number of releases rejected by ``copies.partial_excess`` and by each
    test at its level.
    """
    head = (
        "table, people in train",
        "release",
        "`partial_excess` fails",
        "labels",
        "frequencies known",
    )
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for line in sorted(
        found, key=lambda line: (line["table"], line["people"], KINDS.index(line["kind"]))
    ):
        refused = np.array([one["chances"] for one in line["drawn"]]) <= HARMLESS_REFUSED
        shares = [np.mean([one["fails"] for one in line["drawn"]]), *refused.mean(axis=0)]
        shares_text = " | ".join(f"{100 * share:.0f} %" for share in shares)
        out.append(f"| {line['table']}, {line['people']:,} | {line['kind']} | {shares_text} |")
    draws = min((len(line["drawn"]) for line in found), default=0)
    return "\n".join(out) + f"\n\nAt least {draws} splits of each.\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "halves.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--people", type=int, default=2_000, help="in train; a third of all at most"
    )
    parser.add_argument(
        "--draws", type=int, default=40, help="splits and releases of each table and kind"
    )
    run_or_report(parser, arguments, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
