"""Where a rank's memory goes while it trains, storage by storage; also the script of its ranks: JOBS.json RESULTS.json.

JOBS.json: a list of {"label", "config"}. Each is trained for STEPS steps, and the last one is accounted for;
RESULTS.json: for each job what `account` says of every rank.

What is followed: every storage that an operation returns or is given, at the size that it has at the time. What is
not: memory inside of one operation, and what gloo copies for itself.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor  # no public module exports it
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode  # no public module exports it
from torch.utils._pytree import tree_leaves

from torchlayout.config import Config
from torchlayout.model.count import parameters
from torchlayout.model.initialize import held_part
from torchlayout.train.environment import pick_device, process_group
from torchlayout.train.leave import leave
from torchlayout.train.trainer import Trainer

STEPS = 3
HELD = ("parameters", "states", "gathered", "gradients", "unsharded gradients")
"""Categories that a storage has for what holds it, in the order in which they win; the others follow from its life."""
SEEN = "seen"
"""Made by no operation that the tracker saw: before it began, or inside of another one, as gloo does."""
SHOWN = 16


@dataclass(eq=False)
class Life:
    """One storage, from when it was first seen to when nothing held it any more; times are ticks of the tracker.

    resized: bytes by the tick from which on it had them. made_by: the operation; frames: the Python functions around
    it, innermost first, and before them the node of the graph where a backward pass runs.
    """

    born: int
    phase: Phase
    made_by: str
    frames: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    resized: list[tuple[int, int]]
    died: int | None = None
    held_as: set[str] = field(default_factory=set)

    def bytes_at(self, tick: int) -> int:
        if tick < self.born or (self.died is not None and tick >= self.died):
            return 0
        return next(size for since, size in reversed(self.resized) if since <= tick)

    def outlives(self, tick: int) -> bool:
        return self.died is None or self.died > tick

    @property
    def category(self) -> str:
        """Of what it was ever held as, the first; else by who made it and when, and whether it outlived that phase."""
        for name in HELD:
            if name in self.held_as:
                return name
        around = " ".join(self.frames)
        if "foreach_all_gather" in around or "_get_param_all_gather_inputs" in around:
            return "gather buffers"
        if "foreach_reduce" in around:
            return "reduce buffers" if self.made_by != SEEN else "gloo copies"
        if "_make_tensor_from_meta" in around:
            return "receive buffers"
        kept = self.outlives(self.phase.ended)
        if self.phase.kind == "forward":
            return "activations" if kept else "forward temporaries"
        if self.phase.kind == "backward":
            if "llama.py" in around:
                return "recomputed"
            return "gradients in flight" if kept else "backward temporaries"
        return "optimizer temporaries" if self.phase.kind == "optimizer" else "other"


@dataclass(eq=False)
class Phase:
    """A stretch of a step: the forward of a stage's micro-batch, a backward, the optimizer, or what lies between."""

    kind: str
    name: str
    began: int
    ended: int = sys.maxsize


