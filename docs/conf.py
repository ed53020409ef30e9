"""Sphinx configuration of the documentation site; ``make docs`` builds it.

The source folder is the repository, so links between Markdown files are the same here and on
GitHub. The README is the start page, and its list under "Documentation" is the table of contents.
"""

import logging
import os
import re
import shutil
import tempfile
import tomllib
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# the import of Airflow writes to it
_airflow = tempfile.TemporaryDirectory(prefix="airflow-of-the-docs-")
os.environ["AIRFLOW_HOME"] = _airflow.name
logging.getLogger("airflow").setLevel(logging.ERROR)
os.environ["COLUMNS"] = "100"  # width of the help of the commands

project = PROJECT["name"]
version = release = PROJECT["version"]
copyright = "the contributors, Apache-2.0"

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "examples/airflow/README.md", "benchmarks/results/*.md"]
exclude_patterns = ["**/.*", ".*", "build", "dist", "docs/integrations"]

myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "privacy-assets"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "source_repository": PROJECT["urls"]["Source"],
    "source_branch": "main",
    "source_directory": "",
}


def contents() -> str:
    """Return a hidden toctree for each line of the list in docs/README.md, with paths from the root
    document.
    """
    page = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = toctree(["docs/README.md"])
    for name, text in re.findall(r"^- ([\w-]+): (.*?)(?=^- |\Z)", page, re.M | re.S):
        links = re.findall(r"\]\(([^)#]+\.md)", text)
        pages = [os.path.relpath(ROOT / "docs" / link, ROOT) for link in links]
        listed += toctree(pages, f":caption: {name}")
    return listed


def toctree(pages: list[str], *options: str) -> str:
    """Return a hidden toctree in MyST."""
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *pages, "```", ""])


def commands() -> str:
    """Return a section with the help of each command."""
    from privacy_assets.cli.main import main

    def text(*words: str) -> str:
        with redirect_stdout(StringIO()) as out, suppress(SystemExit):
            main([*words, "--help"])
        return out.getvalue()

    names = re.findall(r"^    ([a-z-]+)(?: |$)", text(), re.M)
    return "".join(f"\n## {name}\n\n```text\n{text(name)}```\n" for name in names)


def add_generated_parts(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the tables of contents and the help of the commands, which GitHub would not show as
    such.
    """
    folder = Path(page).parent
    if page == root_doc:
        source[0] += contents()
    elif page == "docs/commands":
        source[0] += commands()
    elif page in ("docs/adr/README", "benchmarks/results/README"):
        source[0] += toctree(
            sorted(one.name for one in (ROOT / folder).glob("*.md") if one.name != "README.md")
        )


def copy_start_page(app: Sphinx, failure: Exception | None) -> None:
    """The README is also the index of the site."""
    if failure is None and app.builder.format == "html":
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Register the functions above."""
    app.connect("source-read", add_generated_parts)
    app.connect("build-finished", copy_start_page)
