"""Pipeline parallelism: cut the model into stages, and run micro-batches through them by a schedule."""

from torchlayout.parallel.pipeline.stages import stage_parts
from torchlayout.parallel.pipeline.step import PipelinedStep
from torchlayout.parallel.pipeline.tied import TiedEnds

__all__ = ["PipelinedStep", "TiedEnds", "stage_parts"]
