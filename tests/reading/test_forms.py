"""The same table in any form gives the same statistics, verdict and published values: random draws
of forms.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from forms import FAILS, FORMS, KINDS, MAY_STOP, MUST_READ, ROLES, SUBJECT, local_times, tables

from privacy_assets import Report, evaluate
from privacy_assets.cli.main import main
from privacy_assets.errors import InputError

METRICS = ["dcr", "copies"]
FAST, SLOW = 5, 135  # numbers of draws
WEEKLY = 25  # from this draw on

# Forms that are not yet read as labeled, with the reason. Remove a form when it is.
OPEN: dict[str, str] = {
    "csv missing as NA everywhere": "NA stays a category, because it may be a country; equal"
    " categories"
    " count in"
    " copies.partial_excess",
}


def judged(given: dict[str, Any], **declared: Any) -> Report:
    return evaluate(
        **given,
        subject=SUBJECT,
        metrics=METRICS,
        embedder=False,
        progress=lambda line: None,
        **declared,
    )


def outcome(report: Report) -> tuple[str, dict[str, float | None]]:
    """Return the verdict and all statistics."""
    found = {
        f"{name}.{estimate.name}": estimate.value
        for name, result in report.results.items()
        for estimate in result.estimates
    }
    return report.verdict, found


@cache
def plain(kind: str, orders: tuple[str, ...] = ("", "", "")) -> tuple[str, dict[str, float | None]]:
    """Return the outcome of the typed table. ``orders`` are the columns by which the forms of the
    roles sort rows.
    """
    given = {
        role: frame.sort_values(order, kind="stable", ignore_index=True) if order else frame
        for (role, frame), order in zip(tables(kind).items(), orders, strict=True)
    }
    return outcome(judged(given))


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_of_the_tables_is_found_in_the_plain_form(kind: str) -> None:
    assert (plain(kind)[0] == "fail") == FAILS[kind]


def test_most_forms_must_be_read() -> None:
    labels = [form.label for form in FORMS.values()]
    assert set(labels) == {MUST_READ, MAY_STOP} and labels.count(MUST_READ) >= 0.8 * len(labels)
    assert all(form.reason for form in FORMS.values()) and set(OPEN) <= set(FORMS)


def pasted(message: str) -> dict[str, Any]:
    """Return the declarations that an error prints to paste: the mapping after "data:", and a time
    zone.
    """
    found: dict[str, Any] = {}
    for start in re.finditer(r"data: (?=\{)", message):
        depth = 0
        for end in range(start.end(), len(message)):
            depth += {"{": 1, "}": -1}.get(message[end], 0)
            if not depth:
                found |= yaml.safe_load(message[start.end() : end + 1])
                break
    if zone := re.search(r"timezone: ([A-Za-z_/]+)", message):
        found["timezone"] = zone[1]
    return found


def as_the_user_knows(
    declared: dict[str, Any], means: dict[str, Any], message: str
) -> dict[str, Any]:
    """Return the declarations, with the printed choice that the user knows to be true, instead of
    the first one.
    """
    kinds = dict(declared.get("kinds", {}))
    for column, kind in means.items():
        if column in kinds:
            text = yaml.safe_dump(kind, default_flow_style=True).strip()
            assert kinds[column] == kind or text in message, f"{text} is not offered for {column}"
            kinds[column] = kind
    return {**declared, **({"kinds": kinds} if kinds else {})}


def draw(number: int) -> tuple[str, dict[str, str]]:
    """Return a kind of synthetic table, and the form of each role. Two of three draws have one
    form.
    """
    rng, names = np.random.default_rng(number), list(FORMS)
    order = list(np.random.default_rng(51).permutation(names))
    if number % 3 < 2:
        one = str(order[(number - number // 3) % len(order)])
        return str(rng.choice(KINDS)), dict.fromkeys(ROLES, one)
    able = [name for name in names if FORMS[name].label == MUST_READ and FORMS[name].mixes]
    spelling = str(rng.choice(sorted({FORMS[name].spelling for name in able} - {""})))
    able = [name for name in able if FORMS[name].spelling in ("", spelling)]
    while True:  # the real tables decide how the cells of the synthetic one are read
        forms = dict(zip(ROLES, map(str, rng.choice(able, 3)), strict=True))
        spellings = [FORMS[forms[role]].spelling for role in ROLES]
        if spellings[2] in ("", "iso", *spellings[:2]):
            return str(rng.choice(KINDS)), forms


def check(kind: str, names: dict[str, str], folder: Path) -> None:
    forms = [FORMS[names[role]] for role in ROLES]
    written = tables(kind)

    def given() -> dict[str, Any]:  # again for each call: readers of batches are read once
        place = folder / str(len(list(folder.iterdir())))
        place.mkdir()
        return {
            role: form.write(written[role], place / role)
            for role, form in zip(ROLES, forms, strict=True)
        }

    declared: dict[str, Any] = {}
    try:
        report = judged(given())
    except InputError as error:
        assert any(form.label == MAY_STOP for form in forms), f"stopped: {error}"
        means = {column: told for form in forms for column, told in form.means.items()}
        declared = as_the_user_knows(pasted(str(error)), means, str(error))
        assert declared, f"nothing to paste: {error}"
        report = judged(given(), **declared)
    verdict, found = outcome(report)
    expected_verdict, expected = plain(kind, tuple(form.order for form in forms))
    assert found == pytest.approx(
        expected, rel=max(form.rel for form in forms), abs=1e-12, nan_ok=True
    ), declared
    assert verdict == expected_verdict


def case(number: int) -> Any:
    kind, names = draw(number)
    marks = []
    if number >= FAST:
        marks = [pytest.mark.weekly if number >= WEEKLY else pytest.mark.slow]
    if reasons := [OPEN[name] for name in dict.fromkeys(names.values()) if name in OPEN]:
        alone = len(set(names.values())) == 1  # next to other forms, some are read
        marks.append(pytest.mark.xfail(reason="; ".join(reasons), strict=alone))
    return pytest.param(
        kind, names, marks=marks, id=f"{number}, {kind}, {', '.join(dict.fromkeys(names.values()))}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "names"), [case(number) for number in range(FAST + SLOW)])
def test_a_form_does_not_change_statistics_and_verdict(
    kind: str, names: dict[str, str], tmp_path: Path
) -> None:
    check(kind, names, tmp_path)


def test_the_draws_meet_every_form() -> None:
    assert {name for number in range(FAST + SLOW) for name in draw(number)[1].values()} == set(
        FORMS
    )


def published(form: str, folder: Path) -> pd.DataFrame:
    """Return the rows that ``run`` publishes of fresh rows in a form, after pasting what its
    message prints.
    """
    folder.mkdir()
    files = {
        role: FORMS[form].write(frame, folder / role) for role, frame in tables("fresh").items()
    }
    data: dict[str, Any] = {**{role: str(file) for role, file in files.items()}, "subject": SUBJECT}
    table = {
        "name": "people", "data": data, "evaluation": {"embedder": False, "metrics": ["dcr"]},
        "policy": {"name": "near", "limits": [{"statistic": "dcr.privacy_score", "at_most": 0.9}]},
    }  # fmt: skip
    (folder / "people.yaml").write_text(yaml.safe_dump(table))
    assert main(["run", str(folder / "people.yaml"), "--home", str(folder / "home")]) == 0
    (file,) = [
        file
        for file in (folder / "home" / "releases").glob("**/*.parquet")
        if "people" in str(file.relative_to(folder))
    ]
    return pd.read_parquet(file)


@cache
def published_plain(folder: Path) -> pd.DataFrame:
    return published("parquet by pandas", folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["csv", "csv all quoted", "csv by polars", "parquet by pyarrow", "parquet by duckdb"]
)
def test_a_form_does_not_change_what_is_published(
    form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected = published_plain(tmp_path_factory.getbasetemp() / "plain")
    found = published(form, tmp_path_factory.mktemp("form") / "x")
    assert list(found.columns) == list(expected.columns)
    assert rows(found) == rows(expected)


def rows(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the rows in a fixed order, because each release has its own. Equal cells of two dtypes
    are equal.
    """
    return sorted(zip(*(map(same, frame[name]) for name in frame.columns), strict=True))


