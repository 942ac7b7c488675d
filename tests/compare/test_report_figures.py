from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness import reports
from torchlayout.compare.report.contrasts import contrasts, tensor_against_pipeline
from torchlayout.compare.report.document import Report
from torchlayout.compare.report.figures import INK, draw, save
from torchlayout.layout import Layout
from torchlayout.layout.family import COLOURS, family

PNG = b"\x89PNG\r\n\x1a\n"


def report(*labels: str, **given: bool) -> Report:
    return Report.model_validate(reports.study(labels, **given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "drawn"),
    [
        (("fsdp8",), set()),
        (("fsdp8", "dp2-fsdp4"), set()),
        (("fsdp8", "fsdp8+mb2"), {"micro_batch"}),
        (("fsdp8", "fsdp8+ckpt"), {"recomputation"}),
        (("fsdp8", "fsdp8+flash"), {"attention"}),
        (("fsdp8", "fsdp8+eager"), {"norm"}),
        (("fsdp4-tp2", "fsdp4-tp2+sp"), {"sequence_parallel"}),
        (("fsdp8", "fsdp4-tp2+sp"), {"tensor_pipeline"}),
        (("pp2-fsdp4", "fsdp4-tp2"), {"tensor_pipeline"}),
    ],
)
def test_a_figure_is_drawn_only_where_the_study_has_its_contrast(labels: tuple[str, ...], drawn: set[str]) -> None:
    given = report(*labels)
    grid = tensor_against_pipeline(given)
    assert {contrast.name for contrast in contrasts(given)} | ({grid.name} if grid else set()) == drawn


def test_a_bar_is_the_best_layout_with_that_value() -> None:
    content = reports.study(("fsdp8", "dp2-fsdp4", "fsdp8+mb2", "dp2-fsdp4+mb2"))
    for layout, mfu in zip(content["layouts"], (0.4, 0.5, 0.3, 0.2), strict=True):
        layout["mfu"] = mfu
    (contrast,) = contrasts(Report.model_validate(content))
    assert [(bar.value, bar.label, bar.speed) for bar in contrast.bars] == [
        ("1", "dp2-fsdp4", 0.5),
        ("2", "fsdp8+mb2", 0.3),
    ]
    assert all(bar.low <= bar.speed <= bar.high for bar in contrast.bars)


def test_layouts_that_did_not_run_have_no_part() -> None:
    content = reports.study(("fsdp8",))
    content["layouts"] += reports.losers()
    assert list(contrasts(Report.model_validate(content))) == []


def test_without_mfu_the_figures_show_tokens_a_second_of_a_device() -> None:
    given = report("fsdp8", "fsdp8+mb2", mfu=False)
    (contrast,) = contrasts(given)
    assert contrast.bars[0].speed == given.layouts[0].tokens_per_second_per_device


def test_the_grid_has_a_cell_for_each_pair_and_none_where_nothing_ran() -> None:
    grid = tensor_against_pipeline(report("fsdp8", "fsdp4-tp2", "pp2-fsdp4"))
    assert grid is not None
    assert (grid.tensor, grid.pipeline) == ((1, 2), (1, 2))
    assert [[cell and cell.label for cell in row] for row in grid.cells] == [
        ["fsdp8", "pp2-fsdp4"],
        ["fsdp4-tp2", None],
    ]


def test_every_figure_is_a_whole_png_and_svg(tmp_path: Path) -> None:
    given = report(*reports.LABELS)
    figures = draw(given)
    assert {figure.name for figure in figures} == {
        "speed_memory",
        "step_time",
        "losses",
        "micro_batch",
        "recomputation",
        "attention",
        "norm",
        "sequence_parallel",
        "tensor_pipeline",
    }
    for figure in figures:
        assert figure.png.startswith(PNG)
        assert ElementTree.fromstring(figure.svg).tag.endswith("svg")
        assert INK in figure.svg, "the page looks for the ink to exchange it"
    save(figures, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * len(figures)


def test_the_same_study_gives_the_same_files() -> None:
    given = report("fsdp8")
    assert [(figure.png, figure.svg) for figure in draw(given)] == [(figure.png, figure.svg) for figure in draw(given)]


def test_labels_that_look_like_formulas_are_drawn_as_they_are() -> None:
    content = reports.study(("fsdp8", "fsdp8+mb2"))
    content["layouts"][0]["label"] = "$\\frac{1}{$ _^ --> <b>"
    for figure in draw(Report.model_validate(content)):
        assert ElementTree.fromstring(figure.svg).tag.endswith("svg")


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("fsdp8", "FSDP"),
        ("dp2-fsdp4", "replicated"),
        ("fsdp4-tp2", "tensor"),
        ("pp2-fsdp4", "pipeline"),
        ("pp2-fsdp2-tp2", "3-D"),
        ("pp2-cp2-tp2", "context"),
    ],
)
def test_the_kind_of_a_layout_is_told_by_its_axes(label: str, kind: str) -> None:
    assert family(reports.blank(label, "ok", Layout.parse(label))["axes"]) == kind
    assert kind in COLOURS


def test_what_is_no_layout_is_of_another_kind() -> None:
    assert family({}) == "other"
