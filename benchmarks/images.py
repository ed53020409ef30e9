"""Write plots of the report as files for the benchmarks."""

from __future__ import annotations

from pathlib import Path

_STYLE = (
    "<style>text{font:11px"
    " sans-serif;fill:#444}.grid{stroke:#ddd;fill:none}.zero{stroke:#444}.mark{fill:var(--c)}"
    ".bar{stroke:var(--c);stroke-width:2.25}"
    ".s0{--c:#0b4f85}.s1{--c:#8fc1e3}.s2{--c:#d55e00}.s3{--c:#00805c}</style>"
)


def write_image(svg: str, path: Path) -> None:
    """Write a plot in the page's style to a file; create its folder if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    alone = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    path.write_text(alone.replace("<title>", _STYLE + "<title>", 1))
