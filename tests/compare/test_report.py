from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness import reports
from torchlayout.compare.report import write_report
from torchlayout.compare.report.document import Report, schema
from torchlayout.compare.report.reasons import explain

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("study")
    report = reports.study()
    report["layouts"] += reports.losers()
    write_report(report, directory)
    return directory


def reasons(content: dict[str, Any]) -> dict[str, list[str]]:
    return {layout.label: layout.why_slower for layout in explain(Report.model_validate(content)).layouts}


def test_every_form_of_the_report_is_written(study_directory: Path) -> None:
    written = {path.name for path in study_directory.iterdir()}
    assert written == {"report.json", "report.md", "report.html", "figures", "report_tensorboard"}


def test_report_json_keeps_what_was_collected_and_names_reasons_and_figures(study_directory: Path) -> None:
    content = json.loads((study_directory / "report.json").read_text())
    assert content["version"] == 1
    assert content["verdict"]["best"] == "fsdp8+mb2"
    assert len(content["layouts"][0]["losses"]) == 40
    assert content["layouts"][0]["losses"] == reports.study()["layouts"][0]["losses"]
    assert {f"{name}.{kind}" for name in content["figures"] for kind in ("png", "svg")} == {
        path.name for path in (study_directory / "figures").iterdir()
    }
    assert all(layout["why_slower"] for layout in content["layouts"] if layout["label"] != "fsdp8+mb2")
    assert Report.model_validate(content)


def test_a_report_is_rebuilt_over_an_older_one(tmp_path: Path) -> None:
    write_report(reports.study(("fsdp8", "fsdp4-tp2", "fsdp8+eager")), tmp_path)
    assert (tmp_path / "figures" / "norm.png").exists()
    write_report(reports.study(("fsdp8",)), tmp_path)
    assert "fsdp4-tp2" not in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "figures" / "norm.png").exists()
    assert [path.name for path in (tmp_path / "report_tensorboard").iterdir() if path.is_dir()] == ["fsdp8"]
    assert not [path for path in tmp_path.rglob("*") if "half" in path.name]


def test_the_published_schema_is_that_of_the_code() -> None:
    published = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    write_it_again = "import json; from torchlayout.compare.report.document import schema; "
    write_it_again += "print(json.dumps(schema(), indent=2))"
    assert published == schema(), f"python -c '{write_it_again}' > docs/report.schema.json"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"surprise": 1},
        {"verdict": {"fair": True, "parity": True, "problems": [], "best": None}},
    ],
)
def test_what_is_no_report_of_this_version_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Report.model_validate(reports.study() | change)


def test_a_number_that_is_not_finite_is_refused() -> None:
    report = reports.study(("fsdp8",))
    report["layouts"][0]["losses"][3] = float("nan")
    with pytest.raises(ValidationError):
        Report.model_validate(report)


@pytest.mark.parametrize("layouts", [[], reports.losers(), reports.losers()[-1:]])
def test_a_study_without_a_finished_run_has_a_report(tmp_path: Path, layouts: list[dict[str, Any]]) -> None:
    report = reports.study(()) | {"layouts": layouts}
    report["verdict"] |= {"fair": False, "parity": False}
    write_report(report, tmp_path)
    assert "No layout has finished a run" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["figures"] == []


def test_layouts_that_ran_with_next_to_nothing_known_have_a_report(tmp_path: Path) -> None:
    report = reports.study(("fsdp8", "pp2-fsdp4"), mfu=False, repeats=1)
    unknown = (
        "tokens_per_second_per_device",
        "peak_memory_bytes",
        "peak_memory_rank",
        "data_seconds_fraction",
        "bubble_fraction",
        "ratio",
        "parity",
        "fair",
    )
    for layout in report["layouts"]:
        layout |= dict.fromkeys(unknown) | {"losses": [None] * 40}
    report["layouts"].append(reports.blank("fsdp2-tp4", "ok"))
    write_report(report, tmp_path)
    assert "pp2-fsdp4" in (tmp_path / "report.md").read_text()


