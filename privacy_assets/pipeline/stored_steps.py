"""The steps of a table in processes of their own: each stores its values, and hands on a reference that is verified.

A reference travels through whatever an orchestrator has for it, where others may write. It says no more than which
bytes were meant: a keyed hash, and so nothing of the rows. Where values lie follows from the settings of the deployment
and the run alone, so that a forged reference names nothing, or values of this very step of this very run; and what the
gate must believe is signed beside that.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.statements import Sealed
from privacy_assets.pipeline.measuring import fitted_embedder
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.run import check_alone
from privacy_assets.pipeline.steps import Attested, Steps
from privacy_assets.pipeline.training import content_hash
from privacy_assets.pipeline.values import load_stored, remove_folder, store_value
from privacy_assets.storage.files import names, private_folder, put_atomic, read_regular
from privacy_assets.storage.objects import Location, ObjectPath, local_copy
from privacy_assets.storage.work import WorkFolder

Reference = Mapping[str, Any]
SPLIT, EMBED, FIT, SAMPLE, ENCODE, SCORE, ATTEST = "split", "embed", "fit", "sample", "encode", "score", "attest"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOUCHED = "touched"  # when a step of a run last used its values
_SPARED = 86_400.0  # seconds since then, during which another run does not remove them


def steps_of_plan(plan: TablePlan) -> dict[str, tuple[str, ...]]:
    """The steps before publication in their order, each with the steps whose values it reads."""
    embed, fit = ((EMBED,) if plan.embeds else ()), (() if plan.external else (FIT,))
    return {
        SPLIT: (),
        **dict.fromkeys((*embed, *fit), (SPLIT,)),
        SAMPLE: (SPLIT, *fit),
        ENCODE: (SPLIT, SAMPLE, *embed),
        SCORE: (ENCODE,),
        ATTEST: (SPLIT, SAMPLE, ENCODE, SCORE),
    }


def uses_device(plan: TablePlan, step: str, metric: str = "") -> bool:
    """True when ``step``, of the named ``metric`` where it is ``score``, can use a device."""
    if step == SCORE:
        return plan.uses_embedder(plan.metrics[metric]) or plan.metrics[metric].uses_device
    return (step in (EMBED, ENCODE) and plan.embeds) or (step == FIT and "torch" in plan.generator.modules)


@dataclass(frozen=True)
class StoredSteps:
    """The steps of one table and partition whose values stand below ``base``, in a folder of the ``run``.

    ``run`` is any text by which an orchestrator tells its runs apart. Every method gives the reference of what it
    stored, by name; ``given`` are the references of the steps that it reads (:func:`steps_of_plan`), those of scores
    by metric. Raises what :class:`Steps` does, and PublicationRefused for references of anything else.
    """

    steps: Steps
    base: Location
    run: str

    @property
    def home(self) -> Location:
        """The folder of this table and partition."""
        return self.steps.place.below(self.base)

    @property
    def folder(self) -> Location:
        """The values of this run."""
        return self.home / "runs" / self._run

    @property
    def reports(self) -> Location:
        """Where verdict and page of this run stand; they stay when values go."""
        return self.home / "reports" / self._run

    @property
    def _run(self) -> str:
        return hashlib.sha256(self.run.encode()).hexdigest()[:16]

    def split(self) -> dict[str, Any]:
        """Source and splits. Values of earlier runs, of all partitions, go where none was used for a day."""
        check_alone(self.steps)
        self._sweep()
        self._touch()
        source = None if self.steps.plan.external else self.steps.source()
        return self._put(SPLIT, self.steps.splits(source))

    def embed(self, given: Mapping[str, Reference], device: str = "cpu") -> dict[str, Any]:
        """The encoder."""
        with self._get(SPLIT, given) as tables:
            steps = self.steps
            return self._put(EMBED, {"embedder": fitted_embedder(steps.plan, tables, device, steps.progress)})

    def fit(self, given: Mapping[str, Reference], device: str = "cpu") -> dict[str, Any]:
        """The trained generator."""
        home = self.folder if isinstance(self.folder, Path) else None  # interrupted training goes on at the next try
        with self._get(SPLIT, given) as tables:
            return self._put(FIT, {"generator": self.steps.generator(tables["train"], home, device)})

    def sample(self, given: Mapping[str, Reference]) -> dict[str, Any]:
        """The synthetic table: the gate's own file of it, and the signed record that is stored here."""
        with ExitStack() as stack:
            tables = stack.enter_context(self._get(SPLIT, given))
            trained = None if self.steps.plan.external else stack.enter_context(self._get(FIT, given))["generator"]
            return self._put(SAMPLE, {"synthetic": self.steps.synthetic(tables, trained).sealed})

    def encode(self, given: Mapping[str, Reference], device: str = "cpu") -> dict[str, Any]:
        """All tables in one coded form."""
        with ExitStack() as stack:
            tables = stack.enter_context(self._get(SPLIT, given))
            synthetic = stack.enter_context(self._get(SAMPLE, given))["synthetic"]
            embeds = self.steps.plan.embeds
            embedder = stack.enter_context(self._get(EMBED, given))["embedder"] if embeds else None
            return self._put(ENCODE, {"encoded": self.steps.encoded(tables, synthetic, embedder, device)})

    def score(self, metric: str, given: Mapping[str, Reference], device: str = "cpu") -> dict[str, Any]:
        """What one metric found."""
        with self._get(ENCODE, given) as found:
            scored = self.steps.score(self.steps.plan.metrics[metric], found["encoded"], device)
            return self._put(SCORE, {metric: scored.sealed})

    def attest(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], Attested]:
        """The verdict, and its reference; the page is stored in :attr:`reports`, also that of a refused table."""
        with ExitStack() as stack:
            tables = stack.enter_context(self._get(SPLIT, given))
            encoded = stack.enter_context(self._get(ENCODE, given))["encoded"]
            synthetic = stack.enter_context(self._get(SAMPLE, given))["synthetic"]
            scores = dict[str, Sealed]()
            for reference in given.get(SCORE) or ():
                scores |= stack.enter_context(self._opened(SCORE, reference))
            if absent := [name for name in self.steps.plan.metrics if name not in scores]:
                raise self._nothing(f"{SCORE} of {', '.join(absent)}")
            found = self.steps.attestation(tables, encoded, synthetic, scores)
        return self.attested(found, synthetic), found

    def attested(self, found: Attested, synthetic: Sealed) -> dict[str, Any]:
        """Store a verdict that is there already, with the record of the table that it is about."""
        self._sweep()
        store_value(found.report, self.reports)
        return self._put(ATTEST, {"attestation": found.sealed, "synthetic": synthetic})

    @contextmanager
    def verdict(self, given: Mapping[str, Reference]) -> Iterator[tuple[Sealed, Sealed]]:
        """The signed verdict and the record of its table, for :meth:`Steps.publish`, which verifies both."""
        with self._get(ATTEST, given) as found:
            yield found["attestation"], found["synthetic"]

    def _put(self, step: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Store values by the keyed hash of their bytes, and refer to them."""
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
        """A new folder for values, which goes unless it was put in its place."""
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
        """Where the values of a step stand; a verdict is no private row, and stays beside its page."""
        return (self.reports if step == ATTEST else self.folder) / step

    def _named(self, step: str) -> dict[str, Any]:
        return {"table": self.steps.place.table, "partition": self.steps.place.partition, "step": step}

    def _keyed(self, folder: Path) -> str:
        return self.steps.deployment.keyed(content_hash(folder))

    @contextmanager
    def _get(self, step: str, given: Mapping[str, Reference]) -> Iterator[dict[str, Any]]:
        with self._opened(step, given.get(step)) as found:
            yield found

    @contextmanager
    def _opened(self, step: str, reference: object) -> Iterator[dict[str, Any]]:
        """The values that a reference means, by name; PublicationRefused unless their bytes are those."""
        if not reference:
            raise self._nothing(step)
        digest = reference.get("digest") if isinstance(reference, Mapping) else None
        own = isinstance(reference, Mapping) and self._named(step).items() <= reference.items()
        if not own or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise PublicationRefused(f"{self.steps.place}: what stands for step {step} is no reference to its values.")
        self._touch()
        with local_copy(self._at(step) / digest) as folder:
            there = folder.is_dir() and not folder.is_symlink()
            if not there or not hmac.compare_digest(self._keyed(folder), digest):
                text = f"the values of step {step} are not those that it stored in this run"
                raise PublicationRefused(f"{self.steps.place}: {text}, or are gone. Fix: run {step} again.")
            found = {name: load_stored(folder / name) for name in names(folder)}
            yield found

    def _nothing(self, step: str) -> PublicationRefused:
        return PublicationRefused(f"{self.steps.place}: step {step} gave nothing in this run. Fix: run it first.")

    def _touch(self) -> None:
        put_atomic(private_folder(self.folder) / _TOUCHED, f"{time.time():.0f}".encode())

    def _sweep(self) -> None:
        """Remove the values of other runs of the table that no step has used for a day: they are private rows."""
        runs = [self.home.parent / part / "runs" for part in names(self.home.parent)]
        for run in (place / name for place in runs for name in names(place)):
            try:
                old = time.time() - float(read_regular(run / _TOUCHED)) > _SPARED
            except (OSError, ValueError):
                old = False  # it has just begun, or was killed before it had stored anything
            if old and run != self.folder:
                remove_folder(run)
