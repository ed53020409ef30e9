"""Rehearsals: the steps of a table without publication, on the people in train only.

A rehearsal splits train once more with a key derived from that of the table, so each setting is
measured on the same people. Its deployment is a temporary folder: it adds no entry to the
deployment of the table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
import yaml

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.gate.deployment import Deployment
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.infra.progress import Progress
from privacy_assets.infra.temp_folders import WorkFolder
from privacy_assets.pipeline.resolve import ResolvedTable, RowSource
from privacy_assets.pipeline.results import AttestResult
from privacy_assets.pipeline.row_sources import train_rows
from privacy_assets.pipeline.spec import GeneratorGroup
from privacy_assets.pipeline.steps import run_table
from privacy_assets.pipeline.work import TableRun
from privacy_assets.policy import LimitOutcome
from privacy_assets.report.report import Report
from privacy_assets.tables.schema import yaml_text


@dataclass(frozen=True)
class Rehearsed:
    """Result of a rehearsal.

    Attributes:
        tried: Settings of the generator that were tried.
        generator: The generator with these settings.
        report: Report on the rehearsal.
        train: Share of train in the split.
    """

    tried: Mapping[str, Any]
    generator: GeneratorGroup
    report: Report
    train: float

    @cached_property
    def outcomes(self) -> list[tuple[LimitOutcome, LimitOutcome]]:
        """Outcome of each limit, and its outcome if a run measures the same value.

        A run has 1 / ``train`` times as many people, so its intervals are narrower by about the
        square root of ``train``.
        """
        factor = math.sqrt(self.train)
        outcomes = self.report.policy_verdict.outcomes
        return [(outcome, outcome.narrowed(factor)) for outcome in outcomes]

    @property
    def has_margin(self) -> bool:
        """Whether the policy holds, and each limit would hold for a run that measures the same
        values.
        """
        return self.report.verdict == "pass" and all(later.passed for _, later in self.outcomes)

    @property
    def strongest(self) -> LimitOutcome:
        """Outcome of the limit that is furthest exceeded, or else nearest, for a run that measures
        the same values.
        """
        strongest, _ = max(self.outcomes, key=_severity)
        return strongest

    @property
    def yaml(self) -> str:
        """The generator in the settings of a table, as YAML."""
        group = {"name": self.generator.name, **self.generator.model_dump(exclude_defaults=True)}
        text: str = yaml.safe_dump({"generator": group}, sort_keys=False, allow_unicode=True)
        return text


def variants(
    table: ResolvedTable, tried: Mapping[str, Sequence[Any]]
) -> list[tuple[dict[str, Any], ResolvedTable]]:
    """Return the table with each combination of settings of its generator.

    Args:
        table: Settings of the table.
        tried: Values by name of the setting.

    Returns:
        Pairs of a combination and the table with it.

    Raises:
        ConfigError: If the table has no generator, or a setting is unknown or invalid.
    """
    if table.external:
        raise ConfigError(
            f"table {table.name}, data: an existing synthetic table cannot be rehearsed,"
            " because it has no generator."
            " Fix: set source instead of synthetic, train and holdout, or run it without"
            " --rehearse."
        )
    generator = table.spec.generator
    resolved = []
    for values in itertools.product(*tried.values()):
        combination = dict(zip(tried, values, strict=True))
        settings = {**generator.settings, **combination}
        group = generator.model_copy(update={"settings": settings})
        spec = table.spec.model_copy(update={"generator": group})
        resolved.append((combination, ResolvedTable.of(spec)))
    return resolved


def _severity(outcomes: tuple[LimitOutcome, LimitOutcome]) -> tuple[bool, bool, bool, float]:
    """Return a key that orders outcomes from the furthest below their limit to the worst."""
    outcome, of_run = outcomes
    used = of_run.used()
    if not math.isfinite(used):
        used = -math.inf
    return outcome.status == "fail", not outcome.passed, not of_run.passed, used


def rehearse(
    tables: Sequence[tuple[Mapping[str, Any], ResolvedTable]],
    deployment: Deployment,
    progress: Progress,
    device_for: Callable[[bool], AbstractContextManager[str]],
) -> Iterator[Rehearsed]:
    """Rehearse a table with each of several settings.

    Holdout and reference are dropped before any value is computed. Only the keys of the deployment
    are used, which are created on first use.

    Args:
        tables: Settings, and the table with them, as :func:`variants` returns them.
        deployment: Deployment of the table.
        progress: Receives messages.
        device_for: See :func:`.run_table`.

    Yields:
        The result for each setting, in order.

    Raises:
        InputError: If the table cannot be used.
        PublicationBlocked: If a step fails.
    """
    _, first = tables[0]
    rows = train_rows(
        first, deployment.key("split"), lambda: deployment.gate().accepted.columns(first.name)
    )
    for number, (tried, table) in enumerate(tables, start=1):
        settings = ", ".join(f"{name}={yaml_text(value)}" for name, value in tried.items())
        progress(f"setting {number} of {len(tables)}: {settings or 'as in the table'}")
        with WorkFolder() as folder:
            temporary = Deployment.temporary(folder, deployment.key("rehearsal"))
            report = _report(table, temporary, rows, progress, device_for)
        yield Rehearsed(tried, table.spec.generator, report, table.shares["train"])


def _report(
    table: ResolvedTable,
    deployment: Deployment,
    rows: pd.DataFrame,
    progress: Progress,
    device_for: Callable[[bool], AbstractContextManager[str]],
) -> Report:
    """Run the steps of a table on ``rows`` up to the report."""
    rehearsed = replace(table, row_sources={"source": RowSource("given")})
    run = TableRun(
        rehearsed,
        deployment,
        ReleaseTarget(table.name),
        progress=progress,
        passed_rows={"source": rows},
    )
    steps = run_table(run, device_for, lambda name: nullcontext())
    try:
        report = next(result.report for _, result in steps if isinstance(result, AttestResult))
    except InputError as error:
        fix = (
            f"a rehearsal splits the {len(rows):,} rows of train only: a run, which has all"
            " rows, may accept what is rejected here"
        )
        if error.fix:
            fix = f"{error.fix}; {fix}"
        raise InputError(
            error.problem,
            where=f"rehearsal, {error.where}",
            column=error.column,
            row=error.row,
            fix=fix,
            transient=error.transient,
        ) from error
    return report
