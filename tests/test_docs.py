"""The documentation: its commands and code run, its links resolve, its tables are the registry's.

``UPDATE_DOCS=1 python -m pytest tests/test_docs.py -k default_limits`` rewrites the table of docs/policy.md.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml

import privacy_assets
from privacy_assets import PrivacyGate, evaluate
from privacy_assets.cli.main import main
from privacy_assets.embedding.settings import EmbedderSettings
from privacy_assets.generators import GENERATORS
from privacy_assets.generators.filters.registry import FILTERS
from privacy_assets.metrics.registry import METRICS, default_metrics, statistic_specs
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.spec import GROUPS, Group, TableSpec
from privacy_assets.policy import Policy
from privacy_assets.settings import settings_of
from privacy_assets.shadow.attacks import ATTACKS
from privacy_assets.shadow.plan import AuditPlan
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.results import plain
from resources.local import RESOURCES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
POLICY, STATISTICS = ROOT / "docs" / "policy.md", ROOT / "docs" / "statistics.md"
REPORTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for name in ("docs", "examples") for page in sorted((ROOT / name).rglob("*.md"))),
    *REPORTS,
]
START = "<!-- limits: written by UPDATE_DOCS=1 python -m pytest tests/test_docs.py -k default_limits -->\n"
END = "<!-- end of limits -->"


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The words of every command line in sh blocks; comments dropped, continued lines joined."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with small tables under the names that the README uses."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name in ("train", "holdout", "synthetic", "t", "h", "s"):
        frame = pd.DataFrame(rng.normal(size=(150, 3)), columns=["a", "b", "c"])
        frame["visits"] = rng.poisson(3, len(frame))
        frame.to_parquet(tmp_path / f"{name}.parquet")
    for name, subject in (("data/patients", "patient_id"), ("people", "person")):
        frame.assign(**{subject: np.arange(len(frame)) // 2}).to_parquet(tmp_path / f"{name}.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- commands ---------------------------------------------------------------------------------------------------------


def test_the_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {words[1] for words in commands(README) if words[0] == "make"}
    assert {"demo", "test", "ui", "demo-leak", "help"} <= named <= targets


def test_the_commands_without_make_name_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    scripts = {f".venv/bin/{name}" for name in (*project["scripts"], "pip", "python")}
    plain = [words for words in commands(README) if words[0] not in ("make", "privacy-assets")]
    assert plain[0] == ["python3", "-m", "venv", ".venv"]
    assert {words[0] for words in plain[1:]} <= scripts
    for words in plain:
        if "-c" in words:
            assert (ROOT / words[words.index("-c") + 1]).is_file()
            extras = re.findall(r"\[(.*)\]", words[-1])[0].split(",")
            assert set(extras) <= set(project["optional-dependencies"])
        if words[0].endswith("privacy-assets"):
            with pytest.raises(SystemExit) as caught:
                main([*words[1:], "--help"])
            assert caught.value.code == 0
    assert "--leak" in capsys.readouterr().out


def test_every_extra_that_is_named_is_there() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    texts = [README, *(ROOT / "docs").rglob("*.md"), *(ROOT / "privacy_assets").rglob("*.py")]
    named = {name for file in texts for name in re.findall(r"privacy-assets\[([a-z0-9,]+)\]", file.read_text())}
    assert {"torch", "dagster", "ui"} <= {one for name in named for one in name.split(",")} <= extras


SMALL_AUDIT = ["--records=2", "--shadows=8", "--tests=4", "--size=40"]
SMALL_PLAN = ["--train=30", "--holdout=20", "--draws=1"]
SMALL_STUDY = ["--no-embedder", "--metrics=dcr", "--fractions=0,1", "--noise=0"]


@pytest.mark.parametrize(
    ("page", "ended", "written", "words"),
    [  # by command: its exit status, and what makes it quick enough; 150 rows are not assessable
        ("README.md", {"evaluate": (1, ["--device=cpu"]), "plan": (1, SMALL_PLAN)}, ["report.json", "report.html"],
         "not assessable"),
        ("docs/audit.md", {"audit": (0, SMALL_AUDIT)}, ["audit.json", "checkpoint"], "AUC over records"),
        ("docs/controls.md", {"calibrate": (0, SMALL_STUDY)}, ["study/calibration.html"], "never back"),
        pytest.param("docs/generators.md",
                     {"generators": (0, []), "generate": (0, []), "evaluate": (1, ["--no-embedder"])},
                     ["synthetic.parquet", "more.csv"], "NOT JUDGED", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_commands_of_the_pages_run(
    page: str, ended: dict[str, tuple[int, list[str]]], written: list[str], words: str,
    folder: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ours = [given[1:] for given in commands(ROOT / page) if given[0] == "privacy-assets"]
    assert {given[0] for given in ours} == set(ended)
    for given in ours:
        status, more = ended[given[0]]
        assert main([*given, *more]) == status
    assert all((folder / name).stat().st_size for name in written)
    assert words in "".join(capsys.readouterr())


def test_the_commands_inside_the_text_exist(capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    named = re.findall(r"`privacy-assets ([^`]+)`", text)
    assert named
    for words in map(shlex.split, named):
        with pytest.raises(SystemExit) as caught:
            main([words[0], "--help"])
        assert caught.value.code == 0
        offered = capsys.readouterr().out
        assert all(word in offered for word in words[1:])


def test_the_benchmarks_of_the_pages_exist_with_their_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [words for page in PAGES for words in commands(page) if words[:2] == ["python", "-m"]]
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown += [shlex.split(line) for line in re.findall(r"`(python -m benchmarks\.[^`]+)`", texts)]
    named = {words[2] for words in shown if words[2].startswith("benchmarks.")}
    assert {"benchmarks.peers", "benchmarks.neighbours"} <= named
    for module in sorted(named):
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit) as caught:
            runpy.run_module(module, run_name="__main__")
        assert caught.value.code == 0
        offered = capsys.readouterr().out
        options = [word for words in shown if words[2] == module for word in words[3:] if word.startswith("--")]
        assert [option for option in options if not re.search(rf"{option}\b", offered)] == []


# --- code -------------------------------------------------------------------------------------------------------------


def test_the_python_of_the_readme_runs(folder: Path) -> None:
    names: dict[str, object] = {}
    codes = [code for code in blocks(README, "python") if "airflow" not in code]  # see tests/plugin/test_airflow.py
    assert sum("build_privacy_assets(" in code for code in codes) == 3
    for code in codes:
        exec(compile(code, "README.md", "exec"), names)
    dg.Definitions.validate_loadable(names["defs"])
    assert names["defs"].resolve_job_def("patients_pipeline")
    assert names["report"].verdict == "not_assessable"


def test_the_yaml_of_the_pages_loads(folder: Path) -> None:
    loaded = {"component": 0, "instance": 0, "policy": 0, "table": 0}
    for page in PAGES:
        if page.name == "CONTRIBUTING.md":  # whose metric is not there: see test_contributing.py
            continue
        for text in blocks(page, "yaml"):
            data = yaml.safe_load(text)
            if "type" in data:
                assert data["type"] == "privacy_assets.PrivacyGate"
                gate = PrivacyGate.resolve_from_yaml(yaml.safe_dump(data["attributes"]))
                defs = gate.build_defs(dg.ComponentTree.for_test().load_context)
                dg.Definitions.validate_loadable(dg.Definitions.merge(defs, dg.Definitions(resources=RESOURCES)))
                loaded["component"] += 1
            elif "concurrency" in data or "compute_logs" in data:
                (folder / "dagster.yaml").write_text(text)
                with dg.DagsterInstance.from_config(str(folder)) as instance:
                    limits = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
                    logs = type(instance.compute_log_manager).__name__
                if "concurrency" in data:
                    assert limits == data["concurrency"]["runs"]["tag_concurrency_limits"]
                else:
                    assert logs == "NoOpComputeLogManager"
                loaded["instance"] += 1
            elif "source" in data:
                assert TablePlan.of(TableSpec(**data)).subject == data["subject"]
                loaded["table"] += 1
            else:
                policy = Policy.from_dict(data, source=page.name)
                assert {limit.statistic for limit in policy.limits} <= set(statistic_specs())
                loaded["policy"] += 1
    assert loaded == {"component": 2, "instance": 2, "policy": 5, "table": 1}


def test_every_generator_is_described() -> None:
    lines = (ROOT / "docs" / "generators.md").read_text(encoding="utf-8").splitlines()
    first = [line.split("|")[1] for line in lines if line.startswith("| `")]
    described = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(described) == sorted(GENERATORS)


@pytest.mark.slow
def test_the_numbers_about_the_split_come_from_the_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of all splits; verdict and limits, for which everything has to be measured, by row."""
    report = ROOT / "benchmarks" / "results" / "splits.md"
    code = blocks(report, "python")
    assert len(code) == 1
    limited = [name for name in default_metrics() if METRICS[name].default_limits]
    quick = ["dcr", "membership_inference"]
    asked = iter([quick] * 2 + [limited] * 2 + [quick] * 2)

    def measured(*tables: Any, **options: Any) -> Any:
        return evaluate(*tables, metrics=next(asked), **options)

    monkeypatch.setattr(privacy_assets, "evaluate", measured)
    exec(compile(code[0], report.name, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    shown = [line for line in report.read_text(encoding="utf-8").splitlines() if line.startswith("| by ")]
    assert len(printed) == 3 and printed[1] in shown
    figures = (1, 2, 4, 5)  # without verdict and broken limits
    told, written = ([[line.split("|")[at] for at in figures] for line in lines] for lines in (printed[::2], shown))
    assert [cells for cells in told if cells not in written] == []


# --- tables -----------------------------------------------------------------------------------------------------------


def limits_text() -> str:
    """The table of default limits as docs/policy.md holds it, and the statistics without one."""
    specs = statistic_specs()
    lines = [
        "| statistic | direction | null | default limit | bound | smallest n | where the number comes from |",
        "|---|---|---|---|---|---|---|",
    ]
    limits = [limit for metric in METRICS.values() for limit in metric.default_limits]
    for limit in limits:
        spec = specs[limit.statistic]
        cells = [
            f"`{limit.statistic}`",
            spec.direction.replace("_", " "),
            "" if spec.null is None else f"{spec.null:g}",
            _limit(limit),
            limit.bound,
            str(limit.smallest_n),
            limit.source,
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    free = [f"- `{name}`" for name in specs if name not in {limit.statistic for limit in limits}]
    return "\n".join([*lines, "", "Shown in the report, and limited by nothing by default:", "", *free, ""])


def _limit(limit: Limit) -> str:
    return f"at most {limit.at_most:g}" if limit.at_most is not None else f"at least {limit.at_least:g}"


def test_the_default_limits_are_those_of_the_registry() -> None:
    page = POLICY.read_text(encoding="utf-8")
    before, found, rest = page.partition(START)
    shown, closed, after = rest.partition(END)
    assert found and closed
    expected = limits_text()
    if os.environ.get("UPDATE_DOCS"):
        POLICY.write_text(f"{before}{START}{expected}{END}{after}", encoding="utf-8")
        shown = expected
    assert shown == expected, f"docs/policy.md should hold (UPDATE_DOCS=1 writes it):\n{expected}"


def settings_text() -> str:
    """The page of settings: one table for each part that has some."""
    attacks = [kind for kind, _ in ATTACKS.values()]
    parts = [
        TableSpec,
        *GROUPS,
        *METRICS.values(),
        *GENERATORS.values(),
        *FILTERS.values(),
        EmbedderSettings,
        AuditPlan,
        *attacks,
    ]
    lines = [
        "# Settings",
        "",
        "What can be set of a table, group by group, and of metrics, generators, filters, the embedder and the attacks",
        "of an audit. A value of another type, or beyond its bounds, is an error that names the part and the setting.",
    ]
    for part in parts:
        known = settings_of(part)
        if not known:
            continue
        title = " ".join(getattr(part, one) for one in ("part", "name") if hasattr(part, one))
        title = f"{title} of a table" if part in GROUPS else title
        lines += ["", f"## {title}", "", "| setting | meaning | must be | default |", "|---|---|---|---|"]
        for one in known:
            own = one.default is None or one.default is MISSING or isinstance(one.default, Group)
            default = "" if own else f"`{plain(one.default)}`"
            lines.append(f"| `{one.name}` | {one.meaning} | {one.domain} | {default} |")
    return "\n".join([*lines, ""])


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


def test_every_statistic_is_explained_once() -> None:
    explained = re.findall(r"^\| `(\w+\.\w+)` \|", STATISTICS.read_text(encoding="utf-8"), re.MULTILINE)
    assert explained == list(statistic_specs())


# --- links and words --------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_quotes_what_was_measured() -> None:
    page = (ROOT / "benchmarks" / "results" / "first_hour.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| ")]
    cpu = {name: seconds for _, name, seconds, *_ in rows}
    cold, warm, peer = (cpu[name] for name in ("`evaluate`, cold", "`evaluate`, warm", "anonymeter's four attacks"))
    quoted = f"{cold} CPU seconds the first time on a machine and {warm} from then on, where anonymeter's four attacks"
    assert f"{quoted} alone take {peer}" in " ".join(README.read_text().split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
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
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
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
