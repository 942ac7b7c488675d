"""What one micro-batch leaves on a rank of our own stack, tensor by tensor, and what its backward adds to that.

Every figure is bytes on one rank and follows from the tensors that autograd saves; `benchmarks/memory_tracked.py`
finds the same ones in real steps on the CPU. Where CUDA differs `Software.device` decides: here a fused norm keeps its
input instead of two wider copies, in fsdp2_phases.py NCCL lets go of what it has sent and a fused AdamW needs no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchlayout.plan.job import WIDTH

if TYPE_CHECKING:
    from torchlayout.plan.job import Job
    from torchlayout.plan.shape import Shape
    from torchlayout.plan.time.block import Blocks

CHUNK_TOKENS = 1024
"""Rows of logits that the chunked loss has at once; that of `model.loss`, which cannot be imported without torch."""

Three = tuple[float, float, float]


class Case(NamedTuple):
    """All that decides what a micro-batch keeps."""

    shape: Shape
    compute: int
    """Bytes of a number in computation."""
    micro_batch: int
    sequence: int
    context: int
    tensor: int
    sequence_parallel: bool
    ring: bool
    eager_norm: bool
    fused_norm: bool
    """Whether one kernel computes the norm, which is so on CUDA only."""
    scores: bool
    """Whether attention has score matrices in memory."""
    recompute: str
    """ckptattn, selective, or nothing inside of a block."""
    plain: bool
    """Whether the loss has all logits at once."""

    @classmethod
    def of(cls, blocks: Blocks, job: Job) -> Case:
        """The case of a job."""
        layout = job.layout
        return cls(
            blocks.shape(job),
            WIDTH[job.precision],
            layout.micro_batch,
            job.sequence,
            layout.context,
            layout.tensor,
            layout.sequence_parallel,
            layout.context > 1 and layout.context_method == "ring",
            layout.norm == "eager",
            layout.norm == "fused" and blocks.software.device == "cuda",
            job.attention in ("unfused", "fused-softmax"),
            layout.recompute if layout.recompute in ("ckptattn", "selective") else "",
            job.loss == "plain",
        )

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on the rank."""
        return self.micro_batch * self.sequence // self.context


class Sizes(NamedTuple):
    """Bytes on one rank of the tensors that a micro-batch consists of."""

    wide: int
    """Of a number that is never narrower than fp32: softmax, loss, rotary tables, 1 / rms."""
    entry: float
    """A hidden state between blocks, cut over tensor ranks under sequence parallelism."""
    hidden: float
    """A hidden state of all the rank's tokens."""
    query: float
    keys: float
    inner: float
    norm: float
    """What a norm keeps."""
    shared: bool
    """Whether that holds its input itself, not a wider copy."""
    sums: float
    """The logarithms of sums of an attention kernel."""
    scores: float
    """Elements of the score matrices that attention has in memory; 0 for a kernel without."""
    softmax: float
    """What is kept of them: softmax in fp32 or wider, and the mask, which all heads share."""
    cast: float
    """And softmax in the format of computation where that is narrower."""


class High(NamedTuple):
    """A high point of a block's backward: bytes that are gone of what the block kept, that recomputation has brought
    back and that work takes; and the parameters whose gradients are there."""

    phase: str
    gone: float
    again: float
    work: float
    parameters: float


class Kept(NamedTuple):
    """Bytes that a micro-batch keeps on one rank from its forward to its backward, and what comes and goes."""

    entry: float
    """A hidden state between blocks; all that a block keeps which is recomputed whole."""
    block: float
    """What any other block keeps."""
    shared: bool
    """Whether that holds the block's input itself, not a wider copy."""
    halved: float
    """Gradients that a block keeps between the halves of a split backward."""
    tables: float
    """Rotary tables, once a stage."""
    head: float
    loss: float
    highs: tuple[High, ...]
    """Of a block that is not recomputed whole."""
    recomputed_highs: tuple[High, ...]
    """Of a block that is; only one is at a time."""
    norm_work: float
    inner: float
    """One inner tensor of the feed-forward part."""
    weights: float
    """What recomputing a block for the second half of a split backward holds for each of its weights."""
    loss_forward: float
    loss_input: float
    """What of the head's input and result is there in the loss and not kept."""
    loss_backward: float
    loss_hidden: float
    """The gradient of the head's result in the loss's backward."""
    loss_gradient: float
    """The head's gradient there."""