def test_a_bubble_is_a_reason_with_what_it_costs() -> None:
    report = reports.study(("fsdp8", "pp4-fsdp2"))
    report["verdict"]["best"] = "fsdp8"
    report["layouts"][1]["bubble_fraction"] = 0.31
    assert reasons(report)["pp4-fsdp2"][0] == (
        "pp4: 31% bubble in 1f1b with 32 micro-batches, 0% in fsdp8: this alone makes a step 1.45x as long"
    )


def test_recomputation_waiting_and_differences_are_reasons() -> None:
    report = reports.study(("fsdp8", "fsdp4-tp2+ckpt+math"))
    report["verdict"]["best"] = "fsdp8"
    report["layouts"][0]["data_seconds_fraction"] = 0.001
    report["layouts"][1]["data_seconds_fraction"] = 0.12
    assert reasons(report)["fsdp4-tp2+ckpt+math"] == [
        "waits for data in 12.0% of the step, fsdp8 in 0.1%",
        "recomputation: executes 33% more FLOPs than the model needs, fsdp8 0%",
        "differs from fsdp8 in: FSDP shards 4, not 8; tensor 2, not 1; recomputation ckpt, not none; "
        "attention math, not sdpa",
    ]


def test_without_mfu_recomputation_is_named_by_what_runs_twice() -> None:
    report = reports.study(("fsdp8", "fsdp8+ckptattn"), mfu=False)
    report["verdict"]["best"] = "fsdp8"
    assert (
        "recomputation: runs the forward pass of the attention core a second time, which fsdp8 does not"
        in reasons(report)["fsdp8+ckptattn"]
    )


def test_with_traces_the_reasons_are_the_parts_that_take_longer() -> None:
    report = reports.study(("fsdp8", "fsdp4-tp2"), shares=True)
    report["verdict"]["best"] = "fsdp8"
    report["layouts"][0] |= {"shares": {"compute": 0.9, "communication": 0.1}}
    report["layouts"][1] |= {"shares": {"compute": 0.6, "communication": 0.4}}
    for layout, median in zip(report["layouts"], (1.0, 1.5), strict=True):
        layout["step_seconds"] = {"median": median, "low": median, "high": median}
    assert reasons(report)["fsdp4-tp2"] == ["exposed communication: 40% of the step, 500 ms more than in fsdp8"]


def test_an_uncertain_order_is_said() -> None:
    report = reports.study(("fsdp8", "dp2-fsdp4"))
    report["verdict"]["best"] = "fsdp8"
    report["layouts"][0]["step_seconds"] = {"median": 1.0, "low": 0.9, "high": 1.2}
    report["layouts"][1]["step_seconds"] = {"median": 1.1, "low": 1.0, "high": 1.2}
    assert "which of the two is faster is not certain" in reasons(report)["dp2-fsdp4"][0]


def test_a_layout_that_is_not_comparable_is_not_called_slow() -> None:
    report = reports.study(("fsdp8", "dp2-fsdp4", "fsdp4-tp2"))
    report["verdict"]["best"] = "fsdp8"
    report["layouts"][1]["fair"]["data"] = False
    report["layouts"][2]["parity"]["within"] = False
    said = reasons(report)
    assert said["dp2-fsdp4"] == ["its speed is not judged: it did not run on equal terms (data differ)"]
    assert said["fsdp4-tp2"] == ["its speed is not judged: it did not train the same model"]


def test_building_a_report_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "collected.json").write_text(json.dumps(reports.study(("fsdp8", "fsdp4-tp2"))))
    code = (
        "import json, sys; from torchlayout.compare.report import write_report; "
        f"write_report(json.load(open({str(tmp_path / 'collected.json')!r})), {str(tmp_path)!r}); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout == "False\n", done.stderr
