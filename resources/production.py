"""Production: places, keys and secret from the environment, a process per step, forked from one with the libraries.

The signing key is the file ``signing.key`` in the private folder, or PEM text in PRIVACY_ASSETS_SIGNING_KEY. Folder and
keys must be there before the first run: nothing is made here.
"""

import dagster as dg

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource
from privacy_assets.plugin.resources import fixed_executor

PRELOADED = ["privacy_assets.plugin.factory", "scipy.stats", "great_expectations", "sklearn.tree", "torch"]
RESOURCES = {
    "privacy_io": PrivacyIOManager(
        base=dg.EnvVar("PRIVACY_ASSETS_STORAGE"),
        releases=dg.EnvVar("PRIVACY_ASSETS_RELEASES"),
        trusted_keys=dg.EnvVar("PRIVACY_ASSETS_TRUSTED_KEYS"),
    ),
    "releases": ReleaseResource(
        root=dg.EnvVar("PRIVACY_ASSETS_RELEASES"),
        private=dg.EnvVar("PRIVACY_ASSETS_PRIVATE"),
        trusted_keys=dg.EnvVar("PRIVACY_ASSETS_TRUSTED_KEYS"),
    ),
    "gpu": GpuResource(),
}
STEPS = {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": PRELOADED}}}
EXECUTOR = fixed_executor(dg.multiprocess_executor, STEPS)
