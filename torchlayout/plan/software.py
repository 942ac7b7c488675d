"""How a training stack behaves: what the same formulas need to know to describe ours and other people's."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from torchlayout.errors import InputError
from torchlayout.files import read_toml
from torchlayout.layout.words import nearest
from torchlayout.tables import Section, sentences, shown

PROFILES = Path(__file__).parent / "software"
OURS = "torchlayout"

Bytes = Annotated[float, Field(ge=0, le=64)]


class Software(Section):
    """A stack as the planner sees it; facts that its code or its authors state, never fitted numbers."""

    name: str
    """Name for `--software`."""
    description: str
    """What the stack is, and where its behaviour is described."""
    sources: tuple[str, ...] = ()
    """Regular expressions; one found in the `source` of a measured row says that the row is of this stack."""

    # The model as this stack builds it.
    feed_forward: Literal["swiglu", "gelu"] = "swiglu"
    """Gated with three matrices, or two matrices."""
    learned_positions: bool = False
    """Whether positions are rows of a table, not rotations."""
    tied_head: bool = False
    """Whether the head uses the embedding's weights where a measured row does not say."""
    vocabulary_multiple: Annotated[int, Field(ge=1, le=65536)] = 1
    """The vocabulary is padded to a multiple of this times the tensor degree."""

    # Bytes of a parameter on its rank.
    parameter_bytes: Bytes = 2
    """The parameters that are computed with."""
    gradient_bytes: Bytes = 2
    """Gradients as backward leaves them."""
    accumulation_bytes: Bytes = 0
    """A second, wider gradient that micro-batches are added to."""
    optimizer_bytes: Bytes = 12
    """Master weights and both moments."""

    account: Literal["fitted", "exact"] = "fitted"
    """How memory is counted: by formulas with fitted coefficients, or tensor by tensor, which is for our own stack."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Whose kernels run: what they keep differs; for the exact account."""
    gathered_inputs: bool = True
    """Whether sequence parallelism keeps the gathered inputs of column-parallel products; else their shards."""
    streamed_tensor: bool = False
    """Whether gathers and scatters of tensor ranks run in streams of their own where there is no pipeline."""

    # Reduction over data ranks.
    reduce_bytes: Bytes | None = None
    """Format in which gradients are reduced; left out: as the run says."""
    reduce_method: Literal["all-reduce", "reduce-scatter"] = "all-reduce"
    """How zero1 reduces gradients."""
    reduce_overlap: bool = False
    """Whether the reduction runs beside the last micro-batch's backward."""

    fully_sharded: bool = False
    """Whether data ranks shard by FSDP, whose gathers and scatters run beside computing."""

    block_floor: bool = False
    """Whether blocks take a least time on several nodes, whatever they compute."""

    # Pipeline.
    split: Literal["cost", "cumulative", "items", "layers"] = "cost"
    """Layers to stages: so that the slowest is as fast as can be; in turn, by each stage's share of parameters with
    the head; embedding, layers, norm and head as items, evenly; layers alone, evenly."""
    hops_exposed: bool = False
    """Whether ranks wait while activations and gradients travel."""

    # Head and loss.
    gathered_logits: bool = False
    """Whether each tensor rank holds the logits of the whole vocabulary."""
    chunked_loss: bool = False
    """Whether the loss is computed in chunks that are not kept."""

    # Parameters that FSDP gathers.
    prefetch: Annotated[int, Field(ge=0, le=16)] = 1
    """Blocks gathered ahead of the one that computes."""
    compiled: bool = False
    """Whether torch.compile fuses element-wise work."""
    selective_every: Annotated[int, Field(ge=1, le=1000)] = 2
    """What the stack means by selective recomputation: every so-many-th block whole; 1: the attention core."""

    @classmethod
    def load(cls, name: str) -> Software:
        """The profile of that name or in a TOML file of that path; raises InputError where it is none."""
        if name in names():
            return _shipped(name)
        if name.endswith(".toml"):
            return _read(Path(name))
        raise InputError(f"software {shown(name)} is neither a profile nor a .toml file; {nearest(name, names())}")

    @classmethod
    def of_row(cls, source: str, note: str = "") -> Software | None:
        """The profile whose stack a measured row's `source`, with its `note`, names; None: not known.

        Of several the one that knows more of the text wins: a version of a stack before the stack.
        """
        text = f"{source}; {note}"
        found = [
            (len(match[0]), name)
            for name in names()
            for pattern in _shipped(name).sources
            if (match := re.search(pattern, text))
        ]
        return _shipped(max(found)[1]) if found else None


@cache
def _shipped(name: str) -> Software:
    return _read(PROFILES / f"{name}.toml")


@cache
def names() -> tuple[str, ...]:
    """Names of the profiles that are shipped."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.toml")))


def _read(path: Path) -> Software:
    try:
        return Software.model_validate({k: tuple(v) if isinstance(v, list) else v for k, v in read_toml(path).items()})
    except ValidationError as error:
        raise InputError(*sentences(error, str(path), Software)) from error
