"""From the names that a command is given to a question: the device, the stack, and the numbers fitted for both."""

from __future__ import annotations

from collections.abc import Sequence

from torchlayout.config import Config
from torchlayout.errors import InputError
from torchlayout.hardware import Hardware
from torchlayout.hardware.value import names
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.estimate import Machine
from torchlayout.plan.search.limits import Limits
from torchlayout.plan.search.question import Question
from torchlayout.plan.software import OURS, Software


def ask(
    config: Config,
    gpus: int,
    hardware: str | None = None,
    software: str = OURS,
    calibration: str | None = None,
    margin_gib: float = 4.0,
    fix: Sequence[str] = (),
) -> Question:
    """Which layout of `gpus` devices trains a configuration fastest.

    Left out, the device is that of the configuration, and the calibration that of the stack on the device. Raises
    InputError with a sentence for each name that is none, and for a configuration that names no device.
    """
    name = hardware or config.hardware.name
    if name == "auto":
        raise InputError(
            'hardware.name = "auto" asks the device of a run, and a plan has none; '
            f"give --hardware: {', '.join(names())}, or a .toml file"
        )
    limits = Limits.parse(fix)
    device, stack = Hardware.load(name), Software.load(software)
    if margin_gib >= device.memory_gib:
        raise InputError(
            f"--margin-gib {margin_gib:g} leaves nothing of the {device.memory_gib:g} GiB of {device.name}; "
            f"legal: 0 to below {device.memory_gib:g}"
        )
    formats, wanted = device.peak_flops, config.precision.parameters
    if wanted not in formats:
        raise InputError(
            f'precision.parameters = "{wanted}" has no peak in {device.name}; legal there: {", ".join(formats)}; '
            "or give a hardware file that states it"
        )
    numbers = Calibration.load(calibration) if calibration else Calibration.of(stack.name, device)
    return Question(config, Machine(device, stack, numbers, config.precision.parameters), gpus, margin_gib, limits)
