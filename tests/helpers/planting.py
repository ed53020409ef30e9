"""Recognizable private values, a deployment that works with them, and a search through all of its
outputs.
"""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawing import PLANTED, plain, row_of
from standins import QUICK, resources, table_of, whole_steps

__all__ = [
    "PLANTED",
    "SPELLINGS",
    "World",
    "leaks",
    "plain",
    "private",
    "readable",
    "row_of",
    "traces",
]

SPELLINGS = {
    "pid": r"SUBJECT-41c9",
    "name": r"SECRET-7f3a",
    "plan": r"CATEGORY-9b21",
    "income": r"(?<![\d.])(987,?654(\.\d+)?(?!\d)|9\.8[78]\d*e\+?0*5)",
    "visits": r"(?<![\d.])(1,?234,?567,?89\d(?!\d)|1\.2[35]\d*e\+?0*9)",
    # ISO, written out, in other orders, and the time since 1970 in days, and in seconds down to
    # nanoseconds.
    "born": r"(?<!\d)19070304(?!\d)|1907([-/]|, ?)0?3([-/]|,"
    r" ?)0?4|0?[34][./]0?[34][./](19)?07|Mar\w*"
    r" 0?4,? 1907"
    r"|0?4 Mar\w* 1907|-1982793600(\d{3}){0,3}(?!\d)|-1\.98\d*e\+?(09|12|15|18)|-22949(?![\da-f])",
}


def traces(text: str) -> set[str]:
    """Return the columns whose planted value is in a text.

    Args:
        text: Text to search. Values encoded for HTML or URLs, or as base64, are found, too.
    """
    texts = {text, html.unescape(text), unquote(text)}
    for run in set(re.findall(r"[A-Za-z0-9+/_-]{16,}", text)):
        texts.add(_decoded(run))
    columns = set()
    for name, spelling in SPELLINGS.items():
        if any(re.search(spelling, decoded, re.I) for decoded in texts):
            columns.add(name)
    return columns


def _decoded(run: str) -> str:
    """Decode a run of base64 characters, also of the URL alphabet or with its padding missing."""
    is_one_too_long = len(run) % 4 == 1
    encoded = run[: len(run) - is_one_too_long].replace("-", "+").replace("_", "/")
    padding = "=" * (-len(encoded) % 4)
    return base64.b64decode(encoded + padding).decode("latin-1")


def private(subjects: int = 400, seed: int = 0) -> pd.DataFrame:
    """Return two rows per person with every kind of column; one person in ten has only planted
    values.

    Args:
        subjects: Number of people.
        seed: Seed of the other values.
    """
    rng = np.random.default_rng(seed)
    n = 2 * subjects
    frame = pd.DataFrame(
        {
            "pid": [f"p{i // 2}" for i in range(n)],
            "name": rng.choice([f"n{i}" for i in range(40)], n),
            "plan": pd.Series(rng.choice(["a", "b", "c"], n)),
            "income": rng.gamma(2, 1000, n).round(2),
            "visits": rng.integers(0, 60, n),
            "born": pd.Timestamp("1950-01-01")
            + pd.to_timedelta(rng.integers(0, 9000, n), unit="D"),
            "member": rng.random(n) < 0.4,
        }
    )
    rows = np.arange(n) // 2 % 10 == 0
    frame.loc[rows, "pid"] = PLANTED["pid"] + frame["pid"]
    for name in list(PLANTED)[1:]:
        frame.loc[rows, name] = PLANTED[name]
    return frame.assign(plan=frame["plan"].astype("category"))


