"""OpenLineage metadata of releases, for Airflow's OpenLineage provider, which alone imports this
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset
    from openlineage.client.event_v2 import Dataset

_SOURCE = "privacy-assets"


def release_dataset(asset: Asset, lineage_context: Any = None) -> Dataset:
    """Convert :func:`.outlets.release_asset` to a dataset: its scheme and host are the namespace.

    Args:
        asset: The asset.
        lineage_context: Not used. Airflow passes it to each converter.
    """
    from openlineage.client.event_v2 import Dataset

    parts = urlsplit(asset.uri)
    return Dataset(namespace=f"{parts.scheme}://{parts.netloc}", name=parts.path.lstrip("/"))


def operator_lineage(
    inlets: Iterable[Any], outlets: Iterable[Any], asset: Asset, released: Mapping[str, str]
) -> OperatorLineage:
    """Return the inlets and outlets of a task as datasets.

    Args:
        inlets: Inlets of the task.
        outlets: Outlets of the task.
        asset: The release among the outlets.
        released: Facets of a published release: ``release`` (its id), ``verdict`` and ``sha256``.
            Empty: there is none.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.providers.openlineage.extractors.manager import ExtractorManager
    from openlineage.client.facet_v2 import dataset_version_dataset, tags_dataset

    datasets = ExtractorManager.convert_to_ol_dataset
    outputs = [dataset for outlet in outlets if outlet != asset and (dataset := datasets(outlet))]
    release = release_dataset(asset)
    if released:
        tags = [
            tags_dataset.TagsDatasetFacetFields(key=name, value=released[name], source=_SOURCE)
            for name in ("verdict", "sha256")
        ]
        version = dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=released["release"]
        )
        release.facets = {"version": version, "tags": tags_dataset.TagsDatasetFacet(tags=tags)}
    inputs = [dataset for inlet in inlets if (dataset := datasets(inlet))]
    return OperatorLineage(inputs=inputs, outputs=[release, *outputs])
