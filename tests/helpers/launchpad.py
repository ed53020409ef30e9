"""A deployment, and all input that a launchpad accepts: selections, tags and run configuration."""

import base64
import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
from bypasses import REGIONS, exporter, gated
from dagster._check import CheckError
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.errors import DagsterError
from dagster._core.execution.api import execute_run
from hypothesis import strategies as st
from standins import independent, people, resources, sqlite_instance, step_of
from stock import KEY, Folder

from privacy_assets import PrivacyIOManager
from privacy_assets.dagster.resources import ReleaseAccess, load_value
from privacy_assets.errors import InputError, PublicationBlocked
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.releases import ReleaseStore, check_bytes, read_published

READ = (None, "north", "south", "shop-0", "")
TARGETS = [  # of which there may be a release
    ReleaseTarget("honest"),
    ReleaseTarget("regional", "north"),
    ReleaseTarget("regional", "south"),
]
VERDICT = ("privacy_report", "attestation", "published")
PIPELINE = ("source", "train", "generator", "synthetic", "evaluation_inputs", "dcr", *VERDICT)
TABLES = ("honest", "leaky", "regional", "fed")
CANARY = "canary-7d1f0c52e9b84a36"
CANARY_NAME = "LAUNCHPAD_CANARY"


@dataclass
class Launchpad:
    """One deployment on SQLite below ``root``; ``ran`` holds the shapes of executed runs."""

    root: Path
    instance: dg.DagsterInstance
    job: dg.JobDefinition
    ran: set[str] = field(default_factory=set)
    successes: int = 0

    @classmethod
    @contextmanager
    def open(cls, root: Path) -> Iterator["Launchpad"]:
        people(100).to_parquet(root / "people.parquet")
        with sqlite_instance(root) as instance:
            job = definitions(Folder(root)).resolve_implicit_global_asset_job_def()
            yield cls(root, instance, job)

    def launch(self, launch: "Launch") -> str | None:
        """Execute a launch unless a run of the same shape was executed.

        Args:
            launch: The launch.

        Returns:
            The id of its run, or None.
        """
        keys = {dg.AssetKey(asset.split("/")) for asset in launch.assets}
        try:
            run = self.instance.create_run_for_job(
                self.job.get_subset(asset_selection=keys),
                run_config=launch.config,
                tags=launch.tags,
                asset_selection=keys,
            )
        except (DagsterError, ValueError):  # invalid: no run is started
            return None
        if launch.shape in self.ran:
            self.instance.delete_run(run.run_id)
            return None
        self.ran.add(launch.shape)
        with suppress(CheckError):  # some values end the run's process before its first step
            self.successes += execute_run(InMemoryJob(self.job), run, self.instance).success
        return run.run_id

    def logged(self, run_id: str) -> str:
        """All log entries of a run."""
        return "\n".join(entry.to_json() for entry in self.instance.all_logs(run_id))

    def secrets(self) -> dict[str, list[bytes]]:
        """Texts that must not appear in any output, in each encoding of their bytes."""
        pem = (self.root / "private" / "signing.key").read_bytes()
        lines = [line for line in pem.splitlines() if b"-----" not in line]
        key = base64.b64decode(b"".join(lines))[-32:]
        secret = (self.root / "private" / "split.key").read_bytes()
        escaped_secret = repr(secret)[2:-1].encode()
        secrets = [secret, secret.hex().encode(), base64.b64encode(secret), escaped_secret]
        return {
            "signing key": [*lines, key, key.hex().encode()],
            "secret": secrets,
            "variable": [CANARY.encode()],
        }

    def databases(self) -> bytes:
        """All rows of the databases of the instance."""
        statements = []
        for file in (self.root / "home").rglob("*.db"):
            with sqlite3.connect(file) as connection:
                statements += list(connection.iterdump())
        return "\n".join(statements).encode()

    def written(self) -> Iterator[tuple[Path, bytes]]:
        """Every file except those of the private folder."""
        private = self.root / "private"
        for file in self.root.rglob("*"):
            if file.is_file() and private not in file.parents:
                yield file, file.read_bytes()


