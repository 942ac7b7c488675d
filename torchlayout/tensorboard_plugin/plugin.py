"""The plugin: its routes, which read files under the logdir when they are asked, and write nothing.

Every answer is JSON, what could be read with notes on the rest. A request names a run and a window of traces by names
that the search found; no path is made of what a request says.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tensorboard.backend.http_util import Respond
from tensorboard.plugins.base_plugin import FrontendMetadata, TBContext, TBPlugin
from werkzeug.wrappers import Request, Response

from torchlayout import web
from torchlayout.errors import InputError
from torchlayout.layout.family import COLOURS
from torchlayout.tensorboard_plugin.breakdown import read_breakdown, read_memory
from torchlayout.tensorboard_plugin.read import Cache, finite, missing
from torchlayout.tensorboard_plugin.runs import MOST_RUNS, Finder, Run, roots
from torchlayout.tensorboard_plugin.summary import FILES_OF_A_RUN, row
from torchlayout.tensorboard_plugin.timeline import packed, steps_of

PACKAGE = "torchlayout.tensorboard_plugin"
SCRIPTS = (
    *("source", "tip", "lanes", "paint", "draw", "input", "timeline", "pickers"),
    *("compare", "step", "memory", "predicted", "tab"),
)

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Answer = dict[str, Any] | bytes
"""What is sent as JSON; bytes are JSON that is gzip'd already."""


class NotThere(Exception):
    """A run or a window that the search has not found."""


class LayoutsPlugin(TBPlugin):  # type: ignore[misc]
    """The Layouts tab."""

    plugin_name = "layouts"

    def __init__(self, context: TBContext) -> None:
        spec = getattr(context.flags, "logdir_spec", None)
        self.finder = Finder(roots(context.logdir, spec if isinstance(spec, str) else None))
        # All that one scan reads, or the next one would find nothing of it: the oldest goes first.
        self.small, self.large = Cache(MOST_RUNS * FILES_OF_A_RUN), Cache(8)

    def is_active(self) -> bool:
        """Whether there is a run under the logdir."""
        return self.finder.any()

    def frontend_metadata(self) -> FrontendMetadata:
        """The tab's name and script. It has a button of its own to read again: TensorBoard's does not reach it."""
        return FrontendMetadata(es_module_path="/index.js", tab_name="Layouts", disable_reload=True)

    def get_plugin_apps(self) -> Mapping[str, Application]:
        """The routes, below /data/plugin/layouts."""
        return {
            "/index.js": _file("text/javascript", module),
            "/index.css": _file("text/css", lambda: web.style(PACKAGE, "tab.css", charts=False)),
            "/runs": _json(self.runs),
            "/breakdown": _json(self.breakdown),
            "/timeline": _json(self.timeline),
        }

    def runs(self, _: Request) -> Answer:
        """Every run as a row of the table."""
        found = self.finder.search(anew=True)
        rows = [row(run, self.small) for run in found.runs.values()]
        logdir = ", ".join(str(path) for _, path in self.finder.starts)
        return {"logdir": logdir, "runs": rows, "families": dict(COLOURS), "notes": found.notes}

    def breakdown(self, request: Request) -> Answer:
        """The analysis of one window of traces."""
        run, window = self._asked(request)
        folder = run.path / "traces" / window
        notes: list[str] = []
        found, steps, memory = None, None, None
        if not missing(folder / "breakdown.json"):
            try:
                found = self.large.get(folder / "breakdown.json", read_breakdown)
                steps, memory = [step["step"] for step in found["steps"]], found["memory"]
            except InputError as error:
                notes.append(str(error))
        if not steps and not missing(folder / "timeline.json.gz"):
            try:
                steps = self.large.get(folder / "timeline.json.gz", steps_of)
            except InputError as error:
                notes.append(str(error))
        if not memory:
            memory, unread = read_memory(folder)
            notes += unread
        return {"breakdown": found, "steps": steps or [], "memory": memory, "notes": notes}

    def timeline(self, request: Request) -> Answer:
        """The events of all ranks in one step."""
        run, window = self._asked(request)
        try:
            step = int(request.args.get("step", ""))
        except ValueError:
            raise NotThere("a step is a number") from None
        path = run.path / "traces" / window / "timeline.json.gz"
        if missing(path):
            return {"timeline": None, "notes": []}
        try:
            return self.large.get(path, packed, step)
        except InputError as error:
            return {"timeline": None, "notes": [str(error)]}

    def _asked(self, request: Request) -> tuple[Run, str]:
        run = self.finder.search().runs.get(request.args.get("run", ""))
        if run is None:
            raise NotThere("there is no such run under the logdir")
        window = request.args.get("window", "")
        if run.window(window) is None:
            raise NotThere(f"{run.name} has no such folder of traces")
        return run, window


def module() -> str:
    """The tab's script: an ES module, which TensorBoard imports and whose `render` it calls."""
    return web.script(PACKAGE, SCRIPTS, charts=False) + "\nexport { render };\n"


def _file(kind: str, content: Callable[[], str]) -> Application:
    @Request.application
    def serve(request: Request) -> Response:
        return _refused(request) or _respond(request, content(), kind)

    return serve


def _json(answer: Callable[[Request], Answer]) -> Application:
    @Request.application
    def serve(request: Request) -> Response:
        if refused := _refused(request):
            return refused
        code = 200
        try:
            content = answer(request)
        except NotThere as error:
            content, code = {"notes": [str(error)]}, 404
        packed = isinstance(content, bytes)
        body = content if packed else _pack(content)
        return _respond(request, body, "application/json", code=code, content_encoding="gzip")

    return serve


def _pack(content: Answer) -> bytes:
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:  # figures that were sound have a quotient or a sum that is not
        text = json.dumps(finite(content), separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), compresslevel=3)


def _refused(request: Request) -> Response | None:
    if request.method in ("GET", "HEAD"):
        return None
    return _respond(request, {"notes": ["only GET is answered"]}, "application/json", code=405)


def _respond(request: Request, content: Any, kind: str, **how: Any) -> Response:
    """By TensorBoard's own function, whose headers pass its checks."""
    response: Response = Respond(request, content, kind, **how)
    return response
