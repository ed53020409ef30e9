"""Redaction between private values and an orchestrator."""

from __future__ import annotations

import errno
import importlib.util
import logging
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from privacy_assets.errors import InputError, StepError
from privacy_assets.pipeline.redaction import (
    redact,
    redact_thread_errors,
    suppress_output,
    without_values,
)


def say() -> None:
    """Output a value in every way that Python code has."""
    print("SECRET-7f3a")
    print("SECRET-7f3a", file=sys.stderr)
    warnings.warn("SECRET-7f3a", stacklevel=1)
    logging.getLogger("of a library").critical("SECRET-7f3a")


def heard(capture: pytest.CaptureFixture[str], log: pytest.LogCaptureFixture) -> int:
    told = capture.readouterr()
    return (told.out + told.err + log.text).count("SECRET-7f3a")


def test_what_a_step_says_is_dropped_and_what_comes_after_it_is_not(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.warns(UserWarning) as warned:
        with pytest.raises(ValueError), suppress_output():
            say()
            raise ValueError
        assert heard(capsys, caplog) == 0 and not warned.list
        say()
    assert heard(capsys, caplog) == 3 and len(warned.list) == 1


def test_only_what_is_shown_of_an_error_comes_out() -> None:
    def fails() -> None:
        raise ValueError("SECRET-7f3a") from KeyError("SECRET-7f3a")

    def rejects() -> None:
        raise InputError("no such file") from KeyError("SECRET-7f3a")

    for function, kind in ((fails, StepError), (rejects, InputError)):
        with pytest.raises(Exception) as caught:
            redact(function, lambda error: without_values(error, (), ()), lambda: None)()
        assert type(caught.value) is kind and "SECRET" not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None


def test_what_a_thread_or_del_raises_is_shown_as_its_kind_and_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # restored at the end of the test
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    def fails(*_: object) -> None:
        raise ValueError("SECRET-7f3a")

    redact_thread_errors()
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    type("Row", (), {"__del__": fails})()
    shown = capsys.readouterr().err
    assert (
        "SECRET" not in shown
        and "In a thread: ValueError at" in shown
        and "Ignored: ValueError at" in shown
    )


def importing_a_cell() -> None:
    importlib.import_module("SECRET-7f3a")


def executing_a_cell() -> None:
    exec("raise ImportError('SECRET-7f3a')")


def importing_a_module(text: str) -> Callable[[], None]:
    """Return a function that imports a module with this text."""

    def imports() -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "module.py")
            file.write_text(text)
            spec = importlib.util.spec_from_file_location("module", file)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))

    return imports


def failing_import() -> None:
    import no_such_package  # noqa: F401


def raising(error: BaseException) -> Callable[[], None]:
    def fails() -> None:
        raise error

    return fails


@pytest.mark.parametrize(
    ("fails", "shown"),
    [
        (importing_a_cell, "Its message is hidden"),
        (executing_a_cell, "Its message is hidden"),
        (
            importing_a_module("import no_such_package"),
            "No module named 'no_such_package'. Fix: repair",
        ),
        (
            importing_a_module("def f():\n    raise ImportError('needs NumPy 2')\nf()"),
            ": needs NumPy 2. Fix: repair",
        ),
        (failing_import, "No module named 'no_such_package'. Fix: repair or install that package"),
        (raising(ImportError("SECRET-7f3a")), "Its message is hidden"),
        (
            importing_a_module(
                "raise ImportError('libtorch.so: failed to map segment from shared object')"
            ),
            ": failed to map segment from shared object. Fix: give the process more memory",
        ),
        (
            raising(RuntimeError("can't start new thread")),
            ": can't start new thread. Fix: raise the limit of threads",
        ),
        (
            raising(RuntimeError("CUDA out of memory. SECRET-7f3a")),
            ": out of memory. Fix: give the process more memory",
        ),
        (raising(MemoryError("SECRET-7f3a")), ": out of memory. Fix: "),
        (raising(OSError(errno.ENOSPC, "SECRET-7f3a", "/proc/self/SECRET-7f3a")), "look in /proc."),
        (
            raising(OSError(errno.EDQUOT, "SECRET-7f3a", "SECRET-7f3a")),
            "look in the output and home folders",
        ),
        (
            raising(OSError(errno.EACCES, "SECRET-7f3a", "/" + "SECRET-7f3a" * 999)),
            "home folders and TMPDIR",
        ),
        (
            raising(FileNotFoundError(errno.ENOENT, "SECRET-7f3a", "/SECRET-7f3a")),
            "Its message is hidden",
        ),
        (
            raising(
                FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['x']")
            ),
            "set TMPDIR",
        ),
        (raising(ValueError("SECRET-7f3a")), "Its message is hidden"),
    ],
)
def test_the_cause_is_shown_if_it_is_the_environment(fails: Callable[[], None], shown: str) -> None:
    with pytest.raises(Exception) as caught:
        fails()
    told = str(StepError.hiding(caught.value))
    assert shown in told and "SECRET" not in told
