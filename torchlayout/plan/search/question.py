"""What a plan is asked: a configuration, a number of devices, the machine, and what a layout may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torchlayout.plan.estimate import Machine
from torchlayout.plan.job import Job
from torchlayout.plan.search.limits import Limits

if TYPE_CHECKING:
    from torchlayout.config import Config
    from torchlayout.layout import Layout

KERNELS: Mapping[str, str] = MappingProxyType({"sdpa": "flash2", "flash": "flash2", "flex": "flash", "math": "unfused"})
"""The attention of a layout as the planner prices it; torch's scaled_dot_product_attention is FlashAttention 2."""


@dataclass(frozen=True)
class Question:
    """Which layout of `gpus` devices trains `config` fastest on a machine with `margin_gib` of memory to spare."""

    config: Config
    machine: Machine
    gpus: int
    margin_gib: float = 4.0
    limits: Limits = field(default_factory=Limits)

    @property
    def batch(self) -> int:
        """Sequences in an optimizer step."""
        return self.config.batch.global_size

    @property
    def sequence(self) -> int:
        """Tokens in a sequence."""
        return self.config.data.sequence_length

    @property
    def tokens(self) -> int:
        """Tokens in an optimizer step."""
        return self.batch * self.sequence

    @property
    def kernels(self) -> dict[str, Any]:
        """The kernels that the configuration asks for, as fields of a layout."""
        kernels = self.config.kernels
        return {"attention": kernels.attention, "norm": kernels.norm, "compile": kernels.compile}

    def job(self, layout: Layout) -> Job:
        """The step of training that a layout makes of the configuration."""
        config = self.config
        return Job(
            config.model,
            self.sequence,
            self.batch,
            layout,
            attention=KERNELS[layout.attention],
            precision=config.precision.parameters,
            loss=config.kernels.loss,
            reduce=config.precision.reduce,
        )

    def problems(self, layout: Layout) -> list[str]:
        """Every rule that a layout breaks, a sentence each."""
        return layout.check(self.config.model, self.batch, self.sequence, self.config.precision)

    def with_batch(self, batch: int) -> Question:
        """The same with another global batch, in sequences."""
        section = self.config.batch.model_copy(update={"global_size": batch})
        return replace(self, config=self.config.model_copy(update={"batch": section}))

    def with_sequence(self, sequence: int) -> Question:
        """The same with another sequence length, in tokens; the global batch keeps its number of sequences."""
        section = self.config.data.model_copy(update={"sequence_length": sequence})
        return replace(self, config=self.config.model_copy(update={"data": section}))

    def with_links(self, factor: float) -> Question:
        """The same with faster or slower links between nodes."""
        machine = self.machine
        hardware = machine.hardware.model_copy(
            update={"inter_node_bandwidth": machine.hardware.inter_node_bandwidth * factor}
        )
        precision = self.config.precision.parameters
        return replace(self, machine=Machine(hardware, machine.software, machine.calibration, precision))
