"""report.json as frozen, validated values: what a study measured and what is concluded from it (version 1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from torchlayout.tables import Section

Status = Literal["ok", "oom", "timeout", "failed", "skipped", "pending", "running"]
Fraction = Annotated[float, Field(ge=0)]


class Spread(Section):
    """A figure over the repeats of a layout."""

    median: float
    """Median over the repeats, of each repeat's median over its steps."""
    low: float
    """Smallest over the repeats."""
    high: float
    """Largest over the repeats."""


class Ratio(Section):
    """Speed against the baseline, the first layout that ran: above 1 is faster."""

    value: float
    """Step time of the baseline divided by that of the layout."""
    low: float | None = None
    """Lower end of the 95% bootstrap interval; null with fewer than three repeats."""
    high: float | None = None
    """Upper end of the 95% bootstrap interval; null with fewer than three repeats."""
    difference_shown: bool | None = None
    """Whether the interval leaves out 1; null where there is no interval."""


class Parity(Section):
    """How far losses and gradient norms are from the baseline's, as relative differences."""

    loss_difference: float | None
    """Largest over the steps; null where it is not finite."""
    loss_step: int | None
    """Step at which it occurs."""
    norm_difference: float | None
    """Largest over the steps, of gradient norms; null where it is not finite."""
    norm_step: int | None
    """Step at which it occurs."""
    tolerance: float
    """Largest difference of losses that the precision in use explains."""
    norm_tolerance: float | None = None
    """The same for gradient norms."""
    within: bool
    """Whether both differences are within their tolerances."""


class Fair(Section):
    """Whether the layout ran on equal terms with the baseline; null: it left nothing to compare."""

    data: bool | None = None
    """Equal batch digests at every step."""
    weights: bool | None = None
    """Equal digest of the initial weights."""
    tokens: bool | None = None
    """Equal tokens in every step."""
    optimizer: bool | None = None
    """Equal optimizer settings and learning rates."""
    settings: bool | None = None
    """Equal model, data, batch, precision and seed in the configurations."""
    software: bool | None = None
    """Equal software and hardware."""


class Repeat(BaseModel):
    """One run of a layout; may carry more figures than are named here."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, use_attribute_docstrings=True)

    directory: str
    """Run directory, relative to the study's."""
    status: Status
    """How the run ended."""
    reason: str | None = None
    """Why, in a sentence, where it is not ok."""
    log: str | None = None
    """Log of the run, relative to the study's directory."""
    step_seconds_median: float | None = None
    """Median over the steps after the warm-up."""
    tokens_per_second_median: float | None = None
    """Median over the steps after the warm-up, of all devices together."""


class Predicted(Section):
    """What the planner foretold."""

    step_seconds: float | None = None
    """Time of a step."""
    peak_memory_bytes: float | None = None
    """Peak of the worst rank."""


class LayoutResult(Section):
    """What came out for one layout of the study."""

    label: str
    """Label of the layout, or as it was written where it is none."""
    axes: dict[str, int | bool | str]
    """Fields of `torchlayout.layout.Layout`; empty where the label names no layout."""
    status: Status
    """How its runs ended: ok when one of them did."""
    reason: str | None = None
    """Why it is not ok, or what happened to the runs that did not end well, in a sentence."""
    bubble_fraction: Fraction | None = None
    """Idle part of the step in the pipeline schedule, by its own count with equal stages; null without a pipeline."""
    repeats: list[Repeat] = Field(default_factory=list)
    """Its runs."""
    step_seconds: Spread | None = None
    """Time of a step after the warm-up."""
    tokens_per_second: Spread | None = None
    """Speed of all devices together."""
    tokens_per_second_per_device: float | None = None
    """Median speed of one device."""
    mfu: Fraction | None = None
    """Model FLOP/s as a fraction of the peak; null where the peak is not known."""
    hfu: Fraction | None = None
    """Executed FLOP/s, recomputation included, as a fraction of the peak; null where the peak is not known."""
    peak_memory_bytes: float | None = None
    """Peak of the worst rank."""
    peak_memory_rank: int | None = None
    """Rank that has this peak."""
    data_seconds_fraction: Fraction | None = None
    """Part of the step that waits for data."""
    ratio: Ratio | None = None
    """Speed against the baseline."""
    parity: Parity | None = None
    """Distance of its training from the baseline's."""
    fair: Fair | None = None
    """Whether it ran on equal terms."""
    losses: list[float | None] = Field(default_factory=list)
    """Loss of each step, from step 1; null where it is not finite."""
    shares: dict[str, Fraction] | None = None
    """Parts of the step by what they were spent on, from traces; they sum to 1. Null without traces."""
    causes: list[str] = Field(default_factory=list)
    """What its traces say time is lost to, the largest loss first, a sentence each."""
    predicted: Predicted | None = None
    """What the planner foretold; null where it does not know the hardware."""
    why_slower: list[str] = Field(default_factory=list)
    """Why it is slower than the best, or did not run, a sentence each."""
    config_toml: str = ""
    """Configuration that runs it again."""
    torchrun: str = ""
    """Command that runs it again."""


class StudyFacts(Section):
    """What was compared, and on what."""

    name: str
    """Name of the study."""
    created: str
    """When the study was started, in ISO 8601."""
    model: dict[str, Any]
    """Fields of the model, its name if it has one, and `parameters`."""
    nproc: int
    """Processes on each node."""
    nnodes: int
    """Nodes."""
    steps: int
    """Optimizer steps of each run."""
    warmup_steps: int
    """First steps of each run, which are left out of every time."""
    repeats: int
    """Runs of each layout."""
    global_batch: int
    """Sequences in a step."""
    sequence: int
    """Tokens in a sequence."""
    precision: dict[str, Any] | str
    """Number formats."""
    hardware: dict[str, Any] = Field(default_factory=dict)
    """Devices and hosts."""
    software: dict[str, Any] = Field(default_factory=dict)
    """Versions."""
    mfu_note: str = ""
    """The peak that MFU is measured against, or why there is none."""


class Verdict(Section):
    """The answer."""

    fair: bool
    """Whether all layouts that ran did so on equal terms."""
    parity: bool
    """Whether all layouts that ran trained the same model, within the tolerance."""
    problems: list[str] = Field(default_factory=list)
    """What is wrong, a sentence each."""
    best: str | None = None
    """Label of the fastest layout; null where none ran."""
    sentence: str
    """The answer in words."""


class Report(Section):
    """Everything a study says; `report.json`."""

    version: Literal[1] = 1
    """Version of this format."""
    study: StudyFacts
    """What was compared, and on what."""
    verdict: Verdict
    """The answer."""
    layouts: list[LayoutResult]
    """One entry for each layout, in the order of the study."""
    figures: list[str] = Field(default_factory=list)
    """Names of the figures in `figures/`, each as .png and .svg."""

    @property
    def measured(self) -> list[LayoutResult]:
        """The layouts that ran, fastest first."""
        ran = [layout for layout in self.layouts if layout.status == "ok" and layout.step_seconds is not None]
        return sorted(ran, key=step_median)

    @property
    def best(self) -> LayoutResult | None:
        """The layout that the verdict calls best."""
        return next((layout for layout in self.layouts if layout.label == self.verdict.best), None)


def step_median(layout: LayoutResult) -> float:
    """Median time of a step in seconds; infinite where there is none."""
    return layout.step_seconds.median if layout.step_seconds else float("inf")


def schema() -> dict[str, Any]:
    """JSON Schema of `report.json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Report.model_json_schema()}
