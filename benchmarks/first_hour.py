"""Measure the whole way from CSV files to a verdict on a fresh machine, for this project and its
peers.

    python -m benchmarks.battery --setup     # environments for the peers: .peers and .mostly
    python -m benchmarks.first_hour          # 15 minutes; writes results/first_hour.md
    python -m benchmarks.first_hour ../before    # and an earlier checkout

Each figure is the user plus system time of a whole command and its child processes: interpreter,
imports, reading, compilation and the verdict. "Cold" starts with an empty cache of compiled code;
"warm" repeats the command. Train and synthetic rows (from sequential trees) are 10,000 of Adult,
the holdout 3,000; the large table is all of Adult. The costs quoted in README and docs come from
the page written here or from another page in its folder.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from benchmarks.peers import ROOT, made, python_of
from privacy_assets.tables.inference import infer_schema

ROWS, HOLDOUT, LARGE = 10_000, 3_000, 39_032
FEW = 2_000  # rows for SDMetrics, which compares all pairs
PAGE = ROOT / "benchmarks" / "results" / "first_hour.md"
ROLES = ("train", "holdout", "synthetic")
_READ = """
import sys, warnings
import pandas as pd
warnings.filterwarnings("ignore")
train, holdout, synthetic = (pd.read_csv(path) for path in sys.argv[1:4])
"""
_PEERS = {
    "anonymeter": """
from anonymeter.evaluators import InferenceEvaluator, LinkabilityEvaluator, SinglingOutEvaluator
from pandas.api.types import is_numeric_dtype
attacks, columns = 2000, list(train.columns)
for mode in ("univariate", "multivariate"):
    SinglingOutEvaluator(train, synthetic, attacks, 3, control=holdout, seed=0).evaluate(mode=mode).risk()
