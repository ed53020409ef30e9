"""Usefulness of synthetic tables: relations, predictions, membership and costs, compared with SDV
and MOSTLY AI.

    python -m venv tables && tables/bin/pip install -r benchmarks/leak_tables.txt
    tables/bin/python -m benchmarks.usefulness_tables DIRECTORY
    python -m venv .sdv && .sdv/bin/pip install torch==2.13.0
    .sdv/bin/pip install -r benchmarks/sdv.txt
    python -m venv .mostlyai && .mostlyai/bin/pip install torch==2.13.0
    .mostlyai/bin/pip install --no-deps -r benchmarks/mostlyai.txt
    python -m benchmarks.usefulness DIRECTORY/*.parquet tests/data/adult.parquet --results \\
        usefulness.jsonl
    python -m benchmarks.usefulness --report usefulness.jsonl

Each seed is another split by person: train has 2,500 people, the held-out rows belong to equally
many other people, or to all others if these are fewer. "Training rows" as a release show what no
generator can exceed, and the same rows after the threshold rule what ours cannot. Measured are:

- pair trends: score "Column Pair Trends" of SDMetrics' quality report, for the release and the
  held-out rows. For the release of training rows this compares real rows of different people. The
  lines also contain the score for the release and the training rows.
- broken orders: share of rows in which the first column exceeds the second, among rows with both
  values.
- broken combinations: share of rows whose combination no real row has, among rows with both values.
  Rows with "other" count as intact, and so do combinations of the real tables after the threshold
  rule.
- R2: gradient boosting trained on the release and tested on held-out real rows. It predicts the
  column from all others, or the days between two dates from all columns except the second date.
- membership: ``membership_inference.auc_classifier`` minus 0.5, with train and the held-out rows.
  Values below 0 are chance, and so are differences below 0.01, about two standard errors of a mean
  of three splits.
- CPU seconds: threshold rule, fit and sample, after a warm-up on other rows; fit and sample of
  peers. Imports are not counted, except in MOSTLY AI, which starts processes of its own for
  training.

``--no-deps``, because torchvision and torchaudio are not needed, and other builds of them do not
run with this torch. Our generators get real tables after the threshold rule, as in a pipeline.
Peers get the rows as they are. All get the same declarations: which columns of digits are
categories. SDV with constraints also gets the relations. To compare two states of the package,
``--state`` adds a word to the names of our generators.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.copies import table_of
from benchmarks.leaks import WHO
from benchmarks.measured import cost
from benchmarks.study import append, lines, run_or_report, study_parser
from benchmarks.usefulness_report import report_text
from benchmarks.usefulness_tables import TABLES, StudyTable, Target
from privacy_assets.errors import PrivacyAssetsError
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import build_inputs, read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import MIN_HOLDERS
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.published_categories import OTHER
from privacy_assets.tables.schema import Frame
from privacy_assets.tables.table import Table, subject_codes_of
from privacy_assets.tables.threshold_rule import without_rare_values

N_PEOPLE = 2_500
WARM_PEOPLE = 300  # people of a table for the warm-up, in which kernels are compiled
TRAINING_ROWS = "training rows"
AFTER_RULE = "training rows, threshold rule"
OURS: Mapping[str, Mapping[str, Any]] = {
    "ours, default": {},
    "ours, leaf 50": {"min_samples_leaf": 50, "shrinkage": 30.0},
    "ours, leaf 20": {"min_samples_leaf": 20, "shrinkage": 30.0},
}
SDV = "SDV GaussianCopula"
CONSTRAINED = "SDV GaussianCopula, constraints"
MOSTLY = "MOSTLY AI"
PEERS: Mapping[str, str] = {SDV: "sdv", CONSTRAINED: "sdv", MOSTLY: "mostlyai"}  # tool by generator
GENERATORS = (TRAINING_ROWS, AFTER_RULE, *OURS, *PEERS)
THREADS = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
ROOT = Path(__file__).resolve().parents[1]
Key = tuple[str, str, int]  # table, generator and seed of a line


# --- Releases
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Real rows, with the column ``WHO`` of people.

    Attributes:
        train: Rows of ``N_PEOPLE`` people.
        holdout: Rows of other people.
        rows: Rows of all people, without ``WHO``.
        kinds: Declared kinds by column.
    """

    train: pd.DataFrame
    holdout: pd.DataFrame
    rows: pd.DataFrame
    kinds: Mapping[str, str]

    def plain(self, role: str) -> pd.DataFrame:
        """Return the rows of train or holdout without the people."""
        rows: pd.DataFrame = getattr(self, role)
        return rows.drop(columns=WHO)


