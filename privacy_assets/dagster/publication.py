"""Attestation and publication: the verdict, and the one step that releases a table."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg

from privacy_assets.dagster.assets import RELEASES, SEALED, common, common_out, split_ins
from privacy_assets.dagster.io import Published
from privacy_assets.dagster.metadata import broken_metadata, report_metadata, synthetic_metadata
from privacy_assets.dagster.places import steps_of
from privacy_assets.dagster.redaction import checked_step
from privacy_assets.dagster.refusals import REFUSALS, failure, refused_check
from privacy_assets.dagster.scores import encoded_in, given_scores, score_ins, synthetic_in
from privacy_assets.dagster.settings import TableSettings
from privacy_assets.dagster.versions import CHECK
from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.releases import Release
from privacy_assets.pipeline.steps import Attested, Steps

HOLDS, RELEASED = "policy_holds", "released"
ATTESTATION, REPORT = "attestation", "privacy_report"
_SHOWN = 16  # characters of a hash
_VERDICT = "The verdict of the policy over all scores, bound to the exact bytes of the synthetic table."
_PAGE = "What the synthetic table gives away about real people: verdict, statistics, limits. One HTML page."


def build_attestation(settings: TableSettings) -> dg.AssetsDefinition:
    """The verdict, bound to the bytes of the synthetic table, its page, and the one blocking check, in one step."""
    key = settings.key(ATTESTATION)
    ins = {**score_ins(settings), **split_ins(settings), **encoded_in(settings), **synthetic_in(settings)}

    @dg.multi_asset(
        name=f"{settings.name}__attestation",
        outs={
            ATTESTATION: common_out(settings, ATTESTATION, "json", description=_VERDICT, kept=SEALED),
            REPORT: common_out(settings, REPORT, "html", description=_PAGE),
        },
        ins=ins,
        internal_asset_deps={ATTESTATION: {one.key for one in ins.values() if one.key}, REPORT: {key}},
        partitions_def=settings.partitions_def,
        required_resource_keys={RELEASES},
        check_specs=[
            dg.AssetCheckSpec(
                HOLDS,
                asset=key,
                blocking=True,
                description="Every limit of the policy holds. Nothing is published unless it does.",
                partitions_def=settings.partitions_def,
                metadata={CHECK: HOLDS},
            )
        ],
    )
    @checked_step
    def attestation(context: dg.AssetExecutionContext, encoded: Any, synthetic: Any, **inputs: Any) -> Iterator[Any]:
        try:
            steps = steps_of(context, settings)  # asks for the place of the run first
            tables = {role: inputs[role] for role in settings.roles}
            found = steps.attestation(tables, encoded, synthetic, given_scores(settings, inputs))
        except REFUSALS as error:
            yield refused_check(key, HOLDS, error)
            raise failure(error) from None
        yield from _attested(settings, found)

    return attestation


def _attested(settings: TableSettings, found: Attested) -> Iterator[Any]:
    """The record, its page, and then the check: a refused table has its page, where the reason stands.

    The blocking check alone would fail the step as well, in Dagster's words, which name no reason.
    """
    stated, broken = found.stated, found.judgement.broken
    shown = report_metadata(found.report)
    hashes = {"sha256": stated.sha256, "policy_digest": stated.policy_digest, "signed by": stated.keyid}
    metadata: dict[str, Any] = {
        **shown,
        "attempt": stated.attempt,
        "policy": settings.policy.name,
        # Their beginnings: the UI cuts a table that a longer one widens, and the record itself has the whole.
        **{name: hashed[:_SHOWN] for name, hashed in hashes.items()},
    }
    yield dg.Output(found.sealed, output_name=ATTESTATION, metadata=metadata)
    yield dg.Output(found.report, output_name=REPORT, metadata=shown)
    yield dg.AssetCheckResult(
        asset_key=settings.key(ATTESTATION),
        check_name=HOLDS,
        passed=stated.verdict == "pass",
        description=found.reason,
        metadata={"verdict": shown["verdict"], **broken_metadata(broken, found.report.advice)},
    )
    if stated.verdict != "pass":
        raise failure(PublicationRefused(found.reason, broken))


def build_published(settings: TableSettings) -> dg.AssetsDefinition:
    """The release. It does not trust Dagster's checks: the gate verifies attestation, policy and bytes itself."""
    key = settings.key("published")

    @dg.asset(
        **common(settings, "published", "parquet"),
        ins={
            "attestation": dg.AssetIn(key=settings.key("attestation"), dagster_type=SEALED),
            **synthetic_in(settings),
        },
        required_resource_keys={RELEASES},
        check_specs=[
            dg.AssetCheckSpec(
                RELEASED,
                asset=key,
                description="Passes when the gate verified attestation, policy and bytes; else nothing is published.",
                partitions_def=settings.partitions_def,
                metadata={CHECK: RELEASED},
            )
        ],
        freshness_policy=_freshness(settings.stale_after_days),
        automation_condition=dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed(),
        description="The released table, the only one other teams may read. Verified before it is moved into place.",
    )
    @checked_step
    def published(context: dg.AssetExecutionContext, attestation: Any, synthetic: Any) -> Iterator[Any]:
        try:
            steps = steps_of(context, settings)
            release = steps.publish(attestation, synthetic)
        except REFUSALS as error:
            yield refused_check(key, RELEASED, error)
            raise failure(error) from None
        yield from _released(settings, steps, release)

    return published


def _freshness(days: int | None) -> dg.FreshnessPolicy | None:
    return None if days is None else dg.FreshnessPolicy.time_window(fail_window=timedelta(days=days))


def _released(settings: TableSettings, steps: Steps, release: Release) -> Iterator[Any]:
    rows, stated = steps.released(release)
    metadata = {
        **synthetic_metadata(rows, stated.sha256, settings.key("synthetic")),
        "release": release.id,
        "folder": dg.MetadataValue.path(str(release.folder)),
    }
    key = settings.key("published")
    yield dg.AssetCheckResult(asset_key=key, check_name=RELEASED, passed=True, metadata={"release": release.id})
    value = Published(steps.place.table, steps.place.partition, release.id)
    yield dg.MaterializeResult(value=value, metadata=metadata, data_version=dg.DataVersion(stated.sha256))
