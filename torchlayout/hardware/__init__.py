"""Devices and their nodes: peaks, memory and links, one TOML file each beside the code."""

from torchlayout.hardware.value import Hardware, names

__all__ = ["Hardware", "names"]
