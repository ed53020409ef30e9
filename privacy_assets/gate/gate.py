"""The gate: what the steps of a pipeline may sign, and the one door to a release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from privacy_assets.errors import ConfigError, InputError, PublicationRefused, StoreError, shown
from privacy_assets.gate import attestation as judged
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.failures import Failures
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.prepared import Role, check_prepared
from privacy_assets.gate.publication_attempts import PublicationAttempts, Released, Shown, check_not_replaced
from privacy_assets.gate.releases import Release, ReleaseStore, check_bytes, hash_file
from privacy_assets.gate.snapshot import Snapshot, write_snapshot
from privacy_assets.gate.statements import Kind, Place, Sealed, Statement, seal, unseal
from privacy_assets.metrics.base import Metric
from privacy_assets.policy import Policy
from privacy_assets.stats.estimates import plain
from privacy_assets.stats.limits import LimitOutcome
from privacy_assets.stats.results import MetricResult
from privacy_assets.storage.files import check_private, names, private_folder, read_regular, reason
from privacy_assets.storage.objects import Location, ObjectPath
from privacy_assets.tables.fingerprints import derived, keyed, lasting_fingerprint
from privacy_assets.version import ENGINE_VERSION

_AT_ONCE = 8  # partitions


@dataclass(frozen=True)
class Gate:
    """Releases below ``releases``, snapshots and the memory of failures below ``private``, and the key that signs.

    ``content_key`` keys the fingerprint by which rows are remembered, and the order in which they are written. Every
    method raises PublicationRefused for what it does not believe, and ConfigError when the keys are not what they
    should be.
    """

    releases: Location
    private: Location
    key: SigningKey
    content_key: bytes

    @property
    def store(self) -> ReleaseStore:
        """The releases."""
        return ReleaseStore(self.releases)

    @property
    def failures(self) -> Failures:
        """The memory of failed verdicts."""
        return Failures(self.private / "failures", self.key)

    @property
    def attempts(self) -> PublicationAttempts:
        """The memory of attempts and releases."""
        return PublicationAttempts(self.private / "attempts")

    def released(self, snapshot: Snapshot, pool_partitions: bool = False) -> Released:
        """All that was released of this table and partition, ``pool_partitions`` of all its partitions, but for these
        bytes.

        What stands in the release folder without a record (an earlier version wrote none) counts as it stands there.
        """
        place, found = snapshot.place, dict[str, tuple[Location, ...]]()
        try:
            places = self._partitions(place.table) if pool_partitions else [place]
            with ThreadPoolExecutor(_AT_ONCE) as pool:  # an object store is asked, and answers slowly
                for part in pool.map(lambda one: self._released_at(one, places), places):
                    for sha256, files in part.items():
                        found[sha256] = (*found.get(sha256, ()), *files)
        except OSError as error:
            raise PublicationRefused(f"an earlier release cannot be read ({reason(error)}).") from None
        return Released(tuple((sha256, found[sha256]) for sha256 in sorted(found) if sha256 != snapshot.sha256))

    def _partitions(self, table: str) -> list[Place]:
        """Every partition of a table that something is known of; the table as a whole is the last one."""
        try:
            folders = [Place(table).below(self.private / kind).parent for kind in ("snapshots", "attempts", "failures")]
            parts = {Place.of_parts(folder.name, part) for folder in folders for part in names(folder)}
            known = {Place(table), *parts, *self.store.places(table)}
        except OSError as error:
            raise PublicationRefused(f"the partitions are not known ({reason(error)}).") from None
        return sorted(known, key=lambda place: (place.partition is None, str(place)))

    def _released_at(self, place: Place, places: Sequence[Place]) -> dict[str, tuple[Location, ...]]:
        """The files that may hold the bytes of each release of one of ``places``, by SHA-256."""
        known = self.attempts.released(place)
        recorded = {sha256[:12] for sha256 in known}
        history = {release.id[-12:]: release.table for release in self.store.history(place)}
        known |= {hash_file(table) for end, table in history.items() if end not in recorded}
        # A record of the whole table says not which partition it was, should a publisher have died over it.
        parts = [place] if place.partition is not None else list(dict.fromkeys([place, *places]))
        return {
            sha256: (
                *(self._snapshots(part) / f"{sha256}.parquet" for part in parts),
                *([history[sha256[:12]]] if sha256[:12] in history else []),
            )
            for sha256 in known
        }

    def _remembered(self, policy: Policy, place: Place, content: str, pool_partitions: bool) -> list[str]:
        """What failed of these rows, ``pool_partitions`` in any partition."""
        places = self._partitions(place.table) if pool_partitions else [place]
        return [text for one in places for text in self.failures.against(policy, one, content)]

    def check_places(self) -> None:
        """ConfigError unless what lies in object stores was prepared, as these roles of one deployment.

        PublicationRefused when that is not known.
        """
        roles: tuple[tuple[Role, Location], ...] = (("releases", self.releases), ("private", self.private))
        try:
            found = {check_prepared(place, role) for role, place in roles if isinstance(place, ObjectPath)}
        except StoreError as error:
            raise PublicationRefused(f"{reason(error)}; nothing changed.") from None
        if len(found) > 1:
            raise ConfigError(f"{self.releases} and {self.private} belong to different deployments. Fix the names.")

    def sign_split(self, place: Place, role: str, fingerprint: str, setup: Mapping[str, Any]) -> Sealed:
        """Sign that the private table with this keyed fingerprint stands on the side ``role``, under ``setup``."""
        return seal(Statement("split", place, fingerprint, {"role": role, "setup": plain(setup)}), self.key)

    def check_split(self, sealed: Sealed, place: Place, role: str, fingerprint: str, setup: Mapping[str, Any]) -> None:
        """Refuse a table of which the split did not sign that it stands on this side, under the setup of now."""
        found = self._opened(sealed, "split", place)
        if (found.body, found.sha256) != ({"role": role, "setup": plain(setup)}, fingerprint):
            text = f"the {role} table is not the one that was split, or was split under other settings"
            raise PublicationRefused(f"{text}; materialise the splits again.")

    def take_snapshot(
        self,
        frame: pd.DataFrame,
        place: Place,
        train: str,
        filtered: Mapping[str, Any] | None = None,
        generator: Mapping[str, Any] | None = None,
    ) -> tuple[Snapshot, Sealed]:
        """Write a synthetic table to the gate's own file and sign what it is, and how it was made.

        ``frame`` has the columns, precision and dtypes of the private table; how its rows came, and what it says beside
        them, is not written.
        ``train``, ``filtered`` and ``generator`` are those of :class:`Snapshot`.
        """
        self.key.check()  # before there is a file
        folder, order = private_folder(self._snapshots(place)), derived(self.content_key, "order of rows")
        path, sha256 = write_snapshot(frame, folder, order)
        content = keyed(lasting_fingerprint(frame), self.content_key)
        dtypes = {name: str(frame[name].dtype) for name in frame.columns}
        snapshot = Snapshot(place, path, sha256, len(frame), train, content, dtypes, filtered, generator)
        return snapshot, seal(snapshot.statement(), self.key)

    def snapshot(self, sealed: Sealed, place: Place) -> Snapshot:
        """The snapshot that a sealed record names, if the record is about ``place``."""
        return Snapshot.of(self._opened(sealed, "snapshot", place), self._snapshots(place))

    def sign_encoded(self, snapshot: Snapshot, setup: Mapping[str, Any], body: Mapping[str, Any]) -> Sealed:
        """Sign what was prepared of ``snapshot`` and of the real tables, whose splits were checked under ``setup``."""
        stated = {**plain(body), "setup": plain(setup), "engine_version": ENGINE_VERSION}
        return seal(Statement("encoded", snapshot.place, snapshot.sha256, stated), self.key)

    def encoded(self, sealed: Sealed, snapshot: Snapshot, setup: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was signed of the encoded tables, if they are of ``snapshot``, this engine and the setup of now."""
        found = self._opened(sealed, "encoded", snapshot.place)
        if found.sha256 != snapshot.sha256:
            raise PublicationRefused("the tables were encoded with another synthetic table; materialise encoded again.")
        if found.body.get("engine_version") != ENGINE_VERSION:
            raise PublicationRefused("the tables were encoded by another engine; materialise encoded again.")
        if found.body.get("setup") != plain(setup):
            text = "the tables were split or read under other settings"
            raise PublicationRefused(f"{text}; materialise the splits and encoded again.")
        return found.body

    def sign_result(
        self, result: MetricResult, snapshot: Snapshot, outcomes: Iterable[LimitOutcome], pool_partitions: bool = False
    ) -> Sealed:
        """Sign what one score step found on ``snapshot``; the attempt is counted, and failed limits remembered, first.

        ``pool_partitions`` counts it among those of all partitions.
        """
        self.attempts.attempt(snapshot, pool_partitions)
        self.failures.remember(snapshot, outcomes)
        return seal(Statement("result", snapshot.place, snapshot.sha256, result.to_json()), self.key)

    def result(self, sealed: Sealed, snapshot: Snapshot) -> MetricResult:
        """The result that a score step signed, if it was computed on ``snapshot``."""
        statement = self._opened(sealed, "result", snapshot.place)
        if statement.sha256 != snapshot.sha256:
            metric = statement.body.get("metric", "a score")
            raise PublicationRefused(f"{metric} was computed on another synthetic table; materialise it again.")
        return MetricResult.from_json(statement.body)

    def attest(
        self,
        snapshot: Snapshot,
        policy: Policy,
        results: Mapping[str, MetricResult],
        inputs: Mapping[str, str],
        metrics: Mapping[str, Metric],
        setup: Mapping[str, Any],
    ) -> tuple[Attestation, Sealed]:
        """State and sign the verdict of ``policy`` over ``results``; failures are remembered before it is signed.

        ``inputs`` are the fingerprints of the tables of now, ``metrics`` the metrics and ``setup`` all other settings
        ("seed" and "filter" among them) as they are now: every result must belong to them, and the synthetic table must
        be made from this train, by this filter and by the generator that was attacked.
        """
        self.check_places()
        judged.check_made(snapshot, inputs, setup, metrics)
        pool_partitions = bool(setup.get("pool_partitions"))
        inputs = {**inputs, "released": self.released(snapshot, pool_partitions).fingerprint}
        for name, result in results.items():
            judged.check_result(result, inputs, metrics.get(name), setup["seed"])
        remembered = self._remembered(policy, snapshot.place, snapshot.content, pool_partitions)
        attempt = self.attempts.attempt(snapshot, pool_partitions)
        self.failures.remember(snapshot, policy.judge(results, attempt).outcomes)
        stated = judged.attest(snapshot, policy, results, inputs, setup, attempt, remembered)
        sealed = seal(stated.statement(), self.key)
        return replace(stated, keyid=self.key.signer.public_key.keyid), sealed

    def attestation(self, sealed: Sealed, place: Place) -> Attestation:
        """The attestation inside, if it is about ``place``."""
        return Attestation.of(self._opened(sealed, "attestation", place))

    def publish(
        self, sealed: Sealed, snapshot: Sealed, place: Place, policy: Policy, setup: Mapping[str, Any]
    ) -> Release:
        """Publish the snapshot that the attestation names, if it holds ``policy`` under ``setup``, those in force now.

        Verified: that this deployment's own key is in order; signatures, table and partition of both; engine, policy,
        settings and verdict; that the attestation names this snapshot, and the bytes are those that it names; that no
        run ever found these rows to fail; that they were not published before and then replaced or rolled back,
        whatever attestation is around them; and that nothing was released since which the attestation does not know
        of. In every other case the previous release stays. The same once more finishes what was interrupted, and
        changes nothing when it is current.
        """
        self.key.check()
        self.check_places()
        stated, taken = self.attestation(sealed, place), self.snapshot(snapshot, place)
        judged.check_version(stated)
        judged.check_policy(stated, policy, setup)
        judged.check_verdict(stated, stated.judge(policy))
        if (taken.sha256, taken.content) != (stated.sha256, stated.content):
            raise PublicationRefused("the attestation belongs to another synthetic table; materialise it again.")
        pool_partitions = bool(setup.get("pool_partitions"))
        judged.check_memory(self._remembered(policy, place, stated.content, pool_partitions))

        seen = Shown(stated.sha256, stated.content)

        def agree() -> None:
            ids = [release.id for release in self.store.history(place)]
            check_not_replaced(self.attempts.history(place), seen, ids)
            if not self._is_current(place, sealed):
                judged.check_released(stated, self.released(taken, pool_partitions).fingerprint)

        with ExitStack() as recorded:
            # Of partitions that are judged together one is released at a time, by the record of the whole table.
            for one in dict.fromkeys([Place(place.table), place] if pool_partitions else [place]):
                recorded.enter_context(self.attempts.releasing(one, seen, agree))
            still = partial(self.attempts.check_last, place, seen)
            return self.store.add(place, taken.path, stated.sha256, sealed.data, still)

    def _is_current(self, place: Place, sealed: Sealed) -> bool:
        """True when readers get the release of this very attestation: to publish it again shows nobody anything."""
        try:
            return read_regular(self.store.current(place).attestation) == sealed.data
        except (OSError, InputError, PublicationRefused):
            return False

    def roll_back(self, place: Place, name: str) -> Release:
        """Point to an earlier release again, if it is whole and none of its limits was found broken since.

        It is remembered: what it leaves behind is not published again.

        ConfigError when ``private`` is not the folder of this table's publisher: an empty memory of failures would say
        yes to everything.
        """
        try:
            return self._rolled_back(place, name)
        except OSError as error:
            raise PublicationRefused(f"{reason(error)}; nothing changed.") from None

    def _rolled_back(self, place: Place, name: str) -> Release:
        if not self._snapshots(place).is_dir():
            raise ConfigError(
                f"{self.private}: no private folder of the publisher of {place} (it holds no snapshot of it), so nobody"
                " can tell whether these rows failed since. Fix: give it by --private or PRIVACY_ASSETS_PRIVATE."
            )
        check_private(self.private)
        self.check_places()
        found = [release for release in self.store.history(place) if release.id == name]
        if not found:
            raise PublicationRefused(f"{place} has no release {shown(name)}; `privacy-assets releases` lists them.")
        stated = found[0].opened(place, self.key.trusted)
        check_bytes(found[0].table, stated.sha256)
        pool_partitions = bool(stated.setup.get("pool_partitions"))
        judged.check_memory(self._remembered(stated.policy_then(), place, stated.content, pool_partitions))
        seen = Shown(stated.sha256, stated.content)
        with self.attempts.releasing(place, seen, lambda: None):
            self.store.point(place, found[0], partial(self.attempts.check_last, place, seen))
        return found[0]

    def _snapshots(self, place: Place) -> Location:
        return place.below(self.private / "snapshots")

    def _opened(self, sealed: Sealed, kind: Kind, place: Place) -> Statement:
        if sealed.kind != kind:
            raise PublicationRefused(f"a signed {sealed.kind} stands for the {kind}; materialise it again.")
        statement = unseal(sealed, self.key.trusted)
        judged.check_place(statement.place, place, kind)
        return statement
