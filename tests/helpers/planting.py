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
    """Columns whose planted value is in ``text`` in any encoding, including HTML, URL and
    base64.
    """
    forms = {text, html.unescape(text), unquote(text)}
    for run in set(re.findall(r"[A-Za-z0-9+/_-]{16,}", text)):
        whole = run[: len(run) - (len(run) % 4 == 1)].replace("-", "+").replace("_", "/")
        forms.add(base64.b64decode(whole + "=" * (-len(whole) % 4)).decode("latin-1"))
    return {
        name
        for name, spelling in SPELLINGS.items()
        if any(re.search(spelling, form, re.I) for form in forms)
    }


def private(subjects: int = 400, seed: int = 0) -> pd.DataFrame:
    """Two rows per person and every kind of column; one person in ten has only planted values."""
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
        place: Path,
        instance: dg.DagsterInstance,
        generator: Any,
        capture: Any,
        log: pytest.LogCaptureFixture,
    ) -> None:
        self.place, self.instance, self.generator, self.capture, self.log = (
            place,
            instance,
            generator,
            capture,
            log,
        )
        self.said: list[str] = []
        self.data = place / "rows"
        self.data.mkdir(parents=True)
        private().to_parquet(self.data / "people.parquet")
        self.defs = self.table()

    def table(self, *others: Any, **changes: Any) -> dg.Definitions:
        source = {"source": self.data / "people.parquet", "generator": self.generator}
        given = {**({} if "synthetic" in changes else source), "subject": "pid", **QUICK, **changes}
        made = dg.Definitions.merge(table_of("people", **given), dg.Definitions(assets=others))
        self.defs = dg.Definitions.merge(made, resources(self.place))
        return self.defs

    def external(self, **frames: pd.DataFrame) -> dict[str, Path]:
        for role, frame in frames.items():
            frame.to_csv(self.data / f"{role}.csv", index=False)
        return {role: self.data / f"{role}.csv" for role in frames}

    def stored(self, asset: str, ending: str) -> Path:
        found = list((self.place / "storage" / "people" / asset).rglob(f"*{ending}"))
        assert len(found) == 1, found
        return found[0]

    def run(self, *only: str, partition: str | None = None, upstream: bool = False) -> str:
        """Run the pipeline or some of its assets; return the texts of all failures."""
        keys = (
            whole_steps([dg.AssetKey.from_user_string(f"people/{name}") for name in only]) or None
        )
        if upstream:
            done = dg.materialize(
                [*self.defs.assets, *(self.defs.asset_checks or [])],
                resources=self.defs.resources, instance=self.instance, raise_on_error=False,
            )  # fmt: skip
        else:
            job = self.defs.resolve_job_def("people_pipeline")
            done = job.execute_in_process(
                instance=self.instance,
                raise_on_error=False,
                asset_selection=keys,
                partition_key=partition,
            )
        events = [event for event in done.all_events if event.is_step_failure]
        data = [event.step_failure_data for event in events]
        told = [
            f"{event.step_key}: {event.message} {found.error_display_string}"
            f" {found.user_failure_data}"
            for event, found in zip(events, data, strict=True)
        ]
        broken = [
            f"{c.check_name} is red: {c.description}"
            for c in done.get_asset_check_evaluations()
            if not c.passed
        ]
        return "\n".join([*told, *broken])

    def everything(self) -> dict[str, str]:
        """All output of the deployment by source. Stored private tables and models are not
        output.
        """
        found = {"said": "\n".join(self.said), "logging": self.log.text}
        captured = self.capture.readouterr()
        found |= {"stdout": captured.out, "stderr": captured.err}
        for run in self.instance.get_runs():
            logs = self.instance.all_logs(run.run_id)
            found[f"run {run.job_name} {run.run_id}"] = str(run) + "\n".join(
                f"{e.to_json()}\n{e}" for e in logs
            )
        own = re.compile(r"storage/.*(table\.(bin|parquet)|/model-.*)$|private/|rows/")
        for file in self.place.rglob("*"):
            name = file.relative_to(self.place).as_posix()
            if file.is_file() and not own.match(name):
                found[name] = readable(file)
            found[f"name {name}"] = name
        return found


def readable(file: Path) -> str:
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        unused = [
            list(column.chunk(0).dictionary)
            for column in table.columns
            if pa.types.is_dictionary(column.type)
        ]
        return f"{table.to_pandas().to_csv()} {unused} {table.schema.metadata}"
    return file.read_bytes().decode("latin-1")


def leaks(world: World) -> dict[str, set[str]]:
    return {where: found for where, text in world.everything().items() if (found := traces(text))}