class World:
    """One deployment, and all output that it has given so far."""

    def __init__(
        self,
        folder: Path,
        instance: dg.DagsterInstance,
        generator: Any,
        capture: Any,
        log: pytest.LogCaptureFixture,
    ) -> None:
        self.folder = folder
        self.instance = instance
        self.generator = generator
        self.capture = capture
        self.log = log
        self.said: list[str] = []
        self.data = folder / "rows"
        self.data.mkdir(parents=True)
        private().to_parquet(self.data / "people.parquet")
        self.defs = self.table()

    def table(self, *assets: Any, **changes: Any) -> dg.Definitions:
        """Define the table ``people``, which :meth:`run` then runs.

        Args:
            *assets: Further assets.
            **changes: Further settings of the table.
        """
        settings = {"subject": "pid", **QUICK, **changes}
        if "synthetic" not in changes:
            source = self.data / "people.parquet"
            settings = {"source": source, "generator": self.generator, **settings}
        table = table_of("people", **settings)
        defs = dg.Definitions.merge(table, dg.Definitions(assets=assets))
        self.defs = dg.Definitions.merge(defs, resources(self.folder))
        return self.defs

    def external(self, **frames: pd.DataFrame) -> dict[str, Path]:
        """Write tables that were generated elsewhere.

        Args:
            **frames: Rows of each role.

        Returns:
            The CSV file of each role.
        """
        for role, frame in frames.items():
            frame.to_csv(self.data / f"{role}.csv", index=False)
        return {role: self.data / f"{role}.csv" for role in frames}

    def stored(self, asset: str, ending: str) -> Path:
        """Return the only stored file of an asset with an ending.

        Args:
            asset: Name of the asset.
            ending: End of the file's name.
        """
        folder = self.folder / "storage" / "people" / asset
        files = list(folder.rglob(f"*{ending}"))
        assert len(files) == 1, files
        return files[0]

    def run(self, *only: str, partition: str | None = None, upstream: bool = False) -> str:
        """Run the pipeline, and return the texts of all failures.

        Args:
            *only: Names of the assets to materialize. Empty: all.
            partition: Key of the partition, or None.
            upstream: Also materialize the assets of other tables, with all checks.
        """
        asset_keys = [dg.AssetKey.from_user_string(f"people/{name}") for name in only]
        keys = whole_steps(asset_keys) or None
        if upstream:
            result = dg.materialize(
                [*self.defs.assets, *(self.defs.asset_checks or [])],
                resources=self.defs.resources,
                instance=self.instance,
                raise_on_error=False,
            )
        else:
            job = self.defs.resolve_job_def("people_pipeline")
            result = job.execute_in_process(
                instance=self.instance,
                raise_on_error=False,
                asset_selection=keys,
                partition_key=partition,
            )
        texts = []
        for event in result.all_events:
            if event.is_step_failure:
                failure = event.step_failure_data
                text = f"{event.message} {failure.error_display_string} {failure.user_failure_data}"
                texts.append(f"{event.step_key}: {text}")
        for check in result.get_asset_check_evaluations():
            if not check.passed:
                texts.append(f"{check.check_name} is red: {check.description}")
        return "\n".join(texts)

    def everything(self) -> dict[str, str]:
        """All output of the deployment by source. Stored private tables and models are not
        output.
        """
        captured = self.capture.readouterr()
        output = {
            "said": "\n".join(self.said),
            "logging": self.log.text,
            "stdout": captured.out,
            "stderr": captured.err,
        }
        for run in self.instance.get_runs():
            entries = self.instance.all_logs(run.run_id)
            lines = [f"{entry.to_json()}\n{entry}" for entry in entries]
            output[f"run {run.job_name} {run.run_id}"] = str(run) + "\n".join(lines)
        private_files = re.compile(r"storage/.*(table\.(bin|parquet)|/model-.*)$|private/|rows/")
        for file in self.folder.rglob("*"):
            name = file.relative_to(self.folder).as_posix()
            if file.is_file() and not private_files.match(name):
                output[name] = readable(file)
            output[f"name {name}"] = name
        return output


def readable(file: Path) -> str:
    """Return the content of a file as text.

    Args:
        file: Any file. Of Parquet files, also categories that no row has, and metadata.
    """
    if file.suffix != ".parquet":
        return file.read_bytes().decode("latin-1")
    table = pq.read_table(file)
    categories = [
        list(column.chunk(0).dictionary)
        for column in table.columns
        if pa.types.is_dictionary(column.type)
    ]
    return f"{table.to_pandas().to_csv()} {categories} {table.schema.metadata}"


def leaks(world: World) -> dict[str, set[str]]:
    """The planted values in each output that has any."""
    columns = {}
    for where, text in world.everything().items():
        names = traces(text)
        if names:
            columns[where] = names
    return columns
