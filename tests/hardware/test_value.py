from __future__ import annotations

from pathlib import Path

import pytest

from torchlayout.errors import InputError
from torchlayout.hardware import Hardware, names
from torchlayout.hardware.value import DEVICES


@pytest.mark.parametrize("name", names())
def test_every_device_is_whole_and_named_like_its_file(name: str) -> None:
    device = Hardware.load(name)
    assert device.name == name
    assert {"bf16", "fp16", "fp32"} <= set(device.peak_flops)
    assert 1e13 < device.peak_flops["fp32"] <= device.peak_flops["bf16"] < 1e16
    assert 20 < device.memory_gib < 200
    assert device.inter_node_bandwidth < device.intra_node_bandwidth < device.memory_bandwidth


@pytest.mark.parametrize("name", names())
def test_every_number_has_a_source_above_it(name: str) -> None:
    sourced = False
    for line in (DEVICES / f"{name}.toml").read_text().splitlines():
        if line.startswith(("name", "matches")) or not line:
            sourced = False
        elif line.startswith("#"):
            sourced = True
        else:
            assert sourced, line


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
