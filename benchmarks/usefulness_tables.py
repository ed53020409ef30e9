"""Tables of the study of usefulness, as Parquet files: made business tables, and tables that ship
with a package.

    python -m venv tables && tables/bin/pip install -r benchmarks/leak_tables.txt
    tables/bin/python -m benchmarks.usefulness_tables DIRECTORY

:data:`TABLES` lists each table with its relations, which no real row breaks. Adult is read from its
own file. Relations were written down from the meaning of the columns, and ``main`` raises
ValueError if a real row breaks one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import business_tables
from benchmarks.business_tables import Rng, codes, days
from benchmarks.leak_tables import Make, shipped

N_PEOPLE = 6_000  # people of a made table: two halves of 2,500, and some more
SEED = 0


@dataclass(frozen=True)
class Target:
    """Number that gradient boosting predicts: a column, or the days from ``start`` to the column.

    Attributes:
        title: Name in the report.
        column: Column that no predictor is computed from.
        start: First day. None: the column itself is predicted.
    """

    title: str
    column: str
    start: str | None = None


@dataclass(frozen=True)
class StudyTable:
    """Relations of a table.

    Attributes:
        make: Returns the table. None: it has a file of its own.
        orders: Pairs of columns of which the first is at most the second, unless one is missing.
        combinations: Pairs of columns of which the first determines the second.
        codes: Columns of digits that are categories. Each generator is given this.
        target: Number to predict, if any.
    """

    make: Make | None
    orders: tuple[tuple[str, str], ...] = ()
    combinations: tuple[tuple[str, str], ...] = ()
    codes: tuple[str, ...] = ()
    target: Target | None = None


def postcodes(rng: Rng, n_rows: int, n_postcodes: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Return postcodes of five digits, about equally frequent, and their towns; a third of the
    towns have two.
    """
    names = rng.choice(np.arange(10_000, 100_000), n_postcodes, replace=False).astype(str)
    n_towns = n_postcodes * 3 // 4
    town_of_postcode = np.arange(n_postcodes) % n_towns
    drawn = rng.choice(n_postcodes, n_rows, p=rng.dirichlet(np.full(n_postcodes, 20.0)))
    letters = list("ABCDEFGHIJKLMNOPQRST")
    towns = np.array(
        [f"Town {letter}1" for letter in letters] + [f"Town {letter}2" for letter in letters]
    )
    return names[drawn], towns[town_of_postcode[drawn]]


def claims(rng: Rng) -> pd.DataFrame:
    """Return claims of insured persons: a fixed share of most claims is paid, less of the others,
    never more.
    """
    postcode, town = postcodes(rng, N_PEOPLE)
    _, area = np.unique(postcode, return_inverse=True)
    born = rng.integers(1935, 2005, N_PEOPLE)
    cover = rng.choice(["basic", "plus", "full"], N_PEOPLE, p=[0.4, 0.35, 0.25])
    cause = rng.choice(
        ["collision", "theft", "glass", "hail", "fire", "water"],
        N_PEOPLE,
        p=[0.4, 0.1, 0.25, 0.1, 0.05, 0.1],
    )
    typical = pd.Series(
        {"collision": 7.6, "theft": 7.9, "glass": 6.1, "hail": 7.0, "fire": 8.3, "water": 7.2}
    )
    level = typical[cause].to_numpy() + 0.3 * rng.normal(size=30)[area] + (1970 - born) / 200
    amount = np.exp(level + rng.normal(0, 0.4, N_PEOPLE)).round(2)
    share = pd.Series({"basic": 0.6, "plus": 0.8, "full": 1.0})[cover].to_numpy()
    is_reduced = rng.random(N_PEOPLE) < 0.15
    share = np.where(is_reduced, share * rng.uniform(0.2, 1, N_PEOPLE), share)
    paid = np.minimum((amount * share).round(2), amount)
    claimed = days(rng, N_PEOPLE, "2022-01-01", 900)
    decided = claimed + pd.to_timedelta(rng.gamma(2, 6 + 10 * is_reduced).astype(int), unit="D")
    return pd.DataFrame(
        {
            "birth_year": born, "postcode": postcode, "town": town, "cover": cover, "cause": cause,
            "claim_date": claimed, "decision_date": decided, "amount": amount, "paid": paid,
        }
    )  # fmt: skip


def stays(rng: Rng) -> pd.DataFrame:
    """Return hospital stays: their length depends on diagnosis, age and urgency; a diagnosis has
    one ward.
    """
    diagnosis = codes(rng, 24, N_PEOPLE, "D", 0.3)
    names, kind = np.unique(diagnosis, return_inverse=True)
    wards = np.array(
        ["surgery", "medicine", "heart", "children", "neurology", "lungs", "cancer", "bones"]
    )
    ward = wards[np.arange(len(names)) % len(wards)][kind]
    age = np.clip(rng.normal(55, 20, N_PEOPLE), 0, 99).astype(int)
    is_urgent = rng.random(N_PEOPLE) < 0.2 + age / 250
    typical = rng.lognormal(1.5, 0.6, len(names))[kind]
    length = (
        typical
        * (0.6 + age / 70)
        * np.where(is_urgent, 1.4, 1.0)
        * rng.lognormal(0, 0.15, N_PEOPLE)
    )
    admitted = days(rng, N_PEOPLE, "2023-01-01", 700)
    return pd.DataFrame(
        {
            "age": age,
            "sex": rng.choice(["female", "male"], N_PEOPLE),
            "urgent": is_urgent,
            "diagnosis": diagnosis,
            "ward": ward,
            "admission": admitted,
            "discharge": admitted + pd.to_timedelta(length.round(), unit="D"),
        }
    )


