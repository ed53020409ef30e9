"""Write made tables of ordinary business shape as Parquet files: codes of 200 to 600 levels that
people keep or change.

    python -m benchmarks.business_tables DIRECTORY

Column ``person`` identifies people with several rows. Columns depend on each other as in real
tables, and the number of people per code is uneven. Each seed draws another population.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.leak_tables import PERSON

Rng = np.random.Generator


def codes(rng: Rng, levels: int, number: int, prefix: str, skew: float = 0.6) -> np.ndarray:
    """Return codes as text, where the k-th most frequent has a share proportional to 1 / k to the
    power of ``skew``.
    """
    shares = np.arange(1, levels + 1) ** -skew
    names = np.array([f"{prefix}{at:03d}" for at in rng.permutation(levels)])
    return names[rng.choice(levels, number, p=shares / shares.sum())]


def related(rng: Rng, other: np.ndarray, levels: int, prefix: str, keep: float = 0.5) -> np.ndarray:
    """Return codes of which each value of ``other`` prefers a few: a share ``keep`` of the rows has
    one of five.
    """
    _, group = np.unique(other, return_inverse=True)
    favorites = rng.integers(levels, size=(group.max() + 1, 5))
    drawn = np.where(
        rng.random(len(group)) < keep,
        favorites[group, rng.integers(5, size=len(group))],
        rng.integers(levels, size=len(group)),
    )
    return np.array([f"{prefix}{at:03d}" for at in range(levels)])[drawn]


def of_people(rng: Rng, people: int, rows: int, most: int = 10) -> np.ndarray:
    """Return the person of each row; each person has 1 to ``most`` rows."""
    more = rng.choice(people, rows - people, p=rng.dirichlet(np.full(people, 2.0)))
    whose = np.sort(np.concatenate([np.arange(people), more]))
    place = np.arange(rows) - np.searchsorted(whose, whose)
    return whose[place < most]


def days(rng: Rng, number: int, start: str, span: int) -> pd.DatetimeIndex:
    """Return days within ``span`` days of ``start``."""
    return pd.Timestamp(start) + pd.to_timedelta(rng.integers(span, size=number), unit="D")


def visits(rng: Rng) -> pd.DataFrame:
    """Return 8,000 visits of 3,000 patients."""
    whose = of_people(rng, 3_000, 8_000)
    born, area = rng.integers(1930, 2015, 3_000), codes(rng, 250, 3_000, "P")
    diagnosis = related(rng, (born // 10)[whose], 300, "D")
    department = related(rng, diagnosis, 12, "department ", 0.9)
    cost = rng.lognormal(4 + pd.factorize(department, sort=True)[0] / 10, 0.6).round(2)
    return pd.DataFrame(
        {
            PERSON: whose,
            "visit_date": days(rng, len(whose), "2022-01-01", 1000),
            "birth_year": born[whose],
            "postal_code": area[whose],
            "diagnosis": diagnosis,
            "department": department,
            "cost": cost,
            "laboratory": (rng.gamma(4, 2, len(whose)) + (2020 - born[whose]) / 20).round(1),
        }
    )


def orders(rng: Rng) -> pd.DataFrame:
    """Return 9,000 orders of 3,000 customers."""
    whose = of_people(rng, 3_000, 9_000)
    area, segment = (
        codes(rng, 300, 3_000, "P"),
        rng.choice(["private", "business", "public"], 3_000, p=[0.7, 0.2, 0.1]),
    )
    product = related(rng, segment[whose], 400, "A", 0.3)
    price = rng.lognormal(3, 1, 400).round(2)[pd.factorize(product, sort=True)[0]]
    quantity = 1 + rng.poisson(np.where(segment[whose] == "private", 0.4, 3))
    return pd.DataFrame(
        {
            PERSON: whose,
            "postal_code": area[whose],
            "product": product,
            "price": price,
            "segment": segment[whose],
            "quantity": quantity,
            "day": days(rng, len(whose), "2023-01-01", 700),
            "channel": rng.choice(["web", "shop", "phone"], len(whose), p=[0.6, 0.3, 0.1]),
        }
    )


def telecom(rng: Rng) -> pd.DataFrame:
    """Return 6,000 customers with one row each."""
    age = np.clip(rng.normal(45, 16, 6_000), 18, 95).astype(int)
    tariff = related(rng, age // 15, 9, "tariff ", 0.7)
    usage = rng.lognormal(3 - age / 60 + pd.factorize(tariff, sort=True)[0] / 8, 0.7).round(2)
    return pd.DataFrame(
        {"age": age, "city": codes(rng, 500, 6_000, "C"), "tariff": tariff, "usage": usage}
    )


def claims(rng: Rng) -> pd.DataFrame:
    """Return 9,000 claims of 3,500 drivers, who keep car and region."""
    whose = of_people(rng, 3_500, 9_000)
    region, born = codes(rng, 220, 3_500, "R"), rng.integers(1935, 2006, 3_500)
    car = related(rng, region, 350, "M", 0.2)
    cause = rng.choice(
        ["collision", "theft", "glass", "hail", "fire"], len(whose), p=[0.45, 0.1, 0.3, 0.1, 0.05]
    )
    paid = rng.lognormal(6 + pd.factorize(cause, sort=True)[0] / 3, 0.9).round(-1)
    return pd.DataFrame(
        {
            PERSON: whose,
            "car": car[whose],
            "region": region[whose],
            "birth_year": born[whose],
            "cause": cause,
            "paid": paid,
            "day": days(rng, len(whose), "2021-01-01", 1400),
        }
    )


def pupils(rng: Rng) -> pd.DataFrame:
    """Return 10,000 test results of 3,000 pupils, who keep school and teacher."""
    whose = of_people(rng, 3_000, 10_000, 8)
    school = codes(rng, 200, 3_000, "S", 0.3)
    teacher = np.char.add(school, rng.choice(list("ab"), 3_000))
    able = rng.normal(size=3_000)
    score = np.clip(50 + 12 * able[whose] + rng.normal(0, 8, len(whose)), 0, 100).round()
    return pd.DataFrame(
        {
            PERSON: whose,
            "school": school[whose],
            "teacher": teacher[whose],
            "grade": rng.integers(1, 9, len(whose)),
            "subject": rng.choice(["math", "reading", "science"], len(whose)),
            "score": score,
            "free_lunch": (rng.random(3_000) < 0.35)[whose],
        }
    )


def payroll(rng: Rng) -> pd.DataFrame:
    """Return 12,000 payments to 4,000 employees, who keep site and occupation."""
    whose = of_people(rng, 4_000, 12_000, 6)
    site = codes(rng, 240, 4_000, "L")
    occupation = related(rng, site, 260, "J", 0.4)
    wage = rng.lognormal(7.5, 0.3, 260)[pd.factorize(occupation, sort=True)[0]] * rng.lognormal(
        0, 0.1, 4_000
    )
    return pd.DataFrame(
        {
            PERSON: whose, "site": site[whose], "occupation": occupation[whose],
            "paid": (wage[whose] * rng.lognormal(0, 0.05, len(whose))).round(-1),
            "hours": rng.choice([20, 30, 40], len(whose), p=[0.2, 0.2, 0.6]),
            "month": rng.integers(1, 13, len(whose)), "overtime": rng.poisson(2, len(whose)),
        }
    )  # fmt: skip


def bookings(rng: Rng) -> pd.DataFrame:
    """Return 9,000 bookings of 5,000 guests, who keep their home city."""
    whose = of_people(rng, 5_000, 9_000)
    home = codes(rng, 600, 5_000, "C", 0.8)
    hotel = codes(rng, 80, len(whose), "H")
    nights = 1 + rng.poisson(2, len(whose))
    return pd.DataFrame(
        {
            PERSON: whose,
            "home": home[whose],
            "hotel": hotel,
            "nights": nights,
            "room": related(rng, hotel, 5, "room ", 0.8),
            "arrival": days(rng, len(whose), "2023-01-01", 730),
            "price": (nights * rng.lognormal(4.4, 0.3, len(whose))).round(),
        }
    )


def loans(rng: Rng) -> pd.DataFrame:
    """Return 7,000 loans, one a customer."""
    branch, job = codes(rng, 300, 7_000, "B"), codes(rng, 200, 7_000, "J")
    income = rng.lognormal(10.3, 0.35, 200)[pd.factorize(job, sort=True)[0]] * rng.lognormal(
        0, 0.2, 7_000
    )
    amount = (income * rng.uniform(0.1, 2, 7_000)).round(-2)
    return pd.DataFrame(
        {
            "branch": branch,
            "occupation": job,
            "income": income.round(-2),
            "amount": amount,
            "term": rng.choice([12, 24, 36, 60], 7_000),
            "purpose": rng.choice(["car", "home", "other"], 7_000),
            "default": rng.random(7_000) < np.clip(amount / income / 10, 0, 1),
        }
    )


TABLES: Mapping[str, Callable[[Rng], pd.DataFrame]] = {
    make.__name__: make
    for make in (visits, orders, telecom, claims, pupils, payroll, bookings, loans)
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    for name, make in TABLES.items():
        make(np.random.default_rng([options.seed, *name.encode()])).to_parquet(
            options.directory / f"{name}.parquet"
        )


if __name__ == "__main__":
    main()
