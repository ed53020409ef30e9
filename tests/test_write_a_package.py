"""docs/write_a_metric.md and docs/write_a_generator.md: their packages, built as wheels, installed
and used outside of a checkout.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from standins import LENIENT

ROOT = Path(__file__).parents[1]
# One process runs all commands like the installed command, whose path does not contain the working
# folder.
DRIVER = """
import json, sys
from privacy_assets.cli.main import main
for words in json.loads(sys.argv[1]):
    print(json.dumps([words, main(words)]), flush=True)
module = sys.modules.get(sys.argv[2])
print(json.dumps({"file": getattr(module, "__file__", None)}))
"""


class Package:
    """The package of a page, built as a wheel and installed into a folder of its own.

    Attributes:
        folder: Folder of the files of the page, in which its commands run.
        module: Name of the module of the package.
        site: Folder of the installed package.
    """

    def __init__(self, page: str, start: str, folder: Path, module: str) -> None:
        self.folder, self.module, self.site = folder, module, folder / "site"
        self.text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        self.text = self.text[self.text.index(start) :]
        for language in ("python", "toml", "yaml"):
            for text in self.blocks(language):
                name = text.partition("\n")[0].removeprefix("# ")
                (folder / name).write_text(text, encoding="utf-8")
        self.install()

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)

    def install(self, version: str = "1.0") -> None:
        """Build and install a version of the package, without the network."""
        project = self.folder / "pyproject.toml"
        project.write_text(project.read_text().replace('"1.0"', f'"{version}"'))
        pip, offline = [sys.executable, "-m", "pip"], ["--no-deps", "--no-index", "-q"]
        wheel = ["wheel", *offline, "--no-build-isolation", "-w", f"dist-{version}", "."]
        subprocess.run([*pip, *wheel], check=True, cwd=self.folder)
        (file,) = (self.folder / f"dist-{version}").glob("*.whl")
        shutil.rmtree(self.site, ignore_errors=True)
        target = ["install", *offline, "--target", str(self.site), str(file)]
        subprocess.run([*pip, *target], check=True, cwd=self.folder)

    def commands(self) -> list[list[str]]:
        """The arguments of the page's commands of this package."""
        lines = [shlex.split(line) for text in self.blocks("sh") for line in text.splitlines()]
        return [words[1:] for words in lines if words[0] == "privacy-assets"]

    def run(self, *commands: list[str]) -> tuple[list[int], str]:
        """Exit statuses and the whole output."""
        env = {**os.environ, "DAGSTER_HOME": str(self.folder / "home")}
        (self.folder / "home").mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-P", "-c", DRIVER, json.dumps(commands), self.module],
            cwd=self.folder,
            env={**env, "PYTHONPATH": f"{self.site}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        said = done.stdout + done.stderr
        lines = done.stdout.splitlines()
        statuses = [json.loads(line)[1] for line in lines if line.startswith("[[")]
        assert len(statuses) == len(commands), said
        module = json.loads(lines[-1])["file"]
        assert module is None or Path(module).parent == self.site
        return statuses, said


@pytest.fixture(scope="module")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("metric")
    package = Package("write_a_metric.md", "# Write", folder, "repeated_extremes")
    subprocess.run([sys.executable, "make_tables.py"], check=True, cwd=folder)
    return package


@pytest.mark.slow
def test_a_metric_is_measured_limited_and_named_with_its_version(metric: Package) -> None:
    alone, limited = metric.commands()
    assert [words[0] for words in metric.commands()] == ["evaluate", "evaluate"]
    fresh = ["synthetic.parquet" if word == "copied.parquet" else word for word in limited]
    statuses, said = metric.run(
        [*alone, "--json=alone.json", "--html=alone.html"],
        [*limited, "--json=copied.json"],
        [*fresh, "--json=fresh.json"],
    )
    assert statuses == [3, 1, 0], said
    own, copied, other = (
        json.loads((metric.folder / f"{name}.json").read_text())
        for name in ("alone", "copied", "fresh")
    )
    assert own["metrics"]["repeated_extremes"]["estimates"]["share"]["value"] == 0
    assert "Does the table repeat extreme values" in (metric.folder / "alone.html").read_text()
    (limit,) = copied["limits"]
    assert (limit["statistic"], limit["measured"], limit["status"]) == (
        "repeated_extremes.share",
        pytest.approx(1 / 3),
        "fail",
    )
    assert [entry["cause"] for entry in copied["advice"]] == ["rare values"]
    assert [limit["status"] for limit in other["limits"]] == ["pass"]


@pytest.mark.slow
def test_the_program_that_tries_the_metric_prints_its_statistic(metric: Package) -> None:
    env = {**os.environ, "PYTHONPATH": f"{metric.site}:{ROOT}"}
    program = [sys.executable, "-P", "try_it.py"]
    done = subprocess.run(program, cwd=metric.folder, env=env, capture_output=True, text=True)
    assert done.stdout == "0.0\n", done.stderr


TABLE = """
name: released
data:
  synthetic: synthetic.parquet
  train: train.parquet
  holdout: holdout.parquet
  subject: {each_row: true}
policy: extremes.yaml
"""


@pytest.mark.slow
def test_a_run_of_a_table_stops_at_another_version_until_it_is_accepted(metric: Package) -> None:
    (metric.folder / "released.yaml").write_text(TABLE)
    run = ["run", "released.yaml"]
    statuses, said = metric.run(run)
    assert statuses == [3], "the threshold rule leaves no value of a single person"
    metric.install("1.1")
    statuses, said = metric.run(run)
    changed = (
        "distributions 'repeated_extremes': 'repeated-extremes 1.0' -> 'repeated-extremes 1.1'"
    )
    assert statuses == [1] and changed in said
    statuses, said = metric.run(["accept", "released"])
    (digest,) = re.findall(r"--digest (\w+)", said)
    statuses, said = metric.run(["accept", "released", "--digest", digest], run)
    assert statuses == [0, 3], said


@pytest.mark.slow
def test_without_the_package_its_name_is_unknown(metric: Package) -> None:
    alone, limited = metric.commands()
    installed, metric.site = metric.site, metric.folder / "empty"
    try:
        statuses, said = metric.run(alone, limited)
    finally:
        metric.site = installed
    assert statuses == [2, 2]
    assert "unknown metric 'repeated_extremes'. Known: " in said
    assert "unknown statistic 'repeated_extremes.share'. Known: " in said


@pytest.mark.slow
def test_a_generator_is_listed_stored_and_runs_in_a_table(tmp_path: Path) -> None:
    package = Package("write_a_generator.md", "## A package", tmp_path, "normal_mixture")
    listed, run = package.commands()
    page = (ROOT / "docs" / "write_a_generator.md").read_text()
    (people,) = re.findall(r"^```python\n(# make_people.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "make_people.py").write_text(people.replace("5000", "600"))
    subprocess.run([sys.executable, "make_people.py"], check=True, cwd=tmp_path)
    (tmp_path / "quick.yaml").write_text(yaml.safe_dump(LENIENT))
    with (tmp_path / "mixed.yaml").open("a") as table:
        table.write("policy: quick.yaml\n")
    statuses, said = package.run(listed)
    assert statuses == [0] and "normal_mixture (normal-mixture 1.0)" in said
    assert said.rstrip().endswith('{"file": null}'), "a list loads no code of other packages"

    drawn = ["--generator", "normal_mixture", "--rows", "50", "--seed", "1"]
    made = ["generate", "--data", "people.parquet", *drawn, "--out", "one.parquet"]
    again = [
        "generate",
        "--from-model",
        "model",
        "--rows",
        "50",
        "--seed",
        "1",
        "--out",
        "two.parquet",
    ]
    statuses, said = package.run([*made, "--model", "model"], again, run)
    assert statuses == [0, 0, 0], said
    one, two = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two)
    assert len(one) == 50 and one["smoker"].isin([0, 1]).all()
    assert json.loads((tmp_path / "model" / "generator.json").read_text())["settings"] == {
        "components": 5
    }
    (attestation,) = (tmp_path / "home").rglob("attestation.json")
    payload = base64.b64decode(json.loads(attestation.read_text())["payload"])
    setup = json.loads(payload)["predicate"]["setup"]
    assert setup["distributions"] == {"generator normal_mixture": "normal-mixture 1.0"}
