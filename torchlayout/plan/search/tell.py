"""The answer as a document: every figure of it, and what it comes to in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from torchlayout.model.count import parameters
from torchlayout.plan.estimate import Estimate
from torchlayout.plan.memory.peak import GIB
from torchlayout.plan.search import document
from torchlayout.plan.search.answer import Answer, Choice
from torchlayout.plan.search.change import Change, Scale
from torchlayout.plan.search.conventions import CONVENTIONS
from torchlayout.plan.search.explain import Explanation, items
from torchlayout.plan.search.nothing import why_nothing

if TYPE_CHECKING:
    from torchlayout.plan.search.question import Question

FLOPS = "6 N + 12 L h s a token, N with both embeddings (arXiv 2311.05610); recomputation does not count"


def asked(question: Question) -> document.Asked:
    """The question, and what its answer rests on."""
    config, machine = question.config, question.machine
    return document.Asked(
        gpus=question.gpus,
        model=config.model.model_dump(exclude_none=True) | {"parameters": parameters(config.model)},
        sequence_length=question.sequence,
        global_batch=question.batch,
        precision=config.precision.model_dump(),
        hardware=machine.hardware.name,
        memory_gib=machine.hardware.memory_gib,
        margin_gib=question.margin_gib,
        gpus_per_node=machine.hardware.gpus_per_node,
        intra_node_bandwidth=machine.hardware.intra_node_bandwidth,
        inter_node_bandwidth=machine.hardware.inter_node_bandwidth,
        software=machine.software.name,
        calibration=machine.calibration.name,
        calibrated_software=machine.calibration.software,
        calibrated_hardware=machine.calibration.hardware,
        fitted_on=machine.calibration.fitted_on,
        time_spread=machine.calibration.time_spread,
        peak_flops=machine.blocks.kernels.peak,
        flops_convention=FLOPS,
        fixed=question.limits.sentences(),
        conventions=list(CONVENTIONS),
    )


def plan(answer: Answer, top: int, cpu_seconds: float) -> document.Plan:
    """The answer without what is asked besides."""
    found = answer.found
    return document.Plan(
        asked=asked(answer.question),
        searched=document.Searched(
            considered=found.considered,
            priced=found.priced,
            too_large=found.too_large,
            with_context=found.with_context,
            seconds=cpu_seconds,
        ),
        sentence=sentence(answer),
        layouts=[predicted(choice.estimate, choice) for choice in answer.choices[:top]],
        front=[predicted(choice.estimate, choice) for choice in answer.front],
    )


def sentence(answer: Answer) -> str:
    """The answer in words."""
    best = answer.best
    if best is None:
        return why_nothing(answer)
    question, memory = answer.question, best.estimate.memory
    said = (
        f"{best.layout} is fastest: {best.seconds:.4g} s a step, {question.tokens / best.seconds:,.0f} tokens/s, "
        f"MFU {best.estimate.mfu:.1%}, {memory.bytes / GIB:.1f} GiB"
    )
    ties, shown = sum(choice.tie for choice in answer.choices) - 1, len(answer.choices)
    if ties:
        more = f"at least {ties}" if ties == shown - 1 and answer.found.considered > shown else f"{ties}"
        spread = question.machine.calibration.time_spread
        said += f"; {more} more {'is' if ties == 1 else 'are'} within the model's error of it ({spread:.0%})"
    return said


def predicted(estimate: Estimate, choice: Choice | None = None, by_rank: bool = False) -> document.Predicted:
    """A layout with its price."""
    job = estimate.job
    return document.Predicted(
        label=str(job.layout),
        axes=asdict(job.layout),
        step_seconds=estimate.time.seconds,
        time=dict(items(estimate.time)),
        tokens_per_second=job.batch * job.sequence / estimate.time.seconds,
        mfu=estimate.mfu,
        peak_memory_bytes=estimate.memory.bytes,
        worst_rank=estimate.worst_rank,
        phase=estimate.memory.phase,
        memory=dict(items(estimate.memory)),
        memory_by_rank=[dict(items(memory)) for memory in estimate.ranks] if by_rank else [],
        tie=choice is not None and choice.tie,
        on_front=choice is not None and choice.on_front,
    )


def explained(explanation: Explanation, margin_gib: float) -> document.Explained:
    """A layout by name."""
    estimate = explanation.estimate
    return document.Explained(
        label=explanation.label,
        problems=list(explanation.problems),
        predicted=None if estimate is None else predicted(estimate, by_rank=True),
        fits=None if estimate is None else explanation.over_bytes <= 0,
        over_bytes=None if estimate is None else explanation.over_bytes,
        breaks=explanation.breaks or None,
        remedies=[
            document.Near(
                change=remedy.change,
                label=str(remedy.estimate.job.layout),
                step_seconds=remedy.estimate.time.seconds,
                peak_memory_bytes=remedy.estimate.memory.bytes,
            )
            for remedy in explanation.remedies
        ],
        slower=explanation.slower,
        losses=dict(explanation.losses),
        sentence=_explanation(explanation, margin_gib),
    )


def _explanation(given: Explanation, margin_gib: float) -> str:
    if given.estimate is None:
        return f"{given.label} is not legal: {'; '.join(given.problems)}"
    memory = given.estimate.memory
    gib, capacity = memory.bytes / GIB, given.estimate.capacity_bytes / GIB
    room = f"{capacity:.1f} GiB less a margin of {margin_gib:g} GiB"
    if not given.breaks:
        said = f"{given.label} fits: {gib:.1f} GiB on rank {given.estimate.worst_rank} of {room}"
        return said + _distance(given)
    said = (
        f"{given.label} does not fit: pipeline rank {given.estimate.worst_rank} needs {gib:.1f} GiB of {room}, "
        f"{given.over_bytes / GIB:.1f} GiB too much; what breaks it is {given.breaks}, "
        f"{dict(items(memory))[given.breaks] / GIB:.1f} GiB"
    )
    ways = [
        f"{remedy.change} ({remedy.estimate.job.layout}, {remedy.estimate.time.seconds:.3g} s a step)"
        for remedy in given.remedies
    ]
    if gib <= capacity:
        ways.append(f"--margin-gib {int((capacity - gib) * 10) / 10:g}")
    return f"{said}; it would fit with {', or '.join(ways)}" if ways else f"{said}; nothing on as many GPUs fits"


def _distance(given: Explanation) -> str:
    if given.slower is None:
        return ""
    if given.slower < 0:
        return f"; it takes {-given.slower:.1%} less time than the best that fits and that --fix leaves in"
    if given.slower == 0:
        return "; it is the best"
    lost = [f"{seconds:.3g} s more in {name}" for name, seconds in given.losses[:3]]
    return f"; it is {given.slower:.1%} slower than the best, with {', '.join(lost)}, and less in other items"


def what_if(found: Iterable[tuple[str, Change | None]]) -> document.WhatIf:
    """What would change the answer."""
    pairs = list(found)
    return document.WhatIf(
        tried=[name for name, _ in pairs],
        changes=[
            document.Changed(
                change=change.change,
                best=None if change.best is None else str(change.best.layout),
                before=str(change.before),
                gain=change.gain,
                note=change.note,
            )
            for _, change in pairs
            if change is not None
        ],
    )


def scaled(question: Question, scales: Iterable[Scale]) -> list[document.Scaled]:
    """The best layout of each number of devices."""
    return [_scaled(question, scale) for scale in scales]


def _scaled(question: Question, scale: Scale) -> document.Scaled:
    if scale.best is None:
        return document.Scaled(gpus=scale.gpus, label=None)
    return document.Scaled(
        gpus=scale.gpus,
        label=str(scale.best.layout),
        step_seconds=scale.best.seconds,
        tokens_per_second=question.tokens / scale.best.seconds,
        mfu=scale.best.estimate.mfu,
        efficiency=scale.efficiency,
    )
