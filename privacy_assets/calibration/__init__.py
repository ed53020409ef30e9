"""Proof that the metrics see a leak: tables of known truth, made of real rows or by a generator that over-fits."""

from privacy_assets.calibration.leaky import Noise, every_noise, leaky_cases, leaky_table
from privacy_assets.calibration.overfit import overfit_cases
from privacy_assets.calibration.study import Case, Fit, Point, fits, read_points, run_study

__all__ = [
    "Case",
    "Fit",
    "Noise",
    "Point",
    "every_noise",
    "fits",
    "leaky_cases",
    "leaky_table",
    "overfit_cases",
    "read_points",
    "run_study",
]
