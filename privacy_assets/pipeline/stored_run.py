"""Steps of a table in separate processes, which store their values and pass on verified references.

Orchestrators transport references through channels to which others may write. A reference contains
only a keyed hash of the values, and so discloses no rows. The location of values is derived from
the settings of the deployment and the run. So a forged reference names no values, or values of the
same step and run. Files for the gate are signed in addition.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privacy_assets.errors import ConfigError, Damaged, NotTrusted, OutOfDate, safe_repr
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import local_path, storage_of
from privacy_assets.pipeline.results import StepResult
from privacy_assets.pipeline.steps import ATTEST, Task, require_paths, tasks, upstream
from privacy_assets.pipeline.training import content_hash
from privacy_assets.pipeline.values import load_stored, store_value
from privacy_assets.pipeline.work import TableRun

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
        storage_of(self.base).make_private()
        storage_of(self.base).ignore_in_git()
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
                verdict includes the signed file of its synthetic table, so publication needs no
                other reference.
            device: Name of the torch device.

        Returns:
            The reference to the values that it stored, and its result.

        Raises:
            PublicationBlocked: If a reference is missing or forged, its values changed, or the gate
                rejects a signed file.
        """
        if not task.reads:
            self.start()
        # a retry resumes interrupted training
        scratch = local_path(self.folder)
        run = replace(self.run, device=device, scratch=scratch, run_id=self.run_id)
        values: dict[str, Any] = {}
        with ExitStack() as stack:
            for earlier in reversed(upstream(run.table, task)):
                missing = set(task.reads) - set(values)
                if missing.isdisjoint(earlier.makes):
                    continue
                opened = self._opened(earlier.name, references.get(earlier.name))
                values |= stack.enter_context(opened)
            result = task.run(run, values)
            reference = self.save(task, {**values, **result.values})
            return reference, result

    def save(self, task: Task, values: Mapping[str, Any]) -> dict[str, Any]:
        """Store the values of a task that later tasks read, and the report of a verdict.

        Args:
            task: Task of the table.
            values: Its values. For a verdict, also the signed file of the synthetic table, because
                publication may happen after the values of the run were removed.

        Returns:
            The reference to the values; empty if no task reads them.
        """
        names_to_store = list(task.makes)
        if task.step.verb == ATTEST:
            store_value(values["privacy_report"], self.reports)
            names_to_store.append("synthetic")
        read_names: set[str] = set()
        for reader in tasks(self.run.table):
            read_names.update(reader.reads)
        to_store = {name: values[name] for name in names_to_store if name in read_names}
        if not to_store:
            return {}
        return self._put(task.name, to_store)

    def _put(self, step: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Store values under the keyed hash of their bytes, and return their reference."""
        folder = self._at(step)
        with storage_of(folder).draft() as draft:
            for name, value in values.items():
                store_value(value, draft / name)
            digest = self._keyed_hash(draft)
            stored = storage_of(folder / digest)
            if stored.local is None or not self._is_intact(stored.local, digest):
                stored.take(draft)
        self._touch()
        return {**self._reference_start(step), "values": sorted(values), "digest": digest}

    def _is_intact(self, folder: Path, digest: str) -> bool:
        """Return False if a folder is missing or damaged, or is a link."""
        if not folder.is_dir() or folder.is_symlink():
            return False
        return hmac.compare_digest(self._keyed_hash(folder), digest)

    def _at(self, step: str) -> Location:
        """Return the folder of a step. A verdict contains no private rows, and is stored with its
        report.
        """
        if step == ATTEST:
            return self.reports / step
        return self.folder / step

    def _reference_start(self, step: str) -> dict[str, Any]:
        """Return the entries that all references to values of a step have."""
        return {
            "table": self.run.target.table,
            "partition": self.run.target.partition,
            "step": step,
        }

    def _keyed_hash(self, folder: Path) -> str:
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
            text = f"{self.run.target}: step {step} has no values in this run"
            raise OutOfDate(text, redo=(step,))
        digest = self._digest_in(reference, step)
        if digest is None:
            text = (
                f"{self.run.target}: expected a reference to the values of step {step}, got"
                " something else"
            )
            raise NotTrusted(text, redo=(step,))
        self._touch()
        stored = self._at(step) / digest
        with storage_of(stored).local_copy() as folder:
            if not self._is_intact(folder, digest):
                text = (
                    f"{self.run.target}: the values of step {step} are not those that it stored"
                    " in this run, or are missing"
                )
                raise Damaged(text, path=str(stored), redo=(step,))
            yield {name: load_stored(folder / name) for name in storage_of(folder).names()}

    def _digest_in(self, reference: object, step: str) -> str | None:
        """Return the digest in a reference to values of a step, or None if it is none."""
        if not isinstance(reference, Mapping):
            return None
        digest = reference.get("digest")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            return None
        if not self._reference_start(step).items() <= reference.items():
            return None
        return digest

    def _reserve(self) -> None:
        """Reserve table and partition in this run for the task, also for its retries.

        Raises:
            ConfigError: If another task has reserved them: its release would be replaced within the
                run.
        """
        storage_of(self.folder).make_private()
        file = storage_of(self.folder / _TASK)
        if not self.task_id or file.create(self.task_id.encode()):
            return
        holder = file.read().decode(errors="replace")
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
        storage_of(self.folder / _TOUCHED).put(f"{time.time():.0f}".encode())

    def _sweep(self) -> None:
        """Remove the values of other runs of the table that no step used for a day, because they
        are private rows.
        """
        for partition in storage_of(self.home.parent).names():
            if partition.startswith("."):
                continue
            runs = self.home.parent / partition / "runs"
            for name in storage_of(runs).names():
                if runs / name != self.folder and _is_old(runs / name):
                    storage_of(runs / name).remove_below()


def _is_old(folder: Location) -> bool:
    """Return True if no step used the values of a run for a day."""
    try:
        unused = time.time() - float(storage_of(folder / _TOUCHED).read())
    except (OSError, ValueError):
        return False  # just started, or killed before it stored values
    return unused > _SPARED
