"""What programs say by messages of Dagster Pipes: numbers under known names, and nothing else."""

from __future__ import annotations

import json
import math
import sys
from contextlib import closing
from pathlib import Path

import pytest
from dagster_pipes import PipesMappingParamsLoader

from privacy_assets.compute.progress import Lines
from privacy_assets.generators import build_generator
from privacy_assets.generators.reports import MESSAGES, Channel, Reports, encoded, numbers, use_channel
from tests.generators.known import table

TABLE = table(n=range(40))


@pytest.fixture(autouse=True)
def _every_epoch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy_assets.compute.progress.EVERY", 0.0)


def line(method: str, **params: object) -> str:
    return json.dumps({"__dagster_pipes_version": "0.1", "method": method, "params": params}) + "\n"


def test_numbers_under_known_names_pass_and_nothing_else() -> None:
    given = {
        "loss": 0.123456789,
        "eval_loss": {"raw_value": 2, "type": "int"},
        "last_validation_loss": -3,
        "Zebulon": 1.0,
        "loss_of_zebulon": 1.0,
        "loss ": 1.0,
        "error": "Zebulon",
        "accuracy": True,
        "lr": math.nan,
        "auc": math.inf,
        "steps": 10**400,
        "recall": [1.0],
        "precision": {"raw_value": "Zebulon", "type": "text"},
        "best": None,
        5: 1.0,
    }
    assert numbers(given) == {"loss": 0.123457, "eval_loss": 2.0, "last_validation_loss": -3.0}
    assert numbers([1, 2]) == numbers(None) == numbers("loss") == {}


