"""report.html: the whole report as one file that opens anywhere, fetches nothing and runs only its own script.

The policy allows the one script and the one style sheet by their hashes; nothing else can run, load or be sent. Colours
and lengths that depend on data are set through the style object, which needs no exception. Data is JSON in a script
element that is never run, with every `<` escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import Any

from torchlayout import web
from torchlayout.compare.report import text
from torchlayout.compare.report.document import LayoutResult, Report
from torchlayout.compare.report.figures import INK, SOFT, Drawn
from torchlayout.layout.family import COLOURS, family

PACKAGE = "torchlayout.compare.report"
SCRIPTS = ("charts", "sections", "report")
# Enough for a line on a screen; all losses are in report.json.
LOSSES_IN_PAGE = 200


def page(report: Report, markdown: str, figures: list[Drawn]) -> str:
    """The page as text; the Markdown is what a reader without scripts sees."""
    run = bundle(with_start=True)
    sheet = style()
    policy = (
        f"default-src 'none'; script-src '{_hash(run)}'; style-src '{_hash(sheet)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(f"{report.study.name}: layouts compared"),
        "style": sheet,
        "plain": html.escape(markdown),
        "data": embedded(payload(report, figures)),
        "script": run,
    }
    # Cut at the marks first, so that a mark inside a part is only text.
    first, *rest = web.read(PACKAGE, "page.html").split("{{")
    return first + "".join(parts[name] + after for name, after in (piece.split("}}", 1) for piece in rest))


def bundle(with_start: bool = False) -> str:
    """The script, one function; `torchlayoutReport(root, report)` draws."""
    start = web.read(PACKAGE, "start.js") if with_start else "globalThis.torchlayoutReport = mount;"
    return f'(() => {{\n"use strict";\n{web.script(PACKAGE, SCRIPTS)}\n{start}\n}})();\n'


def style() -> str:
    """The style sheet."""
    return web.style(PACKAGE, "report.css")


def payload(report: Report, figures: list[Drawn]) -> dict[str, Any]:
    """What the script draws: the report, with fewer losses, the words it shares with Markdown, and the figures."""
    content = report.model_dump(mode="json", exclude={"layouts": {"__all__": {"losses"}}})
    for shown, layout in zip(content["layouts"], report.layouts, strict=True):
        shown |= {"losses": _thinned(layout), "family": family(layout.axes)}
    baseline = next((layout.label for layout in report.layouts if layout.status == "ok"), None)
    return content | {
        "setting": text.setting(report),
        "statuses": text.statuses(report),
        "baseline": baseline,
        "families": dict(COLOURS),
        "drawn": [
            {"name": figure.name, "title": figure.title, "svg": figure.svg, "ink": INK, "soft": SOFT}
            for figure in figures
            if not figure.interactive
        ],
    }


def embedded(content: dict[str, Any]) -> str:
    """JSON that no HTML parser can take for the end of its element, or for the start of another."""
    dumped = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _thinned(layout: LayoutResult) -> dict[str, Any]:
    losses = layout.losses
    stride = max(1, -(-len(losses) // LOSSES_IN_PAGE))
    kept = losses[::stride]
    if losses and (len(losses) - 1) % stride:
        kept.append(losses[-1])
    # Nine digits: parity is judged at 1e-6 and below.
    values = [None if loss is None else float(f"{loss:.9g}") for loss in kept]
    return {"stride": stride, "count": len(losses), "values": values}


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
