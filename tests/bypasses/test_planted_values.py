"""Private values do not leak: steps succeed and fail in many ways, and all output is searched for
planted values.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of local assets.

import base64
import html
import inspect
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import quote

import broken_generators as wrong
import dagster as dg
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster._utils.error import serializable_error_info_from_exc_info
from planting import PLANTED, SPELLINGS, World, leaks, plain, private, row_of, traces
from standins import LENIENT, QUICK, look_anew, memorize, run_functions_here, slow, sqlite_instance

from privacy_assets import PrivacyIOManager, build_privacy_checks, build_source_sensor
from privacy_assets.cli.main import main
from privacy_assets.dagster import checks, sensors
from privacy_assets.dagster.failures import checked_step
from privacy_assets.distances import embedder
from privacy_assets.errors import InputError, StepError
from privacy_assets.generators.user_code import CallableGenerator
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.pipeline import work
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.table import Table

FUNCTIONS_APART = True


@pytest.fixture
def world(
    tmp_path: Path, capfd: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "the same split in every run")
    caplog.set_level(logging.INFO)
    with dg.DagsterInstance.ephemeral() as instance:
        yield World(tmp_path, instance, wrong.honest, capfd, caplog)


# Each case makes the deployment fail in one way and returns the error text, which must contain the
# given words.
Case = Callable[[World, pytest.MonkeyPatch], str]
CASES: dict[str, tuple[str, Case]] = {}


def case(words: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[function.__name__] = words, function
        return function

    return add


def generator_case(function: Callable[..., Any], words: str) -> None:
    CASES[f"generator {function.__name__}"] = (
        words,
        lambda world, _: world.table(generator=function) and world.run(),
    )


for broken_generator in (
    wrong.raises_from, wrong.exits, wrong.interrupts, wrong.panics, wrong.returns_an_object,
    wrong.names_columns_by_values, wrong.mixes_types, wrong.holds_foreign_objects,
):  # fmt: skip
    generator_case(
        broken_generator,
        f"{broken_generator.__name__} failed, took longer than 86400 seconds or returned",
    )


def quoting(argument: int = 0) -> Callable[..., Any]:
    """A third-party function whose error quotes its table."""

    def fails(*args: Any, **kwargs: Any) -> Any:
        given = args[argument]
        given = given[0] if isinstance(given, list) else given  # tables by role
        given = given.train if hasattr(given, "train") else given
        given = given.frame() if isinstance(given, Table) else given
        frame = given.to_pandas() if isinstance(given, pa.Table) else given
        raise ValueError(frame.to_string() + row_of(frame)) from KeyError(row_of(frame))

    return fails


def quoting_case(name: str, place: Any, function: str, argument: int, **settings: Any) -> None:
    def provoke(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(place, function, quoting(argument))
        world.table(**settings)
        return world.run()

    CASES[f"{name} raises"] = "ValueError at", provoke


quoting_case("metric", Dcr, "measure", 1)
quoting_case("writer", pq, "write_table", 0)
quoting_case("split", work, "split_rows", 0)
quoting_case("fit", CallableGenerator, "_fit", 1)
quoting_case(
    "embedder", embedder, "train_embedder", 0, embedder=True, policy={**LENIENT, "embedder": {}}
)


@case("dcr_identical_excess_proven is red")
def a_memorized_table(world: World, _: pytest.MonkeyPatch) -> str:
    world.table(generator=memorize)
    told = world.run()
    assert "policy_holds is red" in told
    return told + world.run("attestation") + world.run("published")


@case("CSV")
def a_ragged_csv(world: World, _: pytest.MonkeyPatch) -> str:
    text = private().to_csv(index=False).splitlines()
    (world.data / "ragged.csv").write_text("\n".join([*text, text[1] + "," + PLANTED["name"]]))
    world.table(source=world.data / "ragged.csv")
    return world.run().replace("csv", "CSV")


@case("values of several types")
def an_upstream_table_of_mixed_types_in_our_storage(world: World, _: pytest.MonkeyPatch) -> str:
    mixed = private()["income"].astype(object)
    mixed[::2] = private()["name"][::2]

    @dg.asset(io_manager_def=PrivacyIOManager(base=str(world.folder)))
    def raw() -> Any:
        return private().assign(income=mixed)

    world.table(raw, source=raw)
    told = world.run(upstream=True)
    assert "failed" in told and "handling output" in told
    return told


@case("exchangeable_with_train is red")
def train_and_holdout_that_are_not_alike(world: World, _: pytest.MonkeyPatch) -> str:
    real = private()
    chosen = (real["name"] == PLANTED["name"]) | (real.index < 300)
    frames = {
        "train": real[chosen],
        "holdout": real[~chosen],
        "synthetic": plain(private(seed=1)).drop(columns="pid"),
    }
    world.table(**world.external(**frames))
    return world.run()


@case("categories that no real table has")
def values_outside_the_set(world: World, _: pytest.MonkeyPatch) -> str:
    real, copy = private(), private(seed=1).drop(columns="pid")
    never = {"limits": [{"statistic": "dcr.privacy_score", "at_most": 0.0}]}
    frames = {"train": plain(real), "holdout": plain(private(seed=2)), "synthetic": copy}
    world.table(**world.external(**frames), policy=never)
    return world.run()


@case("contract is red")
def an_expectation_that_raises(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    from great_expectations.execution_engine import PandasExecutionEngine

    look_anew(monkeypatch)
    real = PandasExecutionEngine.resolve_metrics

    def resolve(self: Any, metrics_to_resolve: Any, **kwargs: Any) -> Any:
        values = [metric for metric in metrics_to_resolve if "in_set" in metric.metric_name]
        if values:
            raise ValueError(str(values))
        return real(self, metrics_to_resolve, **kwargs)

    monkeypatch.setattr(PandasExecutionEngine, "resolve_metrics", resolve)
    return world.run()


@case("table.bin is missing, was changed, or was stored by another version")
def damage_in_the_storage(world: World, _: pytest.MonkeyPatch) -> str:
    """One file after the other: each step gets the reason for the one it reads."""
    world.run()
    (attestation,) = (world.folder / "storage" / "people" / "attestation").iterdir()
    attestation.write_bytes(attestation.read_bytes()[:-20] + json.dumps(row_of(private())).encode())
    assert "people__publish" in world.run("published")
    attestation.unlink()
    for file in (world.folder / "storage" / "people" / "dcr").iterdir():
        file.write_bytes(file.read_bytes()[:-50])
    assert "people__attest" in world.run("attestation")
    for file in (world.folder / "private").rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-7] + b"1234567")
    assert "changed after it was" in world.run("evaluation_inputs")
    train = world.stored("train", ".bin")
    train.write_bytes(train.read_bytes()[:-100])
    return world.run("generator")


@case("ValueError at")
def a_check_that_raises(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(checks, "check_contract", quoting(1))
    monkeypatch.setattr(
        checks, "exchangeability_result", lambda tables, _: quoting()(tables["train"])
    )
    told = world.run()
    assert told.count("ValueError at") >= 1
    return told


@case("RuntimeError at")
def gate_steps_that_raise(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError(row_of(private()))

    world.run()
    monkeypatch.setattr(MetricResult, "from_json", fails)
    told = [world.run(name) for name in ("attestation", "published")]
    assert all("RuntimeError at" in text for text in told), told
    return told[0]


@case("ValueError at")
def checks_on_tables_of_ones_own(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Dcr, "measure", quoting(1))
    roles = ["train", "holdout", "synthetic", "reference"]
    made = {role: table_asset(role, private(seed=seed)) for seed, role in enumerate(roles)}
    found = build_privacy_checks(**made, metrics=["dcr"], policy=LENIENT, embedder=False)
    world.defs = dg.Definitions(assets=list(made.values()), asset_checks=found)
    return world.run(upstream=True)


def table_asset(role: str, frame: pd.DataFrame) -> dg.AssetsDefinition:
    @dg.asset(name=role, io_manager_def=dg.InMemoryIOManager())
    def table() -> pd.DataFrame:
        return frame.drop(columns="pid")

    return table


@case("ValueError at")
def sensors_and_schedules_that_raise(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("source_version", "stat_token"):
        monkeypatch.setattr(sensors, name, lambda *_: quoting()(private()))
    source = build_source_sensor("people", str(world.data / "people.parquet"))
    world.table(schedule="0 6 * * *")
    defs = dg.Definitions.merge(world.defs, dg.Definitions(sensors=[source]))
    repository = defs.get_repository_def()
    told: list[str] = []
    with sqlite_instance(world.folder) as stored:
        given: dict[str, Any] = {
            "instance": stored,
            "repository_def": repository,
            "resources": defs.resources,
        }
        ticks: dict[Any, Any] = {source: dg.build_sensor_context}
        ticks[repository.get_schedule_def("people_schedule")] = dg.build_schedule_context
        for definition, build in ticks.items():
            try:
                # else it enters its instance again and leaves when it is collected
                with build(**given) as context:
                    definition.evaluate_tick(context)
            except Exception:
                told.append(serializable_error_info_from_exc_info(sys.exc_info()).to_string())
    assert len(told) == 2 and all("ValueError at" in text for text in told), told
    world.said += told
    return told[0]


@case("ValueError at")
def bad_files_and_a_metric_that_raises_on_the_command_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> str:
    synthetic = plain(private(seed=1)).drop(columns="pid")
    paths = world.external(train=private()[:400], holdout=private()[400:], synthetic=synthetic)
    lines = paths["synthetic"].read_text().splitlines()
    bad = world.data / "bad.csv"
    for text in ("\n".join([*lines, PLANTED["name"] + ",1"]), f"{lines[0]}\n\xff{PLANTED['name']}"):
        bad.write_text(text, encoding="latin-1")
        assert main(arguments(paths | {"synthetic": bad})) == 2
    monkeypatch.setattr(Dcr, "measure", quoting(1))
    assert main(arguments(paths)) == 2
    text = world.capture.readouterr().err
    assert text.count("bad.csv") == 2
    world.said.append(text)
    return text


def arguments(paths: dict[str, Path]) -> list[str]:
    files = [f"--{role}={path}" for role, path in paths.items()]
    return ["evaluate", *files, "--subject=pid", "--metrics=dcr", "--no-embedder", "--quiet"]


def generate(number: int) -> Iterator[int]:
    yield number
    raise ValueError(PLANTED["name"]) from KeyError(PLANTED["name"])


def compute(context: dg.AssetExecutionContext, frame: pd.DataFrame) -> int:
    try:
        raise KeyError(PLANTED["name"])
    except KeyError:
        raise OSError(28, PLANTED["name"])  # noqa: B904


def test_the_guard_hides_what_an_error_says_and_tells_where() -> None:
    with pytest.raises(StepError) as caught:
        checked_step(compute)(None, private())
    line = inspect.getsourcelines(compute)[1] + 4
    assert f"OSError (No space left on device) at {__file__}:{line}, in compute." in str(
        caught.value
    )
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert traces(str(caught.value)) == set()
    forged = StepError.hiding(OSError(PLANTED["visits"], PLANTED["name"], PLANTED["name"]))
    assert "OSError at an unknown line" in str(forged)
    with pytest.raises(StepError, match=r"Arrow\w+ at .*test_planted_values.py:\d+, in <lambda>"):
        checked_step(lambda: pa.array([PLANTED["name"], 1.5]))()


def test_what_a_thread_raises_is_told_by_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)

    def fails(error: BaseException) -> None:
        raise error

    def step() -> None:
        for error in (ValueError(PLANTED["name"]), SystemExit(PLANTED["name"])):
            thread = threading.Thread(target=fails, args=(error,))
            thread.start()
            thread.join()

    checked_step(step)()
    said = capsys.readouterr().err
    assert "In a thread: ValueError at" in said and "in fails" in said and "SystemExit" not in said
    assert traces(said) == set()


def test_the_guard_keeps_what_dagster_reads() -> None:
    for function in (compute, generate):
        wrapped = checked_step(function)
        assert inspect.signature(wrapped) == inspect.signature(function)
        assert get_type_hints(wrapped) == get_type_hints(function)
        assert inspect.isgeneratorfunction(wrapped) == inspect.isgeneratorfunction(function)
        assert (wrapped.__name__, wrapped.__module__) == (function.__name__, function.__module__)
    found = checked_step(generate)(3)
    assert next(found) == 3
    with pytest.raises(StepError, match="ValueError at"):
        next(found)
    checked_step(generate)(3).close()


@pytest.mark.parametrize("error", [dg.Failure("x"), dg.RetryRequested(2)], ids=repr)
def test_what_steers_a_step_passes_without_its_chain(error: BaseException) -> None:
    def step() -> None:
        error.add_note(PLANTED["name"])
        raise error from ValueError(PLANTED["name"])

    with pytest.raises(type(error)) as caught:
        checked_step(step)()
    assert caught.value is error and error.__cause__ is None and error.__context__ is None
    info = serializable_error_info_from_exc_info((type(error), error, error.__traceback__))
    assert traces(info.to_string()) == set()


def test_a_known_error_is_a_failure_without_its_chain() -> None:
    def step() -> None:
        error = InputError("no rows")
        error.add_note(PLANTED["name"])
        raise error from ValueError(PLANTED["name"])

    with pytest.raises(dg.Failure) as caught:
        checked_step(step)()
    error = caught.value
    assert error.description == "no rows." and not error.allow_retries
    info = serializable_error_info_from_exc_info((type(error), error, error.__traceback__))
    assert "no rows." in info.to_string() and traces(info.to_string()) == set()


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, GeneratorExit, dg.DagsterExecutionInterruptedError]
)
def test_an_interrupt_passes_without_its_words(kind: type[BaseException]) -> None:
    own = type("Own", (kind,), {"__str__": lambda self: PLANTED["name"]})
    for raised in (kind(PLANTED["name"]), own()):

        def step(error: BaseException = raised) -> None:
            raise error

        with pytest.raises(kind) as caught:
            checked_step(step)()
        assert (
            type(caught.value) is kind
            and caught.value.args == ()
            and caught.value.__context__ is None
        )


# One for each kind of failure location; the redaction itself is tested above.
QUICK_CASES = {
    "a_memorized_table", "a_ragged_csv", "metric raises",
    "checks_on_tables_of_ones_own", "sensors_and_schedules_that_raise",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in QUICK_CASES else slow(name) for name in CASES])
def test_nothing_private_is_told_when_it_fails(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, provoke = CASES[name]
    if not name.startswith("generator "):
        run_functions_here(monkeypatch)
    told = provoke(world, monkeypatch)
    monkeypatch.undo()
    assert leaks(world) == {}
    assert words in told
    assert set(CASES) > QUICK_CASES


@pytest.mark.slow
def test_nothing_private_is_told_when_it_succeeds(world: World, tmp_path: Path) -> None:
    world.table(metrics=[*QUICK["metrics"], "vulnerability"])
    with sqlite_instance(tmp_path) as stored:
        world.instance = stored
        assert world.run() == ""
        assert leaks(world) == {}
        found = world.everything()
        made = stored.get_latest_materialization_event(dg.AssetKey(["people", "vulnerability"]))
    records = made.asset_materialization.metadata["most exposed records"].records
    assert len(records) == 50
    assert {name for record in records for name in record.data} == {
        "rank", "role", "row", "vulnerability", "equal_rows"
    }  # fmt: skip
    assert "equal_rows" in found[next(where for where in found if where.endswith("report.json"))]
    kept = (
        "history/runs",
        "report.html",
        "report.json",
        "attestation",
        "/releases/",
        "storage/people/dcr",
    )
    for part in ("compute_logs", *kept):
        assert [where for where in found if part in f"/{where}"], (part, sorted(found))


@pytest.mark.slow
def test_what_a_function_prints_is_dropped(world: World) -> None:
    world.table(generator=wrong.prints)
    assert world.run() == "" and leaks(world) == {}


def test_the_planted_values_are_in_reach() -> None:
    assert traces(private().to_csv()) == set(SPELLINGS)
    assert traces(plain(private()).to_csv()) == set()


MORE_SPELLINGS = {
    "income": ["987,654.32", "987654", "9.877e+05", f"{np.float32(987654.321)!r}", "[987654.32]"],
    "visits": ["1234567891.0", "1,234,567,891", "1.235e+09", "1.234567891e9"],
    "born": [
        "1907-03-04",
        "datetime.date(1907, 3, 4)",
        "4 March 1907",
        "04/03/1907",
        "19070304",
        "-22949",
    ]
    + [str(-1982793600 * scale) for scale in (1, 10**3, 10**6, 10**9)],
}


@pytest.mark.parametrize("column", SPELLINGS)
def test_every_spelling_is_found(column: str) -> None:
    value = PLANTED[column]
    plain_texts = [str(value), repr(value), f"x={value};", *MORE_SPELLINGS.get(column, [])]
    texts = [json.dumps(str(value)), quote(f"<{value}>"), html.escape(f"'{value}"), *plain_texts]
    texts += [
        base64.b64encode(f"{'-' * shift}{value!s:>20}".encode()).decode() for shift in range(3)
    ]
    assert [text for text in texts if column not in traces(text)] == []


def test_the_search_can_fail(world: World) -> None:
    """The same values, deliberately leaked through each channel."""

    @dg.asset(check_specs=[dg.AssetCheckSpec("loud", asset="loud")])
    def loud(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        context.log.info(PLANTED["pid"])
        sys.stdout.write(PLANTED["name"] + "\n")
        logging.getLogger("elsewhere").warning(PLANTED["plan"])
        check = dg.AssetCheckResult(passed=False, description=f"found {PLANTED['income']}")
        return dg.MaterializeResult(metadata={"largest": PLANTED["visits"]}, check_results=[check])

    @dg.asset(deps=[loud])
    def louder() -> None:
        raise RuntimeError("nothing in the message itself") from ValueError(f"of {PLANTED['born']}")

    (world.folder / "releases").mkdir()
    private().to_parquet(world.folder / "releases" / "table.parquet")
    payload = base64.b64encode(json.dumps({"row": row_of(private())}).encode()).decode()
    (world.folder / "releases" / "attestation.json").write_text(json.dumps({"payload": payload}))
    world.defs = dg.Definitions(assets=[loud, louder])
    world.run(upstream=True)
    found = leaks(world)
    run = next(found[where] for where in found if where.startswith("run "))
    assert run >= {"pid", "income", "visits", "born"}
    assert "name" in found["stdout"] and "plan" in found["logging"] and "pid" in found["stderr"]
    assert (
        found["releases/table.parquet"]
        == found["releases/attestation.json"] | {"pid"}
        == set(SPELLINGS)
    )
