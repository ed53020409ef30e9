"""Production: storage, signing key and split key from the environment, one process per step,
forked with the libraries loaded.

The signing key is the file named by PRIVACY_ASSETS_SIGNING_KEY_FILE (default: ``signing.key`` in
the private folder). Folder and keys must exist before the first run; they are not created.
"""

import os

import dagster as dg

from privacy_assets import PrivacyIOManager, ReleaseResource, frozen_config, resources

RESOURCES = resources(
    privacy_io=PrivacyIOManager(
        base=dg.EnvVar("PRIVACY_ASSETS_STORAGE"),
        releases=dg.EnvVar("PRIVACY_ASSETS_RELEASES"),
        trusted_keys=dg.EnvVar("PRIVACY_ASSETS_TRUSTED_KEYS"),
        report_url=os.environ.get("PRIVACY_ASSETS_REPORT_URL"),
    ),
    releases=ReleaseResource(
        releases=dg.EnvVar("PRIVACY_ASSETS_RELEASES"),
        private=dg.EnvVar("PRIVACY_ASSETS_PRIVATE"),
        signing_key=os.environ.get("PRIVACY_ASSETS_SIGNING_KEY_FILE"),
        trusted_keys=dg.EnvVar("PRIVACY_ASSETS_TRUSTED_KEYS"),
    ),
)
EXECUTOR = frozen_config(dg.multiprocess_executor, {"max_concurrent": 2})
