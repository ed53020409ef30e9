"""The guides of the documentation, followed in an empty folder: files written, commands run in
their order.

Most tests use tables that are ten times smaller, and a quick policy instead of the default one.
Others follow the guides as they are printed, with fixed random numbers. Each code block is either
used by these tests or named in ``NOT_RUN`` with a reason.
"""

from __future__ import annotations

import re
import runpy
import shlex
import smtplib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from dagster._cli import create_dagster_cli
from standins import LENIENT, failed_run

from privacy_assets.cli.main import main

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs"

# Beginning of a command, and why no test runs it.
NOT_RUN = {
    "python3 -m venv": "the tests have an environment",
    ". .venv/bin/activate": "the tests have an environment",
    "pip install": "the tests have an environment",
    "dagster dev": "it ends when a user stops it",
    "dagster schedule start": "it starts a server; the tests evaluate the schedule",
    "dagster sensor start": "it starts a server; the tests evaluate the sensor",
    "dagster job launch": "it needs the daemon of `dagster dev`; the tests execute the job",
}
MODULES = ("definitions", "checks", "alerts")  # of the guides


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (GUIDES / page).read_text(encoding="utf-8")
    return [
        Block(*found)
        for found in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


def quick(code: str) -> str:
    """Return the code of a guide with fewer people, and the quick policy instead of the default
    one.
    """
    fewer = re.sub(r"\b(\d)000\b", r"\g<1>00", code)
    tables = re.sub(r'("subject": "person",?\s*\},\n)', r'\1    policy="quick.yaml",\n', fewer)
    tables = re.sub(r"^(subject: .*)$", r"\1\npolicy: quick.yaml", tables, flags=re.MULTILINE)
    return re.sub(r'\bsubject="(\w+)"', r'subject="\1", policy="quick.yaml"', tables)


def as_printed(seed: int) -> Callable[[str], str]:
    """Return the code of a guide unchanged, except for the seed of its random numbers."""
    return lambda code: code.replace("default_rng()", f"default_rng({seed})")


class Guide:
    """A guide in a folder of its own.

    Attributes:
        page: Name of the page.
        folder: Working folder.
        change: Changes the code of the guide.
        outputs: Exit status and output of each command that ran, by command.
    """

    def __init__(self, page: str, folder: Path, change: Callable[[str], str] = quick) -> None:
        self.page, self.folder, self.change = page, folder, change
        self.outputs: dict[str, tuple[int, str]] = {}
        self.rest = iter(blocks(page))

    def follow(self, until: Callable[[Block], bool] = lambda block: False) -> None:
        """Write the files and run the commands of the next blocks, up to the first one for which
        ``until`` holds.
        """
        for block in self.rest:
            named = re.match(r"# ([\w/]+\.(?:py|yaml))\n", block.text)
            if named:
                (self.folder / named[1]).write_text(self.change(block.text), encoding="utf-8")
            elif block.language == "text":
                continue  # output
            elif block.language == "diff":
                first, before, after = self.change(block.text).splitlines()
                path = self.folder / first.removeprefix("--- ")
                code = path.read_text(encoding="utf-8")
                assert (before[0], after[0]) == ("-", "+") and code.count(f"{before[1:]}\n") == 1
                path.write_text(code.replace(before[1:], after[1:]), encoding="utf-8")
            elif block.language == "sh":
                for line in block.text.replace("\\\n", " ").splitlines():
                    self._run(line)
            else:
                raise AssertionError(f"{self.page}: a block of {block.language} that no test uses")
            if until(block):
                return

    def _run(self, line: str) -> None:
        if any(line.startswith(start) for start in NOT_RUN):
            return
        # set by the fixture
        program, *words = shlex.split(line.removeprefix("PYTHONPATH=. "), comments=True)
        if program == "python":
            runpy.run_path(words[0], run_name="__main__")
            return
        if program == "dagster":
            if line in self.outputs:  # the command caches the definitions of a file
                with dg.DagsterInstance.get() as instance:
                    job = self.definitions().resolve_job_def(words[-1])
                    ran = job.execute_in_process(instance=instance, raise_on_error=False)
                failures = [
                    event.step_failure_data.user_failure_data
                    for event in ran.get_step_failure_events()
                ]
                self.outputs[line] = (0 if ran.success else 1, str(failures))
            else:
                ended = CliRunner().invoke(create_dagster_cli(), words)
                self.outputs[line] = (ended.exit_code, ended.output)
        elif program == "privacy-assets":
            self.outputs[line] = (
                main([*words, *(["--policy=quick.yaml"] if words[0] == "evaluate" else [])]),
                "",
            )
        else:
            assert program in ("cp", "export", "mkdir"), line
            # DAGSTER_HOME: the fixture
            subprocess.run(["bash", "-euc", line], check=True, cwd=self.folder)

    def statuses(self) -> list[int]:
        return [status for status, _ in self.outputs.values()]

    def definitions(self, name: str = "definitions.py") -> dg.Definitions:
        found: dg.Definitions = runpy.run_path(str(self.folder / name))["defs"]
        dg.Definitions.validate_loadable(found)
        return found


@pytest.fixture
def guide(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Guide]]:
    """An empty folder, and the function that opens a guide there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster_home"))
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "the same split in every run of the tests")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "quick.yaml").write_text(yaml.safe_dump(LENIENT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may change within a second
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield lambda page, change=quick: Guide(page, tmp_path, change)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def released(folder: Path) -> list[Path]:
    return sorted((folder / "dagster_home" / "releases").rglob("table.parquet"))


@pytest.mark.slow
def test_the_tutorial(guide: Callable[[str], Guide], capsys: pytest.CaptureFixture[str]) -> None:
    tutorial = guide("tutorial.md")
    tutorial.follow(lambda block: block.text.startswith("# read.py"))
    assert tutorial.statuses() == [1, 0, 0], tutorial.outputs  # inspect asks about the identifier
    (first,) = released(tutorial.folder)
    runpy.run_path("read.py")
    means = pd.read_parquet(first).groupby("smoker")["pressure"].mean()
    assert str(means) in capsys.readouterr().out
    tutorial.follow()
    (status, said) = tutorial.outputs["dagster job execute -f definitions.py -j patients_pipeline"]
    assert status == 1 and "policy does not hold" in said
    assert released(tutorial.folder) == [first]


@pytest.mark.slow
def test_the_tutorial_as_it_is_printed_ends_with_a_release(guide: Callable[..., Guide]) -> None:
    tutorial = guide("tutorial.md", as_printed(0))
    tutorial.follow(lambda block: block.text.startswith("privacy-assets releases"))
    assert tutorial.statuses() == [1, 0, 0], tutorial.outputs
    assert len(released(tutorial.folder)) == 1


@pytest.mark.weekly
@pytest.mark.parametrize("seed", range(10))
def test_it_does_so_for_other_people_and_secrets(
    guide: Callable[..., Guide], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", f"secret {seed}")
    tutorial = guide("tutorial.md", as_printed(seed))
    tutorial.follow(lambda block: block.text.startswith("privacy-assets releases"))
    assert len(released(tutorial.folder)) == 1


@pytest.mark.weekly
@pytest.mark.parametrize("page", ["use_a_release.md", "schedule.md", "several_tables.md"])
def test_the_tables_of_the_guides_are_released(guide: Callable[..., Guide], page: str) -> None:
    followed = guide(page, as_printed(0))
    followed.follow()
    defs = followed.definitions()
    tables = [
        job.name.removesuffix("_pipeline")
        for job in defs.resolve_all_job_defs()
        if job.name.endswith("_pipeline")
    ]
    with dg.DagsterInstance.from_config(str(followed.folder / "dagster_home")) as instance:
        for table in tables:
            if not (followed.folder / "dagster_home/releases" / table).exists():
                assert (
                    defs.resolve_job_def(f"{table}_pipeline")
                    .execute_in_process(instance=instance)
                    .success
                )
    assert tables and len(released(followed.folder)) >= len(tables)


@pytest.mark.slow
def test_the_schedule_and_the_sensor_request_a_run(guide: Callable[[str], Guide]) -> None:
    page = guide("schedule.md")
    page.follow()
    defs = page.definitions()
    with dg.DagsterInstance.from_config(str(page.folder / "dagster_home")) as instance:
        given = {"instance": instance, "resources": defs.resources}
        with dg.build_schedule_context(
            repository_def=defs.get_repository_def(), **given
        ) as context:
            (scheduled,) = (
                defs.resolve_schedule_def("patients_schedule").evaluate_tick(context).run_requests
            )
        with dg.build_sensor_context(definitions=defs, **given) as context:
            (sensed,) = (
                defs.resolve_sensor_def("patients_source_sensor")
                .evaluate_tick(context)
                .run_requests
            )
    assert scheduled.run_key == sensed.run_key, "two requests on the same source are one run"
    text = (GUIDES / "schedule.md").read_text()
    for kind, name in re.findall(
        r"^dagster (schedule|sensor) start -f definitions.py (\w+)$", text, re.MULTILINE
    ):
        assert getattr(defs, f"resolve_{kind}_def")(name)


@pytest.mark.slow
def test_the_alert_is_sent(guide: Callable[[str], Guide], monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[dict[str, str]] = []
    client = SimpleNamespace(chat_postMessage=lambda **given: posted.append(given))
    slack = SimpleNamespace(SlackResource=lambda token: SimpleNamespace(get_client=lambda: client))
    monkeypatch.setitem(sys.modules, "dagster_slack", slack)  # type: ignore[arg-type]  # posts to the Internet
    monkeypatch.setenv("SLACK_TOKEN", "a token")
    monkeypatch.setenv("SMTP_PASSWORD", "a password")
    page = guide("alert.md")
    page.follow()
    defs = page.definitions()
    assert defs.resolve_sensor_def("privacy_run_failures")
    mails: list[str] = []
    server = SimpleNamespace(
        login=lambda *_: None, sendmail=lambda *given: mails.append(str(given))
    )
    context = SimpleNamespace(__enter__=lambda *_: server, __exit__=lambda *_: None)
    monkeypatch.setattr(smtplib, "SMTP_SSL", lambda *_, **__: type("Server", (), vars(context))())
    with dg.DagsterInstance.from_config(str(page.folder / "dagster_home")) as instance:
        job = defs.resolve_job_def("patients_pipeline")
        ended = job.execute_in_process(instance=instance, raise_on_error=False)
        defs.resolve_sensor_def("privacy_run_failures")(failed_run(ended, instance))
        runpy.run_path("mail.py")["mail"](failed_run(ended, instance))
    (message,) = posted
    assert message["channel"] == "#privacy" and "policy does not hold" in message["text"]
    assert "patients__attest: the policy does not hold (fail: " in message["text"]
    (mail,) = mails
    assert "attest" in mail and "policy does not hold" not in mail


def test_each_table_has_its_group(guide: Callable[[str], Guide]) -> None:
    page = guide("several_tables.md")
    page.follow()
    graph = page.definitions().resolve_asset_graph()
    groups = {key.path[0]: graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert groups == {"patients": "patients", "visits": "hospital"}


@pytest.mark.slow
def test_the_release_is_used(guide: Callable[[str], Guide]) -> None:
    page = guide("use_a_release.md")
    page.follow()
    assert page.statuses() == [0, 0, 0], page.outputs
    read = runpy.run_path("read.py")["patients"]
    assert len(read) == len(pd.read_parquet(page.folder / "table.parquet"))


@pytest.mark.slow
def test_an_existing_synthetic_table_is_released(guide: Callable[[str], Guide]) -> None:
    page = guide("own_synthetic.md")
    page.follow()
    assert page.statuses() == [0, 0, 0], page.outputs
    assert len(released(page.folder)) == 1
    rows, given = pd.read_parquet(released(page.folder)[0]), pd.read_csv("synthetic.csv")
    moved = np.abs(rows["age"].sort_values().to_numpy() - given["age"].sort_values().to_numpy())
    assert len(rows) == len(given) and moved.mean() < 1, "only values of few people are replaced"
    assert rows["region"].value_counts().to_dict() == given["region"].value_counts().to_dict()


@pytest.mark.slow
def test_a_function_generates_the_release(guide: Callable[[str], Guide]) -> None:
    page = guide("write_a_generator.md")
    page.follow(lambda block: "run people.yaml" in block.text)
    assert page.statuses() == [0, 0], page.outputs
    made, private = pd.read_parquet("synthetic.parquet"), pd.read_parquet("people.parquet")
    assert len(made) == 500 and made.dtypes.equals(private.dtypes)
    (table,) = released(page.folder)
    assert 200 < len(pd.read_parquet(table)) < 300, (
        "as many as there are in train, half of the people"
    )
