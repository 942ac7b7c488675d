"""Seconds of one block, of the embedding and of the head, for one micro-batch on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torchlayout.plan.shape import Shape
from torchlayout.plan.time.kernels import Kernels
from torchlayout.plan.time.links import Links

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig
    from torchlayout.hardware import Hardware
    from torchlayout.plan.calibration import Calibration
    from torchlayout.plan.job import Job
    from torchlayout.plan.software import Software

Made = TypeVar("Made")

FLOOR_POWER = 4
"""How sharply the slower of device and launching CPU wins: (a^p + b^p)^(1/p), which is never below either."""
HARD = 16
"""The same where one of the two simply waits for the other."""


class Work(NamedTuple):
    """Seconds by what they are spent on; `launch` is what the CPU's floor adds."""

    matmul: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    launch: float = 0.0
    tensor: float = 0.0
    context: float = 0.0

    @property
    def total(self) -> float:
        """Their sum."""
        return float(sum(self))

    def plus(self, other: Work, times: float = 1.0) -> Work:
        """Item by item, the other one so many times."""
        return Work(
            self.matmul + times * other.matmul,
            self.attention + times * other.attention,
            self.elementwise + times * other.elementwise,
            self.launch + times * other.launch,
            self.tensor + times * other.tensor,
            self.context + times * other.context,
        )


class Pass(NamedTuple):
    """A piece of the model for one micro-batch; `weight` is the part of backward that gives weight gradients."""

    forward: Work
    backward: Work
    weight: Work
    recompute: Work


def soft_maximum(first: float, second: float, power: int = FLOOR_POWER) -> float:
    """Two things side by side: a little more than the longer one."""
    longest = max(first, second)
    if longest == 0:
        return 0.0
    return float(longest * ((first / longest) ** power + (second / longest) ** power) ** (1 / power))


