"""Resources of the environment named by PRIVACY_ASSETS_ENV: local (default), production or
kubernetes.
"""

import os
from importlib import import_module

from privacy_assets.errors import ConfigError

ENVIRONMENT = os.environ.get("PRIVACY_ASSETS_ENV", "local")
# Steps inherit the environment of the code server. Anyone who can launch a run could print a
# variable.
if ENVIRONMENT == "production" and os.environ.get("PRIVACY_ASSETS_SIGNING_KEY"):
    raise ConfigError(
        "PRIVACY_ASSETS_SIGNING_KEY must not be set in production. Fix: unset it, and name a"
        " file of mode 600 in"
        " PRIVACY_ASSETS_SIGNING_KEY_FILE."
    )
_MODULE = import_module(f"resources.{ENVIRONMENT}")
RESOURCES = _MODULE.RESOURCES
EXECUTOR = _MODULE.EXECUTOR
