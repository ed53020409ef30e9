"""Distributions of third parties: modules with entry points, as an installer leaves them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

METRIC = """
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Metric
from privacy_assets.stats.estimates import StatisticSpec

@declared
class Third(Metric):
    name = "third"
    summary = "?"
    required_inputs = frozenset({"synthetic"})
    statistics = (StatisticSpec("share", "A share."),)

    def measure(self, inputs):
        return self.result(inputs, [self.statistic("share").estimate(0.5, 0.4, 0.6, (9, 9))])
"""


@dataclass
class Installer:
    """Writes distributions with one entry point to folders of the search path.

    Attributes:
        folder: Folder of the distributions.
        patch: Undoes it.
    """

    folder: Path
    patch: pytest.MonkeyPatch

    def __call__(
        self,
        target: str = "acme_metrics:Third",
        code: str = METRIC,
        *,
        name: str = "third",
        distribution: str = "acme 1.5",
        group: str = "privacy_assets.metrics",
    ) -> None:
        """Write a distribution, and forget its module.

        Args:
            target: Target of the entry point.
            code: Source code of the module.
            name: Name of the entry point.
            distribution: Name and version.
            group: Group of the entry point.
        """
        title, _, version = distribution.partition(" ")
        module = target.partition(":")[0]
        stem = f"{title.replace('-', '_')}-{version}"
        folder = self.folder / stem
        information = folder / f"{stem}.dist-info"
        information.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {title}\nVersion: {version}\n"
        (information / "METADATA").write_text(metadata)
        (information / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
        (folder / f"{module}.py").write_text(code)
        self.patch.syspath_prepend(folder)
        self.patch.delitem(sys.modules, module, raising=False)