@dataclass(frozen=True)
class Release:
    """Released rows.

    Attributes:
        rows: The release.
        inputs: Inputs of the metrics.
        real: Real tables after the threshold rule, whose combinations count as intact.
        seconds: CPU seconds, None for real rows.
    """

    rows: pd.DataFrame
    inputs: EvaluationInputs
    real: tuple[pd.DataFrame, ...] = ()
    seconds: float | None = None


def split_of(
    frame: pd.DataFrame, subject_codes: np.ndarray, table: StudyTable, n_people: int, seed: int
) -> Split:
    """Draw train and as many other people as it has, or all others."""
    n_all = int(subject_codes.max()) + 1
    position = np.random.default_rng([seed, 72]).permutation(n_all)[subject_codes]
    with_subject = frame.assign(**{WHO: subject_codes})
    train = with_subject[position < n_people].reset_index(drop=True)
    is_holdout = (position >= n_people) & (position < 2 * n_people)
    holdout = with_subject[is_holdout].reset_index(drop=True)
    return Split(train, holdout, frame, dict.fromkeys(table.codes, "categorical"))


def after_rule(split: Split) -> dict[str, Table]:
    """Return train and holdout in canonical form and without rare values."""
    frames: dict[str, Frame] = {"train": split.train, "holdout": split.holdout}
    names = {role: role for role in frames}
    return without_rare_values(
        real_tables(frames, names, Declared(subject=WHO, kinds=split.kinds)), MIN_HOLDERS
    )


def generate(
    split: Split, settings: Mapping[str, Any], seed: int
) -> tuple[dict[str, Table], Table]:
    """Return the real tables after the rule, and the table that a pipeline would release."""
    real = after_rule(split)
    train = real["train"]
    generator = build_generator("synthpop", settings)
    fitted = generator.fit(train, seed=seed, subject_codes=subject_codes_of([train]))
    sample = fitted.sample(len(train), seed=seed)
    return real, sample.without_rare(train.rules).with_schema(train.schema)


def own_release(
    real: Mapping[str, Table], synthetic: Table, seconds: float | None, seed: int
) -> Release:
    """Return a table with the schema of the real tables after the threshold rule."""
    published = tuple(table.without_subject().to_published_frame() for table in real.values())
    inputs = build_inputs(real, synthetic, seed=seed)
    return Release(synthetic.to_published_frame(), inputs, published, seconds)


def brought_release(split: Split, rows: pd.DataFrame, seconds: float | None, seed: int) -> Release:
    """Return a table that was generated elsewhere."""
    inputs = read_inputs(
        split.train,
        split.holdout,
        rows,
        declared=Declared(subject=WHO, kinds=split.kinds),
        seed=seed,
    )
    return Release(rows, inputs, (), seconds)


def warm_up(path: str) -> None:
    """Compile the kernels."""
    frame, subject_codes = table_of(path, None)
    split = split_of(frame, subject_codes, TABLES[Path(path).stem], WARM_PEOPLE, seed=1_000)
    generate(split, {}, seed=0)


# --- Peers
# --------------------------------------------------------------------------------------------------


class PeerError(Exception):
    """Failure of a peer."""


