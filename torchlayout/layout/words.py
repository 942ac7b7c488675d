"""The words of the layout grammar: axes, schedules, kernels; and which one a wrong word was meant to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

# Outermost first: ranks close together share the innermost axis, whose collectives are the most frequent.
AXES: Mapping[str, str] = MappingProxyType(
    {"pp": "pipeline", "dp": "replicate", "fsdp": "shard", "cp": "context", "tp": "tensor"}
)

SINGLE_STAGE_SCHEDULES = ("gpipe", "1f1b")
LOOPED_SCHEDULES = ("interleaved", "looped", "zerobubble")
V_SCHEDULES = ("zbv", "dualpipev")
SCHEDULES = SINGLE_STAGE_SCHEDULES + LOOPED_SCHEDULES + V_SCHEDULES
# The schedules that run the input gradient and the weight gradient of a stage apart.
ZERO_BUBBLE_SCHEDULES = ("zerobubble", "zbv", "dualpipev")

CONTEXT_METHODS = ("ring", "ulysses")
ATTENTIONS = ("sdpa", "math", "flash", "flex")
NORMS = ("fused", "eager")
ZEROS = (1, 2, 3)
RECOMPUTES = ("none", "ckpt", "ckptattn", "selective")
RECOMPUTE_EVERY = re.compile(r"ckpt([1-9][0-9]{0,8})", re.ASCII)

# Nine digits: far above any cluster, far below what Python refuses to turn into text.
LARGEST = 999_999_999


def nearest(word: str, legal: Iterable[str]) -> str:
    """Ending of a sentence about an unknown word: the nearest legal word if one is near, and all of them."""
    words = list(legal)
    near = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}legal: {', '.join(words)}"
