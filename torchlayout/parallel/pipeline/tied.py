"""A tied embedding under a pipeline: both ends hold a copy, and the gradients of both are summed."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from torchlayout.model.llama import Llama
from torchlayout.parallel.mesh import Meshes


class TiedEnds:
    """The copies of the tied embedding among a rank's parts, which start equal and must stay so.

    Copies on two ranks meet in an all-reduce, copies on one rank (the two ends of a V) are added where they are.
    Constructing it is a collective call.
    """

    def __init__(self, parts: list[Llama], meshes: Meshes) -> None:
        self.embedding = next((part.embedding.weight for part in parts if part.embedding is not None), None)
        self.head = next((part.head.output.weight for part in parts if part.head is not None), None)
        self.group = _ends_group(meshes)

    def is_copy(self, parameter: nn.Parameter) -> bool:
        """Whether the parameter is the head's copy, which must not be counted beside the embedding."""
        return parameter is self.head

    def synchronise_gradients(self) -> None:
        """Give each copy the sum of both gradients."""
        gradients = [_local_gradient(copy) for copy in (self.embedding, self.head) if copy is not None]
        if len(gradients) == 2:
            gradients[0].add_(gradients[1])
            gradients[1].copy_(gradients[0])
        elif gradients:
            dist.all_reduce(gradients[0], group=self.group)


def _ends_group(meshes: Meshes) -> dist.ProcessGroup:
    """The first and the last rank of this rank's pipeline."""
    pipelines = meshes.axes.mesh.flatten(1).T.tolist()
    ends = [[ranks[0], ranks[-1]] for ranks in pipelines]
    middles = [[rank] for ranks in pipelines for rank in ranks[1:-1]]
    group, _ = dist.new_subgroups_by_enumeration(ends + middles)
    return group


def _local_gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
