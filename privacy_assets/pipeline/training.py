"""Training, storing, sampling and filtering of generators."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import Damaged
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import build_inputs
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.infra.files import put_atomic
from privacy_assets.infra.objects import Location
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.infra.storage import storage_of
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.tables.fingerprints import file_fingerprint
from privacy_assets.tables.table import Table, subject_codes_of
from privacy_assets.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from privacy_assets.gate.deployment import Deployment
    from privacy_assets.generators import FittedGenerator
    from privacy_assets.generators.filters import FittedFilter

TRAINED_ON = "trained_on.json"


@dataclass(frozen=True, slots=True)
class Trained:
    """Fitted generator with the fingerprint of its train table.

    Attributes:
        generator: Fitted generator.
        train_fingerprint: Keyed fingerprint of the train table.
        keyed_fingerprint: Computes keyed fingerprints of the deployment.
    """

    generator: Any
    train_fingerprint: str
    keyed_fingerprint: Callable[[str], str]

    def save(self, folder: Path) -> None:
        """Write the generator, with a keyed hash of its files and of ``train_fingerprint``.

        Args:
            folder: Folder for the files.
        """
        self.generator.save(folder)
        digest = content_hash(folder, TRAINED_ON)
        mac = self.keyed_fingerprint(f"{digest} {self.train_fingerprint}")
        text = json.dumps({"train": self.train_fingerprint, "mac": mac})
        put_atomic(folder / TRAINED_ON, text.encode())

    @classmethod
    def load(cls, stored: Location, keyed_fingerprint: Callable[[str], str]) -> Trained:
        """Verify and load a generator.

        The hash over settings, budget and weights is verified first, because loading can import the
        module that the generator names.

        Args:
            stored: Folder that :meth:`save` wrote.
            keyed_fingerprint: Computes keyed fingerprints of the deployment.

        Raises:
            Damaged: Unless this deployment stored these files.
        """
        from privacy_assets.generators import load_generator

        with storage_of(stored).local_copy() as folder:
            try:
                content = json.loads((folder / TRAINED_ON).read_bytes())
                train = str(content["train"])
                mac = str(content["mac"])
            except (OSError, ValueError, KeyError, TypeError):
                train = ""
                mac = ""
            expected = keyed_fingerprint(f"{content_hash(folder, TRAINED_ON)} {train}")
            if not hmac.compare_digest(mac.encode(), expected.encode()):
                text = "the stored generator was changed, or was not stored by this deployment"
                raise Damaged(text, path=str(stored), record="generator")
            return cls(load_generator(folder), train, keyed_fingerprint)


def content_hash(folder: Path, without: str = "") -> str:
    """Return the SHA-256 (hex) of names and bytes of the files below a folder.

    Args:
        folder: Any folder.
        without: Name of a file in it that is left out. Empty: none.
    """
    digest = hashlib.sha256()
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(files):
        if path == folder / without:
            continue
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{file_fingerprint(path)}\n".encode())
    return digest.hexdigest()


def checkpoint_folder(home: Path | None, target: ReleaseTarget) -> Path | None:
    """Return the folder of the training checkpoints of a table and partition.

    Args:
        home: Folder of a run. None: no checkpoints.
        target: Table and partition.
    """
    if home is None:
        return None
    return target.below(home / "storage" / "privacy_assets_training")


def fitting_seed(resolved: ResolvedTable, deployment: Deployment) -> int:
    """Return the seed for fitting the generator.

    Reports and attestations contain the configured seed. A generator that adds noise from its seed
    gets one derived from the split key instead.

    Args:
        resolved: Settings of the table.
        deployment: Deployment of the table.
    """
    seed = resolved.spec.run.seed
    if not resolved.generator.secret_seed:
        return seed
    key = deployment.key(f"fitting with seed {seed}")
    return int.from_bytes(key[:8], "big") >> 1


@contextmanager
def training_checkpoint(
    resolved: ResolvedTable, digest: str, seed: int, folder: Path | None, device: str = "cpu"
) -> Iterator[Path | None]:
    """Yield the folder in which a training stores its state.

    Interrupted training of the same rows, settings and seed resumes from it. Other checkpoints are
    removed, and all of them after training.

    Args:
        resolved: Settings of the table.
        digest: Keyed digest of the train table and the order of its rows.
        seed: See :func:`fitting_seed`.
        folder: Folder of checkpoints. None: no checkpoints.
        device: Device.

    Yields:
        The folder. None: no checkpoints.
    """
    if folder is None:
        yield None
        return
    metadata = [
        resolved.generator_label,
        resolved.generator.settings(),
        resolved.distributions,
        seed,
        digest,
        device,
        PACKAGE_VERSION,
    ]
    encoded = json.dumps(metadata, default=repr).encode()
    checkpoint = folder / hashlib.sha256(encoded).hexdigest()[:32]
    for outdated in set(folder.glob("*")) - {checkpoint}:
        shutil.rmtree(outdated, ignore_errors=True)
    yield checkpoint
    # reached only if training has ended without an error
    shutil.rmtree(folder, ignore_errors=True)


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


def filtered_sample(
    resolved: ResolvedTable,
    generator: FittedGenerator,
    tables: Mapping[str, Table],
    fingerprints: Mapping[str, str],
    progress: Progress = silent,
) -> Sampled:
    """Sample rows from the generator, and drop some by comparison with all ``tables``.

    The unfiltered rows are measured as well.

    Args:
        resolved: Settings of the table, with filters.
        generator: Trained generator.
        tables: Real tables by role.
        fingerprints: Keyed fingerprints of the real tables, by role.
        progress: Receives messages.
    """
    from privacy_assets.generators.filters import draw

    train = tables["train"]
    n_rows = resolved.spec.generator.rows or len(train)
    generator_info = generator.described()
    filters = _fitted_filters(resolved, tables)
    filtered = draw(generator, filters, n_rows, seed=resolved.spec.run.seed)
    filter_names = ", ".join(filtered.n_dropped_by)
    privacy = generator_info["privacy"]
    if privacy["epsilon"] is not None:  # filters read the real rows without noise
        left_out = f"rows that the filters {filter_names} left out"
        privacy["outside_guarantee"] = (*privacy["outside_guarantee"], left_out)
    filter_info = {
        "filters": resolved.filter_setup,
        "drawn": filtered.n_drawn,
        "dropped": filtered.n_dropped,
        "dropped_by": dict(filtered.n_dropped_by),
        "inputs": dict(fingerprints),
        "before": before_filter(resolved, tables, filtered.unfiltered, progress),
    }
    metadata = {
        "filter": filter_names,
        "rows drawn": filtered.n_drawn,
        "rows dropped": filtered.n_dropped,
    }
    for name, count in filtered.n_dropped_by.items():
        metadata[f"rows dropped by {name}"] = count
    for fitted in filters:
        metadata[f"radius of {fitted.filter.name}"] = fitted.radius
    rows = filtered.table.with_schema(train.schema)
    return Sampled(rows, generator_info, filter_info, metadata)


def _fitted_filters(resolved: ResolvedTable, tables: Mapping[str, Table]) -> list[FittedFilter]:
    schema = tables["train"].schema.evaluated
    real = [table.without_subject().with_schema(schema) for table in tables.values()]
    fitted = []
    for unfitted in resolved.filters:
        fitted.append(unfitted.fit(real, schema, subject_codes_of(tables.values())))
    return fitted


def before_filter(
    resolved: ResolvedTable, tables: Mapping[str, Table], unfiltered: Table, progress: Progress
) -> dict[str, Any]:
    """Measure the unfiltered rows, which the report compares with the filtered ones.

    Args:
        resolved: Settings of the table.
        tables: Real tables by role.
        unfiltered: Rows of the first draw.
        progress: Receives messages.

    Returns:
        Results by name of the metric, in registry order.
    """
    from privacy_assets.metrics.registry import METRICS

    metrics = {}
    for name in METRICS.core_and(resolved.metrics):
        metric = resolved.metrics.get(name)
        if metric is None or metric.filter_comparison is None:
            continue
        if "embedder" not in metric.required_inputs:
            metrics[name] = metric
    if not metrics:
        return {}
    progress(f"before the filter: {', '.join(metrics)}")
    inputs = build_inputs(tables, unfiltered, seed=resolved.spec.run.seed, progress=progress)
    # their fingerprints are not reported
    inputs = inputs.with_context(replace(inputs.context, fingerprints={}))
    results = run_metrics(inputs, metrics)
    results_as_json = {}
    for name, result in results.items():
        results_as_json[name] = replace(result, tables={}, inputs={}).to_json()
    return results_as_json
