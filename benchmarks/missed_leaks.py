"""Measure leaks that earlier versions of the gate missed, on tables of choice and of confirmation.

    python -m benchmarks.missed_leaks --results after.jsonl --set choice DIRECTORY/*.parquet
    python -m benchmarks.missed_leaks --results after.jsonl --set confirmation DRAWN/*.parquet
    python -m benchmarks.missed_leaks --report before.jsonl after.jsonl

:mod:`benchmarks.leak_tables` writes the tables: those of the set ``drawn`` confirm, and the others
were used to choose. At most a third of the people are train; releases are made as in
:mod:`benchmarks.leaks`. The policy ``default`` judges all default metrics that have limits except
controls, without an encoder, and with a verbatim copy of train that shows which limits can fail.
``--columns`` draws this number of columns of each table by seed, for the study of narrow tables.
Each table and release is one line and is measured once. The report compares files of two versions.

The kind "by the oracle" measures what no gate can know: a forest is trained on the true list of
leaked people, cross-fitted by people, with the scores of ``copies``, distances and all cells. The
release counts as refused if members have significantly more of its largest scores than non-members,
at 99.5 % jointly over the same tails as ``copies.partial_excess``. A leak that it does not refuse
can hardly be found in these scores.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.copies import table_of
from benchmarks.leaks import (
    LEAKS,
    MEASURED,
    WHO,
    Leak,
    Rng,
    anywhere,
    built,
    changed,
    released,
    sizes,
    some,
)
from benchmarks.measured import cost
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.distances.nearest import nearest_rows
from privacy_assets.errors import InputError
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.metrics.copies import match_excess, partial_estimate, released_matches
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import default_policy, small_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import Policy
from privacy_assets.stats.inference import mean_difference
from privacy_assets.stats.intervals import clopper_pearson
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.encoding import EncodedTable

SIZES = (1_000, 2_000, 8_000)
N_ISOLATED = 15
N_FOLDS = 5
N_SAMPLED = 4_000  # people in the sample in which columns that identify people are looked for
N_LEVELS = 3  # levels of each column of a coarse table


def of_two_people(share: float, leaked: list[int] | None = None) -> Leak:
    """Build a share of the rows from two training rows each; half of the cells, drawn per row, come
    from the first. The positions of the training rows are added to ``leaked``.
    """

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        n_rows = round(share * len(train))
        people = rng.permutation(len(train))[: 2 * n_rows]
        first = train.iloc[people[:n_rows]].reset_index(drop=True)
        second = train.iloc[people[n_rows:]].reset_index(drop=True)
        if leaked is not None:
            leaked.extend(people.tolist())
        is_of_first = anywhere(lambda columns: columns // 2)(first.shape, rng)
        cells = {}
        for i, name in enumerate(first):
            cells[name] = np.where(is_of_first[:, i], first[name], second[name])
        return pd.DataFrame(cells).astype(first.dtypes.to_dict())

    return leak


def blanked(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Set a tenth of the cells to missing."""
    return rows.mask(rng.random(rows.shape) < 0.1)


def most_isolated(
    train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng
) -> pd.DataFrame:
    """Copy the rows that are farthest from all other people."""
    return train.iloc[np.argsort(-apart, kind="stable")[:N_ISOLATED]]


def all_but_a_fifth(n_columns: int) -> int:
    """Return the number of cells that a copy keeps if a fifth of them is drawn again."""
    return n_columns - max(1, round(n_columns / 5))


class Case(NamedTuple):
    """A kind of leak.

    Attributes:
        leak: Makes the leaked rows.
        size: Number of rows of the release, as a share of train.
        coarse: Whether the table is made coarse first.
    """

    leak: Leak
    size: float = 1.0
    coarse: bool = False


