"""A 13B model on A100s as jobs, and layouts to draw."""

from __future__ import annotations

from hypothesis import strategies as st

from torchlayout.config import ModelConfig
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.estimate import Machine
from torchlayout.plan.job import Job
from torchlayout.plan.software import Software

A100 = Hardware.load("a100-sxm-80gb")
MODEL = ModelConfig(
    vocab_size=32000,
    hidden_size=5120,
    intermediate_size=13824,
    num_hidden_layers=40,
    num_attention_heads=40,
)
degrees = st.sampled_from([1, 2, 4])
layouts = st.builds(
    lambda pipeline, replicate, shard, tensor, recompute, norm, micro_batch: Layout(
        pipeline=pipeline,
        replicate=replicate,
        shard=shard,
        tensor=tensor,
        sequence_parallel=tensor > 1,
        recompute=recompute,
        norm=norm,
        micro_batch=micro_batch,
    ),
    degrees,
    degrees,
    degrees,
    degrees,
    st.sampled_from(["none", "ckpt", "ckpt2", "ckptattn", "selective"]),
    st.sampled_from(["fused", "eager"]),
    st.sampled_from([1, 2]),
)


def machine(software: str = "torchlayout", calibration: Calibration | None = None) -> Machine:
    return Machine(A100, Software.load(software), calibration or Calibration())


def job(layout: Layout | str, batch: int = 256, sequence: int = 2048, attention: str = "flash2") -> Job:
    return Job(MODEL, sequence, batch, Layout.parse(layout) if isinstance(layout, str) else layout, attention)
