"""The command ``privacy-assets run``: a whole table, from its private rows to the release. It needs no orchestrator.

Runs what an orchestrator would run: splits, generator, scores, verdict, report, release. TABLE is a YAML file of the
settings in docs/settings.md. Tables by partition are run by an orchestrator, which knows the partitions.

exit status:
  0  the policy holds, and the table was published
  1  it was not published: the policy does not hold, cannot be assessed, or the gate refused
  2  bad input or bad settings

defaults:
  {releases}
  {private}
  trusted keys: {trusted}

example of a TABLE:
  name: patients
  source: data/patients.parquet
  subject: patient_id
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from privacy_assets.cli.command import NO, YES, Commands, private_folder, release_folder, say
from privacy_assets.cli.shared import workers, write_json
from privacy_assets.errors import ConfigError, PublicationRefused

if TYPE_CHECKING:
    from privacy_assets.pipeline.run import Finished


def add_run(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("run", _run, "run a whole table, from its private rows to the release", __doc__)
    command.option("table", "YAML file of the table", metavar="TABLE", type=Path)
    command.common("--releases", "--private")
    out = "folder for report.html, report.json and attestation.json (default reports/NAME)"
    command.option("--out", out, metavar="DIR", type=Path)
    command.common("--device", "--ray", "--quiet")


def _run(options: argparse.Namespace) -> int:
    from privacy_assets.compute.devices import pick_device
    from privacy_assets.gate.statements import Place
    from privacy_assets.pipeline.deployment import Deployment
    from privacy_assets.pipeline.plan import TablePlan
    from privacy_assets.pipeline.run import on_device, run_table
    from privacy_assets.pipeline.spec import TableSpec
    from privacy_assets.pipeline.steps import Steps

    plan = TablePlan.of(TableSpec.load(options.table))
    releases = release_folder(options, there=False).absolute()
    deployment = Deployment(releases, private_folder(options, releases).absolute())
    steps = Steps(plan, deployment, Place(plan.name), progress=options.progress)
    if options.ray is None and plan.workers == "ray":
        options.ray = "auto"
    out = _folder(options.out or Path("reports") / plan.name)
    device = pick_device(options.device) if on_device(steps) else "cpu"
    say(f"{plan.name}: {plan.generator_label or 'a synthetic table of your own'}")
    try:
        with workers(options):
            found = run_table(steps, device, _timed)
    except PublicationRefused as error:
        sys.stderr.write(f"privacy-assets: refused, nothing was published: {error}\n")
        return NO
    return _outcome(found, out)


def _refusal(found: Finished) -> str:
    """Why nothing was released; limits that do not hold are counted: the table above says the same of each."""
    judgement = found.attested.judgement
    if not judgement.broken:
        return found.refusal
    counted = f"{len(judgement.broken)} of {len(judgement.outcomes)} limits"
    return f"the policy does not hold ({counted}; the table above names them)"


def _timed(name: str) -> AbstractContextManager[None]:
    """Say when a step has ended, and how long it took."""
    from privacy_assets.pipeline.run import timed

    return timed(lambda seconds: say(f"  {name:<24} {'refused' if seconds is None else f'{seconds:6.1f} s'}"))


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: this folder cannot be made ({error.strerror}).") from None
    return out


def _outcome(found: Finished, out: Path) -> int:
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
        say(f"release      none: {_refusal(found)}")
        return NO
    say(f"release      {found.release.table}")
    return YES
