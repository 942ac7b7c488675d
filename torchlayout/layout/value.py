"""The Layout value: five degrees and the choices that decide how a training step runs on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchlayout.errors import InputError
from torchlayout.layout import structure, words

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig, Precision


@dataclass(frozen=True)
class Layout:
    """How one training step is spread over ranks; world size is the product of the five degrees.

    Structural mistakes (a degree below 1, an unknown word, a choice that needs an axis of degree 1)
    raise InputError with a sentence each; what depends on the model is in check().
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    micro_batch: int = 1
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    virtual_stages: int = 1
    context_method: str = "ring"
    recompute: str = "none"
    zero: int | None = None
    attention: str = "sdpa"
    norm: str = "fused"
    compile: bool = False

    def __post_init__(self) -> None:
        if problems := structure.problems(self):
            raise InputError(*problems)
        # Values that mean the same become one value, so that equal layouts compare, hash and print equal.
        if self.zero is None:
            object.__setattr__(self, "zero", structure.default_zero(self.pipeline))
        if self.schedule in words.V_SCHEDULES:
            object.__setattr__(self, "virtual_stages", 2)
        if self.recompute == "ckpt1":
            object.__setattr__(self, "recompute", "ckpt")

    @property
    def world(self) -> int:
        """Number of ranks: the product of the five degrees."""
        return self.pipeline * self.replicate * self.shard * self.context * self.tensor

    @property
    def data_ranks(self) -> int:
        """Number of ranks that see different samples."""
        return self.replicate * self.shard

    @property
    def stages(self) -> int:
        """Number of pipeline stages of the whole model, over all pipeline ranks."""
        return self.pipeline * self.virtual_stages

    @property
    def recompute_every(self) -> int:
        """K where blocks whose global index is divisible by K are recomputed; 0 where no whole block is."""
        if self.recompute == "ckpt":
            return 1
        match = words.RECOMPUTE_EVERY.fullmatch(self.recompute)
        return int(match.group(1)) if match else 0

    @classmethod
    def parse(cls, label: str, *, attention: str = "sdpa", norm: str = "fused", compile: bool = False) -> Layout:
        """The layout that a label names; the keywords stand for kernels that the label leaves out.

        Raises InputError with a sentence for each unknown, repeated, conflicting or impossible word.
        """
        from torchlayout.layout import label as grammar

        return grammar.parse(label, {"attention": attention, "norm": norm, "compile": compile})

    def __str__(self) -> str:
        """The canonical label: Layout.parse(str(layout)) == layout."""
        from torchlayout.layout import label as grammar

        return grammar.show(self)

    def micro_batches(self, global_batch: int) -> int:
        """Micro-batches of a data rank in a step: global_batch / (data_ranks x micro_batch), in sequences.

        Raises InputError with the equation and the nearest legal values where that is no whole number.
        """
        from torchlayout.layout import rules

        if problem := rules.batch_equation(self, global_batch):
            raise InputError(problem)
        return global_batch // (self.data_ranks * self.micro_batch)

    def stages_of(self, pipeline_rank: int) -> tuple[int, ...]:
        """Stages of a pipeline rank: r, r + pp, ... in a loop; r, 2 pp - 1 - r in a V (zbv, dualpipev).

        Raises ValueError for a rank that is not in the pipeline.
        """
        if not 0 <= pipeline_rank < self.pipeline:
            raise ValueError(f"pipeline rank {pipeline_rank} is outside 0..{self.pipeline - 1}")
        if self.schedule in words.V_SCHEDULES:
            return (pipeline_rank, 2 * self.pipeline - 1 - pipeline_rank)
        return tuple(range(pipeline_rank, self.stages, self.pipeline))

    def split(self, model: ModelConfig, sequence: int) -> tuple[range, ...]:
        """Layers of each stage, in order: every layer once, no stage empty, the slowest as fast as can be.

        Raises InputError where the model has fewer layers than the layout has stages.
        """
        from torchlayout.layout.split import split_layers

        return split_layers(model, sequence, self.stages)

    def check(self, model: ModelConfig, batch: int, sequence: int, precision: Precision) -> list[str]:
        """Every rule that this layout breaks, a sentence each; batch in sequences, sequence in tokens."""
        from torchlayout.layout import rules

        return rules.violations(self, model, batch, sequence, precision)

    @classmethod
    def enumerate(
        cls,
        world: int,
        model: ModelConfig,
        batch: int,
        sequence: int,
        precision: Precision,
        **constraints: object,
    ) -> Iterator[Layout]:
        """Every legal layout of `world` ranks, each once, lazily and in a fixed order.

        Free are the degrees, micro_batch, sequence_parallel, schedule with virtual_stages, context_method,
        zero and recompute (without ckptK, which has no end); kernels keep their defaults. A constraint names
        a field and the value or values that it may take, kernels and ckptK included: enumerate(...,
        tensor=(1, 2), recompute="none", attention=("sdpa", "flash")). It binds a choice only where its axis
        is above 1: schedule="gpipe" keeps the layouts without a pipeline. Raises InputError for an unknown
        field or value.
        """
        from torchlayout.layout.enumerate import enumerate_layouts

        return enumerate_layouts(world, model, batch, sequence, precision, constraints)
