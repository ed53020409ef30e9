"""Compare costs and results of each metric with a public tool, on the same data in one run.

    python -m benchmarks.peers --setup
    python -m benchmarks.peers adult.parquet

The first command creates an environment for the peers, anonymeter and SDMetrics (versions in
benchmarks/peers.txt). Every measurement is a process with one thread: user plus system seconds of
the call after a warm-up in which both sides compile, and peak memory. Reading and importing are not
counted. Markdown on stdout, progress on stderr. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import measured
from benchmarks.peers_tables import Peer, Work, answers, costs, growth
from benchmarks.releases import jittered
from privacy_assets.generators import build_generator
from privacy_assets.infra.progress import silent
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

ROOT = Path(__file__).parents[1]
SIZES, QUICK = (5_000, 10_000, 20_000, 39_032), (1_000, 2_000)
LARGE = 1_000_000
ATTACKS, FEW_ATTACKS = 2_000, 200
SWEEP = (3, 4, 6, 8, 10, 12)
COMPARED = 2_000  # rows for the answers of peers that compare all pairs
THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "POLARS")
RELEASES = {  # files used as holdout and synthetic
    "honest": ("holdout", "honest"),
    "fresh": ("holdout", "fresh"),
    "fresh, equal sizes": ("equal", "fresh"),
    "copy": ("holdout", "copy"),
}


def plan(columns: Sequence[str], attacks: int, sizes: Sequence[int]) -> list[Work]:
    """Return all tasks, ours and the peers'."""
    middle = len(columns) // 2
    pair = [list(columns[:middle]), list(columns[middle:])]
    first, second, last = sizes[0], sizes[:2][-1], sizes[-1]
    three, small = sorted({first, second, last}), min(COMPARED, first)
    return [
        Work(
            "singling out, 3 columns",
            *("singling_out", ["risk"], {"query_sizes": [3], "n_queries": attacks}),
            [
                Peer(
                    "anonymeter",
                    "singling_out",
                    {"columns": [3], "attacks": attacks},
                    three,
                    second,
                )
            ],
        ),
        Work(
            f"singling out, univariate and {', '.join(map(str, SWEEP))} columns",
            *(
                "singling_out",
                ["risk", "risk_univariate"],
                {"query_sizes": SWEEP, "n_queries": attacks},
            ),
            [
                Peer(
                    "anonymeter",
                    "singling_out",
                    {"columns": [1, *SWEEP], "attacks": attacks},
                    [last],
                    last,
                )
            ],
        ),
        Work(
            "linkability, one pair of column sets",
            *("linkability", ["risk"], {"column_sets": pair, "max_targets": attacks}),
            [
                Peer(
                    "anonymeter",
                    "linkability",
                    {"columns": pair, "attacks": attacks},
                    three,
                    second,
                )
            ],
        ),
        Work(
            "attribute inference, every column",
            *("attribute_inference", ["risk"], {"max_targets": attacks}),
            [Peer("anonymeter", "inference", {"attacks": attacks}, three, second)],
        ),
        Work(
            "dcr",
            *("dcr", ["privacy_score", "member_excess_any"], {}),
            [
                Peer(
                    "SDMetrics DCROverfittingProtection",
                    "overfitting",
                    {},
                    sorted({small, first}),
                    small,
                ),
                Peer(
                    "SDMetrics DCRBaselineProtection", "baseline", {}, sorted({small, first}), small
                ),
            ],
        ),
        Work("membership inference", "membership_inference", ["advantage", "advantage_any"], {}),
    ]


# --- data
# --------------------------------------------------------------------------------------------------


