"""The parts of a page that the report of a study and the TensorBoard tab share: one script, one style sheet.

Charts with axes are drawn by uPlot (MIT, 51 kB, no dependency, in uplot/ with its licence): it draws 1,000 points or
lines on a canvas within a frame, where SVG by Observable Plot and D3 would bring 300 kB and a node for each mark. Bars
and tables are plain elements, which wrap, scale and read aloud by themselves. There is no build step: files are put one
after the other, those of `SHARED` before a page's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

SHARED = ("dom", "format", "theme", "rows", "columns", "table", "plot", "bars")


def script(package: str, names: Iterable[str], *, charts: bool = True) -> str:
    """The shared files, with uPlot first for charts, then a package's own; to stand in a function or a module."""
    own = [read(package, f"{name}.js") for name in names]
    if not charts:
        return "\n".join([*(shared(f"{name}.js") for name in SHARED if name != "plot"), *own])
    # The licence of uPlot asks that it goes with every copy, and a report is one.
    library = f"/*\n{shared('uplot/LICENSE')}\n*/\n{shared('uplot/uPlot.iife.min.js')}"
    return "\n".join([library, *(shared(f"{name}.js") for name in SHARED), *own])


def style(package: str, name: str, *, charts: bool = True) -> str:
    """The shared style sheet, with uPlot's first for charts, then a package's own."""
    library = [shared("uplot/uPlot.min.css")] if charts else []
    return "\n".join([*library, shared("shared.css"), read(package, name)])


def read(package: str, name: str) -> str:
    """A file of the `web` folder of a package."""
    return files(package).joinpath("web", name).read_text(encoding="utf-8").strip()


def shared(name: str) -> str:
    """A file of this folder."""
    return read("torchlayout", name)
