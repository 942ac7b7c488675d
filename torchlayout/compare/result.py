"""report.json from the files of a study: what was measured, and what is concluded from it."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlayout.compare.conclusion import Candidate, conclude
from torchlayout.compare.evidence import Evidence, gather
from torchlayout.compare.planned import Planned
from torchlayout.compare.speed import Ratio, RunSpeed, ratio, run_speed, spread
from torchlayout.compare.state import RunRecord, StudyState
from torchlayout.compare.study import Study
from torchlayout.compare.traces import traced
from torchlayout.compare.verdict import Distance, Fairness, Parity, fairness, parity
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.model.count import parameters
from torchlayout.schedule import Action, actions, timeline

VERSION = 1


@dataclass(frozen=True)
class Run:
    """One run of a layout with everything that is known of it; the last three are None where it did not finish."""

    record: RunRecord
    evidence: Evidence | None = None
    speed: RunSpeed | None = None
    fairness: Fairness | None = None
    parity: Parity | None = None


def collect(directory: str | Path) -> dict[str, Any]:
    """The content of report.json; raises InputError where the directory holds no study."""
    directory = Path(directory)
    if not (directory / "study.json").exists():
        raise InputError(f"{directory} holds no study; give a folder that `torchlayout compare` wrote")
    study, state = Study.load(directory / "study.toml"), StudyState.read(directory / "study.json")
    read = {
        planned.label: [_read(directory, study, run) for run in state.of(planned.label)] for planned in study.layouts
    }
    # Of the first layout that ran, as the repeats of a layout are compared with each other as well.
    baseline = next((run.evidence for runs in read.values() for run in runs if run.evidence), None)
    precision = study.base.precision.parameters
    by_label = {label: [_judge(run, baseline, precision) for run in runs] for label, runs in read.items()}
    first = _step_seconds(by_label[baseline.label]) if baseline else {}
    layouts = [_layout(directory, study, planned, by_label[planned.label], first) for planned in study.layouts]
    return {
        "version": VERSION,
        "study": _study(study, state, baseline),
        "verdict": _verdict(by_label, layouts, baseline),
        "layouts": layouts,
        "figures": [],
    }


def _read(directory: Path, study: Study, record: RunRecord) -> Run:
    if record.status != "ok":
        return Run(record)
    try:
        evidence = gather(record.label, record.repeat, directory / record.directory)
    except InputError as error:
        return Run(dataclasses.replace(record, status="failed", reason="; ".join(error.problems)))
    return Run(
        record, evidence, run_speed(evidence.steps, study.compare.warmup_steps, study.compare.last_measured_step)
    )


def _complete(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.evidence is not None]


def _judge(run: Run, baseline: Evidence | None, precision: str) -> Run:
    if run.evidence is None or baseline is None:
        return run
    return dataclasses.replace(
        run, fairness=fairness(run.evidence, baseline), parity=parity(run.evidence, baseline, precision)
    )


def _step_seconds(runs: Sequence[Run]) -> dict[int, float]:
    return {run.record.repeat: run.speed.step_seconds for run in runs if run.speed}


def _layout(
    directory: Path, study: Study, planned: Planned, runs: Sequence[Run], first: dict[int, float]
) -> dict[str, Any]:
    status, reason = _status(planned, runs)
    complete = _complete(runs)
    worst = max((run.speed for run in complete if run.speed), key=lambda s: s.peak_memory_bytes, default=None)
    median = functools.partial(_median, [run.speed for run in complete if run.speed])
    return {
        "label": planned.label,
        "axes": dict(planned.axes),
        "status": status,
        "reason": reason,
        "bubble_fraction": bubble(planned.layout, study.base.batch.global_size) if planned.layout else None,
        "repeats": [_repeat(run) for run in runs],
        "step_seconds": _spread(complete, lambda speed: speed.step_seconds),
        "tokens_per_second": _spread(complete, lambda speed: speed.tokens_per_second),
        "tokens_per_second_per_device": median(lambda speed: speed.tokens_per_second_per_device),
        "mfu": median(lambda speed: speed.mfu),
        "hfu": median(lambda speed: speed.hfu),
        "peak_memory_bytes": worst.peak_memory_bytes if worst else None,
        "peak_memory_rank": worst.peak_memory_rank if worst else None,
        "data_seconds_fraction": median(lambda speed: speed.data_seconds_fraction),
        "ratio": _ratio(ratio(first, _step_seconds(runs))) if _step_seconds(runs) else None,
        "parity": _parity([run.parity for run in complete if run.parity]),
        "fair": _fair([run.fairness for run in complete if run.fairness]),
        "losses": [step["loss"] for step in complete[0].evidence.steps] if complete and complete[0].evidence else [],
        **dataclasses.asdict(traced(directory / run.record.directory for run in complete)),
        "why_slower": [],
        "config_toml": study.toml_of(planned.layout) if planned.layout else "",
        "torchrun": _torchrun(study, directory / planned.label / "config.toml") if planned.layout else "",
    }


def _status(planned: Planned, runs: Sequence[Run]) -> tuple[str, str | None]:
    """Status of a layout from those of its runs: ok where one was, else what happened first."""
    if planned.skipped_reason is not None:
        return "skipped", planned.skipped_reason
    lost = [run.record for run in runs if run.record.status != "ok"]
    if not lost:
        return ("ok", None) if runs else ("pending", "it has not been run")
    if len(lost) == len(runs):
        first = next((run for run in lost if run.status in ("oom", "timeout", "failed")), lost[0])
        waiting = "its driver was killed; --resume runs it" if first.status == "running" else "it has not been run"
        return first.status, first.reason or waiting
    said = "; ".join(f"repeat {run.repeat}: {run.reason or run.status}" for run in lost)
    return "ok", f"{len(lost)} of {len(runs)} runs did not end well: {said}"


def _repeat(run: Run) -> dict[str, Any]:
    record, speed = run.record, run.speed
    facts = {
        "directory": record.directory,
        "repeat": record.repeat,
        "status": record.status,
        "reason": record.reason,
        "log": record.log if record.status not in ("pending", "skipped") else None,
        "seconds": record.seconds,
        "steps": len(run.evidence.steps) if run.evidence else None,
    }
    if speed is not None:
        facts |= {
            "step_seconds_median": speed.step_seconds,
            "tokens_per_second_median": speed.tokens_per_second,
            "mfu_median": speed.mfu,
            "hfu_median": speed.hfu,
            "peak_memory_bytes": speed.peak_memory_bytes,
            "peak_memory_rank": speed.peak_memory_rank,
            "data_seconds_fraction": speed.data_seconds_fraction,
        }
    return facts


def _spread(runs: Sequence[Run], figure: Callable[[RunSpeed], float]) -> dict[str, float] | None:
    values = [figure(run.speed) for run in runs if run.speed]
    return dataclasses.asdict(spread(values)) if values else None


def _median(speeds: Sequence[RunSpeed], figure: Callable[[RunSpeed], float | None]) -> float | None:
    values = [value for speed in speeds if (value := figure(speed)) is not None]
    return statistics.median(values) if values else None


def _ratio(found: Ratio) -> dict[str, Any]:
    return dataclasses.asdict(found) | {"difference_shown": found.difference_shown}


def _parity(found: Sequence[Parity]) -> dict[str, Any] | None:
    """The farthest of a layout's runs, figure by figure."""
    if not found:
        return None
    loss = max((each.loss for each in found), key=lambda distance: distance.value)
    norm = max((each.norm for each in found), key=lambda distance: distance.value)
    return {
        "loss_difference": _finite(loss),
        "loss_step": loss.step,
        "norm_difference": _finite(norm),
        "norm_step": norm.step,
        "tolerance": found[0].loss_tolerance,
        "norm_tolerance": found[0].norm_tolerance,
        "within": all(each.within for each in found),
    }


