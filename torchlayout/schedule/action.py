"""One piece of work of a pipeline rank."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["F", "I", "W", "B"]


class Action(NamedTuple):
    """Work on one micro-batch in one stage, in torch's letters.

    F is the forward, B the full backward; I and W are its halves: gradient of the input, gradient of the weights.
    """

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"
