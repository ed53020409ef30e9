"""The front door: spelled by hand, lazy, and free of dagster until a plugin name is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import privacy_assets

ROOT = Path(__file__).parents[1]
NAMES = {
    "GpuResource",
    "Limit",
    "Policy",
    "PrivacyGate",
    "PrivacyIOManager",
    "ReleaseResource",
    "Report",
    "TableSpec",
    "build_failed_check_sensor",
    "build_privacy_assets",
    "build_privacy_checks",
    "build_source_sensor",
    "build_table_schedule",
    "evaluate",
    "fixed",
    "on_ray",
    "read_published",
}


def test_the_exported_names_are_these() -> None:
    assert set(privacy_assets.__all__) == NAMES
    assert set(dir(privacy_assets)) >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_can_be_used(name: str) -> None:
    assert getattr(privacy_assets, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        _ = privacy_assets.evaluat


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'dagster', 'pandas', 'torch', 'faiss', 'numpy', 'sklearn', 'numba'}"
    assert run(f"import sys, privacy_assets; print({heavy} & set(sys.modules))").strip() == "set()"


def test_everything_below_the_orchestrators_works_where_both_are_blocked() -> None:
    code = (
        "import sys, pkgutil, importlib; sys.modules['dagster'] = sys.modules['airflow'] = None\n"
        "import privacy_assets as p\n"
        "names = [m.name for m in pkgutil.walk_packages(p.__path__, 'privacy_assets.')]\n"
        "names = [name for name in names if name.split('.')[1] not in ('dagster', 'airflow')]\n"
        "[importlib.import_module(n) for n in names]; p.evaluate; p.Policy.default(); print(len(names) > 150)"
    )
    assert run(code).strip() == "True"


def test_registries_report_and_embedder_import_no_heavy_library() -> None:
    heavy = {"dagster", "torch", "faiss", "sklearn", "numba", "scipy", "jinja2", "sdmetrics", "statsmodels",
             "matplotlib", "great_expectations"}  # fmt: skip
    code = (
        "import sys, privacy_assets.metrics.registry, privacy_assets.embedding.embedder\n"
        "from privacy_assets.report import evaluate, html, plots, report, text\n"
        "from privacy_assets.generators import build_generator, generator_info\n"
        "build_generator('synthpop'), generator_info()\n"
        f"print({heavy} & set(sys.modules))"
    )
    assert run(code).strip() == "set()"


# As if the base package were installed alone: nothing finds what only its extras bring.
BASE_ALONE = """
import sys
ABSENT = {"airflow", "dagster", "dagster_pipes", "dagster_shared", "great_expectations", "upath", "torch",
          "safetensors", "opacus", "ctgan", "rdt", "ray", "s3fs", "polars", "duckdb", "statsmodels"}
class Without:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, *rest):
        return None if name.split(".")[0] in ABSENT else self.finder.find_spec(name, *rest)
    def __getattr__(self, name): return getattr(self.finder, name)
sys.meta_path[:] = map(Without, sys.meta_path)
"""


def base_alone(code: str, folder: Path) -> tuple[int, str, list[str]]:
    """Exit status, output and lines of errors of a process that has the base package alone."""
    command = [sys.executable, "-c", BASE_ALONE + code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    return done.returncode, done.stdout, done.stderr.splitlines()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    for name in ("train", "holdout", "synthetic"):
        frame = pd.DataFrame(rng.normal(size=(150, 3)), columns=["a", "b", "c"])
        frame["visits"] = rng.poisson(3, len(frame))
        frame.to_parquet(folder / f"{name}.parquet")
    return folder


EVALUATE = "from privacy_assets.cli.main import main; raise SystemExit(main({!r}))"
FILES = ["--train=train.parquet", "--holdout=holdout.parquet", "--synthetic=synthetic.parquet", "--metrics=dcr"]


def test_the_base_package_evaluates_and_the_verdict_names_what_is_missing(tables: Path) -> None:
    command = ["evaluate", *FILES, "--no-embedder", "--quiet", "--html=report.html"]
    status, said, errors = base_alone(EVALUATE.format(command), tables)
    assert status == 0 and not errors
    words = "There was no embedder, so nothing is known of dcr.privacy_score_embedded, dcr.member_excess_embedded."
    assert words in " ".join(said.split())
    assert words in (tables / "report.html").read_text()


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["evaluate", *FILES], "the embedder needs torch, which is not installed. "
         "Fix: pip install 'privacy-assets[torch]', "
         "or leave the embedded statistics out: embedder=False, or --no-embedder."),
        (["demo"], "the Dagster part of privacy-assets needs dagster, which is not installed. "
         "Fix: pip install 'privacy-assets[dagster]'."),
        (["generate", "--generator=wgan_gp", "--data=train.parquet", "--rows=10", "--out=made.parquet"],
         "generator wgan_gp needs torch. Fix: pip install 'privacy-assets[torch]'."),
    ],
    ids=["evaluate", "demo", "generate"],
)  # fmt: skip
def test_what_needs_an_extra_says_so_in_one_line(command: list[str], what: str, tables: Path) -> None:
    status, _, errors = base_alone(EVALUATE.format(command), tables)
    assert (status, errors) == (2, [f"privacy-assets: {what}"])


def test_the_base_package_generates_and_reads(tables: Path) -> None:
    command = [
        "generate",
        "--generator=synthpop",
        "--data=train.parquet",
        "--rows=10",
        "--out=new.parquet",
        "--seed=1",
    ]
    code = f"""
from privacy_assets.cli.main import main
status = main({command!r})
import privacy_assets
from privacy_assets.errors import MissingPackage, PrivacyAssetsError
absent = []
for name in dir(privacy_assets):
    try:
        getattr(privacy_assets, name)
    except MissingPackage:
        absent.append(name)
try:
    privacy_assets.read_published("releases", "patients")
except PrivacyAssetsError as error:
    status += isinstance(error, MissingPackage)
print(*absent)
raise SystemExit(status)
"""
    status, said, errors = base_alone(code, tables)
    assert status == 0, errors
    free = {"Limit", "Policy", "Report", "TableSpec", "evaluate", "on_ray", "read_published"}
    assert set(said.splitlines()[-1].split()) == NAMES - free
    assert len(pd.read_parquet(tables / "new.parquet")) == 10
