"""The configuration of a planned layout, as a file that the trainer runs."""

from __future__ import annotations

from pathlib import Path

from torchlayout.config import Config, HardwareSection, LayoutSection
from torchlayout.errors import InputError
from torchlayout.files import check_writable
from torchlayout.layout import Layout
from torchlayout.plan.search.question import Question


def check_target(target: Path, source: Path, question: Question, named: Layout | None) -> None:
    """Raises InputError where a plan can't be written to `target`, or a named layout can't be trained."""
    check_writable(target)
    if target.resolve() == source.resolve():
        raise InputError(f"--write {target} is the configuration itself; give another file")
    if named is None:
        return
    problems = question.problems(named)
    if named.world != question.gpus:
        problems.insert(0, f"it is for {named.world} GPUs and there are {question.gpus}")
    if problems:
        raise InputError(*(f"--write {target}: {named} is not legal: {problem}" for problem in problems))


def write_config(config: Config, layout: Layout, hardware: str, target: Path) -> None:
    """Writes the configuration with another layout and device, every other value as it was.

    Raises InputError where that can't be.
    """
    # A label leaves out kernels that are the defaults; a section that names others would fill them in again.
    kernels = {"attention": layout.attention, "norm": layout.norm, "compile": layout.compile}
    # A device's own file is named whole, so that the configuration may be read from any folder.
    name = str(Path(hardware).resolve()) if hardware.endswith(".toml") else hardware
    update = {
        "layout": LayoutSection(label=str(layout)),
        "kernels": config.kernels.model_copy(update=kernels),
        "hardware": HardwareSection(name=name),
    }
    try:
        config.model_copy(update=update).write(target)
    except OSError as error:
        raise InputError(f"--write {target} can't be written: {error.strerror or error}; give another file") from error
