"""Progress of long work: few log lines, and bars that leave the terminal unchanged."""

from __future__ import annotations

import io
import random
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from privacy_assets import evaluate
from privacy_assets.infra import progress
from privacy_assets.infra.progress import Bars, Lines, Progress, advance, duration, silent, watched


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    return now


def test_a_log_has_every_word_and_a_line_of_counted_work_in_five_seconds(
    clock: list[float],
) -> None:
    said: list[str] = []
    lines = Lines(said.append)
    lines("training")
    for epoch in range(1, 101):
        clock[0] += 0.25
        advance(lines, "epochs", epoch, 100)
    advance(lines, "epochs", None)
    lines("done")
    assert said[0] == "training" and said[-1] == "done" and len(said) == 2 + 5
    assert said[1] == "epochs: 20 of 100, 4 a second, about 20 s left"
    assert said[5] == "epochs: 100 of 100, 4 a second"


def test_work_without_an_end_and_slow_work(clock: list[float]) -> None:
    said: list[str] = []
    lines = Lines(said.append)
    for place in range(3):
        advance(lines, "tables", place, 1000)
        clock[0] += 60.0
    assert said == [
        "tables: 1 of 1,000, 60 s each, about 16.6 h left",
        "tables: 2 of 1,000, 60 s each, about 16.6 h left",
    ]
    said.clear()
    for place in (1, 2):
        clock[0] += 5
        advance(lines, "epochs", place)
    assert said == ["epochs: 1", "epochs: 2, 5 s each"]


def test_work_of_the_same_name_starts_anew_when_it_has_ended(clock: list[float]) -> None:
    said: list[str] = []
    lines = Lines(said.append)
    for start in (0, 1):
        for done in (1, 2):
            clock[0] += 10 if start else 100
            advance(lines, "columns", done, 2)
    assert said[-1] == "columns: 2 of 2, 10 s each"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (99, "99 s"), (150, "2 min"), (7000, "1.9 h")]
)
def test_durations_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_plain_function_hears_words_only() -> None:
    said: list[str] = []
    advance(said.append, "epochs", 1, 2)
    advance(silent, "epochs", 1, 2)
    said.append("words")
    assert said == ["words"]


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_has_a_bar_with_what_is_done_and_it_goes_when_the_work_is_done() -> None:
    console = terminal()
    with Bars(console) as bars:
        bars("measuring [dcr]")
        advance(bars, "epochs", 1, 4)
        advance(bars, "columns", 3, 9)
        bars._display.refresh()
        shown = text_of(console)
        assert "  measuring [dcr]\n" in shown and "epochs" in shown and "1 of 4" in shown
        assert "3 of 9" in shown
        advance(bars, "columns", 9, 9)
        assert bars._display.live.is_started
        advance(bars, "epochs", None)
        assert not bars._display.live.is_started and text_of(console).endswith("\x1b[2K\x1b[?25h\r")
        # cursor visible again
        assert text_of(console).count("\x1b[?25l") == text_of(console).count("\x1b[?25h") == 1


def test_a_bar_of_work_that_failed_goes_too() -> None:
    console = terminal()
    with pytest.raises(ZeroDivisionError), Bars(console) as bars:
        advance(bars, "epochs", 1, 4)
        1 / 0  # noqa: B018
    assert text_of(console).endswith("\x1b[?25h")


def test_an_interrupt_while_a_bar_starts_leaves_the_cursor_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = terminal()

    def interrupted(*_: object) -> bool:
        console.show_cursor(False)
        raise KeyboardInterrupt

    monkeypatch.setattr(console, "set_live", interrupted)
    with pytest.raises(KeyboardInterrupt), Bars(console) as bars:
        advance(bars, "epochs", 1, 4)
    assert text_of(console).endswith("\x1b[?25h")


def test_bars_where_somebody_watches_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    with watched(log) as told:
        told("measuring dcr")
        assert isinstance(told, Lines) and log.getvalue() == "  measuring dcr\n"
    with watched(log, otherwise=silent) as told:
        assert told is silent
    monkeypatch.setattr(log, "isatty", lambda: True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    before = random.getstate()
    with watched(log) as told:
        assert isinstance(told, Bars)
    assert random.getstate() == before
    monkeypatch.setattr(log, "isatty", lambda: False)
    monkeypatch.setitem(sys.modules, "ipykernel", object())  # type: ignore[arg-type]
    for widgets, kind in ((None, Lines), ("there", Bars)):
        monkeypatch.setattr(progress, "find_spec", lambda name, found=widgets: found)
        with watched(log) as told:
            assert isinstance(told, kind)


def test_evaluate_counts_the_metrics_and_tells_a_plain_function_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    frame = pd.DataFrame({"age": np.arange(90) % 60, "plan": list("abc") * 30})
    parts = [
        frame.assign(plan=np.random.default_rng(start).permutation(frame["plan"]))[start::3]
        for start in range(3)
    ]
    said: list[str] = []
    given: tuple[Progress, ...] = (Lines(said.append), said.append)
    for told in given:
        evaluate(*parts, metrics=["dcr", "linkability"], embedder=False, progress=told)
    counted = [line for line in said if line.startswith("metrics: ")]
    assert [line.split(",")[0] for line in counted] == [
        "metrics: 0 of 2",
        "metrics: 1 of 2",
        "metrics: 2 of 2",
    ]
    assert said.index("measuring linkability") < said.index(counted[1])  # before the metric ends
    assert said.index(counted[1]) < next(
        at for at, line in enumerate(said) if line.startswith("linkability: pairs")
    )
    assert said.count("measuring dcr") == 2


@pytest.mark.slow
def test_nothing_is_loaded_for_bars_where_nobody_watches() -> None:
    code = (
        "import sys; from privacy_assets.cli.main import main; main(['policy']); assert 'rich'"
        " not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
