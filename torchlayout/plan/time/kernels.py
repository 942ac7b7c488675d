"""Seconds of single kernels on a device: matrix products, attention, element-wise work."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchlayout.errors import InputError

if TYPE_CHECKING:
    from torchlayout.hardware import Hardware
    from torchlayout.plan.calibration import Calibration

# What smaller tiles reach of the largest, as part of its efficiency: less reuse of what a tile loads.
# (rows and columns as parts of the largest tile's, efficiency).
TILES = ((1.0, 1.0, 1.0), (0.5, 2.0, 1.0), (0.5, 1.0, 0.93), (0.5, 0.5, 0.80))
FLASH_KERNELS = ("flash", "flash1", "flash2")


class Kernels:
    """Prices of kernels under one calibration; products are remembered, as a model has few different ones."""

    def __init__(self, hardware: Hardware, calibration: Calibration, precision: str) -> None:
        self.compute = calibration.compute
        peak = hardware.peak(precision)
        if peak is None:
            raise InputError(f"{hardware.name} states no peak for {precision}; legal: {', '.join(hardware.peak_flops)}")
        self.peak = peak
        self.bandwidth = hardware.memory_bandwidth * self.compute.memory_efficiency
        self.multiprocessors = hardware.multiprocessors
        self.tiles = tuple((hardware.tile[0] * r, hardware.tile[1] * c, e) for r, c, e in TILES)
        self._products: dict[tuple[float, float, float], float] = {}

    def product(self, rows: float, columns: float, depth: float) -> float:
        """Seconds of a [rows, depth] x [depth, columns] product: efficiency by shape, and by waves of tiles."""
        key = (rows, columns, depth)
        if key not in self._products:
            compute = self.compute
            shape = rows / (rows + compute.rows_at_half) * columns / (columns + compute.columns_at_half)
            shape *= depth / (depth + compute.depth_at_half)
            used = max(self._waves(rows, columns, tile) for tile in self.tiles) ** compute.wave_exponent
            rate = self.peak * compute.gemm_efficiency * shape * used
            self._products[key] = 2 * rows * columns * depth / rate
        return self._products[key]

    def _waves(self, rows: float, columns: float, tile: tuple[float, float, float]) -> float:
        """Part of the multiprocessors' time that is used when tiles run in whole waves."""
        tile_rows, tile_columns, efficiency = tile
        tiles = math.ceil(rows / tile_rows) * math.ceil(columns / tile_columns)
        waves = math.ceil(tiles / self.multiprocessors)
        return efficiency * rows * columns / (tile_rows * tile_columns) / (waves * self.multiprocessors)

    def attention(self, kernel: str, pairs: float, width: float, heads: float) -> tuple[float, float]:
        """(forward, backward) seconds of the attention core.

        pairs: query-key pairs of a head with the masked half in; width: heads x head_dim of the rank.
        """
        compute = self.compute
        if kernel in FLASH_KERNELS:
            forward = 2 * pairs * width / (self.peak * getattr(compute, kernel))
            return forward, forward * compute.attention_backward
        products = 4 * pairs * width / (self.peak * compute.scores)
        bytes_per_score = compute.score_bytes if kernel == "unfused" else compute.fused_score_bytes
        traffic = pairs * heads * bytes_per_score / self.bandwidth
        return products + traffic, 2 * (products + traffic)

    def traffic(self, bytes_moved: float) -> float:
        """Seconds of element-wise work that moves so many bytes."""
        return bytes_moved / self.bandwidth
