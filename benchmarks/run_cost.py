"""Measure the CPU seconds of each step of a table's run, in this checkout and in others, in
sequence.

    python -m benchmarks.run_cost                       # this checkout alone python -m
    benchmarks.run_cost ../before ../other    # and these, with the libraries used here python -m
    benchmarks.run_cost --demo ../before      # the demo instead of Adult, with one split key python
    -m benchmarks.run_cost --metrics             # each metric alone, 10,000 to 3,000 rows python -m
    benchmarks.run_cost --routes              # one process, one for each step, Airflow

The table is Adult split 80 to 20, 39,032 to 9,758 rows, with default metrics, policy and generator,
and an embedder of three epochs (the cost of a score does not depend on the length of training).
Each checkout runs the whole table twice in its own process; the second run, without compilation, is
reported. Fitting the generator and training the embedder are listed separately. With ``--metrics``
the default metrics run without an encoder in one process, several times after compilation; the last
line states the cost added by ``copies`` and ``membership_inference.outlier_matches``.

With ``--routes`` whole commands are measured with all of their processes, from start to release.
Fill the caches of compiled functions first, for example by a run of the demo. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measured import cost
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.membership_inference.outliers import outlier_matches
from privacy_assets.metrics.membership_inference.scores import build_population, with_reference
from privacy_assets.metrics.registry import METRICS, build_metric, default_metrics

SIZES = (10_000, 3_000, 10_000)  # rows of train, holdout and release
RUNS = 2
MATCHES = "membership_inference.outlier_matches"
ROOT = Path(__file__).parents[1]
TRAINED = ("generator", "embedder")
_RUN = """
import json, os, resource, sys
import dagster as dg
import privacy_assets as pa

def spent():
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)

started, costs = {}, {}
def record(self, event, **more):
    change = event.dagster_event
    if change is not None and change.step_key is not None:
        if change.event_type_value == "STEP_START":
            started[change.step_key] = spent()
        elif change.event_type_value in ("STEP_SUCCESS", "STEP_FAILURE"):
            costs[change.step_key.partition("__")[2]] = spent() - started.get(change.step_key, spent())
    return handle(self, event, **more)

handle = dg.DagsterInstance.handle_new_event
dg.DagsterInstance.handle_new_event = record
if sys.argv[1] == "demo":
    from definitions import defs
    name = "patients"
else:
    from resources.local import RESOURCES
    name, defs = "adult", None
if defs is None:
    shares, embedder = {"train": 0.8, "holdout": 0.2}, {"max_epochs": 3}
    settings = {"split": shares, "evaluation": {"embedder": embedder}}
    if "attacks" in pa.TableSpec.model_fields:  # a checkout with the earlier names
        settings = {"split": {"shares": shares}, "attacks": {"embedder": embedder}}
    spec = pa.TableSpec(name="adult", data={"source": sys.argv[1]}, **settings)
    defs = dg.Definitions.merge(pa.build_privacy_assets(spec), dg.Definitions(resources=RESOURCES))
with dg.DagsterInstance.get() as instance:
    for _ in range(2):
        costs.clear()
        defs.resolve_job_def(f"{name}_pipeline").execute_in_process(instance=instance, raise_on_error=False)
print(json.dumps(costs))
"""  # noqa: E501

# Arguments: a command. Processes that outlive their parent, such as a fork server, are adopted and
# waited for.
_SPENT = """
import ctypes, os, resource, subprocess, sys, time
PR_SET_CHILD_SUBREAPER = 36
if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
    sys.exit("prctl failed")
start = time.time()
with open("log", "w") as log:
    command = subprocess.Popen(sys.argv[1:], stdout=log, stderr=log)
    failed, wall = command.wait(), time.time() - start
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(failed, used.ru_utime + used.ru_stime, wall)
"""
_LOCATION = """
import dagster as dg
import privacy_assets as pa
from privacy_assets.dagster.demo import demo_table

defs = dg.Definitions.merge(
    demo_table(), dg.Definitions(resources=pa.resources(), executor=pa.frozen_config({executor}))
)
"""
_DAG = """
from airflow.sdk import DAG
from privacy_assets.airflow import privacy_gate

with DAG("patients", schedule=None, max_active_runs=1):
    privacy_gate("patients", source="demo", subject="person")