def definitions(folder: Folder) -> dg.Definitions:
    """Four gated tables, of which one leaks and one reads a colleague's asset, and colleagues'
    assets reading them.
    """

    @dg.asset
    def raw() -> pd.DataFrame:
        return people(100)

    tables = [
        gated(folder, "honest", independent),
        gated(folder, "leaky"),
        gated(folder, "regional", independent, regions=True),
        gated(folder, "fed", source=raw),
    ]
    readers = [
        exporter(folder, "honest", "published", "reads_honest"),
        exporter(folder, "regional", "published", "reads_region", partitions_def=REGIONS),
        exporter(folder, "regional", "published", "reads_regions"),
        exporter(folder, "leaky", "synthetic", "reads_leaky"),
    ]
    assets: list[Any] = [raw, *readers]
    for table in tables:
        assets.extend(table.assets or [])
    root = folder.root
    bound = resources(root)
    storage = PrivacyIOManager(base=str(root / "storage"), releases=str(root / "releases"))
    return dg.Definitions(
        assets=assets,
        resources={**(bound.resources or {}), "io_manager": storage},
        executor=bound.executor,
    )


@dataclass(frozen=True)
class Launch:
    """One use of the launchpad."""

    assets: tuple[str, ...]
    tags: Mapping[str, str]
    config: Mapping[str, Any]

    @property
    def shape(self) -> str:
        """Identifies equivalent launches: the same assets and tags, and configuration in the same
        sections.
        """
        return repr((sorted(self.assets), sorted(self.tags.items()), _structure(self.config)))


def _structure(config: Any) -> Any:
    """Return the names of all sections that are not empty, and the types of their values."""
    if not isinstance(config, Mapping):
        return type(config).__name__
    return sorted((key, _structure(value)) for key, value in config.items() if value != {})


COLLEAGUES = ("raw", "reads_honest", "reads_region", "reads_regions", "reads_leaky")
TEXTS = st.sampled_from(
    ["north", "south", "North", "shop-0", "2024-01-01", "", "_all", "north|south", "../x"]
)
TAG_NAMES = (
    KEY,
    f"{KEY}/region",
    "dagster/asset_partition_range_start",
    "dagster/asset_partition_range_end",
    "dagster/max_retries",
    "dagster/is_resume_retry",
    "privacy_assets/source",
)
TAGS = st.one_of(
    st.just({}),
    TEXTS.map(lambda key: {KEY: key}),
    st.dictionaries(st.sampled_from(TAG_NAMES), TEXTS, max_size=3),
)
ENVIRONMENT = [{"env": CANARY_NAME}, {"env": "PRIVACY_ASSETS_SIGNING_KEY"}]
VALUES = st.sampled_from(
    [*ENVIRONMENT, "http://127.0.0.1:9/x", "/etc", "releases", "DEBUG", "", 0, True, None, {}, []]
)


