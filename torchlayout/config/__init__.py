"""The configuration of a run as frozen, validated values."""

from torchlayout.config.load import Config
from torchlayout.config.model import ModelConfig, RopeScaling
from torchlayout.config.sections import (
    BatchSection,
    CheckpointSection,
    DataSection,
    HardwareSection,
    KernelsSection,
    LayoutSection,
    OptimizerSection,
    Precision,
    RunSection,
    TrainSection,
)

__all__ = [
    "BatchSection",
    "CheckpointSection",
    "Config",
    "DataSection",
    "HardwareSection",
    "KernelsSection",
    "LayoutSection",
    "ModelConfig",
    "OptimizerSection",
    "Precision",
    "RopeScaling",
    "RunSection",
    "TrainSection",
]
