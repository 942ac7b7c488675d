"""What a pick among the layouts of one setting loses against the best one that was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from torchlayout.plan.measured.predict import Prediction
from torchlayout.tables import Section

Order = Callable[[Sequence[Prediction]], list[Prediction]]
TOP = 3


class Regret(Section):
    """Picks in the settings (source, model, sequence, GPUs, global batch) that have a choice of measured layouts."""

    settings: int
    """Settings with two layouts or more, one of which ended well."""
    oom_picks: int
    """Settings whose pick ran out of memory: failures, in none of the means."""
    no_picks: int
    """Settings without any layout that is predicted to fit: failures, in none of the means."""
    mean_points: float | None
    """Mean loss of the picks, in points of MFU."""
    worst_points: float | None
    """The largest one."""
    mean_part: float | None
    """Mean loss of the picks, as a part of the best MFU."""
    top3_mean_points: float | None
    """The same for the best of the three that are predicted fastest; all three out of memory: not in it."""
    top3_mean_part: float | None
    """As a part of the best MFU."""

    @classmethod
    def of(cls, predictions: Sequence[Prediction], margin_gib: float, order: Order) -> Regret | None:
        """Regret of picking the first by an order among those that are predicted to fit; None without a choice."""
        groups = settings(predictions)
        if not groups:
            return None
        oom = none = 0
        picks: list[tuple[float, float]] = []
        tops: list[tuple[float, float]] = []
        for group in groups:
            best = max(p.measured_mfu for p in group if p.timed)
            liked = order([p for p in group if p.fits(margin_gib)])
            none += not liked
            oom += bool(liked) and not liked[0].timed
            if liked and liked[0].timed:
                picks.append(_loss(best, liked[0].measured_mfu))
            if top := [p.measured_mfu for p in liked[:TOP] if p.timed]:
                tops.append(_loss(best, max(top)))
        return cls(
            settings=len(groups),
            oom_picks=oom,
            no_picks=none,
            mean_points=_mean([points for points, _ in picks]),
            worst_points=max((points for points, _ in picks), default=None),
            mean_part=_mean([part for _, part in picks]),
            top3_mean_points=_mean([points for points, _ in tops]),
            top3_mean_part=_mean([part for _, part in tops]),
        )


def settings(predictions: Sequence[Prediction]) -> list[list[Prediction]]:
    """Trusted runs that leave a choice, by setting."""
    groups: dict[tuple[object, ...], list[Prediction]] = {}
    for prediction in predictions:
        run = prediction.run
        if run.trusted and (prediction.timed or run.status == "oom"):
            key = (run.source, run.model, run.job.sequence, run.gpus, run.job.batch, run.hardware.name)
            groups.setdefault(key, []).append(prediction)
    return [group for group in groups.values() if len(group) > 1 and any(p.timed for p in group)]


def fastest(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those predicted fastest first; of equal ones the worst measured first, so that nothing is gained by a tie."""
    return sorted(predictions, key=lambda p: (p.seconds, -(p.measured_seconds if p.timed else math.inf)))


def _loss(best: float, mine: float) -> tuple[float, float]:
    return best - mine, 1 - mine / best


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
