"""The command ``privacy-assets run``: a whole table, from its private rows to the release. It needs no orchestrator."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from privacy_assets.cli.gate import (
    FOLDER_DEFAULTS,
    NO,
    PRIVATE_DEFAULT,
    TRUSTED_DEFAULT,
    YES,
    Commands,
    add_command,
    add_folders,
    private_folder,
    release_folder,
    say,
)
from privacy_assets.cli.shared import add_ray, progress, workers, write_json
from privacy_assets.errors import ConfigError, PrivacyAssetsError, PublicationRefused

if TYPE_CHECKING:
    from privacy_assets.pipeline.run import Finished
    from privacy_assets.pipeline.steps import Steps

_HELP = f"""\
Runs what an orchestrator would run: splits, generator, scores, verdict, report, release. TABLE is a YAML file of the
settings in docs/settings.md. Tables by partition are run by an orchestrator, which knows the partitions.

exit status:
  0  the policy holds, and the table was published
  1  it was not published: the policy does not hold, cannot be assessed, or the gate refused
  2  bad input or bad settings
{FOLDER_DEFAULTS}{PRIVATE_DEFAULT}{TRUSTED_DEFAULT.format("")}
example of a TABLE:
  name: patients
  source: data/patients.parquet
  subject: patient_id
"""


def add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    what = "run a whole table, from its private rows to the release"
    command = add_command(commands, "run", _run, what, _HELP)
    command.add_argument("table", metavar="TABLE", type=Path, help="YAML file of the table")
    add_folders(command, private=True)
    out = "folder for report.html, report.json and attestation.json (default reports/NAME)"
    command.add_argument("--out", metavar="DIR", type=Path, help=out)
    command.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default auto)")
    add_ray(command)
    command.add_argument("--quiet", action="store_true", help="no progress on standard error")


def _run(options: argparse.Namespace) -> int:
    from privacy_assets.gate.statements import Place
    from privacy_assets.pipeline.deployment import Deployment
    from privacy_assets.pipeline.plan import TablePlan
    from privacy_assets.pipeline.run import on_device, run_table
    from privacy_assets.pipeline.spec import TableSpec
    from privacy_assets.pipeline.steps import Steps

    plan = TablePlan.of(TableSpec.load(options.table))
    releases = release_folder(options, there=False).absolute()
    deployment = Deployment(releases, private_folder(options, releases).absolute())
    steps = Steps(plan, deployment, Place(plan.name), progress=progress(quiet=options.quiet))
    if options.ray is None and plan.workers == "ray":
        options.ray = "auto"
    out = _folder(options.out or Path("reports") / plan.name)
    device = _device(options.device) if on_device(steps) else "cpu"
    say(f"{plan.name}: {plan.generator_label or 'a synthetic table of your own'}")
    try:
        with workers(options):
            found = run_table(steps, device, _timed)
    except PublicationRefused as error:
        sys.stderr.write(f"privacy-assets: refused, nothing was published: {error}\n")
        return NO
    return _told(steps, found, out)


def _device(given: str) -> str:
    from privacy_assets.compute.devices import pick_device

    return pick_device(given)


@contextmanager
def _timed(name: str) -> Iterator[None]:
    """Say when a step has ended, and how long it took."""
    start = time.perf_counter()
    try:
        yield
    except PrivacyAssetsError:
        say(f"  {name:<24} refused")
        raise
    say(f"  {name:<24} {time.perf_counter() - start:6.1f} s")


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: this folder cannot be made ({error.strerror}).") from None
    return out


def _told(steps: Steps, found: Finished, out: Path) -> int:
    from privacy_assets.storage.files import put_atomic

    put_atomic(out / "report.html", found.attested.report.to_html().encode(), mode=0o644)
    put_atomic(out / "attestation.json", found.attested.sealed.data, mode=0o644)
    write_json(str(out / "report.json"), found.attested.report.to_json())
    say(
        "",
        found.attested.report.to_text(),
        "",
        f"report       {out / 'report.html'}",
        f"attestation  {out / 'attestation.json'}",
    )
    if found.release is None:
        say(f"release      none: {found.refusal}")
        return NO
    say(f"release      {found.release.table}")
    return YES
