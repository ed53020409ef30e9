"""All that needs Airflow, version 3."""

from privacy_assets.errors import require

require("airflow", "the Airflow part of privacy-assets", "airflow")
