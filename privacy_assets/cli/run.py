"""The command ``privacy-assets run``: run the pipeline of a table, from private rows to release,
without orchestrator.

Runs the same steps as an orchestrator: splits, generator, scores, verdict, report, release. TABLE
is a YAML file with the settings in docs/settings.md, or the component of Dagster with them (type:
and attributes:). Partitioned tables need an orchestrator, which knows the partitions.

exit status:
  0  the policy holds, and the table was published
  1  it was not published: a limit fails, or the gate blocked the publication for another reason
  2  bad input or bad settings
  3  it was not published: no limit fails, but one is undecided

rehearsal:
  --rehearse tries settings of the generator without a publication attempt. It drops holdout and
  reference, splits the people in train again, runs the same steps on them, and prints leak and
  utility of each setting. It neither publishes nor adds to the log, but creates the keys of
  the deployment if there are none. The exit status is 0 if a setting passes with a margin, 1 if
  none does, and 3 if there are too few people to decide.

examples:
  privacy-assets run patients.yaml
  privacy-assets run patients.yaml --rehearse --try min_samples_leaf=100,200,500

{deployment}

example of a TABLE:
  name: patients
  source: data/patients.parquet
  subject: patient_id
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from privacy_assets.cli.options import (
    NO,
    STATUSES,
    YES,
    Commands,
    deployment_settings,
    repeatable,
    report_text,
    say,
    workers,
    write_json,
)
from privacy_assets.cli.rehearsal import check_rehearsal_options, run_rehearsal
from privacy_assets.errors import (
    ConfigError,
    PublicationBlocked,
    Undecided,
    outcome_known,
)
from privacy_assets.pipeline.advice import with_advice

if TYPE_CHECKING:
    from privacy_assets.gate.releases import Release
    from privacy_assets.pipeline.resolve import ResolvedTable
    from privacy_assets.pipeline.results import AttestResult
    from privacy_assets.pipeline.work import TableRun

DeviceFor = Callable[[bool], AbstractContextManager[str]]


def add_run(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add(
        "run", _run, "run the pipeline of a table, from its private rows to the release", __doc__
    )
    command.option("table", "YAML file of the table", metavar="TABLE", type=Path)
    command.common("--home", "--releases", "--private")
    out = "folder for report.html, report.json and attestation.json (default reports/NAME)"
    command.option("--out", out, metavar="DIR", type=Path)
    rehearse = (
        "only try the settings, on the people in train, without publication, attempt or log entry"
    )
    command.option("--rehearse", rehearse, action="store_true")
    tried = (
        "values of a setting of the generator to rehearse, as YAML; several settings: all"
        " combinations"
    )
    command.add_argument("--try", dest="tried", **repeatable("SETTING=VALUE,..", tried))
    command.common("--device", "--ray")
    command.option("--quiet", "show no progress, only the result")
    command.verbose()


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of the steps of a table.

    Attributes:
        attested: Result of the attestation. None: the run ended before it.
        release: The release. None: the table was not published.
        blocked_by: Reason why it was not published, or None.
    """

    attested: AttestResult | None
    release: Release | None
    blocked_by: PublicationBlocked | None


def _run(options: argparse.Namespace) -> int:
    from privacy_assets.gate.envelope import ReleaseTarget
    from privacy_assets.pipeline.resolve import ResolvedTable
    from privacy_assets.pipeline.spec import TableSpec
    from privacy_assets.pipeline.work import TableRun

    check_rehearsal_options(options)
    table = ResolvedTable.of(TableSpec.load(options.table))
    run = TableRun(
        table,
        deployment_settings(options).open(),
        ReleaseTarget(table.name),
        progress=options.progress,
    )
    if options.ray is None and table.spec.run.workers == "ray":
        options.ray = "auto"
    device = _device(table, options)

    def device_for(uses_device: bool) -> AbstractContextManager[str]:
        """Return the context of a step.

        Args:
            uses_device: True if the step can use an accelerator.
        """
        return nullcontext(device if uses_device else "cpu")

    if options.rehearse:
        return run_rehearsal(options, table, run.deployment, device_for)
    out = _folder(options.out or Path("reports") / table.name)
    if not options.quiet:
        say(f"{table.name}: {table.generator_label or 'an existing synthetic table'}")
    return _show(_run_steps(run, device_for, options), out, options)


