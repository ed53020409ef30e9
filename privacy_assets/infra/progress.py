"""Progress of long work: bars on a terminal or in a notebook, lines in a log."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

# receives messages without cell values; Lines and Bars also receive counts
Progress = Callable[[str], Any]
EVERY = 5.0  # seconds between two lines of a log


def silent(message: str) -> None:
    """Ignore a progress message.

    Args:
        message: Message.
    """


def advance(progress: Progress, work: str, done: float | None, total: float | None = None) -> None:
    """Report that units of work are done. Plain functions do not receive this event.

    Args:
        progress: Receiver of messages.
        work: Name of the work, the same string each time.
        done: Number of units done. The work ends when ``done >= total``, or with None.
        total: Number of all units. None: unknown.
    """
    if isinstance(progress, Lines | Bars):
        progress.advance(work, done, total)


@dataclass(slots=True)
class _Pace:
    """Start of counted work: the time, and the units done by then."""

    start: float
    first: float

    def progress_text(self, done: float, total: float | None) -> str:
        """Describe the units done, the rate, and the remaining time.

        Args:
            done: Number of units done.
            total: Number of all units. None: unknown.
        """
        seconds = perf_counter() - self.start
        rate = (done - self.first) / seconds if seconds > 0 else 0.0
        text = f"{done:,g}" if total is None else f"{done:,g} of {total:,g}"
        if rate >= 1:
            text += f", {rate:.2g} a second"
        elif rate > 0:
            text += f", {1 / rate:.2g} s each"
        if total and rate > 0:
            remaining = (total - done) / rate
            if remaining >= 0.5:
                text += f", about {duration(remaining)} left"
        return text


def duration(seconds: float) -> str:
    """Format seconds: ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _over(done: float | None, total: float | None) -> bool:
    """Return True if the work has ended."""
    return done is None or (total is not None and done >= total)


class Lines:
    """Progress as log lines: all messages, and for counted work at most one line per ``EVERY``
    seconds.
    """

    def __init__(self, write: Callable[[str], Any]) -> None:
        self.write = write
        self._last = perf_counter()
        self._paces: dict[str, _Pace] = {}

    def __call__(self, message: str) -> None:
        """Write ``message``."""
        self.write(message)

    def advance(self, work: str, done: float | None, total: float | None = None) -> None:
        """Handle :func:`advance`."""
        time = perf_counter()
        if done is not None:
            pace = self._paces.setdefault(work, _Pace(time, done))
            if time - self._last >= EVERY:
                self._last = time
                self.write(f"{work}: {pace.progress_text(done, total)}")
        if _over(done, total):
            self._paces.pop(work, None)


class Bars:
    """Progress as messages and ``rich`` bars on a terminal or in a notebook; a bar is removed when
    its work is done.

    While no bar is shown, no thread runs and the terminal is free. Leaving the ``with`` block
    removes the bars of failed work.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        progress_text = TextColumn("{task.fields[progress_text]}", markup=False)
        # Standard output is not redirected by rich.
        self._display = RichProgress(
            TextColumn("  {task.description}", markup=False), BarColumn(30), progress_text,
            console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._bars: dict[str, tuple[TaskID, _Pace]] = {}

    def __enter__(self) -> Bars:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove all bars, and show the cursor, also if an interrupt ended the start of a bar."""
        self._bars.clear()
        with suppress(IndexError):  # raised by rich if it was interrupted while starting
            self._display.stop()
        self._display.console.show_cursor(True)

    def __call__(self, message: str) -> None:
        """Print ``message`` above the bars."""
        self._display.console.print(f"  {message}", markup=False, highlight=False, soft_wrap=True)

    def advance(self, work: str, done: float | None, total: float | None = None) -> None:
        """Handle :func:`advance`."""
        if done is not None:
            if work not in self._bars:
                task = self._display.add_task(work, total=total, progress_text="")
                self._bars[work] = (task, _Pace(perf_counter(), done))
                self._display.start()
            task, pace = self._bars[work]
            self._display.update(
                task, completed=done, total=total, progress_text=pace.progress_text(done, total)
            )
        if _over(done, total):
            self._end(work)

    def _end(self, work: str) -> None:
        if work in self._bars:
            self._display.remove_task(self._bars.pop(work)[0])
        if not self._bars:
            self._display.stop()


@contextmanager
def watched(
    stream: TextIO | None = None, *, otherwise: Progress | None = None
) -> Iterator[Progress]:
    """Yield bars on a terminal or in a notebook with ipywidgets, else another receiver.

    Args:
        stream: Stream of the bars. None: standard error.
        otherwise: The other receiver. None: lines on ``stream``.
    """
    out = stream or sys.stderr
    if out is None:  # a program without a console
        yield otherwise or silent
        return
    is_notebook = "ipykernel" in sys.modules and find_spec("ipywidgets") is not None
    if not (is_notebook or out.isatty()):
        yield otherwise or Lines(lambda message: (out.write(f"  {message}\n"), out.flush()))
        return
    random_state = random.getstate()
    from rich.console import Console  # draws a random number

    random.setstate(random_state)
    with Bars(Console(file=None if is_notebook else out)) as bars:
        yield bars


def progress_context(progress: Progress | None) -> AbstractContextManager[Progress]:
    """Return a context with ``progress``. None: bars on a terminal or in a notebook."""
    if progress is None:
        return watched(otherwise=silent)
    return nullcontext(progress)