def kept(blocks: Blocks, job: Job) -> Kept:
    """What a micro-batch of a job keeps and needs."""
    key = (job.piece, job.layout.recompute, job.precision)
    return blocks.once("kept", job, key, lambda: _kept(Case.of(blocks, job)))


def _kept(case: Case) -> Kept:
    of, shape = _sizes(case), case.shape
    whole = 2 * of.norm + _attention(case, of) + 4 * of.inner
    block = whole
    if case.recompute == "ckptattn":
        block = 2 * of.norm + 2 * of.query + 2 * of.keys + 4 * of.inner
    elif case.recompute == "selective":
        # Input; queries, keys and values before rotation; attention's output or the scores and it; gate and up; the
        # results of the output projection and of down.
        attended = of.scores * case.compute if of.scores else of.sums
        block = 2 * of.query + 2 * of.keys + 2 * of.inner + 3 * of.entry + attended
    logits = _loss_work(case, of)
    return Kept(
        entry=of.entry,
        block=block,
        shared=of.shared or case.recompute == "selective",
        # Gradients of gate and up, queries, keys and values, both norms' results and both sums but the block's input.
        halved=2 * of.inner + of.query + 2 * of.keys + 2 * of.hidden + of.entry,
        tables=case.tokens * shape.query / shape.heads * of.wide,
        head=of.norm,
        loss=case.tokens * of.wide * (shape.vocabulary if _all_logits(case) else 1),
        highs=_highs(case, of),
        recomputed_highs=_recomputed_highs(case, of, whole),
        norm_work=_norm_work(case, of),
        inner=of.inner,
        weights=whole - 2 * of.norm + (of.entry if of.shared else 0.0),
        loss_forward=logits[0],
        # Neither the input is free yet, where the norm keeps a wider copy, nor the result that has been gathered.
        loss_input=0.0 if of.shared and not case.sequence_parallel else of.entry,
        loss_backward=logits[1],
        loss_hidden=0.0 if _all_logits(case) else of.hidden,
        loss_gradient=logits[2],
    )


def _sizes(case: Case) -> Sizes:
    shape, compute, tensor, tokens = case.shape, case.compute, case.tensor, case.tokens
    wide = max(4, compute)
    hidden = tokens * shape.hidden * compute
    across = tensor if case.sequence_parallel else 1
    # The input, the normed input where no kernel fuses that away, 1 / rms; and whole the result. What the CPU calls
    # fused is single operations in fp32 too; a norm from single operations of ours narrows the normed input again.
    copies = compute if case.fused_norm else wide + compute if case.eager_norm else 2 * wide
    scores = 0.0
    if case.scores:
        scores = tokens * shape.heads / tensor * case.sequence / (case.context if case.ring else 1)
    return Sizes(
        wide,
        entry=hidden / across,
        hidden=hidden,
        query=tokens * shape.query * compute / tensor,
        keys=tokens * shape.keys * compute / tensor,
        inner=tokens * shape.inner * compute / tensor,
        norm=tokens * (shape.hidden * copies + wide) / across + hidden,
        shared=case.fused_norm or compute == wide,
        sums=tokens * shape.heads / tensor * wide,
        scores=scores,
        softmax=scores * wide + case.micro_batch * case.sequence**2 if scores else 0.0,
        cast=scores * compute if compute < wide else 0.0,
    )


def _norm_work(case: Case, of: Sizes) -> float:
    """Backward of a norm: from single operations it is in fp32."""
    return 2 * of.entry if case.fused_norm else (5 * of.wide / case.compute + 1) * of.entry