halves = (columns[: len(columns) // 2], columns[len(columns) // 2 :])
LinkabilityEvaluator(train, synthetic, halves, attacks, control=holdout).evaluate(n_jobs=1).risk()
for secret in columns:
    known = [name for name in columns if name != secret]
    numeric = is_numeric_dtype(train[secret])
    InferenceEvaluator(train, synthetic, known, secret, numeric, attacks, holdout).evaluate(n_jobs=1).risk()
""",  # noqa: E501
    "sdmetrics": """
from pandas.api.types import is_numeric_dtype
from sdmetrics.single_table import DCROverfittingProtection
kinds = {name: "numerical" if is_numeric_dtype(train[name]) else "categorical" for name in train.columns}
metadata = {"columns": {name: {"sdtype": kind} for name, kind in kinds.items()}}
DCROverfittingProtection.compute(train, synthetic, holdout, metadata, None)
""",  # noqa: E501
    "mostlyai": """
from mostlyai import qa
qa.report(syn_tgt_data=synthetic, trn_tgt_data=train, hol_tgt_data=holdout, report_path=sys.argv[1] + ".html")
""",  # noqa: E501
}


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds of a command."""

    name: str
    cpu: float
    wall: float


def spent() -> float:
    """Return user and system seconds of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cost(name: str, *commands: Sequence[str], **environment: str) -> Cost:
    """Return CPU seconds of all commands, started concurrently, and wall seconds until the last one
    ends.
    """
    before, started = spent(), time.monotonic()
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "PYTHONPATH"))
    }
    processes = [
        subprocess.Popen(
            command,
            env=given | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    for process in processes:
        said = process.communicate()[1]
        if process.returncode not in (0, 1, 3):  # 1 and 3: the verdict is not "pass"
            raise SystemExit(said)
    found = Cost(name, spent() - before, time.monotonic() - started)
    print(f"{name}: {found.cpu:.1f} CPU s, {found.wall:.1f} s", file=sys.stderr, flush=True)
    return found


def tables(frame: pd.DataFrame, rows: int, holdout: int, folder: Path) -> dict[str, Path]:
    """Write CSV files of train, holdout and equally many synthetic rows as train."""
    found = made(frame, infer_schema(frame), rows)
    folder.mkdir()
    parts = {
        "train": found["train"],
        "holdout": frame[rows : rows + holdout],
        "synthetic": found["honest"],
    }
    for role, part in parts.items():
        part.to_csv(folder / f"{role}.csv", index=False)
    return {role: folder / f"{role}.csv" for role in parts}


def evaluate(paths: dict[str, Path]) -> list[str]:
    """Return the command that a new user types."""
    given = [word for role, path in paths.items() for word in (f"--{role}", str(path))]
    return [
        sys.executable,
        "-m",
        "privacy_assets",
        "evaluate",
        *given,
        "--html",
        f"{paths['train']}.html",
    ]


def peer(name: str, environment: Path, paths: dict[str, Path]) -> list[str]:
    """Return the peer's shortest program for the same files."""
    return [
        str(python_of(environment)),
        "-c",
        _READ + _PEERS[name],
        *(str(paths[role]) for role in ROLES),
    ]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers",
        type=Path,
        default=ROOT / ".peers",
        help="environment of anonymeter and SDMetrics",
    )
    parser.add_argument(
        "--mostly", type=Path, default=ROOT / ".mostly", help="environment of mostlyai-qa"
    )
    parser.add_argument("--output", type=Path, default=PAGE, help="where the page is written")
    parser.add_argument("before", nargs="?", type=Path, help="another checkout")
    options = parser.parse_args()
    frame = pd.read_parquet(ROOT / "tests" / "data" / "adult.parquet").sample(
        frac=1, random_state=0, ignore_index=True
    )
    with TemporaryDirectory() as folder:
        page = measured(frame, Path(folder), options.before, options.peers, options.mostly)
    options.output.write_text(page)


def measured(
    frame: pd.DataFrame, folder: Path, before: Path | None, peers: Path, mostly: Path
) -> str:
    """Run all commands in sequence and return the page."""
    ours = of(ROOT, folder / "compiled")
    paths = tables(frame, ROWS, HOLDOUT, folder / "10k")
    few = tables(frame, FEW, FEW // 4, folder / "2k")
    large = tables(frame, LARGE, len(frame) - LARGE, folder / "39k")
    demo = [sys.executable, "-m", "privacy_assets", "demo"]
    fresh = of(ROOT, folder / "demo")
    found = [
        cold := cost("`evaluate`, cold", evaluate(paths), **ours),
        warm := cost("`evaluate`, warm", evaluate(paths), **ours),
        twice := cost("`evaluate`, warm, two at once", evaluate(paths), evaluate(paths), **ours),
        cost(f"`evaluate`, warm, {LARGE:,} rows", evaluate(large), **ours),
        cost("demo, cold", demo, DAGSTER_HOME=home(folder / "first"), **fresh),
        cost("demo, warm", demo, DAGSTER_HOME=home(folder / "second"), **fresh),
        cost("anonymeter's four attacks", peer("anonymeter", peers, paths)),
        pairs := cost(
            f"SDMetrics DCROverfittingProtection, {FEW:,} rows", peer("sdmetrics", peers, few)
        ),
        Cost(
            "the same, extrapolated",
            *(seconds * (ROWS / FEW) ** 2 for seconds in (pairs.cpu, pairs.wall)),
        ),
        cost("mostlyai-qa's report", peer("mostlyai", mostly, paths)),
    ]
    if before is not None:
        theirs = of(before, folder / "before")
        found += [
            cost("before: `evaluate`, cold", evaluate(paths), **theirs),
            cost(
                "before: demo, cold",
                demo,
                DAGSTER_HOME=home(folder / "third"),
                **of(before, folder / "before demo"),
            ),
            cost(
                "before: demo, warm",
                demo,
                DAGSTER_HOME=home(folder / "fourth"),
                **of(before, folder / "before demo"),
            ),
        ]
    rows = "\n".join(
        f"| {one.name} | {one.cpu:,.0f} | {one.wall:,.0f} | {one.cpu / cold.cpu:.2f} |"
        f" {one.cpu / warm.cpu:.2f} |"
        for one in found
    )
    return _PAGE.format(rows=rows, cores=len(os.sched_getaffinity(0)), twice=twice.wall / warm.wall)


def of(checkout: Path, compiled: Path) -> dict[str, str]:
    """Return the environment of a checkout, including its cache of compiled code."""
    return {
        "PYTHONPATH": str(checkout.resolve()),
        "PYTHONSAFEPATH": "1",
        "NUMBA_CACHE_DIR": str(compiled),
    }


def home(folder: Path) -> str:
    """Create a DAGSTER_HOME as `make demo` does."""
    folder.mkdir()
    (folder / "dagster.yaml").write_text((ROOT / "dagster.local.yaml").read_text())
    return str(folder)


_PAGE = """# From CSV files to a verdict

Written by `python -m benchmarks.first_hour`; its docstring describes the measurements. Peers use the environments of
`python -m benchmarks.battery --setup`. {cores} cores. Ratios compare CPU seconds with `evaluate` on the same rows, cold
and warm.

| command | CPU s | wall s | ratio to cold | ratio to warm |
|---|---|---|---|---|
{rows}

`evaluate` runs every default metric with embedder, controls and utility, and writes the page. anonymeter runs singling
out with 1 and 3 columns, linkability of two halves and inference of each column, 2,000 attacks each. SDMetrics compares
all pairs of rows, so its time is extrapolated quadratically. Two concurrent runs take {twice:.2f} times the wall time
of one.
"""  # noqa: E501


if __name__ == "__main__":
    main()
