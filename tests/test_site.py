"""The documentation site, and the forms of the documentation for package indexes, citations and
Dagster's list.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import dagster as dg
import pytest
import yaml

import privacy_assets
from hatch_build import absolute_links

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INTEGRATION = (ROOT / "docs" / "integrations" / "dagster.md").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Links and anchors of a page.

    Attributes:
        links: Values of ``href`` and ``src``.
        anchors: Values of ``id``.
        text: Text of the page.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.links |= {given[name] for name in ("href", "src") if name in given}
        self.anchors |= {given["id"]} if "id" in given else set()

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as by ``make docs``."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-c",
        "docs",
        "-W",
        "--keep-going",
        "-q",
        "-d",
        str(folder / "trees"),
    ]
    done = subprocess.run(
        [*command, ".", str(folder / "html")], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.weekly
def test_the_site_has_every_page_and_no_broken_link(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:|//", link):
                continue
            place, _, anchor = unquote(link).partition("#")
            target = (path.parent / place.partition("?")[0]).resolve() if place else path
            found = target.exists() and (
                not anchor or target not in pages or anchor in pages[target].anchors
            )
            if not found:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    written = {
        path.relative_to(ROOT)
        for path in (ROOT / "docs").rglob("*.md")
        if "integrations" not in path.parts
    }
    assert all((site / path).with_suffix(".html").exists() for path in written)
    start = pages[site / "index.html"]
    listed = re.findall(
        r"\]\(([^)#]+\.md)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    )
    paths = {os.path.relpath(ROOT / "docs" / page, ROOT) for page in listed}
    assert (
        len(paths) > 30 and {str(Path(path).with_suffix(".html")) for path in paths} <= start.links
    )


@pytest.mark.weekly
def test_the_reference_has_each_public_name_and_command(site: Path) -> None:
    from privacy_assets import airflow
    from privacy_assets.cli.main import _commands

    anchors = Page(site / "docs" / "api.html").anchors
    names = {
        f"{module.__name__}.{name}"
        for module in (privacy_assets, airflow)
        for name in module.__all__
    }
    assert names <= anchors, "docs/api.md lists each public name"
    commands = Page(site / "docs" / "commands.html")
    assert set(_commands().parsers.choices) <= commands.anchors
    assert "usage: privacy-assets verify" in commands.text


def test_the_readme_of_the_distribution_has_no_relative_link() -> None:
    source = PROJECT["urls"]["Source"]
    readme = absolute_links(README, source)
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", README)) > 8
    ours = [link for link in links if link.startswith(source)]
    assert all(re.match(r"https?://", link) for link in links) and len(ours) > 8
    for link in ours:
        kind, path = re.fullmatch(rf"{source}/(raw|blob)/main/([^#]+)(?:#.*)?", link).groups()  # type: ignore[union-attr]
        assert (ROOT / path).is_file() and (kind == "raw") == path.endswith(".png")
    assert absolute_links("![a](b.png) [c](d.md#e) [f](https://g) [h](#i)", "https://s") == (
        "![a](https://s/raw/main/b.png) [c](https://s/blob/main/d.md#e) [f](https://g) [h](#i)"
    )


def test_the_citation_names_this_version_and_the_four_papers() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert (found["version"], found["license"]) == (PROJECT["version"], PROJECT["license"])
    assert found["repository-code"] == PROJECT["urls"]["Source"]
    papers = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    titles = [paper["title"] for paper in found["references"]]
    assert len(titles) == 4 and all(title.partition(":")[0] in papers for title in titles)
    assert all({"type", "title", "authors"} <= set(paper) for paper in found["references"])


def test_the_page_for_the_list_of_dagster_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, header, text = INTEGRATION.split("---\n", 2)
    fields = yaml.safe_load(header)
    assert {
        "title",
        "sidebar_label",
        "description",
        "tags",
        "source",
        "sidebar_custom_props",
    } <= set(fields)
    assert "community-supported" in fields["tags"] and fields["source"] == PROJECT["urls"]["Source"]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(compile(code, "dagster.md", "exec"), names)
    defs = names["defs"]
    assert isinstance(defs, dg.Definitions)
    dg.Definitions.validate_loadable(defs)
    assert defs.resolve_schedule_def("patients_schedule")
