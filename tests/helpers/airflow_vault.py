"""A secrets backend: one file per secret, in a folder that represents a vault."""

from __future__ import annotations

from pathlib import Path

from airflow.secrets.base_secrets import BaseSecretsBackend


class Vault(BaseSecretsBackend):
    """Variables by name; no connections."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def get_variable(self, key: str, team_name: str | None = None) -> str | None:
        file = self.folder / key
        if not file.is_file():
            return None
        return file.read_text()

    def get_conn_value(self, conn_id: str, team_name: str | None = None) -> str | None:
        return None