HALVES = "10 % of halves of two people"
ORACLE = "10 % of halves of two people, by the oracle"
CASES: Mapping[str, Case] = {
    HALVES: Case(of_two_people(0.1)),
    "10 % copies, a tenth of the cells blank": Case(changed(0.1, blanked)),
    "15 most isolated people": Case(most_isolated),
    "5 % copies, release of a tenth of the size": Case(some(0.005), size=0.1),
    "5 % copies, a fifth of the cells redrawn": Case(built(0.05, anywhere(all_but_a_fifth))),
    "3 % copies": Case(some(0.03)),
    "5 % copies": Case(some(0.05)),
    "20 % moved": Case(LEAKS["20 % moved"]),
    "1 person repeated": Case(LEAKS["1 person repeated"]),
    "a third of train, coarse table": Case(some(1 / 3), coarse=True),
}
NO_LEAK = ("fresh rows", "synthpop", "baynet")
SMALL_HARMLESS = "fresh rows, release of a tenth of the size"
COARSE_HARMLESS = {
    "fresh rows, coarse table": "fresh rows",
    "synthpop, coarse table": "synthpop",
}
ALL_KINDS = (*CASES, ORACLE, *NO_LEAK, SMALL_HARMLESS, *COARSE_HARMLESS)
FEW_HOLDERS = 2
MANY_HOLDERS = 10


def made_coarse(frame: pd.DataFrame) -> pd.DataFrame:
    """Round numbers to terciles, and replace all but the most common categories by the most common
    one.
    """
    coarse = {}
    for name, column in frame.items():
        if column.dtype.kind in "iuf" and column.nunique() > N_LEVELS:
            bins = pd.qcut(column, N_LEVELS, labels=False, duplicates="drop")
            coarse[name] = bins.astype("float64")
        elif column.nunique() > N_LEVELS:
            common = column.value_counts().index[:N_LEVELS]
            coarse[name] = column.where(column.isin(common) | column.isna(), common[0])
        else:
            coarse[name] = column
    return pd.DataFrame(coarse)


def without_identifiers(frame: pd.DataFrame, whose: np.ndarray) -> pd.DataFrame:
    """Drop the columns that identify people in a sample, which no release may contain."""
    in_sample = np.random.default_rng(0).permutation(whose.max() + 1)[whose] < N_SAMPLED
    sample = frame[in_sample].assign(**{WHO: whose[in_sample]})
    frames: dict[str, Any] = {"train": sample.reset_index(drop=True)}
    try:
        real_tables(frames, {"train": "train"}, Declared(subject=WHO))
    except InputError as error:
        proposed = re.search(r"drop: \[(.*?)\]", str(error))
        if proposed is None:
            raise
        return without_identifiers(frame.drop(columns=proposed[1].split(", ")), whose)
    return frame


def narrow(frame: pd.DataFrame, n_columns: int, seed: int) -> pd.DataFrame:
    """Draw columns of a table."""
    rng = np.random.default_rng([seed, n_columns, len(frame)])
    chosen = rng.choice(frame.shape[1], min(n_columns, frame.shape[1]), replace=False)
    return frame.iloc[:, np.sort(chosen)]


def inputs_of(
    frame: pd.DataFrame, whose: np.ndarray, people: int, kind: str, seed: int
) -> EvaluationInputs:
    """Draw a split and a release of a kind."""
    if kind == SMALL_HARMLESS:
        return released(frame, whose, people, kind, seed, {}, size=0.1)
    if kind in COARSE_HARMLESS:
        coarse = made_coarse(frame)
        return released(coarse, whose, people, COARSE_HARMLESS[kind], seed, {})
    if kind in NO_LEAK:
        return released(frame, whose, people, kind, seed, {})
    case = CASES[kind]
    if case.coarse:
        frame = made_coarse(frame)
    return released(frame, whose, people, kind, seed, {kind: case.leak}, size=case.size)