@dataclass
class Peers:
    """Processes in the peers' environments, started when they are needed.

    Attributes:
        environments: Environment by tool.
        folder: Folder for the files that processes exchange.
    """

    environments: Mapping[str, Path]
    folder: Path
    _processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def generate(
        self, name: str, split: Split, table: StudyTable, seed: int
    ) -> tuple[float, pd.DataFrame]:
        """Return CPU seconds and the table of a generator.

        Raises:
            PeerError: If the generator fails.
        """
        tool = PEERS[name]
        is_constrained = name == CONSTRAINED
        task: dict[str, Any] = {
            "tool": tool,
            "train": self._write("train", split.plain("train")),
            "synthetic": str(self.folder / "synthetic.parquet"),
            "seed": seed,
            "orders": table.orders if is_constrained else (),
            "combinations": joined(table.combinations) if is_constrained else (),
        }
        seconds = self._ask(tool, task)["seconds"]
        return seconds, pd.read_parquet(task["synthetic"])

    def pair_trends(self, real: pd.DataFrame, synthetic: pd.DataFrame) -> float:
        """Return the score of SDMetrics, which is installed with SDV."""
        task = {
            "tool": "pair_trends",
            "real": self._write("real", real),
            "synthetic": self._write("release", synthetic),
        }
        return self._ask("sdv", task)["score"]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            if process.stdin:
                process.stdin.close()
            process.wait()

    def _write(self, name: str, frame: pd.DataFrame) -> str:
        path = self.folder / f"{name}.parquet"
        frame.to_parquet(path, index=False)
        return str(path)

    def _ask(self, tool: str, task: Mapping[str, Any]) -> dict[str, Any]:
        if tool not in self._processes:
            self._processes[tool] = self._start(tool)
        process = self._processes[tool]
        if process.stdin is None or process.stdout is None:
            raise PeerError(f"{tool} has no pipes")
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        reply = process.stdout.readline()
        if not reply:
            del self._processes[tool]
            raise PeerError(f"{tool} ended")
        answer: dict[str, Any] = json.loads(reply)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _start(self, tool: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {f"{name}_NUM_THREADS": "1" for name in THREADS}
        python = self.environments[tool] / "bin" / "python"
        script = Path(__file__).with_name("usefulness_peers.py")
        command = [str(python), str(script), tool]
        pipe = subprocess.PIPE
        with (self.folder / f"{tool}.log").open("w") as log:
            return subprocess.Popen(
                command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=log
            )


def joined(pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Join pairs that share a column, because SDV fixes each column once."""
    groups: list[list[str]] = []
    for pair in pairs:
        joint = list(pair)
        for group in [group for group in groups if set(group) & set(pair)]:
            groups.remove(group)
            joint = [*group, *joint]
        groups.append(list(dict.fromkeys(joint)))
    return groups


# --- Measures
# --------------------------------------------------------------------------------------------------


def broken_order(rows: pd.DataFrame, low: str, high: str) -> float:
    """Return the share of broken rows among rows with both values; 0 if there are none."""
    complete = rows[[low, high]].dropna()
    if complete.empty:
        return 0.0
    return float((complete[low] > complete[high]).mean())


def broken_combination(
    rows: pd.DataFrame, real: Sequence[pd.DataFrame], code: str, name: str
) -> float:
    """Return the share of rows whose combination no real table has, among rows with both values."""
    columns = [code, name]
    existing = pd.concat([frame[columns].astype("string") for frame in real]).drop_duplicates()
    existing_pairs = set(existing.dropna().itertuples(index=False, name=None))
    complete = rows[columns].astype("string").dropna()
    if complete.empty:
        return 0.0
    has_other = (complete == OTHER).any(axis=1)
    exists = pd.Series(
        list(complete.itertuples(index=False, name=None)), index=complete.index
    ).isin(existing_pairs)
    return float((~has_other & ~exists).mean())


def relations(
    rows: pd.DataFrame, real: Sequence[pd.DataFrame], table: StudyTable
) -> dict[str, float]:
    """Return the share of broken rows by relation."""
    shares = {}
    for low, high in table.orders:
        shares[f"{low} > {high}"] = broken_order(rows, low, high)
    for code, name in table.combinations:
        shares[f"{code} → {name}"] = broken_combination(rows, real, code, name)
    return shares


def predictors(frames: Sequence[pd.DataFrame], target: Target) -> list[pd.DataFrame]:
    """Return the columns that predict, with the same codes of categories in all frames: float64."""
    stacked = pd.concat([frame.drop(columns=target.column) for frame in frames], ignore_index=True)
    columns: dict[str, Any] = {}
    for name in stacked.columns:
        values = stacked[name]
        if pd.api.types.is_numeric_dtype(values):
            columns[name] = values.astype("float64")
        elif pd.api.types.is_datetime64_any_dtype(values):
            columns[name] = (values - pd.Timestamp(0)) / pd.Timedelta(days=1)
        else:
            columns[name] = values.astype("category")
    encoded = pd.DataFrame(columns)
    ends = np.cumsum([len(frame) for frame in frames])[:-1]
    return [encoded.iloc[rows] for rows in np.split(np.arange(len(encoded)), ends)]


def outcome(frame: pd.DataFrame, target: Target) -> np.ndarray:
    """Return the number to predict: float64 (n,)."""
    values: Any = frame[target.column]
    if target.start is not None:
        values = (values - frame[target.start]) / pd.Timedelta(days=1)
    return values.to_numpy(dtype="float64", na_value=np.nan)


def r2(rows: pd.DataFrame, holdout: pd.DataFrame, target: Target) -> float:
    """Return R2 on the held-out rows of gradient boosting trained on ``rows``."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.metrics import r2_score

    trained_on, tested_on = predictors([rows, holdout], target)
    outcomes = outcome(rows, target)
    has_outcome = ~np.isnan(outcomes)
    model = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=0)
    model.fit(trained_on[has_outcome], outcomes[has_outcome])
    predicted = model.predict(tested_on)
    return float(r2_score(outcome(holdout, target), predicted))


def membership(inputs: EvaluationInputs) -> float:
    """Return the AUC of the membership attack minus that of chance."""
    results = run_metrics(inputs, {"membership_inference": build_metric("membership_inference")})
    return float(results["membership_inference"].estimate("auc_classifier").value) - 0.5


def measures(release: Release, split: Split, table: StudyTable, peers: Peers) -> dict[str, Any]:
    """Return everything that is measured on a release."""
    holdout = split.plain("holdout")
    measured: dict[str, Any] = {
        "pair_trends": peers.pair_trends(holdout, release.rows),
        "pair_trends_train": peers.pair_trends(split.plain("train"), release.rows),
        "broken": relations(release.rows, [split.rows, *release.real], table),
        "membership": membership(release.inputs),
        "seconds": release.seconds,
    }
    if table.target is not None:
        measured["r2"] = r2(release.rows, holdout, table.target)
    return measured


def released(name: str, split: Split, table: StudyTable, peers: Peers, seed: int) -> Release:
    """Return the release of a generator.

    Raises:
        PeerError: If a peer fails.
    """
    if name == TRAINING_ROWS:
        return brought_release(split, split.plain("train"), None, seed)
    if name == AFTER_RULE:
        real = after_rule(split)
        return own_release(real, real["train"].without_subject(), None, seed)
    if name in OURS:
        seconds, (real, synthetic) = cost(generate, split, OURS[name], seed)
        return own_release(real, synthetic, seconds, seed)
    seconds, rows = peers.generate(name, split, table, seed)
    return brought_release(split, rows, seconds, seed)


def label_of(name: str, state: str) -> str:
    """Return the name of a generator in the results, with the state of the package."""
    if state and name in OURS:
        return f"{name} ({state})"
    return name


def chosen_generators(table: StudyTable, names: Sequence[str]) -> list[str]:
    """Return the generators that can be run; SDV can be given constraints only if there are
    relations.
    """
    if table.orders or table.combinations:
        return list(names)
    return [name for name in names if name != CONSTRAINED]


def measure_table(
    path: str, seed: int, options: argparse.Namespace, peers: Peers, done: set[Key]
) -> None:
    """Measure the releases of a table and split that the results do not contain yet."""
    table_name = Path(path).stem
    table = TABLES[table_name]
    frame, subject_codes = table_of(path, None)
    split = split_of(frame, subject_codes, table, options.people, seed)
    for name in chosen_generators(table, options.generators):
        label = label_of(name, options.state)
        if (table_name, label, seed) in done:
            continue
        line = {"table": table_name, "generator": label, "seed": seed}
        try:
            release = released(name, split, table, peers, seed)
            line |= measures(release, split, table, peers)
        except (PeerError, PrivacyAssetsError) as error:
            line["error"] = str(error)
        append(options.results, line)
        sys.stderr.write(f"{table_name}, {label}, seed {seed}: {line.get('error', 'done')}\n")


def run(options: argparse.Namespace) -> None:
    """Measure the releases that the results do not contain yet."""
    measured = [line for line in lines(options.results) if "error" not in line]
    done = {(line["table"], line["generator"], line["seed"]) for line in measured}
    if set(options.generators) & set(OURS):
        warm_up(options.tables[0])
    with TemporaryDirectory() as folder:
        peers = Peers({"sdv": options.sdv, "mostlyai": options.mostlyai}, Path(folder))
        for seed in options.seeds:
            for path in options.tables:
                measure_table(path, seed, options, peers, done)
        peers.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "usefulness.jsonl")
    parser.add_argument("tables", nargs="*", help="Parquet files of usefulness_tables.TABLES")
    parser.add_argument("--people", type=int, default=N_PEOPLE, help="in train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="splits")
    parser.add_argument(
        "--generators", nargs="+", choices=GENERATORS, default=GENERATORS, help="these alone"
    )
    parser.add_argument(
        "--state", default="", help="word that is added to the names of our generators"
    )
    parser.add_argument(
        "--sdv", type=Path, default=ROOT / ".sdv", help="environment of SDV and SDMetrics"
    )
    parser.add_argument(
        "--mostlyai", type=Path, default=ROOT / ".mostlyai", help="environment of MOSTLY AI"
    )
    run_or_report(
        parser, arguments, run, lambda _, found: report_text(found, GENERATORS, tuple(PEERS))
    )


if __name__ == "__main__":
    main()
