"""What the planner says of the layout that was traced, in the shares of a breakdown."""

from __future__ import annotations

from typing import Any

from torchlayout.config import Config
from torchlayout.errors import InputError
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.plan.search.ask import ask
from torchlayout.plan.time.step import StepTime


def predicted(
    config: Config, layout: Layout, device_name: str | None = None
) -> tuple[dict[str, Any] | None, str | None]:
    """Seconds and shares of a step, or None and why there is no prediction.

    device_name: what the device of the run calls itself, for a configuration that names none.
    """
    found = Hardware.detect(device_name) if device_name and config.hardware.name == "auto" else None
    if found is None and config.hardware.name == "auto":
        return None, f"no prediction: nothing is known of the device {device_name!r}; set hardware.name"
    try:
        question = ask(config, layout.world, found.name if found else None, margin_gib=0.0)
    except InputError as error:
        return None, f"no prediction: {error}"
    time = question.machine.refine(question.job(layout)).time
    return {
        "seconds": time.seconds,
        "shares": {name: value for name, value in _shares(time, layout).items() if value},
    }, None


def _shares(time: StepTime, layout: Layout) -> dict[str, float]:
    reduced_along = "dp" if layout.shard * layout.context == 1 else "fsdp"
    shares = {
        "compute/gemm": time.matmul + time.head + time.recompute,
        "compute/attention": time.attention,
        "compute/elementwise": time.elementwise,
        "communication/tp": time.tensor,
        "communication/cp": time.context,
        "communication/pp": time.hops,
        "communication/fsdp": time.shard,
        "communication/dp": 0.0,
        "bubble/steady": time.bubble,
        "idle": time.launch + time.fixed,
        "optimizer": time.optimizer,
    }
    shares[f"communication/{reduced_along}"] += time.reduce
    return shares
