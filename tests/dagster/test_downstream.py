"""Sources and sinks of a table through IO managers and other tools, and the examples of
docs/downstream.md.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import nbformat
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from servers import postgres
from standins import QUICK, failures, made, table_of

from privacy_assets import GpuResource, read_published, resources
from privacy_assets.dagster.resources import Published
from privacy_assets.tables.demo import load_patients

EXAMPLES = Path(__file__).parents[2] / "examples" / "downstream"
ROWS = 1500


class Home:
    """A deployment in DAGSTER_HOME with a release of ``patients``, by a quick policy."""

    def __init__(self, root: Path) -> None:
        self.root, self.rows = root, load_patients().head(ROWS)
        self.rows.to_parquet(root / "patients.parquet")
        self.examples = shutil.copytree(EXAMPLES, root / "examples")
        self.instance = dg.DagsterInstance.local_temp(
            str(root), overrides={"telemetry": {"enabled": False}}
        )
        spec = {"source": root / "patients.parquet", "subject": "person", **QUICK}
        here = dg.Definitions(
            resources=resources(gpu=GpuResource(device="cpu")), executor=dg.in_process_executor
        )
        self.table = dg.Definitions.merge(table_of("patients", **spec), here)
        assert self.run(self.table).success

    def run(self, defs: dg.Definitions, *keys: str) -> dg.ExecuteInProcessResult:
        chosen = [dg.AssetKey.from_user_string(key) for key in keys]
        job = (
            defs.resolve_job_def("patients_pipeline")
            if not keys
            else defs.resolve_implicit_global_asset_job_def()
        )
        return job.execute_in_process(
            instance=self.instance, raise_on_error=False, asset_selection=chosen or None
        )

    @property
    def released(self) -> pd.DataFrame:
        return read_published(self.root / "releases", "patients")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("home")
        patch.setenv("DAGSTER_HOME", str(root))
        yield Home(root)


def with_assets(home: Home, *assets: dg.AssetsDefinition) -> dg.Definitions:
    return dg.Definitions.merge(home.table, dg.Definitions(assets))


SEEN: dict[str, Any] = {}


@dg.asset(group_name="patients")
def plain(published) -> pd.Series:
    SEEN["plain"] = published
    return published.groupby("health", observed=True).size()


@dg.asset(group_name="patients")
def framed(published: pd.DataFrame) -> pd.DataFrame:
    SEEN["framed"] = published
    return published.groupby("health", observed=True)[["doctor_visits"]].mean()


@dg.asset(group_name="patients")
def in_polars(published: pl.DataFrame) -> pl.DataFrame:
    SEEN["in_polars"] = published.to_pandas()
    return published.head(3)


@dg.asset(group_name="patients")
def lazily(published: pl.LazyFrame) -> None:
    SEEN["lazily"] = published.collect().to_pandas()


@dg.asset(group_name="patients")
def in_arrow(published: pa.Table) -> pa.Table:
    SEEN["in_arrow"] = published.to_pandas()
    return published.slice(0, 3)


@dg.asset(group_name="patients")
def related(published: duckdb.DuckDBPyRelation) -> None:
    SEEN["related"] = published.df()


@dg.asset(group_name="patients")
def recorded(published: Published) -> None:
    SEEN["recorded"] = published


@dg.asset
def after(framed, plain: pd.Series, in_polars: pl.DataFrame) -> None:
    SEEN["after"] = (framed, plain, in_polars)


@dg.asset(group_name="patients")
def as_text(published: str) -> None: ...


@dg.asset(group_name="patients")
def number(published) -> int:
    return len(published)


@pytest.mark.slow
def test_a_downstream_asset_receives_the_released_rows_as_the_type_that_it_names(
    home: Home,
) -> None:
    SEEN.clear()
    frames = (plain, framed, in_polars, lazily, in_arrow, related)
    defs = with_assets(home, *frames, recorded, after)
    assert home.run(defs, *(one.key.to_user_string() for one in (*frames, recorded, after))).success
    for one in frames:
        pd.testing.assert_frame_equal(
            SEEN[one.key.path[-1]], home.released, check_dtype=False, check_categorical=False
        )
    pd.testing.assert_frame_equal(SEEN["plain"], home.released)
    assert isinstance(SEEN["recorded"], Published) and SEEN["recorded"].table == "patients"
    mean, size, first = SEEN["after"]  # stored by the default IO manager, with the index
    by_health = home.released.groupby("health", observed=True)
    pd.testing.assert_series_equal(
        mean["doctor_visits"], by_health["doctor_visits"].mean(), check_index_type=False
    )
    assert (
        size.tolist() == by_health.size().tolist()
        and isinstance(first, pl.DataFrame)
        and len(first) == 3
    )


@pytest.mark.slow
def test_types_that_are_not_tables_say_what_to_do(home: Home) -> None:
    defs = with_assets(home, as_text, number)
    for asset, told in (
        ("as_text", "cannot be loaded as builtins.str. Fix: annotate"),
        ("number", "return a data frame, or"),
    ):
        (failed,) = failures(home.run(defs, asset)).values()
        assert told in failed.error_display_string


@pytest.mark.slow
def test_other_bytes_are_never_loaded(home: Home) -> None:
    """Also without an annotation: the bytes are verified whichever type is asked for."""
    (file,) = (home.root / "releases" / "patients").rglob("table.parquet")
    mode, kept = file.stat().st_mode, file.read_bytes()
    file.chmod(0o644)
    try:
        pd.DataFrame({"health": ["fair"]}).to_parquet(file)
        for asset in (plain, in_polars, related):
            (failed,) = failures(
                home.run(with_assets(home, asset), asset.key.to_user_string())
            ).values()
            assert "table.parquet changed after it was written" in failed.error_display_string
    finally:
        file.write_bytes(kept)
        file.chmod(mode)


@pytest.mark.slow
def test_the_whole_table_may_have_a_prefix(home: Home) -> None:
    """Steps, sensor, schedule and a downstream asset by key."""
    spec = {
        "source": home.root / "patients.parquet",
        "subject": "person",
        **QUICK,
        "key_prefix": ["lake", "eu"],
    }

    @dg.asset(ins={"rows": dg.AssetIn(["lake", "eu", "visits", "published"])})
    def counted(rows) -> None:
        SEEN["counted"] = rows

    table = table_of("visits", **spec, schedule="0 6 * * *")
    defs = dg.Definitions.merge(table, dg.Definitions([counted], resources=home.table.resources))
    job = defs.resolve_job_def("visits_pipeline")
    assert job.execute_in_process(instance=home.instance, raise_on_error=False).success
    assert home.run(defs, "counted").success
    pd.testing.assert_frame_equal(SEEN["counted"], read_published(home.root / "releases", "visits"))
    given = {
        "instance": home.instance,
        "repository_def": defs.get_repository_def(),
        "resources": defs.resources,
    }
    with dg.build_schedule_context(**given) as context:
        assert (
            "has not changed since its release"
            in defs.resolve_schedule_def("visits_schedule").evaluate_tick(context).skip_message
        )
    os.utime(home.root / "patients.parquet")
    with dg.build_schedule_context(**given) as context:
        assert (
            "has not changed since its release"
            in defs.resolve_schedule_def("visits_schedule").evaluate_tick(context).skip_message
        )


def example(home: Home, name: str) -> dg.Definitions:
    """The definitions of a copied example."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", home.examples / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dg.Definitions.validate_loadable(module.defs)
    return module.defs


