"""What bounds the search where no `--fix` says otherwise."""

from __future__ import annotations

SCHEDULES = ("1f1b", "interleaved", "zerobubble", "zbv")
MOST_VIRTUAL_STAGES = 8
RECOMPUTES = ("none", "selective", "ckptattn", "ckpt", "ckpt2", "ckpt4")
LONG_SEQUENCE = 16384
TOKENS_OF_A_CONTEXT_RANK = 2048
TOKENS_OF_A_MICRO_BATCH = 65536

CONVENTIONS = (
    "tensor stays within a node",
    f"context is 1 for sequences below {LONG_SEQUENCE:,} tokens, unless nothing fits without, and leaves a rank at "
    f"least {TOKENS_OF_A_CONTEXT_RANK:,} tokens of each",
    f"micro_batch is 1 or a power of two with which a micro-batch has at most {TOKENS_OF_A_MICRO_BATCH:,} tokens",
    f"schedule is {', '.join(SCHEDULES[:-1])} or {SCHEDULES[-1]}, with virtual_stages up to {MOST_VIRTUAL_STAGES}",
    f"recompute is {', '.join(RECOMPUTES[:-1])} or {RECOMPUTES[-1]}",
    "attention, norm and compile are those of the configuration",
)
"""Of a field that no `--fix` names; one that is named takes every legal value within what it says."""
EPILOG = f"Searched are all legal layouts in which {'; '.join(CONVENTIONS)}. --fix of a field lifts what is said of it."