def test_a_curve_and_facts_are_read_as_they_come(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "messages"
    with closing(Reports(path, Lines(told.append))) as reports, path.open("a") as stream:
        assert path.stat().st_mode & 0o777 == 0o600 and not reports.read()
        stream.write(line("opened") + line("report_custom_message", payload={"epoch": 1, "epochs": 2, "loss": 4}))
        stream.write(line("report_custom_message", payload={"epoch": 1, "eval_loss": 5})[:30])
        stream.flush()
        assert (
            reports.read() and reports.rows == [{"epoch": 1.0, "loss": 4.0}] and told == ["the program: epochs: 1 of 2"]
        )
        stream.write(line("report_custom_message", payload={"epoch": 1, "eval_loss": 5})[30:])
        stream.write(line("report_custom_message", payload={"epoch": 2, "loss": 3}))
        stream.write(line("report_custom_message", payload={"loss": 9}))
        stream.write(line("report_asset_materialization", asset_key="x", metadata={"auc": {"raw_value": 0.5}}))
        path.unlink()
        stream.flush()
        assert reports.read() and not reports.read()
    assert reports.rows == [{"epoch": 1.0, "loss": 4.0, "eval_loss": 5.0}, {"epoch": 2.0, "loss": 3.0}]
    assert reports.metadata == {"loss": 9.0, "auc": 0.5} and len(told) == 2
    assert reports.methods == {"opened", "report_custom_message", "report_asset_materialization"}


@pytest.mark.parametrize(
    "text",
    [
        "Zebulon\n",
        "[" * 50_000 + "\n",
        '{"method": "report_custom_message", "params": {"payload": {"epoch": 1}}}\n',
        line("log", message="Zebulon", level="INFO"),
        line("report_asset_check", asset_key="t/attestation", check_name="policy_holds", passed=True),
        '{"__dagster_pipes_version": "0.1", "method": "closed", "params": null}\n',
        '{"__dagster_pipes_version": "0.1", "method": ["closed"]}\n',
        line("report_custom_message", payload={"loss": 1.0, "error": "x" * 100_000}),
        "x" * 3_000_000,
        "\udcff\n".encode("utf-8", "surrogateescape").decode("latin-1"),
    ],
)
def test_what_is_no_report_is_dropped(tmp_path: Path, text: str) -> None:
    told: list[str] = []
    with closing(Reports(tmp_path / "messages", Lines(told.append))) as reports:
        (tmp_path / "messages").write_text(text)
        while reports.read():
            pass
        (tmp_path / "messages").write_text(text + "\n" + line("report_custom_message", payload={"epoch": 3}))
        while reports.read():
            pass
    assert reports.rows == [{"epoch": 3.0}] and reports.metadata == {} and told == ["the program: epochs: 3"]


def test_at_most_ten_thousand_epochs_are_kept(tmp_path: Path) -> None:
    with closing(Reports(tmp_path / "messages", lambda _: None)) as reports:
        texts = [line("report_custom_message", payload={"epoch": epoch}) for epoch in range(10_005)]
        (tmp_path / "messages").write_text("".join(texts))
        while reports.read():
            pass
    assert len(reports.rows) == 10_000 and reports.rows[-1] == {"epoch": 10_004.0}


def test_parameters_are_written_as_pipes_reads_them() -> None:
    loader = PipesMappingParamsLoader({MESSAGES: encoded({"path": "/tmp/é"}), "DAGSTER_PIPES_CONTEXT": encoded({})})
    assert loader.load_messages_params() == {"path": "/tmp/é"}


SPEAKS = """
import base64, json, os, sys, zlib
path = json.loads(zlib.decompress(base64.b64decode(os.environ["DAGSTER_PIPES_MESSAGES"])))["path"]
def say(**payload):
    message = {"__dagster_pipes_version": "0.1", "method": "report_custom_message", "params": {"payload": payload}}
    open(path, "a").write(json.dumps(message) + "\\n")
if sys.argv[1] == "train":
    for epoch in (1, 2, 3):
        say(epoch=epoch, epochs=3, loss=1 / epoch, zebulon=5)
    say(best_loss=0.25, secret="Zebulon")
    os.link(sys.argv[2], sys.argv[3] + "/rows")
else:
    import pyarrow.parquet as pq
    say(steps=8, seen=os.environ.get("SEEN") == "yes")
    pq.write_table(pq.read_table(sys.argv[2] + "/rows").slice(0, int(sys.argv[4])), sys.argv[3])
"""


def speaker(tmp_path: Path) -> object:
    (tmp_path / "speaks.py").write_text(SPEAKS)
    start = [sys.executable, str(tmp_path / "speaks.py")]
    command = [*start, "sample", "{model}", "{out}", "{rows}", "{seed}"]
    return build_generator("command", {"train": [*start, "train", "{train}", "{model}", "{seed}"], "command": command})


def test_a_program_is_heard_without_an_orchestrator(tmp_path: Path) -> None:
    told: list[str] = []
    fitted = speaker(tmp_path).fit(TABLE, seed=0, progress=Lines(told.append))  # type: ignore[attr-defined]
    losses = [1.0, 0.5, 0.333333]
    assert [dict(row) for row in fitted.history] == [
        {"epoch": float(epoch), "loss": loss} for epoch, loss in enumerate(losses, 1)
    ]
    assert [line.split(",")[0] for line in told[:3]] == [f"the program: epochs: {k} of 3" for k in (1, 2, 3)]
    assert len(fitted.sample(5, seed=0).frame()) == 5


def test_an_orchestrator_gives_a_channel_of_its_own(tmp_path: Path) -> None:
    with closing(Reports(tmp_path / "messages", lambda _: None)) as reports:
        variables = {MESSAGES: encoded({"path": str(reports.path)}), "SEEN": "yes"}
        with use_channel(Channel(variables, reports)):
            fitted = speaker(tmp_path).fit(TABLE, seed=0)  # type: ignore[attr-defined]
            assert len(reports.rows) == 3 and reports.metadata == {"best_loss": 0.25}
            fitted.sample(5, seed=0).frame()
        assert reports.rows == [] and reports.metadata == {"steps": 8.0}  # those of the last program
    assert len(fitted.history) == 3
