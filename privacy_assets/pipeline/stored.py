"""Steps of a table in separate processes, which store their values and pass on verified references.

Orchestrators transport references through channels to which others may write. A reference contains
only a keyed hash of the values, and so discloses no rows. The location of values is derived from
the settings of the deployment and the run. So a forged reference names no values, or values of the
same step and run. Records for the gate are signed in addition.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privacy_assets.errors import ConfigError, Damaged, NotTrusted, OutOfDate, safe_repr
from privacy_assets.infra.files import (
    create_once,
    ignore_in_git,
    names,
    private_folder,
    put_atomic,
    read_regular,
)
from privacy_assets.infra.objects import Location, ObjectPath, local_copy
from privacy_assets.infra.work import WorkFolder
from privacy_assets.pipeline.steps import ATTEST, Task, require_paths, tasks, upstream
from privacy_assets.pipeline.training import content_hash
from privacy_assets.pipeline.values import load_stored, remove_folder, store_value
from privacy_assets.pipeline.work import StepResult, TableRun

Reference = Mapping[str, Any]
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOUCHED = "touched"  # time at which a step of a run last used its values
_TASK = "task"  # id of the task that runs this table and partition
_SPARED = 86_400.0  # seconds after that time during which other runs keep the values


@dataclass(frozen=True)
class StoredRun:
    """Run of the steps of one table and partition with stored values.

    Attributes:
        run: Table, partition and deployment.
        base: Folder of the values of all tables.
        run_id: Any string that identifies the run of the orchestrator.
        task_id: Id of the task of the orchestrator. Empty: no other task of the run has this table
            and partition.
    """

    run: TableRun
    base: Location
    run_id: str
    task_id: str = ""

    @property
    def home(self) -> Location:
        """Folder of this table and partition."""
        return self.run.target.below(self.base)

    @property
    def folder(self) -> Location:
        """Folder of the values of this run."""
        return self.home / "runs" / self._hashed_id

    @property
    def reports(self) -> Location:
        """Folder of the verdict and report of this run, which are not removed with its values."""
        return self.home / "reports" / self._hashed_id

    @property
    def _hashed_id(self) -> str:
        return hashlib.sha256(self.run_id.encode()).hexdigest()[:16]

    def start(self) -> None:
        """Prepare the folders. In all partitions, values of runs unused for a day are removed.

        Raises:
            ConfigError: If the caller would have to pass rows, a folder belongs to another
                deployment, or another task of this run started with the same table and partition.
        """
        require_paths(self.run.table)
        # before storing values, which are usually in its private folder
        self.run.deployment.check()
        if isinstance(self.base, Path):
            ignore_in_git(private_folder(self.base))
        self._sweep()
        self._reserve()
        self._touch()

    def run_task(
        self, task: Task, references: Mapping[str, Reference], device: str = "cpu"
    ) -> tuple[dict[str, Any], StepResult]:
        """Run a task on the stored values of its upstream tasks.

        Args:
            task: Task of the table. The first one calls :meth:`start`.
            references: References to the values of upstream tasks, by the name of the task. The
                verdict includes the record of its synthetic table, so publication needs no other
                reference.
            device: Name of the torch device.

        Returns:
            The reference to the values that it stored, and its result.

        Raises:
            PublicationRefused: If a reference is missing or forged, its values changed, or the gate
                rejects a record.
        """
        if not task.reads:
            self.start()
        # a retry resumes interrupted training
        scratch = self.folder if isinstance(self.folder, Path) else None
        run, values = (
            replace(self.run, device=device, scratch=scratch, run_id=self.run_id),
            dict[str, Any](),
        )
        with ExitStack() as stack:
            for other in reversed(upstream(run.table, task)):
                if set(other.makes) & (set(task.reads) - set(values)):
                    values |= stack.enter_context(
                        self._opened(other.name, references.get(other.name))
                    )
            result = task.run(run, values)
            return self.save(task, {**values, **result.values}), result

    def save(self, task: Task, values: Mapping[str, Any]) -> dict[str, Any]:
        """Store the values of a task that later tasks read, and the report of a verdict.

        Args:
            task: Task of the table.
            values: Its values. For a verdict, also the record of the synthetic table, because
                publication may happen after the values of the run were removed.

        Returns:
            The reference to the values; empty if no task reads them.
        """
        if task.step.verb == ATTEST:
            store_value(values["privacy_report"], self.reports)
        read = {name for other in tasks(self.run.table) for name in other.reads}
        kept = [
            name
            for name in (*task.makes, *(["synthetic"] if task.step.verb == ATTEST else []))
            if name in read
        ]
        return self._put(task.name, {name: values[name] for name in kept}) if kept else {}

    def _put(self, step: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Store values under the keyed hash of their bytes, and return their reference."""
        folder = self._at(step)
        with self._draft(folder) as draft:
            for name, value in values.items():
                store_value(value, draft / name)
            digest = self._keyed(draft)
            place = folder / digest
            if isinstance(place, ObjectPath):
                place.upload(draft)
            elif not place.is_dir() or place.is_symlink() or self._keyed(place) != digest:
                remove_folder(place)  # damaged, or a link
                place.unlink(missing_ok=True)
                draft.rename(place)
        self._touch()
        return {**self._named(step), "values": sorted(values), "digest": digest}

    @contextmanager
    def _draft(self, folder: Location) -> Iterator[Path]:
        """Yield a new folder for values, which is removed unless the block moves it."""
        if isinstance(folder, ObjectPath):
            with WorkFolder() as made:
                yield made
            return
        draft = private_folder(folder / f".{uuid.uuid4().hex}")
        try:
            yield draft
        finally:
            remove_folder(draft)

    def _at(self, step: str) -> Location:
        """Return the folder of a step. A verdict contains no private rows, and is stored with its
        report.
        """
        return (self.reports if step == ATTEST else self.folder) / step

    def _named(self, step: str) -> dict[str, Any]:
        return {
            "table": self.run.target.table,
            "partition": self.run.target.partition,
            "step": step,
        }

    def _keyed(self, folder: Path) -> str:
        return self.run.deployment.keyed_fingerprint(content_hash(folder))

    @contextmanager
    def _opened(self, step: str, reference: object) -> Iterator[dict[str, Any]]:
        """Yield the values of a reference by name.

        Raises:
            OutOfDate: If there is no reference.
            NotTrusted: If it is not a reference to values of this step.
            Damaged: If the bytes differ.
        """
        if not reference:
            raise self._nothing(step)
        digest = reference.get("digest") if isinstance(reference, Mapping) else None
        own = isinstance(reference, Mapping) and self._named(step).items() <= reference.items()
        if not own or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            text = (
                f"{self.run.target}: expected a reference to the values of step {step}, got"
                " something else"
            )
            raise NotTrusted(text, redo=(step,))
        self._touch()
        with local_copy(self._at(step) / digest) as folder:
            there = folder.is_dir() and not folder.is_symlink()
            if not there or not hmac.compare_digest(self._keyed(folder), digest):
                text = (
                    f"the values of step {step} are not those that it stored in this run, or are"
                    " missing"
                )
                raise Damaged(
                    f"{self.run.target}: {text}", path=str(self._at(step) / digest), redo=(step,)
                )
            found = {name: load_stored(folder / name) for name in names(folder)}
            yield found

    def _nothing(self, step: str) -> OutOfDate:
        return OutOfDate(f"{self.run.target}: step {step} has no values in this run", redo=(step,))

    def _reserve(self) -> None:
        """Reserve table and partition in this run for the task, also for its retries.

        Raises:
            ConfigError: If another task has reserved them: its release would be replaced within the
                run.
        """
        file = private_folder(self.folder) / _TASK
        if not self.task_id or create_once(file, self.task_id.encode()):
            return
        holder = read_regular(file).decode(errors="replace")
        if holder != self.task_id:
            text = (
                f"{self.run.target}: task {safe_repr(holder)} of this run has the same table and"
                " partition"
            )
            fix = (
                "use another table or partition for each task; after a change of the tasks, start"
                " a new run"
            )
            raise ConfigError(f"{text}, and its release would be replaced. Fix: {fix}.")

    def _touch(self) -> None:
        put_atomic(private_folder(self.folder) / _TOUCHED, f"{time.time():.0f}".encode())

    def _sweep(self) -> None:
        """Remove the values of other runs of the table that no step used for a day, because they
        are private rows.
        """
        parts = [part for part in names(self.home.parent) if not part.startswith(".")]
        runs = [self.home.parent / part / "runs" for part in parts]
        for run in (place / name for place in runs for name in names(place)):
            try:
                old = time.time() - float(read_regular(run / _TOUCHED)) > _SPARED
            except (OSError, ValueError):
                old = False  # just started, or killed before it stored values
            if old and run != self.folder:
                remove_folder(run)
