"""The answer in one sentence: which layout is fastest, by how much, and whether that is shown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchlayout.compare.speed import Ratio, ratio


@dataclass(frozen=True)
class Candidate:
    """A layout that ran fairly and trains the same model, with its step times by repeat."""

    label: str
    step_seconds: Mapping[int, float]
    tokens_per_second: float

    @property
    def median(self) -> float:
        """Median step time over the repeats."""
        return statistics.median(self.step_seconds.values())


def conclude(candidates: Sequence[Candidate], baseline: str | None) -> tuple[str | None, str]:
    """Label of the fastest layout and the verdict on speed; baseline: label of the first layout that ran."""
    if not candidates:
        if baseline is None:
            return None, "no layout ran to its end, so there is nothing to compare"
        return None, "no layout ran fairly and trained the same model, so none is called fastest"
    best, *others = sorted(candidates, key=lambda candidate: candidate.median)
    speed = f"{best.median:.4g} s a step, {best.tokens_per_second:,.0f} tokens/s"
    if not others:
        return best.label, f"{best.label} is the only layout that can be judged: {speed}"
    first = next((candidate for candidate in candidates if candidate.label == baseline), None)
    if first is None or first is best:
        said = f"{best.label}{', the baseline,' if first is best else ''} is fastest: {speed}"
    else:
        against = ratio(first.step_seconds, best.step_seconds)
        said = f"{best.label} is fastest: {_shown(against)} the speed of the baseline {baseline}; {speed}"
    following = others[0]
    lead = ratio(following.step_seconds, best.step_seconds)
    if following.label != baseline or first is best:
        said += f"; {_shown(lead)} the speed of the next, {following.label}"
    if lead.difference_shown is False:
        said += f"; no difference shown between {best.label} and {following.label}"
    elif lead.difference_shown is None:
        said += f"; {_few(best, following)}, so no interval says whether that is more than chance"
    return best.label, said


def _shown(found: Ratio) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.2f}x"
    return f"{found.value:.2f}x (95% interval {found.low:.2f}-{found.high:.2f})"


def _few(best: Candidate, following: Candidate) -> str:
    count = len(best.step_seconds.keys() & following.step_seconds.keys())
    return "one repeat" if count == 1 else f"{count} repeats in common"