def given_out(inputs: EvaluationInputs) -> dict[str, float]:
    """Return the share of the rows of train that the release has, by the number of people who have
    this row, and the same share of the rows of holdout.
    """
    subjects = inputs.all_subjects
    row_ids = inputs.derived.stacked_row_ids(inputs.real_roles)
    codes = np.unique(row_ids, return_inverse=True)[1]
    pairs = np.unique(np.stack([codes, subjects.codes]), axis=1)
    n_holders = np.bincount(pairs[0])[codes]
    is_given = np.isin(row_ids, inputs.row_ids["synthetic"])
    n_train = len(inputs.train)
    n_holdout = len(inputs.holdout)
    roles = {"train": slice(n_train), "holdout": slice(n_train, n_train + n_holdout)}
    groups = {
        "few": n_holders <= FEW_HOLDERS,
        "some": (n_holders > FEW_HOLDERS) & (n_holders < MANY_HOLDERS),
        "many": n_holders >= MANY_HOLDERS,
    }
    shares = {}
    for role, rows in roles.items():
        for name, in_group in groups.items():
            shares[f"{role}, {name}"] = float((is_given & in_group)[rows].mean())
    return shares


def judged(inputs: EvaluationInputs) -> dict[str, Any]:
    """Return the status under both shipped policies, the limits that fail, and CPU seconds."""
    policy = Policy(default_policy(MEASURED).limits)
    metrics = {name: build_metric(name) for name in MEASURED}
    seconds, results = cost(lambda: run_metrics(inputs, metrics, policy.limits))
    verdict = policy.judge(results)
    small = Policy(tuple(limit for limit in small_policy().limits if limit.metric in MEASURED))
    failed = []
    undecided = []
    for outcome in verdict.outcomes:
        if outcome.status == "fail":
            failed.append(outcome.limit.key)
        elif outcome.status == "undecided":
            undecided.append(outcome.limit.key)
    return {
        "status": verdict.status,
        "small": small.judge(results).status,
        "failed": failed,
        "undecided": undecided,
        "seconds": seconds,
    }


def scores_of(inputs: EvaluationInputs) -> np.ndarray:
    """Return all scores and cells of the real rows, float64 (n, scores)."""
    matches = inputs.once(released_matches, None, 2)
    similar = matches.similar
    roles = inputs.real_roles
    real = EncodedTable.stack(inputs.derived.encoded_tables(roles))
    to_synthetic = nearest_rows(real, inputs.encoded("synthetic"), k=3).distances
    to_real = nearest_rows(real, real, k=3, exclude_self=True).distances
    parts = [
        matches.margins[:, None],
        similar.n_synthetic.T,
        similar.n_real.T,
        np.stack([similar.weights(changed)[0] for changed in range(3)], axis=1),
        to_synthetic,
        to_real,
        to_synthetic / np.maximum(to_real, 1e-9),
        real.dense,
    ]
    return np.nan_to_num(np.hstack(parts).astype(np.float64), posinf=1e6)


def judged_by_oracle(
    frame: pd.DataFrame, whose: np.ndarray, people: int, seed: int
) -> dict[str, Any]:
    """Return whether a forest that knows the leaked people of train refuses rows of two people."""
    from sklearn.ensemble import RandomForestClassifier

    leaked: list[int] = []
    leaks = {HALVES: of_two_people(0.1, leaked)}
    inputs = released(frame, whose, people, HALVES, seed, leaks)
    subjects = inputs.all_subjects
    is_leaked = np.zeros(len(subjects.codes), bool)
    is_leaked[leaked] = True
    scores = scores_of(inputs)
    folds = np.random.default_rng(0).permutation(len(subjects)) % N_FOLDS
    probabilities = np.empty(len(scores))
    for fold in range(N_FOLDS):
        in_fold = folds[subjects.codes] == fold
        forest = RandomForestClassifier(300, min_samples_leaf=5, n_jobs=1, random_state=fold)
        forest.fit(scores[~in_fold], is_leaked[~in_fold])
        probabilities[in_fold] = forest.predict_proba(scores[in_fold])[:, 1]
    difference = partial(
        mean_difference, subjects=subjects, n_permutations=1000, rng=np.random.default_rng(0)
    )
    estimate = partial_estimate(match_excess(probabilities, subjects, difference), subjects)
    status = "fail" if estimate.low > 0 else "pass"
    return {"status": status, "small": status}


