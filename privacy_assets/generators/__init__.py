"""Synthetic data generators: common base class and registry."""

from privacy_assets.generators.base import FittedGenerator, Generator, PrivacyBudget
from privacy_assets.generators.registry import (
    GENERATORS,
    GeneratorInfo,
    GeneratorLike,
    as_generator,
    build_generator,
    generator_info,
    load_generator,
)

__all__ = [
    "GENERATORS",
    "FittedGenerator",
    "Generator",
    "GeneratorInfo",
    "GeneratorLike",
    "PrivacyBudget",
    "as_generator",
    "build_generator",
    "generator_info",
    "load_generator",
]
