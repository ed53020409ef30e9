"""Compilation of hot loops. Imports numba, so import it lazily."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from privacy_assets.errors import ConfigError

try:
    import numba
except ValueError:
    if "NUMBA_NUM_THREADS" not in os.environ:
        raise
    raise ConfigError(
        "NUMBA_NUM_THREADS must be an integer of at least 1. Fix: change or unset it."
    ) from None
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator

from privacy_assets.infra.files import check_code

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_LOGGER = logging.getLogger(__name__)


class _UserFolder(UserProvidedCacheLocator):
    """The folder NUMBA_CACHE_DIR, also if it cannot be written but holds the function, as in a
    container image.
    """

    def ensure_cache_path(self: Any) -> None:
        """Raise OSError if the folder can neither be written nor holds the function."""
        try:
            super().ensure_cache_path()
        except OSError:
            stem = Path(self._py_file).stem
            for name in os.listdir(self.get_cache_path()):
                if name.startswith(f"{stem}.") and f"-{self._lineno}." in name:
                    return
            raise


class _Locations(CompileResultCacheImpl):
    _locator_classes = [_UserFolder, *CompileResultCacheImpl._locator_classes[1:]]


class _Cache(FunctionCache):
    """The cache of a function on disk. If it is damaged, full or not accessible, the function is
    compiled.
    """

    _impl_class = _Locations

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored function of a signature, or None.

        Args:
            sig: Signature.
            target_context: Context of the compiler.
        """
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # noqa: BLE001 (a damaged file can raise anything)
            self._report(error)
        with suppress(OSError):
            self.flush()  # an empty index replaces a damaged one
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compiled function of a signature, if possible.

        Args:
            sig: Signature.
            data: The compiled function.
        """
        if not os.access(self.cache_path, os.W_OK):
            return
        try:
            super().save_overload(sig, data)
        except Exception as error:  # noqa: BLE001 (see above)
            self._report(error)

    def _report(self, error: Exception) -> None:
        fix = "remove the folder, free space, or set NUMBA_CACHE_DIR to another one"
        text = (
            "the compiled functions in %s cannot be used, so they are compiled again: %s. Fix: %s."
        )
        _LOGGER.warning(text, self.cache_path, type(error).__name__, fix)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function, cached on disk.

    The cache is in NUMBA_CACHE_DIR, else next to the file, else in the user's cache folder. If none
    can be used, or if other users can write to it, the function is compiled in each process.
    NUMBA_DISABLE_JIT does not apply, because the functions would take hours.

    The first call compiles while the user waits. Kernels should therefore take scratch arrays as
    arguments, loop over cells instead of using whole-array expressions, and avoid composite numpy
    functions (``sort``, ``unique``, ``where``), which are compiled for every type of their
    arguments. Division by 0 does not raise.

    Args:
        function: Function in the subset of Python that numba compiles.
    """
    with _compiler():
        dispatcher = numba.njit(**_OPTIONS)(function)
    with suppress(RuntimeError, OSError):  # there is no folder for it
        cache = _Cache(dispatcher.py_func)  # as numba.njit(cache=True) does
        owner = os.stat(dispatcher.py_func.__code__.co_filename).st_uid
        if _is_trusted(Path(cache.cache_path), owner):
            dispatcher._cache = cache
    return dispatcher


@lru_cache
def _is_trusted(folder: Path, owner: int) -> bool:
    """Return True if no other user than root can change the functions in a folder, and so run code
    as this user.

    If one can, this is logged once.

    Args:
        folder: Folder of compiled functions.
        owner: Id of the user to whom their source belongs, who may change them as well.
    """
    try:
        check_code(folder, owner)
        for file in sorted(folder.iterdir()):
            check_code(file, owner)
    except ConfigError as error:
        _LOGGER.warning(
            "functions are compiled in memory, because the cache cannot be trusted: %s", error
        )
        return False
    return True


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Inline a helper into each compiled function of the same file that calls it.

    This avoids passing arrays, which is slow. It does not work across files: the cache of a
    function is renewed only if its own file changes.

    Args:
        function: Helper.
    """
    with _compiler():
        return numba.njit(inline="always")(function)


@contextmanager
def _compiler() -> Iterator[None]:
    """Decorate with the compiler, also if NUMBA_DISABLE_JIT is set."""
    config: Any = numba.config
    before = config.DISABLE_JIT
    config.DISABLE_JIT = 0
    try:
        yield
    finally:
        config.DISABLE_JIT = before
