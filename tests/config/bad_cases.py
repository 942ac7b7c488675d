"""Configurations that cannot be, as data: each must give one sentence and exit 2, wherever it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GOOD = """
[run]
name = "good"
[model]
preset = "debug"
[data]
path = "CORPUS"
sequence_length = 32
[batch]
global_size = 8
[precision]
parameters = "fp32"
[train]
steps = 2
"""


@dataclass(frozen=True)
class Case:
    """A file, the arguments beside it, and words that its one sentence must hold."""

    name: str
    says: str
    text: str = GOOD
    arguments: tuple[str, ...] = ()
    world: int | None = None
    """The number of ranks, where the case depends on it: --world, or WORLD_SIZE of the trainer."""
    make: Callable[[Path], None] | None = None
    """Makes the file in place of `text`."""

    def write(self, path: Path, corpus: Path) -> None:
        """Puts the file at `path`, naming the prepared `corpus`."""
        if self.make is not None:
            self.make(path)
        else:
            path.write_text(self.text.replace("CORPUS", str(corpus)), encoding="utf-8")


def settings(name: str, says: str, *assignments: str) -> Case:
    """A good file with bad assignments."""
    return Case(name, says, arguments=tuple(word for text in assignments for word in ("--set", text)))


def labelled(name: str, says: str, label: str, *assignments: str) -> Case:
    """A good file under a bad label."""
    rest = settings(name, says, *assignments).arguments
    return Case(name, says, arguments=("--layout", label, *rest))


SCALING = [
    f"model.rope_scaling.{value}"
    for value in ("factor=2.0", "low_freq_factor=1.0", "high_freq_factor=4.0", "original_max_position_embeddings=32")
]

CASES = [
    # The file
    Case("missing file", "cannot be read: No such file", make=lambda path: None),
    Case("directory", "cannot be read: Is a directory", make=lambda path: path.mkdir()),
    Case("unreadable file", "cannot be read", make=lambda path: path.symlink_to(path)),
    Case("not UTF-8", "is not UTF-8 text", make=lambda path: path.write_bytes(b'[run]\nname = "\xff"\n') and None),
    Case("TOML syntax", "is not TOML", text="[run\nname = 1"),
    Case("key given twice", "is not TOML", text="[run]\nseed = 1\nseed = 2\n"),
    Case("nested too deeply", "is not TOML", text=f"x = {'[' * 5000}{']' * 5000}"),
    Case("number of many digits", "is not TOML", text=f"[run]\nseed = {'9' * 5000}"),
    Case("section unknown", "[trian] is not a section; did you mean train?", text=GOOD.replace("[train]", "[trian]")),
    Case("section twice as an array", "is not a table of keys", text=GOOD.replace("[train]", "[[train]]")),
    Case("no model", "[model] lacks vocab_size", text='[data]\npath = "CORPUS"\n'),
    Case("no corpus named", "data.path is missing", text='[model]\npreset = "debug"\n'),
    settings("no corpus there", "torchlayout data prepare", "data.path=no/such/corpus"),
    settings("folder that is no corpus", "torchlayout data prepare", "data.path=."),
    # Keys and types
    settings("key unknown", "train.stesp is not a key; did you mean steps?", "train.stesp=50"),
    settings("word for a number", 'train.steps = "many" is not a whole number', "train.steps=many"),
    settings("fraction for a count", "train.steps = 2.5 is not a whole number", "train.steps=2.5"),
    settings("bool for a whole number", "train.steps = true is not a whole number", "train.steps=true"),
    settings("bool for a number", "optimizer.epsilon = true is not a number", "optimizer.epsilon=true"),
    settings("number for a bool", "data.shuffle = 1 is neither true nor false", "data.shuffle=1"),
    settings("number for a text", "run.name = 5 is not a text", "run.name=5"),
    settings("date for a number", "run.seed = 2024-01-01 is not a whole number", "run.seed=2024-01-01"),
    settings("list for a number", "train.steps = [1, 2] is not a whole number", "train.steps=[1, 2]"),
    # Values
    settings("not a number", "optimizer.learning_rate = nan is not a finite number", "optimizer.learning_rate=nan"),
    settings("infinite", "optimizer.learning_rate = inf is not a finite number", "optimizer.learning_rate=1e400"),
    settings("negative count", "train.steps = -5 must be at least 1", "train.steps=-5"),
    settings("huge count", "must be at most", "train.steps=99999999999999999999999999"),
    settings("huge beyond printing", "a number of", f"run.seed=0x{'f' * 6000}"),
    settings("beta of one", "optimizer.betas[1] = 1.0 must be below 1", "optimizer.betas=[0.9, 1.0]"),
    settings(
        "three betas", "optimizer.betas = [0.9, 0.95, 0.99] has more than 2 entries", "optimizer.betas=[0.9,0.95,0.99]"
    ),
    settings("one beta", "optimizer.betas[1] is missing", "optimizer.betas=[0.9]"),
    settings(
        "warmup above the steps", "optimizer.warmup_steps = 3 is above train.steps = 2", "optimizer.warmup_steps=3"
    ),
    settings(
        "warmup inside the wsd decay", "reaches into the decay", "optimizer.decay=wsd", "optimizer.warmup_steps=2"
    ),
    settings("sequence of zero", "data.sequence_length = 0 must be at least 1", "data.sequence_length=0"),
    settings("sequence longer than the corpus", "is longer than", "data.sequence_length=1000000"),
    settings("all held out", "data.evaluation_fraction = 1.0 must be below 1", "data.evaluation_fraction=1.0"),
    settings("evaluation of nothing", "needs samples that are held out", "train.evaluate_every=1"),
    settings("run name that is a path", "must be a folder name", "run.name=../elsewhere"),
    settings(
        "precision unknown",
        'precision.parameters = "bf15" is not a legal value; did you mean bf16?',
        "precision.parameters=bf15",
    ),
    settings("reduction narrower than the parameters", "is narrower than", "precision.reduce=bf16"),
    settings(
        "profile that ends after the run",
        "profile.steps = 2 from profile.start_step = 2 reach step 3, above train.steps = 2; legal: 0 to 1",
        "profile.steps=2",
        "profile.start_step=2",
    ),
    settings(
        "profile that begins after the run",
        "profile.start_step = 3 is above train.steps = 2; legal: 1 to 2",
        "profile.steps=1",
        "profile.start_step=3",
    ),
    settings("profile of no rank", 'profile.ranks = [] must be "all" or a list of different ranks', "profile.ranks=[]"),
    settings("profile of a rank twice", "profile.ranks = [1, 1] must be", "profile.ranks=[1, 1]"),
    settings("profile of ranks that are a word", 'profile.ranks = "some" must be "all"', "profile.ranks=some"),
    Case(
        "profile of a rank that is not there",
        "profile.ranks = [0, 2] has rank 2, but there are 2 ranks; legal: 0 to 1",
        arguments=(
            *("--layout", "fsdp2", "--set", "profile.steps=1", "--set", "profile.start_step=1"),
            *("--set", "profile.ranks=[0, 2]"),
        ),
        world=2,
    ),
    settings("decay unknown", "did you mean cosine?", "optimizer.decay=cosin"),
    settings("hardware unknown", "did you mean a100-sxm-80gb?", "hardware.name=a100-sxm-80g"),
    # The model
    settings("preset unknown", "did you mean llama-13b?", "model.preset=llama-13"),
    settings("preset beside a config.json", "cannot stand beside", "model.huggingface=config.json"),
    settings("preset that is a number", "is not a text", "model.preset=13"),
    Case("config.json missing", "cannot be read", text=GOOD.replace('preset = "debug"', 'huggingface = "no.json"')),
    settings("heads that do not divide the width", "is not a multiple of", "model.num_attention_heads=6"),
    settings("kv heads that do not divide the heads", "does not divide", "model.num_key_value_heads=3"),
    settings("odd head", "model.head_dim = 15 is odd", "model.head_dim=15"),
    settings(
        "scaling without its factor",
        "model.rope_scaling.factor is missing",
        *SCALING[1:],
    ),
    settings(
        "scaling key unknown",
        "did you mean factor?",
        "model.rope_scaling.factr=2",
        *SCALING,
    ),
    settings("vocabulary below the corpus", "is below the 257 token ids", "model.vocab_size=100"),
    # The layout
    labelled("label with an unknown factor", "ffsdp", "ffsdp8"),
    labelled("label with a factor twice", "tp", "tp2-tp2"),
    labelled("label with an unknown choice", "+spp", "tp2+spp"),
    labelled("sequence parallel without tensor", "sp", "fsdp2+sp"),
    labelled("schedule without a pipeline", "gpipe", "fsdp2+gpipe"),
    labelled("degree of zero", "fsdp0", "fsdp0"),
    labelled("empty label", "label", ""),
    labelled("tensor above the kv heads", "num_key_value_heads = 2", "tp4"),
    labelled("batch that does not divide", "batch.global_size = 8", "fsdp3"),
    labelled("more stages than layers", "num_hidden_layers = 4", "pp8"),
    labelled("fewer micro-batches than stages", "micro-batches", "pp4-fsdp4"),
    labelled("sequence that tensor ranks cannot cut", "data.sequence_length = 31", "tp2+sp", "data.sequence_length=31"),
    labelled("zero-bubble with zero 3", "layout.zero = 3", "pp2+zbv+zero3"),
    labelled("compiled zero-bubble", "kernels.compile", "pp2+zbv", "kernels.compile=true"),
    labelled("flash attention in fp32", "flash", "fsdp2+flash"),
    Case(
        "label beside its parts",
        "layout.label cannot stand beside layout.tensor",
        text=GOOD + '[layout]\nlabel = "tp2"\ntensor = 2\n',
    ),
    settings("schedule unknown", "1f1b", "layout.pipeline=2", "layout.schedule=1f2b"),
    settings("degree below one", "layout.tensor = 0 must be at least 1", "layout.tensor=0"),
    Case("another number of ranks", "is for 4 ranks, but there are 8", arguments=("--layout", "fsdp4"), world=8),
    # Assignments
    settings("assignment without =", "is no assignment", "train.steps"),
    settings("assignment to a section", "would replace a whole section", "train=5"),
    settings("assignment without a section", "did you mean train.steps or profile.steps?", "steps=5"),
    settings("assignment into a value", "is a value and has no keys", "train.steps.x=5"),
    settings("assignment to an empty key", "is no assignment", "train.=5"),
]
