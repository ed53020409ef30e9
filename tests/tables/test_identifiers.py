"""E-mail addresses and IBANs are rejected from the first value on, in every table and spelling."""

from __future__ import annotations

import random
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets import evaluate
from privacy_assets.errors import InputError
from privacy_assets.tables.canonical import canonical_table, real_tables
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.roles import certain_identifier

EMAILS = [
    "bob@x.org",
    "mail bob@x.org please",
    "<bob@x.org>",
    "BOB@X.ORG",
    "mailto:bob@x.org",
    "a;bob@x.org;b",
    "bob@163.com",
    "Bob Smith <bob.smith+x@mail.x.co.uk>",
    '"john doe"@x.org',
    "o'neil@x.ie",
    "bob@xn--bcher-kva.example",
    "bob@пример.рф",
    "ｂｏｂ＠ｘ．ｏｒｇ",
    "bob﹫x.org",
    "bob\u200b@x.o\u00adrg",
    "bob (at) x.org",
    "bob[at]x[dot]org",
    "bob%40x.org",
    "x" * 2000 + " bob@x.org",
    "bob (at) X.ORG",
    "bob (at) x (dot) Org",
    "bob(at)x.Org",
    "bob (at) 163.com",
    "bob@vip.163.com",
    "bob@1.x.org",
    "नमस्ते@उदाहरण.भारत",
    "ผู้ใช้@ตัวอย่าง.ไทย",
    "user@例え。jp",
    "user@例え｡jp",
    "john!@example.com",
    "a{b}@x.org",
    "bob&commat;x.org",
    "bob&#x40;x.org",
    "bob&#64;x.org",
    "bob&#064;x&#46;org",
    "bob@x&period;org",
]
IBANS = [
    "DE89370400440532013000",
    "DE89 3704 0044 0532 0130 00",
    "de89 3704 0044 0532 0130 00",
    "DE 89 3704004405320130 00",
    "DE89-3704-0044-0532-0130-00",
    "DE89–3704–0044–0532–0130–00",
    "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
    "IBAN DE89370400440532013000",
    "IBAN:DE89370400440532013000",
    "IBANDE89370400440532013000",
    "(DE89370400440532013000)",
    "pay to DE89 3704 0044 0532 0130 00 by Monday",
    "x=DE89370400440532013000;y",
    "ＤＥ８９３７０４００４４０５３２０１３０００",
    "GB82WEST12345698765432",
    "NO9386011117947",
    "BE68539007547034",
    "MT84MALT011000012345MTLCAST001S",
    "FR1420041010050500013M02606",
    "BR1800360305000010009795493C1",
    "SC18SSCB11010000000000001497USD",
    "DE12 DE89370400440532013000",
    "DE89370400440532013000-Miller",
    "Konto-DE89370400440532013000",
    "DE89370400440532013000EUR",
    "DE89370400440532013000COBADEFFXXX",
    "KontoDE89370400440532013000",
    "Miller-GB82WEST12345698765432-x",
    "GB82WEST12345698765432GBP",
    "DE89-3704-0044-0532-0130-00-Miller",
    "DE89370400440532013000EUR100",
    "de89370400440532013000",
    "iban de89370400440532013000",
    "IBAN-DE89-3704-0044-0532-0130-00",
    "pay to de89 3704 0044 0532 0130 00 by Monday",
    "DE89 37040044 0532013000",
]
OTHERS = [
    "@home",
    "a@b",
    "bob@localhost",
    "@bob.smith",
    "https://social.example/@bob.smith",
    "5 @ 3.50 eur",
    "1kg@2.99",
    "look at home.de",
    "DE89370400440532013001",
    "DE8937040044053201300",
    "DE893704004405320130000",
    "XX89370400440532013000",
    "be 12 people were here today",
    "",
    "lodash@4.17.beta",
    "pkg@1.0.rc",
    "pkg@1.0.0-alpha.beta",
    "pkg@2.next",
    "A (at) B.Sc",
    "cheque (at) St.Mary",
    "a@1.2.3.de",
    "DE893704004405320130001EUR",
    "Article No 9386011117947",
    "at 611904300234573201",
    "sold be 68539007547034",
]


@pytest.mark.parametrize(
    ("texts", "what"), [(EMAILS, "e-mail addresses"), (IBANS, "bank account numbers"), (OTHERS, "")]
)
def test_the_forms_in_their_spellings_and_nothing_else(texts: list[str], what: str) -> None:
    assert [text for text in texts if certain_identifier([text]) != what] == []
    assert (
        certain_identifier(OTHERS) == certain_identifier([]) == certain_identifier(["\ud800"]) == ""
    )


@pytest.mark.slow
def test_random_codes_are_not_taken_for_account_numbers() -> None:
    rng = random.Random(0)
    uuids = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(100_000)]
    for codes in (uuids, [one.replace("-", "") for one in uuids]):
        assert (
            certain_identifier(codes) == certain_identifier([code.upper() for code in codes]) == ""
        )


