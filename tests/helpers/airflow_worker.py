"""Runs DAGs as a worker of Airflow does: a supervisor, a process and a log file for each task. Only
the network is not there: the supervisor asks the API in its own process. ``python airflow_worker.py
FILE`` runs all DAGs of a file.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.configuration import conf
from airflow.executors.base_executor import BaseExecutor
from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task
from airflow.utils.state import TaskInstanceState


class Worker(BaseExecutor):
    """Runs each task when it receives its workload, and waits for its end."""

    is_local = True

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        logs = Path(conf.get_mandatory_value("logging", "base_log_folder"))
        for work in workload_list:
            self.queued_tasks.pop(work.ti.key)
            status = supervise_task(
                ti=work.ti,
                bundle_info=work.bundle_info,
                dag_rel_path=work.dag_rel_path,
                token=work.token,
                client=InProcessTestSupervisor._api_client(),
                log_path=str(logs / work.log_path),
            )
            state = TaskInstanceState.FAILED if status else TaskInstanceState.SUCCESS
            self.change_state(work.ti.key, state)

    def end(self) -> None:
        """Do nothing, because no task is running."""


if __name__ == "__main__":
    from airflow.sdk import DAG

    module = runpy.run_path(sys.argv[1])
    dates = module.get("DATES", {})
    dags = [dag for dag in module.values() if isinstance(dag, DAG)]
    for dag in dags:
        options = {}
        if dag.dag_id in dates:
            options["logical_date"] = dates[dag.dag_id]
        dag.test(use_executor=True, **options)
