"""DAGs of plain tasks, as users write them: a table is generated, checked, and published by copying
a file.

The check of each DAG stops the table, and one bypass of it publishes the table
(tests/bypasses/test_bypasses_airflow.py). No task shows cell values.
"""

from __future__ import annotations

import os
import random
import shutil
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from airflow.sdk import (
    DAG,
    Asset,
    Connection,
    PartitionedAtRuntime,
    Variable,
    get_current_context,
    task,
)
from airflow.sdk.exceptions import AirflowRuntimeError

PLACE = Path(os.environ["PLACE"])
HALF = 0.5
# only backfills run
ENDED = {"start_date": datetime(2020, 1, 1), "end_date": datetime(2026, 1, 5), "catchup": False}


def lines(*files: Path) -> list[str]:
    texts = [file.read_text() for file in files]
    return list(chain.from_iterable(text.splitlines() for text in texts))


def table() -> Path:
    """Path of this DAG's table between two tasks; ``plain_event`` publishes the table of
    ``plain``.
    """
    dag_id = get_current_context()["dag"].dag_id
    return PLACE / "made" / f"{dag_id.removesuffix('_event')}.csv"


def block(share: float, at_most: float = HALF) -> None:
    """Raise ValueError if too many rows are copies.

    Args:
        share: Share of copies, in [0, 1].
        at_most: Maximum share.
    """
    if share > at_most:
        raise ValueError(f"{share:.0%} of the rows are copies")


def copies(*files: Path) -> float:
    private = set(lines(PLACE / "people.csv"))
    rows = lines(*files)
    n_copies = sum(row in private for row in rows)
    return n_copies / len(rows)


def released() -> Path:
    """The folder of each run."""
    context = get_current_context()
    return PLACE / "public" / context["dag"].dag_id / quote(str(context["run_id"]), safe="")


def copy_out() -> None:
    task_id = get_current_context()["ti"].task_id
    released().mkdir(parents=True, exist_ok=True)
    shutil.copy(table(), released() / f"{task_id}.csv")


@task
def make() -> None:
    """Copy the private rows."""
    shutil.copy(PLACE / "people.csv", table())


@task
def check() -> None:
    block(copies(table()))


@task
def publish() -> None:
    copy_out()


@task
def score() -> float:
    return copies(table())


@task
def publish_by_score() -> None:
    block(get_current_context()["ti"].xcom_pull(task_ids="score"))
    copy_out()


@task.branch
def choose() -> str:
    return "nothing"


@task
def nothing() -> None: ...


with DAG("plain", schedule=None) as plain:
    makes = make()
    checks = check()
    all_done = publish.override(task_id="publish_all_done", trigger_rule="all_done")
    makes >> checks >> [publish(), all_done()]
    checks >> publish.override(task_id="publish_teardown")().as_teardown()
    makes >> score() >> publish_by_score()
    maybe = check.override(task_id="check_maybe")()
    makes >> choose() >> [nothing(), maybe]
    maybe >> publish.override(task_id="publish_none_failed", trigger_rule="none_failed")()
    last = publish.override(
        task_id="publish_one_success", trigger_rule="none_failed_min_one_success"
    )()
    [makes, maybe] >> last

with DAG("plain_event", schedule=[Asset("plain_score")]):

    @task
    def publish_by_event() -> None:
        (events,) = get_current_context()["triggering_asset_events"].values()
        block(events[-1].extra["copies"])
        copy_out()

    publish_by_event()

with DAG("plain_settings", schedule=None, params={"at_most": HALF}):

    @task
    def check_param() -> None:
        block(copies(table()), get_current_context()["params"]["at_most"])

    @task
    def check_conf() -> None:
        conf = get_current_context()["dag_run"].conf or {}
        block(copies(table()), conf.get("limit", HALF))

    @task
    def check_variable() -> None:
        block(copies(table()), float(Variable.get("at_most", HALF)))

    @task
    def check_connection() -> None:
        try:
            limits = Connection.get("limits").extra_dejson
        except AirflowRuntimeError:
            limits = {}
        block(copies(table()), limits.get("at_most", HALF))

    makes = make()
    for checks in (check_param(), check_conf(), check_variable(), check_connection()):
        task_id = checks.operator.task_id.replace("check", "publish")
        makes >> checks >> publish.override(task_id=task_id)()


def quota(dag_id: str, schedule: object) -> DAG:
    """A third of the private rows per run; the check allows less than half of them for each
    partition.
    """
    with DAG(dag_id, schedule=schedule, **ENDED, max_active_runs=1) as dag:

        def partition() -> Path:
            context = get_current_context()
            key = str(context.get("partition_key") or context["logical_date"].date())
            return PLACE / "public" / dag_id / quote(key, safe="")

        @task
        def piece() -> None:
            third = len(list((PLACE / "public" / dag_id).rglob("*.csv")))
            table().write_text("\n".join(lines(PLACE / "people.csv")[third % 3 :: 3]))

        @task
        def check_all_of_it() -> None:
            n_published = len(lines(table(), *partition().glob("*.csv")))
            block(n_published / len(lines(PLACE / "people.csv")))

        @task
        def publish_piece() -> None:
            run_id = str(get_current_context()["run_id"])
            partition().mkdir(parents=True, exist_ok=True)
            shutil.copy(table(), partition() / f"{quote(run_id, safe='')}.csv")

        piece() >> check_all_of_it() >> publish_piece()
    return dag


plain_keys = quota("plain_keys", PartitionedAtRuntime())
plain_daily = quota("plain_daily", "@daily")


def noisy(dag_id: str, retries: int) -> DAG:
    """The check reads one row, a different one at each try; half of the rows are copies."""
    with DAG(
        dag_id, schedule=None, default_args={"retries": retries, "retry_delay": timedelta(0)}
    ) as dag:

        @task
        def make_half() -> None:
            copied = lines(PLACE / "people.csv")[::2]
            made_up = ["made up"] * len(copied)
            table().write_text("\n".join([*copied, *made_up]))

        @task
        def check_one_row() -> None:
            rng = random.Random(get_current_context()["ti"].try_number)
            row = rng.choice(lines(table()))
            block(float(row != "made up"))

        make_half() >> check_one_row() >> publish()
    return dag


plain_retried = noisy("plain_retried", 9)
plain_again = noisy("plain_again", 0)

with DAG("plain_shared", schedule=None):

    @task
    def make_or_copy() -> None:
        """Honest rows at first, and private ones once a user has changed the generator."""
        changed = (PLACE / "made/changed").exists()
        table().write_text((PLACE / "people.csv").read_text() if changed else "made up\n" * 100)
        (PLACE / "made/changed").touch()

    make_or_copy() >> check() >> publish()
