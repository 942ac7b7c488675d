"""Loss on the held-out samples, every so many steps and at the end."""

from __future__ import annotations

from dataclasses import replace

from torchlayout.data.loader import evaluation_batches
from torchlayout.train.trainer import StepResult, Trainer


class Evaluation:
    """Adds `evaluation_loss` to the steps it falls on."""

    def after_step(self, trainer: Trainer, result: StepResult) -> StepResult:
        every = trainer.config.train.evaluate_every
        if every == 0 or not (result.step % every == 0 or result.step == trainer.config.train.steps):
            return result
        with trainer.mark("evaluation"):
            held_out = evaluation_batches(
                trainer.corpus,
                trainer.config.data,
                global_batch=trainer.config.batch.global_size,
                batches=trainer.config.train.evaluate_batches,
                rank=trainer.meshes.data_rank,
                world=trainer.layout.data_ranks,
            )
            return replace(result, evaluation_loss=trainer.evaluate(held_out))
