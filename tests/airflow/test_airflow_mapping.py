"""Mapped gates, and arguments that are known only when a task runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_airflow import Ran, airflow_in, current_release, run_all
from test_airflow_deployment import told

from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import ReleaseStore

FUNCTIONS_APART = True

PARSED = """
from functools import partial
from pathlib import Path
print = partial(print, ">>")
from airflow.sdk import DAG, task, task_group
from privacy_assets import TableSpec
from privacy_assets.airflow import PrivacyGateOperator, PrivacyPublishOperator
from privacy_assets.errors import ConfigError

PLACE = {"subject": "pid", "deployment": "/srv/releases"}
ROWS = {**PLACE, "source": "/rows.parquet"}
TF = {**PLACE, "table": "tf"}
XY = ["/x.parquet", "/y.parquet"]
NORTH = {"source": "/{partition}.parquet", "partitions": ["north", "south"]}
specs = [TableSpec(name=name, source="/rows.parquet", subject="pid") for name in ("a", "b", "a")]
Path("a.yaml").write_text("{name: a, source: /rows.parquet, subject: pid}")


@task
def names():
    return ["a", "b"]


def gate(**given):
    return PrivacyGateOperator.partial(task_id="gate", **given)


@task_group
def grouped(source=None, region=None, number=None):
    PrivacyGateOperator(task_id="gate", **TF, **NORTH, partition=region)


@task_group
def same(number):
    PrivacyGateOperator(task_id="gate", **TF, source="/x")


@task_group
def later(table):
    PrivacyGateOperator(task_id="gate", table=table, **ROWS)


blocked = {
    "sources": lambda: gate(**TF).expand(source=XY),
    "one of two tables twice": lambda: gate(**ROWS).expand(table=["a", "b", "a"]),
    "every combination": lambda: gate(**PLACE).expand(table=["a", "b"], source=XY),
    "combinations with unknown tables": lambda: gate(**PLACE).expand(table=names(), source=XY),
    "specs": lambda: gate().expand(table=specs),
    "a spec and its file": lambda: gate().expand(table=[specs[0], Path("a.yaml")]),
    "partitions": lambda: gate(**TF, **NORTH).expand(partition=["north", "south", "north"]),
    "equal lists of partitions": lambda: gate(**TF, source="/x").expand(partitions=[["a"], ["a"]]),
    "kwargs": lambda: gate(**TF).expand_kwargs([{"source": source} for source in XY]),
    "kwargs with a table": lambda: gate(**PLACE).expand_kwargs([{"table": "a", "source": source} for source in XY]),
    "kwargs of which one is unknown": lambda: gate(**PLACE).expand_kwargs(
        [{"table": "a", "source": XY[0]}, names(), {"table": "a", "source": names()}]
    ),
    "publishing tasks": lambda: PrivacyPublishOperator.partial(task_id="gate", **TF, source="/x").expand(
        attested_by=["a", "b"]
    ),
    "verdicts": lambda: gate(**TF, publish=False).expand(source=XY),
    "a group of numbers": lambda: same.expand(number=[1, 2]),
    "a group of equal partitions": lambda: grouped.expand(region=["north", "north"]),
    "a group of combinations": lambda: grouped.expand(region=["north", "south"], number=[1, 2]),
    "a group of unknown partitions": lambda: grouped.expand(region=names(), number=[1, 2]),
    "a group of tables": lambda: later.expand(table=["a", "b"]),
    "the result of a task": lambda: PrivacyGateOperator(task_id="gate", table=names(), **ROWS),
    "a source from a task": lambda: PrivacyGateOperator(task_id="gate", **TF, source=names()),
    "a partition without partitions": lambda: PrivacyGateOperator(
        task_id="gate", **TF, source="/x", partition="north"
    ),
}
accepted = {
    "tables": lambda: gate(**ROWS).expand(table=["a", "b"]),
    "specs": lambda: gate().expand(table=specs[:2]),
    "partitions": lambda: gate(**TF, **NORTH).expand(partition=["north", "south"]),
    "tables and partitions": lambda: gate(**PLACE, **NORTH).expand(table=["a", "b"], partition=["north", "south"]),
    "kwargs": lambda: gate(**PLACE).expand_kwargs([{"table": "a", "source": XY[0]}, {"table": "b", "source": XY[1]}]),
    "kwargs of one table": lambda: gate(**TF, **NORTH).expand_kwargs([{"partition": "north"}, {"partition": "south"}]),
    "other lists of partitions": lambda: gate(**TF, source="/x").expand(partitions=[["a"], ["b"]]),
    "unknown tables": lambda: gate(**ROWS).expand(table=names()),
    "unknown sources": lambda: gate(**TF).expand(source=names()),
    "unknown kwargs": lambda: gate(**TF).expand_kwargs(names()),
    "some unknown kwargs": lambda: gate(**PLACE).expand_kwargs([{"table": "a", "source": XY[0]}, names()]),
    "templates": lambda: gate(**TF, **NORTH, partition="{{ params.regions[ti.map_index] }}").expand(doc=[["x"], ["y"]]),
    "verdicts": lambda: gate(**ROWS, publish=False).expand(table=["a", "b"]),
    "a verdict and a release": lambda: gate(**ROWS).expand_kwargs([{"table": "a"}, {"table": "b", "publish": False}]),
    "publishing tasks": lambda: PrivacyPublishOperator.partial(task_id="gate", **ROWS, attested_by="judge").expand(
        table=["a", "b"]
    ),
    "a group of partitions": lambda: grouped.expand(region=["north", "south"]),
    "a group of unknown partitions": lambda: grouped.expand(region=names()),
    "a group of kwargs": lambda: grouped.expand_kwargs([{"region": "north"}, {"region": "south"}]),
}
for kind, cases in (("blocked", blocked), ("accepted", accepted)):
    for name, make in cases.items():
        with DAG("dag", schedule=None, max_active_runs=1, params={"regions": ["north", "south"]}) as dag:
            try:
                make()
            except ConfigError as error:
                print(f"{kind}: {name}: {error}")
                continue
        (found,) = [found for found in dag.tasks if found.task_id.endswith("gate")]
        outlets = [outlet.name for outlet in found.outlets]
        print(f"{kind}: {name}:", *outlets, found.max_active_tis_per_dagrun)
