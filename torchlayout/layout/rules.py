"""The rules between a layout and what it trains: every violation is a sentence, before any process starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchlayout.layout import words

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig, Precision
    from torchlayout.layout.value import Layout


def violations(layout: Layout, model: ModelConfig, batch: int, sequence: int, precision: Precision) -> list[str]:
    """Every violated rule as a sentence; batch in sequences a step over all ranks, sequence in tokens."""
    return [
        *tensor_problems(layout, model),
        *_context(layout, model),
        *_sequence(layout, sequence),
        *pipeline_problems(layout, model),
        *_batch(layout, batch),
        *_split_backward(layout),
        *_kernels(layout, precision),
    ]


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(n) for n in numbers)


def tensor_problems(layout: Layout, model: ModelConfig) -> Iterator[str]:
    """Heads and feed-forward columns that the tensor axis can't share out evenly."""
    tensor, heads, kv_heads = layout.tensor, model.num_attention_heads, model.num_key_value_heads
    legal = f"legal degrees: {_listed(divisors(math.gcd(heads, kv_heads, model.intermediate_size)))}"
    if heads % tensor:
        yield f"layout.tensor = {tensor} does not divide num_attention_heads = {heads}; {legal}"
    if tensor > kv_heads and kv_heads != heads:
        yield (
            f"layout.tensor = {tensor} is above num_key_value_heads = {kv_heads}, which leaves ranks "
            f"without a key/value head; {legal}"
        )
    elif kv_heads % tensor and kv_heads != heads:
        yield f"layout.tensor = {tensor} does not divide num_key_value_heads = {kv_heads}; {legal}"
    if model.intermediate_size % tensor:
        size = model.intermediate_size
        yield f"layout.tensor = {tensor} does not divide intermediate_size = {size}; {legal}"


