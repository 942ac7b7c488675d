"""A checkpoint on disk: what is in its folder, how it is committed, and how it is checked. Needs no torch.

checkpoints/step_<N>/
    rank_<R>.safetensors   what rank R wrote, each file a valid safetensors file
    index.json             step, data position, layout, configuration; for each tensor its chunks and where they are
    COMMITTED              written last: size and SHA-256 of every other file

A folder is written under a hidden name and renamed once COMMITTED is in it: a step_<N> is whole, or was damaged later.
"""

from torchlayout.checkpoint.folder import Checkpoint, Checkpoints, commit
from torchlayout.checkpoint.index import Chunk, Index, StoredTensor

__all__ = ["Checkpoint", "Checkpoints", "Chunk", "Index", "StoredTensor", "commit"]
