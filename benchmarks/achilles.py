"""Repeat tables 2 and 3 and figures 1 to 4 of Meeus et al. (2023), "Achilles' Heels", on a given
table.

    python -m benchmarks.achilles adult.parquet --study tables --results achilles.jsonl
    python -m benchmarks.achilles uk_census.parquet --drop "Person ID" --as-text --auxiliary \\
        30000 --test 15000 \\
        --study tables --results achilles.jsonl
    python -m benchmarks.achilles --report achilles.jsonl --images benchmarks/results

``tables``: AUC of the query attack on 40 random records and on 10 records of each other selection,
for SynthPop (leaves of 5 rows) and BayNet, with box plots (figure 1) and the advantage of the
selection by distance in percentage points; ``--attack attention`` gives table 3 and figure 2.
``neighbors`` and ``distances``: records selected with other k and other distances (figure 3).
``epsilon``: PrivBayes, 10 records per selection (figure 4). Rows with "?" are dropped. Each record
is attacked once, even if several selections contain it, and adds one line to the results. The
report compares the cost of a record at the paper's scale with the authors' program.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.images import write_image
from privacy_assets.generators import build_generator
from privacy_assets.metrics.vulnerability import Selector, select_records, vulnerability
from privacy_assets.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    canvas,
    intervals_svg,
    nice_ticks,
    tenth,
    text_at,
)  # fmt: skip
from privacy_assets.studies.shadow_membership.audit import AuditConfig, run_audit
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.table import Table

SYNTHPOP, BAYNET = ("synthpop", {"min_samples_leaf": 5, "shrinkage": 0}), ("baynet", {})
PRIVBAYES = [("privbayes", {"epsilon": float(epsilon)}) for epsilon in (1, 10, 100)]
SELECTORS: dict[Selector, int] = {
    "distance": 10,
    "log_likelihood": 10,
    "rare_value": 10,
    "random": 40,
}
NEIGHBORS = (1, 2, 3, 5, 10, 20, 30, 40, 50)
DISTANCES = ("cosine", "minkowski1", "minkowski2", "minkowski3", "minkowski4")
RECORDS = 10
PUBLISHED = ("random", "rare_value", "log_likelihood", "distance")  # the order of
PAPER = {  # table 2 (queries) and table 3 (attention): mean and standard deviation over 10 records
    ("queries", "uk_census", "synthpop"): [
        (0.732, 0.046),
        (0.802, 0.044),
        (0.790, 0.041),
        (0.879, 0.021),
    ],
    ("queries", "uk_census", "baynet"): [
        (0.535, 0.055),
        (0.644, 0.086),
        (0.731, 0.090),
        (0.858, 0.040),
    ],
    ("queries", "adult", "synthpop"): [
        (0.613, 0.084),
        (0.699, 0.113),
        (0.742, 0.033),
        (0.804, 0.072),
    ],
    ("queries", "adult", "baynet"): [
        (0.618, 0.120),
        (0.704, 0.140),
        (0.787, 0.057),
        (0.810, 0.110),
    ],
    ("attention", "uk_census", "synthpop"): [
        (0.727, 0.038),
        (0.783, 0.030),
        (0.770, 0.046),
        (0.838, 0.041),
    ],
    ("attention", "uk_census", "baynet"): [
        (0.535, 0.035),
        (0.587, 0.079),
        (0.674, 0.085),
        (0.737, 0.118),
    ],
    ("attention", "adult", "synthpop"): [
        (0.609, 0.112),
        (0.691, 0.103),
        (0.765, 0.027),
        (0.797, 0.038),
    ],
    ("attention", "adult", "baynet"): [
        (0.594, 0.083),
        (0.638, 0.104),
        (0.745, 0.068),
        (0.763, 0.103),
    ],
}


PAPER_SCALE = {"shadows": 4_000, "tests": 200, "size": 1_000}
# CPU seconds of the authors' program for one record, by generator and table
REFERENCE_COST = (4_500, 15_300)
FIGURES = {
    "neighbors": "neighbors k",
    "distances": "distance",
    "epsilon": "epsilon of PrivBayes",
}  # varied parameters
# selections of earlier work, with which the paper compares its own
EARLIER = ("rare_value", "log_likelihood")
PAPER_POINTS = {"queries": 7.2}  # sections 1 and 6.1: mean advantage over the better one of them


@dataclass(frozen=True, eq=False)
class World:
    """Table and ``scale`` (settings of AuditConfig) of the attacks."""

    name: str
    coding: MatrixCoding
    cells: np.ndarray
    scale: Mapping[str, int]
    seed: int

    def select(self, records: int, by: Selector = "distance", **how: Any) -> list[int]:
        """Return the ids of selected records; ``how`` is passed to their vulnerability."""
        scores, rng = (
            vulnerability(self.cells, self.coding, **how),
            np.random.default_rng(self.seed),
        )
        return select_records(
            self.cells, self.coding, scores, by=by, records=records, rng=rng
        ).ids.tolist()


def read_world(
    path: Path, drop: list[str], as_text: bool, scale: Mapping[str, int], seed: int
) -> World:
    """Read the table without rows that contain "?" and without the dropped columns."""
    frame = pd.read_parquet(path).drop(columns=drop)
    frame = frame[~(frame.astype(str) == "?").any(axis=1)].reset_index(drop=True)
    frame = "=" + frame.astype(str) if as_text else frame
    table = Table.read(frame, where=str(path))
    coding = MatrixCoding.fit([table], table.schema)
    return World(path.stem, coding, coding.code(table), scale, seed)


def selections(world: World, study: str) -> dict[str, list[int]]:
    """Return the records by selection."""
    if study == "neighbors":
        return {f"k = {k}": world.select(records=RECORDS, n_neighbors=k) for k in NEIGHBORS}
    if study == "distances":
        return {
            distance: world.select(records=RECORDS, distance=distance) for distance in DISTANCES
        }
    most = RECORDS if study == "epsilon" else max(SELECTORS.values())
    return {by: world.select(min(records, most), by) for by, records in SELECTORS.items()}


def audit_line(
    world: World, name: str, settings: Mapping[str, Any], attack: str, record: int
) -> dict[str, Any]:
    """Attack one record."""
    plan = AuditConfig(build_generator(name, settings), ids=(record,), attack=attack, **world.scale)  # type: ignore[arg-type]
    found = run_audit(world.cells, world.coding, plan, seed=world.seed).to_json()["records"][0]
    return {key: value for key, value in found.items() if key not in ("labels", "scores")}


def run(world: World, study: str, generators: Iterable[str], attack: str, path: Path) -> None:
    """Attack the records that ``path`` does not contain yet and append their lines."""
    known = {"tables": [SYNTHPOP, BAYNET], "epsilon": PRIVBAYES}.get(study, [SYNTHPOP])
    chosen = [(name, settings) for name, settings in known if name in generators]
    found = selections(world, study)
    held = {key_of(line) for line in lines([path]) if "auc" in line}
    said = [line for line in lines([path]) if "selected" in line]
    with path.open("a") as file:
        entry = {
            "table": world.name,
            "study": study,
            "selected": found,
            "records": world.cells.shape[1],
        }
        if entry not in said:
            file.write(json.dumps(entry) + "\n")
        wanted = [
            (*generator, record)
            for generator in chosen
            for record in dict.fromkeys(sum(found.values(), []))
        ]
        for done, (name, settings, record) in enumerate(wanted, start=1):
            scale = {
                key: world.scale[key] for key in PAPER_SCALE if world.scale[key] != PAPER_SCALE[key]
            }
            head = {
                "table": world.name,
                "generator": name,
                "settings": settings,
                "attack": attack,
                "id": record,
            }
            head |= {"scale": scale} if scale else {}
            if key_of(head) in held:
                continue
            start = perf_counter()
            line = head | audit_line(world, name, settings, attack, record)
            line["wall_seconds"] = perf_counter() - start
            file.write(json.dumps(line) + "\n")
            file.flush()
            sys.stderr.write(
                f"{world.name}, {name}, {attack}: {done} of {len(wanted)},"
                f" {line['cpu_seconds']:.1f} CPU s\n"
            )


def key_of(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Identify the attack of a line."""
    settings = json.dumps(line["settings"] | line.get("scale", {}))
    return (line["table"], line["generator"], settings, line["attack"], str(line["id"]))


