"""Saving in one layout and continuing in another; also the script of its ranks: resume.py JOBS.json RESULTS.pt.

JOBS.json: a list of {"label", "config", "load": folder or null, "save": folder or null}. Each trains to SAVED_AT steps
(or loads a checkpoint of that step, saves it, and loads that), saves, and takes FURTHER steps; RESULTS.pt holds what
those came to.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from rich.console import Console

from harness.cases import configuration
from harness.launch import torchrun
from torchlayout.checkpoint import Checkpoint, Checkpoints
from torchlayout.config import Config
from torchlayout.layout import Layout
from torchlayout.train.checkpoint import Saver
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.leave import leave
from torchlayout.train.state import load_state
from torchlayout.train.trainer import Trainer

SAVED_AT, FURTHER = 2, 3
LAYOUTS = (
    "fsdp1+mb2",
    "fsdp2+zero1",
    "tp2+sp",
    "pp2+interleaved2",
    "fsdp4",
    "pp2-tp2+sp+zbv",
    "dp2-cp2",
    "pp2-fsdp2-tp2+sp",
)


def resume_configuration(corpus: str, label: str) -> dict[str, Any]:
    """A model that no layout cuts evenly: 5 layers, tied, 509 words; every second layout saves asynchronously."""
    raw = configuration("tied", corpus, "fp64", steps=SAVED_AT + FURTHER)
    raw["model"] |= {"num_hidden_layers": 5, "vocab_size": 509}
    raw["checkpoint"] = {"every": 1, "asynchronous": LAYOUTS.index(label) % 2 == 1}
    return raw


def save_under_each(labels: tuple[str, ...], corpus: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Train to SAVED_AT under each layout, save to folder/LABEL, and go on; what the further steps came to."""
    jobs = {label: _job(label, corpus, save=folder / label) for label in labels}
    return _run(jobs, folder)


def resume_pairs(pairs: list[tuple[str, str]], corpus: str, folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """For each (saved, resumed) continue what was saved under the one under the other."""
    jobs = {
        (saved, label): _job(label, corpus, load=folder / saved / f"step_{SAVED_AT}", save=folder / f"{saved} {label}")
        for saved, label in pairs
    }
    return _run(jobs, folder)


def _job(label: str, corpus: str, *, load: Path | None = None, save: Path) -> dict[str, Any]:
    config = resume_configuration(corpus, label)
    return {"label": label, "config": config, "load": None if load is None else str(load), "save": str(save)}


def _run(jobs: dict[Any, dict[str, Any]], folder: Path) -> dict[Any, dict[str, Any]]:
    by_ranks: dict[int, list[Any]] = defaultdict(list)
    for key, job in jobs.items():
        by_ranks[Layout.parse(job["label"]).world].append(key)
    outcomes = {}
    for ranks, keys in sorted(by_ranks.items()):
        jobs_file, results_file = folder / f"jobs-{ranks}.json", folder / f"results-{ranks}.pt"
        jobs_file.write_text(json.dumps([jobs[key] for key in keys]))
        done = torchrun(ranks, __file__, str(jobs_file), str(results_file), timeout=240 + 30 * len(keys))
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        outcomes |= dict(zip(keys, torch.load(results_file), strict=True))
    return outcomes


def _outcome(job: dict[str, Any]) -> dict[str, Any]:
    config = Config.from_dict(job["config"] | {"layout": {"label": job["label"]}})
    layout = config.layout_for(dist.get_world_size())
    assert config.check(layout.world) == []
    trainer = Trainer(config, layout, pick_device())
    if job["load"] is None:
        for _ in range(SAVED_AT):
            trainer.step()
    else:
        load_state(trainer, Checkpoint(Path(job["load"])))
    saver = Saver(trainer, Checkpoints(Path(job["save"])), Console(quiet=True))
    saver.save(trainer, wait=False)
    digest = trainer.weights_digest()
    if job["load"] is not None:
        saver.finish()
        load_state(trainer, saver.checkpoints.committed()[-1])
    results = [trainer.step() for _ in range(FURTHER)]
    saver.close()
    assert saver.failure is None
    trainer.close()
    return {
        "losses": [result.loss for result in results],
        "norms": [result.grad_norm for result in results],
        "digests": [result.batch_digest for result in results],
        "saved_weights": digest,
        "final_weights": trainer.weights_digest(),
    }


def main(jobs_file: str, results_file: str) -> None:
    with process_group(pick_device(), 120):
        outcomes = [_outcome(job) for job in json.loads(Path(jobs_file).read_text())]
        if dist.get_rank() == 0:
            torch.save(outcomes, results_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
