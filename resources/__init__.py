"""Resources of the environment that PRIVACY_ASSETS_ENV names: local (default), production or kubernetes."""

import os
from importlib import import_module

ENVIRONMENT = os.environ.get("PRIVACY_ASSETS_ENV", "local")
_MODULE = import_module(f"resources.{ENVIRONMENT}")
RESOURCES = _MODULE.RESOURCES
EXECUTOR = _MODULE.EXECUTOR