def lines(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Read the results of the files that exist."""
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else []:
            with suppress(json.JSONDecodeError):  # truncated by an interruption: recomputed
                yield json.loads(line)


def report(paths: list[Path], images: Path | None = None) -> None:
    """Print the tables and draw the figures into the folder ``images``."""
    every = list(lines(paths))
    audits = {key_of(line): line for line in every if "auc" in line}
    groups = sorted(
        {key[:4] for key in audits},
        key=lambda key: (*key[:2], json.loads(key[2]).get("epsilon", 0)),
    )
    studies = {(line["table"], line["study"]): line for line in every if "selected" in line}
    means: dict[tuple[str, ...], dict[str, float]] = {}
    for entry in studies.values():
        table, study = entry["table"], entry["study"]
        points: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for key in groups:
            if key[0] == table and fits(study, key[1]):
                print(f"\n## {study}: {table}, {key[1]} {key[2]}, {key[3]}\n")
                found = [
                    selected(name, ids, audits, key) for name, ids in entry["selected"].items()
                ]
                found = [group for group in found if group.records]
                print_group(found, key)
                points[key[3]] += [group.point(study, key) for group in found]
                if study == "tables":
                    means[key] = {group.name: group.mean for group in found}
                    if images is not None:
                        plot = boxes_svg(
                            {group.name.replace("_", " "): group.values for group in found}
                        )
                        write_image(plot, images / f"achilles_boxes_{table}_{key[1]}_{key[3]}.svg")
        for attack, rows in points.items() if images is not None and study in FIGURES else ():
            series, labels = (
                (("by",) if study == "epsilon" else ()),
                (FIGURES[study], "mean AUC, standard deviation"),
            )
            plot = intervals_svg(rows, x="x", y="auc", series=series, labels=labels, null=0.5)
            write_image(plot, images / f"achilles_{study}_{table}_{attack}.svg")
    print_points(means)
    print_costs(audits)


def points_of(means: Mapping[str, float]) -> list[float]:
    """Return how much higher the mean AUC of the selection by distance is, in percentage points.

    Args:
        means: Mean AUC by selection.

    Returns:
        The differences from random, rare value, log-likelihood, and the better one of the last two.
        NaN if a selection is missing.
    """
    own, others = (
        means.get("distance", math.nan),
        [means.get(name, math.nan) for name in PUBLISHED[:3]],
    )
    earlier = [means.get(name, math.nan) for name in EARLIER]
    best = math.nan if any(map(math.isnan, earlier)) else max(earlier)
    return [100 * (own - other) for other in (*others, best)]


def print_points(means: Mapping[tuple[str, ...], Mapping[str, float]]) -> None:
    """Print the advantage of the selection by distance on each table and generator, and the
    paper's.
    """
    groups = {key: points_of(found) for key, found in means.items()}
    groups = {key: found for key, found in groups.items() if not math.isnan(found[-1])}
    if not groups:
        return
    print("\n## Distance against the other selections, percentage points of the mean AUC\n")
    print(
        "| attack | table, generator | random | rare value | log-likelihood | better of the"
        " last two | paper |"
    )
    print("|---|---|---|---|---|---|---|")
    for attack in dict.fromkeys(key[3] for key in groups):
        own = {key: found for key, found in groups.items() if key[3] == attack}
        theirs = []
        for key, found in own.items():
            published = dict(
                zip(
                    PUBLISHED, (mean for mean, _ in PAPER.get((attack, *key[:2]), [])), strict=False
                )
            )
            theirs.append(points_of(published)[-1])
            print(
                f"| {attack} | {key[0]}, {key[1]} |"
                f" {' | '.join(f'{x:+.1f}' for x in (*found, theirs[-1]))} |"
            )
        mean = [*np.mean(list(own.values()), axis=0), np.mean(theirs)]
        print(f"| {attack} | mean | {' | '.join(f'{x:+.1f}' for x in mean)} |")


def boxes_svg(groups: Mapping[str, Sequence[float]]) -> str:
    """Draw a box plot of the AUCs of each group.

    Args:
        groups: AUCs by the name of the group, at least one each.

    Returns:
        A box from the lower to the upper quartile with a line at the median, whiskers to the
        farthest value within 1.5 box lengths, and a ring for each value beyond.
    """
    ticks = nice_ticks([0.5, 1.0, *(value for values in groups.values() for value in values)])
    low, high = min(ticks), max(ticks)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    grid = "".join(f"M{LEFT} {tenth(up(tick))}H{WIDTH - RIGHT}" for tick in ticks)
    parts = [f'<path class="grid" d="{grid}"/>']
    parts += [text_at(LEFT - 6, up(tick) + 4, f"{tick:.2g}", anchor="end") for tick in ticks]
    step = (WIDTH - LEFT - RIGHT) / len(groups)
    for place, (name, values) in enumerate(groups.items()):
        at = LEFT + step * (place + 0.5)
        first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
        reach = 1.5 * (third - first)
        inside = [value for value in values if first - reach <= value <= third + reach]
        left, right = tenth(at - 24), tenth(at + 24)
        box = f"M{left} {tenth(up(first))}H{right}V{tenth(up(third))}H{left}Z"
        whiskers = (
            f"M{tenth(at)} {tenth(up(min(inside)))}V{tenth(up(first))}M{tenth(at)}"
            f" {tenth(up(third))}"
        )
        whiskers += f"V{tenth(up(max(inside)))}M{left} {tenth(up(middle))}H{right}"
        title = f"<title>median {middle:.3f}, quartiles {first:.3f} and {third:.3f}</title>"
        rings = [
            f'<circle cx="{tenth(at)}" cy="{tenth(up(value))}" r="3" class="zero" fill="none"/>'
            for value in values
            if value not in inside
        ]
        parts.append(
            f'<g>{title}<path class="zero" fill="none" d="{box}{whiskers}"/>{"".join(rings)}</g>'
        )
        parts.append(text_at(at, HEIGHT - BOTTOM + 16, name))
    return canvas(
        [*parts, text_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "records selected by")],
        HEIGHT,
        "AUC",
    )


def fits(study: str, generator: str) -> bool:
    """Return True if the study uses the generator."""
    return generator in {"tables": ("synthpop", "baynet"), "epsilon": ("privbayes",)}.get(
        study, ("synthpop",)
    )


@dataclass(frozen=True)
class Selected:
    """AUCs (``values``) of the attacked ``records`` out of ``wanted`` ones; ``chance`` is the error
    of one AUC.
    """

    name: str
    wanted: int
    records: int
    mean: float
    sd: float
    chance: float
    seconds: float
    values: Sequence[float] = ()

    def point(self, study: str, key: tuple[str, ...]) -> dict[str, Any]:
        """Return the mean and its standard deviation for the figures."""
        x: Any = json.loads(key[2])["epsilon"] if study == "epsilon" else self.name
        x = int(x.rpartition(" ")[2]) if study == "neighbors" else x
        name = self.name.replace("_", " ")
        return {
            "x": x,
            "by": name,
            "auc": self.mean,
            "low": self.mean - self.sd,
            "high": self.mean + self.sd,
        }


def selected(
    name: str, ids: list[int], audits: Mapping[tuple[str, ...], Any], key: tuple[str, ...]
) -> Selected:
    """Collect the results of one selection."""
    held = [audits[*key, str(place)] for place in ids if (*key, str(place)) in audits]
    if not held:
        return Selected(name, len(ids), 0, math.nan, math.nan, math.nan, math.nan)
    values = [line["auc"]["value"] for line in held]
    chance = float(np.mean([line["auc"]["high"] - line["auc"]["low"] for line in held])) / (
        2 * 1.96
    )
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    seconds = float(np.mean([line["cpu_seconds"] for line in held]))
    return Selected(name, len(ids), len(held), float(np.mean(values)), sd, chance, seconds, values)


def print_group(found: list[Selected], key: tuple[str, ...]) -> None:
    """Print the mean AUC of each selection and the paper's, if it has one."""
    print(
        "| selected by | records | AUC | sd | CPU s a record | paper | difference in standard"
        " errors |"
    )
    print("|---|---|---|---|---|---|---|")
    published = dict(zip(PUBLISHED, PAPER.get((key[3], key[0], key[1]), []), strict=False))
    for group in found:
        theirs = published.get(group.name)
        comparison = " | "
        if theirs is not None:
            # few records can agree by chance
            ours = np.nanmax([group.sd, group.chance]) / math.sqrt(group.records)
            error = math.hypot(ours, theirs[1] / math.sqrt(RECORDS))
            comparison = (
                f"{theirs[0]:.3f} ± {theirs[1]:.3f} | {(group.mean - theirs[0]) / error:+.1f}"
            )
        print(
            f"| {group.name} | {group.records} of {group.wanted} | {group.mean:.3f} |"
            f" {group.sd:.3f} "
            f"| {group.seconds:.1f} | {comparison} |"
        )


def print_costs(audits: Mapping[tuple[str, ...], Any]) -> None:
    """Print the mean cost of a record and the cost of the authors' program, if known."""
    print("\n## Cost of a record\n")
    print(
        "| table | generator | attack | CPU s | wall s | records | authors' program, CPU s |"
        " ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    spent = defaultdict(list)
    for (table, generator, settings, attack, _), line in audits.items():
        spent[table, generator, f"{generator} {settings}", attack].append(
            (line["cpu_seconds"], line["wall_seconds"])
        )
    for (table, generator, label, attack), seconds in sorted(spent.items()):
        cpu, wall = np.mean(seconds, axis=0)
        at_scale = not set(PAPER_SCALE) & set(json.loads(label.removeprefix(generator)))
        theirs = (
            REFERENCE_COST
            if at_scale and attack == "queries" and generator in ("synthpop", "baynet")
            else None
        )
        paper = " | " if theirs is None else " to ".join(f"{s:,}" for s in theirs)
        paper += "" if theirs is None else f" | {theirs[0] / cpu:.0f} to {theirs[1] / cpu:.0f}"
        print(
            f"| {table} | {label} | {attack} | {cpu:.1f} | {wall:.1f} | {len(seconds)} | {paper} |"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a study, or report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    parser.add_argument(
        "--study", choices=("tables", "neighbors", "distances", "epsilon"), default="tables"
    )
    parser.add_argument("--generators", default="synthpop,baynet,privbayes")
    parser.add_argument("--attack", choices=("queries", "attention"), default="queries")
    parser.add_argument(
        "--auxiliary", type=int, default=10_000, help="rows that the attacker draws from"
    )
    parser.add_argument(
        "--test", type=int, default=5_000, help="rows that the challenger draws from"
    )
    parser.add_argument("--shadows", type=int, default=4_000, help="tables that teach the attack")
    parser.add_argument("--tests", type=int, default=200, help="tables that judge it")
    parser.add_argument("--size", type=int, default=1_000, help="rows of each table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--results", type=Path, default=Path("achilles.jsonl"), help="file to append to"
    )
    parser.add_argument(
        "--report", type=Path, nargs="+", help="report on these files without running"
    )
    parser.add_argument("--images", type=Path, help="a folder to draw figures 1 to 4 into")
    options = parser.parse_args(arguments)
    if options.report:
        for path in options.report:
            if not path.exists():
                parser.error(f"{path} is not there")
        report(options.report, options.images)
    elif options.table:
        scale = {"auxiliary_rows": options.auxiliary, "test_rows": options.test}
        scale |= {name: getattr(options, name) for name in ("shadows", "tests", "size")}
        world = read_world(options.table, options.drop, options.as_text, scale, options.seed)
        run(world, options.study, options.generators.split(","), options.attack, options.results)
        report([options.results], options.images)
    else:
        parser.error("name a table, or --report")


if __name__ == "__main__":
    main()