def _context(layout: Layout, model: ModelConfig) -> Iterator[str]:
    """A ring brings its own kernels; Ulysses trades the sequence for heads, which must split over context ranks."""
    if layout.context > 1 and layout.context_method == "ring" and layout.attention in ("flash", "flex"):
        yield (
            f'kernels.attention = "{layout.attention}" gives a ring no log-sum-exp to combine blocks by; '
            'legal: "sdpa" (the flash kernel of torch) or "math", or context_method = "ulysses"'
        )
    if layout.context_method != "ulysses":
        return
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    named = {"num_attention_heads": heads}
    if kv_heads != heads:
        named["num_key_value_heads"] = kv_heads
    for name, count in named.items():
        local = count // layout.tensor
        # A tensor degree that does not divide the heads has its own sentence.
        if count % layout.tensor == 0 and local % layout.context:
            legal = divisors(math.gcd(heads // layout.tensor, kv_heads // layout.tensor))
            yield (
                f'layout.context = {layout.context} under "ulysses" does not divide the {local} heads of '
                f"a tensor rank ({name} = {count} / layout.tensor = {layout.tensor}); "
                f'legal degrees: {_listed(legal)}, or context_method = "ring"'
            )


def _sequence(layout: Layout, sequence: int) -> Iterator[str]:
    context = layout.context
    # A ring balances causal attention by giving each rank one chunk from the head and one from the tail.
    chunks = 2 * context if context > 1 and layout.context_method == "ring" else context
    if sequence % chunks:
        equation = f"2 x layout.context = {chunks}" if chunks != context else f"layout.context = {context}"
        yield (
            f"data.sequence_length = {sequence} does not divide into {equation} parts "
            f'("{layout.context_method}"); nearest legal values: {_multiples(sequence, chunks)}'
        )
    parts = context * layout.tensor
    if layout.sequence_parallel and sequence % parts:
        among = f"layout.tensor = {layout.tensor}"
        if context > 1:
            among = f"layout.context x layout.tensor = {context} x {layout.tensor}"
        yield (
            f"data.sequence_length = {sequence} is not divisible by {among}, as sequence parallelism needs; "
            f"nearest legal values: {_multiples(sequence, math.lcm(chunks, parts))}"
        )


def _multiples(number: int, unit: int) -> str:
    below = number // unit * unit
    return _listed([n for n in (below, below + unit) if n > 0])


def pipeline_problems(layout: Layout, model: ModelConfig) -> Iterator[str]:
    """More stages than layers."""
    layers = model.num_hidden_layers
    if layers < layout.stages:
        stages = f"layout.pipeline = {layout.pipeline}"
        if layout.virtual_stages > 1:
            stages += f" with {layout.virtual_stages} stages on each rank"
        yield (
            f"{stages} makes {layout.stages} stages, more than num_hidden_layers = {layers}, which leaves "
            f"a stage empty; legal: at most {layers} stages"
        )


def batch_equation(layout: Layout, batch: int) -> str | None:
    """What is wrong with batch = data ranks x micro-batch x micro-batches, with the nearest; or None."""
    unit = layout.data_ranks * layout.micro_batch
    if batch >= unit and batch % unit == 0:
        return None
    return (
        f"batch.global_size = {batch} is not {layout.data_ranks} data ranks (layout.replicate = "
        f"{layout.replicate} x layout.shard = {layout.shard}) x layout.micro_batch = {layout.micro_batch} x "
        f"a whole number of micro-batches ({batch} / {unit} = {batch / unit:.6g}); "
        f"nearest legal values of batch.global_size: {_multiples(batch, unit)}"
    )


def _batch(layout: Layout, batch: int) -> Iterator[str]:
    if problem := batch_equation(layout, batch):
        yield problem
        return
    unit = layout.data_ranks * layout.micro_batch
    count = batch // unit
    if problem := micro_batch_problem(layout, count):
        sizes = _listed([unit * n for n in _nearest_counts(layout, count)])
        yield f"{problem}, from batch.global_size = {sizes} (now {batch})"


def micro_batch_problem(layout: Layout, count: int) -> str | None:
    """What is wrong with a step of `count` micro-batches under the layout's schedule, or None."""
    if accepts(layout, count):
        return None
    return (
        f'layout.schedule = "{layout.schedule}" on layout.pipeline = {layout.pipeline} '
        f"{_requirement(layout, count)} and there are {count}; "
        f"nearest legal numbers of micro-batches: {_listed(_nearest_counts(layout, count))}"
    )


def accepts(layout: Layout, micro_batches: int) -> bool:
    """Whether the layout's schedule runs this many micro-batches, by torch.distributed.pipelining's rules."""
    pipeline, schedule = layout.pipeline, layout.schedule
    if micro_batches < 1:
        return False
    if schedule == "1f1b":
        return micro_batches >= pipeline
    if schedule == "dualpipev":
        return micro_batches >= layout.stages
    if schedule in ("interleaved", "zerobubble"):
        return micro_batches % max(1, micro_batches // pipeline) == 0
    return True


def _requirement(layout: Layout, count: int) -> str:
    if layout.schedule == "1f1b":
        return f"needs at least {layout.pipeline} micro-batches, one for each pipeline rank,"
    if layout.schedule == "dualpipev":
        return f"needs at least {layout.stages} micro-batches, one for each stage,"
    rounds = max(1, count // layout.pipeline)
    return f"runs them in {rounds} equal rounds, so needs a multiple of {rounds},"


def _nearest_counts(layout: Layout, count: int) -> list[int]:
    below = next((n for n in range(count - 1, 0, -1) if accepts(layout, n)), None)
    above = next(n for n in range(count + 1, count + 2 * layout.stages + 2) if accepts(layout, n))
    return [above] if below is None else [below, above]


def _split_backward(layout: Layout) -> Iterator[str]:
    """What torch 2.13 computes wrongly, or not at all, under a schedule that splits the backward."""
    if layout.schedule not in words.ZERO_BUBBLE_SCHEDULES:
        return
    others = "gpipe, 1f1b, interleavedN or loopedN"
    if layout.zero == 3:
        yield (
            f"layout.zero = 3 frees parameters between the halves of a backward that schedule "
            f'"{layout.schedule}" splits, and gradients come out wrong or missing; '
            f"legal: zero 1 or 2, or schedule {others}"
        )
    if layout.recompute == "selective":
        yield (
            f'layout.recompute = "selective" keeps results that the two halves of a backward would both take, and '
            f'schedule "{layout.schedule}" splits it, which torch cannot do; '
            f"legal: recompute none, ckpt, ckptK or ckptattn, or schedule {others}"
        )
    if layout.compile:
        yield (
            f'kernels.compile = true gives wrong gradients under schedule "{layout.schedule}", which splits '
            f"the backward (pytorch#161904); legal: compile = false, or schedule {others}"
        )


def _kernels(layout: Layout, precision: Precision) -> Iterator[str]:
    if layout.attention == "flash" and precision.parameters != "bf16":
        yield (
            'kernels.attention = "flash" computes in 16 bits and precision.parameters = '
            f'"{precision.parameters}"; legal: precision.parameters = "bf16", or attention sdpa, math or flex'
        )
