"""Call a user's function in a separate process, with Parquet input and output.

Started as ``python -P _function_worker.py TASK TRAIN OUT ROWS SEED``. The script does not import
this package, so that it starts quickly. Standard output and standard error go to the private log.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any


def main(task: str, train: str, out: str, rows: str, seed: str) -> None:
    """Call the function and write its result.

    Args:
        task: JSON object with "function" (``"module:function"``), "file" (see :func:`_imported`)
            and "path" (value of ``sys.path``).
        train: Path of the training rows.
        out: Path of the result.
        rows: Number of rows.
        seed: Seed.

    The traceback of an error goes to the private log.
    """
    options = json.loads(task)
    sys.path[:] = options["path"]
    import pandas as pd
    import pyarrow.parquet as pq

    function = _imported(options["function"], options["file"])
    if not takes_three(function):
        raise TypeError("the function must take three arguments: train, rows, seed")
    train_frame = pq.ParquetFile(train).read().to_pandas()
    table = function(train_frame, int(rows), int(seed))
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"the function returned {type(table).__name__}, not a DataFrame")
    pq.write_table(_writable(table), out)


def takes_three(function: object) -> bool:
    """Return True if a function accepts three positional arguments, or has no readable signature.

    Args:
        function: Any object; False if it cannot be called.
    """
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, 1, 0)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        pass
    return True


def _imported(reference: str, file: str | None) -> Any:
    """Return the object ``"module:function"``. Modules that are not on the path, such as scripts,
    are run from ``file``.
    """
    name, _, path = reference.partition(":")
    target = _module(name, file)
    for attribute in path.split("."):
        target = getattr(target, attribute)
    return target


def _module(name: str, file: str | None) -> Any:
    spec = None
    if name != "__main__":
        spec = find_spec(name)
    if file is None or (spec is not None and (spec.origin == file or "." in name)):
        return import_module(name)
    if name == "__main__":
        name = "__mp_main__"  # as in multiprocessing: skips its main block
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _writable(table: Any) -> Any:
    """Convert to an Arrow table. Columns of mixed types become strings; the calling step rejects
    invalid ones.
    """
    import pandas as pd
    import pyarrow as pa

    columns = []
    # by position: names may be duplicates, which pyarrow rejects below
    for position in range(table.shape[1]):
        column = table.iloc[:, position]
        try:
            pa.array(column, from_pandas=True)
        except pa.ArrowException:
            column = column.map(str, na_action="ignore")
        columns.append(column.reset_index(drop=True))
    frame = pd.concat(columns, axis=1)
    frame.attrs = {}
    return pa.Table.from_pandas(frame, preserve_index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
