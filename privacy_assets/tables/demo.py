"""The demo table: a public-domain health survey with several years per person."""

from __future__ import annotations

from importlib.resources import as_file, files

import pandas as pd

SUBJECT = "person"


def load_patients() -> pd.DataFrame:
    """Return the RAND Health Insurance Experiment (statsmodels' `randhie`): 20,190 person-years x 9
    columns.

    ``person`` (int64) is the subject. The data has no person column but is in panel order, so a
    person is a run of consecutive rows that agree in all columns except the number of visits: 5,294
    runs, most of 3 or 5 years. This is approximate: two similar people of one family are merged,
    which keeps more rows together in a split.

    - doctor_visits (integer): outpatient visits in the year.
    - coinsurance (category): share of the bill paid by the person.
    - individual_deductible (boolean): a plan with one.
    - participation_incentive (numeric): dollars per year; 1 if there is none.
    - expenditure_cap (numeric): maximum dollars of expenditure over the coinsurance rate; 1 if
      there is none, or an individual deductible.
    - physical_limitation (numeric): 1 yes, 0 no, fractional where imputed.
    - chronic_diseases (numeric): count, fractional where imputed.
    - health (category): self-rated.

    Amounts are the exponentials of the published logarithms, rounded to cents; distinct values
    remain distinct.
    """
    with as_file(files(__package__) / "patients.parquet") as path:
        return pd.read_parquet(path)
