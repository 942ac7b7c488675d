from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchlayout.errors import InputError
from torchlayout.files import read_toml
from torchlayout.hardware import Hardware, names
from torchlayout.hardware.value import DEVICES, FACTS


@pytest.mark.parametrize("name", names())
def test_every_device_is_whole_and_named_like_its_file(name: str) -> None:
    device = Hardware.load(name)
    assert device.name == name
    assert {"bf16", "fp32"} <= set(device.peak_flops)
    assert device.inter_node_bandwidth < device.intra_node_bandwidth < device.memory_bandwidth
    if device.matches:
        assert "fp16" in device.peak_flops
        assert 1e13 < device.peak_flops["fp32"] <= device.peak_flops["bf16"] < 1e16
        assert 20 < device.memory_gib < 200


@pytest.mark.parametrize("name", names())
def test_every_fact_of_every_device_has_its_source_in_a_sentence_with_a_year(name: str) -> None:
    stated = set(read_toml(DEVICES / f"{name}.toml"))
    assert stated - {"name", "aliases", "matches", "sources"} == set(FACTS)
    sources = Hardware.load(name).sources
    assert set(sources) == set(FACTS)
    for fact, sentence in sources.items():
        assert re.search(r"20[12][0-9]", sentence), fact
        assert sentence[0].isupper() or sentence[0].isdigit(), fact
        assert sentence.endswith("."), fact


def test_every_field_is_a_fact_or_names_the_device() -> None:
    assert set(Hardware.model_fields) == {"name", "aliases", "matches", "sources", *FACTS}


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
    ],
)
def test_a_device_is_known_by_the_name_its_driver_reports(reported: str, name: str) -> None:
    device = Hardware.detect(reported)
    assert device is not None
    assert device.name == name


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "cpu",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
    ],
)
def test_a_relative_of_a_device_is_not_taken_for_it(reported: str) -> None:
    assert Hardware.detect(reported) is None


def test_the_peaks_are_those_without_sparsity() -> None:
    assert Hardware.load("a100-sxm-80gb").peak("bf16") == 312e12
    assert Hardware.load("h100-sxm-80gb").peak("bf16") == 989.4e12
    assert Hardware.load("h100-sxm-80gb").peak("fp4") is None


def test_the_peak_in_fp64_is_that_of_matrix_products() -> None:
    # The matrix units do twice what the vector units do, and libraries use them for fp64 unasked.
    assert Hardware.load("a100-sxm-80gb").peak("fp64") == 19.5e12
    assert Hardware.load("mi300x").peak("fp64") == 163.4e12


@pytest.mark.parametrize(
    ("alias", "name"),
    [("a100-80gb", "a100-sxm-80gb"), ("a100-40gb", "a100-sxm-40gb"), ("h100-80gb", "h100-sxm-80gb")],
)
def test_a_device_may_be_asked_for_by_an_alias_that_is_not_listed(alias: str, name: str) -> None:
    assert Hardware.load(alias) == Hardware.load(name)
    assert alias not in names()


def test_no_alias_is_a_name_or_another_alias() -> None:
    every = [*names(), "auto", *(alias for name in names() for alias in Hardware.load(name).aliases)]
    assert len(every) == len(set(every))


def test_the_core_of_a_cpu_is_no_device_that_is_found() -> None:
    core = Hardware.load("cpu-2core")
    assert core.matches == ()
    assert core.gpus_per_node == 2
    # A core x 2.8 GHz x two units x 16 or 8 lanes x two operations.
    assert core.peak("fp32") == core.peak("bf16") == pytest.approx(2.8e9 * 2 * 16 * 2)
    assert core.peak("fp64") == pytest.approx(2.8e9 * 2 * 8 * 2)
    for reported in ("cpu-2core", "x86_64", "cpu", ""):
        assert Hardware.detect(reported) is None


def test_the_tile_is_what_one_multiprocessor_works_on() -> None:
    assert Hardware.load("a100-sxm-80gb").tile == (256, 128)
    assert Hardware.load("b200").tile == (128, 256)  # of the 256x256 that two share


def test_a_device_may_be_a_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((DEVICES / "b200.toml").read_text().replace('"b200"', '"mine"'))
    assert Hardware.load(str(path)).name == "mine"


def test_a_device_that_is_none_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean b200"):
        Hardware.load("b20")
    with pytest.raises(InputError, match="cannot be read"):
        Hardware.load(str(tmp_path / "none.toml"))
    path = tmp_path / "half.toml"
    path.write_text('name = "half"\nmemory_gb = 3\n')
    with pytest.raises(InputError, match="memory_gb is not a key; did you mean memory_gib"):
        Hardware.load(str(path))


def without_sources(name: str) -> str:
    return (DEVICES / f"{name}.toml").read_text().split("[sources]")[0]


def test_a_file_of_the_user_may_leave_out_what_has_a_default(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    lines = without_sources("a100-sxm-80gb").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(("tile", "aliases"))))
    mine = Hardware.load(str(path))
    assert mine.tile == (256, 128)
    assert mine.sources == {}
    assert mine.aliases == ()


def test_a_source_of_no_fact_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(without_sources("b200") + '[sources]\nmemory_gb = "A datasheet (2025)."\nname = "Me (2026)."\n')
    with pytest.raises(InputError) as caught:
        Hardware.load(str(path))
    assert caught.value.problems == (
        f"sources.memory_gb is the source of no fact; did you mean memory_gib? legal: {', '.join(FACTS)}",
        f"sources.name is the source of no fact; legal: {', '.join(FACTS)}",
    )


@pytest.mark.parametrize(
    ("tile", "sentence"),
    [
        ("[256]", r"tile\[1\] is missing"),
        ("[256, 0]", r"tile\[1\] = 0 must be at least 1"),
        ("[1, 2, 3]", r"tile = \[1, 2, 3\] has more than 2 entries"),
        ("256", "tile = 256 is not an array"),
    ],
)
def test_a_tile_that_is_none_is_said_in_a_sentence(tile: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(without_sources("b200").replace("[128, 256]", tile))
    with pytest.raises(InputError, match=sentence):
        Hardware.load(str(path))
