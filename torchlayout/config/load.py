"""The whole configuration as one frozen value: loaded with overrides, checked, written back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from torchlayout.config.model import ModelConfig, spell_out
from torchlayout.config.override import override
from torchlayout.config.sections import (
    BatchSection,
    CheckpointSection,
    DataSection,
    HardwareSection,
    KernelsSection,
    LayoutSection,
    OptimizerSection,
    Precision,
    ProfileSection,
    RunSection,
    TrainSection,
)
from torchlayout.errors import InputError
from torchlayout.files import read_toml, write_atomically
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.layout.words import nearest
from torchlayout.tables import Section, refuse, sentences, shown


class Config(Section):
    """A run: what is trained, on what, how it is laid out, and for how long."""

    run: RunSection = RunSection()
    """Where a run is written, and the seed it starts from."""
    model: ModelConfig
    """The shape of the model."""
    data: DataSection
    """Which tokens are trained on."""
    batch: BatchSection = BatchSection()
    """What one optimizer step consumes."""
    layout: LayoutSection = LayoutSection()
    """How the run is laid out over the ranks."""
    kernels: KernelsSection = KernelsSection()
    """Which implementation computes each part."""
    precision: Precision = Precision()
    """The number formats."""
    optimizer: OptimizerSection = OptimizerSection()
    """AdamW and its learning-rate schedule."""
    train: TrainSection = TrainSection()
    """The loop."""
    checkpoint: CheckpointSection = CheckpointSection()
    """When the state of training is saved, and what a run continues."""
    profile: ProfileSection = ProfileSection()
    """Which steps are profiled, and on which ranks."""
    hardware: HardwareSection = HardwareSection()
    """What the run is measured against."""

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = (), layout: str | None = None) -> Config:
        """The configuration in a TOML file, with `section.key=value` overrides; `layout` replaces [layout].

        Raises InputError with a sentence for each thing that is wrong.
        """
        raw = read_toml(Path(path))
        problems: list[str] = []
        for text in overrides:
            try:
                raw = override(raw, text, KEYS)
            except InputError as error:
                problems += error.problems
        if layout is not None:
            raw = raw | {"layout": {"label": layout}}
        try:
            config = cls.from_dict(raw)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(*problems)
        return config

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Config:
        """The configuration that the tables of a TOML file describe.

        Raises InputError with a sentence for each thing that is wrong.
        """
        problems = [f"[{name}] is not a section; {nearest(name, SECTIONS)}" for name in raw if name not in SECTIONS]
        sections: dict[str, Section] = {}
        for name, model in SECTIONS.items():
            try:
                sections[name] = _section(name, model, raw.get(name, {}))
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(*problems)
        try:
            return cls(**sections)  # type: ignore[arg-type]
        except ValidationError as error:
            raise InputError(*sentences(error, "config", cls)) from error

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        steps, warmup, problems = self.train.steps, self.optimizer.warmup_steps, []
        if warmup > steps:
            problems.append(f"optimizer.warmup_steps = {warmup} is above train.steps = {steps}; legal: 0 to {steps}")
        elif self.optimizer.decay == "wsd" and warmup > steps * (1 - self.optimizer.decay_fraction):
            problems.append(
                f"optimizer.warmup_steps = {warmup} reaches into the decay of "
                f"optimizer.decay_fraction = {self.optimizer.decay_fraction} of train.steps = {steps}; "
                f"legal: 0 to {int(steps * (1 - self.optimizer.decay_fraction))}"
            )
        if self.train.evaluate_every and not self.data.evaluation_fraction:
            problems.append(
                f"train.evaluate_every = {self.train.evaluate_every} needs samples that are held out; "
                "set data.evaluation_fraction above 0, or train.evaluate_every = 0"
            )
        if window := self.profile.problem_within(steps):
            problems.append(window)
        if problems:
            raise refuse(*problems)
        return self

    def layout_for(self, world: int) -> Layout:
        """The layout of this run on `world` ranks; without a [layout] section `fsdp<world>`.

        Raises InputError where the layout has another number of ranks.
        """
        layout = self._layout(world)
        if layout.world != world:
            raise InputError(
                f"layout {layout} is for {layout.world} ranks, but there are {world}; "
                f"start {layout.world} ranks or choose degrees whose product is {world}"
            )
        return layout

    def check(self, world: int | None = None) -> list[str]:
        """Everything that is wrong on `world` ranks, a sentence each; None: the ranks the layout asks for."""
        problems: list[str] = []
        if self.hardware.name != "auto":
            try:
                Hardware.load(self.hardware.name)
            except InputError as error:
                problems += error.problems
        try:
            layout = self._layout(1) if world is None else self.layout_for(world)
        except InputError as error:
            return [*problems, *error.problems]
        if ranks := self.profile.problem_on(layout.world):
            problems.append(ranks)
        return problems + layout.check(self.model, self.batch.global_size, self.data.sequence_length, self.precision)

    def write(self, path: str | Path) -> None:
        """Writes every value, defaults too, as a file that can be loaded again; whole or not at all."""
        import tomli_w

        write_atomically(Path(path), tomli_w.dumps(self.tables()))

    def tables(self) -> dict[str, dict[str, Any]]:
        """Every value, defaults too, as the tables of a file."""
        return {name: table for name, table in self.model_dump(exclude_none=True).items() if table}

    def _layout(self, world: int) -> Layout:
        kernels = self.kernels
        return self.layout.layout(world, attention=kernels.attention, norm=kernels.norm, compile=kernels.compile)


SECTIONS: dict[str, type[Section]] = {
    "run": RunSection,
    "model": ModelConfig,
    "data": DataSection,
    "batch": BatchSection,
    "layout": LayoutSection,
    "kernels": KernelsSection,
    "precision": Precision,
    "optimizer": OptimizerSection,
    "train": TrainSection,
    "checkpoint": CheckpointSection,
    "profile": ProfileSection,
    "hardware": HardwareSection,
}
KEYS = {
    section: ("preset", "huggingface") * (section == "model") + tuple(model.model_fields)
    for section, model in SECTIONS.items()
}


def _section(name: str, model: type[Section], table: Any) -> Section:
    if not isinstance(table, dict):
        raise InputError(f"{name} = {shown(table)} is not a table of keys; write [{name}] above its keys")
    if model is DataSection and "path" not in table:
        raise InputError("data.path is missing; give the folder that `torchlayout data prepare` wrote")
    try:
        return model.model_validate(spell_out(table) if model is ModelConfig else table)
    except ValidationError as error:
        raise InputError(*sentences(error, name, model)) from error