"""  # noqa: E501
RENDERED = """
from functools import partial
print = partial(print, ">>")
from datetime import UTC, datetime
from airflow.sdk import DAG
from privacy_assets.airflow import PrivacyGateOperator, PrivacyPublishOperator, ReleaseSensor

GATE = {"table": "tf", "source": "/{partition}.parquet", "subject": "pid", "deployment": "/srv/releases"}
GATE |= {"partitions": ["None", "north"]}
WAIT = {"table": "tf", "deployment": "/srv/releases"}


def checked(said, task):
    try:
        task.execute({})
    except Exception as error:
        print(said, type(error).__name__, error)


def rendered(native, kind, given, value, **more):
    with DAG("dag", schedule=None, max_active_runs=1, render_template_as_native_obj=native):
        task = kind(task_id="task", **given, **more)
    task.render_template_fields({"value": value})
    return task


def mapped(kind, given, **values):
    with DAG("dag", schedule=None, max_active_runs=1):
        operator = kind.partial(task_id="task", **given).expand(**{name: [value] for name, value in values.items()})
    return operator.unmap(values)


template = "{{ value }}"
for value in (None, "", " ", "None"):
    for name, native in (("partition", True), ("newer_than", True), ("partition", False), ("newer_than", False)):
        checked("empty", rendered(native, ReleaseSensor, WAIT, value, **{name: template}))
    checked("empty", rendered(True, PrivacyGateOperator, GATE, value, partition=template))
checked("empty", rendered(True, ReleaseSensor, WAIT, None, newer_than=template, deferrable=True))
checked("empty", rendered(False, PrivacyPublishOperator, GATE, None, attested_by="gate", partition=template))
for name in ("partition", "newer_than"):
    checked("empty", mapped(ReleaseSensor, WAIT, **{name: None}))
