"""A notebook that reads the release and shows the report of the gate (docs/downstream.md).

The executed notebook contains the report, which is private: it is written to the folder
``private_notebooks`` of DAGSTER_HOME, for the current user only.
"""

import os
from pathlib import Path

import dagster as dg
import nbformat
from nbclient import NotebookClient

import privacy_assets as pa

SOURCE = Path(__file__).with_name("patients.ipynb")


@dg.asset(deps=[["patients", "published"], ["patients", "privacy_report"]], group_name="patients")
def notebook() -> dg.MaterializeResult:
    """The executed notebook."""
    folder = Path(os.environ["DAGSTER_HOME"], "private_notebooks")
    folder.mkdir(mode=0o700, exist_ok=True)
    cells = nbformat.read(SOURCE, as_version=4)
    NotebookClient(cells, timeout=600).execute()
    nbformat.write(cells, folder / SOURCE.name)
    return dg.MaterializeResult(
        metadata={"notebook": dg.MetadataValue.notebook(folder / SOURCE.name)}
    )


defs = dg.Definitions.merge(
    pa.build_privacy_assets("patients", source="demo", subject="person"),
    dg.Definitions(
        assets=[notebook],
        resources=pa.resources(),
        executor=pa.frozen_config(dg.in_process_executor),
    ),
)
