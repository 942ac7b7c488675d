from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.questions import enumerated, question
from torchlayout.errors import InputError
from torchlayout.layout import Layout
from torchlayout.plan.estimate import Machine
from torchlayout.plan.search.answer import answer
from torchlayout.plan.search.best import LESS, SLOWEST, floor_seconds, search
from torchlayout.plan.search.conventions import MOST_VIRTUAL_STAGES, RECOMPUTES, SCHEDULES
from torchlayout.plan.search.limits import Limits
from torchlayout.plan.search.question import Question
from torchlayout.plan.search.space import trunks

Price = tuple[float, float]
CONVENTIONS: dict[str, Any] = {
    "schedule": SCHEDULES,
    "virtual_stages": tuple(range(2, MOST_VIRTUAL_STAGES + 1)),
    "recompute": RECOMPUTES,
    "context": 1,
    "tensor": (1, 2, 4, 8),
    "micro_batch": (1, 2, 4, 8, 16, 32),
}


def price(asked: Question, layout: Layout) -> Price:
    estimate = asked.machine.estimate(asked.job(layout))
    return estimate.time.seconds, estimate.memory.bytes


def fitting(asked: Question, layouts: list[Layout]) -> list[Price]:
    """Seconds and bytes of the layouts that fit, fastest first, equal ones once."""
    priced = {
        price(asked, layout) for layout in layouts if asked.machine.estimate(asked.job(layout)).fits(asked.margin_gib)
    }
    return sorted(priced)


def front(fastest_first: list[Price]) -> list[Price]:
    found: list[Price] = []
    for entry in fastest_first:
        if not found or entry[1] < found[-1][1]:
            found.append(entry)
    return [entry for entry in found if entry[0] <= found[0][0] * SLOWEST]


@pytest.mark.parametrize(("gpus", "memory_gib", "batch"), [(1, 79, 16), (2, 9, 8), (4, 8, 16), (6, 79, 12), (8, 6, 8)])
def test_the_best_and_the_front_are_those_of_pricing_every_layout(gpus: int, memory_gib: float, batch: int) -> None:
    asked = question(gpus, memory_gib, batch=batch)
    expected = fitting(asked, enumerated(asked, **CONVENTIONS))
    found = search(asked, keep=40)
    assert len(expected) > 1
    best = sorted({entry[:2] for entry in found.best})
    assert best == expected[: len(best)]
    assert len(best) >= min(10, len(expected))
    assert [entry[:2] for entry in found.front] == front(expected)


def test_fixed_fields_lift_the_conventions_and_bind() -> None:
    fix = ["schedule=gpipe,dualpipev", "micro_batch<=3", "recompute=none,ckpt3", "context=1,2", "tensor>=2"]
    asked = question(8, 8.0, batch=12, fix=fix)
    constraints: dict[str, Any] = {
        "schedule": ("gpipe", "dualpipev"),
        "micro_batch": (1, 2, 3),
        "recompute": ("none", "ckpt3"),
        "context": (1, 2),
        "tensor": (2, 4, 8),
    }
    expected = fitting(asked, enumerated(asked, **constraints))
    found = search(asked, keep=100)
    assert {entry.estimate.job.layout.micro_batch for entry in found.best} >= {3}
    best = sorted({entry[:2] for entry in found.best})
    assert best == expected[: len(best)]


def test_degrees_of_data_ranks_are_bound_as_well() -> None:
    asked = question(8, fix=["fsdp=2", "dp>=2", "schedule=1f1b"])
    constraints = CONVENTIONS | {"shard": 2, "replicate": (2, 4), "schedule": "1f1b"}
    expected = enumerated(asked, **constraints)
    found = search(asked, keep=1000)
    assert {entry.label for entry in found.best} == {str(layout) for layout in expected}
    assert found.considered == len(expected)


def test_every_layout_is_counted_once() -> None:
    asked = question(8)
    every = [
        family.member(level, shard)
        for trunk in trunks(asked, with_context=False)
        for family in trunk.families
        for level in family.levels
        for shard in family.shards
    ]
    assert len(set(every)) == len(every) == search(asked, keep=1).considered
    assert set(every) == set(enumerated(asked, **CONVENTIONS))


@pytest.mark.parametrize(("gpus", "batch"), [(8, 16), (6, 12)])
def test_what_the_search_rests_on_holds(gpus: int, batch: int) -> None:
    asked = question(gpus, batch=batch)
    smaller: dict[tuple[Layout, bool], float] = {}
    for trunk in trunks(asked, with_context=True):
        least = floor_seconds(asked.machine.estimate(asked.job(trunk.layout)))
        for family in trunk.families:
            floor = floor_seconds(asked.machine.estimate(asked.job(family.layout)))
            assert least <= floor * (1 + 1e-12), f"{family.layout} is faster than without recomputation"
            for level in family.levels:
                needed = 0.0
                most = family.member(level, family.shards[0])
                alike = (replace(most, micro_batch=1), asked.job(most).micro_batches == 1)
                memory = price(asked, most)[1]
                assert memory >= smaller.get(alike, 0.0) * LESS, f"{most} needs less than a smaller micro-batch"
                smaller[alike] = max(memory, smaller.get(alike, 0.0))
                for shard in family.shards:
                    layout = family.member(level, shard)
                    seconds, memory = price(asked, layout)
                    assert floor <= seconds * (1 + 1e-12), layout
                    assert memory >= needed * (1 - 1e-12), f"{layout} needs less than with more sharding"
                    needed = memory


