"""A whole table without an orchestrator: its steps one after the other, each value handed to the next in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from privacy_assets.errors import ConfigError, PrivacyAssetsError, PublicationRefused
from privacy_assets.gate.releases import Release
from privacy_assets.gate.statements import Sealed
from privacy_assets.pipeline.measuring import fitted_embedder
from privacy_assets.pipeline.steps import Attested, Steps

Step = Callable[[str], AbstractContextManager[None]]  # is told the name of a step, and holds while it works


@dataclass(frozen=True)
class Finished:
    """What came of a run: the verdict, its page, and the release or the reason why there is none."""

    attested: Attested
    release: Release | None
    refusal: str = ""


def on_device(steps: Steps) -> bool:
    """True when any step of this table can use a device."""
    plan = steps.plan
    torch = plan.generator is not None and "torch" in plan.generator.modules
    return plan.embeds or torch or any(metric.uses_device for metric in plan.metrics.values())


def run_table(steps: Steps, device: str = "cpu", step: Step = lambda _: nullcontext()) -> Finished:
    """Run all steps of a table, from its rows to the release.

    A table that does not hold its policy has a verdict and a page, and no release. Raises InputError for tables that
    cannot be used, and PublicationRefused for what the gate does not believe before there is a verdict.
    """
    attested, synthetic = judge_table(steps, device, step)
    try:
        with step("published"):
            return Finished(attested, steps.publish(attested.sealed, synthetic))
    except PublicationRefused as error:
        return Finished(attested, None, str(error))


def judge_table(steps: Steps, device: str = "cpu", step: Step = lambda _: nullcontext()) -> tuple[Attested, Sealed]:
    """The steps up to the verdict; with the signed record of the synthetic table, which publishing needs."""
    plan = steps.plan
    check_alone(steps)
    source = None
    if not plan.external:
        with step("source"):
            source = steps.source()
    with step("splits"):
        tables = steps.splits(source)
    del source
    embedder = trained = None
    if plan.embeds:
        with step("embedder"):
            embedder = fitted_embedder(plan, tables, device, steps.progress)
    if not plan.external:
        with step("generator"):
            trained = steps.generator(tables["train"], device=device if "torch" in plan.generator.modules else "cpu")
    with step("synthetic"):
        read = tables if plan.filters else {"train": tables["train"]}
        synthetic = steps.synthetic(read, trained).sealed
    with step("encoded"):
        encoded = steps.encoded(tables, synthetic, embedder, device if embedder is not None else "cpu")
    scores = {}
    for name, metric in plan.metrics.items():
        with step(name):
            there = device if plan.uses_embedder(metric) or metric.uses_device else "cpu"
            scores[name] = steps.score(metric, encoded, there).sealed
    with step("attestation"):
        return steps.attestation(tables, encoded, synthetic, scores), synthetic


@contextmanager
def timed(ended: Callable[[float | None], None]) -> Iterator[None]:
    """Tell ``ended`` how many seconds the ``with`` block took, or None when it was refused by an error of ours."""
    start = time.perf_counter()
    try:
        yield
    except PrivacyAssetsError:
        ended(None)
        raise
    ended(time.perf_counter() - start)


def check_alone(steps: Steps) -> None:
    """ConfigError for a table of which somebody has to hand over rows."""
    for role, row_source in steps.plan.row_sources.items():
        if row_source.kind == "given":
            raise ConfigError(f"table {steps.plan.name}, data: {role} has to be a path here.")
