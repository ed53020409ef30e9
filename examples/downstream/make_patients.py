"""Write the demo table to the warehouse: a real health survey in the public domain. Replace it with
your own table.
"""

import os

import duckdb

from privacy_assets.tables.demo import load_patients

with duckdb.connect(os.environ["WAREHOUSE"]) as warehouse:
    patients = load_patients()
    warehouse.execute("create or replace table patients as select * from patients")
