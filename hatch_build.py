"""Readme of the distribution, in which relative links are absolute: package indexes do not have the
linked files.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """Sets the readme of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the field ``readme``."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        readme = absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def absolute_links(text: str, source: str) -> str:
    """Make relative links and images of a Markdown page absolute.

    Args:
        text: Page in the root of the repository.
        source: URL of the repository on GitHub.
    """
    text = re.sub(r"(!\[[^\]]*\])\((?!\w+:|#)", rf"\1({source}/raw/main/", text)
    return re.sub(r"(?<=\])\((?!\w+:|#)", f"({source}/blob/main/", text)