def _finite(distance: Distance) -> float | None:
    return distance.value if math.isfinite(distance.value) else None


def _fair(found: Sequence[Fairness]) -> dict[str, bool] | None:
    if not found:
        return None
    aspects = [field.name for field in dataclasses.fields(Fairness) if field.name != "problems"]
    return {aspect: all(getattr(each, aspect) for each in found) for aspect in aspects}


def _torchrun(study: Study, config: Path) -> str:
    if study.compare.nnodes > 1:
        return f"sbatch --nodes={study.compare.nnodes} launch/slurm.sbatch {config}"
    return f"torchrun --nproc-per-node {study.compare.nproc} -m torchlayout.train {config}"


def bubble(layout: Layout, global_batch: int) -> float | None:
    """Idle fraction of the pipeline's ranks with equal stages, a backward twice a forward; None without a pipeline."""
    if layout.pipeline == 1 or global_batch % (layout.data_ranks * layout.micro_batch):
        return None
    return _bubble(layout.pipeline, layout.schedule, layout.virtual_stages, layout.micro_batches(global_batch))


@functools.lru_cache(maxsize=4096)
def _bubble(pipeline: int, schedule: str, virtual_stages: int, micro_batches: int) -> float | None:
    """The same by what alone decides it: many layouts of a study share it.

    In the steady state every micro-batch more adds its work and no idle time, so that a few stand for many.
    """
    layout = Layout(pipeline=pipeline, schedule=schedule, virtual_stages=virtual_stages)
    few = micro_batches
    if micro_batches % pipeline == 0:
        few = min(micro_batches, 4 * layout.stages)
    cost = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}

    def seconds(action: Action) -> float:
        return cost[action.kind]

    try:
        done = timeline(actions(layout, few), seconds)
    except (InputError, ValueError):
        return None  # micro-batches that the schedule does not run: the layout is skipped for that
    more = (micro_batches - few) * layout.virtual_stages * (cost["F"] + cost["B"])
    busy = statistics.mean(done.busy(rank) for rank in range(pipeline))
    return 1 - (busy + more) / (done.makespan + more)