def run(options: argparse.Namespace) -> None:
    """Measure the releases that the results do not contain yet."""
    measured = set()
    for line in lines(options.results):
        measured.add((line["table"], line["people"], line["columns"], line["kind"], line["seed"]))
    for seed in range(options.draws):
        for name in options.tables:
            whole, whose = table_of(name, None)
            whole = without_identifiers(whole, whose)
            for n_columns in options.columns:
                frame = whole if n_columns == 0 else narrow(whole, n_columns, seed)
                for people in sizes(int(whose.max()) + 1, options.people):
                    for kind in options.kinds:
                        key = (Path(name).stem, people, n_columns, kind, seed)
                        if key in measured:
                            continue
                        line = {
                            "set": options.set,
                            "table": Path(name).stem,
                            "people": people,
                            "columns": n_columns,
                            "kind": kind,
                            "seed": seed,
                            **measured_line(frame, whose, people, kind, seed),
                        }
                        append(options.results, line)
                        sys.stderr.write(f"{key}: {line['status']}\n")


def measured_line(
    frame: pd.DataFrame, whose: np.ndarray, people: int, kind: str, seed: int
) -> dict[str, Any]:
    """Measure one release."""
    if kind == ORACLE:
        return judged_by_oracle(frame, whose, people, seed)
    inputs = inputs_of(frame, whose, people, kind, seed)
    line = judged(inputs)
    if "coarse" in kind:
        line["given"] = given_out(inputs)
    return line


def rounded(people: int) -> int:
    """Return the number of people that was asked for: small tables have a third of their people."""
    return min(SIZES, key=lambda size: abs(np.log(people / size)))


def counted(found: Sequence[Mapping[str, Any]], policy: str) -> str:
    """Return refused, undecided and passed releases, with the 95 % interval of the refused ones."""
    if not found:
        return ""
    times = Counter(line[policy] for line in found)
    low, high = clopper_pearson(times["fail"], len(found))
    return (
        f"{times['fail']} / {times['undecided']} / {times['pass']} of {len(found)}"
        f" [{100 * low:.0f}, {100 * high:.0f} %]"
    )


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return a table for each set, number of people and number of columns: releases refused,
    undecided and passed, for each file.
    """
    by_file = [lines(path) for path in options.report]
    groups = dict.fromkeys(
        (line["set"], rounded(line["people"]), line["columns"]) for line in found
    )
    out = []
    for chosen, people, n_columns in sorted(groups):
        title = f"{chosen}, {people:,} people"
        if n_columns:
            title += f", {n_columns} columns"
        names = " | ".join(path.stem for path in options.report)
        out += ["", f"### {title}", "", f"| release | {names} |"]
        out.append("|" + "---|" * (len(by_file) + 1))
        for kind in ALL_KINDS:
            cells = []
            for file in by_file:
                own = []
                for line in file:
                    group = (line["set"], rounded(line["people"]), line["columns"])
                    if group == (chosen, people, n_columns) and line["kind"] == kind:
                        own.append(line)
                cells.append(counted(own, options.policy))
            if any(cells):
                out.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "missed_leaks.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument("--set", choices=["choice", "confirmation"], default="choice")
    parser.add_argument("--people", type=int, nargs="+", default=[2_000], help="in train")
    parser.add_argument(
        "--columns", type=int, nargs="+", default=[0], help="number of columns; 0: all"
    )
    parser.add_argument("--draws", type=int, default=1, help="splits of each table")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=ALL_KINDS,
        default=ALL_KINDS,
    )
    parser.add_argument(
        "--policy", choices=["status", "small"], default="status", help="verdict to report"
    )
    run_or_report(parser, arguments, run, report)


if __name__ == "__main__":
    main()
