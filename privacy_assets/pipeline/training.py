"""The generator and its rows: fitted, stored under a seal, sampled and filtered."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.errors import InputError, PublicationRefused
from privacy_assets.gate.statements import Place
from privacy_assets.pipeline.measuring import metric_inputs
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.private_table import PrivateTable, people_of
from privacy_assets.storage.files import put_atomic
from privacy_assets.storage.objects import Location, local_copy
from privacy_assets.tables.fingerprints import file_fingerprint
from privacy_assets.tables.table import Table
from privacy_assets.version import ENGINE_VERSION

if TYPE_CHECKING:
    from privacy_assets.generators import FittedGenerator
    from privacy_assets.pipeline.deployment import Deployment

TRAINED_ON = "trained_on.json"


@dataclass(frozen=True, slots=True)
class Trained:
    """A fitted generator, and the keyed fingerprint of the train table that it was fitted to.

    ``keyed`` makes keyed fingerprints of this deployment, for storing.
    """

    generator: Any
    train: str
    keyed: Callable[[str], str] | None = None

    def save(self, folder: Path) -> None:
        """Write the generator into ``folder``, and the seal of its files and of ``train``."""
        self.generator.save(folder)
        if self.keyed is None:
            raise InputError("a generator is stored with the deployment's key", fix="give Trained keyed")
        seal = self.keyed(f"{content_hash(folder, TRAINED_ON)} {self.train}")
        put_atomic(folder / TRAINED_ON, json.dumps({"train": self.train, "seal": seal}).encode())

    def check(self, keyed: Callable[[str], str]) -> Trained:
        """Itself: it was handed on in memory, as when assets are called directly."""
        return self


@dataclass(frozen=True, slots=True)
class StoredTrained:
    """Inverse of :meth:`Trained.save`: a ``folder`` whose files nobody has looked into yet."""

    folder: Location

    def check(self, keyed: Callable[[str], str]) -> Trained:
        """Load it; PublicationRefused unless the files are those that this deployment stored.

        To load one can mean to import the module that it names, so the seal over settings, budget and weights comes
        first.
        """
        from privacy_assets.generators import load_generator

        with local_copy(self.folder) as folder:
            try:
                record = json.loads((folder / TRAINED_ON).read_bytes())
                train, seal = str(record["train"]), str(record["seal"])
            except (OSError, ValueError, KeyError, TypeError):
                train = seal = ""
            if not hmac.compare_digest(seal.encode(), keyed(f"{content_hash(folder, TRAINED_ON)} {train}").encode()):
                raise PublicationRefused(
                    "the stored generator is not as this deployment stored it. Fix: materialise generator again."
                )
            return Trained(load_generator(folder), train)


def content_hash(folder: Path, without: str = "") -> str:
    """SHA-256 (hex) of the files below ``folder``, names and bytes, but for the one named ``without`` in it."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / without):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_fingerprint(path)}\n".encode())
    return digest.hexdigest()


def checkpoint_folder(home: Path | None, place: Place) -> Path | None:
    """Where long training of one table and partition keeps what it has done, under ``DAGSTER_HOME``, if any."""
    return None if home is None else place.below(home / "storage" / "privacy_assets_training")


def fitting_seed(plan: TablePlan, deployment: Deployment) -> int:
    """The seed that the generator is fitted with: one that only this deployment knows where noise is made from it.

    The seed of the settings stands in report and attestation.
    """
    if not plan.generator.secret_seed:
        return plan.seed
    return int.from_bytes(deployment.key(f"fitting with seed {plan.seed}")[:8], "big") >> 1


