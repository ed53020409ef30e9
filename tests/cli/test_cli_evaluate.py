"""The commands ``evaluate`` and ``policy``: exit status, output forms, columns, and messages
without private values.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.memorization import Memorization
from privacy_assets.metrics.policies import default_policy, load_policy, policy_digest, small_policy
from privacy_assets.metrics.registry import METRICS
from privacy_assets.report.report import Report
from tests.cli.conftest import Command
from tests.cli.people import SECRET

ROLES = ("train", "holdout", "synthetic")


@pytest.fixture
def files(tables: Path) -> dict[str, Path]:
    return {role: tables / f"{role}.parquet" for role in ROLES}


def evaluate(files: dict[str, Path], *more: str) -> list[str]:
    return [
        "evaluate",
        *(f"--{role}={path}" for role, path in files.items()),
        "--no-embedder",
        *more,
    ]


def test_a_copy_exits_with_1_and_says_why(
    files: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    out, page, copy = tmp_path / "out.json", tmp_path / "out.html", tmp_path / "copy.csv"
    pd.read_parquet(files["train"]).to_csv(copy, index=False)
    written = [f"--json={out}", f"--html={page}", "--seed=3", "--metrics=dcr"]
    said = command(*evaluate({**files, "synthetic": copy}, *written), status=1)
    data = json.loads(out.read_text())
    assert [path.stat().st_mode & 0o777 for path in (out, page)] == [0o600, 0o600]
    assert (data["verdict"], data["seed"]) == ("fail", 3)
    assert data["metrics"]["dcr"]["estimates"]["identical_excess"]["value"] == 1
    assert "dcr.privacy_score" in {
        limit["statistic"] for limit in data["limits"] if not limit["passed"]
    }
    assert all(
        {"statistic", "limit", "bound", "measured", "passed"} <= set(limit)
        for limit in data["limits"]
    )
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "dcr.privacy_score" in said.out and "measuring dcr" in said.err


def test_one_metric_and_a_policy_of_ones_own(
    files: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    policy = tmp_path / "p.yaml"
    for limit, status in ((0.9, 0), (0.0, 3)):
        policy.write_text(f"limits: [{{statistic: dcr.privacy_score, at_most: {limit}}}]")
        assert (
            command(
                *evaluate(files, "--metrics=dcr", f"--policy={policy}", "--quiet"), status=status
            ).err
            == ""
        )


@pytest.mark.slow
def test_without_a_limit_it_prints_statistics_and_exits_with_3(
    files: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    said = command(
        *evaluate(
            files, "--metrics=fidelity,memorization", f"--json={out}", f"--html={page}", "--quiet"
        ),
        status=3,
    ).out
    told = "No limit applies: the default policy limits none of these statistics"
    assert (
        said.startswith("UNDECIDED")
        and told in " ".join(said.split())
        and told in page.read_text(encoding="utf-8")
    )
    assert (
        re.search(r"^fidelity.prediction +0\.\d+ ", said, re.MULTILINE)
        and "memorization.exposed " in said
    )
    data = json.loads(out.read_text())
    assert (data["verdict"], data["policy"], data["limits"], data["advice"]) == (
        "undecided",
        None,
        [],
        [],
    )
    assert Report.from_json(data).to_text() == said.rstrip("\n")
    with pytest.raises(ConfigError, match="it states 'pass', but its statistics give 'undecided'"):
        Report.from_json({**data, "verdict": "pass"})


def test_scores_of_every_row_are_a_private_file(
    files: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    out, report = tmp_path / "alpha_m.parquet", tmp_path / "out.json"
    metrics = ["--metrics=memorization", f"--row-scores={out}", "--quiet"]
    command(*evaluate(files, *metrics, f"--json={report}"), status=3)
    rows, results = pd.read_parquet(out), json.loads(report.read_text())["metrics"]
    share = results["memorization"]["estimates"]["exposed"]
    assert out.stat().st_mode & 0o777 == 0o600
    assert len(rows) == len(pd.read_parquet(files["synthetic"]))
    assert (rows["alpha_m"] < 1).mean() == pytest.approx(share["value"])
    report.unlink()
    metrics[0] = "--metrics=dcr"
    told = command(*evaluate(files, *metrics, f"--json={report}"), status=2).err
    assert "Fix: add memorization to --metrics" in told and report.exists()


def test_two_metrics_that_score_rows_have_columns_of_their_own(
    files: dict[str, Path], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Second(Memorization):
        name = "second"

    monkeypatch.setitem(METRICS.core, "second", Second)
    out = tmp_path / "scores.parquet"
    told = command(*evaluate(files, "--metrics=dcr", f"--row-scores={out}", "--quiet"), status=2)
    assert "Fix: add memorization or second to --metrics" in told.err
    for metrics, prefixes in (
        ("second", [""]),
        ("second,memorization", ["memorization.", "second."]),
    ):
        asked = [f"--metrics={metrics}", f"--row-scores={out}", "--quiet"]
        command(*evaluate(files, *asked), status=3)
        rows = pd.read_parquet(out)
        assert len(rows) == len(pd.read_parquet(files["synthetic"]))
        assert [name for name in rows if name.endswith("alpha_m")] == [
            f"{prefix}alpha_m" for prefix in prefixes
        ]


@pytest.mark.slow
def test_a_limit_that_is_undecided_exits_with_3(
    files: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("limits: [{statistic: dcr.privacy_score, at_most: 0.9, min_subjects: 1000}]")
    for metric in ("dcr", "fidelity"):  # measured with too few people, and not measured
        said = command(
            *evaluate(files, f"--metrics={metric}", f"--policy={policy}", "--quiet"), status=3
        )
        assert said.out.startswith("UNDECIDED") and "1 of 1 limits is undecided" in said.out


def test_the_generator_and_its_settings_reach_the_metric(
    files: dict[str, Path], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object, metrics: dict[str, Metric], limits: object) -> None:
        raise InputError(str(metrics["shadow_membership"].settings()["generator"]), fix="none")

    monkeypatch.setattr("privacy_assets.evaluation.measuring.run_metrics", stop)
    asked = ["--metrics=shadow_membership", "--generator=baynet", "--set=degree=2", "--quiet"]
    assert (
        "'baynet', 'settings': {'degree': 2, 'bins': 10}"
        in command(*evaluate(files, *asked), status=2).err
    )


def test_bad_files_are_named_and_give_nothing_away(
    files: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    text, garbage = tmp_path / "bad.csv", tmp_path / "bad.parquet"
    text.write_text(f"x0,x1\n1,2,{SECRET}\n")
    garbage.write_text(SECRET)
    for bad in (text, garbage):
        said = command(*evaluate({**files, "synthetic": bad}, "--quiet"), status=2)
        assert bad.name in said.err and SECRET not in said.err + said.out


def test_private_values_are_shown_only_when_asked_for(
    files: dict[str, Path], tmp_path: Path, command: Command
) -> None:
    frame = pd.read_parquet(files["synthetic"]).astype({"visits": object})
    frame.loc[11, "visits"] = SECRET + "\x1b[31m" + "y" * 100
    frame.to_csv(tmp_path / "bad.csv", index=False)
    asked = evaluate({**files, "synthetic": tmp_path / "bad.csv"}, "--quiet")
    hidden = command(*asked, status=2)
    assert "row 11" in hidden.err and SECRET not in hidden.err + hidden.out
    shown = command(*asked, "--show-values", status=2).err
    assert shown.startswith(hidden.err.rstrip("\n")) and "\x1b" not in shown
    assert shown.endswith(f"The value is {repr(frame.loc[11, 'visits'])[:80]}\n")
    # an error that quotes no cell
    other = command(*asked, "--show-values", "--subject=person", status=2)
    assert "The value is" not in other.err


@pytest.mark.slow
def test_drop_generated_and_domain(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table has its own id column; the synthetic one has a region that no real row has."""
    rng, frames = np.random.default_rng(0), {}
    monkeypatch.chdir(tmp_path)
    for role in ROLES:
        frame = pd.DataFrame(
            {"age": rng.integers(18, 90, 200), "region": rng.choice(["north", "south"], 200)}
        )
        frames[role] = frame.assign(claim=[f"CLAIM-{role}-{number:06d}" for number in range(200)])
    frames["synthetic"].loc[3, "region"] = "east"
    for role, frame in frames.items():
        frame.to_csv(f"{role}.csv", index=False)
    asked = evaluate(
        {role: Path(f"{role}.csv") for role in ROLES}, "--metrics=value_disclosure", "--quiet"
    )
    told = command(*asked, "--drop=claim", status=2).err
    assert (
        "column 'region', row 3: it has categories that no real table has, in 1 of 200" in told
        and "east" not in told
    )
    command(
        *asked, "--drop=claim", "--allowed-values=region=north,east", "--json=found.json", status=3
    )
    assert json.loads(Path("found.json").read_text())["tables"]["synthetic"]["columns"] == 2
    command(*asked, "--new-values=claim=numbered again", "--allowed-values=region=east", status=3)
    frames["synthetic"].assign(claim=frames["train"]["claim"]).to_csv("synthetic.csv", index=False)
    command(*asked, "--new-values=claim=numbered again", "--allowed-values=region=east", status=1)


