"""Statistics stay private: readers, alerts and the published asset get no measured number."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest
from standins import checks, failed_run, failures, made, memorize, people_table, run

from privacy_assets import build_run_failure_sensor
from privacy_assets.cli.main import main

pytestmark = pytest.mark.slow

NUMBER = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+")
NOT_MEASURED = {"confidence", "null"}


@pytest.fixture(scope="module", params=["released", "blocked"])
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """All public output of a table, and every number that was measured on it."""
    place = tmp_path_factory.mktemp(request.param)
    leaks = {"generator": memorize} if request.param == "blocked" else {}
    metrics = ["dcr", "holdout_leakage"]
    defs = people_table(
        place, metrics=metrics, allowed_values={"region": ["north", "south", "far away"]}, **leaks
    )
    with dg.DagsterInstance.ephemeral() as instance:
        result = run(defs, instance)
        by_hand = run(defs, instance, "published")
        assert result.success == by_hand.success == (request.param == "released")
        leaving = {
            **texts_of(result),
            **{f"by hand: {name}": text for name, text in texts_of(by_hand).items()},
        }
        for one in () if result.success else (result, by_hand):
            build_run_failure_sensor(partial(leaving.setdefault, f"alert {one.run_id}"))(
                failed_run(one, instance)
            )
    return {
        "place": place,
        "leaving": leaving,
        "measured": measured(place),
        "released": result.success,
    }


def texts_of(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """Descriptions of all checks and failures, and everything about the published asset."""
    found = {f"check {name}": str(one.description) for name, one in checks(result).items()}
    for step, data in failures(result).items():
        failure = data.user_failure_data
        found[f"failure {step}"] = f"{failure.description} {failure.metadata}"
    released = checks(result).get(("published", "released"))
    found["released"] = str(released and released.metadata)
    found["published"] = str(
        {key: str(value) for key, value in made(result).get("published", {}).items()}
    )
    return found


def measured(place: Path) -> set[str]:
    """Spellings of every number in the signed results of the scores, and in the texts of the
    report.
    """
    numbers = set[str]()
    for file in (place / "storage/people").rglob("result.json"):
        predicate = payload(file)["predicate"]
        for value in floats({name: predicate[name] for name in ("estimates", "tables")}):
            numbers |= {f"{abs(value)!r}", f"{abs(value):.4g}", f"{abs(value):.3g}"}
    (page,) = (place / "storage/people/privacy_report").glob("report.json")
    limits = json.loads(page.read_text())["limits"]
    numbers |= {number for limit in limits for number in NUMBER.findall(limit["reason"])}
    numbers -= {f"{limit['limit']:.4g}" for limit in limits}
    return {number for number in numbers if len(number.replace(".", "").lstrip("0")) >= 3}


def floats(value: Any, key: str = "") -> Iterator[float]:
    if isinstance(value, float) and key not in NOT_MEASURED:
        yield value
    for name, one in value.items() if isinstance(value, dict) else ():
        yield from floats(one, name)
    for one in value if isinstance(value, list) else ():
        yield from floats(one)


def payload(file: Path) -> dict[str, Any]:
    return dict(json.loads(base64.b64decode(json.loads(file.read_bytes())["payload"])))


def leaks(told: dict[str, Any], leaving: dict[str, str]) -> dict[str, set[str]]:
    found = {where: set(NUMBER.findall(text)) & told["measured"] for where, text in leaving.items()}
    return {where: numbers for where, numbers in found.items() if numbers}


def test_the_numbers_are_known_and_the_report_has_them(told: dict[str, Any]) -> None:
    (page,) = (told["place"] / "storage/people/privacy_report").glob("report.json")
    assert len(told["measured"]) > 30
    assert leaks(told, {"report": page.read_text()})


def test_checks_failures_alerts_and_the_published_asset_have_none(told: dict[str, Any]) -> None:
    assert leaks(told, told["leaving"]) == {}
    alerts = [text for name, text in told["leaving"].items() if name.startswith("alert")]
    assert len(alerts) == (0 if told["released"] else 2)
    assert all("dcr.identical_excess" in text for text in alerts)
    if not told["released"]:
        assert (
            "dcr.identical_excess.proven (fail)"
            in told["leaving"]["by hand: failure people__publish"]
        )


def test_attestation_and_release_folder_have_none(told: dict[str, Any]) -> None:
    place = told["place"]
    attestations = [
        place / "storage/people/attestation/attestation.json",
        *place.glob("releases/**/attestation.json"),
    ]
    assert len(attestations) == 1 + told["released"]
    for file in attestations:
        predicate = payload(file)["predicate"]
        assert leaks(told, {"payload": json.dumps(predicate)}) == {}
        settings = {name: predicate.pop(name) for name in ("policy", "setup")}
        assert list(floats(predicate)) == []
        assert settings["setup"]["allowed_values"]["region"][
            "values"
        ] == 3 and "far away" not in str(settings)
        assert set(predicate["limits"].values()) <= {"pass", "fail", "undecided"}
    others = [
        file
        for file in (place / "releases").rglob("*")
        if file.is_file() and file not in attestations
    ]
    assert (
        leaks(told, {file.name: file.read_text() for file in others if file.suffix != ".parquet"})
        == {}
    )
    assert all(
        pq.read_metadata(file).metadata is None for file in others if file.suffix == ".parquet"
    )


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_verify_and_releases_have_none(
    told: dict[str, Any], form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = told["place"]
    attestation = place / "storage/people/attestation/attestation.json"
    (snapshot,) = (place / "private/snapshots/people/_all").glob("*.parquet")
    folders = ["--releases", str(place / "releases")]
    if not told["released"]:
        (place / "releases").mkdir(exist_ok=True)
    status = main(["verify", str(snapshot), "--attestation", str(attestation), *folders, *form])
    said = capsys.readouterr().out
    assert status == (0 if told["released"] else 1)
    assert "dcr.identical_excess" in said and leaks(told, {"verify": said}) == {}
    main(["releases", *folders, *form])
    assert leaks(told, {"releases": capsys.readouterr().out}) == {}