def same(cell: Any) -> str:
    if pd.isna(cell):
        return ""
    if isinstance(cell, pd.Timestamp | dt.date):
        return pd.Timestamp(cell).isoformat()
    return str(cell) if isinstance(cell, str | bool | np.bool_) else repr(float(cell))


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "kind",
    [
        "fresh",
        "copies",
        "step",
    ],
)
def test_a_table_without_zones_stops_and_its_zone_can_be_pasted(role: str, kind: str) -> None:
    frames = tables(kind)
    frames[role] = local_times(frames[role])
    with pytest.raises(InputError, match="column 'stamp': its times have no") as caught:
        judged(frames)
    declared = pasted(str(caught.value))
    assert declared == {"timezone": "Europe/Berlin"}
    (verdict, found), (expected_verdict, expected) = (
        outcome(judged(frames, **declared)),
        plain(kind),
    )
    assert verdict == expected_verdict
    for name in ("copies.copied_share", "dcr.identical_excess"):  # the clock change moves others
        assert found[name] == pytest.approx(expected[name])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv dates with points", "csv decimal comma"])
def test_text_of_two_spellings_stops_and_what_is_printed_leads_to_the_verdict(
    form: str, tmp_path: Path
) -> None:
    check_two("csv", form, tmp_path)


def check_two(first: str, second: str, folder: Path) -> None:
    frames = tables("copies")
    given = {
        "train": FORMS[first].write(frames["train"], folder / "train"),
        "holdout": FORMS[second].write(frames["holdout"], folder / "holdout"),
        "synthetic": frames["synthetic"],
    }
    with pytest.raises(InputError) as caught:
        judged(given)
    message = str(caught.value)
    if "in the same form in all tables" in message:
        given["holdout"] = FORMS[first].write(frames["holdout"], folder / "again")
    assert outcome(judged(given, **pasted(message))) == (
        plain("copies")[0],
        pytest.approx(plain("copies")[1], nan_ok=True),
    )


