"""Accept what is pending for a table, as its owner does: look first, then sign each digest that was
shown.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout

from privacy_assets.cli.main import main


def shown_digests(text: str) -> list[str]:
    """Return the digests of the parts that ``privacy-assets accept`` printed."""
    return re.findall(r"\(digest ([0-9a-f]{32})\)", text)


def accept_all(*words: object) -> str:
    """Run ``privacy-assets accept`` with ``words`` twice, and return what the second call
    printed.
    """
    command = ["accept", *map(str, words)]
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        status = main(command)
    digests = shown_digests(printed.getvalue())
    assert status == 2 and digests, printed.getvalue()
    signed = io.StringIO()
    options = [f"--digest={digest}" for digest in digests]
    with redirect_stdout(signed):
        assert main([*command, *options]) == 0
    return signed.getvalue()
