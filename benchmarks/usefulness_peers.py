"""Generate a table with a peer, or score one, inside the peer's environment: read and write Parquet
files.

:mod:`benchmarks.usefulness` starts this file and writes one task per line as JSON. The answer is
one line of JSON with CPU seconds, and a score or an error. One process handles all tasks, because
the peers take long to import.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from contextlib import redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any

RARE = "_RARE_"  # what MOSTLY AI writes in place of a rare category
OTHER = "other"  # what privacy-assets writes
Task = dict[str, Any]


def spent() -> float:
    """Return user and system seconds of this process and its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def reap(limit: float = 60) -> None:
    """Wait for child processes, because only the seconds of those are counted; MOSTLY AI trains in
    one.
    """
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            time.sleep(0.1)


def sdtypes(frame: Any) -> dict[str, str]:
    """Return SDMetrics' name of each column's type."""
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    types = {}
    for name in frame.columns:
        if is_datetime64_any_dtype(frame[name]):
            types[name] = "datetime"
        elif is_bool_dtype(frame[name]):
            types[name] = "boolean"
        elif is_numeric_dtype(frame[name]):
            types[name] = "numerical"
        else:
            types[name] = "categorical"
    return types


def sdv(train: Any, task: Task) -> Any:
    """Return a table of SDV's GaussianCopula, with the constraints of the task."""
    import numpy as np
    import torch
    from sdv.cag import FixedCombinations, Inequality
    from sdv.metadata import Metadata
    from sdv.single_table import GaussianCopulaSynthesizer

    np.random.seed(task["seed"])  # noqa: NPY002 - SDV draws from the global state
    torch.manual_seed(task["seed"])
    columns = {name: {"sdtype": kind} for name, kind in sdtypes(train).items()}
    metadata = Metadata.load_from_dict({"tables": {"table": {"columns": columns}}})
    synthesizer = GaussianCopulaSynthesizer(metadata)
    constraints = [
        Inequality(low_column_name=low, high_column_name=high) for low, high in task["orders"]
    ]
    constraints += [FixedCombinations(column_names=names) for names in task["combinations"]]
    if constraints:
        synthesizer.add_constraints(constraints)
    synthesizer.fit({"table": train})
    sample = synthesizer.sample(len(train))
    return sample["table"] if isinstance(sample, dict) else sample


def mostlyai(train: Any, task: Task) -> Any:
    """Return a table of MOSTLY AI's SDK in local mode, with its own settings but no report on the
    model.
    """
    from mostlyai.sdk import MostlyAI

    encodings = {
        "categorical": "TABULAR_CATEGORICAL",
        "boolean": "TABULAR_CATEGORICAL",
        "datetime": "TABULAR_DATETIME",
    }
    columns = []
    for name, kind in sdtypes(train).items():
        column = {"name": name}
        if kind in encodings:
            column["model_encoding_type"] = encodings[kind]
        columns.append(column)
    table = {
        "name": "table",
        "data": train,
        "columns": columns,
        "tabular_model_configuration": {"enable_model_report": False},
    }
    with TemporaryDirectory() as folder:
        client = MostlyAI(local=True, local_dir=folder, quiet=True)
        config = {"name": "table", "random_state": task["seed"], "tables": [table]}
        generator = client.train(config=config, start=True, wait=True, progress_bar=False)
        return client.probe(generator, size=len(train)).replace(RARE, OTHER)


def as_train(frame: Any, train: Any) -> Any:
    """Return the columns and types of ``train``; an integer column with missing cells becomes
    float.
    """
    import pandas as pd

    columns = {}
    for name, kind in sdtypes(train).items():
        values = frame[name]
        if kind == "datetime":
            columns[name] = pd.to_datetime(values)
        elif kind == "boolean":
            columns[name] = values.astype(str).str.lower().isin(["true", "1", "1.0"])
        elif kind == "numerical":
            numbers = pd.to_numeric(values).astype("float64")
            is_integer = train[name].dtype.kind in "iu" and not numbers.isna().any()
            columns[name] = numbers.round().astype("int64") if is_integer else numbers
        else:
            columns[name] = values.astype(object).where(values.notna(), None)
    return pd.DataFrame(columns)


def comparable(frame: Any, types: dict[str, str]) -> Any:
    """Return the frame with plain types: float64, text and dates, as SDMetrics requires."""
    columns = {}
    for name, kind in types.items():
        if kind == "numerical":
            columns[name] = frame[name].astype("float64")
        elif kind == "datetime":
            columns[name] = frame[name].astype("datetime64[ns]")
        else:
            columns[name] = frame[name].astype(object).where(frame[name].notna(), None)
    return type(frame)(columns)


def pair_trends(real: Any, synthetic: Any) -> float:
    """Return the score "Column Pair Trends" of SDMetrics' quality report."""
    from sdmetrics.reports.single_table import QualityReport

    types = sdtypes(real)
    metadata = {"columns": {name: {"sdtype": kind} for name, kind in types.items()}}
    report = QualityReport()
    report.generate(comparable(real, types), comparable(synthetic, types), metadata, verbose=False)
    properties = report.get_properties().set_index("Property")
    return float(properties.loc["Column Pair Trends", "Score"])


GENERATORS = {"sdv": sdv, "mostlyai": mostlyai}


def answer(task: Task) -> dict[str, Any]:
    """Run a task; importing, reading and writing are not counted."""
    import pandas as pd

    if task["tool"] == "pair_trends":
        return {
            "score": pair_trends(pd.read_parquet(task["real"]), pd.read_parquet(task["synthetic"]))
        }
    train = pd.read_parquet(task["train"])
    before = spent()
    synthetic = GENERATORS[task["tool"]](train, task)
    reap()
    seconds = spent() - before
    as_train(synthetic, train).to_parquet(task["synthetic"])
    return {"seconds": seconds}


def preload(tool: str) -> None:
    """Import the peer, so that no task includes it."""
    if tool == "mostlyai":
        import mostlyai.engine
        import mostlyai.sdk._local.server  # noqa: F401 - imported for later tasks
    else:
        import sdmetrics.reports.single_table  # noqa: F401 - imported for later tasks
        import sdv.cag
        import sdv.single_table  # noqa: F401 - imported for later tasks


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with redirect_stdout(sys.stderr):
        preload(sys.argv[1])
    for line in sys.stdin:
        with redirect_stdout(sys.stderr):
            try:
                reply = answer(json.loads(line))
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), flush=True)