class Tracker(TorchDispatchMode):
    """Writes down the life of every storage that operations meet inside of it, and the phases they met in."""

    def __init__(self, holders: Holders) -> None:
        super().__init__()
        self.holders = holders
        self.tick = 0
        self.alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], Life]] = {}
        self.lives: list[Life] = []
        self.phases = [Phase("between", "start", 0)]
        self.operations: list[tuple[int, str]] = []
        self.resizable: dict[int, tuple[weakref.ref[torch.UntypedStorage], Life]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented  # the operations on what they wrap come by themselves
        self.advance()
        given = tree_leaves((args, kwargs))
        self._meet(given, SEEN, self._frames(given))
        self.hold(self.holders.at_operations())
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.fsdp.chunk_cat.default:
            # FSDP2 lets go of a gradient before it copies it, often with no operation since it was made.
            self.hold(("unsharded gradients", gradient) for gradient in args[0])
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self._meet(made, str(func), self._frames(made))
        self.operations.append((self.tick, str(func)))
        return out

    def advance(self) -> None:
        """One tick on; what FSDP2 emptied or filled since then, in no operation, has its new size from now on."""
        self.tick += 1
        for reference, life in list(self.resizable.values()):
            storage = reference()
            if storage is not None and storage.nbytes() != life.resized[-1][1]:
                life.resized.append((self.tick, storage.nbytes()))

    def hold(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Write down what tensors are held as."""
        for name, tensor in named:
            for storage in storages_of([tensor]):
                if id(storage) not in self.alive:
                    self._follow(storage, tensor, SEEN, ())
                reference, life = self.alive[id(storage)]
                life.held_as.add(name)
                if name == "gathered":
                    self.resizable[id(storage)] = (reference, life)

    def enter(self, kind: str, name: str) -> None:
        """A new phase begins, and the one before it ends."""
        self.hold(self.holders.between_phases())
        self.advance()
        self.phases[-1].ended = self.tick
        self.phases.append(Phase(kind, name, self.tick))

    def _meet(self, values: Iterable[Any], made_by: str, frames: tuple[str, ...]) -> None:
        for value in values:
            for storage in storages_of([value]):
                if id(storage) not in self.alive:
                    self._follow(storage, value, made_by, frames)

    def _frames(self, values: Iterable[Any]) -> tuple[str, ...]:
        new = any(id(storage) not in self.alive for storage in storages_of(values))
        return tuple(_frames()) if new else ()

    def _follow(self, storage: torch.UntypedStorage, value: Tensor, made_by: str, frames: tuple[str, ...]) -> None:
        sizes = [(self.tick, storage.nbytes())]
        shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        life = Life(self.tick, self.phases[-1], made_by, frames, shape, dtype, sizes)
        key = id(storage)

        def gone(_: Any) -> None:
            life.died = self.tick + 1
            self.alive.pop(key, None)
            self.resizable.pop(key, None)

        self.alive[key] = (weakref.ref(storage, gone), life)
        self.lives.append(life)


def storages_of(values: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    """Storages of the tensors among values that have any: of a subclass those of what it wraps."""
    for value in values:
        if isinstance(value, Tensor):
            local = getattr(value, "_local_tensor", value)
            local = getattr(local, "elem", local)  # of a collective's result that has not been waited for
            if type(local) in (Tensor, torch.nn.Parameter) and local.device.type != "meta":
                yield local.untyped_storage()


def _frames() -> Iterator[str]:
    """Functions of ours and of torch's distributed and optimizer packages on the stack, innermost first."""
    # No public call tells which node of the graph runs.
    node = torch._C._current_autograd_node()
    if node is not None:
        yield node.name()
    frame = sys._getframe(2)
    while frame is not None:
        file = _file(frame.f_code.co_filename)
        if file is not None:
            yield f"{file}:{frame.f_lineno}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]


@functools.cache
def _file(path: str) -> str | None:
    """The name of a file that tells who allocates: one of ours, or of torch's distributed and optimizer packages."""
    parts = Path(path).parts
    told = {"torchlayout", "fsdp", "pipelining", "optim", "tensor"} & set(parts[:-1])
    return parts[-1] if told else None


class Holders:
    """What a trainer holds its tensors as, by category."""

    def __init__(self, trainer: Trainer) -> None:
        self.states = trainer.optimizer.state
        # Taken now: while parameters are gathered, the model has those in the place of its shards.
        self.own = trainer.model.parameters()
        # FSDP2's own view of each parameter; no public call tells what it has gathered.
        self.sharded: list[Any] = [
            parameter
            for part in trainer.model.parts
            for module in part.modules()
            if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group) is not None
            for parameter in group.fsdp_params
        ]

    def between_phases(self) -> Iterator[tuple[str, Tensor]]:
        """What lasts, so that it is enough to look when a phase ends."""
        yield from (("parameters", parameter) for parameter in self.own)
        yield from (("states", tensor) for state in self.states.values() for tensor in state.values())
        yield from (("gradients", parameter.grad) for parameter in self.own if parameter.grad is not None)
        yield from (("gathered", tensor) for parameter in self.sharded for tensor in parameter.all_gather_outputs)

    def at_operations(self) -> Iterator[tuple[str, Tensor]]:
        """What is gone before a phase ends."""
        for parameter in self.sharded:
            unsharded = getattr(parameter, "_unsharded_param", None)
            for gradient in (parameter.unsharded_accumulated_grad, None if unsharded is None else unsharded.grad):
                if gradient is not None:
                    yield "unsharded gradients", gradient


@contextmanager
def tracking(trainer: Trainer) -> Iterator[Tracker]:
    """Follow a trainer's steps, phase by phase."""
    tracker = Tracker(Holders(trainer))

    def entering(kind: str, name: str) -> Callable[..., None]:
        return lambda *_: tracker.enter(kind, name)

    leaving = entering("between", "between")
    hooks = [
        trainer.optimizer.register_step_pre_hook(entering("optimizer", "optimizer step")),
        trainer.optimizer.register_step_post_hook(leaving),
    ]
    for stage, part in zip(_stages(trainer), trainer.model.parts, strict=True):
        before = entering("forward", f"forward of stage {stage}")
        hooks += [part.register_forward_pre_hook(before, prepend=True), part.register_forward_hook(leaving)]

    def as_backward(name: str) -> Any:
        run = getattr(torch.autograd, name)

        def tracked(*arguments: Any, **options: Any) -> Any:
            tracker.enter("backward", "backward")
            result = run(*arguments, **options)
            leaving()
            return result

        return patch.object(torch.autograd, name, tracked)

    with as_backward("backward"), as_backward("grad"), tracker:
        yield tracker
    for hook in hooks:
        hook.remove()


def _stages(trainer: Trainer) -> list[int]:
    return list(trainer.layout.stages_of(trainer.meshes.coordinate("pp")))


def account(label: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Train STEPS steps, and say of the last one where this rank's memory went (all figures are bytes)."""
    config = Config.from_dict(raw | {"layout": {"label": label}})
    layout = config.layout_for(dist.get_world_size())
    assert config.check(layout.world) == []
    trainer = Trainer(config, layout, pick_device())
    with tracking(trainer) as tracker:
        for _ in range(STEPS):
            gc.collect()
            tracker.enter("between", "start of a step")
            began = tracker.tick
            trainer.step()
        tracker.enter("between", "end")
    trainer.close()
    held = trainer.model.parameters()
    return {
        "label": label,
        "precision": config.precision.parameters,
        "loss": config.kernels.loss,
        "rank": dist.get_rank(),
        "stages": _stages(trainer),
        "sequence": config.data.sequence_length,
        "global_batch": config.batch.global_size,
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.micro_batches(config.batch.global_size),
        "parameters_of_model": parameters(config.model),
        "parameters_of_rank": sum(held_part(parameter).local.numel() for parameter in held),
        "tensors_of_rank": len(held),
        "tied": config.model.tie_word_embeddings,
        "model": config.model.model_dump(mode="json"),
        **Accounts(tracker, began).figures(),
    }


class Accounts:
    """What a tracker saw, from a tick on."""

    def __init__(self, tracker: Tracker, began: int) -> None:
        self.tracker, self.began = tracker, began
        self.lives = [life for life in tracker.lives if life.outlives(began)]
        self.totals = self._totals()

    def figures(self) -> dict[str, Any]:
        last = [phase for phase in self.tracker.phases if phase.began >= self.began]
        peak = self.highest([(self.began, self.tracker.tick)])
        kinds = {kind: [(p.began, p.ended) for p in last if p.kind == kind] for kind in ("forward", "backward")}
        kinds["optimizer"] = [(p.began, p.ended) for p in last if p.kind == "optimizer"]
        return {
            "peak_bytes": self.totals[peak],
            "peak": self.moment(peak, detail=True),
            "static": self.moment(self.tracker.tick),
            "before_optimizer": self.moment(next(p.began for p in last if p.kind == "optimizer")),
            "forward_ends": [self.moment(p.ended) | {"part": p.name} for p in last if p.kind == "forward"],
            **{f"{kind}_peak": self.moment(self.highest(spans), detail=True) for kind, spans in kinds.items()},
        }

    def highest(self, spans: list[tuple[int, int]]) -> int:
        """The tick within spans at which most was alive."""
        return max((tick for first, last in spans for tick in range(first, last + 1)), key=self.totals.__getitem__)

    def moment(self, tick: int, detail: bool = False) -> dict[str, Any]:
        """Bytes by category at a tick, where that was, and the largest storages of the categories that pass."""
        there = [(size, life) for life in self.lives if (size := life.bytes_at(tick))]
        categories: Counter[str] = Counter()
        for size, life in there:
            categories[life.category] += size
        phase = next(phase for phase in reversed(self.tracker.phases) if phase.began <= tick)
        operation = next((name for at, name in self.tracker.operations if at >= tick), "end")
        told = {
            "bytes": sum(categories.values()),
            "categories": dict(sorted(categories.items(), key=lambda item: -item[1])),
            "where": f"{phase.name}, {operation}",
        }
        return told | ({"largest": _largest(there)} if detail else {})

    def _totals(self) -> list[int]:
        changes = [0] * (self.tracker.tick + 2)
        for life in self.lives:
            before = 0
            for tick, size in life.resized:
                changes[tick] += size - before
                before = size
            if life.died is not None:
                changes[life.died] -= before
        totals, total = [], 0
        for change in changes:
            total += change
            totals.append(total)
        return totals


def _largest(there: list[tuple[int, Life]]) -> list[str]:
    """The storages that are not parameters, gradients or states, alike ones together."""
    alike: dict[str, list[int]] = defaultdict(list)
    for size, life in there:
        if life.category not in HELD:
            who = " < ".join(life.frames[:3])
            alike[f"{life.category}: {list(life.shape)} {life.dtype} {life.made_by} {who}"].append(size)
    ordered = sorted(alike.items(), key=lambda item: -sum(item[1]))[:SHOWN]
    return [f"{sum(sizes):,} = {len(sizes)} x {sizes[0]:,}  {what}" for what, sizes in ordered]


def main(jobs_file: str, results_file: str) -> None:
    outcomes = []
    with process_group(pick_device(), 300):
        for job in json.loads(Path(jobs_file).read_text()):
            by_rank: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(by_rank, account(job["label"], job["config"]))
            outcomes.append(by_rank)
        if dist.get_rank() == 0:
            Path(results_file).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
