from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlayout.errors import InputError
from torchlayout.layout import Layout

degree = st.sampled_from([1, 1, 2, 3, 4, 8, 512])
recompute = st.one_of(
    st.sampled_from(["none", "ckpt", "ckptattn", "selective"]), st.integers(1, 99).map(lambda k: f"ckpt{k}")
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    pipeline, context, tensor = draw(degree), draw(degree), draw(degree)
    schedule, virtual = "1f1b", 1
    if pipeline > 1:
        names = ["gpipe", "1f1b", "interleaved", "looped", "zerobubble", "zbv", "dualpipev"]
        schedule = draw(st.sampled_from(names))
        if schedule in ("interleaved", "looped", "zerobubble"):
            virtual = draw(st.integers(2, 9))
    return Layout(
        pipeline=pipeline,
        replicate=draw(degree),
        shard=draw(degree),
        context=context,
        tensor=tensor,
        micro_batch=draw(st.integers(1, 64)),
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        schedule=schedule,
        virtual_stages=virtual,
        context_method=draw(st.sampled_from(["ring", "ulysses"])) if context > 1 else "ring",
        recompute=draw(recompute),
        zero=draw(st.sampled_from([None, 1, 2, 3])),
        attention=draw(st.sampled_from(["sdpa", "math", "flash", "flex"])),
        norm=draw(st.sampled_from(["fused", "eager"])),
        compile=draw(st.booleans()),
    )


@settings(deadline=None)
@given(layouts())
def test_a_printed_layout_parses_to_itself(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout
    assert hash(Layout.parse(str(layout))) == hash(layout)


@settings(deadline=None)
@given(layouts(), st.randoms(use_true_random=False))
def test_factors_and_choices_parse_in_any_order_and_print_in_one(layout: Layout, shuffler: random.Random) -> None:
    factors, *choices = str(layout).split("+")
    parts = factors.split("-")
    shuffler.shuffle(parts)
    shuffler.shuffle(choices)
    label = "+".join(["-".join(parts), *choices])
    assert Layout.parse(label) == layout
    assert str(Layout.parse(label)) == str(layout)


@pytest.mark.parametrize(
    ("label", "layout"),
    [
        ("fsdp1", Layout()),
        ("fsdp8", Layout(shard=8)),
        ("dp8", Layout(replicate=8)),
        ("dp2-fsdp4", Layout(replicate=2, shard=4)),
        ("fsdp2-tp4+sp", Layout(shard=2, tensor=4, sequence_parallel=True)),
        ("pp2-fsdp2-tp2+sp", Layout(pipeline=2, shard=2, tensor=2, sequence_parallel=True)),
        (
            "pp4-fsdp2+interleaved2+ckpt",
            Layout(pipeline=4, shard=2, schedule="interleaved", virtual_stages=2, recompute="ckpt"),
        ),
        ("pp2+zbv", Layout(pipeline=2, schedule="zbv", virtual_stages=2)),
        ("cp2+mb4+ulysses", Layout(context=2, micro_batch=4, context_method="ulysses")),
        (
            "fsdp4+ckptattn+zero1+math+eager+compile",
            replace(Layout(shard=4), recompute="ckptattn", zero=1, attention="math", norm="eager", compile=True),
        ),
    ],
)
def test_the_labels_of_the_documentation_mean_what_it_says(label: str, layout: Layout) -> None:
    assert Layout.parse(label) == layout
    assert str(layout) == label


@pytest.mark.parametrize(
    ("label", "canonical"),
    [
        ("pp1-dp1-fsdp1-cp1-tp1", "fsdp1"),
        ("tp2-pp2", "pp2-tp2"),
        ("fsdp8+mb1+zero3+sdpa+fused", "fsdp8"),
        ("pp2+1f1b+zero2", "pp2"),
        ("cp2+ring", "cp2"),
        ("fsdp8+ckpt1", "fsdp8+ckpt"),
        (" fsdp8\n", "fsdp8"),
    ],
)
def test_ones_and_defaults_are_read_and_not_printed(label: str, canonical: str) -> None:
    assert str(Layout.parse(label)) == canonical


def test_kernels_fill_only_what_the_label_leaves_out() -> None:
    layout = Layout.parse("fsdp8+sdpa", attention="math", norm="eager", compile=True)
    assert (layout.attention, layout.norm, layout.compile) == ("sdpa", "eager", True)


@pytest.mark.parametrize(
    ("label", "says"),
    [
        ("", "a factor is missing"),
        ("+sp", "a factor is missing"),
        ("fsdp8-", "a factor is missing"),
        ("pp2--tp2", "a factor is missing"),
        ("fsdp8+", "a choice is missing"),
        ("fsdp8++mb2", "a choice is missing"),
        ("fsdp", 'factor "fsdp" lacks its degree'),
        ("fsd8", "did you mean fsdpN?"),
        ("FSDP8", "did you mean fsdpN?"),
        ("ep8", 'factor "ep8" is unknown'),
        ("fsdp0", '"fsdp0" is below one; legal: fsdp1 or more'),
        ("fsdp08", "leading zero; legal: fsdp8"),
        ("fsdp2.5", "did you mean fsdpN?"),
        ("fsdp99999999999999999999", "numbers up to 999999999"),
        ("fsdp8 tp2", "' ' has no place"),
        ("fsdp\u0668", "has no place"),
        ("fsdp8-fsdp2", '"fsdp8" and "fsdp2" cannot both hold'),
        ("fsdp8-fsdp8", '"fsdp8" is there twice'),
        ("fsdp8+tp2", '"tp2" is a factor'),
        ("fsdp2-sp", '"sp" is a choice'),
        ("fsdp8+mb2+mb4", '"mb2" and "mb4" cannot both hold'),
        ("tp2+sp+sp", '"sp" is there twice'),
        ("fsdp8+ckpt+selective", '"ckpt" and "selective" cannot both hold'),
        ("fsdp8+ckpt+ckpt2", '"ckpt" and "ckpt2" cannot both hold'),
        ("fsdp8+zero1+zero2", '"zero1" and "zero2" cannot both hold'),
        ("fsdp8+math+flash", '"math" and "flash" cannot both hold'),
        ("pp2+gpipe+1f1b", '"gpipe" and "1f1b" cannot both hold'),
        ("pp2+zvb", "did you mean zbv?"),
        ("pp2+interleaved", "lacks its number; legal: for example interleaved2"),
        ("pp2+interleaved1", "legal: 2 or more"),
        ("fsdp8+zero4", "did you mean zero"),
        ("fsdp8+ckpt0", '"ckpt0" is below one'),
        ("fsdp8+sp", "layout.tensor = 1"),
        ("fsdp8+ulysses", "needs cp > 1"),
        ("fsdp8+ring", '"ring" needs cp > 1'),
        ("fsdp8+gpipe", '"gpipe" needs pp > 1'),
        ("fsdp8+1f1b", '"1f1b" needs pp > 1'),
        ("pp1+zbv", '"zbv" needs pp > 1'),
    ],
)
def test_a_wrong_label_is_refused_in_one_sentence(label: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        Layout.parse(label)
    (sentence,) = caught.value.problems
    assert says in sentence
    assert sentence.startswith("layout label ")
    assert "legal: " in sentence
    assert "\n" not in sentence


def test_all_mistakes_of_a_label_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Layout.parse("fsd8-tp0+selectiv+mb0")
    assert len(caught.value.problems) == 4


letters = st.text(alphabet="fsdpctmbzeron-+0123456789 ", max_size=24)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=40), letters))
def test_any_text_is_a_layout_or_a_sentence(label: str) -> None:
    try:
        layout = Layout.parse(label)
    except InputError as error:
        sentences = error.problems
    else:
        assert Layout.parse(str(layout)) == layout
        return
    assert sentences
    assert all(len(sentence.splitlines()) == 1 for sentence in sentences)
    assert all("legal: " in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("ulyses", "ulysses"), ("selectve", "selective"), ("zerro1", "zero1"), ("eagerr", "eager"), ("flsh", "flash")],
)
def test_an_unknown_word_is_answered_with_the_word_it_was_meant_to_be(wrong: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"did you mean {meant}\? legal: mbN, sp, "):
        Layout.parse(f"fsdp2+{wrong}")