def business(make: Callable[[Rng], pd.DataFrame]) -> Make:
    """Return a table of :mod:`benchmarks.business_tables`."""
    return lambda: make(np.random.default_rng([SEED, *make.__name__.encode()]))


def made(make: Callable[[Rng], pd.DataFrame]) -> Make:
    """Return a table of this module."""
    return lambda: make(np.random.default_rng([SEED, *f"useful {make.__name__}".encode()]))


def sampled(n_rows: int, make: Make) -> Make:
    """Return ``n_rows`` rows, drawn without replacement."""
    return lambda: make().sample(n_rows, random_state=SEED).reset_index(drop=True)


def with_dates(columns: Sequence[str], make: Make) -> Make:
    """Convert columns of text to dates."""
    return lambda: make().assign(
        **{name: lambda frame, name=name: pd.to_datetime(frame[name]) for name in columns}
    )


def with_text(columns: Sequence[str], make: Make) -> Make:
    """Convert columns of integers to text."""
    return lambda: make().astype(dict.fromkeys(columns, str))


TABLES: Mapping[str, StudyTable] = {
    "adult": StudyTable(None),
    "claims": StudyTable(
        made(claims),
        orders=(("paid", "amount"), ("claim_date", "decision_date")),
        combinations=(("postcode", "town"),),
        codes=("postcode",),
        target=Target("R2 of paid", "paid"),
    ),
    "college": StudyTable(shipped("AER", "CollegeDistance")),
    "hotel": StudyTable(
        sampled(
            6_000,
            with_dates(
                ["arrival_date"],
                shipped("modeldata", "hotel_rates", without=["arrival_date_num", "historical_adr"]),
            ),
        )
    ),
    "stays": StudyTable(
        made(stays),
        orders=(("admission", "discharge"),),
        combinations=(("diagnosis", "ward"),),
        target=Target("R2 of length of stay", "discharge", start="admission"),
    ),
    "orders": StudyTable(business(business_tables.orders)),
    "visits": StudyTable(business(business_tables.visits)),
    "telecom": StudyTable(business(business_tables.telecom)),
    "credit": StudyTable(shipped("modeldata", "credit_data"), orders=(("Amount", "Price"),)),
    "ten_miles": StudyTable(
        sampled(6_000, shipped("mosaicData", "TenMileRace")), orders=(("net", "time"),)
    ),
    "polls": StudyTable(
        with_dates(
            ["startdate", "enddate"],
            shipped(
                "dslabs", "polls_us_election_2016", without=["rawpoll_mcmullin", "adjpoll_mcmullin"]
            ),
        ),
        orders=(("startdate", "enddate"),),
        combinations=(("pollster", "grade"),),
    ),
    "rodents": StudyTable(
        sampled(
            6_000, with_text(["plot_id"], shipped("ratdat", "complete", without=["record_id"]))
        ),
        combinations=(
            ("species_id", "genus"),
            ("species_id", "taxa"),
            ("genus", "taxa"),
            ("plot_id", "plot_type"),
        ),
        codes=("plot_id",),
    ),
}


def is_broken_order(frame: pd.DataFrame, low: str, high: str) -> pd.Series:
    """Return True for rows in which ``low`` exceeds ``high``; missing values break no order."""
    return frame[low] > frame[high]


def determined(frame: pd.DataFrame, code: str, name: str) -> bool:
    """Return True if each value of ``code`` has one value of ``name``; missing counts as a
    value.
    """
    n_names = frame.groupby(code, observed=True)[name].nunique(dropna=False)
    return bool((n_names <= 1).all())


def check(table: StudyTable, frame: pd.DataFrame) -> None:
    """Raise ValueError if a row breaks a relation."""
    for low, high in table.orders:
        n_broken = int(is_broken_order(frame, low, high).sum())
        if n_broken:
            raise ValueError(f"{low} <= {high} is broken in {n_broken} rows")
    for code, name in table.combinations:
        if not determined(frame, code, name):
            raise ValueError(f"{code} does not determine {name}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where files are written")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        if table.make is None:
            continue
        frame = table.make()
        check(table, frame)
        frame.to_parquet(options.directory / f"{name}.parquet", index=False)
        sys.stderr.write(f"{name}: {len(frame):,} rows, {frame.shape[1]} columns\n")


if __name__ == "__main__":
    main()
