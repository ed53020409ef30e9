"""Calls a user's function for a generator, in a process of its own: Parquet in, Parquet out.

Started alone, as ``python -P _function_worker.py FUNCTION TRAIN OUT ROWS SEED``; imports nothing of this package, so
that it starts quickly. What goes wrong it prints, which nobody is shown, and tells by its exit status.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any

NOT_FOUND, NOT_CALLED, NO_TABLE, NOT_WRITTEN = 64, 65, 66, 67


def main(task: str, train: str, out: str, rows: str, seed: str) -> int:
    """Exit status."""
    given = json.loads(task)
    sys.path[:] = given["path"]
    import pandas as pd
    import pyarrow.parquet as pq

    try:
        function = _found(given["function"], given["file"])
    except Exception:  # noqa: BLE001 (the user's module is run)
        traceback.print_exc()
        return NOT_FOUND
    if not takes_three(function):
        return NOT_CALLED
    table = function(pq.ParquetFile(train).read().to_pandas(), int(rows), int(seed))
    if not isinstance(table, pd.DataFrame):
        return NO_TABLE
    try:
        pq.write_table(_writable(table), out)
    except Exception:  # noqa: BLE001 (cells can be objects of the user's)
        traceback.print_exc()
        return NOT_WRITTEN
    return 0


def takes_three(function: object) -> bool:
    """Whether ``function`` can be called with train, rows and seed, as far as it tells."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, 1, 0)
    except TypeError:
        return False
    except ValueError:  # a built-in that does not tell its arguments
        pass
    return True


def _found(reference: str, file: str | None) -> Any:
    """The object ``"module:function"``; a module that is not on the path, such as a script, is run from ``file``."""
    name, _, path = reference.partition(":")
    spec = None if name == "__main__" else find_spec(name)
    if file is None or (spec is not None and (spec.origin == file or "." in name)):
        found: Any = import_module(name)
    else:
        name = "__mp_main__" if name == "__main__" else name  # as in multiprocessing: its main block is not run
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(name)
        sys.modules[name] = found = module_from_spec(spec)
        spec.loader.exec_module(found)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _writable(table: Any) -> Any:
    """An Arrow table. A column of values of several kinds becomes text: the step says which of them do not fit."""
    import pandas as pd
    import pyarrow as pa

    columns = []
    for position in range(table.shape[1]):  # by position: two may have one name, which pyarrow refuses below
        column = table.iloc[:, position]
        try:
            pa.array(column, from_pandas=True)
        except pa.ArrowException:
            column = column.map(str, na_action="ignore")
        columns.append(column.reset_index(drop=True))
    whole = pd.concat(columns, axis=1)
    whole.attrs = {}
    return pa.Table.from_pandas(whole, preserve_index=False)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
