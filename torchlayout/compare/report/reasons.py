"""Why a layout loses to the fastest one, in sentences: what was measured first, then what is only known to differ."""

from __future__ import annotations

from collections.abc import Iterator

from torchlayout.compare.report.document import LayoutResult, Report, step_median
from torchlayout.compare.report.text import STATUS_WORDS, percent, seconds

# Below these, a difference is within what runs of one layout differ by.
LEAST_BUBBLE = 0.01
LEAST_SHARE = 0.01
# More would repeat what the shares say.
MOST_CAUSES = 2

NAMES = {
    "pipeline": "pipeline",
    "replicate": "replicas",
    "shard": "FSDP shards",
    "context": "context",
    "tensor": "tensor",
    "micro_batch": "micro-batch",
    "sequence_parallel": "sequence parallelism",
    "schedule": "schedule",
    "virtual_stages": "stages on a rank",
    "context_method": "context method",
    "recompute": "recomputation",
    "zero": "ZeRO",
    "attention": "attention",
    "norm": "norm",
    "compile": "compiled",
}
SHARES = {
    "compute": "compute",
    "communication": "exposed communication",
    "bubble": "the pipeline bubble",
    "idle": "idle time",
    "data": "waiting for data",
    "optimizer": "the optimizer",
    "checkpoint": "checkpoints",
}


def explain(report: Report) -> Report:
    """The report with `why_slower` filled where it is empty."""
    layouts = [
        layout if layout.why_slower else layout.model_copy(update={"why_slower": why_slower(layout, report)})
        for layout in report.layouts
    ]
    return report.model_copy(update={"layouts": layouts})


def why_slower(layout: LayoutResult, report: Report) -> list[str]:
    """Why a layout is not the best: sentences, none for the best itself and where nothing ran to compare with."""
    if layout.status != "ok":
        return [layout.reason or f"{STATUS_WORDS[layout.status]}; no reason was recorded"]
    best = report.best
    if best is None or best.label == layout.label or layout.step_seconds is None or best.step_seconds is None:
        return []
    if unjudged := [*_unjudged(layout)]:
        return unjudged
    return [
        *_overlap(layout, best),
        *_bubble(layout, best, report.study.global_batch),
        *_shares(layout, best),
        *(f"its trace says: {cause}" for cause in layout.causes[:MOST_CAUSES]),
        *_data(layout, best),
        *_recomputation(layout, best),
        *_differences(layout, best),
    ]


def _unjudged(layout: LayoutResult) -> Iterator[str]:
    terms = layout.fair.model_dump() if layout.fair else {}
    if differs := [name for name, equal in terms.items() if equal is False]:
        yield f"its speed is not judged: it did not run on equal terms ({', '.join(differs)} differ)"
    if layout.parity is not None and not layout.parity.within:
        yield "its speed is not judged: it did not train the same model"


def _overlap(layout: LayoutResult, best: LayoutResult) -> Iterator[str]:
    ours, theirs = layout.step_seconds, best.step_seconds
    if ours and theirs and ours.low < ours.high and ours.low <= theirs.high:
        yield f"its repeats overlap with those of {best.label}: which of the two is faster is not certain"


def _bubble(layout: LayoutResult, best: LayoutResult, global_batch: int) -> Iterator[str]:
    ours, theirs = layout.bubble_fraction or 0.0, best.bubble_fraction or 0.0
    if layout.shares is not None or not theirs + LEAST_BUBBLE < ours < 1:
        return
    schedule = str(layout.axes.get("schedule", "its schedule"))
    if (virtual := layout.axes.get("virtual_stages", 1)) != 1 and schedule not in ("zbv", "dualpipev"):
        schedule += str(virtual)
    micro_batches = _micro_batches(layout, global_batch)
    given = f" with {micro_batches} micro-batches" if micro_batches else ""
    yield (
        f"pp{layout.axes.get('pipeline', '')}: {percent(ours, 0)} bubble in {schedule}{given}, "
        f"{percent(theirs, 0)} in {best.label}: this alone makes a step {(1 - theirs) / (1 - ours):.2f}x as long"
    )


def _micro_batches(layout: LayoutResult, global_batch: int) -> int | None:
    sizes = [layout.axes.get(name) for name in ("replicate", "shard", "micro_batch")]
    product = 1
    for size in sizes:
        if not isinstance(size, int) or size < 1:
            return None
        product *= size
    return global_batch // product


def _shares(layout: LayoutResult, best: LayoutResult) -> Iterator[str]:
    if layout.shares is None or best.shares is None:
        return
    step, best_step = step_median(layout), step_median(best)
    more = {key: share * step - best.shares.get(key, 0.0) * best_step for key, share in layout.shares.items()}
    for key in sorted(more, key=lambda key: -more[key]):
        if more[key] > LEAST_SHARE * best_step:
            yield (
                f"{SHARES.get(key, key)}: {percent(layout.shares[key], 0)} of the step, "
                f"{seconds(more[key])} more than in {best.label}"
            )


def _data(layout: LayoutResult, best: LayoutResult) -> Iterator[str]:
    if layout.shares is not None:
        return
    ours, theirs = layout.data_seconds_fraction or 0.0, best.data_seconds_fraction or 0.0
    if ours > theirs + LEAST_SHARE:
        yield f"waits for data in {percent(ours)} of the step, {best.label} in {percent(theirs)}"


def _recomputation(layout: LayoutResult, best: LayoutResult) -> Iterator[str]:
    ours, theirs = _executed(layout), _executed(best)
    if ours is not None and theirs is not None and ours > theirs + LEAST_SHARE:
        yield (
            f"recomputation: executes {percent(ours - 1, 0)} more FLOPs than the model needs, "
            f"{best.label} {percent(theirs - 1, 0)}"
        )
    elif ours is None and (kind := layout.axes.get("recompute", "none")) != best.axes.get("recompute", "none"):
        words = {
            "none": "",
            "ckpt": "every block",
            "ckptattn": "the attention core",
            "selective": "norms and element-wise operations",
        }
        if what := words.get(str(kind), "some of the blocks"):
            yield f"recomputation: runs the forward pass of {what} a second time, which {best.label} does not"


def _executed(layout: LayoutResult) -> float | None:
    return layout.hfu / layout.mfu if layout.hfu is not None and layout.mfu else None


def _differences(layout: LayoutResult, best: LayoutResult) -> Iterator[str]:
    if layout.shares is not None:
        return
    differences = [
        f"{name} {_shown(layout.axes.get(field))}, not {_shown(best.axes.get(field))}"
        for field, name in NAMES.items()
        if layout.axes and best.axes and layout.axes.get(field) != best.axes.get(field)
    ]
    if differences:
        yield f"differs from {best.label} in: {'; '.join(differences)}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
