from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

from harness import reports
from torchlayout.compare.report import write_report


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = tmp_path_factory.mktemp("study")
    report = reports.study(LABELS)
    report["layouts"] += [*reports.losers(), reports.blank("../../odd label", "failed"), reports.blank("..", "failed")]
    write_report(report, study)
    return study / "report_tensorboard"


LABELS = ("fsdp8+mb2", "fsdp4-tp2", "pp4-fsdp2+ckpt")


def events(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory)).Reload()


def test_the_text_of_the_report_and_its_figures_are_there(directory: Path) -> None:
    run = events(directory)
    (text,) = run.Tensors("report")
    assert text.tensor_proto.string_val[0].decode().startswith("# llama-13b-2k\n\n**fsdp8+mb2 is fastest here")
    assert {"figures/speed_memory", "figures/step_time", "figures/tensor_pipeline"} <= set(run.Tags()["images"])
    (image,) = run.Images("figures/losses")
    assert image.encoded_image_string.startswith(b"\x89PNG")


def test_each_layout_is_a_row_with_its_figures(directory: Path) -> None:
    run = events(directory / "pp4-fsdp2+ckpt")
    assert {"tokens_per_second", "mfu", "hfu", "peak_memory_gib", "bubble_fraction"} <= set(run.Tags()["scalars"])
    expected = next(layout for layout in reports.study(LABELS)["layouts"] if layout["label"] == "pp4-fsdp2+ckpt")
    (mfu,) = run.Scalars("mfu")
    assert mfu.value == pytest.approx(expected["mfu"])
    assert set(run.summary_metadata) >= {metadata.SESSION_START_INFO_TAG, metadata.SESSION_END_INFO_TAG}


def test_the_table_knows_choices_and_figures(directory: Path) -> None:
    content = events(directory).summary_metadata[metadata.EXPERIMENT_TAG].plugin_data.content
    experiment = metadata.parse_experiment_plugin_data(content)
    choices = {info.name: info for info in experiment.hparam_infos}
    assert {"label", "status", "tensor", "pipeline", "micro_batch", "recompute"} <= set(choices)
    assert choices["tensor"].type == api_pb2.DATA_TYPE_FLOAT64
    assert [value.number_value for value in choices["tensor"].domain_discrete.values] == [1, 2, 4]
    assert {info.name.tag for info in experiment.metric_infos} >= {"tokens_per_second", "mfu"}


def test_a_layout_that_did_not_run_is_a_row_that_says_so(directory: Path) -> None:
    run = events(directory / "fsdp8+mb8")
    start = metadata.parse_session_start_info_plugin_data(
        run.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    )
    assert start.hparams["status"].string_value == "out of memory"
    assert run.Tags()["scalars"] == []


def test_no_label_leaves_the_folder(directory: Path) -> None:
    folders = sorted(path.name for path in directory.iterdir() if path.is_dir())
    assert len(folders) == len(LABELS) + 5 + 2
    assert "_.._odd_label" in folders
    assert "layout" in folders
