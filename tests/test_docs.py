"""The documentation: its commands and code run, its links resolve, its tables are the registry's.

The names and calls in it: ``tests/test_docs_names.py``.

``UPDATE_DOCS=1 python -m pytest tests/test_docs.py -k default_limits`` rewrites the table of
docs/policy.md.
"""

from __future__ import annotations

import ast
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import MISSING
from math import isnan
from pathlib import Path
from typing import Any, get_args

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml

from privacy_assets import PrivacyGate
from privacy_assets.cli.main import main
from privacy_assets.distances.embedder_settings import EmbedderSettings
from privacy_assets.generators.filters import FILTERS
from privacy_assets.infra.settings import Group, settings_of
from privacy_assets.metrics.base import Question
from privacy_assets.metrics.policies import default_policy, load_policy
from privacy_assets.metrics.registry import build_metric
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import GROUPS, TableSpec
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import to_jsonable
from privacy_assets.studies.shadow_membership.attacks import ATTACKS
from privacy_assets.studies.shadow_membership.audit import AuditConfig
from resources.local import RESOURCES
from tests.shipped import GENERATORS, METRICS, statistic_specs

ROOT = Path(__file__).parents[1]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


README = ROOT / "README.md"
POLICY, STATISTICS = ROOT / "docs" / "policy.md", ROOT / "docs" / "statistics.md"
PAPERS = ROOT / "docs" / "papers.md"
REPORTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for name in ("docs", "examples") for page in sorted((ROOT / name).rglob("*.md"))),
    *REPORTS,
]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def commands(page: Path) -> list[list[str]]:
    """The arguments of every command line in sh blocks; comments dropped, continued lines
    joined.
    """
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with small tables under the names that the README uses."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for first, name in enumerate(("train", "holdout", "synthetic")):
        frame = pd.DataFrame(rng.normal(size=(150, 3)), columns=["a", "b", "c"])
        frame["visits"] = rng.poisson(3, len(frame))
        frame.to_parquet(tmp_path / f"{name}.parquet")
        if name != "synthetic":
            frame["person"] = np.arange(150) + 150 * first
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    for name, subject in (("data/patients", "patient_id"), ("people", "person")):
        frame.assign(**{subject: np.arange(len(frame)) // 2}).to_parquet(
            tmp_path / f"{name}.parquet"
        )
    (tmp_path / "people.yaml").write_text("{name: people, source: people.parquet, subject: person}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "the same split in every run of the tests")
    return tmp_path


# --- commands
# --------------------------------------------------------------------------------------------------


def test_the_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {words[1] for words in commands(README) if words[0] == "make"}
    assert {"demo", "test"} <= named <= targets


def test_every_extra_that_is_named_is_there() -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
    texts = [README, *(ROOT / "docs").rglob("*.md"), *(ROOT / "privacy_assets").rglob("*.py")]
    named = {
        name
        for file in texts
        for name in re.findall(r"privacy-assets\[([a-z0-9,]+)\]", file.read_text())
    }
    assert {"dagster", "ui"} <= {one for name in named for one in name.split(",")} <= extras


SMALL_AUDIT = ["--max-targets=2", "--shadows=8", "--tests=4", "--size=40"]
SMALL_PLAN = ["--train=30", "--holdout=20", "--draws=1"]
SMALL_STUDY = ["--no-embedder", "--metrics=dcr", "--fractions=0,1", "--noise=0"]


@pytest.mark.parametrize(
    ("page", "ended", "written", "words"),
    [  # by command: its exit status, and arguments that make it quick; 150 rows are undecided
        pytest.param(
            "docs/commands.md",
            {
                "evaluate": (3, ["--device=cpu"]),
                "inspect": (0, []),
                "power": (3, SMALL_PLAN),
                "run": (3, []),
            },
            ["report.json", "report.html"],
            "undecided",
            marks=pytest.mark.slow,
        ),
        (
            "docs/audit.md",
            {"audit": (0, SMALL_AUDIT)},
            ["audit.json", "checkpoint"],
            "AUC over records",
        ),
        (
            "docs/controls.md",
            {"leak-study": (0, SMALL_STUDY)},
            ["study/leak_study.html"],
            "never back",
        ),
        pytest.param(
            "docs/generators.md",
            {"generate": (0, []), "evaluate": (3, ["--no-embedder"])},
            ["synthetic.parquet", "more.csv"],
            "NOT EVALUATED",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_commands_of_the_pages_run(
    page: str,
    ended: dict[str, tuple[int, list[str]]],
    written: list[str],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = [given[1:] for given in commands(ROOT / page) if given[0] == "privacy-assets"]
    assert {given[0] for given in ours} == set(ended)
    for given in ours:
        status, more = ended[given[0]]
        assert main([*given, *more]) == status
    assert all((folder / name).stat().st_size for name in written)
    assert words in "".join(capsys.readouterr())


def commands_of_the_papers() -> list[Any]:
    """Return the commands of docs/papers.md, without programs of benchmarks, whose options another
    test checks.

    A cell in the column "run" continues the command of the page's first block that starts with the
    same word.
    """
    whole = [given[1:] for given in commands(PAPERS)]
    first = {given[0]: given for given in reversed(whole)}
    found, column = dict.fromkeys(map(shlex.join, whole)), None
    for line in PAPERS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if "run" in cells:
            column = cells.index("run")
        elif len(cells) == 1:
            column = None
        elif column is not None and not cells[column].startswith("-"):
            spans = re.findall(r"`([^`]+)`", cells[column])
            assert spans, f"no command: {line[:60]}"
            for name, *more in map(shlex.split, spans):
                if name != "python":
                    found.setdefault(shlex.join([*first[name], *more]))
    return [
        pytest.param(
            shlex.split(command), marks=pytest.mark.weekly if "--overfit" in command else ()
        )
        for command in found
    ]


@pytest.mark.slow
@pytest.mark.parametrize("given", commands_of_the_papers(), ids=shlex.join)
def test_the_commands_of_the_papers_run(given: list[str], folder: Path) -> None:
    """Options that make a command quick come first, so that others of the page take precedence;
    sizes come last.
    """
    (folder / "examples" / "policies").mkdir(parents=True)
    for path in (ROOT / "examples" / "policies").iterdir():
        policy = yaml.safe_load(path.read_text())
        quick = {**policy, "embedder": {**policy.get("embedder", {}), "max_epochs": 2}}
        (folder / "examples" / "policies" / path.name).write_text(yaml.safe_dump(quick))
    people = yaml.safe_load((folder / "people.yaml").read_text())
    (folder / "people.yaml").write_text(
        yaml.safe_dump({**people, "evaluation": {"metrics": ["dcr"]}})
    )
    small = {
        "evaluate": ["--device=cpu"]
        + ([] if "--policy" in given else ["--metrics=dcr", "--no-embedder"]),
        "leak-study": SMALL_STUDY[: 2 if "--overfit" in given else None],
        "audit": ["--attack-set=epochs=2"] if "attention" in given else [],
        "run": [],
    }[given[0]]
    small = [*small, *(["--set=epochs=2"] if "--overfit" in given else [])]
    undecided = (0, 3) if given[0] in ("evaluate", "run") else (0,)  # 150 people may not suffice
    sizes = SMALL_AUDIT if given[0] == "audit" else []
    assert main([given[0], *small, *given[1:], *sizes]) in undecided


def test_the_benchmarks_of_the_pages_exist_with_their_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [words for page in PAGES for words in commands(page) if words[:2] == ["python", "-m"]]
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown += [shlex.split(line) for line in re.findall(r"`(python -m benchmarks\.[^`]+)`", texts)]
    named = {words[2] for words in shown if words[2].startswith("benchmarks.")}
    assert {"benchmarks.peers", "benchmarks.neighbors"} <= named
    for module in sorted(named):
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit) as caught:
            runpy.run_module(module, run_name="__main__")
        assert caught.value.code == 0
        offered = capsys.readouterr().out
        options = [
            word
            for words in shown
            if words[2] == module
            for word in words[3:]
            if word.startswith("--")
        ]
        assert [option for option in options if not re.search(rf"{option}\b", offered)] == []


# --- code
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_python_of_the_readme_runs(folder: Path) -> None:
    names: dict[str, object] = {}
    codes = blocks(README, "python")
    assert sum("build_privacy_assets(" in code for code in codes) == 1
    printed = io.StringIO()
    with redirect_stdout(printed):
        for code in codes:
            exec(compile(code, "README.md", "exec"), names)
    (shown,) = blocks(README, "text")
    questions = [line[:62] for line in shown.splitlines()[1:]]
    assert [line[:62] for line in printed.getvalue().splitlines()[1:]] == questions
    assert Path("report.html").stat().st_size
    dg.Definitions.validate_loadable(names["defs"])
    assert names["defs"].resolve_job_def("patients_pipeline")
    assert names["report"].verdict == "undecided"


@pytest.mark.parametrize(
    ("page", "count"), [("filters.md", 1), ("generators.md", 1), ("scale.md", 2)]
)
def test_the_definitions_of_the_pages_can_be_built(page: str, count: int, folder: Path) -> None:
    pytest.importorskip("dagster_ray")
    # starts a cluster
    codes = [code for code in blocks(ROOT / "docs" / page, "python") if "on_ray" not in code]
    assert len(codes) == count
    for code in codes:
        names: dict[str, object] = {}
        exec(compile(code, page, "exec"), names)
        for defs in (one for one in names.values() if isinstance(one, dg.Definitions)):
            dg.Definitions.validate_loadable(
                dg.Definitions.merge(defs, dg.Definitions(resources=RESOURCES))
            )


# Where the blocks of a page are used, by language; a sentence is the reason why no test uses them.
GUIDES = "tests/test_guides.py"
BLOCKS = {
    "docs/commands.md": {"sh": "tests/test_docs.py"},
    "README.md": {"sh": "tests/test_docs.py", "python": "tests/test_docs.py"},
    "CONTRIBUTING.md": {"sh": "continuous integration runs the same targets"},
    "docs/airflow.md": {
        "sh": "the tests start Airflow with their own settings",
        "python": "tests/airflow/test_airflow.py",
    },
    "docs/alert.md": dict.fromkeys(("sh", "python"), GUIDES),
    "docs/api.md": {"{eval-rst}": "tests/test_site.py"},
    "docs/audit.md": {"sh": "tests/test_docs.py"},
    "docs/controls.md": {
        "sh": "tests/test_docs.py",
        "python": "tests/studies/test_leak_study_job.py",
        "bash": "the job runs in tests/studies, with a smaller table",
    },
    "docs/downstream.md": {
        "sh": "tests/dagster/test_downstream.py",
        "python": "tests/test_docs.py",
    },
    "docs/filters.md": {"python": "tests/test_docs.py"},
    "docs/generators.md": {
        "sh": "tests/test_docs.py",
        "python": "tests/test_docs.py",
        "bash": "it installs packages that are incompatible with these",
    },
    "docs/install.md": {"sh": "it installs packages"},
    "docs/integrations/dagster.md": {
        "sh": "tests/bypasses/test_bypasses_tags.py",
        "python": "tests/test_site.py",
    },
    "docs/kubernetes.md": {
        "sh": "no cluster is available",
        "python": "tests/deployment/test_kubernetes.py",
    },
    "docs/own_synthetic.md": dict.fromkeys(("sh", "python"), GUIDES),
    "docs/papers.md": {"sh": "tests/test_docs.py"},
    "docs/scale.md": {"sh": "tests/deployment/test_cluster.py", "python": "tests/test_docs.py"},
    "docs/schedule.md": dict.fromkeys(("sh", "python"), GUIDES),
    "docs/several_tables.md": dict.fromkeys(("sh", "python"), GUIDES),
    "docs/statistics.md": {"bash": "`--row-scores` runs in tests/cli, with a smaller table"},
    "docs/tutorial.md": dict.fromkeys(("sh", "python", "diff"), GUIDES),
    "docs/use_a_release.md": dict.fromkeys(("sh", "python"), GUIDES),
    "docs/write_a_generator.md": {
        **dict.fromkeys(("sh", "python"), GUIDES),
        "toml": "tests/test_write_a_package.py",
    },
    "docs/write_a_metric.md": dict.fromkeys(
        ("sh", "python", "toml"), "tests/test_write_a_package.py"
    ),
    "examples/airflow/README.md": {"sh": "tests/airflow/test_airflow_examples.py"},
}


def test_every_block_is_used_by_a_test_or_has_a_reason() -> None:
    """Another test loads all YAML, and blocks of text are output."""
    found = {
        str(page.relative_to(ROOT)): languages
        for page in PAGES
        if (
            languages := set(
                re.findall(r"^```(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            )
            - {"text", "yaml"}
        )
        and page not in REPORTS
    }
    assert found == {page: set(given) for page, given in BLOCKS.items()}
    used = {
        (page, where)
        for page, given in BLOCKS.items()
        for where in given.values()
        if where.startswith("tests/")
    }
    unused = [
        (page, where)
        for page, where in used
        if Path(page).stem not in (ROOT / where).read_text("utf-8")
    ]
    assert unused == []


def test_pages_install_from_a_checkout_until_a_version_is_released() -> None:
    unreleased = "No version has been released"
    from_checkout, from_index, stated = set(), set(), set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = "\n".join(blocks(page, "sh") + blocks(page, "bash"))
        if "'../privacy-assets[" in code:
            from_checkout.add(page.name)
        if re.search(r"pip install .*(?<![\w./-])privacy-assets\b", code):
            from_index.add(page.name)
        if unreleased in text and page.name != "CHANGELOG.md":
            stated.add(page.name)
        assert "virtual environment that has" not in text or "(install.md)" in text, page
    if unreleased in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        assert from_index == set()
        assert (
            from_checkout == {"airflow.md", "install.md", "tutorial.md"} and from_checkout <= stated
        )
    else:
        assert from_checkout == stated == set(), "a version can be installed from the index"


def test_the_python_of_the_page_on_downstream_assets_loads() -> None:
    names: dict[str, object] = {}
    for code in blocks(ROOT / "docs" / "downstream.md", "python"):
        exec(compile(code, "downstream.md", "exec"), names)
    dg.Definitions.validate_loadable(names["defs"])


def test_the_yaml_of_the_pages_loads(folder: Path) -> None:
    loaded = {"component": 0, "instance": 0, "policy": 0, "table": 0}
    for page in PAGES:
        # what they name does not exist here: see tests of these guides
        if page.name.startswith("write_a_"):
            continue
        for text in blocks(page, "yaml"):
            data = yaml.safe_load(text)
            if "type" in data:
                assert data["type"] == "privacy_assets.PrivacyGate"
                gate = PrivacyGate.resolve_from_yaml(yaml.safe_dump(data["attributes"]))
                defs = gate.build_defs(dg.ComponentTree.for_test().load_context)
                dg.Definitions.validate_loadable(
                    dg.Definitions.merge(defs, dg.Definitions(resources=RESOURCES))
                )
                loaded["component"] += 1
            elif "concurrency" in data or "compute_logs" in data:
                (folder / "dagster.yaml").write_text(text)
                with dg.DagsterInstance.from_config(str(folder)) as instance:
                    limits = (
                        instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
                    )
                    logs = type(instance.compute_log_manager).__name__
                if "concurrency" in data:
                    assert limits == data["concurrency"]["runs"]["tag_concurrency_limits"]
                else:
                    assert logs == "NoOpComputeLogManager"
                loaded["instance"] += 1
            elif "source" in data:
                assert ResolvedTable.of(TableSpec(**data)).spec.data.subject == data["subject"]
                loaded["table"] += 1
            else:
                policy = load_policy(data)
                assert {limit.statistic for limit in policy.limits} <= set(statistic_specs())
                loaded["policy"] += 1
    assert loaded == {"component": 2, "instance": 2, "policy": 8, "table": 4}


def test_every_generator_is_described() -> None:
    lines = (ROOT / "docs" / "generators.md").read_text(encoding="utf-8").splitlines()
    first = [line.split("|")[1] for line in lines if line.startswith("| `")]
    described = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(described) == sorted(GENERATORS)


# --- tables
# --------------------------------------------------------------------------------------------------


def limits_text() -> str:
    """Return the table of default limits in docs/policy.md."""
    lines = [
        "| statistic | default limit | bound | min_subjects | source of the number |",
        "|---|---|---|---|---|",
    ]
    limits = [limit for metric in METRICS.values() for limit in metric.default_limits]
    for limit in limits:
        cells = [
            f"`{limit.statistic}`",
            _limit(limit),
            limit.bound,
            str(limit.min_subjects),
            limit.source,
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", "No other statistic has a default limit.", ""])


def _limit(limit: Limit) -> str:
    return f"≤ {limit.at_most:g}" if limit.at_most is not None else f"≥ {limit.at_least:g}"


def test_the_default_limits_are_those_of_the_registry() -> None:
    expect_part(POLICY, "limits", limits_text())


def test_the_bypasses_of_the_page_are_those_with_a_test() -> None:
    """Each number is on the page of the gate and in the name of a test; the page and SECURITY count
    them.
    """
    tested: set[int] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for numbers in re.findall(
            r"def test_bypass(?:es)?_([\d_and]+?)_[a-z]", path.read_text(encoding="utf-8")
        ):
            tested |= {int(number) for number in re.findall(r"\d+", numbers)}
    page = (
        read("docs/gate.md").partition("## Bypasses of a blocking check")[2].partition("## Keys")[0]
    )
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    listed |= {int(number) for number in re.findall(r"\((\d+)\)", page)}
    assert listed == tested == set(range(1, len(tested) + 1))
    assert f"{len(tested)} bypasses" in read("docs/gate.md") and f"{len(tested)} bypasses" in read(
        "SECURITY.md"
    )


def test_the_pages_count_the_limits_of_the_policy() -> None:
    n_limits = len(default_policy().limits)
    for page in ("docs/on_call.md", "docs/alert.md"):
        counts = re.findall(r"of (\d+) limits", read(page))
        assert counts and set(counts) == {str(n_limits)}, page


def test_the_doses_of_the_page_are_those_of_the_setting() -> None:
    said = re.search(
        r"from ([\d., and]+?) to (\d+) % of the rows", " ".join(read("docs/controls.md").split())
    )
    assert said is not None
    doses = [float(number) for number in re.findall(r"[\d.]+\d|\d", said[1])] + [float(said[2])]
    assert [round(100 * dose, 2) for dose in build_metric("controls").doses] == doses  # type: ignore[attr-defined]


def test_the_page_says_what_the_policy_small_tolerates() -> None:
    page = " ".join(read("docs/policy.md").split())
    for key, (before, after) in {
        "copies.copied_share": ("4 %", "8 %"), "copies.copied_share.proven": ("0.3 %", "0.6 %"),
        "membership_inference.precision": ("0.7", "0.75"),
    }.items():  # fmt: skip
        policies = [
            {limit.key: limit.value for limit in load_policy(name).limits}
            for name in ("default", "small")
        ]
        scale = 100 if before.endswith("%") else 1
        assert [scale * policy[key] for policy in policies] == [
            float(x.removesuffix(" %")) for x in (before, after)
        ]
        assert f"{after} " in page and before in page
    limits = zip(load_policy("default").limits, load_policy("small").limits, strict=True)
    assert sum(one.value != other.value for one, other in limits) == 3


def test_each_default_limit_finds_leaks_in_the_study_or_is_an_exception_of_the_page() -> None:
    study = set(
        re.findall(
            r"^\| `([\w.]+)` \| \d+ \| \d+ \|", read("benchmarks/results/leaks.md"), re.MULTILINE
        )
    )
    exceptions = {
        "value_disclosure.foreign_cells": "values of no real row",
        "value_disclosure.generated_excess.proven": "generated identifiers",
        "cumulative_disclosure.excess.proven": "earlier releases",
        "cumulative_disclosure.share.proven": "earlier releases",
    }
    assert {limit.key for limit in default_policy().limits} - study == set(exceptions)
    reasons = (
        read("docs/policy.md").partition("## Choice of the default limits")[2].partition("\n## ")[0]
    )
    assert [
        reason for reason in exceptions.values() if reason not in " ".join(reasons.split())
    ] == []


def test_the_pages_count_the_questions_of_the_report() -> None:
    assert len(get_args(Question)) == 6
    assert "Page one has six questions" in read("docs/adr/0013-reports.md")
    assert "Page one of the report answers six questions" in read("docs/statistics.md")


def private_names_of_dagster(source: str) -> set[str]:
    """Return the private names of Dagster that a file uses: imported names, modules named in texts,
    and private attributes of objects.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dagster._"):
            names.update(imported.name for imported in node.names)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("dagster._"):
            names.add(str(node.value))
        elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
            is_ours = ast.unparse(node.value) in ("self", "cls", "sys")
            if not is_ours:
                names.add(node.attr)
    return names


def test_contributing_names_the_private_api_of_dagster() -> None:
    used = {}
    for path in (ROOT / "privacy_assets" / "dagster").rglob("*.py"):
        names = private_names_of_dagster(path.read_text(encoding="utf-8"))
        if names:
            used[path.name] = names
    modules = {name.rpartition(".")[2] for name in used.pop("preload.py")}
    assert set(used) == {"frozen_config.py"}
    _, _, text = read("CONTRIBUTING.md").partition("Dagster's private API is used")
    paragraph, _, _ = text.partition("\n\n")
    listed = set(re.findall(r"`(?:dagster\._config\.)?([A-Za-z_]+)`", paragraph))
    assert used["frozen_config.py"] | modules == listed


def test_the_index_of_decisions_has_each_record() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    titles = [
        record.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for record in records
    ]
    links = [f"- [{title}]({record.name})" for title, record in zip(titles, records, strict=True)]
    index = read("docs/adr/README.md").splitlines()
    assert [line for line in index if line.startswith("- [")] == links


def test_the_limits_of_the_papers_are_those_of_their_policy() -> None:
    rows = [
        line.split(" | ")[:2]
        for line in PAPERS.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| `", line)
    ]
    own = yaml.safe_load(
        (ROOT / "examples" / "policies" / "papers.yaml").read_text(encoding="utf-8")
    )
    (added,) = blocks(PAPERS, "yaml")
    limits = load_policy(
        {**own, "limits": [*own["limits"], *yaml.safe_load(added)["limits"]]}
    ).limits
    assert all(limit.source for limit in limits)
    assert rows == [
        [f"| `{limit.statistic}`", f"{_limit(limit)}, {limit.bound}"] for limit in limits
    ]


def expect_part(page: Path, part: str, expected: str) -> None:
    """Check the generated part of a page, or write it if UPDATE_DOCS is set."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {part}: .*?-->\n(.*?)<!-- end of {part} -->", text, re.DOTALL)
    assert found, f"{page.name} has no part {part}"
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(text[: found.start(1)] + expected + text[found.end(1) :], encoding="utf-8")
    else:
        assert found[1] == expected, (
            f"docs/{page.name} should contain (UPDATE_DOCS=1 writes it):\n{expected}"
        )


HOME = """
## Home of a deployment

A deployment is one folder, its home: `--home DIR` on the command line, `home=` of `ReleaseResource`, `PrivacyIOManager`
and `AirflowDeployment`. The default is `DAGSTER_HOME`, else `./.dagster_home` on the command line. It contains three
folders, each of which can be elsewhere:

| folder | content | option | setting of `ReleaseResource`, `AirflowDeployment` | environment |
|---|---|---|---|---|
| `private` | signed files of the gate, signing key, split key | `--private` | `private` | `PRIVACY_ASSETS_PRIVATE` |
| `releases` | published tables | `--releases` | `releases` | `PRIVACY_ASSETS_RELEASES` |
| `trusted_keys` | public keys whose signatures count | | `trusted_keys` | `PRIVACY_ASSETS_TRUSTED_KEYS` |

For each folder, the first value that is set counts. "The home" is the one that an option or setting names:

| folder | first | second | third | otherwise |
|---|---|---|---|---|
| `private` | option or setting | `private` in the home | environment | `private` next to the releases |
| `releases` | option or setting | `releases` in the home | environment | the default home (Airflow: error) |
| `trusted_keys` | setting | environment | `trusted_keys` in the home | `trusted_keys` next to the releases |

Dagster does not read the variables of `private` and `releases`: without a setting and a home, both are in
`DAGSTER_HOME`, unless your code passes them. If the releases are in an object store, nothing next to them is used: set
the private folder or a home, and the trusted keys. Settings are not templates: `{{` or `{%` in a setting is an error.

Other values come from these variables:

| environment | value | setting |
|---|---|---|
| `PRIVACY_ASSETS_SIGNING_KEY` | signing key (PEM), instead of its file | `signing_key_variable`: another name |
| `PRIVACY_ASSETS_SPLIT_KEY` | split key, instead of its file | `split_key_variable`: another name |
| `PRIVACY_ASSETS_REPORT_URL` | URL of your web server for reports | `report_url` |

Without a report URL, reports have a path and no link. Airflow reads this variable, Dagster only if the code names it.

The first run writes the id of the deployment to a file `.privacy-assets` in each folder, and the layout to that of the
private folder. A folder of another deployment is rejected, and so is a private folder that has contents and no marker,
or another layout. Copies of public keys need no marker. If the private folder is on disk and releases are in an object
store, `privacy-assets prepare --releases URL --private DIR` marks both.

No URL may contain credentials: the libraries of object stores read them from the environment, and in Airflow
`store_conn_id` names a Connection. The only parameters of URLs are `versionId`, `generation`, `version`, `region`,
`endpoint_url` and `format`. Names of columns and partitions have at most 128 visible characters in Unicode form
NFC, to which names in files are converted. The escaped key of a partition has at most 200 bytes. YAML files contain
plain decimal numbers, and no aliases, merge keys or tags.
"""  # noqa: E501


def allowed(domain: str) -> str:
    """Return the allowed values with mathematical signs, for example "integer ≥ 1"."""
    signs = {
        r"^(an?|the) ": "",
        r",? of at least ": " ≥ ",
        r"\babove ": "> ",
        r"\bbelow ": "< ",
        r"\bat most (?=\d[\d.e+-]*$)": "≤ ",
    }
    for words, sign in signs.items():
        domain = re.sub(words, sign, domain)
    return domain


def settings_text() -> str:
    """Return the page of settings: a list for each part that has some; equal settings of parts of a
    kind once.
    """
    attacks = [kind for kind, _ in ATTACKS.values()]
    parts = [
        TableSpec,
        *GROUPS,
        *METRICS.values(),
        *GENERATORS.values(),
        *FILTERS.values(),
        EmbedderSettings,
        AuditConfig,
        *attacks,
    ]
    lines = [
        "# Settings",
        "",
        "Each line has a setting with its default, the allowed values, and the meaning. Another"
        " value is an error that",
        "names the part and the setting. Settings of metrics and of the embedder belong to the",
        "[policy](policy.md#settings-of-metrics); a table may set only the marked ones.",
    ]
    described: dict[tuple[str, ...], str] = {}
    for part in parts:
        known = settings_of(part)
        if not known:
            continue
        title = " ".join(getattr(part, one) for one in ("part", "name") if hasattr(part, one))
        title = f"{title} of a table" if part in GROUPS else title
        own, shared = [], dict[str, list[str]]()
        for one in known:
            unset = one.default is None or one.default is MISSING or isinstance(one.default, Group)
            name = f"`{one.name}`" if unset else f"`{one.name} = {to_jsonable(one.default)}`"
            key = (
                str(getattr(part, "part", "")).replace("audit", "metric"),
                one.name,
                one.meaning,
                one.domain,
            )
            first = described.setdefault(key, str(getattr(part, "name", title)))
            if first != str(getattr(part, "name", title)):
                shared.setdefault(first, []).append(name)
                continue
            meaning = f"{one.meaning[0].upper()}{one.meaning[1:].rstrip('.')}."
            meaning = f"{meaning} A table may set it." if one.by_table else meaning
            evident = isinstance(one.default, Group | bool)
            values = "" if evident else f" ({allowed(one.domain)})"
            own.append(f"- {name}{values}: {meaning}")
        own += [f"- as for `{first}`: {', '.join(names)}" for first, names in shared.items()]
        lines += ["", f"## {title}", "", *own]
    return "\n".join([*lines, HOME])


def test_the_page_of_settings_is_written_from_their_declarations() -> None:
    page, expected = ROOT / "docs" / "settings.md", settings_text()
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(expected, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == expected, "UPDATE_DOCS=1 writes it"


@pytest.mark.parametrize(
    "kind", [*METRICS.values(), *GENERATORS.values(), *FILTERS.values()], ids=lambda kind: kind.name
)
def test_every_setting_says_what_it_means(kind: type) -> None:
    assert all(one.meaning and one.domain for one in settings_of(kind))


def statistics_text() -> str:
    """Return the table of statistics in docs/statistics.md."""
    lines = ["| statistic | meaning | null value | riskier |", "|---|---|---|---|"]
    arrows = {"higher_is_riskier": "↑", "lower_is_riskier": "↓", "two_sided": "↕"}
    for name, spec in statistic_specs().items():
        null = "varies" if spec.null is None else "" if isnan(spec.null) else f"{spec.null:g}"
        lines.append(f"| `{name}` | {spec.meaning} | {null} | {arrows[spec.direction]} |")
    return "\n".join([*lines, ""])


def test_every_statistic_is_explained_once() -> None:
    expect_part(STATISTICS, "statistics", statistics_text())


# --- links and words
# --------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_cost_of_a_first_evaluation_is_the_measured_one() -> None:
    page = (ROOT / "benchmarks" / "results" / "first_hour.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    cpu = {name: seconds for _, name, seconds, *_ in rows}
    cold, warm, peer = (
        cpu[name] for name in ("`evaluate`, cold", "`evaluate`, warm", "anonymeter's four attacks")
    )
    quoted = (
        f"{cold} CPU seconds the first time on a machine and {warm} afterwards; anonymeter's four"
        " attacks"
    )
    assert f"{quoted} alone take {peer}" in " ".join(read("docs/scale.md").split())


def test_the_readme_is_short() -> None:
    text = re.sub(
        r"^```.*?^```", "", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert len(text.split()) <= 450


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_no_file_names_a_workplace_or_a_package_host() -> None:
    hosts = ("pypi." + "org", "python" + "hosted", "download.py" + "torch", "anaconda." + "org")
    words = [word.encode() for word in (*hosts, "/wo" + "rk/", ".lib" + "rary")]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(paths) > 50
    found = [
        f"{path.relative_to(ROOT)}: {word.decode()}"
        for path in paths
        if path.is_file()
        for word in words
        if word in path.read_bytes()
    ]
    assert found == []
