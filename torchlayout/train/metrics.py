"""What a run leaves behind: run.json, metrics.jsonl, TensorBoard, and lines on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from rich.console import Console

from torchlayout.config import Config
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.model.count import flops_per_token, recomputed_flops_per_token
from torchlayout.model.initialize import held_part
from torchlayout.records import RunDirectory
from torchlayout.train.board import Board
from torchlayout.train.environment import device_name, fingerprint
from torchlayout.train.trainer import StepResult, Trainer

LAYOUT_CHOICES = (
    "pipeline",
    "replicate",
    "shard",
    "context",
    "tensor",
    "micro_batch",
    "sequence_parallel",
    "schedule",
)
SCALARS = ("loss", "grad_norm", "learning_rate", "seconds", "data_seconds", "tokens_per_second", "mfu", "hfu")


@dataclass(frozen=True)
class Speed:
    """Peak and work of one device, for MFU and HFU; FLOPs per token in the convention of arXiv 2311.05610."""

    peak_flops: float
    model_flops_per_token: float
    hardware_flops_per_token: float


def speed_of(config: Config, layout: Layout, device_name: str) -> tuple[Speed | None, str]:
    """The figures behind MFU, or None; with a sentence that names the device or says why there is no MFU."""
    name, dtype = config.hardware.name, config.precision.parameters
    hardware = Hardware.detect(device_name) if name == "auto" else Hardware.load(name)
    if hardware is None:
        return (
            None,
            f"no MFU: the peak of {device_name!r} is not known; set hardware.name to a device or a TOML file",
        )
    peak = hardware.peak(dtype)
    if peak is None:
        return None, f"no MFU: {hardware.name} states no peak for {dtype}"
    sequence = config.data.sequence_length
    needed = flops_per_token(config.model, sequence, "paper")
    again = recomputed_flops_per_token(config.model, sequence, layout, "paper", config.kernels.loss)
    return Speed(peak, needed, needed + again), f"MFU against {hardware.name}: {peak / 1e12:.0f} TFLOP/s in {dtype}"


class MetricsWriter:
    """Writes every step from rank 0; the other ranks keep nothing."""

    def __init__(
        self, trainer: Trainer, directory: RunDirectory, console: Console, resumed_from: str | None = None
    ) -> None:
        config, layout = trainer.config, trainer.layout
        self.directory, self.console = directory, console
        self.speed, self.speed_note = speed_of(config, layout, device_name(trainer.device))
        self.run: dict[str, Any] = {
            "layout": str(layout),
            "world": layout.world,
            "resumed_from": resumed_from,
            "initial_weights_digest": trainer.initial_weights_digest,
            "parameters_by_rank": _parameters_by_rank(trainer),
            **fingerprint(trainer.device),
            "mfu_note": self.speed_note,
            "exit_reason": "running",
        }
        self.last: dict[str, Any] = {}
        self.skipped_steps = 0
        self.board: Board | None = None
        if dist.get_rank() == 0:
            self._open(config, trainer.steps_done)

    def after_step(self, trainer: Trainer, result: StepResult) -> StepResult:
        """Record one step."""
        self.skipped_steps += result.skipped
        self.last = record(result, trainer.layout.world, self._tokens_in_step(trainer), self.speed)
        if self.board is not None:
            self.directory.append(self.last)
            values = {f"train/{name}": self.last[name] for name in SCALARS}
            values["train/peak_memory_gib"] = self.last["peak_memory_bytes"] / 2**30
            self.board.scalars(values | {"evaluation/loss": result.evaluation_loss}, result.step)
            self._print(trainer, result)
        return result

    def close(self, trainer: Trainer, exit_reason: str, final_weights_digest: str | None = None) -> None:
        """Say how the run ended, and with which weights."""
        if self.board is None:
            return
        outcome = {
            f"hparam/{name}": self.last[name]
            for name in ("loss", "tokens_per_second")
            if self.last.get(name) is not None
        }
        choices = {name: getattr(trainer.layout, name) for name in LAYOUT_CHOICES}
        choices |= {"label": str(trainer.layout), "learning_rate": trainer.config.optimizer.learning_rate}
        self.board.close(choices, outcome)
        self.run |= {
            "exit_reason": exit_reason,
            "steps": trainer.steps_done,
            "final_weights_digest": final_weights_digest,
            "skipped_steps": self.skipped_steps,
        }
        self.directory.write_run(self.run)

    def _open(self, config: Config, steps_done: int) -> None:
        self.directory.create()
        self.directory.keep_metrics_through(steps_done)
        config.write(self.directory.config_path)
        self.directory.write_run(self.run)
        texts = {"config": f"```toml\n{self.directory.config_path.read_text()}\n```", "layout": self.run["layout"]}
        self.board = Board(self.directory.tensorboard_path, self.console, steps_done=steps_done, texts=texts)

    def _tokens_in_step(self, trainer: Trainer) -> int:
        return trainer.config.batch.global_size * trainer.config.data.sequence_length

    def _print(self, trainer: Trainer, result: StepResult) -> None:
        steps = trainer.config.train.steps
        evaluated = result.evaluation_loss is not None
        if not (result.step % trainer.config.train.log_every == 0 or result.step in (1, steps) or evaluated):
            return
        line = (
            f"step {result.step:>{len(str(steps))}}/{steps}  loss {result.loss:.4f}  grad norm {result.grad_norm:.3f}  "
            f"{self.last['tokens_per_second']:,.0f} tokens/s  {self.last['peak_memory_bytes'] / 2**30:.2f} GiB"
        )
        if self.last["mfu"] is not None:
            line += f"  MFU {self.last['mfu']:.1%}"
        if evaluated:
            line += f"  evaluation loss {result.evaluation_loss:.4f}"
        if result.skipped:
            line += "  SKIPPED: loss or gradient not finite"
        self.console.print(line)


def record(result: StepResult, world: int, tokens_in_step: int, speed: Speed | None) -> dict[str, Any]:
    """One line of metrics.jsonl."""
    per_second = tokens_in_step / result.seconds
    utilisation: dict[str, float | None] = {"mfu": None, "hfu": None}
    if speed is not None:
        per_device = per_second / world / speed.peak_flops
        utilisation = {
            "mfu": per_device * speed.model_flops_per_token,
            "hfu": per_device * speed.hardware_flops_per_token,
        }
    evaluation = {} if result.evaluation_loss is None else {"evaluation_loss": result.evaluation_loss}
    return {
        "step": result.step,
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "learning_rate": result.learning_rate,
        "tokens": result.tokens,
        "seconds": result.seconds,
        "data_seconds": result.data_seconds,
        "tokens_per_second": per_second,
        "tokens_per_second_per_device": per_second / world,
        **utilisation,
        "peak_memory_bytes": max(result.peak_memory_bytes_by_rank),
        "peak_memory_bytes_by_rank": list(result.peak_memory_bytes_by_rank),
        "batch_digest": result.batch_digest,
        **evaluation,
        "skipped": result.skipped,
    }


def _parameters_by_rank(trainer: Trainer) -> list[int]:
    own = sum(held_part(parameter).local.numel() for parameter in trainer.model.parameters())
    counts: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(counts, own)
    return counts
