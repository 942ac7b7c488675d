"""A pipeline stage that marks its work in a trace."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import PipelineStage

from torchlayout.parallel.mark import Mark, unmarked


class MarkedStage(PipelineStage):
    """Torch's stage, with a range around every action; all schedules run a stage through these methods alone.

    Receiving and sending are outside of the ranges: a schedule waits before a stage works, and sends after it.
    """

    mark: Mark = staticmethod(unmarked)

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """F of one micro-batch."""
        with self.mark("forward", stage=self.stage_index, micro_batch=fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *arguments, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """B of one micro-batch, or under full_backward=False its I."""
        with self.mark("backward", stage=self.stage_index, micro_batch=bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, *arguments, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **options: Any) -> Any:
        """W of one micro-batch."""
        with self.mark("weight", stage=self.stage_index, micro_batch=bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *arguments, **options)

    def perform_reduce_grad(self, *arguments: Any, **options: Any) -> Any:
        """FSDP's reduction of the gradients, which torch does once after a stage's last backward."""
        with self.mark("reduce", stage=self.stage_index):
            return super().perform_reduce_grad(*arguments, **options)
