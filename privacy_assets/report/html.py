"""HTML forms of a page: a self-contained page and a compact form for notebooks.

Text inserted into templates is cleaned (no control, bidirectional or zero-width characters) and
escaped; only SVG from :mod:`privacy_assets.report.svg` is inserted as markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from privacy_assets.report.page import Page
from privacy_assets.report.svg import COLORS, legend
from privacy_assets.report.words import clean, number, sentence

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """Return the template environment: autoescape, no undefined names, all text cleaned before
    escaping.

    It is shared by all pages, so templates are compiled once. The filter ``drawing`` inserts SVG as
    markup.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return value if isinstance(value, Markup) else clean(value, 600)

    environment = Environment(
        loader=PackageLoader("privacy_assets.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = Markup
    environment.filters["number"] = number
    environment.filters["sentence"] = sentence
    return environment


def render(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template of this package."""
    return environment().get_template(template).render(values, colors=COLORS)


def page_html(page: Page) -> str:
    """Return the full page; equal pages give equal bytes."""
    return render("report.html.j2", {**vars(page), "legend": legend()})


def notebook_html(page: Page) -> str:
    """Return a fragment without scripts or style sheets, which could affect the notebook."""
    return render("notebook.html.j2", vars(page))