def _attention(case: Case, of: Sizes) -> float:
    """Rotated queries and keys, values and the output, with what the kernel needs."""
    if of.scores and not case.ring:
        # Keys and values are repeated for all query heads.
        return 4 * of.query + of.softmax + of.cast
    # A ring keeps the output as it was summed and as a copy for the projection, and no scores; Ulysses before and
    # after its exchange.
    return 2 * of.query + 2 * of.keys + of.sums + (of.query if case.context > 1 else 0.0)


def _highs(case: Case, of: Sizes) -> tuple[High, ...]:
    """In the feed-forward part, in the norm before, and over a score matrix in attention."""
    if case.recompute == "selective":
        # Once recomputed, what was kept before the rotation and the output projection's result have been used.
        used = of.query + of.keys + of.entry
        again = 2 * of.norm - of.entry + of.query + of.keys
        gone = (used, used + 2 * of.inner, used + 2 * of.inner + of.scores * case.compute + of.keys + of.query)
        brought = (again + of.inner, again, of.norm - of.entry + of.softmax + 2 * of.query)
    elif case.recompute == "ckptattn":
        gone = (of.inner, 4 * of.inner, 4 * of.inner + of.norm + of.query)
        brought = (0.0, 0.0, 0.0 if case.ring else of.softmax + of.query)
    else:
        gone = (of.inner, 4 * of.inner, 4 * of.inner + of.norm + _attended(case, of))
        brought = (0.0, 0.0, 0.0)
    return _points(case, of, gone, brought)


def _recomputed_highs(case: Case, of: Sizes, whole: float) -> tuple[High, ...]:
    again = whole - (of.entry if of.shared else 0.0)
    later = again - 4 * of.inner
    return _points(case, of, (0.0, 0.0, 0.0), (again - of.inner, later, later - of.norm - _attended(case, of)))


def _attended(case: Case, of: Sizes) -> float:
    """What is gone in attention: the output, with the repeated values and the cast; a ring's copy of it alone."""
    return of.query if case.ring else 2 * of.query + of.cast


def _points(case: Case, of: Sizes, gone: Three, again: Three) -> tuple[High, ...]:
    attention = 2 * of.scores * of.wide + of.query
    if case.ring:
        attention = 3 * of.scores * of.wide + 5 * of.query / case.compute * of.wide
    works = (3 * of.inner, _norm_work(case, of), attention)
    shape, names = case.shape, ("feed-forward", "norm", "attention") if of.scores else ("feed-forward", "norm")
    matrix, projection = shape.inner * shape.hidden / case.tensor, shape.query * shape.hidden / case.tensor
    parameters = (matrix, 3 * matrix, 3 * matrix + projection)
    points = list(map(High, (f"backward: {name}" for name in names), gone, again, works, parameters))
    # The gradients so far may be there or not, so a point can only be left out for one before it.
    return tuple(
        point for number, point in enumerate(points) if not any(_over(case, p, point) for p in points[:number])
    )


def _over(case: Case, earlier: High, later: High) -> bool:
    """Whether the earlier point is always the higher one."""
    more = (later.parameters - earlier.parameters) * case.compute
    return earlier.again + earlier.work - earlier.gone >= later.again + later.work - later.gone + more


def _all_logits(case: Case) -> bool:
    """Whether log-probabilities are kept; a plain loss over a cut vocabulary is the chunked one with one chunk."""
    return case.plain and case.tensor == 1


def _loss_work(case: Case, of: Sizes) -> Three:
    """Bytes of logits in the loss's forward and in its backward, and of the head's gradient in backward."""
    words = -(-case.shape.vocabulary // case.tensor)
    if _all_logits(case):
        both = 2 * case.tokens * words * of.wide
        return both, both, 0.0
    rows = case.tokens if case.plain else min(CHUNK_TOKENS, case.tokens)
    logits, weight = rows * words, words * case.shape.hidden
    narrow = logits * case.compute if case.compute < of.wide else 0
    # Logits, without their maximum, and exponentiated; then logits without their sums, or the weight's gradient.
    backward = max(2 * logits * of.wide, weight * case.compute + logits * of.wide + narrow)
    return 3 * logits * of.wide, backward, weight * of.wide
