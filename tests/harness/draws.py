"""Random legal layouts of random small models, and random combinations of choices that no rule has seen."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from torchlayout.config import Config
from torchlayout.layout import Layout, words

STEPS = 2
RECOMPUTE = (*words.RECOMPUTES, "ckpt2", "ckpt3")


@dataclass(frozen=True)
class Draw:
    """A layout and the tables of the configuration that it trains, without [layout]."""

    number: int
    layout: Layout
    raw: dict[str, Any]

    @property
    def job(self) -> dict[str, Any]:

        return {"label": str(self.layout), "config": self.raw}

    def __str__(self) -> str:
        model, data = self.raw["model"], self.raw["data"]
        heads = f"{model['num_attention_heads']}/{model['num_key_value_heads']}x{model['head_dim']}"
        facts = [
            f"{model['num_hidden_layers']} layers",
            f"heads {heads}",
            f"hidden {model['hidden_size']}/{model['intermediate_size']}",
            f"vocabulary {model['vocab_size']}",
            f"batch {self.raw['batch']['global_size']} x {data['sequence_length']}",
            *(["tied"] if model["tie_word_embeddings"] else []),
            *(["documents"] if data["within_documents"] else []),
            *(["plain loss"] if self.raw["kernels"]["loss"] == "plain" else []),
        ]
        return f"#{self.number} {self.layout}  [{', '.join(facts)}; seed {self.raw['run']['seed']}]"


def draw(number: int, seed: int, corpus: str, ranks: int | None = None, compiled: float = 0.0) -> Draw:
    """The number-th draw of a seed: always the same, whatever was drawn before.

    ranks: from 1 to 8 unless given; compiled: how often a layout that may be compiled is.
    """
    rng = random.Random(f"{seed}:{number}")
    world = ranks or rng.choice([1, 2, 2, 3, 4, 4, 4, 5, 6, 6, 8, 8, 8])
    while True:
        # First of all, so that a schedule which few models can have is about as likely as the others.
        schedule = rng.choice([None, None, None, None, None, *words.SCHEDULES]) if world > 1 else None
        pipelines = {"pipeline": 1} if schedule is None else {"pipeline": range(2, world + 1), "schedule": schedule}
        raw = configuration(rng, corpus)
        config = Config.from_dict(raw)
        given = (config.model, config.batch.global_size, config.data.sequence_length, config.precision)
        legal = list(Layout.enumerate(world, *given, recompute=RECOMPUTE, **pipelines))
        if not legal:
            continue
        layout = pick(rng, legal)
        kernels = {"attention": rng.choice(["sdpa", "sdpa", "math"]), "norm": rng.choice(["fused", "fused", "eager"])}
        layout = replace(layout, **kernels)  # type: ignore[arg-type]
        if rng.random() < compiled and not replace(layout, compile=True).check(*given):
            layout = replace(layout, compile=True)
        return Draw(number, layout, raw)


def pick(rng: random.Random, legal: list[Layout]) -> Layout:
    """One choice after the other, so that rare values are as likely as those that most layouts have."""
    for choice in (
        lambda layout: (layout.pipeline, layout.replicate, layout.shard, layout.context, layout.tensor),
        lambda layout: layout.virtual_stages,
        lambda layout: (layout.sequence_parallel, layout.context_method),
        lambda layout: layout.zero,
        lambda layout: layout.recompute,
    ):
        groups: dict[Hashable, list[Layout]] = defaultdict(list)
        for layout in legal:
            groups[choice(layout)].append(layout)
        legal = groups[rng.choice(list(groups))]
    return rng.choice(legal)


def configuration(rng: random.Random, corpus: str) -> dict[str, Any]:
    """A model of a few thousand parameters with odd sizes, and what it is trained on."""
    kv_heads = rng.choice([1, 2, 2, 3, 4, 4, 8])
    heads = kv_heads * rng.choice([1, 1, 2, 3])
    head_dim = rng.choice([2, 4, 8])
    return {
        "run": {"seed": rng.randrange(1000)},
        "model": {
            "vocab_size": rng.choice([257, 258, 263, 288, 509]),
            "hidden_size": rng.choice([heads * head_dim, 24, 36, 40]),
            "intermediate_size": 24 * rng.choice([1, 2, 3]),
            "num_hidden_layers": rng.randint(2, 9),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "tie_word_embeddings": rng.random() < 0.4,
        },
        "data": {
            "path": corpus,
            "sequence_length": rng.choice([8, 12, 16, 24, 32, 36, 48]),
            "workers": 0,
            "within_documents": rng.random() < 0.4,
        },
        "batch": {"global_size": rng.choice([4, 6, 8, 12, 12, 16, 24])},
        "kernels": {"loss": rng.choice(["chunked", "chunked", "plain"])},
        "precision": {"parameters": "fp64"},
        "optimizer": {"learning_rate": 1e-2, "clip_norm": 0.05, "warmup_steps": 1, "weight_decay": 0.1},
        "train": {"steps": STEPS, "timeout_seconds": 120.0},
    }


def combination(rng: random.Random, world: int) -> Layout:
    """Degrees whose product is `world` and any choices that these have a meaning for, legal or not."""
    degrees = dict.fromkeys(words.AXES.values(), 1)
    left = world
    while left > 1:
        factor = next(prime for prime in (2, 3, 5, 7) if left % prime == 0)
        degrees[rng.choice(list(degrees))] *= factor
        left //= factor
    schedule = rng.choice(words.SCHEDULES) if degrees["pipeline"] > 1 else "1f1b"
    virtual_stages = rng.choice([2, 3]) if schedule in words.LOOPED_SCHEDULES else 1
    return Layout(
        **degrees,
        micro_batch=rng.choice([1, 1, 2, 3]),
        sequence_parallel=degrees["tensor"] > 1 and rng.random() < 0.5,
        schedule=schedule,
        virtual_stages=virtual_stages,
        context_method=rng.choice(words.CONTEXT_METHODS) if degrees["context"] > 1 else "ring",
        recompute=rng.choice(RECOMPUTE),
        zero=rng.choice([None, *words.ZEROS]),
        attention=rng.choice(words.ATTENTIONS),
        norm=rng.choice(words.NORMS),
        compile=rng.random() < 0.3,
    )