def made(frame: pd.DataFrame, schema: TableSchema, rows: int) -> dict[str, pd.DataFrame]:
    """Return the tables of one size by name; "fresh", "equal" and "copy" only if ``frame`` has
    enough rows.

    ``frame`` is shuffled. "honest" are equally many rows of sequential trees trained on "train",
    "copy" are rows of "train" drawn with replacement, "fresh" are real rows that are in no other
    table.
    """
    train = frame[:rows]
    learnt = Table.of(train, schema, where="train")
    trees = build_generator("synthpop", {}).fit(learnt, seed=0, device="cpu", progress=silent)
    tables = {
        "train": train,
        "holdout": frame[rows : rows + rows // 4],
        "honest": trees.sample(rows, seed=0).to_published_frame(),
    }
    if 3 * rows <= len(frame):
        tables["equal"], tables["fresh"] = frame[rows : 2 * rows], frame[2 * rows : 3 * rows]
        tables["copy"] = train.sample(rows, replace=True, random_state=0)
    return tables


def enlarged(
    tables: dict[str, pd.DataFrame], schema: TableSchema, rows: int
) -> dict[str, pd.DataFrame]:
    """Draw rows with replacement up to ``rows`` of train, with numbers shifted by 0.1 sd and
    rounded.
    """
    rng, wanted = np.random.default_rng(0), {"train": rows, "holdout": rows // 4, "honest": rows}
    drawn = {
        name: tables[name].sample(n, replace=True, random_state=rng) for name, n in wanted.items()
    }
    return {name: jittered(part, schema, rng) for name, part in drawn.items()}


def write(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    """Write one Parquet file per table."""
    folder.mkdir()
    for name, table in tables.items():
        table.reset_index(drop=True).to_parquet(folder / f"{name}.parquet")


# --- runs
# --------------------------------------------------------------------------------------------------


class Runs:
    """Measurements, each made once; ``done`` lists them for the JSON file."""

    def __init__(self, folder: Path, environment: Path | None, limit: float) -> None:
        self.folder, self.environment, self.limit = folder, environment, limit
        self.done: list[dict[str, Any]] = []

    def releases(self, rows: int) -> list[str]:
        """Return the releases with all their files at this size."""
        there = {path.stem for path in (self.folder / str(rows)).iterdir()}
        return [name for name, files in RELEASES.items() if set(files) <= there]

    def here(self, work: Work, rows: int, release: str = "honest") -> dict[str, Any]:
        """Return the metric's measurement."""
        settings = {"name": work.metric, "estimates": work.estimates, **work.settings}
        return self._once(sys.executable, work.name, "here", "metric", settings, rows, release)

    def peer(self, work: Work, peer: Peer, rows: int, release: str = "honest") -> dict[str, Any]:
        """Return the peer's measurement, or {"error": reason} if it fails or takes too long."""
        python = str(python_of(self.environment))
        return self._once(python, work.name, peer.name, peer.tool, peer.settings, rows, release)

    def _once(
        self,
        python: str,
        work: str,
        side: str,
        tool: str,
        settings: dict[str, Any],
        rows: int,
        release: str,
    ) -> dict[str, Any]:
        key = {"work": work, "side": side, "rows": rows, "release": release}
        for found in self.done:
            if all(found[name] == value for name, value in key.items()):
                return found
        files = dict(zip(measured.ROLES, ("train", *RELEASES[release]), strict=True))
        paths = {
            role: str(self.folder / str(rows) / f"{name}.parquet") for role, name in files.items()
        }
        found = key | self.run(
            python, side == "here", {"tool": tool, "settings": settings, "tables": paths}
        )
        said = found.get("error") or f"{found['cpu']:.2f} CPU s, {found['mb']:.0f} MB"
        print(f"{work}, {side}, {rows:,} rows, {release}: {said}", file=sys.stderr, flush=True)
        self.done.append(found)
        return found

    def run(self, python: str, ours: bool, task: dict[str, Any]) -> dict[str, Any]:
        """Start a new process with one thread; the cache of compiled code is empty at the start of
        each run.
        """
        given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        given |= {f"{name}_NUM_THREADS": "1" for name in THREADS} | {"POLARS_MAX_THREADS": "1"}
        given |= (
            {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(self.folder / "compiled")}
            if ours
            else {}
        )
        command = [python, measured.__file__, json.dumps(task)]
        try:
            done = subprocess.run(
                command,
                env=given,
                capture_output=True,
                text=True,
                timeout=None if ours else self.limit,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"over {self.limit:.0f} s"}
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        if ours:
            raise SystemExit(done.stderr)
        return {"error": (done.stderr.strip().splitlines() or ["killed"])[-1]}


def measure(runs: Runs, works: Sequence[Work], sizes: Sequence[int], large: int) -> None:
    """Measure all table cells, largest size first, so its first run of a kernel includes
    compilation.
    """
    for work in works:
        for rows in (*sizes[::-1], *([large] if large else [])):
            runs.here(work, rows)
        for peer in work.peers:
            for rows in peer.sizes[::-1]:
                runs.peer(work, peer, rows)
        for peer in work.peers:
            asked = runs.releases(peer.answers_at) if peer.answers_at < sizes[-1] else ["honest"]
            for release in asked:
                runs.here(work, peer.answers_at, release)
                runs.peer(work, peer, peer.answers_at, release)


# --- environment
# --------------------------------------------------------------------------------------------------


def python_of(environment: Path) -> Path:
    """Return the interpreter of an environment."""
    return environment / "bin" / "python"


def set_up(environment: Path, wanted: str = "peers.txt") -> None:
    """Create an environment with the versions in a requirements file of this folder."""
    if sys.version_info >= (3, 13):
        raise SystemExit(
            "anonymeter needs numpy 1, which ends at Python 3.12: run --setup with Python 3.11"
            " or 3.12."
        )
    venv.create(environment, with_pip=True, clear=True)
    versions = str(Path(__file__).with_name(wanted))
    subprocess.run(
        [python_of(environment), "-m", "pip", "install", "--quiet", "-r", versions], check=True
    )


def peer_versions(environment: Path) -> dict[str, str]:
    """Return the versions in the peers' environment; exit if it does not exist."""
    python = python_of(environment)
    found = {}
    if python.exists():
        done = subprocess.run(
            [python, measured.__file__], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
    if not {"anonymeter", "sdmetrics"} <= set(found):
        raise SystemExit(
            f"no peers in {environment}: `python -m benchmarks.peers --setup` installs them."
        )
    return found


def machine() -> dict[str, Any]:
    """Describe the machine of the measurements."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown"
    )
    return {
        "processor": model,
        "CPUs": os.cpu_count(),
        "load": os.getloadavg()[0],
        "here": listed(measured.versions()),
    }


def listed(versions: dict[str, str]) -> str:
    """List packages with their versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table", nargs="?", help="a Parquet file of at least 48,790 rows, such as UCI Adult"
    )
    parser.add_argument("--setup", action="store_true", help="make the peers' environment, and end")
    parser.add_argument(
        "--environment", type=Path, default=ROOT / ".peers", help="where it is (default: .peers)"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="rows of train, ascending"
    )
    parser.add_argument("--attacks", type=int, default=ATTACKS)
    parser.add_argument(
        "--work", action="append", default=[], help="only work that starts so (repeatable)"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK} rows and {FEW_ATTACKS} attacks, to try it"
    )
    parser.add_argument(
        "--large",
        type=int,
        nargs="?",
        const=LARGE,
        default=0,
        help="further rows, for our side only",
    )
    parser.add_argument(
        "--limit", type=float, default=900, help="seconds that a peer may take (default: 900)"
    )
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    options = parser.parse_args(arguments)
    if options.setup:
        set_up(options.environment)
        return
    if options.table is None:
        parser.error("name a table")
    theirs = peer_versions(options.environment)
    sizes, attacks = (
        (QUICK, FEW_ATTACKS) if options.quick else (sorted(set(options.sizes)), options.attacks)
    )
    frame = pd.read_parquet(options.table).sample(frac=1, random_state=0).reset_index(drop=True)
    if len(frame) < sizes[-1] + sizes[-1] // 4:
        parser.error(
            f"{sizes[-1]} rows of train and a quarter of that in the holdout are more than the"
            " table has"
        )
    schema, about = infer_schema(frame), machine() | {"peers": listed(theirs)}
    works = plan(list(frame.columns), attacks, sizes)
    works = [
        work for work in works if not options.work or work.name.startswith(tuple(options.work))
    ]
    if not works:
        parser.error(f"no work starts with {' or '.join(options.work)}")
    with TemporaryDirectory() as name:
        folder = Path(name)
        for rows in sorted({*sizes, *(peer.answers_at for work in works for peer in work.peers)}):
            tables = made(frame, schema, rows)
            write(tables, folder / str(rows))
        if options.large:
            write(enlarged(tables, schema, options.large), folder / str(options.large))
        runs = Runs(folder, options.environment, options.limit)
        try:
            measure(runs, works, sizes, options.large)
        finally:  # keep measurements made before an interruption
            about["load at the end"] = os.getloadavg()[0]
            if options.json:
                options.json.write_text(json.dumps({"about": about, "runs": runs.done}, indent=1))
    shown = sorted({run["rows"] for run in runs.done})
    parts = [
        "; ".join(f"{name}: {value}" for name, value in about.items()),
        costs(runs.done, works, sizes[-1]),
        growth(runs.done, works, shown),
    ]
    print("\n\n".join([*parts, answers(runs.done, works, list(RELEASES))]))


if __name__ == "__main__":
    main()
