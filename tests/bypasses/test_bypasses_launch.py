"""Bypasses by launch configuration: resources, executors, and configuration of steps.

As in test_bypasses, each is first taken where only Dagster's own checks guard the table.
tests/deployment/test_launch_served.py tests these bypasses from a browser.
"""

import functools
import http.server
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from bypasses import EVERY, World, gated, nothing_published, reason, released, with_assets
from dagster._core.definitions.job_definition import default_job_io_manager
from standins import QUICK, independent, made, resources, study_of, table_of

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource, frozen_config
from privacy_assets.dagster.component import RESOURCES
from privacy_assets.dagster.frozen_config import is_open

ROOT = Path(__file__).parents[2]
SECRET = "a-signing-key"
Config = Mapping[str, Any]


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The split key is in the environment of all steps."""
    monkeypatch.setenv("SECRET", SECRET)


def launch(
    world: World, defs: dg.Definitions, config: Config, *assets: str
) -> dg.ExecuteInProcessResult:
    """Run ``assets`` (default: all) with a run configuration, as a user types it in the UI."""
    selection = dg.AssetSelection.assets(*assets) if assets else EVERY
    job = world.job(defs, selection)
    return job.execute_in_process(run_config=config, instance=world.instance, raise_on_error=False)


def without(defs: dg.Definitions, *names: str) -> dg.Definitions:
    """The definitions with fewer resources bound."""
    kept = {name: one for name, one in (defs.resources or {}).items() if name not in names}
    return dg.Definitions(
        assets=defs.assets, jobs=defs.jobs, resources=kept, executor=defs.executor
    )


def shown(result: dg.ExecuteInProcessResult) -> str:
    """All text in the events of a run."""
    return "".join(
        event.to_json() for event in result.all_events if hasattr(event, "to_json")
    ) + str(result.all_events)


def warning_of(world: World, result: dg.ExecuteInProcessResult) -> dg.EventLogEntry:
    """The one warning in the log of a run."""
    logs = [
        record.event_log_entry
        for record in world.instance.get_records_for_run(result.run_id).records
    ]
    (warning,) = [log for log in logs if log.level == logging.WARNING]
    return warning


def base(folder: Any) -> Config:
    return {"resources": {"io_manager": {"config": {"base_dir": folder}}}}


@dg.asset
def note() -> int:
    """An ordinary asset in the same location."""
    return 1


@dg.asset
def reader(note: int) -> None:
    """Load the value of another asset."""


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@contextmanager
def replies(folder: Path) -> Iterator[str]:
    """A file server; yields its address."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_bypass_33_the_default_io_manager_shows_a_variable(world: World) -> None:
    evil = base({"env": "SECRET"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world.root)  # where the folder of that name is made
        assert SECRET in shown(launch(world, dg.Definitions(assets=[note]), evil))
    defs = with_assets(gated(world, "bound", independent), note)
    with pytest.raises(dg.DagsterInvalidConfigError, match='unexpected config entry "base_dir"'):
        launch(world, defs, evil, "note")
    unbound = without(defs, "io_manager")
    # no step of the table requires it
    assert launch(world, unbound, {}, "bound/source", "note").success
    # This kind of run keeps the values of the default IO manager in memory; a served run does not,
    # and warns.
    alone = world.job(unbound, dg.AssetSelection.assets("bound/source")).execute_in_process(
        instance=world.instance,
        raise_on_error=False,
        resources={"io_manager": default_job_io_manager},
    )
    assert alone.success and "resources 'io_manager'" in warning_of(world, alone).user_message
    assert launch(world, defs, {}, "bound/source", "note").success


def test_bypass_33_the_default_io_manager_unpickles_a_reply(world: World, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    (tmp_path / "note").write_bytes(pickle.dumps(Trap(sprung)))
    with replies(tmp_path) as address:
        launch(world, dg.Definitions(assets=[note, reader]), base(address), "reader")
        assert sprung.exists()
        sprung.unlink()
        defs = with_assets(gated(world, "fetched", independent), note, reader)
        with pytest.raises(dg.DagsterInvalidConfigError):
            launch(world, defs, base(address), "reader")
    assert not sprung.exists()


@pytest.mark.slow
def test_bypass_34_the_upstream_asset_of_a_table(world: World, tmp_path: Path) -> None:
    rows = pd.read_parquet(world.root / "people.parquet")

    @dg.asset(io_manager_key="lake")
    def raw() -> pd.DataFrame:
        return rows

    @dg.asset
    def taken(raw: pd.DataFrame) -> None:
        raise RuntimeError(f"{len(raw)} rows")

    lake = dg.FilesystemIOManager(base_dir=str(tmp_path / "lake"))
    (tmp_path / "elsewhere").mkdir()
    rows.head(7).to_pickle(tmp_path / "elsewhere" / "raw")
    evil = {"resources": {"lake": {"config": {"base_dir": str(tmp_path / "elsewhere")}}}}
    plain = dg.Definitions(assets=[raw, taken], resources={"lake": lake})
    assert "7 rows" in reason(launch(world, plain, evil, "taken"), "taken")

    table = with_assets(gated(world, "upstream", independent, source=raw), raw)
    opened = dg.Definitions.merge(table, dg.Definitions(resources={"lake": lake}))
    assert launch(world, opened, {}, "raw").success
    own = opened.resolve_job_def("upstream_pipeline")
    assert "raw" not in {node.name for node in own.graph.nodes}
    for config, why in (({}, "resource 'lake'"), (evil, "launched with 'resources'")):
        result = own.execute_in_process(
            run_config=config, instance=world.instance, raise_on_error=False
        )
        assert why in reason(result, "upstream__read")
    nothing_published(world, "upstream")

    bound = dg.Definitions.merge(table, dg.Definitions(resources={"lake": frozen_config(lake)}))
    with pytest.raises(dg.DagsterInvalidConfigError):
        launch(world, bound, evil)
    assert launch(world, bound, {}).success
    assert len(released(world, "upstream")) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"execution": {"config": {"multiprocess": {"max_concurrent": 1}}}},
        {"execution": {"config": {"retries": {"enabled": {}}}}},
        {"resources": {"gpu": {}}},
        {"resources": {"privacy_io": {"config": {}}}},
    ],
    ids=str,
)
def test_bypass_35_an_executor_or_resource_of_the_run(world: World, config: Config) -> None:
    (section,) = config
    result = launch(world, gated(world, "told", independent), config)
    assert f"launched with '{section}'" in reason(result, "told__read")
    nothing_published(world, "told")


