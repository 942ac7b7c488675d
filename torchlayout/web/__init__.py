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


def script(package: str, names: Iterable[str]) -> str:
    """uPlot, the shared files, then those of a package's `web` folder; to stand in a function or a module."""
    # The licence of uPlot asks that it goes with every copy, and a report is one.
    library = f"/*\n{shared('uplot/LICENSE')}\n*/\n{shared('uplot/uPlot.iife.min.js')}"
    own = [read(package, f"{name}.js") for name in names]
    return "\n".join([library, *(shared(f"{name}.js") for name in SHARED), *own])


def style(package: str, name: str) -> str:
    """uPlot's style sheet, the shared one, then that of a package's `web` folder."""
    return "\n".join([shared("uplot/uPlot.min.css"), shared("shared.css"), read(package, name)])


def read(package: str, name: str) -> str:
    """A file of the `web` folder of a package."""
    return files(package).joinpath("web", name).read_text(encoding="utf-8").strip()


def shared(name: str) -> str:
    """A file of this folder."""
    return read("torchlayout", name)
