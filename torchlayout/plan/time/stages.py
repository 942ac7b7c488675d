"""Which layers a stage has, and what it costs to run it once forward and once backward."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchlayout.plan.shape import Shape
from torchlayout.plan.time.block import Blocks, Work
from torchlayout.plan.time.ends import embedding, head

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.software import Software


@dataclass(frozen=True)
class Stage:
    """Layers of a stage, how many of them are recomputed, and whether it has the embedding or the head."""

    layers: int
    recomputed: int
    first: bool
    last: bool


def stages(blocks: Blocks, job: Job) -> tuple[Stage, ...]:
    """The stages of a job in their order, by the stack's rule."""
    layout = job.layout
    key = (id(job.model), job.sequence, layout.stages, layout.recompute_every, layout.tensor)
    return blocks.once("stages", job, key, lambda: _stages(job, blocks.software))


def _stages(job: Job, software: Software) -> tuple[Stage, ...]:
    layout = job.layout
    count, starts = layout.stages, 0
    found = []
    for number, layers in enumerate(_sizes(job, software)):
        found.append(Stage(layers, _recomputed(job, software, starts, layers), number == 0, number == count - 1))
        starts += layers
    return tuple(found)


def _sizes(job: Job, software: Software) -> list[int]:
    count, layers = job.layout.stages, job.model.num_hidden_layers
    if software.split == "cost":
        return [len(layers) for layers in job.layout.split(job.model, job.sequence)]
    if software.split == "cumulative":
        return _cumulative(Shape.of(job.model, software, job.layout.tensor, job.sequence), count)
    if software.split == "layers":
        return [layers // count + (number < layers % count) for number in range(count)]
    # Embedding, layers, norm and head as items; the first stages take what is left over.
    items = layers + 3
    sizes = [items // count + (number < items % count) for number in range(count)]
    sizes[0] -= 1
    sizes[-1] -= 2
    # A last stage too small for norm and head takes them from the one before it.
    for stage in range(count - 1, 0, -1):
        missing = max(0, -sizes[stage])
        sizes[stage] += missing
        sizes[stage - 1] -= missing
    return sizes


def _cumulative(shape: Shape, count: int) -> list[int]:
    """A block goes to the next stage once those before it fill the stage's share; the last stages may have none."""
    whole = shape.layers * shape.matrices + shape.head
    sizes, stage = [0] * count, 0
    for layer in range(shape.layers):
        if stage < count - 1 and layer * shape.matrices >= whole * (stage + 1) / count:
            stage += 1
        sizes[stage] += 1
    return sizes


def _recomputed(job: Job, software: Software, start: int, layers: int) -> int:
    every = job.layout.recompute_every
    return len([layer for layer in range(start, start + layers) if layer % every == 0]) if every else 0


@dataclass(frozen=True)
class StageTime:
    """Seconds of a stage for one micro-batch, by item; `fixed` is what the stack adds to each."""

    forward: Work
    backward: Work
    weight: float
    recompute: Work
    head: float
    fixed: float

    @cached_property
    def total(self) -> float:
        """Forward and backward with what is recomputed."""
        return self.forward.total + self.backward.total + self.recompute.total + self.head + self.fixed

    @property
    def forward_seconds(self) -> float:
        """Seconds of a forward action."""
        return self.forward.total + self.head / 3 + self.fixed / 2


def stage_time(blocks: Blocks, job: Job, stage: Stage) -> StageTime:
    """What a stage costs for one micro-batch."""
    block = blocks.block(job)
    forward = Work().plus(block.forward, stage.layers)
    backward = Work().plus(block.backward, stage.layers)
    weight = block.weight.total * stage.layers
    recompute = Work().plus(block.recompute, stage.recomputed)
    if job.layout.recompute == "ckptattn":
        recompute = Work(attention=block.forward.attention * stage.layers)
    elif job.layout.recompute == "selective":
        recompute = Work(elementwise=block.forward.elementwise * stage.layers)
    if stage.first:
        piece = embedding(blocks, job)
        forward, backward = forward.plus(piece.forward), backward.plus(piece.backward)
    top = 0.0
    if stage.last:
        piece = head(blocks, job)
        top = piece.forward.total + piece.backward.total
        weight += piece.weight.total
    return StageTime(forward, backward, weight, recompute, top, blocks.calibration.launch.stage_seconds)
