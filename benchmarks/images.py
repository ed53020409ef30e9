"""Plots of the report as files of their own, for the pages in docs."""

from __future__ import annotations

from pathlib import Path

_STYLE = (
    "<style>text{font:11px sans-serif;fill:#444}.grid{stroke:#ddd;fill:none}.zero{stroke:#444}.mark{fill:var(--c)}"
    ".bar,.curve{stroke:var(--c);stroke-width:2.25;fill:none}"
    ".s0{--c:#0b4f85}.s1{--c:#8fc1e3}.s2{--c:#d55e00}.s3{--c:#00805c}</style>"
)


def write_image(svg: str, path: Path) -> None:
    """Write a plot with the style that the report's page gives it."""
    alone = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    path.write_text(alone.replace("<title>", _STYLE + "<title>", 1))
