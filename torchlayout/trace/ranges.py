"""The ranges that the trainer marks in a trace, by name: what a profiler's events are attributed to."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

Phase = Literal[
    "step",  # one optimizer step and what observers do after it; `step` is its number
    "data",  # waiting for the loader
    "forward",
    "backward",  # the full backward, or the input's half of a split one
    "weight",  # the weights' half of a split backward
    "loss",  # the head and the loss, inside a forward
    "reduce",  # what gradients wait for after the last backward
    "exchange",  # facts of the step between all ranks
    "clip",
    "optimizer",
    "evaluation",
    "checkpoint",
]
PHASES: tuple[Phase, ...] = get_args(Phase)

PREFIX = "torchlayout:"
NUMBER = "([0-9]{1,15})"
PATTERN = re.compile(rf"{PREFIX}({'|'.join(PHASES)})(?: step={NUMBER})?(?: stage={NUMBER})?(?: micro_batch={NUMBER})?")


class Range(NamedTuple):
    """What is going on: a phase of the step, and for work on a micro-batch its stage and number (from 0)."""

    phase: Phase
    step: int | None = None
    stage: int | None = None
    micro_batch: int | None = None

    def __str__(self) -> str:
        """The name in the trace, such as `torchlayout:forward stage=1 micro_batch=0`."""
        known = [(name, getattr(self, name)) for name in ("step", "stage", "micro_batch")]
        return PREFIX + self.phase + "".join(f" {name}={value}" for name, value in known if value is not None)

    @classmethod
    def parse(cls, name: str) -> Range | None:
        """The range of this name, or None for a name that the trainer does not give."""
        found = PATTERN.fullmatch(name)
        if found is None:
            return None
        phase, *numbers = found.groups()
        return cls(phase, *(None if number is None else int(number) for number in numbers))  # type: ignore[arg-type]
