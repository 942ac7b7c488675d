from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.security_validator import SecurityValidatorMiddleware
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.test import Client

from harness import trace_runs
from torchlayout.layout import Layout
from torchlayout.tensorboard_plugin import metrics, plugin, read, summary
from torchlayout.tensorboard_plugin.plugin import SCRIPTS, LayoutsPlugin, _pack, module

HOSTILE = '</script><img src=x onerror="pwned=1">'


class Server:
    """The plugin's routes, asked as TensorBoard's page asks them."""

    def __init__(self, logdir: Path) -> None:
        self.plugin = LayoutsPlugin(TBContext(logdir=str(logdir)))

    def answer(self, route: str, code: int = 200, **query: str) -> Any:
        client = Client(SecurityValidatorMiddleware(self.plugin.get_plugin_apps()[f"/{route}"]))
        response = client.get(f"/{route}", query_string=query)
        assert response.status_code == code
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Type"] == "application/json"
        return json.loads(response.data, parse_constant=pytest.fail)

    def row(self, name: str) -> Any:
        return {run["label"]: run for run in self.answer("runs")["runs"]}[name]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    return trace_runs.study(folder / "mine", ("fsdp4", "pp2-fsdp2", "tp4"))


@pytest.fixture(scope="module")
def server(study: Path) -> Server:
    return Server(study)


def test_a_run_is_a_row_with_everything_known_of_it(server: Server) -> None:
    run = server.row("pp2-fsdp2/repeat_1")
    assert run["layout"] == "pp2-fsdp2"
    assert (run["axes"]["pipeline"], run["family"]) == (2, "pipeline")
    assert (run["status"], run["study"], run["world"], run["steps"]) == ("ok", "mine", 4, 8)
    # The first two steps are warm-up, as the study says; they took three times as long.
    assert run["step_seconds"]["median"] == pytest.approx(0.3 * 1.01)
    assert run["tokens_per_second"]["median"] == pytest.approx(131072 / 0.3 / 1.01)
    assert run["peak_memory_bytes"] == max(run["memory_by_rank"])
    assert run["parity"]["within"] is True
    assert sum(run["shares"].values()) == pytest.approx(1)
    assert run["predicted"] == {"step_seconds": pytest.approx(0.3 * 0.94)}
    assert "rank 3 computes" in run["causes"][1]
    assert (run["windows"], run["analysed"], run["notes"]) == (["step_4"], True, [])
    assert server.row("tp4/repeat_1")["parity"]["within"] is True
    assert server.answer("runs")["families"]["pipeline"].startswith("#")


def test_a_window_has_its_analysis_and_memory(server: Server) -> None:
    reply = server.answer("breakdown", run="pp2-fsdp2/repeat_1", window="step_4")
    assert reply["steps"] == [4, 5]
    assert reply["notes"] == []
    found = reply["breakdown"]
    assert [rank["rank"] for rank in found["steps"][0]["ranks"]] == [0, 1, 2, 3]
    for rank in found["steps"][0]["ranks"]:
        assert sum(rank["shares"].values()) == pytest.approx(rank["seconds"])
    assert found["untraced_seconds"] == pytest.approx(0.27)
    assert found["pipeline"]["by_rank"].keys() == {"0", "1", "2", "3"}
    assert [phase["phase"] for phase in reply["memory"][2]["steps"][0]["phases"]] == list(trace_runs.PHASES)


def test_a_timeline_comes_one_step_at_a_time(server: Server) -> None:
    reply = server.answer("timeline", run="pp2-fsdp2/repeat_1", window="step_4", step="5")
    timeline = reply["timeline"]
    assert (timeline["step"], [lane["rank"] for lane in timeline["lanes"]]) == (5, [0, 1, 2, 3])
    for lane in timeline["lanes"]:
        starts = [event[0] for event in lane["events"]]
        assert starts == sorted(starts)
    other = server.answer("timeline", run="pp2-fsdp2/repeat_1", window="step_4", step="4")
    assert other["timeline"]["lanes"] != timeline["lanes"]
    missing = server.answer("timeline", run="pp2-fsdp2/repeat_1", window="step_4", step="6")
    assert missing == {"timeline": None, "notes": ["timeline.json.gz has no step 6"]}