"""
_JOB = ("dagster", "job", "execute", "-f", "tables.py", "-j", "patients_pipeline")
_SPAWN = 'dg.multiprocess_executor, {"max_concurrent": 2, "start_method": {"spawn": {}}}'
ROUTES = {  # by name: contents of the file of definitions, and command
    "Dagster, one process": (_LOCATION.format(executor="dg.in_process_executor"), _JOB),
    "Dagster, a process per step": (
        _LOCATION.format(executor='dg.multiprocess_executor, {"max_concurrent": 2}'),
        _JOB,
    ),
    "Dagster, a process per step, `spawn`": (_LOCATION.format(executor=_SPAWN), _JOB),
    "Airflow, `airflow dags test`": (_DAG, ("airflow", "dags", "test", "patients")),
}


def route_costs(name: str) -> tuple[float, float]:
    """Return CPU and elapsed seconds of the demo on a route, from the start of the command to the
    release.
    """
    contents, command = ROUTES[name]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "tables.py").write_text(contents)
        (home / "dagster.yaml").write_text((ROOT / "dagster.local.yaml").read_text())
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("PRIVACY_ASSETS_")
            },
            "PRIVACY_ASSETS_SPLIT_KEY": "the same split on every route",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "DAGSTER_HOME": folder,
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": folder,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        }
        if command[0] == "airflow":
            environment["PRIVACY_ASSETS_RELEASES"] = str(home / "gate" / "releases")
            migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
            subprocess.run(migrate, cwd=home, env=environment, capture_output=True, check=True)
        run = [sys.executable, "-c", _SPENT, sys.executable, "-m", *command]
        done = subprocess.run(
            run, cwd=home, env=environment, stdout=subprocess.PIPE, check=True, text=True
        )
        failed, cpu, wall = map(float, done.stdout.split())
        if failed:
            raise SystemExit(f"{name}: {(home / 'log').read_text()[-2000:]}")
        return cpu, wall


def print_routes() -> None:
    """Measure each route, and print CPU and elapsed seconds with ratios to one process."""
    print(
        "| demo | CPU seconds | elapsed seconds | CPU to one process | elapsed to one process"
        " |\n|---|---|---|---|---|"
    )
    first = None
    for name in ROUTES:
        cpu, wall = found = route_costs(name)
        first = first or found
        ratios = f"{cpu / first[0]:.2f} | {wall / first[1]:.2f}"
        print(f"| {name} | {cpu:.1f} | {wall:.1f} | {ratios} |", flush=True)


def costs(checkout: Path, table: str) -> dict[str, float]:
    """Return CPU seconds by step of the second run of ``table``, a path or "demo", in
    ``checkout``.
    """
    with tempfile.TemporaryDirectory() as home:
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("PRIVACY_ASSETS_")
            },
            "DAGSTER_HOME": home,
            "PRIVACY_ASSETS_SPLIT_KEY": "the same split in every checkout",
            "PYTHONPATH": str(checkout),
            "OMP_NUM_THREADS": "1",
        }
        (Path(home) / "dagster.yaml").write_text((ROOT / "dagster.local.yaml").read_text())
        command = [sys.executable, "-c", _RUN, table]
        done = subprocess.run(
            command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True, text=True
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def metric_costs() -> dict[str, float]:
    """Return minimum CPU seconds of preparation, each default metric without encoder, and parts of
    metrics.
    """
    frame = pd.read_parquet(ROOT / "tests" / "data" / "adult.parquet")
    rows = np.split(
        np.random.default_rng(0).permutation(len(frame))[: sum(SIZES)], np.cumsum(SIZES)[:-1]
    )
    runs = [
        _metric_costs([frame.iloc[some].reset_index(drop=True) for some in rows])
        for _ in range(1 + RUNS)
    ]
    return {name: min(run[name] for run in runs[1:]) for name in runs[0]}


def _metric_costs(tables: Sequence[pd.DataFrame]) -> dict[str, float]:
    preparing, inputs = cost(read_inputs, *tables)
    encoding, _ = cost(lambda: ([inputs.encoded(role) for role in inputs.tables], inputs.row_ids))
    found = {"preparing": preparing + encoding}
    for name in default_metrics():
        if METRICS[name].required_inputs <= set(inputs.tables):
            found[name], _ = cost(build_metric(name).measure, inputs)
    population = build_population(inputs)
    found[MATCHES], _ = cost(lambda: outlier_matches(with_reference(inputs, population)))
    return found


def metrics_text(found: Mapping[str, float]) -> str:
    """Return Markdown."""
    total, new = sum(found.values()) - found[MATCHES], found["copies"] + found[MATCHES]
    rows = [f"| `{name}` | {seconds:.2f} |" for name, seconds in found.items()]
    summary = (
        f"`copies` and `{MATCHES}` add {new:.2f} to {total - new:.2f} CPU seconds:"
        f" {new / (total - new):.0%}"
    )
    return "\n".join(
        ["| part | CPU seconds |", "|---|---|", *rows, "", summary.replace("%", " %") + "."]
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkouts", nargs="*", type=Path, help="other checkouts, each measured like this one"
    )
    parser.add_argument("--demo", action="store_true", help="measure the demo instead of Adult")
    parser.add_argument(
        "--metrics", action="store_true", help="each default metric alone, in this checkout"
    )
    parser.add_argument(
        "--routes", action="store_true", help="the demo in one process, a process per step, Airflow"
    )
    options = parser.parse_args()
    if options.routes:
        print_routes()
        return
    if options.metrics:
        print(metrics_text(metric_costs()))
        return
    checkouts = [ROOT, *(path.resolve() for path in options.checkouts)]
    table = "demo" if options.demo else str(ROOT / "tests" / "data" / "adult.parquet")
    found = [costs(checkout, table) for checkout in checkouts]
    print(f"| step | {' | '.join(path.name for path in checkouts)} |\n|---|{'---|' * len(found)}")
    for step in sorted(
        {step for one in found for step in one}, key=lambda step: (step in TRAINED, step)
    ):
        print(
            f"| `{step}` | {' | '.join(f'{one[step]:.1f}' if step in one else '-' for one in found)} |"  # noqa: E501
        )
    sums = [sum(cost for step, cost in one.items() if step not in TRAINED) for one in found]
    print(f"| all but {' and '.join(TRAINED)} | {' | '.join(f'{total:.1f}' for total in sums)} |")


if __name__ == "__main__":
    main()
