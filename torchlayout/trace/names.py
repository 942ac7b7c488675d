"""What an event is, by its name: kernels and operators by class, collectives by kind, groups by axis.

Names change with each release of a library, so each class is told by several families of names, and what is in none
of them is `other`: listed, never dropped.
"""

from __future__ import annotations

import re
from functools import lru_cache

# Inductor names what it fuses after operators; only its templates (tem) are products or attention.
FUSED = re.compile(r"triton_(poi|red|per|foreach|for)_")
GEMM = re.compile(
    r"(?<!fb)gemm|gemv|scudnn|cutlass::Kernel|Cijk_|cublas|hipblas|rocblas|xmma|wgmma|nvjet|splitK|matmul|scaled_mm|"
    r"::(add)?mm|::b(add)?mm|::_?linear|mkldnn_linear|[_d]mm(?![a-z])|_bmm|conv_depthwise|convolution|implicit_convolve|"
    r"cudnn.*(conv(?!ert)|fprop|dgrad|wgrad)",
    re.IGNORECASE,
)
ATTENTION = re.compile(
    r"flash(?!infer)|fmha|attention|_sdpa|sdpa_|AttnFwd|attn_fwd|attn_bwd|bwd_kernel_d[kq]|bwd_preprocess|flex_att|"
    r"cudnn::fusion::(compute_dot_do_o|convert_dq)",
    re.IGNORECASE,
)
ELEMENTWISE = re.compile(
    r"elementwise|reduce|softmax|norm|multi_tensor_apply|foreach|cub::|rocprim|silu|gelu|swiglu|"
    r"copy|Memcpy|Memset|fill|(?<![a-z])cat(?![a-z])|CatArray|embedding|index|gather|scatter|dropout|rope|rotary|adam|"
    r"nll_loss|cross_entropy|transpose|nchw|nhwc|scan|sort|pool|bn_(fw|bw)|distribution|RowwiseMoments|GammaBeta|"
    r"permute|amax|clamp|lerp|where|arange|convert|quantize|aten::",
    re.IGNORECASE,
)
COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|nvshmem|^c10d|^gloo:|multimem_|(one|two)_shot_all_reduce|cross_device_reduce", re.IGNORECASE
)

COLLECTIVES = (
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("send_recv", re.compile(r"send_?recv|coalesced", re.IGNORECASE)),
    ("send", re.compile(r"send", re.IGNORECASE)),
    ("recv", re.compile(r"recv|receive", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
)
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})

AXES = ("tp", "cp", "pp", "fsdp", "dp", "world", "other")
# How DeviceMesh describes the group of an axis; torchlayout's `shard` is fsdp and cp as one.
AXIS_OF = {"shard": "fsdp", "dp_shard": "fsdp", "dp_replicate": "dp", "default_pg": "world", "ep": "other"}


@lru_cache(maxsize=2**16)
def kernel_class(name: str) -> str:
    """gemm, attention, elementwise or other."""
    if FUSED.search(name):
        return "elementwise"
    if ATTENTION.search(name):
        return "attention"
    if GEMM.search(name):
        return "gemm"
    return "elementwise" if ELEMENTWISE.search(name) else "other"


@lru_cache(maxsize=2**12)
def is_communication(name: str) -> bool:
    """Whether a kernel moves data between ranks."""
    return COMMUNICATION.search(name) is not None


@lru_cache(maxsize=2**12)
def collective(name: str) -> str:
    """all_gather, reduce_scatter, send, ...: from a kernel's name, or a backend's; else other."""
    return next((kind for kind, pattern in COLLECTIVES if pattern.search(name)), "other")


def axis(description: str) -> str:
    """The axis of a process group by its description, such as mesh_tp."""
    name = description.removeprefix("mesh_")
    name = AXIS_OF.get(name, name)
    return name if name in AXES else "other"