def trained_generator(
    plan: TablePlan,
    train: PrivateTable,
    fingerprint: str,
    seed: int,
    folder: Path | None,
    device: str = "cpu",
    progress: Progress = silent,
) -> FittedGenerator:
    """The generator fitted to ``train`` (of this ``fingerprint``), without its subject column.

    ``seed`` is :func:`fitting_seed`. An interrupted training of the same rows, settings and seed is taken up again from
    ``folder``; what others left there goes, and all of it once training is done.
    """
    order = hashlib.sha256(pd.util.hash_pandas_object(train.frame(), index=False).to_numpy().tobytes()).hexdigest()
    chosen = [plan.generator_label, plan.generator.settings(), seed]
    metadata = [*chosen, fingerprint, order, device, ENGINE_VERSION]
    checkpoint = None
    if folder is not None:
        checkpoint = folder / hashlib.sha256(json.dumps(metadata, default=repr).encode()).hexdigest()[:32]
        for other in set(folder.glob("*")) - {checkpoint}:
            shutil.rmtree(other, ignore_errors=True)
    fitted: FittedGenerator = plan.generator.fit(
        train.rows, seed=seed, device=device, progress=progress, checkpoint=checkpoint, people=people_of([train])
    )  # fmt: skip
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return fitted


@dataclass(frozen=True, eq=False)
class Sampled:
    """The ``rows`` of a synthetic table, and what its snapshot states of its ``generator`` and ``filter``, if any.

    ``metadata`` is that of the filter.
    """

    rows: pd.DataFrame
    generator: Mapping[str, Any] | None = None
    filter: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def sampled(
    plan: TablePlan,
    trained: Trained,
    tables: Mapping[str, PrivateTable],
    keyed: Callable[[str], str],
    progress: Progress = silent,
) -> Sampled:
    """Rows of the trained generator in the dtypes of the private table; ``tables`` are the real ones by role.

    With filters, they are less what these leave out, measured against all ``tables``, and attacked as they were before.
    """
    from privacy_assets.generators.filters import draw

    train, generator = tables["train"], trained.generator
    schema, rows = train.schema, plan.rows or len(train)
    made_by = generator.described()
    if not plan.filters:
        return Sampled(generator.sample(rows, seed=plan.seed).under(schema).restored(), made_by)
    compared = schema.measured
    real = [table.rows.under(compared) for table in tables.values()]
    filters = [one.fit(real, compared, people_of(tables.values())) for one in plan.filters]
    found = draw(generator, filters, rows, seed=plan.seed)
    if made_by["privacy"]["epsilon"] is not None:  # filters look at the real rows for nothing
        filtered_by = f"which rows the filters {', '.join(found.dropped_by)} left out"
        made_by["privacy"]["outside_guarantee"] = (*made_by["privacy"]["outside_guarantee"], filtered_by)
    stated = {
        "filters": plan.filter_setup,
        "drawn": found.drawn,
        "dropped": found.dropped,
        "dropped_by": dict(found.dropped_by),
        "inputs": {role: keyed(table.fingerprint) for role, table in tables.items()},
        "before": before_filter(plan, tables, found.unfiltered, progress),
    }
    metadata = {
        "filter": ", ".join(found.dropped_by),
        "rows drawn": found.drawn,
        "rows dropped": found.dropped,
        **{f"rows dropped by {name}": count for name, count in found.dropped_by.items()},
        **{f"radius of {one.filter.name}": one.radius for one in filters},
    }
    return Sampled(found.rows.under(schema).restored(), made_by, stated, metadata)


def before_filter(
    plan: TablePlan, tables: Mapping[str, PrivateTable], unfiltered: Table, progress: Progress
) -> dict[str, Any]:
    """Results, by metric, on rows that no filter has seen: what the report sets beside those of the filtered ones."""
    from privacy_assets.evaluation import run_metrics
    from privacy_assets.metrics.registry import METRICS

    asked = {name: plan.metrics[name] for name in METRICS if name in plan.metrics}
    asked = {name: one for name, one in asked.items() if one.compared is not None and "embedder" not in one.needs}
    if not asked:
        return {}
    progress(f"before the filter: {', '.join(asked)}")
    results = run_metrics(metric_inputs(tables, unfiltered, seed=plan.seed, progress=progress), asked)
    return {name: replace(result, tables={}, inputs={}).to_json() for name, result in results.items()}