def test_days_first_and_months_first_stop(tmp_path: Path) -> None:
    frames = tables("copies")
    written = [
        FORMS[form].write(frames[role], tmp_path / role)
        for form, role in (("csv days first", "train"), ("csv months first", "holdout"))
    ]
    with pytest.raises(InputError):
        judged(dict(zip(ROLES, (*written, frames["synthetic"]), strict=True)))


@pytest.mark.slow
def test_integers_stored_as_a_pandas_category_are_integers() -> None:
    frames = {role: frame.drop(columns=["amount", "weight", "day", "born", "seen", "stamp"])
              for role, frame in tables("copies").items()}  # fmt: skip
    coded = {
        role: frame.assign(age=frame["age"].astype("category")) for role, frame in frames.items()
    }
    assert outcome(judged(coded)) == (
        outcome(judged(frames))[0],
        pytest.approx(outcome(judged(frames))[1], nan_ok=True),
    )


@pytest.mark.parametrize("form", ["csv decimal comma", "csv dates with points"])
def test_a_synthetic_table_does_not_decide_how_it_is_read(form: str, tmp_path: Path) -> None:
    frames = tables("copies")
    given = {**frames, "synthetic": FORMS[form].write(frames["synthetic"], tmp_path / "synthetic")}
    with pytest.raises(InputError, match="a value is not a .*Fix: convert it"):
        judged(given)
