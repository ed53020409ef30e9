"""Libraries of all steps, imported by the server from which Dagster's executor forks processes
(``preload_modules``).

Importing the libraries takes longer than most steps. Import this module in that server only.
"""

import gc
from contextlib import suppress
from importlib import import_module

import privacy_assets.dagster.definitions  # noqa: F401 (before torch: it configures the thread pools)

_LIBRARIES = (
    "dagster._core.storage.sqlite_storage",
    "dagster_postgres",
    "faiss",
    "great_expectations",
    "privacy_assets.infra.compiling",
    "securesystemslib.signer",
    "scipy.stats",
    "sklearn.tree",
    "torch",
    "upath",
)

for _name in _LIBRARIES:
    # an absent or broken library, which the steps may not need
    with suppress(ImportError, OSError):
        import_module(_name)
gc.collect()
gc.freeze()  # otherwise the first collection in each step would copy the memory of the server