@pytest.mark.parametrize("route", ["breakdown", "timeline"])
@pytest.mark.parametrize(
    ("run", "window"),
    [
        ("../../etc", "step_4"),
        ("/etc", "step_4"),
        ("fsdp4/repeat_1/../repeat_1", "step_4"),
        ("", ""),
        ("fsdp4", "repeat_1"),
        ("fsdp4/repeat_1", "../traces/step_4"),
        ("fsdp4/repeat_1", "step_4/../../.."),
        ("fsdp4/repeat_1", "step_4\0"),
        ("fsdp4/repeat_1", "step_5"),
    ],
)
def test_only_what_was_found_has_a_path(server: Server, route: str, run: str, window: str) -> None:
    assert server.answer(route, 404, run=run, window=window, step="4").keys() == {"notes"}


@pytest.mark.parametrize("step", ["", "x", "1e3", "../4"])
def test_a_step_is_a_number(server: Server, step: str) -> None:
    asked = {"run": "fsdp4/repeat_1", "window": "step_4", "step": step}
    assert server.answer("timeline", 404, **asked) == {"notes": ["a step is a number"]}


def test_nothing_is_written_and_only_reading_is_answered(server: Server) -> None:
    for route, app in server.plugin.get_plugin_apps().items():
        assert Client(app).post(route, data=b"x").status_code == 405
        assert Client(app).head(route).status_code in (200, 404)


def test_the_script_is_a_module_and_the_policy_of_tensorboard_suffices() -> None:
    text = module()
    assert re.findall(r"^export .*", text, re.MULTILINE) == ["export { render };"]
    own = text[text.index("// Elements without innerHTML") :]
    for forbidden in ("innerHTML =", "eval(", "new Function", "http://", "https://", '"style"', "style:"):
        assert forbidden not in own
    spread = r"(?:Math\.\w+|append|push|replaceChildren)\([^;\n]*\.\.\."
    assert re.findall(spread, own) == [], "as arguments, a long list overflows the stack"
    names = re.findall(r"^(?:class|function|async function|const) (\w+)", own, re.MULTILINE)
    assert len(names) == len(set(names)), "files share one scope"
    web = Path(__file__).parents[2] / "torchlayout/tensorboard_plugin/web"
    assert {path.stem for path in web.glob("*.js")} == set(SCRIPTS)


def test_the_script_and_the_sheet_are_served(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    for route, kind in (("/index.js", "text/javascript"), ("/index.css", "text/css")):
        app = SecurityValidatorMiddleware(server.plugin.get_plugin_apps()[route])
        response = Client(app).get(route, headers={"Accept-Encoding": "gzip"})
        assert response.status_code == 200
        assert response.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert len(response.data) < 60_000
    assert "3.0" not in capfd.readouterr().err


def broken_values() -> list[Any]:
    return [None, True, -1, 1e308, 10**400, "x", [], {}, [[1]], {"a": {"b": []}}, [None, 3, "x", {}]]


JUNK = [
    "",
    "{",
    "[]",
    "null",
    "3",
    '"text"',
    "\x00\xff",
    "[" * 100_000,
    '{"version": 1e999}',
    '{"version": 1, "mean": 3}',
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl", "report.json", "breakdown.json", "timeline.json.gz"])
def test_broken_files_leave_the_rest(tmp_path: Path, file: str, junk: str) -> None:
    study = trace_runs.study(tmp_path / "mine", ("fsdp2", "tp2"))
    run = study / "fsdp2" / "repeat_1"
    window = run / "traces" / "step_4"
    path = {"report.json": study, "breakdown.json": window, "timeline.json.gz": window}.get(file, run) / file
    content = junk.encode("latin-1")
    path.write_bytes(gzip.compress(content)[:-3] if file.endswith(".gz") else content)
    server = Server(study)
    rows = {row["label"]: row for row in server.answer("runs")["runs"]}
    assert rows.keys() == {"fsdp2/repeat_1", "tp2/repeat_1"}
    assert rows["tp2/repeat_1"]["analysed"]
    asked = {"run": "fsdp2/repeat_1", "window": "step_4"}
    reply = server.answer("breakdown", **asked)
    assert (reply["breakdown"] is None) == (file == "breakdown.json" and "mean" not in junk)
    if reply["breakdown"] is None:
        assert reply["steps"] == [4, 5], "the timeline knows the steps too"
        assert len(reply["notes"]) == 1
    timeline = server.answer("timeline", step="4", **asked)
    assert bool(timeline["notes"]) == (timeline["timeline"] is None) == (file == "timeline.json.gz")


def test_wrong_values_anywhere_in_an_analysis_leave_the_rest(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "a", "pp2-fsdp2")
    path = run / "traces" / "step_4" / "breakdown.json"
    sound = json.loads(path.read_text())
    for number, (key, value) in enumerate((key, value) for key in sound for value in broken_values()):
        path.write_text(json.dumps(sound | {key: value}))
        os.utime(path, (number, number))
        server = Server(tmp_path)
        server.answer("runs")
        server.answer("breakdown", run="a", window="step_4")
    for number, (key, value) in enumerate(
        (key, value) for key in sound["steps"][0]["ranks"][0] for value in broken_values()
    ):
        rank = sound["steps"][0]["ranks"][0] | {key: value}
        path.write_text(
            json.dumps(sound | {"steps": [{"step": 4, "seconds": value, "ranks": [rank]}], "memory": [rank]})
        )
        os.utime(path, (number, number))
        Server(tmp_path).answer("breakdown", run="a", window="step_4")


@pytest.mark.parametrize(
    "pipeline",
    [
        None,
        {"bubble": None, "schedule": 0.2, "by_rank": {}},
        {"bubble": 0.0, "schedule": None, "by_rank": {"0": 0}},
    ],
)
def test_a_bubble_that_was_not_measured_is_none_and_not_zero(tmp_path: Path, pipeline: Any) -> None:
    path = trace_runs.run(tmp_path / "a", "pp2-fsdp2") / "traces" / "step_4" / "breakdown.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pipeline": pipeline}))
    reply = Server(tmp_path).answer("breakdown", run="a", window="step_4")
    assert reply["breakdown"]["pipeline"] == pipeline


