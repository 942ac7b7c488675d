"""Whether predicted memory tells which runs go out of memory, and how near the predicted peak is to the measured."""

from __future__ import annotations

from collections.abc import Sequence

from torchlayout.plan.measured.metrics import Errors
from torchlayout.plan.measured.predict import Prediction
from torchlayout.plan.memory.peak import GIB
from torchlayout.tables import Section

MARGINS_GIB = (0.0, 2.0, 4.0)
NEAR_GIB = 20.0
"""How far from the device's memory a run's predicted or measured memory may be for a verdict that is not easy."""


class Confusion(Section):
    """Verdicts on runs that ended well or ran out of memory, where so much memory has to stay free."""

    margin_gib: float
    """Memory that has to stay free for a run to be predicted to fit."""
    rows: int
    """Runs with a verdict."""
    false_fit: int
    """Predicted to fit, and out of memory."""
    false_oom: int
    """Predicted not to fit, and fitted."""
    right: float
    """Part of the rows with the right verdict."""
    near_rows: int
    """Rows whose predicted or measured memory is within 20 GiB of the device's."""
    near_right: float | None
    """Part of these with the right verdict."""

    @classmethod
    def of(cls, predictions: Sequence[Prediction], margin_gib: float) -> Confusion | None:
        """The verdicts of predictions; None without any."""
        if not predictions:
            return None
        wrong = [_wrong(prediction, margin_gib) for prediction in predictions]
        near = [fault for fault, prediction in zip(wrong, predictions, strict=True) if _is_near(prediction)]
        return cls(
            margin_gib=margin_gib,
            rows=len(wrong),
            false_fit=wrong.count("fit"),
            false_oom=wrong.count("oom"),
            right=wrong.count(None) / len(wrong),
            near_rows=len(near),
            near_right=near.count(None) / len(near) if near else None,
        )


def confusions(predictions: Sequence[Prediction], margin_gib: float) -> tuple[Confusion, ...]:
    """Verdicts at margins 0, 2 and 4 GiB and at the one asked for; none without predictions."""
    found = (Confusion.of(predictions, margin) for margin in sorted({*MARGINS_GIB, margin_gib}))
    return tuple(confusion for confusion in found if confusion is not None)


def peak_errors(predictions: Sequence[Prediction]) -> Errors | None:
    """Errors of the peak of torch's allocator on the first pipeline rank, over trusted rows that have it."""
    known = [(p.reserved_bytes / GIB, p.run.memory_gb) for p in predictions if p.run.trusted and p.run.status == "ok"]
    pairs = [(mine, theirs) for mine, theirs in known if theirs is not None]
    return Errors.of([mine for mine, _ in pairs], [theirs for _, theirs in pairs])


def _wrong(prediction: Prediction, margin_gib: float) -> str | None:
    """What a run was falsely predicted to do; None: nothing false."""
    fits = prediction.fits(margin_gib)
    if fits == (prediction.run.status == "ok"):
        return None
    return "fit" if fits else "oom"


def _is_near(prediction: Prediction) -> bool:
    measured = prediction.run.memory_gb
    sizes = [prediction.peak_bytes] + ([measured * GIB] if measured is not None else [])
    return any(abs(size - prediction.capacity_bytes) <= NEAR_GIB * GIB for size in sizes)
