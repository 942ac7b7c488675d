"""Layout -> DeviceMesh with named axes."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torchlayout.errors import InputError
from torchlayout.layout import Layout


@dataclass(frozen=True)
class Meshes:
    """The ranks of a layout, arranged. Axes, outermost first: pp, dp, fsdp, cp, tp.

    `parameters` joins fsdp and cp, over which parameters are sharded, into one axis `shard`. It is a mesh of its own
    over the same ranks because torch has no public call that flattens two axes of a mesh.
    """

    layout: Layout
    axes: DeviceMesh
    parameters: DeviceMesh

    @property
    def data(self) -> DeviceMesh:
        """What fully_shard takes: [shard], or [dp, shard] where parameters are also replicated."""
        return self.parameters["dp", "shard"] if self.layout.replicate > 1 else self.parameters["shard"]

    @property
    def tensor(self) -> DeviceMesh:
        return self.parameters["tp"]

    def coordinate(self, axis: str) -> int:
        """This rank's place on an axis."""
        return self.axes.get_local_rank(axis)

    @property
    def data_rank(self) -> int:
        """Which slice of the global batch this rank takes, of `layout.data_ranks`."""
        return self.coordinate("dp") * self.layout.shard + self.coordinate("fsdp")


def build_meshes(layout: Layout, device_type: str) -> Meshes:
    """Arrange the ranks of the initialised process group; their number must be the layout's world size."""
    if dist.get_world_size() != layout.world:
        raise InputError(
            f"layout {layout} needs {layout.world} ranks, but {dist.get_world_size()} were launched: "
            f"set --nproc-per-node (x nodes) to {layout.world} or choose another layout"
        )
    pp, dp, fsdp, cp, tp = layout.pipeline, layout.replicate, layout.shard, layout.context, layout.tensor
    return Meshes(
        layout,
        axes=init_device_mesh(device_type, (pp, dp, fsdp, cp, tp), mesh_dim_names=("pp", "dp", "fsdp", "cp", "tp")),
        parameters=init_device_mesh(device_type, (pp, dp, fsdp * cp, tp), mesh_dim_names=("pp", "dp", "shard", "tp")),
    )