@pytest.mark.slow
def test_delta_lake_is_source_and_sink(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    lake = home.root / "lake"
    monkeypatch.setenv("LAKE", str(lake))
    deltalake.write_deltalake(lake / "raw_patients", home.rows)
    result = home.run(example(home, "delta_lake"), "patients/source", "by_health")
    assert result.success and made(result)["source"]["dagster/row_count"] == ROWS
    found = (
        deltalake.DeltaTable(lake / "by_health").to_pandas().set_index("health")["doctor_visits"]
    )
    mean = home.released.groupby("health", observed=True)["doctor_visits"].mean()
    assert found.to_dict() == pytest.approx(mean.to_dict())


@pytest.mark.slow
def test_a_notebook_reads_the_release_and_shows_the_report(home: Home) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    assert home.run(example(home, "notebook"), "notebook").success
    folder = home.root / "private_notebooks"
    assert folder.stat().st_mode & 0o077 == 0
    code = [
        cell
        for cell in nbformat.read(folder / "patients.ipynb", as_version=4).cells
        if cell.cell_type == "code"
    ]
    shown = [cell.outputs[-1].data["text/html"] for cell in code]
    assert (
        str(len(home.released[home.released["health"] == "fair"])) in shown[0]
        and "lenient" in shown[1]
    )


@pytest.fixture(scope="module")
def dbt() -> str:
    """The dbt program; dagster-dbt must be installed here."""
    pytest.importorskip("dagster_dbt", reason="dagster-dbt is not installed")
    found = shutil.which(os.environ.get("DBT", "dbt"))
    if found is None:
        pytest.skip("dbt is not installed: neither DBT nor PATH names it")
    return found


def run_dbt_example(
    home: Home, name: str, target: str, dbt: str, patch: pytest.MonkeyPatch
) -> None:
    project = home.examples / "dbt"
    patch.setenv("DBT", dbt)
    words = [
        dbt,
        "parse",
        "--project-dir",
        str(project),
        "--profiles-dir",
        str(project),
        "--target",
        target,
    ]
    subprocess.run(words, check=True, capture_output=True, cwd=project)
    defs = example(home, name)
    assert defs.resolve_asset_graph().get(dg.AssetKey("by_health")).parent_keys == {
        dg.AssetKey("patients_released")
    }
    result = home.run(defs, "patients_rows", "patients/source", "patients_released", "by_health")
    assert result.success and made(result)["source"]["dagster/row_count"] == ROWS


@pytest.mark.slow
def test_dbt_on_duckdb(home: Home, dbt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home.root / "warehouse.duckdb"
    monkeypatch.setenv("WAREHOUSE", str(file))
    with duckdb.connect(str(file)) as warehouse:
        patients = home.rows  # noqa: F841 (read by name)
        warehouse.execute("create table patients as select * from patients")
    run_dbt_example(home, "duckdb_dbt", "duckdb", dbt, monkeypatch)
    with duckdb.connect(str(file)) as warehouse:
        found = dict(warehouse.execute("select health, patients from by_health").fetchall())
    assert found == home.released["health"].value_counts().to_dict()


@pytest.mark.slow
def test_dbt_on_postgresql(home: Home, dbt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy import NullPool, create_engine, text

    with postgres() as server:
        for name in ("HOST", "PORT", "USERNAME", "PASSWORD", "DB"):
            variable = {"USERNAME": "PGUSER", "DB": "PGDATABASE"}.get(name, f"PG{name}")
            monkeypatch.setenv(variable, server[f"DAGSTER_PG_{name}"])
        warehouse = create_engine("postgresql+psycopg2://", poolclass=NullPool)
        home.rows.to_sql("patients", warehouse, index=False)
        run_dbt_example(home, "postgres_dbt", "postgres", dbt, monkeypatch)
        with warehouse.connect() as connection:
            found = {
                row.health: row.patients
                for row in connection.execute(text("select * from by_health"))
            }
    assert found == home.released["health"].value_counts().to_dict()