def test_most_layouts_are_never_priced() -> None:
    asked = question(64, batch=512, sequence=2048, fix=["schedule=1f1b"], model={"preset": "llama-13b"})
    found = search(asked, keep=50)
    assert found.considered > 3 * found.priced


@pytest.mark.parametrize("gpus", [1, 2, 3, 8, 16])
def test_every_layout_of_an_answer_is_legal_and_fits(gpus: int) -> None:
    asked = question(gpus, 12.0, batch=48, margin_gib=1.0)
    found = answer(asked)
    assert found.choices
    for choice in (*found.choices, *found.front):
        assert asked.problems(choice.layout) == []
        assert choice.layout.world == gpus
        assert choice.estimate.fits(1.0)
    seconds = [choice.seconds for choice in found.choices]
    assert seconds == sorted(seconds)


def test_layouts_within_the_error_of_the_model_are_ties() -> None:
    asked = question(8, batch=32)
    machine = asked.machine
    narrow = machine.calibration.model_copy(update={"time_spread": 0.01})
    asked = replace(asked, machine=Machine(machine.hardware, machine.software, narrow))
    found = answer(asked)
    assert found.best is not None
    limit = found.best.seconds * (1 + asked.machine.calibration.time_spread)
    assert [choice.tie for choice in found.choices] == [choice.seconds <= limit for choice in found.choices]
    assert not all(choice.tie for choice in found.choices)


def test_the_front_has_no_layout_that_another_beats_in_speed_and_memory() -> None:
    found = answer(question(8, 20.0, batch=32))
    assert len(found.front) > 1
    everything = {choice.layout: choice for choice in (*found.choices, *found.front)}.values()
    for choice in everything:
        speed, memory = choice.seconds, choice.estimate.memory.bytes
        better = [other for other in everything if other.seconds <= speed and other.estimate.memory.bytes <= memory]
        # Of several that are equal in both, one is on the front.
        equal = [other for other in better if (other.seconds, other.estimate.memory.bytes) == (speed, memory)]
        wanted = better == equal and speed <= found.choices[0].seconds * SLOWEST
        assert any(other.on_front for other in equal) == wanted, choice.layout


def test_what_saves_no_memory_against_a_faster_sibling_is_not_listed() -> None:
    found = answer(question(8, batch=32))
    for place, choice in enumerate(found.choices):
        for faster in found.choices[:place]:
            pair = (faster.layout, choice.layout)
            axes = [
                (x.pipeline, x.tensor, x.micro_batch, x.sequence_parallel, x.schedule, x.virtual_stages) for x in pair
            ]
            if axes[0] == axes[1]:
                assert choice.estimate.memory.bytes < faster.estimate.memory.bytes


def test_context_parallelism_is_opened_where_nothing_fits_without_or_sequences_are_long() -> None:
    short = answer(question(4, 12.0, batch=2, sequence=8192, fix=["tensor=1", "pipeline=1", "recompute=none"]))
    assert short.found.with_context
    assert short.best is not None
    assert short.best.layout.context > 1
    assert not search(question(8), keep=5).with_context
    long = question(8, batch=8, sequence=32768)
    assert {trunk.layout.context for trunk in trunks(long, with_context=False)} == {1, 2, 4, 8}


def test_sixteen_thousand_devices_can_be_asked_for() -> None:
    fix = ["pipeline=8,16", "tensor=8", "sp=true", "schedule=1f1b", "recompute=ckpt"]
    asked = question(16384, batch=2048, sequence=8192, fix=fix, model={"preset": "llama3-405b"})
    best = answer(asked).best
    assert best is not None
    assert best.layout.world == 16384
    assert asked.problems(best.layout) == []


def test_one_device_has_one_layout_a_choice() -> None:
    found = answer(question(1))
    assert found.best is not None
    assert {choice.layout.world for choice in found.choices} == {1}
    time = found.best.estimate.time
    assert (time.tensor, time.context, time.bubble, time.hops, time.shard, time.reduce) == (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tensr<=8", r"tensr is no field of a layout; did you mean tensor\?"),
        ("tensor", "is no limit of a field; legal: FIELD=VALUE"),
        ("tensor<8", "is no limit of a field"),
        ("tensor<=0", "layout.tensor = 0 is outside"),
        ("tensor<=x", 'tensor = "x" is not a whole number'),
        ("schedule=zvb", r"did you mean zbv\?"),
        ("schedule<=gpipe", "<= needs a field that is a number"),
        ("sequence_parallel=maybe", 'sequence_parallel = "maybe" is neither true nor false'),
        ("recompute=all", 'layout.recompute = "all" is unknown'),
        ("zero=4", "layout.zero = 4 is no level"),
        ("micro_batch=", "is no limit of a field"),
    ],
)
def test_a_wrong_limit_is_one_sentence_that_names_it(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        Limits.parse([text])
    assert len(raised.value.problems) == 1
    assert raised.value.problems[0].startswith(f'--fix "{text}": ')


def test_every_wrong_limit_is_named() -> None:
    with pytest.raises(InputError) as raised:
        Limits.parse(["tensr=2", "tensor=2", "zero=7"])
    assert len(raised.value.problems) == 2


def test_the_words_of_a_label_stand_for_their_fields() -> None:
    limits = Limits.parse(["tp<=4", "mb=1,2", "sp=true", "fsdp >= 2"])
    assert str(limits) == "tensor<=4, micro_batch=1,2, sequence_parallel=true, shard>=2"
    assert limits.allows("tensor", 4)
    assert not limits.allows("tensor", 8)
    assert not limits.allows("shard", 1)
    assert limits.allows("pipeline", 64)
