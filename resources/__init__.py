"""Resources of the environment that PRIVACY_ASSETS_ENV names: local (default), production or kubernetes."""

import os
from importlib import import_module

from privacy_assets.errors import ConfigError

ENVIRONMENT = os.environ.get("PRIVACY_ASSETS_ENV", "local")
# Steps inherit the environment of code server and run here, where whatever is launched can have a variable shown.
if ENVIRONMENT == "production" and os.environ.get("PRIVACY_ASSETS_SIGNING_KEY"):
    raise ConfigError(
        "PRIVACY_ASSETS_SIGNING_KEY: in production no signing key stands in the environment. Fix: unset it, and name a"
        " file of mode 600 in PRIVACY_ASSETS_SIGNING_KEY_FILE."
    )
_MODULE = import_module(f"resources.{ENVIRONMENT}")
RESOURCES = _MODULE.RESOURCES
EXECUTOR = _MODULE.EXECUTOR
