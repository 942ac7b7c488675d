"""Layers to pipeline stages by cost, so that the embedding and the head are paid for."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from torchlayout.errors import InputError
from torchlayout.model.count import head_flops_per_token, layer_flops_per_token

if TYPE_CHECKING:
    from torchlayout.config import ModelConfig

# The lookup multiplies nothing; it reads and writes rows and its gradient fills the whole table. For 13B with
# 128,000 words and 2,048 tokens that traffic is about 1 ms on an A100, where a layer takes about 20 ms.
EMBEDDING_IN_LAYERS = 0.05


def split_layers(model: ModelConfig, sequence: int, stages: int) -> tuple[range, ...]:
    """Layers of each stage, in order, minimising the FLOPs of the slowest stage with head and embedding in.

    Raises InputError where there are more stages than layers.
    """
    layers = model.num_hidden_layers
    if stages > layers:
        raise InputError(
            f"{stages} pipeline stages are more than num_hidden_layers = {layers}; legal: at most {layers}"
        )
    layer = round(layer_flops_per_token(model, sequence))
    head = round(head_flops_per_token(model))
    sizes = balance((layer,) * layers, round(layer * EMBEDDING_IN_LAYERS), head, stages)
    ends = list(accumulate(sizes, initial=0))
    return tuple(range(start, end) for start, end in pairwise(ends))


@lru_cache(maxsize=1024)
def balance(costs: tuple[int, ...], first: int, last: int, stages: int) -> tuple[int, ...]:
    """Number of layers of each stage such that the slowest stage is as fast as can be.

    `costs` are those of the layers, `first` and `last` what the first and the last stage carry besides.
    Among equals the most even split wins, then the one with fewer layers early: under 1F1B the early stages
    hold the activations of more micro-batches.
    """
    problem = _Problem(costs, first, last, stages)
    slowest = _solve(problem, limit=None)[0]
    sizes = _solve(problem, limit=slowest)[1]
    return tuple(sizes)


class _Problem:
    """Costs of runs of layers as stages, by prefix sums."""

    def __init__(self, costs: tuple[int, ...], first: int, last: int, stages: int) -> None:
        self.layers, self.stages, self.first, self.last = len(costs), stages, first, last
        self._sums = list(accumulate(costs, initial=0))

    def cost(self, stage: int, start: int, end: int) -> int:
        extra = self.first * (stage == 0) + self.last * (stage == self.stages - 1)
        return self._sums[end] - self._sums[start] + extra


def _solve(problem: _Problem, limit: int | None) -> tuple[int, list[int]]:
    """Best (value, sizes) over all splits: the least maximum or, given a limit, the least sum of squares.

    Dynamic programming over suffixes: a table says, for one stage, the best value and the end of that stage
    for each layer it may start at.
    """
    tables: list[dict[int, tuple[int, int]]] = [{problem.layers: (0, problem.layers)}]
    for stage in reversed(range(problem.stages)):
        later = problem.stages - 1 - stage
        starts = range(stage, problem.layers - later) if stage else range(1)
        found = {start: _best_end(problem, stage, start, tables[-1], limit) for start in starts}
        tables.append({start: best for start, best in found.items() if best is not None})
    sizes, start = [], 0
    for table in reversed(tables[1:]):
        end = table[start][1]
        sizes.append(end - start)
        start = end
    return tables[-1][0][0], sizes


def _best_end(
    problem: _Problem, stage: int, start: int, after: dict[int, tuple[int, int]], limit: int | None
) -> tuple[int, int] | None:
    """Best (value, end) of a stage that starts at `start`, or None where the limit allows none."""
    best: tuple[int, int] | None = None
    last = stage == problem.stages - 1
    for end in range(problem.layers if last else start + 1, problem.layers + 1):
        cost = problem.cost(stage, start, end)
        # A stage only gets slower with more layers, so nothing further on can be better.
        if limit is not None and cost > limit:
            break
        if limit is None and best is not None and cost >= best[0]:
            break
        if end in after:
            rest = after[end][0]
            value = max(cost, rest) if limit is None else cost * cost + rest
            if best is None or value < best[0]:
                best = (value, end)
    return best