def _device(table: ResolvedTable, options: argparse.Namespace) -> str:
    """Return the device of --device if a step can use it, else "cpu"."""
    from privacy_assets.infra.devices import pick_device
    from privacy_assets.pipeline.steps import tasks

    if any(task.uses_device for task in tasks(table)):
        return pick_device(options.device)
    return "cpu"


def _run_steps(run: TableRun, device_for: DeviceFor, options: argparse.Namespace) -> RunResult:
    """Run the steps of a table.

    Args:
        run: Run of the table.
        device_for: See :func:`.run_table`.
        options: Parsed options.
    """
    from privacy_assets.pipeline.results import AttestResult, PublishResult
    from privacy_assets.pipeline.steps import run_table

    during = _untimed if options.quiet else _timed
    attested = None
    release = None
    blocked_by = None
    try:
        with workers(options):
            for _, result in run_table(run, device_for, during):
                match result:
                    case AttestResult():
                        attested = result
                    case PublishResult():
                        release = result.release
    except PublicationBlocked as error:
        blocked_by = error
    return RunResult(attested, release, blocked_by)


def _show(result: RunResult, out: Path, options: argparse.Namespace) -> int:
    """Print the result, write the report and the attestation, and return the exit status."""
    blocked_by = ""
    if result.blocked_by is not None:
        blocked_by = with_advice(result.blocked_by)
    status = NO
    if isinstance(result.blocked_by, Undecided):
        status = STATUSES["undecided"]
    if result.attested is None:
        sys.stderr.write(f"privacy-assets: blocked, the table was not published: {blocked_by}\n")
        return status
    _write_files(result.attested, out)
    if not options.quiet:
        say("")
    say(report_text(result.attested.report, options), "")
    say(f"report       {out / 'report.html'}", f"attestation  {out / 'attestation.json'}")
    if result.release is not None:
        say(f"release      {result.release.table}")
        return YES
    is_known = result.blocked_by is None or outcome_known(result.blocked_by)
    outcome = "none" if is_known else "unknown"
    say(f"release      {outcome}: {_reason(result.attested, blocked_by)}")
    return status


def _reason(attested: AttestResult, blocked_by: str) -> str:
    """Return the reason why the publication is blocked, with the number of limits that do not hold;
    the printed table lists them.
    """
    verdict = attested.policy_verdict
    if not verdict.not_passed:
        return blocked_by
    counted = f"{len(verdict.not_passed)} of {len(verdict.outcomes)} limits"
    return f"the policy does not hold ({counted}; they are listed above)"


def _timed(name: str) -> AbstractContextManager[None]:
    """Print the elapsed time of a step when it ends."""
    from privacy_assets.pipeline.steps import timed

    def say_time(seconds: float | None) -> None:
        time = "failed" if seconds is None else f"{seconds:6.1f} s"
        say(f"  {name:<24} {time}")

    return timed(say_time)


def _folder(out: Path) -> Path:
    from privacy_assets.infra.files import private_folder

    try:
        return private_folder(out)
    except OSError as error:
        raise ConfigError(f"{out}: this folder cannot be created ({error.strerror}).") from None


def _untimed(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def _write_files(attested: AttestResult, out: Path) -> None:
    from privacy_assets.infra.files import put_atomic

    put_atomic(out / "report.html", attested.report.to_html().encode())
    put_atomic(out / "attestation.json", attested.signed_file.data, mode=0o644)
    write_json(str(out / "report.json"), attested.report.to_json())
