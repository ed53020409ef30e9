"""State of the host process that results depend on: set for the time of a computation, and restored
afterwards.

A program can set error states, a default dtype, options of pandas and more. With :func:`isolated`,
the same seed gives the same statistics in each of them.
"""

from __future__ import annotations

import decimal
import getpass
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

_PANDAS = (
    "compute.use_bottleneck",
    "compute.use_numba",
    "compute.use_numexpr",
    "future.distinguish_nan_and_na",
    "future.infer_string",
    "future.no_silent_downcasting",
    "io.parquet.engine",
    "mode.chained_assignment",
    "mode.copy_on_write",
    "mode.string_storage",
    "mode.use_inf_as_na",
)
_SKLEARN = {
    "array_api_dispatch": False, "assume_finite": False, "enable_metadata_routing": False,
    "transform_output": "default", "working_memory": 1024,
}  # fmt: skip
_OPENMP = ("faiss", "sklearn", "torch")  # libraries that use it
_FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC of Linux, see proc(5)


def user_name() -> str:
    """Return the name of the user of the process, or "" if the system does not know it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


@contextmanager
def isolated() -> Iterator[None]:
    """Compute with the default state of numpy, pandas, torch and other libraries within the
    ``with`` block.

    State of the process is set when the first of several threads enters, and restored when the last
    one leaves. Libraries that are not imported yet have their defaults. The state is: error states
    of numpy and scipy.special, the decimal context, "error" filters of warnings that name no
    module, options of pandas and scikit-learn, and torch's default dtype and device, grad and
    inference mode, autocast, anomaly detection, deterministic algorithms, precision of products and
    use of oneDNN.

    BLAS libraries that are already loaded use one thread, also in custom generators: this package
    runs its own threads, and idle threads of OpenBLAS spin.

    In a child that was forked after a library with OpenMP was imported, OpenMP uses one thread: its
    other threads do not exist in the child, which would wait for them.
    """
    with _shared_state(), ExitStack() as stack:
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        stack.enter_context(decimal.localcontext(_decimals()))
        if _forked:
            stack.enter_context(threadpool_limits(1, user_api="openmp"))
        for name, enter_state in _THREAD_STATE.items():
            library = sys.modules.get(name)
            if library is not None:
                enter_state(library, stack)
        yield


def _decimals() -> decimal.Context:
    traps = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
    return decimal.Context(28, decimal.ROUND_HALF_EVEN, -999_999, 999_999, 1, 0, [], traps)


def _sklearn(sklearn: Any, stack: ExitStack) -> None:
    stack.enter_context(sklearn.config_context(**_SKLEARN))


def _torch(torch: Any, stack: ExitStack) -> None:
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.set_grad_enabled(True))
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    # otherwise not entered, because it slows every operation down
    if torch.get_default_device().type != "cpu":
        stack.enter_context(torch.device("cpu"))
    if _forked:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)


_THREAD_STATE = {"sklearn": _sklearn, "torch": _torch}


_lock = threading.Lock()
_inside = 0  # computations within isolated()
_saved = ExitStack()


@contextmanager
def _shared_state() -> Iterator[None]:
    global _inside, _saved
    with _lock:
        if not _inside:
            with ExitStack() as stack:
                _set_shared_state(stack)
                _saved = stack.pop_all()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _saved.close()


def _set_shared_state(stack: ExitStack) -> None:
    stack.enter_context(threadpool_limits(1, user_api="blas"))
    _set_warnings(stack)
    special = sys.modules.get("scipy.special")
    if special is not None:
        kinds = dict.fromkeys(special.geterr(), "ignore")
        if "memory" in kinds:
            kinds["memory"] = "raise"
        stack.enter_context(special.errstate(**kinds))
    torch = sys.modules.get("torch")
    if torch is not None:
        _set_shared_torch(torch, stack)
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        _set_pandas(pandas, stack)


def _set_warnings(stack: ExitStack) -> None:
    """Turn "error" filters of warnings into "default" ones. A filter that names a module was set
    for that module.
    """
    filters = []
    for action, message, category, module, line in warnings.filters:
        if action == "error" and module is None:
            action = "default"
        filters.append((action, message, category, module, line))
    # otherwise not entered, because other threads may change them meanwhile
    if filters != warnings.filters:
        stack.enter_context(warnings.catch_warnings())
        warnings.filters = filters


def _set_shared_torch(torch: Any, stack: ExitStack) -> None:
    def swap(before: Any, default: Any, put: Callable[[Any], Any]) -> None:
        """Set a state to its default, and restore it at the end.

        Args:
            before: Present value.
            default: Its default.
            put: Sets it.
        """
        if before != default:
            stack.callback(put, before)
            put(default)

    swap(torch.get_default_dtype(), torch.float32, torch.set_default_dtype)
    swap(torch.get_float32_matmul_precision(), "highest", torch.set_float32_matmul_precision)
    swap(torch.get_deterministic_debug_mode(), 0, torch.set_deterministic_debug_mode)
    swap(torch.is_anomaly_enabled(), False, torch.autograd.set_detect_anomaly)
    mkldnn = torch.backends.mkldnn
    swap(mkldnn.enabled, True, lambda enabled: setattr(mkldnn, "enabled", enabled))


def _set_pandas(pandas: Any, stack: ExitStack) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # options that a version of pandas deprecates
        for option in _PANDAS:
            try:
                before = pandas.get_option(option)
            except pandas.errors.OptionError:  # another version of pandas has it
                continue
            pandas.reset_option(option)
            if pandas.get_option(option) != before:
                stack.callback(_put_pandas, pandas, option, before)


def _put_pandas(pandas: Any, option: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pandas.set_option(option, value)


def _was_forked() -> bool:
    """Return True if this process was forked, and not replaced by another program since. False if
    not on Linux.
    """
    try:
        stat = Path("/proc/self/stat").read_bytes()
        fields = stat.rpartition(b")")[2].split()  # after the name of the program
        flags = int(fields[6])
    except (OSError, ValueError, IndexError):
        return False
    return bool(flags & _FORKED_WITHOUT_EXEC)


def _with_openmp() -> bool:
    return any(name in sys.modules for name in _OPENMP)


def _after_fork() -> None:
    global _forked, _lock
    _forked = _forked or _with_openmp()
    _lock = threading.Lock()


# Whether this process was forked with threads of OpenMP, before or after this module was imported.
_forked = _with_openmp() and _was_forked()
os.register_at_fork(after_in_child=_after_fork)
