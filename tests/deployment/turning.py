"""A generator that turns."""

import os
from pathlib import Path

import pandas as pd
from drawing import independent, memorise


def turning(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Honest until somebody leaves a file named ``leak``."""
    return (memorise if (Path(os.environ["DEPLOYMENT_ROOT"]) / "leak").exists() else independent)(train, rows, seed)
