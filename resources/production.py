"""Production: folders, keys and secret from the environment, a process per step, forked from one with the libraries.

The signing key is PEM text in PRIVACY_ASSETS_SIGNING_KEY, or the file ``signing.key`` in the private folder; no key is
ever made here.
"""

import dagster as dg

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource

PRELOADED = ["privacy_assets.plugin.factory", "scipy.stats", "great_expectations", "sklearn.tree", "torch"]
RESOURCES = {
    "privacy_io": PrivacyIOManager(base=dg.EnvVar("PRIVACY_ASSETS_STORAGE")),
    "releases": ReleaseResource(
        root=dg.EnvVar("PRIVACY_ASSETS_RELEASES"),
        private=dg.EnvVar("PRIVACY_ASSETS_PRIVATE"),
        trusted_keys=dg.EnvVar("PRIVACY_ASSETS_TRUSTED_KEYS"),
    ),
    "gpu": GpuResource(),
}
EXECUTOR = dg.multiprocess_executor.configured(
    {
        "max_concurrent": 2,
        "start_method": {"forkserver": {"preload_modules": PRELOADED}},
    }
)
