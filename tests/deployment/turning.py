"""A generator that starts to leak."""

import os
from pathlib import Path

import pandas as pd
from drawing import independent, memorize


def turning(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Honest until a file named ``leak`` exists."""
    return (memorize if (Path(os.environ["DEPLOYMENT_ROOT"]) / "leak").exists() else independent)(
        train, rows, seed
    )
