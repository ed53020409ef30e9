"""The ground-truth battery: its entries, some releases under the default policy, and the rules of
the peers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import battery, battery_rules
from benchmarks.battery_makers import copies, fresh, people_copied
from benchmarks.battery_releases import BATTERY, PASS, REFUSED, UNKNOWN, Entry
from benchmarks.battery_tables import LEVELS, Sources, draw
from benchmarks.releases import SUBJECT

TINY = [
    Entry("normal", "tiny, fresh rows", PASS, 0, fresh, (3_000, 1_500, 2_000)),
    Entry("normal", "tiny, 20% copies", REFUSED, 0.2, copies(0.2), (1_000, 500, 800)),
    Entry("normal", "tiny, holdout of 40", UNKNOWN, 0, fresh, (500, 40, 400)),
    Entry(
        "normal", "tiny, no rows", UNKNOWN, 0, lambda world: world.fresh.head(0), (500, 200, 400)
    ),
]


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(None)


def line(tool: str, **found: object) -> dict[str, object]:
    return {"release": TINY[0].name, "tool": tool, **found}


def test_there_are_sixty_releases_of_every_kind_with_names_and_verdicts_of_their_own() -> None:
    assert len(BATTERY) >= 60
    assert len({entry.name for entry in BATTERY}) == len(BATTERY)
    expected = [entry.expected for entry in BATTERY]
    assert set(expected) == {PASS, REFUSED, UNKNOWN}
    assert min(expected.count(PASS), expected.count(REFUSED)) >= 25
    assert all(entry.leaked == 0 for entry in BATTERY if entry.expected == PASS)
    # a share, or NaN
    assert all(entry.leaked != 0 for entry in BATTERY if entry.expected == REFUSED)


@pytest.mark.weekly
@pytest.mark.parametrize("entry", TINY, ids=lambda entry: entry.what)
def test_the_default_policy_says_what_the_truth_asks_for(entry: Entry, sources: Sources) -> None:
    found = battery.ours(entry, entry.build(sources))
    assert battery_rules.right(entry, found["verdict"]), found["broken"]


def test_a_release_is_the_same_each_time_and_leaks_what_it_says(sources: Sources) -> None:
    given, again = (TINY[1].build(sources) for _ in range(2))
    pd.testing.assert_frame_equal(given.synthetic, again.synthetic)
    columns = list(given.synthetic)
    shared = {
        role: len(given.synthetic.merge(getattr(given, role), on=columns))
        for role in ("train", "holdout", "reference")
    }
    assert shared == {"train": 160, "holdout": 0, "reference": 0}
    fresh_only = TINY[0].build(sources)
    assert not len(fresh_only.synthetic.merge(fresh_only.train, on=columns))


def test_people_keep_to_their_side_and_are_copied_with_all_their_rows() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({SUBJECT: np.repeat(np.arange(300), 3), "x": rng.normal(size=900)})
    world, others = draw(frame, (100, 80, 60), 40, 1)
    sides = [set(part[SUBJECT]) for part in (world.train, world.holdout, others)]
    assert [len(side) for side in sides] == [100, 80, 40]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    assert len(world.fresh) == 180 and not set(world.fresh["x"]) & set(world.train["x"])
    for share, times, expected in ((0, 5, 15), (0.1, 2, 60)):
        made = people_copied(share, times)(world)
        assert len(made) == 180 and made["x"].isin(world.train["x"]).sum() == expected
    with pytest.raises(ValueError, match="380 people are requested, the table has 300"):
        draw(frame, (200, 80, 60), 40, 1)


def test_tables_of_a_known_law_have_what_they_are_there_for(sources: Sources) -> None:
    assert set(sources["levels"]["a"]) == set(LEVELS)
    assert len(sources["cells"].drop_duplicates()) == 27
    assert {"bool", "datetime64"} <= {
        str(kind).partition("[")[0] for kind in sources["stays"].dtypes
    }
    assert sources["normal"].corr().to_numpy()[0, 1] == pytest.approx(0.5, abs=0.02)
    assert not sources.has("adult, one-hot") and sources.has("patients")


def test_rules_of_the_peers() -> None:
    clear, unclear = [0.1, 0.05, 0.15, 0.04, 0.16], [0.1, 0.01, 0.2, 0.0, 0.21]
    assert battery_rules.anonymeter_verdict({"a": unclear, "b": clear}) == battery_rules.LEAK
    assert (
        battery_rules.anonymeter_verdict({"a": unclear, "b": "ValueError"}) == battery_rules.NOTHING
    )
    assert battery_rules.anonymeter_verdict({"b": "ValueError"}) == battery_rules.NO_VERDICT
    for nearer, said in ((0.52, battery_rules.NOTHING), (0.53, battery_rules.LEAK)):
        assert battery_rules.sdmetrics_verdict({"nearer to train": nearer, "rows": 1000}) == said
    usual = {
        "DCR share": 0.52,
        "identical to train": 0.001,
        "identical to holdout": 0.001,
        "rows": 2000,
        "looks": 7,
    }
    assert battery_rules.mostlyai_verdict(usual) == battery_rules.NOTHING
    assert battery_rules.mostlyai_verdict(usual | {"DCR share": 0.54}) == battery_rules.LEAK
    assert (
        battery_rules.mostlyai_verdict(usual | {"identical to train": 0.01}) == battery_rules.LEAK
    )


@pytest.mark.parametrize(
    ("expected", "right"),
    [(PASS, {"pass", "no leak"}), (REFUSED, {"fail", "undecided", "leak"}),
     (UNKNOWN, {"fail", "undecided", "leak", "no verdict"})],
)  # fmt: skip
def test_what_is_right(expected: str, right: set[str]) -> None:
    entry = Entry("normal", "x", expected, 0, fresh)
    said = ("pass", "fail", "undecided", "leak", "no leak", "no verdict")
    assert {verdict for verdict in said if battery_rules.right(entry, verdict)} == right


def test_the_report_counts_and_explains_what_was_wrong() -> None:
    found = [
        line(
            "ours",
            verdict="fail",
            broken={"dcr.member_excess": "fail: 0.9 is above the limit 0.7"},
            seconds=2.0,
        ),
        line("sdmetrics", estimates={"nearer to train": 0.5, "rows": 100}, seconds=1.0),
        line("mostlyai", error="over 1 s"),
    ]
    text = battery.report(found, TINY)
    assert f"| {TINY[0].name} |  | pass | **fail** | no leak | **no verdict** |" in text
    assert "1 of 1 (1 harmless refused, 0 let through, 0 no verdict)" in text
    assert (
        "Wrong:\n\n- normal: tiny, fresh rows: `dcr.member_excess` fail: 0.9 is above the limit 0.7"
        in text
    )
    assert "not significant" not in text
    assert "tiny, 20% copies" not in text  # no peer was run on it
    underpowered = {
        "release": TINY[1].name,
        "tool": "ours",
        "verdict": "undecided",
        "broken": {"x": "underpowered"},
    }
    assert "not significant:\n\n- normal: tiny, 20% copies: `x` underpowered" in battery.report(
        [*found, underpowered], TINY
    )


@pytest.mark.slow
def test_a_peer_that_takes_too_long_or_ends_has_no_verdict(
    tmp_path: Path, sources: Sources
) -> None:
    given = TINY[3].build(sources)
    for body, limit, error in (
        ("import time; time.sleep(600)", 1, "over 1 s"),
        ("pass", 600, "it ended"),
    ):
        program = tmp_path / "peer"
        program.write_text(f"#!{sys.executable}\n{body}\n")
        program.chmod(0o755)
        peer = battery.Peer("sdmetrics", program, limit)
        assert peer.ask(given) == {"error": error}
        assert peer.process is None