@pytest.mark.slow
def test_bypass_35_every_step_looks_before_it_does_anything(world: World) -> None:
    """The first run is an honest one, so that each step has its inputs."""
    defs = gated(world, "stepwise", independent)
    assert launch(world, defs, {}).success
    before = released(world, "stepwise")
    assert len(defs.assets) == 8
    for asset in defs.assets:
        keys = [key.to_user_string() for key in asset.keys]
        result = launch(world, defs, {"resources": {"releases": {}}}, *keys)
        assert "launched with 'resources'" in reason(result, asset.op.name)
    assert released(world, "stepwise") == before


class Lamp(dg.ConfigurableResource):
    """A colleague's resource that accepts configuration at launch."""

    label: str = "lamp"


class Rack(dg.ConfigurableResource):
    """A resource that requires another one."""

    lamp: Lamp


@dg.asset
def lit(lamp: Lamp) -> dg.MaterializeResult:
    """Show the label of its lamp."""
    return dg.MaterializeResult(metadata={"label": lamp.label})


@pytest.mark.slow
def test_bypass_36_a_resource_of_the_users_that_is_open_at_launch(world: World) -> None:
    evil = {"resources": {"lamp": {"config": {"label": {"env": "SECRET"}}}}}
    lamp = dg.Definitions(assets=[lit], resources={"lamp": Lamp()})
    assert SECRET in shown(launch(world, lamp, evil))
    defs = dg.Definitions.merge(gated(world, "lamplit", independent), lamp)
    result = launch(world, defs, evil, "lit", "lamplit/source")
    assert "launched with 'resources'" in reason(result, "lamplit__read")
    # Without a value, the lamp does not concern the table. The first step warns of it, once.
    result = launch(
        world,
        defs,
        {},
        "lit",
        "lamplit/source",
        "lamplit/train",
        "lamplit/holdout",
        "lamplit/reference",
    )
    assert result.success
    warning = warning_of(world, result)
    assert (
        warning.step_key == "lamplit__read"
        and "resources 'lamp': users who launch a run" in warning.user_message
    )
    # A resource that a step of the table requires is rejected by the first step, whichever requires
    # it. So is one that such a resource requires.
    table = table_of(
        "needing", source=world.root / "people.parquet", subject="pid", workers="ray", **QUICK
    )
    inner = Lamp.configure_at_launch()
    for needed, name in (
        ({"ray": Lamp()}, "ray"),
        ({"ray": frozen_config(Rack(lamp=inner)), "inner": inner}, "inner"),
    ):
        here = dg.Definitions(
            resources={**defs.resources, **needed}, executor=dg.in_process_executor
        )
        assert f"resource {name!r}" in reason(
            launch(world, dg.Definitions.merge(table, here), {}), "needing__read"
        )
    bound = dg.Definitions(
        assets=[lit], resources={"lamp": frozen_config(Lamp(label=dg.EnvVar("SECRET")))}
    )
    defs = dg.Definitions.merge(gated(world, "lamplit", independent), bound)
    assert SECRET in shown(launch(world, defs, {}, "lit", "lamplit/source"))  # as its author has it
    with pytest.raises(dg.DagsterInvalidConfigError):
        launch(world, defs, evil, "lit")


