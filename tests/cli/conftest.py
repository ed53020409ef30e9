"""Fixtures of all command tests: run commands in this process, and provide one private table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.main import main
from tests.cli.people import people


class Said(NamedTuple):
    """Output of a command on both streams."""

    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Call a command in this process; check that it exits with ``status`` and shows no
    traceback.
    """

    def call(*words: object, status: int = 0) -> Said:
        capsys.readouterr()
        try:
            ended: object = main([str(word) for word in words])
        except SystemExit as end:  # of argparse
            ended = end.code
        said = Said(*capsys.readouterr())
        assert ended == status, said
        assert "Traceback" not in said.err
        return said

    return call


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small tables that no test changes: people.parquet and the three tables of a
    release.
    """
    folder = tmp_path_factory.mktemp("tables")
    people().to_parquet(folder / "people.parquet", index=False)
    g = np.random.default_rng(0)
    for role, rows in (("train", 400), ("holdout", 200), ("synthetic", 400)):
        frame = pd.DataFrame(
            {
                "age": g.normal(50, 9, rows),
                "dose": g.normal(size=rows),
                "visits": g.poisson(3, rows),
            }
        )
        frame.assign(town=g.choice(list("abc"), rows)).to_parquet(folder / f"{role}.parquet")
    return folder
