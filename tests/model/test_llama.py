from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode  # no public module exports it
from transformers import LlamaConfig, LlamaForCausalLM

from torchlayout.config import ModelConfig
from torchlayout.model.count import parameters, shapes
from torchlayout.model.initialize import initialize
from torchlayout.model.llama import Llama, RMSNorm
from torchlayout.model.rope import rotary_table

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def small(**changes: object) -> ModelConfig:
    return ModelConfig(**(SMALL | changes))


def built(config: ModelConfig, dtype: torch.dtype = torch.float64, **kernels: str) -> Llama:
    model = Llama(config, **kernels).to(dtype)  # type: ignore[arg-type]
    initialize(model, config, seed=3)
    return model


def tokens(config: ModelConfig, length: int = 24) -> torch.Tensor:
    return torch.randint(0, config.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))


HUGGING_FACE_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "head.norm.weight": "model.norm.weight",
    "head.output.weight": "lm_head.weight",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4, "rope_theta": 500000.0},
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING},
    ],
    ids=["grouped-query", "tied", "multi-head", "llama3-scaling"],
)
def test_logits_are_those_of_transformers(changes: dict[str, object]) -> None:
    config = small(**changes)
    model = built(config, torch.float32)
    rope = {"rope_theta": config.rope_theta} | (changes.get("rope_scaling") or {"rope_type": "default"})
    theirs = LlamaForCausalLM(
        LlamaConfig(
            **SMALL | {k: v for k, v in changes.items() if k not in ("rope_scaling", "rope_theta")},
            rope_parameters=rope,
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=512,
        )
    )
    state = {}
    for name, parameter in model.named_parameters():
        for ours, others in HUGGING_FACE_NAMES.items():
            name = name.replace(ours, others)
        state[name if name.startswith(("model.", "lm_head")) else f"model.{name}"] = parameter
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    x = tokens(config)
    torch.testing.assert_close(model(x), theirs(x).logits, rtol=1e-5, atol=1e-5)


def test_parameters_have_the_names_and_shapes_that_are_counted() -> None:
    for config in (small(), small(tie_word_embeddings=True)):
        model = Llama(config)
        assert {name: tuple(p.shape) for name, p in model.named_parameters()} == shapes(config)
        assert sum(p.numel() for p in model.parameters()) == parameters(config)


@pytest.mark.parametrize("kernels", [{"attention": "math"}, {"norm": "eager"}, {"loss": "plain"}], ids=str)
def test_every_kernel_gives_the_same_loss_and_gradients(kernels: dict[str, str]) -> None:
    config, (reference, other) = small(), (built(small()), built(small(), **kernels))
    x = tokens(config)
    losses = [model(x[:, :-1], x[:, 1:]) for model in (reference, other)]
    for loss in losses:
        loss.sum().backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)
    for ours, theirs in zip(reference.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_attention_inside_documents_is_attention_of_each_document_alone(attention: str) -> None:
    config = small()
    model = built(config, attention=attention)
    x = tokens(config)
    documents = torch.tensor([[0] * 9 + [1] * 15, [0] * 24])
    together = model(x, documents=documents)
    torch.testing.assert_close(together[:1, :9], model(x[:1, :9]))
    alone = model(x[:1, 9:], positions=torch.arange(9, 24)[None])
    torch.testing.assert_close(together[:1, 9:], alone)
    torch.testing.assert_close(together[1:], model(x[1:]))


def test_a_model_in_parts_computes_what_the_whole_one_does() -> None:
    config = small()
    whole = built(config)
    parts = [
        Llama(config, layers=range(0, 2), head=False).double(),
        Llama(config, layers=[2], embedding=False).double(),
    ]
    for part in parts:
        initialize(part, config, seed=3)
    x = tokens(config)
    torch.testing.assert_close(parts[1](parts[0](x)), whole(x), rtol=0, atol=0)


def test_rotary_table_is_never_narrower_than_fp32_and_exact_far_out() -> None:
    config = small()
    positions = torch.tensor([[1_000_003]])
    cosine, _ = rotary_table(config, positions, torch.bfloat16)
    assert cosine.dtype == torch.float32
    exact, _ = rotary_table(config, positions, torch.float64)
    torch.testing.assert_close(cosine.double(), exact, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "kernels", [{}, {"norm": "eager", "attention": "math", "loss": "plain"}], ids=["default", "reference"]
)
def test_nothing_in_an_fp64_model_is_narrower_than_fp64(kernels: dict[str, str]) -> None:
    config = small(rope_scaling=LLAMA3_SCALING)
    model, x = built(config, **kernels), tokens(config)
    with FloatingTypes() as seen:
        model(x[:, :-1], x[:, 1:]).sum().backward()
    assert seen.types == {torch.float64}


class FloatingTypes(TorchDispatchMode):
    """Collects the floating types of all that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.types.add(tensor.dtype)
        return out


def test_eager_norm_equals_fused_norm() -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    fused, eager = (RMSNorm(8, 1e-5, kernel).double() for kernel in ("fused", "eager"))
    for norm in (fused, eager):
        torch.nn.init.constant_(norm.weight, 1.5)
    torch.testing.assert_close(eager(x), fused(x), rtol=1e-14, atol=0)
