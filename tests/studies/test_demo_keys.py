"""The demo under keys of the split by which it was refused, and the script that tries a hundred of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import demo_keys
from privacy_assets.dagster.demo import demo_spec
from privacy_assets.pipeline.plan import TablePlan


@pytest.mark.slow
@pytest.mark.parametrize("key", [18, 23, 106, 139])
def test_the_demo_is_not_refused_by_chance(key: int) -> None:
    """Moved copies passed in three of eight plantings with key 18, moved copies of outliers with 18 and 23.

    With 139 and 106 they pass by all limits on closeness but `advantage_outliers`, which is looked at last.
    """
    settings = TablePlan.of(demo_spec())
    found = demo_keys.scored(settings, demo_keys.demo_inputs(settings, key, False), ["controls"], False)
    assert found["verdict"] == "pass" and found["broken"] == {}
    assert max(value for name, value in found["estimates"].items() if "smallest_leak" in name) <= 0.5


@pytest.mark.slow
def test_keys_are_tried_once_and_files_of_other_metrics_are_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "linkability.jsonl", tmp_path / "cumulative_disclosure.jsonl", tmp_path / "leak.jsonl"]
    for path, count in ((paths[0], 1), (paths[0], 2), (paths[1], 2)):
        demo_keys.main([f"--keys={count}", f"--metrics={path.stem}", f"--results={path}"])
        assert [line["key"] for line in demo_keys.lines(path)] == list(range(count))
    demo_keys.main(["--leak", "--keys=1", "--embedded=0", f"--results={paths[2]}"])
    (leaky,) = demo_keys.lines(paths[2])
    assert leaky["verdict"] == "fail" and list(leaky["seconds"]) == ["preparing", "dcr"]
    capsys.readouterr()
    demo_keys.main(["--report", *map(str, paths[:2])])
    told = capsys.readouterr().out
    assert told.startswith("2 keys, 0 with the encoder: {'pass': 2}") and "| linkability.excess | 0.0" in told
    demo_keys.main(["--report", str(paths[2])])
    assert "{'fail': 1}" in capsys.readouterr().out