class Blocks:
    """Prices of the pieces of a model on one device in one stack; equal pieces are priced once."""

    def __init__(self, hardware: Hardware, software: Software, calibration: Calibration, precision: str) -> None:
        self.software, self.calibration = software, calibration
        self.kernels = Kernels(hardware, calibration, precision)
        self.links = Links(hardware, calibration)
        self.memo: dict[object, Any] = {}
        """What was priced or counted before, by what it depends on; the models that names of keys belong to live on."""
        self._models: dict[int, ModelConfig] = {}

    def once(self, what: str, job: Job, key: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """What `make` makes, made once for a key; a key may name the job's model by its id."""
        whole = (what, key)
        if whole not in self.memo:
            self._models[id(job.model)] = job.model
            self.memo[whole] = make()
        made: Made = self.memo[whole]
        return made

    def shape(self, job: Job) -> Shape:
        """The shape of the job's model on its tensor ranks."""
        tensor, sequence = job.layout.tensor, job.sequence
        key = (id(job.model), tensor, sequence)
        return self.once("shape", job, key, lambda: Shape.of(job.model, self.software, tensor, sequence))

    def block(self, job: Job) -> Pass:
        """One block; `recompute` is what a recomputed block repeats."""
        return self.once("block", job, self.piece(job), lambda: self._block(job))

    def piece(self, job: Job) -> tuple[object, ...]:
        """What the price of a piece of the job's model depends on here."""
        several = job.layout.world > self.links.hardware.gpus_per_node
        return (*job.piece, several) if self.software.block_floor else job.piece

    def _block(self, job: Job) -> Pass:
        shape, layout = self.shape(job), job.layout
        rows = float(job.tokens)
        matmul = data = weight = 0.0
        for inputs, outputs, columns_split in shape.linears:
            if columns_split:
                outputs //= layout.tensor
            else:
                inputs //= layout.tensor
            matmul += self.kernels.product(rows, outputs, inputs)
            data += self.kernels.product(rows, inputs, outputs)
            weight += self.kernels.product(inputs, outputs, rows)
        pairs = rows * job.sequence
        core, core_backward = self.kernels.attention(
            job.attention, pairs, shape.query / layout.tensor, shape.heads / layout.tensor
        )
        wise = self.kernels.traffic(self._elementwise_bytes(job, shape))
        numbers = self.calibration.compute
        add = self.kernels.traffic(numbers.accumulate_bytes * shape.matrices / layout.tensor)
        tensor = self._tensor(job, shape)
        context, context_backward = self._context(job, shape)
        cpu = self._launch(job)
        back = numbers.elementwise_backward
        forward = self._floored(Work(matmul, core, wise, 0.0, tensor[0], context), cpu)
        backward = self._floored(
            Work(data + weight, core_backward, back * wise + add, 0.0, tensor[1], context_backward),
            cpu * self.calibration.launch.backward,
        )
        if self.software.block_floor and layout.world > self.links.hardware.gpus_per_node:
            forward, backward = self._at_least(forward, backward, layout.tensor)
        fixed = self.calibration.launch.recompute_fixed_seconds
        return Pass(forward, backward, Work(matmul=weight), forward._replace(launch=forward.launch + fixed))

    def _floored(self, work: Work, cpu_seconds: float) -> Work:
        device = work.matmul + work.attention + work.elementwise
        launch = soft_maximum(device, cpu_seconds) - device
        return work._replace(launch=launch + self.calibration.launch.block_fixed_seconds)

    def _at_least(self, forward: Work, backward: Work, tensor: int) -> tuple[Work, Work]:
        """Both passes with the environment's floor, shared as their times are."""
        numbers, whole = self.calibration.launch, forward.total + backward.total
        ranks = numbers.floor_rank_seconds * tensor
        if self.links.group(tensor, 1).nodes > 1:
            ranks *= numbers.floor_node_factor
        longer = soft_maximum(whole, numbers.floor_seconds + ranks, HARD) / whole - 1
        return (
            forward._replace(launch=forward.launch + longer * forward.total),
            backward._replace(launch=backward.launch + longer * backward.total),
        )

    def _launch(self, job: Job) -> float:
        numbers, layout = self.calibration.launch, job.layout
        seconds = numbers.block_seconds
        if layout.norm == "fused":
            seconds *= numbers.fused_norm
        if layout.tensor > 1:
            seconds *= numbers.tensor_factor
        return seconds

    def _elementwise_bytes(self, job: Job, shape: Shape) -> float:
        numbers, layout, rows = self.calibration.compute, job.layout, job.tokens
        across = layout.tensor if layout.sequence_parallel else 1
        norm = numbers.eager_norm_bytes if layout.norm == "eager" else numbers.fused_norm_bytes
        moved = (norm + numbers.residual_bytes) * rows * shape.hidden / across
        moved += numbers.attention_copy_bytes * rows * shape.hidden / layout.tensor
        moved += numbers.activation_bytes * rows * shape.inner / layout.tensor
        if layout.compile or self.software.compiled:
            moved *= numbers.compiled_elementwise
        return moved

    def _tensor(self, job: Job, shape: Shape) -> tuple[float, float]:
        """Exposed tensor communication, forward and backward: all-reduces, or gathers and scatters."""
        layout = job.layout
        if layout.tensor == 1:
            return 0.0, 0.0
        group = self.links.group(layout.tensor, 1)
        sent = 2.0 * job.tokens * shape.hidden
        if layout.sequence_parallel:
            # Backward gathers the inputs of the column-parallel products once more for their weight gradients.
            one = self.links.gather(sent, group)
            return 4 * one, 4 * one
        one = self.links.all_reduce(sent, group)
        return 2 * one, 2 * one

    def _context(self, job: Job, shape: Shape) -> tuple[float, float]:
        """Exposed context communication: a ring hides its turns behind attention, Ulysses waits for its exchanges."""
        layout = job.layout
        if layout.context == 1:
            return 0.0, 0.0
        group = self.links.group(layout.context, layout.tensor)
        if layout.context_method == "ulysses":
            sent = 2.0 * job.tokens * (2 * shape.query + 2 * shape.keys) / layout.tensor
            once = sent * (group.size - 1) / group.size / self.links.bandwidth(group) + 4 * self.links.latency(group)
            return once, once
        sent = 2.0 * job.tokens * 2 * shape.keys / layout.tensor
        turn = sent / self.links.bandwidth(group) + self.links.latency(group)
        pairs = job.tokens * job.sequence
        core, core_backward = self.kernels.attention(
            job.attention, pairs, shape.query / layout.tensor, shape.heads / layout.tensor
        )
        turns = group.size - 1
        forward = soft_maximum(turns * turn, core) - core
        # Backward passes keys and values and their gradients.
        return forward, soft_maximum(2 * turns * turn, core_backward) - core_backward
