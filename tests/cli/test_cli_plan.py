"""The command ``plan`` and the call behind it: what it says of a size, and what it does not depend on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import privacy_assets
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.metrics.registry import METRICS
from privacy_assets.pipeline.planning import SizePlan
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit
from tests.cli.conftest import Command
from tests.cli.people import SECRET, people

LOOSE = {"name": "loose", "limits": [{"statistic": "dcr.identical_excess", "at_most": 1.0, "bound": "lower"}]}
CLOSE = {"name": "close", "limits": [{"statistic": "dcr.privacy_score", "at_most": 0.001}]}
SMALL: dict[str, Any] = {"subject": "person", "policy": LOOSE, "draws": 1}


def plan(*sizes: int, rows: pd.DataFrame | None = None, **more: Any) -> SizePlan:
    found: SizePlan = privacy_assets.plan(*sizes, rows=people() if rows is None else rows, **{**SMALL, **more})
    return found


def test_text_json_and_exit_status_tell_the_same(command: Command, tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    given = [f"--rows={tables / 'people.parquet'}", "--subject=person", "--train=40", "--holdout=30", f"--json={out}"]
    said = command("plan", *given, "--draws=2", "--quiet", status=1)
    found = json.loads(out.read_text())
    assert SECRET not in said.out + out.read_text() and said.err == ""
    assert found["people"] == {"train": 40, "holdout": 30, "reference": 16} and found["policy"]["name"] == "default"
    assert found["passed"] < 2 == len(found["draws"]) and found["summary"] in said.out
    for draw in found["draws"]:
        assert len(draw["limits"]) == len(found["policy"]["limits"])
        assert set(draw["smallest_leaks"]) == {
            f"{name}.{one}" for name, kind in METRICS.items() for told in kind.smallest_leak.values() for one in told
        }
    for limit in found["policy"]["limits"]:
        assert limit["statistic"] in said.out
    assert "copies of training rows" in said.out and "40 people in train" in said.out and "demo" not in said.out


def test_a_harmless_release_passes_where_people_are_enough_for_the_policy(
    command: Command, tables: Path, tmp_path: Path
) -> None:
    for policy, status in ((LOOSE, 0), (CLOSE, 1)):
        (tmp_path / "policy.yaml").write_text(json.dumps(policy))
        sizes = ["--train=50", "--holdout=40", "--reference=0", f"--policy={tmp_path / 'policy.yaml'}"]
        said = command("plan", *sizes, f"--rows={tables / 'people.parquet'}", "--subject=person", status=status)
        assert "reference" not in said.out
        assert ("would pass (3 of 3 draws)" in said.out) == (status == 0)
        assert "plan: draws" in said.err or said.err == ""


def test_the_same_seed_gives_the_same_plan_whatever_the_order_of_rows() -> None:
    shuffled = people().sample(frac=1, random_state=1).reset_index(drop=True)
    first, again, other = (plan(40, 30, policy=None, **more) for more in ({}, {"rows": shuffled}, {"seed": 1}))
    assert first.to_json() == again.to_json() and first.to_text() == again.to_text()
    assert first.to_json()["draws"] != other.to_json()["draws"]
    alone = people().drop(columns="person")  # each row is one person
    order = np.random.default_rng(0).permutation(len(alone))
    one, two = (
        plan(90, 60, rows=rows, subject=None, policy=CLOSE)
        for rows in (alone, alone.iloc[order].reset_index(drop=True))
    )
    assert one.to_json() == two.to_json() and one.people["reference"] == 36


def test_the_release_does_not_know_who_is_in_train() -> None:
    """All people stand in train or holdout, and everybody's rows are given to the generator alike."""
    one_limit = [{"statistic": "membership_inference.advantage", "at_most": 0.5, "bound": "lower"}]
    found = plan(60, 60, 0, policy={"name": "p", "limits": one_limit}, draws=8)
    (values,) = zip(*([x.estimate.value for x in draw.outcomes if x.estimate] for draw in found.draws), strict=True)
    assert abs(np.mean(values)) < 3 * np.std(values, ddof=1) / np.sqrt(len(values)) and found.passed == 8


def test_limits_that_need_more_than_a_split_are_named_and_left_out() -> None:
    more = [Limit("dcr.embedded_privacy_score", at_most=0.5), Limit("shadow_membership.auc", at_most=0.9)]
    found = plan(40, 30, policy=Policy((*Policy.from_dict(LOOSE).limits, *more), "mine"))
    assert set(found.left_out) == {limit.key for limit in more} and len(found.draws[0].outcomes) == 1
    assert "Not looked at: shadow_membership.auc." in found.to_text() and found.passed == 1


def test_without_rows_the_demo_speaks_and_says_so() -> None:
    found = privacy_assets.plan(60, 40, policy=LOOSE, draws=1)
    assert found.table == "the demo table" and "Figures for a table like the demo's." in found.to_text()


@pytest.mark.parametrize(
    ("sizes", "more", "told"),
    [
        ((0, 30), {}, "train must be a whole number of at least 1"),
        ((-1, 30), {}, "train must be a whole number of at least 1"),
        ((40, 30.0), {}, "holdout must be a whole number of at least 1"),
        ((40, True), {}, "holdout must be a whole number of at least 1"),
        (("40", 30), {}, "train must be a whole number of at least 1"),
        ((40, 30), {"seed": -1}, "seed must be a whole number of at least 0"),
        ((40, 30), {"progress": "loud"}, "progress must be a function"),
        ((40, 30), {"rows": None}, "give these too"),
    ],
)
def test_sizes_and_settings_that_cannot_be(sizes: tuple[Any, ...], more: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        privacy_assets.plan(*sizes, **{"rows": people(), **SMALL, **more})


def test_too_few_people_and_an_unknown_subject_are_input_errors() -> None:
    need = r"there are 120 people, and train and holdout and reference need 80 \+ 30 \+ 32 = 142. Fix: ask for fewer"
    with pytest.raises(InputError, match=need):
        plan(80, 30)
    with pytest.raises(InputError, match="persn"):
        plan(40, 30, subject="persn")


# --- the rule without a look at the table -----------------------------------------------------------------------------


def test_few_people_are_a_doubt_under_the_policies_they_are_too_few_for() -> None:
    default, small = Policy.default(), Policy.small()
    assert default.doubt(1_500) == small.doubt(800) == "" and Policy.from_dict(LOOSE).doubt(5) == ""
    assert "1,499 people in train are fewer than 1,500" in default.doubt(1_499)
    assert "policy small" in default.doubt(800) and "policy small" not in default.doubt(799) + small.doubt(799)
    built = {one: Policy.from_dict({"name": "own", "extends": one, "limits": []}) for one in ("default", "small")}
    assert (built["default"].fewest, built["small"].fewest) == (1_500, 800)


def test_evaluate_notes_the_doubt_and_does_not_fail(command: Command, tables: Path) -> None:
    roles = [f"--{role}={tables / f'{role}.parquet'}" for role in ("train", "holdout", "synthetic")]
    said = command("evaluate", *roles, "--no-embedder", "--quiet", status=1)
    assert "400 people in train are fewer than 1,500" in " ".join(said.out.split())
    quiet = command("evaluate", *roles, "--no-embedder", "--quiet", "--metrics=dcr")
    assert "people in train are fewer" not in " ".join(quiet.out.split())
