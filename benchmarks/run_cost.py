"""CPU seconds of each step of a table's run, in this checkout and in others, one after the other in one run.

    python -m benchmarks.run_cost                       # this checkout alone
    python -m benchmarks.run_cost ../before ../other    # and these, with the libraries of this environment
    python -m benchmarks.run_cost --demo ../before      # the demo in place of Adult, with the same secret in each

The table is Adult split 80 to 20, 39,032 to 9,758 rows, with default metrics, policy and generator, and an embedder of
three epochs, as it was before it had a budget: what a score costs does not depend on how long it was trained. Each
checkout runs the whole table twice in a process of its own; the second run, without compilation, is reported. Fitting
the generator and training the embedder stand apart: the rest is what a change of the scores or of the preparation can
save.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAINED = ("generator", "embedder")
_RUN = """
import json, os, resource, sys
import dagster as dg
import privacy_assets as pa

def spent():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)

started, costs = {}, {}
def heard(self, event, **more):
    told = event.dagster_event
    if told is not None and told.step_key is not None:
        if told.event_type_value == "STEP_START":
            started[told.step_key] = spent()
        elif told.event_type_value in ("STEP_SUCCESS", "STEP_FAILURE"):
            costs[told.step_key.partition("__")[2]] = spent() - started.get(told.step_key, spent())
    return handle(self, event, **more)

handle = dg.DagsterInstance.handle_new_event
dg.DagsterInstance.handle_new_event = heard
if sys.argv[1] == "demo":
    from definitions import defs
    name = "patients"
else:
    from resources.local import RESOURCES
    name, defs = "adult", None
if defs is None:
    shares, embedder = {"train": 0.8, "holdout": 0.2}, {"max_epochs": 3}
    try:
        table = pa.build_privacy_assets("adult", source=sys.argv[1], shares=shares, embedder=embedder)
    except TypeError:
        attacks = {"embedder": embedder}
        spec = pa.TableSpec(name="adult", data={"source": sys.argv[1]}, split={"shares": shares}, attacks=attacks)
        table = pa.build_privacy_assets(spec)
    defs = dg.Definitions.merge(table, dg.Definitions(resources=RESOURCES))
with dg.DagsterInstance.get() as instance:
    for _ in range(2):
        costs.clear()
        defs.resolve_job_def(f"{name}_pipeline").execute_in_process(instance=instance, raise_on_error=False)
print(json.dumps(costs))
"""


def costs(checkout: Path, table: str) -> dict[str, float]:
    """CPU seconds by step of the second run of ``table``, a path or "demo", in ``checkout``."""
    with tempfile.TemporaryDirectory() as home:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PRIVACY_ASSETS_")},
            "DAGSTER_HOME": home,
            "PRIVACY_ASSETS_SECRET": "the same split in every checkout",
            "PYTHONPATH": str(checkout),
            "OMP_NUM_THREADS": "1",
        }
        (Path(home) / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
        command = [sys.executable, "-c", _RUN, table]
        done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, help="other checkouts, each measured like this one")
    parser.add_argument("--demo", action="store_true", help="measure the demo in place of Adult")
    options = parser.parse_args()
    checkouts = [ROOT, *(path.resolve() for path in options.checkouts)]
    table = "demo" if options.demo else str(ROOT / "tests" / "data" / "adult.parquet")
    found = [costs(checkout, table) for checkout in checkouts]
    print(f"| step | {' | '.join(path.name for path in checkouts)} |\n|---|{'---|' * len(found)}")
    for step in sorted({step for one in found for step in one}, key=lambda step: (step in TRAINED, step)):
        print(f"| `{step}` | {' | '.join(f'{one[step]:.1f}' if step in one else '-' for one in found)} |")
    sums = [sum(cost for step, cost in one.items() if step not in TRAINED) for one in found]
    print(f"| all but {' and '.join(TRAINED)} | {' | '.join(f'{total:.1f}' for total in sums)} |")


if __name__ == "__main__":
    main()
