"""Whether the corpus that a configuration names is there and fits the model, before any process starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchlayout.errors import InputError

if TYPE_CHECKING:
    from torchlayout.config import DataSection, ModelConfig


def corpus_problems(data: DataSection, model: ModelConfig) -> list[str]:
    """What keeps this model from being trained on this corpus, a sentence each."""
    from torchlayout.data.corpus import Corpus

    try:
        corpus = Corpus.open(data.path)
    except InputError as error:
        return list(error.problems)
    problems = []
    if corpus.vocabulary > model.vocab_size:
        problems.append(
            f"model.vocab_size = {model.vocab_size} is below the {corpus.vocabulary} token ids of {data.path}; "
            f"legal: {corpus.vocabulary} or more"
        )
    if corpus.samples(data.sequence_length) < 1:
        problems.append(
            f"data.sequence_length = {data.sequence_length} is longer than {data.path}, "
            f"which has {corpus.token_count} tokens; legal: 1 to {max(1, corpus.token_count - 1)}"
        )
    return problems
