"""The package's public names: listed explicitly, lazy, and independent of dagster until a plugin
name is used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import privacy_assets
from tests.report.report_examples import passing

ROOT = Path(__file__).parents[1]
NAMES = {
    "GpuResource",
    "Limit",
    "load_policy",
    "Policy",
    "PrivacyGate",
    "PrivacyIOManager",
    "ReleaseResource",
    "Report",
    "TableSpec",
    "build_privacy_assets",
    "build_privacy_checks",
    "build_run_failure_sensor",
    "build_source_sensor",
    "build_table_schedule",
    "evaluate",
    "frozen_config",
    "on_ray",
    "power_analysis",
    "read_published",
    "resources",
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
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'dagster', 'pandas', 'torch', 'faiss', 'numpy', 'sklearn', 'numba'}"
    assert run(f"import sys, privacy_assets; print({heavy} & set(sys.modules))").strip() == "set()"


@pytest.mark.slow
def test_everything_below_the_orchestrators_works_where_both_are_blocked() -> None:
    code = (
        "import sys, pkgutil, importlib; sys.modules['dagster'] = sys.modules['airflow'] = None\n"
        "import privacy_assets as p\n"
        "names = [m.name for m in pkgutil.walk_packages(p.__path__, 'privacy_assets.')]\n"
        "of_dagster = {'privacy_assets.studies.leak_study_job'}\n"
        "names = [name for name in names if name.split('.')[1] not in ('dagster', 'airflow')]\n"
        "names = sorted({*names} - of_dagster)\n"
        "[importlib.import_module(n) for n in names]; p.evaluate; p.load_policy('default');"
        " print(len(names) > 150)"
    )
    assert run(code).strip() == "True"


@pytest.mark.slow
def test_registries_report_and_embedder_import_no_heavy_library() -> None:
    heavy = {
        "dagster",
        "torch",
        "faiss",
        "sklearn",
        "numba",
        "scipy",
        "jinja2",
        "sdmetrics",
        "statsmodels",
        "matplotlib",
        "great_expectations",
    }
    code = (
        "import sys, privacy_assets.metrics.registry, privacy_assets.distances.embedder\n"
        "from privacy_assets.evaluation import evaluate\n"
        "from privacy_assets.report import html, page, report, svg, text\n"
        "from privacy_assets.generators import build_generator, generator_info\n"
        "build_generator('synthpop'), generator_info()\n"
        f"print({heavy} & set(sys.modules))"
    )
    assert run(code).strip() == "set()"


# As if the base package were installed alone: modules of the extras cannot be found. One process
# calls each command.
BASE_ALONE = """
import contextlib, io, json, sys
ABSENT = {"airflow", "dagster", "dagster_pipes", "dagster_shared", "great_expectations", "upath", "torch",
          "safetensors", "opacus", "ctgan", "rdt", "ray", "s3fs", "polars", "duckdb", "statsmodels"}
class Hiding:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, *rest):
        return None if name.split(".")[0] in ABSENT else self.finder.find_spec(name, *rest)
    def __getattr__(self, name): return getattr(self.finder, name)
sys.meta_path[:] = map(Hiding, sys.meta_path)
import privacy_assets
from privacy_assets.metrics.policies import default_policy
from privacy_assets.cli.main import main
from privacy_assets.errors import MissingPackage, PrivacyAssetsError
def called(words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        return main(words), out.getvalue(), err.getvalue()
found = {name: called(words) for name, words in json.loads(sys.argv[1]).items()}
found["absent"] = []
for name in dir(privacy_assets):
    try:
        getattr(privacy_assets, name)
    except MissingPackage:
        found["absent"].append(name)
try:
    privacy_assets.read_published("releases", "patients")
except PrivacyAssetsError as error:
    found["reading"] = type(error).__name__
print(json.dumps(found))
"""  # noqa: E501
FILES = [
    "--train=train.parquet",
    "--holdout=holdout.parquet",
    "--synthetic=synthetic.parquet",
    "--metrics=dcr",
]
COMMANDS = {
    "plain": ["evaluate", *FILES, "--no-embedder", "--quiet", "--html=report.html"],
    "embedder": ["evaluate", *FILES],
    "demo": ["demo"],
    "network": [
        "generate",
        "--generator=wgan_gp",
        "--data=train.parquet",
        "--rows=10",
        "--out=made.parquet",
    ],
    "generate": [
        "generate",
        "--generator=synthpop",
        "--data=train.parquet",
        "--rows=10",
        "--out=new.parquet",
    ],
}


@pytest.fixture(scope="module")
def base_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder, and the exit status and output of each command there."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    for name in ("train", "holdout", "synthetic"):
        frame = pd.DataFrame(rng.normal(size=(150, 3)), columns=["a", "b", "c"])
        frame["visits"] = rng.poisson(3, len(frame))
        frame.to_parquet(folder / f"{name}.parquet")
    command = [sys.executable, "-c", BASE_ALONE, json.dumps(COMMANDS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.slow
def test_the_base_package_evaluates_and_the_verdict_names_what_is_missing(
    base_alone: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = base_alone
    status, said, errors = found["plain"]
    assert status == 3 and not errors  # a part of the policy: without an embedder
    words = "dcr.privacy_score_embedded: No embedder. dcr.member_excess_embedded: No embedder."
    assert words in " ".join(said.split())
    assert "No embedder." in (folder / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "what"),
    [
        (
            "embedder",
            "the embedder needs torch, which is not installed. Fix: pip install"
            " 'privacy-assets[torch]', "
            "or disable embedded statistics by embedder=False, or --no-embedder.",
        ),
        (
            "demo",
            "the Dagster part of privacy-assets needs dagster, which is not installed. "
            "Fix: pip install 'privacy-assets[dagster]'.",
        ),
        ("network", "generator wgan_gp needs torch. Fix: pip install 'privacy-assets[torch]'."),
    ],
)
def test_what_needs_an_extra_says_so_in_one_line(
    command: str, what: str, base_alone: tuple[Path, dict[str, Any]]
) -> None:
    status, _, errors = base_alone[1][command]
    assert (status, errors) == (2, f"privacy-assets: {what}\n")


@pytest.mark.slow
def test_the_base_package_generates_and_reads(base_alone: tuple[Path, dict[str, Any]]) -> None:
    folder, found = base_alone
    assert found["generate"][0] == 0, found["generate"]
    assert len(pd.read_parquet(folder / "new.parquet")) == 10
    free = {
        "Limit",
        "Policy",
        "Report",
        "TableSpec",
        "evaluate",
        "load_policy",
        "on_ray",
        "power_analysis",
    }
    free.add("read_published")
    assert set(found["absent"]) == NAMES - free
    assert found["reading"] != "MissingPackage"


def test_dir_shows_the_public_names_only() -> None:
    assert {name for name in dir(privacy_assets) if not name.startswith("_")} == set(
        privacy_assets.__all__
    )


def test_a_report_at_the_prompt_takes_one_line() -> None:
    shown = repr(passing())
    assert (
        "\n" not in shown and len(shown) < 160 and "print(report)" in shown and ": pass, " in shown
    )