checked("empty", mapped(PrivacyGateOperator, GATE, partition=None))
checked("empty", mapped(PrivacyPublishOperator, {**GATE, "attested_by": "gate"}, partition="None"))
checked("a number", rendered(True, ReleaseSensor, WAIT, 2026, partition=template))


class Seen(ReleaseSensor):
    def poke(self, context):
        from privacy_assets.airflow.arguments import check_rendered

        check_rendered(self, self._passed_names)
        print(said, f"({self.partition}, {self.newer_than})")
        return True


said = "not given"
checked(said, Seen(task_id="task", **WAIT))
said = "None in the DAG file"
checked(said, Seen(task_id="task", **WAIT, partition=None, newer_than=None))
said = "not given and mapped"
checked(said, mapped(Seen, WAIT, poke_interval=1.0))
said = "given"
checked(said, Seen(task_id="task", **WAIT, partition="north", newer_than=datetime(2026, 1, 1, tzinfo=UTC)))
"""  # noqa: E501
LATER = "the result of a task is not known when the DAG is parsed."
REFUSED = {
    "sources": "gate: two mapped tasks have the same table and partition (table: tf).",
    "one of two tables twice": "gate: two mapped tasks have the same table and partition"
    " (table: a).",
    "every combination": "gate: two mapped tasks have the same table and partition (table: a).",
    "combinations with unknown tables": "gate: two mapped tasks have the same table and partition"
    " (table:"
    " mapped).",
    "specs": "gate: two mapped tasks have the same table and partition (table: a).",
    "a spec and its file": "gate: two mapped tasks have the same table and partition (table: a).",
    "partitions": "gate: two mapped tasks have the same table and partition (table: tf).",
    "equal lists of partitions": "gate: two mapped tasks have the same table and partition"
    " (table: tf).",
    "kwargs": "gate: two mapped tasks have the same table and partition (table: tf).",
    "kwargs with a table": "gate: two mapped tasks have the same table and partition (table: a).",
    "kwargs of which one is unknown": "gate: two mapped tasks have the same table and partition"
    " (table: a).",
    "publishing tasks": "gate: two mapped tasks have the same table and partition (table: tf).",
    "verdicts": "gate: two mapped tasks have the same table and partition (table: tf).",
    "a group of numbers": "same.gate: two mapped tasks have the same table and partition"
    " (table: tf).",
    "a group of equal partitions": "grouped.gate: two mapped tasks have the same table and"
    " partition"
    " (table: tf).",
    "a group of combinations": "grouped.gate: two mapped tasks have the same table and partition"
    " (table: tf).",
    "a group of unknown partitions": "grouped.gate: two mapped tasks have the same table and"
    " partition"
    " (table: tf).",
    "a group of tables": f"table: {LATER}",
    "the result of a task": f"table: {LATER}",
    "a source from a task": f"source: {LATER}",
    "a partition without partitions": "table tf: partition was given, and the table has no"
    " partitions.",
}
ACCEPTED = {  # outlets, and how many tasks of a run may run at a time
    "tables": "a_release b_release None",
    "specs": "a_release b_release None",
    "partitions": "tf_release 1",
    "tables and partitions": "a_release b_release 1",
    "kwargs": "a_release b_release None",
    "kwargs of one table": "tf_release 1",
    "other lists of partitions": "tf_release 1",
    "unknown tables": "privacy_assets_releases None",
    "unknown sources": "tf_release 1",
    "unknown kwargs": "tf_release 1",
    "some unknown kwargs": "a_release privacy_assets_releases None",
    "templates": "tf_release 1",
    "verdicts": "None",
    "a verdict and a release": "a_release None",
    "publishing tasks": "a_release b_release None",
    "a group of partitions": "tf_release 1",
    "a group of unknown partitions": "tf_release 1",
    "a group of kwargs": "tf_release 1",
}


def script(place: Path, code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=airflow_in(place),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return told(done.stdout)


@pytest.mark.slow
def test_two_mapped_gates_of_one_table_and_partition_are_an_error_when_the_dag_is_parsed(
    tmp_path: Path,
) -> None:
    lines = script(tmp_path, PARSED)
    blocked = dict(
        line.removeprefix("blocked: ").split(": ", 1)
        for line in lines
        if line.startswith("blocked")
    )
    assert {name: text.partition(" Fix: ")[0] for name, text in blocked.items()} == REFUSED
    assert all("Fix: " in text for text in blocked.values())
    accepted = dict(
        line.removeprefix("accepted: ").split(": ", 1)
        for line in lines
        if line.startswith("accepted")
    )
    assert accepted == ACCEPTED


@pytest.mark.slow
def test_a_given_argument_has_a_value_after_rendering(tmp_path: Path) -> None:
    """None, the empty string and the text None are errors in sensors and gates, mapped or not."""
    lines = script(tmp_path, RENDERED)
    empty = [line for line in lines if line.startswith("empty")]
    assert len(empty) == 26
    for line in empty:
        assert "AirflowFailException" in line
        is_text = any(f"newer_than is {text!r}, not a time" in line for text in ("", " ", "None"))
        assert is_text or "in this run. Fix: use a value that each run has, or leave" in line
    others = [line for line in lines if not line.startswith("empty")]
    assert others == [
        "a number AirflowFailException ReleaseSensor: partition is of type int in this run."
        " Fix: use a template that renders to a string.",
        "not given (None, None)",
        "None in the DAG file (None, None)",
        "not given and mapped (None, None)",
        "given (north, 2026-01-01 00:00:00+00:00)",
    ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_all(tmp_path_factory.mktemp("mapped"), "mapped_dags.py")


def logged(ran: Ran, dag: str) -> str:
    return "\n".join(
        file.read_text() for file in ran.folder.glob(f"home/logs/dag_id={dag}/**/*.log")
    )


def states(ran: Ran, dag: str, task: str = "gate") -> list[str]:
    """States of the mapped tasks, in the order in which they ended."""
    question = "select state from task_instance where dag_id = ? and task_id = ? order by end_date"
    return [state for (state,) in ran.ask(question, dag, task)]


@pytest.mark.weekly
def test_mapped_gates_publish_each_table_and_partition_once(ran: Ran) -> None:
    assert states(ran, "tables") == ["success", "success"]
    assert states(ran, "named") == ["success", "failed"], "both tables have the same name"
    told = logged(ran, "named")
    assert (
        "of this run has the same table and partition, and its release would be replaced. Fix: "
        in told
    )
    assert sorted(states(ran, "groups", "each.gate")) == ["failed", "success"]
    assert "partition was given, and is None in this run" in logged(ran, "groups")
    releases = ran.folder / "mapped/releases"
    for target in (
        ReleaseTarget("a"),
        ReleaseTarget("b"),
        ReleaseTarget("c"),
        ReleaseTarget("grouped", "2026-01-01"),
    ):
        assert len(ReleaseStore(releases).history(target)) == 1


@pytest.mark.weekly
def test_two_gates_of_one_table_in_a_run_are_an_error(ran: Ran) -> None:
    assert ran.states("twice")["twice.read"] == ("failed", 1)
    assert "twice: task 'first' of this run has the same table and partition" in logged(
        ran, "twice"
    )


@pytest.mark.weekly
def test_each_mapped_gate_has_the_event_of_its_release(ran: Ran) -> None:
    """Also of a table that a task named, which is not in the DAG."""
    events = ran.ask(
        "select a.uri, e.extra, e.partition_key from asset_event e join asset a on a.id ="
        " e.asset_id"
    )
    found = [
        (uri.rpartition("/")[2], json.loads(extra)["release"], key) for uri, extra, key in events
    ]
    releases = ran.folder / "mapped/releases"
    expected = [(table, current_release(releases, table).id, None) for table in ("a", "b", "c")]
    (dated,) = ReleaseStore(releases).history(ReleaseTarget("grouped", "2026-01-01"))
    assert sorted(found) == [*expected, ("grouped", dated.id, "2026-01-01")]
