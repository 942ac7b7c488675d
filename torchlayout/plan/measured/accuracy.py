"""How far the planner is from measured runs, by source: step time, ranking, memory and the layout it would pick."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from torchlayout.plan.calibration import Calibration
from torchlayout.plan.measured.baselines import RULE, baselines, rule_of_thumb, scaled
from torchlayout.plan.measured.confusion import Confusion, confusions, peak_errors
from torchlayout.plan.measured.metrics import Errors, spearman
from torchlayout.plan.measured.predict import Machines, Prediction, predict, timed
from torchlayout.plan.measured.regret import Regret, fastest
from torchlayout.plan.measured.runs import Run
from torchlayout.tables import Section

POOLED = "all"


class LeftOut(Section):
    """Rows that do not count."""

    rows: int
    """How many."""
    of: Literal["time", "time and memory"]
    """In what."""
    why: str
    """The reason."""


class Method(Section):
    """Step times and picks by one way of predicting."""

    time: Errors | None
    """Relative errors of step time; null: no row has one."""
    spearman: float | None
    """Rank correlation of step times over all rows; null: fewer than three, or a constant."""
    spearman_in_groups: float | None
    """Median of the rank correlations among the rows of one source, model and number of GPUs."""
    regret: Regret | None
    """What its picks lose; null: no setting leaves a choice."""


class Baseline(Section):
    """A way of predicting that needs no planner."""

    name: str
    """What it does."""
    method: Method
    """How far it comes; memory, where picks need it, is the planner's."""
    scaled: Errors | None
    """Its errors of step time once scaled by the median error of these very rows; null: it predicts none."""


class Sheet(Section):
    """The runs of one source, or of all."""

    source: str
    """As the rows name it."""
    rows: int
    """Rows that were read and chosen."""
    left_out: tuple[LeftOut, ...]
    """Which of them do not count, and why."""
    hardware: tuple[str, ...]
    """Devices."""
    software: tuple[str, ...]
    """Software profiles."""
    calibrations: tuple[str, ...]
    """Calibrations by name with what they were fitted on."""
    planner: Method
    """The planner."""
    memory: tuple[Confusion, ...]
    """Verdicts by margin over runs that ended well or ran out of memory, whether their time is trusted or not."""
    memory_trusted: tuple[Confusion, ...]
    """The same over trusted rows."""
    peak: Errors | None
    """Relative errors of the peak that torch reserves on the first pipeline rank; null: no trusted row has it."""
    baselines: tuple[Baseline, ...]
    """What needs no planner, for comparison."""


class Accuracy(Section):
    """What `torchlayout plan accuracy --json` prints."""

    version: Literal[1] = 1
    """Of this format; a change that readers have to know of raises it."""
    files: tuple[str, ...]
    """Files of measured runs."""
    only: tuple[str, ...]
    """Rules that rows had to meet."""
    leave_out: tuple[str, ...]
    """Rules that rows must not meet."""
    margin_gib: float
    """Memory that has to stay free for a layout to be picked."""
    sheets: tuple[Sheet, ...]
    """One a source, in the order of the files; where there are several, all rows together at the end."""


def judge(runs: Sequence[Run], calibration: Calibration | None, margin_gib: float) -> tuple[Sheet, ...]:
    """A sheet a source and, where there are several, one for all; no calibration: each stack's shipped one."""
    machines = Machines(calibration)
    predictions, without = predict(runs, machines)
    sources = list(dict.fromkeys(run.source for run in runs))
    names = [*sources, POOLED] if len(sources) > 1 else sources
    return tuple(
        _sheet(
            name,
            [p for p in predictions if name in (p.run.source, POOLED)],
            [(run, why) for run, why in without if name in (run.source, POOLED)],
            machines,
            margin_gib,
        )
        for name in names
    )


def method(predictions: Sequence[Prediction], margin_gib: float) -> Method:
    """Step times and picks of predictions, the picks by predicted time."""
    counted = timed(predictions)
    mine, theirs = [p.seconds for p in counted], [p.measured_seconds for p in counted]
    return Method(
        time=Errors.of(mine, theirs),
        spearman=spearman(mine, theirs),
        spearman_in_groups=_spearman_in_groups(counted),
        regret=Regret.of(predictions, margin_gib, fastest),
    )


def schema() -> dict[str, Any]:
    """JSON Schema of what `torchlayout plan accuracy --json` prints."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Accuracy.model_json_schema()}


def _sheet(
    name: str,
    predictions: Sequence[Prediction],
    without: Sequence[tuple[Run, str]],
    machines: Machines,
    margin_gib: float,
) -> Sheet:
    runs = [*(p.run for p in predictions), *(run for run, _ in without)]
    used = {id(machine): machine for machine in map(machines.of, runs)}.values()
    return Sheet(
        source=name,
        rows=len(runs),
        left_out=_left_out(predictions, without),
        hardware=_different(machine.hardware.name for machine in used),
        software=_different(machine.software.name for machine in used),
        calibrations=_different(f"{m.calibration.name}: {m.calibration.fitted_on}" for m in used),
        planner=method(predictions, margin_gib),
        memory=confusions(predictions, margin_gib),
        memory_trusted=confusions([p for p in predictions if p.run.trusted], margin_gib),
        peak=peak_errors(predictions),
        baselines=_baselines(predictions, margin_gib),
    )


def _baselines(predictions: Sequence[Prediction], margin_gib: float) -> tuple[Baseline, ...]:
    formulas = (
        Baseline(name=name, method=method(found, margin_gib), scaled=method(scaled(found), margin_gib).time)
        for name, found in baselines(predictions).items()
    )
    picks = Regret.of(predictions, margin_gib, rule_of_thumb)
    rule = Method(time=None, spearman=None, spearman_in_groups=None, regret=picks)
    return (*formulas, Baseline(name=RULE, method=rule, scaled=None))


def _left_out(predictions: Sequence[Prediction], without: Sequence[tuple[Run, str]]) -> tuple[LeftOut, ...]:
    untimed = Counter(_why_untimed(p.run) for p in predictions if not p.timed)
    priceless = Counter(why for _, why in without)
    return (
        *(LeftOut(rows=rows, of="time", why=why) for why, rows in untimed.most_common()),
        *(LeftOut(rows=rows, of="time and memory", why=why) for why, rows in priceless.most_common()),
    )


def _why_untimed(run: Run) -> str:
    if run.status == "oom":
        return "out of memory"
    return "no step time" if run.trusted else f"trust: {run.trust}"


def _spearman_in_groups(predictions: Sequence[Prediction]) -> float | None:
    groups: dict[tuple[str, str, int], list[Prediction]] = {}
    for prediction in predictions:
        run = prediction.run
        groups.setdefault((run.source, run.model, run.gpus), []).append(prediction)
    found = (spearman([p.seconds for p in g], [p.measured_seconds for p in g]) for g in groups.values())
    values = [value for value in found if value is not None]
    return statistics.median(values) if values else None


def _different(names: Any) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
