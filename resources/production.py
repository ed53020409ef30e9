"""Production: places, keys and secret from the environment, a process per step, forked from one with the libraries.

The signing key is the file that PRIVACY_ASSETS_SIGNING_KEY_FILE names, ``signing.key`` in the private folder when it
names none. Folder and keys must be there before the first run: nothing is made here.
"""

import os

import dagster as dg

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource, fixed

PRELOADED = ["privacy_assets.dagster.factory", "scipy.stats", "great_expectations", "sklearn.tree", "torch"]
STORAGE = PrivacyIOManager(
    base=dg.EnvVar("PRIVACY_ASSETS_STORAGE"),
    releases=dg.EnvVar("PRIVACY_ASSETS_RELEASES"),
    trusted_keys=dg.EnvVar("PRIVACY_ASSETS_TRUSTED_KEYS"),
    report_url=os.environ.get("PRIVACY_ASSETS_REPORT_URL"),
)
RESOURCES = {
    "io_manager": STORAGE,  # of assets that name none: Dagster's own one unpickles from where a run says
    "privacy_io": STORAGE,
    "releases": ReleaseResource(
        root=dg.EnvVar("PRIVACY_ASSETS_RELEASES"),
        private=dg.EnvVar("PRIVACY_ASSETS_PRIVATE"),
        signing_key=os.environ.get("PRIVACY_ASSETS_SIGNING_KEY_FILE"),
        trusted_keys=dg.EnvVar("PRIVACY_ASSETS_TRUSTED_KEYS"),
    ),
    "gpu": GpuResource(),
}
STEPS = {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": PRELOADED}}}
EXECUTOR = fixed(dg.multiprocess_executor, STEPS)
