"""Over-fit evaluation (Palacios 4.2, figure 4): tables of a generator that was over-fitted on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from privacy_assets.calibration.study import Case
from privacy_assets.compute.progress import Progress, silent
from privacy_assets.errors import ConfigError, shown
from privacy_assets.generators.registry import GENERATORS, build_generator
from privacy_assets.tables.table import Table

RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0)


def overfit_cases(
    train: Table,
    rows: int,
    *,
    generator: str = "rvae",
    settings: Mapping[str, Any] | None = None,
    ratios: Iterable[float] = RATIOS,
    people: np.ndarray | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = silent,
) -> Iterator[Case]:
    """A case for each ratio f_o = L/L* of the loss on unseen people, in [1, 2]; 1 is the best generator there is.

    ``rows`` is the size of the tables. The ``generator`` needs the setting "overfit" (a GAN has
    no such loss; ConfigError). A training that ends before it reaches the ratio lies at the one it reached.
    """
    able = sorted(name for name, kind in GENERATORS.items() if hasattr(kind, "overfit"))
    if generator not in able:
        raise ConfigError(
            f"generator {shown(generator)} cannot over-fit to a ratio of losses; these can: {', '.join(able)}."
        )
    chosen = dict(settings or {})
    label = ", ".join([generator, *(f"{key} {value}" for key, value in chosen.items() if not isinstance(value, str))])

    def case(ratio: float) -> Case:
        built = build_generator(generator, {**chosen, "overfit": ratio})

        def make() -> tuple[Table, float]:
            fitted = built.fit(train, seed=seed, device=device, progress=progress, people=people)
            reached = [row["overfitting_ratio"] for row in fitted.history if "overfitting_ratio" in row]
            return fitted.sample(rows, seed=seed), reached[-1] if reached else 1.0

        return Case(label, ratio, make)

    yield from map(case, sorted(set(ratios)))
