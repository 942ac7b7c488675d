from __future__ import annotations

import re
from typing import Any

import pytest

from harness.questions import MODEL, question
from torchlayout.layout import Layout
from torchlayout.plan.estimate import GIB
from torchlayout.plan.search import tell
from torchlayout.plan.search.answer import answer
from torchlayout.plan.search.change import changes, scaling
from torchlayout.plan.search.explain import explain, items
from torchlayout.plan.search.nothing import why_nothing
from torchlayout.plan.search.question import Question

FEW = ("schedule=1f1b", "recompute=none,ckpt", "sp=true")


def layout(label: str) -> Layout:
    return Layout.parse(label)


def sentence(asked: Question, label: str) -> str:
    return tell.explained(explain(asked, layout(label), None), asked.margin_gib).sentence


def needed(asked: Question, label: str) -> float:
    """GiB of the worst rank."""
    return asked.machine.estimate(asked.job(layout(label))).memory.bytes / GIB


class TestExplain:
    """One layout by name."""

    def test_the_totals_are_the_sums_of_their_items(self) -> None:
        said = explain(question(8), layout("pp2-fsdp2-tp2+sp+ckpt"), None)
        assert said.estimate is not None
        assert len(said.estimate.ranks) == 2
        for memory in said.estimate.ranks:
            assert memory.bytes == pytest.approx(sum(value for _, value in items(memory)))
        assert said.estimate.time.seconds == pytest.approx(sum(value for _, value in items(said.estimate.time)))

    def test_an_illegal_layout_gets_the_sentences_of_its_rules_and_no_price(self) -> None:
        said = explain(question(8), layout("tp8"), None)
        assert said.estimate is None
        assert [problem for problem in said.problems if "num_key_value_heads = 4" in problem]
        assert sentence(question(8), "tp8").startswith("tp8 is not legal: layout.tensor = 8 is above")

    def test_a_layout_of_another_number_of_devices_is_not_legal(self) -> None:
        assert explain(question(8), layout("fsdp4"), None).problems == ("layout fsdp4 is for 4 GPUs and there are 8",)

    def test_what_does_not_fit_names_the_item_the_excess_and_what_would_make_it_fit(self) -> None:
        deep = MODEL | {"vocab_size": 512, "num_hidden_layers": 16}
        least = needed(question(2, sequence=4096, batch=8, model=deep), "fsdp2+mb4+ckpt")
        asked = question(2, least + 1.5, sequence=4096, batch=8, margin_gib=1.0, model=deep)
        said = explain(asked, layout("fsdp2+mb4"), None)
        assert said.estimate is not None
        assert said.over_bytes == pytest.approx(said.estimate.memory.bytes - (least + 0.5) * GIB)
        assert said.over_bytes > 0
        assert said.breaks == "activations"
        assert "recompute" in {remedy.change.split(" = ")[0] for remedy in said.remedies}
        for remedy in said.remedies:
            assert remedy.estimate.fits(1.0)
            assert asked.problems(remedy.estimate.job.layout) == []
        text = sentence(asked, "fsdp2+mb4")
        assert "fsdp2+mb4 does not fit: pipeline rank 0 needs " in text
        assert f"GiB of {least + 1.5:.1f} GiB less a margin of 1 GiB" in text
        assert "what breaks it is activations" in text
        assert "it would fit with " in text
        assert re.search(r"recompute = (\w+) \(fsdp2\+mb4\+\1, \d", text)

    def test_states_break_a_layout_that_replicates_them(self) -> None:
        asked = question(8, needed(question(8, sequence=256), "dp8") - 1.5, sequence=256)
        said = explain(asked, layout("dp8"), None)
        assert said.breaks == "optimizer"
        assert "shard = " in " ".join(remedy.change for remedy in said.remedies)

    def test_remedies_are_fastest_first_and_differ_in_kind(self) -> None:
        roomy = question(4, sequence=4096, batch=16)
        said = explain(question(4, needed(roomy, "fsdp4+mb4") - 1, sequence=4096, batch=16), layout("fsdp4+mb4"), None)
        here = [remedy for remedy in said.remedies if remedy.estimate.job.layout.world == 4]
        seconds = [remedy.estimate.time.seconds for remedy in here]
        assert len(here) > 1
        assert seconds == sorted(seconds)
        kinds = [remedy.change.split(" = ")[0] for remedy in here]
        assert len(set(kinds)) == len(kinds)

    def test_where_no_single_change_helps_several_are_named(self) -> None:
        least = needed(question(8, sequence=4096, batch=32), "fsdp8+ckpt")
        asked = question(8, least + 0.05, sequence=4096, batch=32, fix=["context=1"])
        said = explain(asked, layout("dp8+mb4+math"), None)
        assert said.remedies
        assert said.remedies[0].change.count(" = ") > 1
        assert said.remedies[0].estimate.fits(0)
        assert said.remedies[0].estimate.job.layout.context == 1

    def test_remedies_keep_to_the_limits(self) -> None:
        roomy = question(4, sequence=4096, batch=16)
        fix = ["recompute=none", "pipeline=1", "context=1"]
        asked = question(4, needed(roomy, "fsdp4+mb4") - 1, sequence=4096, batch=16, fix=fix)
        kinds = {remedy.change.split(" = ")[0] for remedy in explain(asked, layout("fsdp4+mb4"), None).remedies}
        assert "micro_batch" in kinds
        assert not kinds & {"recompute", "pipeline", "context"}

    def test_the_margin_is_named_where_it_alone_is_in_the_way(self) -> None:
        asked = question(2, needed(question(2), "fsdp2") + 1.95, margin_gib=4.0)
        assert "--margin-gib 1.9" in sentence(asked, "fsdp2")

    def test_the_distance_from_the_best_is_told_by_item(self) -> None:
        asked = question(8, batch=32)
        best = answer(asked).best
        assert best is not None
        assert explain(asked, best.layout, best).slower == 0
        said = explain(asked, layout("pp4-tp2"), best)
        assert said.estimate is not None
        assert said.slower == pytest.approx(said.estimate.time.seconds / best.seconds - 1)
        assert [seconds for _, seconds in said.losses] == sorted((s for _, s in said.losses), reverse=True)
        text = tell.explained(said, 0.0).sentence
        assert f"; it is {said.slower:.1%} slower than the best, with " in text
        assert f" s more in {said.losses[0][0]}" in text


