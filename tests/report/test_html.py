"""HTML forms: well-formed, self-contained, without scripts, with all text escaped."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from privacy_assets.report.html import environment
from privacy_assets.report.report import Report
from tests.report.report_examples import (
    ALL,
    ParsedPage,
    failing,
    hostile,
)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("form", [Report.to_html, Report._repr_html_])
def test_html_is_well_formed_and_can_neither_run_nor_load_anything(make, form):
    text = form(make())
    page = ParsedPage(text)
    assert page.open == []
    for tag, attrs in page.tags:
        assert tag not in {
            "script",
            "iframe",
            "object",
            "embed",
            "link",
            "img",
            "base",
            "form",
            "image",
            "use",
        }
        loaded = {"src", "srcset", "action"} if tag == "a" else {"src", "href", "srcset", "action"}
        assert not [name for name in attrs if name.startswith("on") or name in loaded]
        assert tag != "a" or attrs["href"].startswith("#")
        assert not [
            value
            for value in attrs.values()
            if "://" in (value or "") and not value.endswith("/2000/svg")
        ]
    assert "url(" not in text and "@import" not in text


@pytest.mark.parametrize("make", ALL)
def test_each_question_of_the_first_page_links_to_its_section(make):
    page = ParsedPage(make().to_html())
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    sections = [f"#{attrs['id']}" for tag, attrs in page.tags if tag == "section" and "id" in attrs]
    assert len(links) >= 6 and set(links) <= set(sections) and len(set(sections)) == len(sections)


@pytest.mark.parametrize("make", ALL)
def test_hidden_and_control_characters_never_reach_an_output(make):
    for form in (Report.to_html, Report._repr_html_, Report.to_text):
        assert not set(form(make())) & set("\u202e\u2066\x1b\x00\u200b")
    assert "W" * 700 not in make().to_html()


def test_hostile_text_is_shown_escaped():
    text = hostile().to_html()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "\\u202e" in text


def test_the_page_says_how_it_may_be_shown_and_the_fragment_changes_nothing_around_it():
    text = failing().to_html()
    page = ParsedPage(text)
    csp = next(
        attrs["content"]
        for _, attrs in page.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert csp == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert page.count("html", lang="en") == page.count("meta", name="viewport") == 1
    assert "prefers-color-scheme: dark" in text
    assert all("scope" in attrs for tag, attrs in page.tags if tag == "th")
    assert not {tag for tag, _ in ParsedPage(failing()._repr_html_()).tags} & {
        "style",
        "html",
        "body",
        "head",
        "script",
    }


def test_a_name_missing_from_the_view_is_an_error():
    with pytest.raises(UndefinedError):
        environment().get_template("report.html.j2").render(title="only this")