def test_the_default_policy_is_printed_as_a_policy_file(command: Command) -> None:
    assert policy_digest(load_policy(yaml.safe_load(command("policy").out))) == policy_digest(
        default_policy()
    )
    assert load_policy(yaml.safe_load(command("policy", "small").out)) == small_policy()


# --- ids
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A call for tables with three rows per person; the synthetic one also contains a person's
    id.
    """
    rng = np.random.default_rng(1)
    monkeypatch.chdir(tmp_path)
    for start, role in enumerate(ROLES):
        frame = pd.DataFrame(
            {
                "age": rng.integers(18, 90, 300),
                "patient": np.repeat(np.arange(100), 3) + 1000 * start,
            }
        )
        frame["patient"] = "P" + frame["patient"].astype(str)
        frame["income"] = rng.normal(size=300)
        frame.assign(**{"note, long": [f"N-{role}-{row:05d}" for row in range(300)]}).to_csv(
            f"{role}.csv", index=False
        )
    return evaluate({role: Path(f"{role}.csv") for role in ROLES}, "--metrics=dcr", "--quiet")


@pytest.mark.slow
def test_several_columns_to_drop_and_one_whose_name_holds_a_comma(
    visits: list[str], command: Command
) -> None:
    together = ['--drop=patient, "note, long"', "--kind=age=numeric", "--json=found.json"]
    apart = ["--drop=patient", '--drop="note, long"', "--kind=age=numeric", "--json=other.json"]
    for more in (together, apart):
        command(*visits, *more, status=3)
    found, other = (
        json.loads(Path(name).read_text())["tables"] for name in ("found.json", "other.json")
    )
    assert found == other and found["train"]["columns"] == 2
    rejected = command(*visits, status=2).err
    assert (
        """--drop 'patient,"note, long"'""" in rejected
    )  # the option in the message can be copied


@pytest.mark.slow
def test_the_subject_of_a_synthetic_table_is_blocked_or_dropped_and_told(
    visits: list[str], command: Command
) -> None:
    asked = [*visits, "--subject=patient", "--json=found.json", "--html=page.html"]
    rejected = command(*asked, '--drop="note, long"', status=2).err
    assert (
        "the synthetic table contains the subject column" in rejected
        and "--drop patient)" in rejected
    )
    said = " ".join(command(*asked, '--drop="note, long",patient', status=3).out.split())
    told = (
        "contains 'note, long', 'patient', dropped and not evaluated: the verdict does not"
        " cover them."
    )
    assert told in said and "Each row counts as one person" not in said
    data = json.loads(Path("found.json").read_text())
    assert data["tables"]["train"] == {"rows": 300, "columns": 2, "subjects": 100}
    assert told in data["notes"][1] and Report.from_json(data).notes == tuple(data["notes"])
    assert "dropped and not evaluated" in Path("page.html").read_text()


@pytest.mark.slow
def test_without_a_subject_it_says_that_a_row_is_a_person_and_what_looks_like_an_id(
    visits: list[str], command: Command
) -> None:
    said = " ".join(command(*visits, '--drop="note, long",patient', status=3).out.split())
    assert (
        "Each row counts as one person." in said
        and "'patient' looks like one." in said
        and "P1" not in said
    )
    loud = command(
        *[word for word in visits if word != "--quiet"], '--drop="note, long",patient', status=3
    ).err
    assert "'patient' looks like one" in loud
    for role in ROLES:
        frame = pd.read_csv(f"{role}.csv")
        frame.assign(patient=[f"{role}{row}" for row in range(300)]).to_csv(
            f"{role}.csv", index=False
        )
    said = command(*visits, '--drop="note, long",patient', status=3).out
    assert "Each row counts as one person." in said and "looks like one" not in said