def sections(names: tuple[str, ...], fields: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Return a strategy for a section of the launchpad.

    Args:
        names: Objects that the section can configure.
        fields: Fields of each object.
    """
    values = st.dictionaries(st.sampled_from(fields), VALUES, max_size=2)
    config = st.one_of(st.just({}), values)
    section = st.builds(lambda field_values: {"config": field_values}, config)
    return st.dictionaries(st.sampled_from(names), section, max_size=2)


def _paths() -> Iterator[tuple[str, str]]:
    """Yield each table and each asset of its pipeline."""
    for table in TABLES:
        for asset in PIPELINE:
            yield table, asset


STEPS = tuple(dict.fromkeys(step_of(table, asset) for table, asset in _paths()))
LOADED = st.sampled_from(
    [{"value": 1}, {"json": {"path": "people.parquet"}}, {"pickle": {"path": "people.parquet"}}]
)
INPUTS = st.dictionaries(
    st.sampled_from(["generator", "train", "synthetic"]), LOADED, min_size=1, max_size=1
)
OUTPUTS = st.dictionaries(st.sampled_from(["source", "train"]), LOADED, min_size=1, max_size=1)
OP_CONFIG = st.one_of(
    VALUES.map(lambda value: {"config": value}),
    INPUTS.map(lambda value: {"inputs": value}),
    OUTPUTS.map(lambda value: {"outputs": [value]}),
)
OPS = st.dictionaries(st.sampled_from((*STEPS, *COLLEAGUES)), OP_CONFIG, max_size=2)
RESOURCE_FIELDS = (
    "base",
    "base_dir",
    "releases",
    "private",
    "signing_key",
    "trusted_keys",
    "split_key_variable",
    "device",
)
RESOURCES = sections(("io_manager", "privacy_io", "releases", "gpu"), RESOURCE_FIELDS)
EXECUTOR = sections(("config",), ("retries", "max_concurrent", "start_method"))
EXECUTION = st.one_of(
    EXECUTOR.map(lambda section: section.get("config", {})),
    st.sampled_from([{"config": {"in_process": {}}}, {"config": {"retries": {"disabled": {}}}}]),
)
LOGGERS = sections(("console",), ("log_level", "name"))
SECTIONS = {"ops": OPS, "resources": RESOURCES, "execution": EXECUTION, "loggers": LOGGERS}
CONFIG = st.one_of(st.just({}), st.fixed_dictionaries({}, optional=SECTIONS))
EVERY = st.sampled_from([*COLLEAGUES, *(f"{table}/{asset}" for table, asset in _paths())])
ASSETS = st.one_of(
    st.sampled_from(TABLES).map(lambda table: whole(table)),
    st.sampled_from(TABLES).map(lambda table: (f"{table}/published",)),
    st.sampled_from(COLLEAGUES).map(lambda name: (name,)),
    st.lists(EVERY, min_size=1, max_size=4, unique=True).map(tuple),
)


def whole(table: str) -> tuple[str, ...]:
    """Return the names of all assets of a table.

    Args:
        table: Name of the table. For ``fed``, the colleague's asset is included.
    """
    assets = tuple(f"{table}/{asset}" for asset in (*PIPELINE, "holdout", "reference"))
    if table == "fed":
        return (*assets, "raw")
    return assets


LAUNCHES = st.builds(Launch, ASSETS, TAGS, CONFIG)


def nothing_uncovered(pad: Launchpad) -> None:
    """Check that all readable rows are attested: in the release folder, in storage and in
    colleagues' assets.
    """
    covered = _attested_rows(pad)
    for file in (pad.root / "public").rglob("*.parquet"):
        frame = pd.read_parquet(file)
        pieces = [frame]
        if file.parent.name == "reads_regions":
            pieces = [piece for _, piece in frame.groupby("region")]
        assert all(table_rows(piece) in covered for piece in pieces), file
    readable = {""}
    for table, asset, key in product(TABLES, ("published", "synthetic"), READ):
        readable.add(loaded(pad, table, asset, key))
    assert readable <= {*covered, ""}


def _attested_rows(pad: Launchpad) -> set[str]:
    """Check all releases, and return the fingerprints of their rows."""
    releases = pad.root / "releases"
    store = ReleaseStore(releases)
    trusted = TrustedKeys((pad.root / "trusted_keys",))
    targets = list(store.targets())
    assert set(targets) <= set(TARGETS)
    covered = set()
    n_releases = 0
    for target in targets:
        for release in store.history(target):
            attestation = release.opened(target, trusted)
            check_bytes(release.table, attestation.sha256)
            assert attestation.verdict == "pass"
            assert attestation.sha256 == hashlib.sha256(release.table.read_bytes()).hexdigest()
            covered.add(rows_in(release.table))
            n_releases += 1
        if target.partition is not None:
            rows = read_published(releases, target.table, target.partition)
            assert set(rows["region"]) == {target.partition}
    files = [file for file in releases.rglob("*") if file.suffix == ".parquet"]
    assert len(files) == n_releases
    return covered


def loaded(pad: Launchpad, table: str, asset: str, partition: str | None) -> str:
    """Return the fingerprint of the rows that storage gives to a reader, or "" if it blocks.

    Args:
        pad: The deployment.
        table: Name of the table.
        asset: Name of the asset below it.
        partition: Key of the partition, or None.
    """
    key = dg.AssetKey([table, asset])
    folder = PrivacyIOManager(base=str(pad.root / "storage")).folder(key, partition)
    releases = ReleaseAccess(pad.root / "releases")
    try:
        frame = load_value(folder, key, partition, pd.DataFrame, releases)
    except (InputError, PublicationBlocked):
        return ""
    return table_rows(frame)


@cache
def rows_in(released: Path) -> str:
    """The rows of a release, whose bytes never change."""
    return table_rows(pd.read_parquet(released))


def table_rows(frame: pd.DataFrame) -> str:
    """Fingerprint of rows in any order."""
    cells = frame[sorted(frame.columns)].astype(str).fillna("")
    lines = sorted(cells.agg("|".join, axis=1))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