def test_events_that_are_none_are_left_out_and_counted(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2")
    good = [5.0, 1.0, 0, 0, 0, -1, -1, 0]
    wrong = [
        None,
        [],
        [1],
        [*good, 1],
        *([*good[:place], value, *good[place + 1 :]] for place in range(8) for value in (None, "1", -5, 1e300)),
    ]
    wrong.remove([-5, *good[1:]])  # before the first rank's start: legal
    lanes = [{"rank": 1, "events": [good, *wrong, [1.0, 1.0, 1, 0, 0, -1, -1, 0]]}, {"rank": "x"}, None, {"rank": 0}]
    trace_runs.write_timeline(run / "traces" / "step_4", {4: lanes}, 0.3)  # type: ignore[dict-item]
    reply = Server(tmp_path).answer("timeline", run="a", window="step_4", step="4")
    assert reply["timeline"]["lanes"] == [
        {"rank": 0, "events": []},
        {"rank": 1, "events": [[1.0, 1.0, 1, 0, 0, -1, -1, 0], good]},
    ]
    assert reply["notes"] == [f"{len(wrong)} events of timeline.json.gz are not of the agreed form and left out"]


def test_of_very_many_ranks_the_first_have_a_lane(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2")
    lanes = [{"rank": rank, "events": []} for rank in reversed(range(10_000))]
    trace_runs.write_timeline(run / "traces" / "step_4", {4: lanes}, 0.3)
    reply = Server(tmp_path).answer("timeline", run="a", window="step_4", step="4")
    assert [lane["rank"] for lane in reply["timeline"]["lanes"]] == list(range(4096))
    assert reply["notes"] == ["only the lanes of the first 4,096 of 10,000 ranks are shown"]


def test_huge_files_are_not_read_and_huge_timelines_lose_their_shortest_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2")
    trace_runs.large(tmp_path / "b", ranks=4, events=50)
    monkeypatch.setattr("torchlayout.tensorboard_plugin.timeline.MOST_EVENTS", 120)
    reply = Server(tmp_path).answer("timeline", run="b", window="step_3", step="3")
    assert sum(len(lane["events"]) for lane in reply["timeline"]["lanes"]) == 119
    assert re.fullmatch(r"81 of 200 events, those of .* and shorter, are left out", reply["notes"][0])
    bomb = gzip.compress(b'{"version": 1, "x": "' + b"0" * 3_000_000)
    (run / "traces" / "step_4" / "timeline.json.gz").write_bytes(bomb)
    monkeypatch.setattr("torchlayout.tensorboard_plugin.timeline.MOST_BYTES", 2**20)
    reply = Server(tmp_path).answer("timeline", run="a", window="step_4", step="4")
    assert reply["notes"] == ["timeline.json.gz is not read: it holds more than 1 MiB"]


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2")
    for file in ("run.json", "config.toml", "metrics.jsonl", "breakdown.json", "timeline.json.gz", "rank0.memory.json"):
        path = (run / file) if (run / file).exists() or file == "config.toml" else run / "traces" / "step_4" / file
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    server = Server(tmp_path)
    said = [f"{file} is no regular file" for file in ("run.json", "config.toml", "metrics.jsonl", "breakdown.json")]
    assert server.row("a")["notes"] == said
    reply = server.answer("breakdown", run="a", window="step_4")
    said = [f"{file} is no regular file" for file in ("breakdown.json", "timeline.json.gz", "rank0.memory.json")]
    assert reply["notes"] == said
    assert server.answer("timeline", run="a", window="step_4", step="4")["notes"] == said[1:2]


def test_a_huge_configuration_is_not_read(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2")
    (run / "config.toml").write_text("#" * (2**20 + 1))
    assert Server(tmp_path).row("a")["notes"] == ["config.toml is not read: it holds more than 1 MiB"]


@pytest.mark.parametrize("value", broken_values(), ids=range(len(broken_values())))
@pytest.mark.parametrize("key", ["directory", "status", "reason"])
def test_wrong_values_in_a_report_leave_the_rows(tmp_path: Path, key: str, value: Any) -> None:
    study = trace_runs.study(tmp_path / "mine", ("fsdp2", "tp2"))
    report = json.loads((study / "report.json").read_text())
    report["layouts"][0]["repeats"][0][key] = value
    (study / "report.json").write_text(json.dumps(report))
    rows = [run["label"] for run in Server(study).answer("runs")["runs"]]
    assert rows == ["fsdp2/repeat_1", "tp2/repeat_1"]


def test_figures_without_a_finite_quotient_have_none(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2", traced=())
    (run / "metrics.jsonl").write_text(
        f'{{"step": 1, "seconds": 1e-300, "data_seconds": 1e299, "mfu": {10**299}}}\n'
        f'{{"step": {10**400}, "seconds": 1e-300, "data_seconds": {10**299}}}\n'
    )
    row = Server(tmp_path).row("a")
    assert (row["data_seconds_fraction"], row["steps"], row["notes"]) == (None, None, [])


def test_sums_that_are_not_finite_are_null(tmp_path: Path) -> None:
    window = trace_runs.run(tmp_path / "a", "fsdp2") / "traces" / "step_4"
    found = json.loads((window / "breakdown.json").read_text())
    rank = {"rank": 0, "shares": {f"compute/{n}": 9e299 for n in range(10**4)}}
    (window / "breakdown.json").write_text(json.dumps(found | {"steps": [{"step": 4, "ranks": [rank] * 2}]}))
    (step,) = Server(tmp_path).answer("breakdown", run="a", window="step_4")["breakdown"]["steps"]
    assert [rank["seconds"] for rank in step["ranks"]] == [None, None]
    assert json.loads(gzip.decompress(_pack({"rows": [{"x": float("inf")}, (float("nan"), 1.5)]}))) == {
        "rows": [{"x": None}, [None, 1.5]]
    }


def test_whatever_goes_wrong_with_a_run_costs_its_own_row_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        trace_runs.run(tmp_path / name, "fsdp2", traced=())

    def axes(label: str | None) -> dict[str, Any]:
        raise ZeroDivisionError("nobody thought of this")

    whole = Server(tmp_path).row("a")
    (tmp_path / "b" / "run.json").write_text('{"layout": null}')
    sound = summary._axes
    monkeypatch.setattr(summary, "_axes", lambda label: sound(label) if label is None else axes(label))
    server = Server(tmp_path)
    row = server.row("a")
    assert row.keys() == whole.keys(), "the table finds all that it shows"
    assert row["notes"] == ["this run cannot be shown: ZeroDivisionError: nobody thought of this"]
    assert (row["status"], row["reason"]) == ("failed", row["notes"][0])
    assert (server.row("b")["status"], server.row("b")["notes"]) == ("ok", [])


@pytest.fixture
def other_user() -> Iterator[Path]:
    """A folder that belongs to a user who is not root, who is the one to read it."""
    folder = Path(tempfile.mkdtemp(prefix="torchlayout"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def read_by_nobody(folder: Path) -> Iterator[None]:
    """Root may read everything: to be refused, it has to be somebody else."""
    if os.geteuid():
        yield
        return
    folder.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("closed", "notes"),
    [
        ("traces/step_4", ["breakdown.json cannot be read: Permission denied"]),
        ("traces", ["traces cannot be read: Permission denied"]),
        *(
            (file, [f"{file} cannot be read: Permission denied"])
            for file in ("run.json", "metrics.jsonl", "config.toml")
        ),
    ],
)
def test_what_may_not_be_read_leaves_a_row_and_a_note(other_user: Path, closed: str, notes: list[str]) -> None:
    run = trace_runs.run(other_user / "a", "fsdp2")
    (run / "config.toml").touch()
    server = Server(other_user)
    (run / closed).chmod(0)
    try:
        with read_by_nobody(other_user):
            assert server.row("a")["notes"] == notes
            if closed == "traces/step_4":
                asked = {"run": "a", "window": "step_4"}
                assert server.answer("breakdown", **asked)["notes"][0] == notes[0]
                timeline = server.answer("timeline", step="4", **asked)
                assert timeline["notes"] == ["timeline.json.gz cannot be read: Permission denied"]
    finally:
        (run / closed).chmod(0o755)
    assert server.row("a")["notes"] == [], "who may read it now need not start again"


def test_folders_that_may_not_be_searched_are_counted(other_user: Path) -> None:
    for name in ("a", "b", "c"):
        trace_runs.run(other_user / name, "fsdp2", traced=())
    for name in ("b", "c"):
        (other_user / name).chmod(0)
    with read_by_nobody(other_user):
        reply = Server(other_user).answer("runs")
    assert [run["label"] for run in reply["runs"]] == ["a"]
    said = f"{other_user}/b and 1 more folders may not be read by this user, so runs in there are not shown"
    assert reply["notes"] == [said]
    for name in ("b", "c"):
        (other_user / name).chmod(0o755)


def test_a_name_that_leads_nowhere_is_no_reason_to_fail(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "mine" / "fsdp2" / "repeat_1", "fsdp2")
    for path in (run / "traces" / "step_4" / "breakdown.json", run / "run.json", tmp_path / "mine" / "report.json"):
        path.unlink(missing_ok=True)
        path.symlink_to("x" * 300)  # which the system refuses to look at
    server = Server(tmp_path)
    assert "breakdown.json cannot be read: File name too long" in server.row("mine/fsdp2/repeat_1")["notes"]
    reply = server.answer("breakdown", run="mine/fsdp2/repeat_1", window="step_4")
    assert (reply["steps"], reply["notes"]) == ([4, 5], ["breakdown.json cannot be read: File name too long"])


def test_what_a_search_reads_is_kept_until_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        study = trace_runs.study(tmp_path / f"study_{number}", ("fsdp2",))
        run = study / "fsdp2" / "repeat_1"
        (run / "config.toml").touch()
        trace_runs.window(run / "traces" / "step_7", Layout.parse("fsdp2"), (7,), 0.3, random.Random(1))
        (run / "traces" / "step_7" / "breakdown.json").write_text("{")
    (tmp_path / "study_0" / "report.json").write_text("{")
    monkeypatch.setattr(plugin, "MOST_RUNS", 6)
    server = Server(tmp_path)
    first = server.answer("runs")
    opened: list[Path] = []
    sound = read.opened
    monkeypatch.setattr(read, "opened", lambda path: opened.append(path) or sound(path))
    monkeypatch.setattr(metrics, "opened", read.opened)
    assert server.answer("runs") == first
    assert opened == []
    Server(tmp_path).answer("runs")
    assert len(opened) == 6 * 6


def test_old_runs_and_running_runs_have_a_row(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "seconds": 0.5}\n')
    running = trace_runs.run(tmp_path / "running", "fsdp2", traced=())
    (running / "run.json").write_text(json.dumps({"layout": "fsdp2", "exit_reason": "running"}))
    server = Server(tmp_path)
    row = server.row("old")
    assert (row["status"], row["layout"], row["family"], row["step_seconds"]["median"]) == ("ok", None, "other", 0.5)
    assert (server.row("running")["status"], server.row("running")["reason"]) == ("running", None)
    for file in ("run.json", "metrics.jsonl"):
        os.utime(running / file, (time.time() - 7200,) * 2)
    assert "nothing was written for 2.0 hours" in server.row("running")["reason"]


@pytest.mark.parametrize(
    ("exit_reason", "status"),
    [
        ("done", "ok"),
        ("stopped by SIGTERM after step 3", "ok"),
        ("out of memory: rank 3: no more", "oom"),
        ("RuntimeError: NCCL error", "failed"),
        (["x"], "ok"),
    ],
)
def test_how_a_run_ended_is_its_status(tmp_path: Path, exit_reason: Any, status: str) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2", traced=())
    (run / "run.json").write_text(json.dumps({"layout": "fsdp2", "exit_reason": exit_reason}))
    assert Server(tmp_path).row("a")["status"] == status


def test_traces_without_an_analysis_say_what_makes_it(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "it's a run", "fsdp2")
    window = run / "traces" / "step_4"
    memory = json.loads((window / "breakdown.json").read_text())["memory"][1]
    for path in window.iterdir():
        path.unlink()
    (window / "rank1.memory.json").write_text(json.dumps(memory))
    (window / "rank0.memory.json").write_text("{")
    server = Server(tmp_path)
    row = server.row("it's a run")
    assert (row["windows"], row["analysed"], row["shares"]) == (["step_4"], False, None)
    assert row["command"] == f"""torchlayout trace '{tmp_path}/it'"'"'s a run'"""
    reply = server.answer("breakdown", run="it's a run", window="step_4")
    assert (reply["breakdown"], reply["steps"]) == (None, [])
    assert [entry["rank"] for entry in reply["memory"]] == [1]
    assert "rank0.memory.json is not JSON" in reply["notes"][0]


def test_profiled_steps_do_not_count_as_speed(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2", seconds=0.3)
    lines = [{"step": step, "seconds": 9.0 if step in (4, 5, 6) else 0.3} for step in range(1, 9)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "config.toml").write_text("[profile]\nstart_step = 4\nsteps = 3\n")
    assert Server(tmp_path).row("a")["step_seconds"]["median"] == 0.3
    (run / "config.toml").write_text("[profile")
    assert Server(tmp_path).row("a")["step_seconds"]["median"] == pytest.approx(4.65)


def test_a_study_without_a_report_says_so(tmp_path: Path) -> None:
    study = trace_runs.study(tmp_path / "mine", ("fsdp2",))
    (study / "report.json").unlink()
    (study / "study.json").touch()
    (note,) = Server(study).row("fsdp2/repeat_1")["notes"]
    assert "no report.json yet" in note


def test_a_file_is_read_again_only_when_it_changes(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / "a", "fsdp2", traced=())
    server = Server(tmp_path)
    assert server.row("a")["world"] == 2
    facts = json.loads((run / "run.json").read_text())
    before = (run / "run.json").stat()
    (run / "run.json").write_text(json.dumps(facts | {"world": 3}))
    os.utime(run / "run.json", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert server.row("a")["world"] == 2
    os.utime(run / "run.json", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert server.row("a")["world"] == 3


def test_hostile_words_are_only_text(tmp_path: Path) -> None:
    run = trace_runs.run(tmp_path / HOSTILE.replace("/", "_"), "fsdp2")
    (run / "run.json").write_text(json.dumps({"layout": HOSTILE, "exit_reason": HOSTILE}))
    (row,) = Server(tmp_path).answer("runs")["runs"]
    assert (row["layout"], row["reason"], row["axes"]) == (HOSTILE, HOSTILE, {})
    asked = Server(tmp_path).answer("breakdown", run=row["label"], window="step_4")
    assert asked["breakdown"] is not None


def test_the_tab_is_active_where_there_is_a_run(tmp_path: Path, study: Path) -> None:
    assert Server(study).plugin.is_active()
    assert not Server(tmp_path).plugin.is_active()
    assert not LayoutsPlugin(TBContext()).is_active()
    metadata = LayoutsPlugin(TBContext()).frontend_metadata()
    assert (metadata.tab_name, metadata.es_module_path) == ("Layouts", "/index.js")
