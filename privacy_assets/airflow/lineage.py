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

    url = urlsplit(asset.uri)
    return Dataset(namespace=f"{url.scheme}://{url.netloc}", name=url.path.lstrip("/"))


def operator_lineage(
    inlets: Iterable[Any], outlets: Iterable[Any], asset: Asset, facets: Mapping[str, str]
) -> OperatorLineage:
    """Return the inlets and outlets of a task as datasets.

    Args:
        inlets: Inlets of the task.
        outlets: Outlets of the task.
        asset: The release among the outlets.
        facets: ``release`` (the id), ``verdict`` and ``sha256`` of the published release. Empty:
            there is none.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.facet_v2 import dataset_version_dataset, tags_dataset

    release = release_dataset(asset)
    if facets:
        tags = [
            tags_dataset.TagsDatasetFacetFields(key=name, value=facets[name], source=_SOURCE)
            for name in ("verdict", "sha256")
        ]
        version = dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=facets["release"]
        )
        release.facets = {"version": version, "tags": tags_dataset.TagsDatasetFacet(tags=tags)}
    inputs = _datasets(inlets)
    outputs = _datasets(outlet for outlet in outlets if outlet != asset)
    return OperatorLineage(inputs=inputs, outputs=[release, *outputs])


def _datasets(assets: Iterable[Any]) -> list[Dataset]:
    """Convert inlets or outlets to datasets, without those that are none for OpenLineage."""
    from airflow.providers.openlineage.extractors.manager import ExtractorManager

    datasets = []
    for asset in assets:
        dataset = ExtractorManager.convert_to_ol_dataset(asset)
        if dataset:
            datasets.append(dataset)
    return datasets
