"""Small questions for the planner: a model of a hundred million parameters on devices of a few GiB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchlayout.config import Config
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.plan.calibration import Calibration
from torchlayout.plan.estimate import Machine
from torchlayout.plan.search.limits import Limits
from torchlayout.plan.search.question import Question
from torchlayout.plan.software import Software

MODEL = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}


def question(
    gpus: int,
    memory_gib: float = 79.15,
    *,
    batch: int = 16,
    sequence: int = 1024,
    margin_gib: float = 0.0,
    fix: Sequence[str] = (),
    **sections: Any,
) -> Question:
    """Which layout of so many A100, with their memory as it is given, trains a small model fastest."""
    config = Config.from_dict(
        {
            "model": MODEL,
            "data": {"path": "nowhere", "sequence_length": sequence},
            "batch": {"global_size": batch},
            **sections,
        }
    )
    device = Hardware.load("a100-sxm-80gb").model_copy(update={"memory_gib": memory_gib})
    software = Software.load("torchlayout")
    machine = Machine(device, software, Calibration(), config.precision.parameters)
    return Question(config, machine, gpus, margin_gib, Limits.parse(fix))


def enumerated(asked: Question, **constraints: Any) -> list[Layout]:
    """Every legal layout of a question, by the one enumeration of layouts; it knows no conventions."""
    config = asked.config
    return list(
        Layout.enumerate(asked.gpus, config.model, asked.batch, asked.sequence, config.precision, **constraints)
    )
