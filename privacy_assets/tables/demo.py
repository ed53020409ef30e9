"""The demo table: a real health survey with several years a person, in the public domain."""

from __future__ import annotations

from importlib.resources import as_file, files

import pandas as pd

SUBJECT = "person"


def load_patients() -> pd.DataFrame:
    """Return the RAND Health Insurance Experiment (statsmodels' `randhie`): 20,190 person-years x 9 columns.

    ``person`` (int64) is the subject. The data has no person column but stands in panel order, so a person is a run of
    consecutive rows that agree in all columns but the number of visits: 5,294 runs, most of 3 or 5 years. That is
    approximate: two people of one family who agree in everything become one, which errs on the side of keeping rows
    together in a split.

    doctor_visits (integer): outpatient visits in the year; coinsurance (category): share of the bill that the person
    pays; individual_deductible (boolean): a plan with one; participation_incentive (numeric): dollars a year, 1 stands
    for none; expenditure_cap (numeric): maximum dollars of expenditure over the coinsurance rate, 1 stands for none or
    an individual deductible; physical_limitation (numeric): 1 with, 0 without, between where it was imputed;
    chronic_diseases (numeric): count, fractional where imputed; health (category): self-rated.

    Amounts are the exponentials of the published logarithms, rounded to cents; values that differ there differ here.
    """
    with as_file(files(__package__) / "patients.parquet") as path:
        return pd.read_parquet(path)
