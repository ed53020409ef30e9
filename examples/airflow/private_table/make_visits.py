"""Write data/visits.csv, a real health survey in the public domain. Replace it with your private
table.
"""

from pathlib import Path

from privacy_assets.tables.demo import load_patients

folder = Path(__file__).resolve().parent / "data"
folder.mkdir(exist_ok=True)
load_patients().to_csv(folder / "visits.csv", index=False)
