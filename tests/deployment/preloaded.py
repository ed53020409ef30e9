"""A module that creates a file when it is imported; an executor preloads it."""

import os
from pathlib import Path

Path(os.environ["DEPLOYMENT_ROOT"], "preloaded").touch()
