"""Training, storing, sampling and filtering of generators."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import Damaged
from privacy_assets.evaluation.evaluate import build_inputs, run_metrics
from privacy_assets.gate.statements import ReleaseTarget
from privacy_assets.infra.files import put_atomic
from privacy_assets.infra.objects import Location, local_copy
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.tables.canonical import subject_codes_of
from privacy_assets.tables.fingerprints import file_fingerprint
from privacy_assets.tables.table import Table
from privacy_assets.version import ENGINE_VERSION

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder
    from privacy_assets.gate.deployment import Deployment
    from privacy_assets.generators import FittedGenerator

TRAINED_ON = "trained_on.json"


@dataclass(frozen=True, slots=True)
class Trained:
    """Fitted generator.

    Attributes:
        generator: The generator.
        train_fingerprint: Keyed fingerprint of the train table.
        keyed_fingerprint: Computes keyed fingerprints of the deployment.
    """

    generator: Any
    train_fingerprint: str
    keyed_fingerprint: Callable[[str], str]

    def save(self, folder: Path) -> None:
        """Write the generator into ``folder``, with a keyed hash of its files and of
        ``train_fingerprint``.
        """
        self.generator.save(folder)
        seal = self.keyed_fingerprint(
            f"{content_hash(folder, TRAINED_ON)} {self.train_fingerprint}"
        )
        put_atomic(
            folder / TRAINED_ON,
            json.dumps({"train": self.train_fingerprint, "seal": seal}).encode(),
        )

    @classmethod
    def load(cls, stored: Location, keyed_fingerprint: Callable[[str], str]) -> Trained:
        """Verify and load the generator that :meth:`save` wrote into the folder ``stored``.

        The hash over settings, budget and weights is verified first, because loading can import the
        module that the generator names.

        Raises:
            Damaged: Unless this deployment stored these files.
        """
        from privacy_assets.generators import load_generator

        with local_copy(stored) as folder:
            try:
                record = json.loads((folder / TRAINED_ON).read_bytes())
                train, seal = str(record["train"]), str(record["seal"])
            except (OSError, ValueError, KeyError, TypeError):
                train = seal = ""
            if not hmac.compare_digest(
                seal.encode(),
                keyed_fingerprint(f"{content_hash(folder, TRAINED_ON)} {train}").encode(),
            ):
                text = "the stored generator was changed, or was not stored by this deployment"
                raise Damaged(text, path=str(stored), redo=("fit",))
            return cls(load_generator(folder), train, keyed_fingerprint)


def content_hash(folder: Path, without: str = "") -> str:
    """Return the SHA-256 (hex) of names and bytes of the files below ``folder``, except the file
    ``without`` in it.
    """
    digest = hashlib.sha256()
    for path in sorted(
        path for path in folder.rglob("*") if path.is_file() and path != folder / without
    ):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_fingerprint(path)}\n".encode())
    return digest.hexdigest()


def checkpoint_folder(home: Path | None, target: ReleaseTarget) -> Path | None:
    """Return the folder of training checkpoints of a table and partition below ``home``, or
    None.
    """
    return None if home is None else target.below(home / "storage" / "privacy_assets_training")


def fitting_seed(resolved: ResolvedTable, deployment: Deployment) -> int:
    """Return the seed for fitting the generator.

    Reports and attestations contain the configured seed. A generator that adds noise from its seed
    gets one derived from the secret of the deployment instead.
    """
    if not resolved.generator.secret_seed:
        return resolved.spec.run.seed
    return (
        int.from_bytes(deployment.key(f"fitting with seed {resolved.spec.run.seed}")[:8], "big")
        >> 1
    )


def trained_generator(
    resolved: ResolvedTable,
    train: Table,
    digest: str,
    seed: int,
    folder: Path | None,
    device: str = "cpu",
    progress: Progress = silent,
) -> FittedGenerator:
    """Fit the generator to ``train``, without its subject column.

    Interrupted training of the same rows, settings and seed resumes from ``folder``. Other
    checkpoints in it are removed, and all of them after training.

    Args:
        resolved: Settings of the table.
        train: Train table.
        digest: Keyed digest of ``train`` and the order of its rows.
        seed: See :func:`fitting_seed`.
        folder: Folder of checkpoints. None: no checkpoints.
        device: Device.
        progress: Receives messages.
    """
    metadata = [
        resolved.generator_label,
        resolved.generator.settings(),
        seed,
        digest,
        device,
        ENGINE_VERSION,
    ]
    checkpoint = None
    if folder is not None:
        checkpoint = (
            folder / hashlib.sha256(json.dumps(metadata, default=repr).encode()).hexdigest()[:32]
        )
        for other in set(folder.glob("*")) - {checkpoint}:
            shutil.rmtree(other, ignore_errors=True)
    fitted: FittedGenerator = resolved.generator.fit(
        train.for_training(), seed=seed, device=device, progress=progress, checkpoint=checkpoint,
        subject_codes=subject_codes_of([train]),
    )  # fmt: skip
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return fitted


@dataclass(frozen=True, eq=False)
class Sampled:
    """Rows of a synthetic table.

    Attributes:
        table: The rows.
        generator: See :class:`.Snapshot`.
        filter: See :class:`.Snapshot`.
        metadata: Metadata of the filters.
    """

    table: Table
    generator: Mapping[str, Any] | None = None
    filter: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def sampled(
    resolved: ResolvedTable,
    trained: Trained,
    tables: Mapping[str, Table],
    fingerprints: Mapping[str, str],
    progress: Progress = silent,
) -> Sampled:
    """Sample rows from the trained generator.

    With filters, rows are dropped by comparison with all ``tables``, and the unfiltered rows are
    measured as well.

    Args:
        resolved: Settings of the table.
        trained: Trained generator.
        tables: Real tables by role.
        fingerprints: Keyed fingerprints of the real tables, by role.
        progress: Receives messages.
    """
    from privacy_assets.generators.filters import draw

    train, generator = tables["train"], trained.generator
    schema, rows = train.schema, resolved.spec.generator.rows or len(train)
    made_by = generator.described()
    if not resolved.filters:
        drawn = generator.sample(rows, seed=resolved.spec.run.seed)
        return Sampled(drawn.with_schema(schema), made_by)
    compared = schema.evaluated
    real = [table.without_subject().with_schema(compared) for table in tables.values()]
    filters = [
        one.fit(real, compared, subject_codes_of(tables.values())) for one in resolved.filters
    ]
    found = draw(generator, filters, rows, seed=resolved.spec.run.seed)
    if made_by["privacy"]["epsilon"] is not None:  # filters read the real rows without noise
        filtered_by = f"rows that the filters {', '.join(found.n_dropped_by)} left out"
        made_by["privacy"]["outside_guarantee"] = (
            *made_by["privacy"]["outside_guarantee"],
            filtered_by,
        )
    stated = {
        "filters": resolved.filter_setup,
        "drawn": found.n_drawn,
        "dropped": found.n_dropped,
        "dropped_by": dict(found.n_dropped_by),
        "inputs": dict(fingerprints),
        "before": before_filter(resolved, tables, found.unfiltered, progress),
    }
    metadata = {
        "filter": ", ".join(found.n_dropped_by),
        "rows drawn": found.n_drawn,
        "rows dropped": found.n_dropped,
        **{f"rows dropped by {name}": count for name, count in found.n_dropped_by.items()},
        **{f"radius of {one.filter.name}": one.radius for one in filters},
    }
    return Sampled(found.table.with_schema(schema), made_by, stated, metadata)


def before_filter(
    resolved: ResolvedTable, tables: Mapping[str, Table], unfiltered: Table, progress: Progress
) -> dict[str, Any]:
    """Return the results by metric on the unfiltered rows, which the report compares with the
    filtered ones.
    """
    from privacy_assets.metrics.registry import METRICS

    asked = {name: resolved.metrics[name] for name in METRICS if name in resolved.metrics}
    asked = {
        name: metric
        for name, metric in asked.items()
        if metric.filter_comparison is not None and "embedder" not in metric.required_inputs
    }
    if not asked:
        return {}
    progress(f"before the filter: {', '.join(asked)}")
    inputs = build_inputs(tables, unfiltered, seed=resolved.spec.run.seed, progress=progress)
    # their fingerprints are not reported
    results = run_metrics(inputs.with_settings(fingerprints={}), asked)
    return {
        name: replace(result, tables={}, inputs={}).to_json() for name, result in results.items()
    }


def fitted_embedder(
    resolved: ResolvedTable,
    tables: Mapping[str, Table],
    device: str = "cpu",
    progress: Progress = silent,
) -> Embedder:
    """Train the contrastive encoder of a table on all real rows."""
    from privacy_assets.distances.embedder import train_embedder
    from privacy_assets.distances.embedder_settings import EmbedderSettings

    schema = tables["train"].schema.evaluated
    real = [table.without_subject().with_schema(schema) for table in tables.values()]
    chosen = EmbedderSettings(**(resolved.embedder or {}))
    return train_embedder(
        real, schema, chosen, seed=resolved.spec.run.seed, device=device, progress=progress
    )
