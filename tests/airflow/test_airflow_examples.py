"""The Airflow examples, copied and run as their README describes: by `airflow dags test`, each in
its own Airflow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from privacy_assets import read_published
from privacy_assets.dagster.demo import demo_spec
from privacy_assets.tables.demo import load_patients

FUNCTIONS_APART = True
ROOT = Path(__file__).parents[2]
SPECS = """
for dag in (non_leaking, leaks):
    print(repr(dag.task_dict[f"{dag.dag_id}.attest"].gated.resolved.spec))
"""


class Project:
    """A copy of one example, with an Airflow that stores all its files below it."""

    def __init__(self, folder: Path, dags: str) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "AIRFLOW_HOME": str(folder / "home"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "PRIVACY_ASSETS_SPLIT_KEY": "the same split in every run",
            "PRIVACY_ASSETS_RELEASES": str(folder / "gate/releases"),
        }

    def python(self, *words: str) -> tuple[int, str]:
        """Exit status of a command, and its output."""
        done = subprocess.run(
            [sys.executable, *words], env=self.environment, cwd=self.folder,
            capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def ran(self, dag: str) -> tuple[int, str]:
        """One run of a DAG."""
        return self.python("-m", "airflow", "dags", "test", dag)


def fewer(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a third of the people."""
    return rows[rows.get("person", rows.index) % 3 == 0]


def project(name: str, folder: Path, dags: str = "dags") -> Project:
    shutil.copytree(ROOT / "examples/airflow" / name, folder, dirs_exist_ok=True)
    made = Project(folder, dags)
    for script in sorted(folder.glob("make_*.py")):
        status, said = made.python(str(script))
        assert status == 0, said
    for table in folder.glob("data/*.parquet"):  # fewer rows, so that the test is quick
        fewer(pd.read_parquet(table)).to_parquet(table)
    for table in folder.glob("data/*.csv"):
        fewer(pd.read_csv(table)).to_csv(table, index=False)
    status, said = made.python("-m", "airflow", "db", "migrate")
    assert status == 0, said
    return made


@pytest.mark.weekly
def test_a_private_table_is_published_and_its_readers_read_it(tmp_path: Path) -> None:
    visits = project("private_table", tmp_path)
    status, said = visits.ran("visits")
    assert status == 0, said[-3000:]
    assert "PASS  visits" in said and "of visits is published" in said
    status, said = visits.ran("visits_readers")
    assert status == 0, said[-3000:]
    released = read_published(tmp_path / "gate/releases", "visits")
    assert f"'rows': {len(released)}" in said


@pytest.mark.weekly
def test_a_synthetic_table_of_ones_own_is_published_in_one_task_and_by_hand(tmp_path: Path) -> None:
    survey = project("own_synthetic", tmp_path)
    for dag in ("survey", "survey_by_hand"):
        status, said = survey.ran(dag)
        assert status == 0, said[-3000:]
        assert "PASS  survey" in said and "of survey is published" in said
    assert "the table holds its policy: see the XCom" in said
    brought = pd.read_parquet(tmp_path / "data/synthetic.parquet")
    assert len(read_published(tmp_path / "gate/releases", "survey")) == len(brought)


@pytest.mark.weekly
def test_the_demo_that_leaks_is_blocked_and_says_why(tmp_path: Path) -> None:
    demo = project("demo", tmp_path, ".")
    fewer(load_patients()).to_parquet(tmp_path / "fewer.parquet")
    dags = tmp_path / "patients.py"
    dags.write_text(
        dags.read_text().replace('source="demo"', f"source={str(tmp_path / 'fewer.parquet')!r}")
    )
    status, said = demo.ran("patients_leak")
    assert status == 1
    assert "FAIL  patients_leak" in said and "step publish" not in said
    assert not (tmp_path / "gate/releases/patients_leak").exists()


@pytest.mark.slow
def test_it_is_the_demo_of_dagster() -> None:
    code = (ROOT / "examples/airflow/demo/patients.py").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{SPECS}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [repr(demo_spec(leak=leak)) for leak in (False, True)]