@pytest.mark.parametrize(
    "form", ["Article No {:013d}", "at {:018d}", "sold be{:014d}", "No{:013d}"]
)
def test_codes_of_which_few_are_valid_by_chance_are_not_account_numbers(form: str) -> None:
    rng = random.Random(0)
    texts = [form.format(rng.randrange(10**12, 10**13)) for _ in range(1000)]
    assert certain_identifier(texts) == ""
    assert certain_identifier([*texts, "DE89370400440532013000"]) == "bank account numbers"


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["a city with number {}", "Städtchen {}", "DE{:018d}", "DE{:020d}1", "@home{}"]
)
def test_a_million_different_texts_take_seconds(form: str) -> None:
    texts = np.array([form.format(number) for number in range(1_000_000)], dtype=object)
    start = time.process_time()
    assert certain_identifier(texts) == ""
    assert time.process_time() - start < 5


N = 2000
RNG = np.random.default_rng(0)


def frame(seed: int, rows: float = 0, **planted: str) -> pd.DataFrame:
    """A table with the categories ``note`` and ``pay``, in which one row holds the planted
    value.
    """
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "x": rng.normal(size=N),
            "note": rng.choice(["a", "b"], N),
            "pay": rng.choice(["c", "d"], N),
        }
    )
    for name, value in planted.items():
        made.loc[N // 2 : N // 2 + max(round(rows * N), 1) - 1, name] = value
    return made


BOTH = {"note": "call bob@x.org", "pay": "DE89 3704 0044 0532 0130 00"}
NAMES = {"train": "train", "holdout": "holdout"}
TOLD = (
    r"2 columns contain .*'note' \(e-mail addresses\), 'pay' \(bank account numbers\)\. "
    r"Fix: .*data: \{drop: \[note, pay\]\}.*--drop note,pay"
)


def rejected(caught: pytest.ExceptionInfo[InputError]) -> None:
    assert not any(part in str(caught.value) for part in ("bob", "x.org", "DE89", "3704"))


@pytest.mark.slow
@pytest.mark.parametrize("role", ["train", "holdout", "reference", "synthetic"])
def test_a_fifth_of_the_cells_of_a_real_table_or_one_synthetic_cell_is_blocked(role: str) -> None:
    tables = {
        name: frame(seed)
        for seed, name in enumerate(("train", "holdout", "reference", "synthetic"))
    }
    if role != "synthetic":  # one such cell is a rare value
        tables[role] = frame(7, **BOTH)
        assert evaluate(**tables, metrics="dcr", embedder=False).tables["synthetic"]["columns"] == 3
        real = {
            name: frame(seed, **BOTH, rows=0.21)
            for seed, name in enumerate(tables)
            if name != "synthetic"
        }
        tables = {**real, "synthetic": frame(7)}
    else:
        tables[role] = frame(7, **BOTH)
    with pytest.raises(InputError, match=TOLD) as caught:
        evaluate(**tables, metrics="dcr", embedder=False)
    rejected(caught)
    report = evaluate(**tables, metrics="dcr", embedder=False, drop=["note", "pay"])
    assert report.tables["synthetic"]["columns"] == 1


def test_the_steps_of_a_table_reject_it_as_well(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=TOLD) as caught:
        canonical_table(frame(0, **BOTH, rows=0.2))
    rejected(caught)
    with pytest.raises(InputError, match=TOLD):
        real_tables(
            {role: frame(number, **BOTH, rows=0.2) for number, role in enumerate(NAMES)}, NAMES
        )
    canonical_table(frame(0, **BOTH, rows=0.19))


def test_the_line_to_paste_keeps_what_is_dropped_already_and_is_yaml() -> None:
    given = frame(0, note="bob@x.org", rows=0.2).rename(columns={"note": "yes: no"})
    with pytest.raises(InputError, match=r"drop: \[x, 'yes: no'\]\}.*--drop 'x,yes: no'"):
        canonical_table(given, Declared(drop=("x",)))


@pytest.mark.slow
def test_what_is_declared_is_as_for_other_identifiers() -> None:
    tables: dict[str, Any] = {
        "train": frame(0),
        "holdout": frame(1),
        "synthetic": frame(2, note="bob@x.org"),
    }
    evaluate(**tables, metrics="dcr", embedder=False, new_values={"note": "invented"})
    evaluate(
        **tables, metrics="dcr", embedder=False, allowed_values={"note": ["a", "b", "bob@x.org"]}
    )
    tables["train"] = frame(0, note="bob@x.org", rows=0.5)
    evaluate(
        **tables, metrics="dcr", embedder=False, allowed_values={"note": ["a", "b", "bob@x.org"]}
    )
    with pytest.raises(InputError, match="'note'"):
        evaluate(**tables, metrics="dcr", embedder=False, allowed_values={"note": ["a", "b"]})
    with pytest.raises(InputError, match="'note'"):
        evaluate(**tables, metrics="dcr", embedder=False, kinds={"note": "categorical"})


def test_an_address_that_most_rows_share_and_one_among_many_values() -> None:
    given = pd.DataFrame({"note": ["info@x.org"] * 1900 + ["a"] * 100})
    with pytest.raises(InputError, match="e-mail addresses"):
        canonical_table(given)
    values = [
        f"c{number % 6000} bob@x.org" if number % 5 == 0 else f"c{number % 6000}"
        for number in range(60_000)
    ]
    with pytest.raises(InputError, match="e-mail addresses"):
        canonical_table(pd.DataFrame({"note": values}))
