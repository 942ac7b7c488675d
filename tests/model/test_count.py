from __future__ import annotations

import math
from typing import Any

import pytest

from torchlayout.config import ModelConfig
from torchlayout.config.model import presets, spell_out
from torchlayout.layout import Layout
from torchlayout.model import count


def build(preset: str, **fields: Any) -> ModelConfig:
    return ModelConfig.model_validate(spell_out({"preset": preset, **fields}))


# From the model cards: the sums over the published weights.
PUBLISHED = {
    "llama-160m": 162_417_408,
    "llama-1b": 1_100_048_384,
    "llama-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_are_published(name: str) -> None:
    assert count.parameters(build(name)) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "published"), [("llama-13b", 13_015_864_320), ("llama-30b", 32_528_943_616), ("llama-65b", 65_285_660_672)]
)
def test_the_study_presets_differ_from_the_first_llama_by_their_vocabulary_alone(name: str, published: int) -> None:
    assert count.parameters(build(name, vocab_size=32000)) == published


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("tied", [False, True])
def test_the_shapes_add_up_to_the_parameters(name: str, tied: bool) -> None:
    model = build(name, tie_word_embeddings=tied)
    named = count.shapes(model)
    assert sum(math.prod(shape) for shape in named.values()) == count.parameters(model)
    layer = sum(math.prod(shape) for key, shape in named.items() if key.startswith("layers.1."))
    assert layer == count.layer_parameters(model)


def test_a_tied_head_has_no_weights_of_its_own_but_keeps_its_product() -> None:
    tied, untied = build("debug", tie_word_embeddings=True), build("debug")
    assert set(count.shapes(untied)) - set(count.shapes(tied)) == {"head.output.weight"}
    assert count.parameters(untied) - count.parameters(tied) == 257 * 64
    assert count.flops_per_token(tied, 32, "exact") == count.flops_per_token(untied, 32, "exact")


def test_the_paper_convention_is_6n_plus_12lhs() -> None:
    model = build("llama-13b")
    assert count.flops_per_token(model, 2048, "paper") == 6 * 13_998_904_320 + 12 * 40 * 5120 * 2048


def test_exact_flops_are_those_that_torch_counts() -> None:
    import torch
    from torch.nn import functional
    from torch.utils.flop_counter import FlopCounterMode

    model, tokens = build("debug", num_hidden_layers=2), 16
    weights = {name: torch.ones(shape, requires_grad=True) for name, shape in count.shapes(model).items()}
    heads, groups, width = model.num_attention_heads, model.num_key_value_heads, model.head_dim

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, weights[f"{name}.weight"])

    with FlopCounterMode(display=False) as counter:
        x = weights["embedding.weight"][torch.zeros(tokens, dtype=torch.long)]
        for layer in (f"layers.{index}" for index in range(model.num_hidden_layers)):
            query = linear(x, f"{layer}.attention.query").view(tokens, heads, width).transpose(0, 1)
            key, value = (
                linear(x, f"{layer}.attention.{name}").view(tokens, groups, width).transpose(0, 1)
                for name in ("key", "value")
            )
            key, value = (part.repeat_interleave(heads // groups, 0) for part in (key, value))
            mixed = torch.bmm(torch.bmm(query, key.transpose(1, 2)).softmax(-1), value)
            x = x + linear(mixed.transpose(0, 1).reshape(tokens, -1), f"{layer}.attention.output")
            inner = linear(x, f"{layer}.feed_forward.gate") * linear(x, f"{layer}.feed_forward.up")
            x = x + linear(inner, f"{layer}.feed_forward.down")
        linear(x, "head.output").sum().backward()

    # The score matrix above is whole; the exact count charges the causal half of it.
    spared = model.num_hidden_layers * 3 * 4 * heads * width * tokens / 2
    assert counter.get_total_flops() == tokens * (count.flops_per_token(model, tokens, "exact") + spared)


def test_the_layers_and_the_head_are_all_there_is() -> None:
    model = build("llama-7b")
    parts = 32 * count.layer_flops_per_token(model, 4096) + count.head_flops_per_token(model)
    assert parts == count.flops_per_token(model, 4096, "exact")


class TestRecomputation:
    model = build("debug", num_hidden_layers=5)

    def recomputed(self, label: str, loss: Any = "plain", convention: Any = "exact") -> float:
        return count.recomputed_flops_per_token(self.model, 32, Layout.parse(label), convention, loss)

    def test_nothing_is_recomputed_without_being_asked(self) -> None:
        assert self.recomputed("fsdp1") == 0

    def test_full_recomputation_repeats_the_forward_pass_of_every_block_but_its_last_product(self) -> None:
        last_product = 2 * self.model.hidden_size * self.model.intermediate_size
        assert self.recomputed("fsdp1+ckpt") == 5 * (count.layer_flops_per_token(self.model, 32) / 3 - last_product)

    def test_every_second_block_counts_the_global_indices_0_2_4(self) -> None:
        assert self.recomputed("fsdp1+ckpt2") == self.recomputed("fsdp1+ckpt") * 3 / 5

    def test_the_attention_core_is_two_products(self) -> None:
        assert self.recomputed("fsdp1+ckptattn") == 5 * 2 * 2 * 64 * 32 / 2
        assert self.recomputed("fsdp1+ckptattn", convention="paper") == 5 * 2 * 2 * 64 * 32

    def test_selective_recomputation_repeats_no_product(self) -> None:
        assert self.recomputed("fsdp1+selective") == 0

    def test_the_chunked_loss_repeats_the_product_of_the_head(self) -> None:
        assert self.recomputed("fsdp1", loss="chunked") == count.head_flops_per_token(self.model) / 3
