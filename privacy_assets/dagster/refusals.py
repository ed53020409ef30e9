"""How a refusal of the gate looks in Dagster: a failed check, which alerts, and a failure that is never retried."""

from __future__ import annotations

from typing import Any

import dagster as dg

from privacy_assets.dagster.metadata import broken_metadata
from privacy_assets.errors import ConfigError, InputError, PrivacyAssetsError, PublicationRefused, StepError

REFUSALS = (PublicationRefused, ConfigError, InputError, OSError)


def failure(error: Exception) -> dg.Failure:
    """The failure of a step that the gate refused."""
    return dg.Failure(_text(error), metadata=_metadata(error), allow_retries=False)


def refused_check(asset: dg.AssetKey, name: str, error: Exception) -> dg.AssetCheckResult:
    """The failed check of a step that the gate refused."""
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=_text(error),
        metadata=_metadata(error),
    )


def _text(error: Exception) -> str:
    return str(error if isinstance(error, PrivacyAssetsError) else StepError.hiding(error))


def _metadata(error: Exception) -> dict[str, Any]:
    stays = "nothing was published; the previous release stays, if there is one"
    return {"what stays": stays, **broken_metadata(getattr(error, "broken", ()))}