class TestNothing:
    """Why there is no layout at all."""

    def test_what_needs_least_and_the_number_of_devices_that_would_do(self) -> None:
        asked = question(1, 7.8, margin_gib=1.0)
        found = answer(asked)
        assert found.choices == ()
        text = why_nothing(found)
        assert text.startswith("nothing fits on 1 x a100-sxm-80gb: ")
        assert " of 7.8 GiB less a margin of 1 GiB; it would fit with " in text
        assert "2 GPUs, as in " in text or "4 GPUs, as in " in text

    def test_limits_that_are_in_the_way_are_named(self) -> None:
        asked = question(4, 8.0, fix=["shard=1", "tensor=1", "pipeline=1"])
        assert "no --fix, as in " in why_nothing(answer(asked))

    def test_where_no_layout_is_legal_the_rule_and_the_nearest_numbers_are_named(self) -> None:
        text = why_nothing(answer(question(7)))
        assert text.startswith("no layout of 7 GPUs is legal: batch.global_size = 16 is not 7 data ranks")
        assert text.endswith("nearest legal numbers of GPUs: 6, 8")

    def test_where_limits_alone_make_all_illegal_they_are_named(self) -> None:
        text = why_nothing(answer(question(8, fix=["tensor=3"])))
        assert text == "no layout of 8 GPUs is legal within --fix tensor=3; without --fix there are some"


class TestChanges:
    """What would change the answer."""

    def test_only_changes_with_another_best_layout_are_told_and_their_gain_is_real(self) -> None:
        given = answer(question(8, 20.0, batch=16, margin_gib=4.0, fix=FEW))
        assert given.best is not None
        found = dict(changes(given))
        assert {"sequences of 2,048 tokens", "a global batch of 8 sequences", "16 GPUs", "4 GPUs"} <= found.keys()
        assert {"a margin of 0 GiB", "a margin of 8 GiB"} <= found.keys()
        # One node has no links to others.
        assert not [name for name in found if "links" in name]
        changed = [change for change in found.values() if change is not None]
        assert changed
        for change in changed:
            assert change.best is None or change.best.layout != change.before
            assert change.gain is None or change.gain > 0

    def test_a_larger_margin_drops_what_no_longer_fits(self) -> None:
        best = answer(question(8, batch=32, fix=FEW)).best
        assert best is not None
        tight = question(8, best.estimate.memory.bytes / GIB + 5, batch=32, margin_gib=4.0, fix=FEW)
        change = dict(changes(answer(tight)))["a margin of 8 GiB"]
        assert change is not None
        assert change.gain is None
        assert "no longer fits: it needs " in change.note

    def test_links_matter_beyond_a_node(self) -> None:
        found = dict(changes(answer(question(16, 20.0, fix=FEW))))
        assert {"links between nodes twice as fast", "links between nodes half as fast"} <= found.keys()

    def test_an_odd_batch_is_not_halved(self) -> None:
        assert not [name for name, _ in changes(answer(question(1, batch=3))) if "of 1 seq" in name]


def test_scaling_is_told_against_the_smallest_number_of_devices_that_fits() -> None:
    rows = list(scaling(question(24, 6.8, batch=96, fix=FEW), smallest=1))
    assert [row.gpus for row in rows] == [1, 2, 4, 8, 16, 24]
    assert rows[0].best is None
    fitting = [row for row in rows if row.best is not None]
    first: Any = fitting[0]
    assert first.efficiency == 1
    for row in fitting:
        assert row.best is not None
        assert row.best.layout.world == row.gpus
        assert row.efficiency == pytest.approx(first.best.seconds * first.gpus / (row.best.seconds * row.gpus))
