"""What the parity test trains: layouts of small models, each with a name for its model and data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchlayout.layout import Layout

STEPS = 5
GLOBAL_BATCH = 8
SEQUENCE = 32

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped-query": {},
    "tied": {"model": {"tie_word_embeddings": True}},
    "5 layers": {"model": {"num_hidden_layers": 5}},
    "9 layers": {"model": {"num_hidden_layers": 9, "tie_word_embeddings": True}},
    "ignored tokens": {"data": {"within_documents": True}},
    "odd vocabulary": {"model": {"vocab_size": 509, "num_key_value_heads": 4}},
    "plain loss, eager norm, math": {"kernels": {"loss": "plain", "norm": "eager", "attention": "math"}},
}


@dataclass(frozen=True)
class Case:
    """A layout and the variant of model and data it trains."""

    label: str
    variant: str = "grouped-query"

    @property
    def ranks(self) -> int:
        return Layout.parse(self.label).world

    def __str__(self) -> str:
        return f"{self.label} ({self.variant})"


COVERING = [
    Case("fsdp1+mb4", "ignored tokens"),
    Case("fsdp1+mb2", "plain loss, eager norm, math"),
    Case("fsdp1+ckpt"),
    Case("fsdp2+mb2+zero2", "tied"),
    Case("fsdp2+zero1", "ignored tokens"),
    Case("dp2"),
    Case("tp2", "plain loss, eager norm, math"),
    Case("tp2+sp", "tied"),
    Case("pp2+gpipe+mb2", "5 layers"),
    Case("pp2", "tied"),
    Case("pp2+interleaved2", "tied"),
    Case("pp2+looped2", "5 layers"),
    Case("pp2+zerobubble2"),
    Case("pp2+zbv", "tied"),
    Case("pp2+dualpipev", "tied"),
    Case("fsdp2+ckpt2", "5 layers"),
    Case("fsdp2+ckptattn", "ignored tokens"),
    Case("tp2+sp+selective", "odd vocabulary"),
    Case("fsdp2+compile"),
    Case("cp2", "ignored tokens"),
    Case("cp2+ulysses", "ignored tokens"),
    Case("cp2+ring+mb2", "plain loss, eager norm, math"),
    Case("fsdp4+mb2", "odd vocabulary"),
    Case("dp2-fsdp2"),
    Case("tp4+sp", "odd vocabulary"),
    Case("fsdp2-tp2", "tied"),
    Case("dp2-tp2"),
    Case("pp4", "5 layers"),
    Case("pp2-dp2+mb2", "5 layers"),
    Case("pp2-tp2+sp+zbv", "odd vocabulary"),
    Case("pp2-fsdp2+interleaved2+mb2", "ignored tokens"),
    Case("pp2-fsdp2+dualpipev", "5 layers"),
    Case("pp2-fsdp2+looped2+zero3"),
    Case("fsdp2-cp2", "tied"),
    Case("cp2-tp2+sp", "ignored tokens"),
    Case("pp2-cp2", "ignored tokens"),
    Case("dp2-cp2+selective"),
    Case("pp2-fsdp2-tp2+sp"),
    Case("dp2-fsdp2-tp2+sp", "odd vocabulary"),
    Case("pp2-dp2-fsdp2", "ignored tokens"),
    Case("pp2-cp2-tp2+sp+interleaved2", "tied"),
]
"""What the tests train: every choice, every schedule, every pair of axes, four triples."""

FURTHER = [
    Case("fsdp1"),
    Case("fsdp2"),
    Case("tp2"),
    Case("tp2+sp+mb2", "ignored tokens"),
    Case("pp2"),
    Case("dp4+mb2", "tied"),
    Case("fsdp2-tp2+sp+mb4", "ignored tokens"),
    Case("pp4+gpipe", "tied"),
    Case("pp2-fsdp2", "tied"),
    Case("pp2-fsdp2+gpipe+zero3", "ignored tokens"),
    Case("pp2-tp2+sp", "odd vocabulary"),
    Case("pp2-fsdp2+zerobubble2", "5 layers"),
    Case("pp2-fsdp2+zbv+zero1", "ignored tokens"),
    Case("pp4+zbv", "9 layers"),
    Case("fsdp2-tp2+sp+ckpt", "tied"),
    Case("pp2+ckpt+zbv"),
    Case("pp2+ckptattn+zerobubble2", "ignored tokens"),
    Case("pp2+ckpt2+dualpipev", "5 layers"),
    Case("pp2+selective+interleaved2"),
    Case("pp2-fsdp2+selective", "ignored tokens"),
    Case("tp2+sp+compile", "tied"),
    Case("pp2+compile+ckpt", "5 layers"),
    Case("fsdp2-tp2+compile", "odd vocabulary"),
    Case("cp2"),
    Case("cp2+ckptattn"),
    Case("cp4", "odd vocabulary"),
    Case("cp2-tp2+sp+ulysses", "odd vocabulary"),
    Case("pp2-cp2+ulysses+zbv"),
    Case("pp2-fsdp2-cp2"),
    Case("fsdp2-cp2-tp2+sp", "5 layers"),
    Case("fsdp8", "ignored tokens"),
    Case("pp2-fsdp2-tp2+sp+mb2", "tied"),
    Case("pp2-dp2-tp2+gpipe", "5 layers"),
]
"""What the benchmark trains as well."""

CASES = COVERING + FURTHER


def configuration(variant: str, corpus: str, precision: str, steps: int = STEPS) -> dict[str, Any]:
    """The tables of a configuration file, without [layout]."""
    base: dict[str, dict[str, Any]] = {
        "run": {"seed": 7},
        "model": {"preset": "debug"},
        "data": {"path": corpus, "sequence_length": SEQUENCE, "workers": 0},
        "batch": {"global_size": GLOBAL_BATCH},
        "precision": {"parameters": precision},
        # The limit is far below the gradient norms of a fresh model, so that every step is clipped. In fp32 a rate of
        # 1e-2 magnifies rounding: the plain loop itself is then 7e-5 from fp64 in gradient norm, more than is allowed.
        "optimizer": {
            "learning_rate": 1e-2 if precision == "fp64" else 1e-3,
            "clip_norm": 0.5,
            "warmup_steps": 2,
            "weight_decay": 0.1,
        },
        "train": {"steps": steps, "timeout_seconds": 120.0},
    }
    for section, values in VARIANTS[variant].items():
        base[section] = base.get(section, {}) | values
    return base