def _verdict(
    by_label: dict[str, list[Run]], layouts: Sequence[dict[str, Any]], baseline: Evidence | None
) -> dict[str, Any]:
    finished = _complete(run for runs in by_label.values() for run in runs)
    unfair = [problem for run in finished if run.fairness for problem in run.fairness.problems]
    unlike = [
        problem for run in finished if run.parity for problem in run.parity.problems(str(run.evidence), str(baseline))
    ]
    candidates = [
        Candidate(layout["label"], _step_seconds(by_label[layout["label"]]), layout["tokens_per_second"]["median"])
        for layout in layouts
        if layout["step_seconds"] and layout["parity"]["within"] and all(layout["fair"].values())
    ]
    best, sentence = conclude(candidates, baseline.label if baseline else None)
    return {
        "fair": bool(finished) and not unfair,
        "parity": bool(finished) and not unlike,
        "problems": [*unfair, *unlike],
        "best": best,
        "sentence": sentence,
    }


def _study(study: Study, state: StudyState, baseline: Evidence | None) -> dict[str, Any]:
    base, facts = study.base, baseline.facts if baseline else {}
    return {
        "name": study.name,
        "created": state.created,
        "model": base.model.model_dump() | {"parameters": parameters(base.model)},
        "nproc": study.compare.nproc,
        "nnodes": study.compare.nnodes,
        "steps": study.compare.steps,
        "warmup_steps": study.compare.warmup_steps,
        "repeats": study.compare.repeats,
        "global_batch": base.batch.global_size,
        "sequence": base.data.sequence_length,
        "precision": base.precision.model_dump(),
        "hardware": facts.get("hardware", {}),
        "software": facts.get("software", {}),
        "mfu_note": facts.get("mfu_note", ""),
    }