def test_no_step_of_the_gate_takes_inputs_outputs_or_settings(world: World) -> None:
    source = world.root / "people.parquet"
    table = table_of("schema", source=source, subject="pid", **QUICK)
    job = world.job(dg.Definitions.merge(table, resources(world.root)), dg.AssetSelection.all())
    fields = job.run_config_schema.run_config_schema_type.fields
    assert set(fields) == {"execution", "loggers", "resources", "ops"}
    steps = fields["ops"].config_type.fields
    assert set(steps) == {node.name for node in job.graph.nodes} and len(steps) == 9
    for name, step in steps.items():
        assert set(step.config_type.fields) == {"config"}
        # None: configuration is ignored
        taken = getattr(step.config_type.fields["config"].config_type, "fields", None)
        assert not taken, name


def test_a_setting_of_the_study_shows_no_variable(world: World) -> None:
    defs = gated(world, "studied", independent)
    assert launch(
        world, defs, {}, "studied/source", "studied/train", "studied/holdout", "studied/reference"
    ).success
    told = {"ops": {"studied__leak_study": {"config": {"metrics": ["dcr", {"env": "SECRET"}]}}}}
    settings = {"source": world.root / "people.parquet", "generator": independent, **QUICK}
    study = dg.Definitions.merge(defs, study_of("studied", subject="pid", **settings))
    result = study.resolve_job_def("studied_leak_study").execute_in_process(
        run_config=told, instance=world.instance, raise_on_error=False
    )
    assert "metrics[1] is not a metric that this study can run. Known: dcr." in reason(
        result, "studied__leak_study"
    )
    assert SECRET not in shown(result)


def test_what_is_open_at_launch() -> None:
    @dg.resource(config_schema={"x": str})
    def named(_: dg.InitResourceContext) -> int:
        return 1

    permissive = dg.ResourceDefinition(lambda _: 1, config_schema=dg.Permissive())
    for given in (
        named,
        permissive,
        dg.fs_io_manager,
        dg.in_process_executor,
        Lamp().get_resource_definition(),
    ):
        assert is_open(given)
        assert not is_open(frozen_config(given))
    own = [PrivacyIOManager(), ReleaseResource(), GpuResource()]
    closed = [
        named.configured({"x": "y"}),
        dg.mem_io_manager,
        dg.ResourceDefinition.hardcoded_resource(3),
    ]
    for given in [*closed, *(one.get_resource_definition() for one in own)]:
        assert not is_open(given)
        assert frozen_config(given) is given
    assert is_open(named.configured(lambda told: {"x": told["z"]}, config_schema={"z": str}))


def test_fixed_values_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBER", "7")

    class Inner(dg.ConfigurableResource):
        word: str

    class Outer(dg.ConfigurableResource):
        inner: Inner
        number: int
        text: str | None = None

    @dg.asset
    def look(outer: Outer) -> dg.MaterializeResult:
        return dg.MaterializeResult(
            metadata={"seen": f"{outer.inner.word} {outer.number} {outer.text}"}
        )

    outer = Outer(inner=Inner(word=dg.EnvVar("NUMBER")), number=dg.EnvVar.int("NUMBER"))
    assert (
        made(dg.materialize([look], resources={"outer": frozen_config(outer)}))["look"]["seen"]
        == "7 7 None"
    )


def test_nothing_of_the_shipped_definitions_is_open_at_launch() -> None:
    from definitions import defs

    written: dict[str, Any] = {}
    exec(RESOURCES, written)
    scaffold = written["privacy_resources"]()
    for shipped in (defs, scaffold):
        assert set(shipped.resources) == {"io_manager", "privacy_io", "releases", "gpu"}
        assert not is_open(shipped.executor)
        for given in shipped.resources.values():
            assert (
                frozen_config(given)
                is getattr(given, "get_resource_definition", lambda given=given: given)()
            )
    whole = defs.resolve_implicit_global_asset_job_def()
    assert not any(is_open(given) for given in whole.resource_defs.values())


def test_production_does_not_load_with_the_key_in_its_environment() -> None:
    """Code server, run and step alike: each loads the definitions."""
    environment = {
        "PATH": os.environ["PATH"],
        "PRIVACY_ASSETS_ENV": "production",
        "PRIVACY_ASSETS_SIGNING_KEY": SECRET,
        "PRIVACY_ASSETS_SIGNING_KEY_FILE": "/srv/signing.key",
    }
    command = [sys.executable, "-c", "import resources"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "PRIVACY_ASSETS_SIGNING_KEY must not be set in production" in done.stderr
    assert SECRET not in done.stdout + done.stderr
