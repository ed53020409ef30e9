"""Repeat figures 2 and 3 of Kuppa et al. (2021) on a given table: attack accuracy by size, with and
without the filter.

    python -m benchmarks.kuppa adult.parquet --results kuppa.jsonl
    python -m benchmarks.kuppa adult.parquet --study bagging --results kuppa.jsonl
    python -m benchmarks.kuppa adult.parquet --paper --train 1000 --auxiliary 1000 --results \\
        paper.jsonl
    python -m benchmarks.kuppa --report kuppa.jsonl --image before_after.svg

``table``: the attacker has a release, the generator and other people's rows (auxiliary). They make
their own release from these rows, learn the neighborhoods of its members, and name the members of
the given release. Accuracy is balanced (0.5: guessing). Non-members are the holdout, or people
outside all three tables of the owner. ``bagging``: Kuppa's attack on single records with bootstrap
samples of 1,000 auxiliary rows. Both run before and after the filter; after it, by an attacker who
does not know the filter and by one who applies it to their own releases. Utility: a classifier of
the last column (--target) is trained on the release and tested on people outside.

``--paper`` runs the generators of the paper with both filters, ``memorization`` and ``alpha_m``,
the paper's own.

Each case is one line of the results and is computed once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score

from benchmarks.images import write_image
from benchmarks.kuppa_bagging import RECORDS, SHADOWS, SIZE, TESTS, attack_record, vulnerable
from benchmarks.kuppa_worlds import (
    GENERATORS,
    PAPER,
    Screened,
    World,
    draw_world,
    fitted_to,
    generator_of,
)
from privacy_assets.distances.nearest import near, nearest_rows, typical_radius
from privacy_assets.generators.registry import generator_info
from privacy_assets.report.svg import shares_svg
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table

TRAIN, AUXILIARY = 4_000, 6_000
SIZES, AUXILIARIES = (1_000, 4_000, 16_000), (1_500, 3_000, 6_000)
BAGGED = (1_000, 4_000)  # synthetic rows in the bagging study
NEAREST = 3


@dataclass(frozen=True)
class Case:
    """Attacked generator; ``filter`` is "" without the filter ``method``, else "unknown" or "known"
    to the attacker.

    ``bagging`` draws samples of ``auxiliary`` rows: ``shadows`` for the attacker and ``tests`` for
    each of ``records``.
    """

    study: str
    generator: str
    synthetic: int
    auxiliary: int
    filter: str
    seed: int
    method: str = "memorization"
    train: int = 4_000
    shadows: int = SHADOWS
    tests: int = TESTS
    records: int = RECORDS


def cases(study: str, generators: list[str], seeds: int) -> Iterator[Case]:
    """Return all cases of a study."""
    for seed in range(seeds):
        for generator in generators:
            for known in ("", "unknown", "known"):
                if study == "bagging":
                    for size in BAGGED:
                        yield Case(study, generator, size, SIZE, known, seed, train=TRAIN)
                    continue
                for size in SIZES:
                    yield Case(study, generator, size, AUXILIARY, known, seed, train=TRAIN)
                for auxiliary in AUXILIARIES[:-1]:
                    yield Case(study, generator, TRAIN, auxiliary, known, seed, train=TRAIN)


def paper_cases(
    study: str,
    generators: list[str],
    seeds: int,
    sizes: Iterable[int],
    train: int,
    auxiliary: int,
    scale: Mapping[str, int],
) -> Iterator[Case]:
    """Return the cases of figures 2 and 3: each size before the filter, and after each, unknown to
    the attacker.
    """
    filters = (("memorization", ""), ("memorization", "unknown"), ("alpha_m", "unknown"))
    for seed in range(seeds):
        for generator in generators:
            for size in sizes:
                for method, known in filters:
                    yield Case(
                        study, generator, size, auxiliary, known, seed, method, train, **scale
                    )


# --------------------------------------------------------------------------------------------- one
# table


def released(world: World, case: Case, filtered: bool) -> tuple[Table, float]:
    """Return the synthetic rows and the share dropped by the filter."""
    fitted = fitted_to(case.generator, world.train, case.seed)
    if filtered:
        fitted = Screened(generator_of(case.generator), world.unseen, case.method).screen(
            world.train, fitted
        )
    per_row = case.synthetic / case.train
    rows = fitted.sample(round(per_row * len(world.train)), seed=case.seed)
    return rows, getattr(fitted, "dropped", 0.0)


def traits(
    people: EncodedTable, release: EncodedTable, others: EncodedTable, radius: float
) -> np.ndarray:
    """Return features of people, float64 (n, 8): distances to and counts near the release and known
    people.
    """
    to_release = nearest_rows(people, release, NEAREST).distances
    to_others = nearest_rows(people, others).distances
    ratio = to_release[:, :1] / np.maximum(to_others, 1e-9)
    counts = [
        near(people, rows, reach) for rows in (release, others) for reach in (radius, 4 * radius)
    ]
    return np.nan_to_num(np.column_stack([to_release, to_others, ratio, *counts[:3]]), posinf=1e9)


def attacked(world: World, case: Case) -> dict[str, float]:
    """Return balanced accuracy against the holdout and against people outside, utility, and the
    dropped share.
    """
    given, dropped = released(world, case, case.filter != "")
    own, rest = surrogate(world)
    made, _ = released(own, case, case.filter == "known")
    known = world.encoded(rest)
    radius = typical_radius(known, None, 0.02, "cpu")
    found: dict[str, float] = {"dropped": dropped, "utility": utility(given, world)}
    for side in ("holdout", "outside"):
        model = RandomForestClassifier(
            200, max_depth=8, min_samples_leaf=10, class_weight="balanced", random_state=case.seed
        )
        pairs = [(own.train, 1), (getattr(own, side), 0)]
        rows = [
            traits(world.encoded(frame), world.encoded(made), known, radius) for frame, _ in pairs
        ]
        model.fit(np.concatenate(rows), np.repeat([1, 0], [len(part) for part in rows]))
        rates = [
            (
                model.predict(traits(world.encoded(frame), world.encoded(given), known, radius))
                == label
            ).mean()
            for frame, label in ((world.train, 1), (getattr(world, side), 0))
        ]
        found[side] = float(np.mean(rates))
    return found


@lru_cache(maxsize=8)
def surrogate(world: World) -> tuple[World, Table]:
    """Build a world from the attacker's rows, keeping a quarter of them for comparison."""
    n = len(world.auxiliary)
    kept, train = n // 4, round(0.75 * n * 3 / 8)
    ends = np.cumsum([0, kept, train, train // 3, train // 3, train])
    parts = [world.auxiliary.take(slice(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return World(*parts[1:], world.auxiliary.take(slice(0)), world.schema), parts[0]


def utility(release: Table, world: World) -> float:
    """Return the AUC on outsiders (accuracy for over two classes) of a classifier trained on the
    release.
    """
    target = world.schema.names[-1]
    places = [at for name in world.schema.names[:-1] for at in world.encoder.positions[name]]
    encoded = [world.encoded(table).pick(places) for table in (release, world.outside)]
    cells = [np.column_stack([rows.numeric, rows.codes]) for rows in encoded]
    labels = [
        np.array(list(map(str, table[target].objects()))) for table in (release, world.outside)
    ]
    if len(np.unique(labels[0])) == 1:
        return 0.5  # constant guess
    model = HistGradientBoostingClassifier(random_state=0).fit(cells[0], labels[0])
    if len(model.classes_) == 2:
        return float(
            roc_auc_score(labels[1] == model.classes_[1], model.predict_proba(cells[1])[:, 1])
        )
    return float((model.predict(cells[1]) == labels[1]).mean())


# --------------------------------------------------------------------------------------------- all
# cases


def run(frame: pd.DataFrame, chosen: Iterable[Case], path: Path) -> None:
    """Compute the cases that ``path`` does not contain yet."""

    @lru_cache(maxsize=8)
    def world_of(train: int, auxiliary: int, seed: int) -> World:
        return draw_world(frame, train, auxiliary, seed)

    done = {case for case, _ in lines(path)}
    left = [case for case in chosen if case not in done]
    with path.open("a") as file:
        for place, case in enumerate(left, start=1):
            if case.study == "table":
                found = attacked(world_of(case.train, case.auxiliary, case.seed), case)
            else:
                world = world_of(case.train, max(AUXILIARY, case.auxiliary), case.seed)
                found = {}
                for at, record in enumerate(vulnerable(world, case.records)):
                    found[f"record {at}"] = attack_record(
                        world, record, case.generator, case.synthetic, case.filter, case.method,
                        case.auxiliary, case.shadows, case.tests,
                    )  # fmt: skip
            file.write(json.dumps({"case": asdict(case), "found": found}) + "\n")
            file.flush()
            sys.stderr.write(f"\r{case.study}: {place} of {len(left)}")
    sys.stderr.write("\n")


def lines(path: Path) -> Iterator[tuple[Case, dict[str, float]]]:
    """Read cases and their results."""
    for line in path.read_text().splitlines() if path.exists() else []:
        data = json.loads(line)
        yield Case(**data["case"]), data["found"]


def table_of(
    found: dict[tuple[object, ...], list[dict[str, float]]], head: list[str], columns: list[str]
) -> str:
    """Return a Markdown table of means, with deviations over seeds or records if there are
    several.
    """
    text = [f"| {' | '.join([*head, *columns])} |", "|" + "---|" * (len(head) + len(columns))]
    for key, rows in found.items():
        cells = []
        for column in columns:
            values = [row[column] for row in rows if column in row]
            spread = f" ({np.std(values):.3f})" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.3f}{spread}" if values else "-")
        text.append(f"| {' | '.join(map(str, key))} | {' | '.join(cells)} |")
    return "\n".join(text)


def report(path: Path, image: Path | None) -> None:
    """Print the summary; draw accuracies on the longest tables into ``image``."""
    words = {"": "before", "unknown": "after, filter not known", "known": "after, filter known"}

    def stage(case: Case) -> str:
        return words[case.filter].replace(
            "filter", "filter" if case.method == "memorization" else case.method
        )

    tables: dict[str, dict[tuple[object, ...], list[dict[str, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    bars: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case, found in lines(path):
        key = (case.generator, case.synthetic, case.auxiliary, stage(case))
        rows = (
            [found] if case.study == "table" else [{"accuracy": value} for value in found.values()]
        )
        tables[case.study][key] += rows
        shown = (case.study, case.synthetic, case.auxiliary, case.method)
        if shown == ("table", SIZES[-1], AUXILIARY, "memorization"):
            bars[case.generator][words[case.filter]].append(found["holdout"])
    head = ["generator", "synthetic rows", "auxiliary rows", "filter"]
    for study, found_all in tables.items():
        columns = ["holdout", "outside", "utility", "dropped"] if study == "table" else ["accuracy"]
        print(f"\n## {study}\n\n{table_of(found_all, head, columns)}")
    if image is not None:
        drawn = [
            {"generator": name, **{k: float(np.mean(v)) for k, v in sides.items()}}
            for name, sides in bars.items()
        ]
        write_image(shares_svg(drawn, "generator", {word: word for word in words.values()}), image)


def main() -> None:
    """Run a study, or report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table", nargs="?", type=Path, help="a Parquet file of at least 17,000 rows"
    )
    parser.add_argument(
        "--drop", action="append", default=[], help="a column to leave out (repeatable)"
    )
    parser.add_argument("--as-text", action="store_true", help="every column is a category")
    parser.add_argument("--target", help="the column to predict; the last one when not given")
    parser.add_argument("--study", choices=("table", "bagging"), default="table")
    parser.add_argument(
        "--paper", action="store_true", help="the paper's generators, with both filters"
    )
    parser.add_argument(
        "--size", type=int, action="append", help="synthetic rows, with --paper (repeatable)"
    )
    parser.add_argument(
        "--train", type=int, default=TRAIN, help="training rows of the owner, with --paper"
    )
    parser.add_argument(
        "--auxiliary",
        type=int,
        help="with --paper: rows of the attacker, or of each bootstrap sample",
    )
    parser.add_argument(
        "--shadows",
        type=int,
        default=SHADOWS,
        help="samples of the attacker, with --paper and bagging",
    )
    parser.add_argument(
        "--tests", type=int, default=TESTS, help="attacked samples, with --paper and bagging"
    )
    parser.add_argument(
        "--records", type=int, default=RECORDS, help="attacked records, with --paper and bagging"
    )
    available = {info.name for info in generator_info() if info.available}
    installed = [
        [label for label, (name, *_) in group.items() if name in available]
        for group in (GENERATORS, PAPER)
    ]
    parser.add_argument(
        "--generator",
        action="append",
        choices=[*installed[0], *installed[1]],
        help="repeatable; all when not given",
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--results", type=Path, default=Path("kuppa.jsonl"), help="file to append to"
    )
    parser.add_argument("--report", type=Path, help="report on this file without running")
    parser.add_argument(
        "--image", type=Path, help="where to draw accuracies before and after the filter"
    )
    options = parser.parse_args()
    if options.report:
        report(options.report, options.image)
    elif options.table:
        frame = pd.read_parquet(options.table).drop(columns=options.drop)
        frame = "=" + frame.astype(str) if options.as_text else frame
        target = options.target or frame.columns[-1]
        frame = frame[[*frame.columns.drop(target), target]]
        names = options.generator or installed[options.paper]
        bagging = options.study == "bagging"
        sizes = options.size or (BAGGED if bagging else SIZES)
        auxiliary = options.auxiliary or (SIZE if bagging else AUXILIARY)
        scale = (
            {name: getattr(options, name) for name in ("shadows", "tests", "records")}
            if bagging
            else {}
        )
        chosen = (
            paper_cases(options.study, names, options.seeds, sizes, options.train, auxiliary, scale)
            if options.paper
            else cases(options.study, names, options.seeds)
        )
        run(frame, chosen, options.results)
        report(options.results, options.image)
    else:
        parser.error("name a table, or --report")


if __name__ == "__main__":
    main()
