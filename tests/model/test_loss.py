from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode  # no public module exports it

from torchlayout.model.loss import IGNORED, WholeVocabulary, chunked_loss, plain_loss, vocabulary_loss


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 16, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(29, 16, generator=generator, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, 29, (3, 7), generator=generator)
    labels[0, 2:5] = IGNORED
    return hidden, weight, labels


@pytest.mark.parametrize("chunk_tokens", [1, 4, 7, 21, 100])
def test_chunked_loss_and_gradients_are_those_of_the_plain_one(chunk_tokens: int) -> None:
    hidden, weight, labels = example()
    expected = plain_loss(hidden, weight, labels)
    gradients = torch.autograd.grad(expected * 0.3, (hidden, weight))

    loss = vocabulary_loss(hidden, weight, labels, WholeVocabulary(), chunk_tokens)
    ours = torch.autograd.grad(loss * 0.3, (hidden, weight))

    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(ours, gradients, rtol=1e-12, atol=1e-13)


def test_all_labels_ignored_is_a_loss_of_zero_and_no_gradient() -> None:
    hidden, weight, labels = example()
    loss = chunked_loss(hidden, weight, torch.full_like(labels, IGNORED))
    loss.backward()
    assert loss.item() == 0
    assert hidden.grad is not None
    assert hidden.grad.abs().sum() == 0


def test_bf16_loss_is_summed_in_fp32() -> None:
    hidden, weight, labels = example()
    loss = chunked_loss(hidden.bfloat16(), weight.bfloat16(), labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), plain_loss(hidden, weight, labels), rtol=2e-2, atol=0)


def test_chunked_loss_never_holds_the_whole_logits() -> None:
    tokens, vocabulary, size = 512, 4096, 8
    hidden = torch.randn(1, tokens, size, requires_grad=True)
    weight = torch.randn(vocabulary, size, requires_grad=True)
    labels = torch.randint(0, vocabulary, (1, tokens))
    with LargestTensor() as seen:
        vocabulary_loss(hidden, weight, labels, WholeVocabulary(), chunk_tokens=64).backward()
    assert seen.elements <= 64 * vocabulary
    with LargestTensor() as seen:
        plain_loss(hidden, weight, labels).backward()
    assert seen.elements >= tokens * vocabulary


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out
