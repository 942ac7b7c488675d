"""Models go to Hugging Face's format and come from it with the same logits, as transformers computes them."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.checkpoints import LLAMA3_SCALING, MODELS, SMALL, flip_a_byte, llama, save, small
from torchlayout.checkpoint import Checkpoint
from torchlayout.checkpoint.huggingface import export_model, import_model
from torchlayout.checkpoint.huggingface.names import names
from torchlayout.checkpoint.huggingface.write import whole_tensor
from torchlayout.config import ModelConfig
from torchlayout.data.prepare import prepare
from torchlayout.errors import InputError
from torchlayout.model.llama import Llama

transformers = pytest.importorskip("transformers", reason="transformers comes with the extra `dev`")

TOLERANCE = {"rtol": 0.0, "atol": 1e-5}


def tokens(vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (2, 24), generator=torch.Generator().manual_seed(1))


def weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The model's tensors in a checkpoint, by our names."""
    tensors = checkpoint.index.tensors
    return {
        name.removeprefix("model."): whole_tensor(checkpoint.path, stored)
        for name, stored in tensors.items()
        if name.startswith("model.")
    }


def ours(checkpoint: Checkpoint) -> Llama:
    """The model that a run makes of a checkpoint."""
    model = Llama(ModelConfig.model_validate(checkpoint.index.state["model"]))
    state = weights(checkpoint)
    if model.config.tie_word_embeddings:
        state["head.output.weight"] = state["embedding.weight"]
    model.load_state_dict(state)
    return model


def theirs(folder: Path, **options: Any) -> Any:
    """What transformers makes of a folder, with nothing missing and nothing left over."""
    model, report = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(report.values()), report
    return model.eval()


def a_model_of_theirs(**changes: Any) -> Any:
    config = {"max_position_embeddings": 64, "bos_token_id": 5, "eos_token_id": [6, 7]} | SMALL
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**copy.deepcopy(config | changes))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    return model


@torch.no_grad()
def same_logits(own: Llama, other: Any) -> None:
    x = tokens(own.config.vocab_size)
    torch.testing.assert_close(own(x), other(x).logits, **TOLERANCE)


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_transformers_computes_the_logits_of_an_exported_model(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = small(**changes)
    files = export_model(save(tmp_path, 4, model), tmp_path / "out")
    assert files == ["config.json", "model.safetensors"]
    same_logits(llama(model), theirs(tmp_path / "out"))


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_export_in_shards_is_the_same_model(tmp_path: Path, ranks: int) -> None:
    checkpoint = save(tmp_path, 4, small(), ranks=ranks)
    export_model(checkpoint, tmp_path / "out", shard_bytes=20_000)
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert shards == [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    assert len(shards) > 3
    assert all((tmp_path / "out" / shard).stat().st_size < 25_000 for shard in shards)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    held = {key: shard for shard in shards for key in load_file(tmp_path / "out" / shard)}
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in llama(small()).parameters())
    same_logits(llama(small()), theirs(tmp_path / "out"))


def test_bf16_weights_are_the_rounded_masters(tmp_path: Path) -> None:
    export_model(save(tmp_path, 4, small()), tmp_path / "out", dtype="bf16")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    for name, parameter in llama(small()).named_parameters():
        assert torch.equal(stored[names(small())[name]], parameter.bfloat16())
    assert theirs(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_a_tied_model_has_no_head_of_its_own_in_the_file(tmp_path: Path) -> None:
    export_model(save(tmp_path, 4, small(tie_word_embeddings=True)), tmp_path / "out")
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    model = theirs(tmp_path / "out")
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_config_json_says_what_the_model_was_trained_with(tmp_path: Path) -> None:
    model = small(rope_theta=500000.0, rope_scaling=LLAMA3_SCALING)
    export_model(save(tmp_path, 4, model), tmp_path / "out")
    read = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (read.architectures, read.model_type, read.dtype) == (["LlamaForCausalLM"], "llama", torch.float32)
    assert read.rope_parameters == LLAMA3_SCALING | {"rope_theta": 500000.0}
    assert (read.max_position_embeddings, read.rms_norm_eps, read.head_dim) == (16, 1e-5, 8)
    assert (read.bos_token_id, read.eos_token_id) == (None, None)


def test_the_end_of_documents_is_named_while_the_corpus_is_there(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text")
    corpus = prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", workers=1)
    config = {"data": {"path": str(tmp_path / "corpus"), "sequence_length": 16}}
    for run, digest, eos in (("same", corpus.manifest.sha256, 256), ("other", "0" * 64, None)):
        checkpoint = save(tmp_path / run, 4, small(), config=config, order={"corpus": digest})
        export_model(checkpoint, tmp_path / run / "out")
        assert json.loads((tmp_path / run / "out" / "config.json").read_text())["eos_token_id"] == eos


def test_a_tokenizer_that_goes_along_is_the_same_for_transformers(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers comes with the extra `text`")
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.CharDelimiterSplit("-")
    own.save(str(tmp_path / "mine.json"))
    checkpoint = save(tmp_path, 4, small())
    export_model(checkpoint, tmp_path / "out", tokenizer=tmp_path / "mine.json")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("a-b-c").input_ids == [0, 1, 2]
    tiny = save(tmp_path / "tiny", 4, small(vocab_size=2))
    with pytest.raises(InputError, match="has 3 ids, the model 2"):
        export_model(tiny, tmp_path / "tiny-out", tokenizer=tmp_path / "mine.json")
    assert not (tmp_path / "tiny-out").exists()


def test_nothing_is_exported_over_something_or_left_half(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 4, small())
    (tmp_path / "out").mkdir()
    export_model(checkpoint, tmp_path / "out")  # an empty folder is no harm
    with pytest.raises(InputError, match="is there already"):
        export_model(checkpoint, tmp_path / "out")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        export_model(checkpoint, tmp_path / "out" / "config.json" / "in")

    def interrupted(done: int, total: int) -> None:
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_model(checkpoint, tmp_path / "second", report=interrupted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "out"]


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("shard", ["20KB", "5GB"])
def test_a_model_of_transformers_is_imported_with_its_logits(
    tmp_path: Path, changes: dict[str, Any], shard: str
) -> None:
    model = a_model_of_theirs(**changes)
    model.save_pretrained(tmp_path / "in", max_shard_size=shard)
    assert (len(list((tmp_path / "in").glob("*.safetensors"))) > 3) == (shard == "20KB")
    checkpoint = import_model(tmp_path / "in", tmp_path / "out")
    assert checkpoint.path == tmp_path / "out" / "step_0"
    assert list(checkpoint.faults()) == []
    same_logits(ours(checkpoint), model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_format_become_fp32_masters(tmp_path: Path, dtype: torch.dtype) -> None:
    model = a_model_of_theirs().to(dtype)
    model.save_pretrained(tmp_path / "in")
    checkpoint = import_model(tmp_path / "in", tmp_path / "out")
    assert {stored.dtype for stored in checkpoint.index.tensors.values()} == {"F32"}
    imported, state = weights(checkpoint), model.state_dict()
    for name, key in names(small()).items():
        assert torch.equal(imported[name], state[key].float())


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_out_and_in_again_changes_no_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    before = save(tmp_path, 4, small(**changes), ranks=3)
    export_model(before, tmp_path / "out", shard_bytes=30_000)
    after = import_model(tmp_path / "out", tmp_path / "again")
    assert after.index.state["model"] == before.index.state["model"]
    left, right = weights(before), weights(after)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_in_and_out_again_keeps_the_files_and_what_the_model_is_used_with(tmp_path: Path) -> None:
    a_model_of_theirs().save_pretrained(tmp_path / "in")
    export_model(import_model(tmp_path / "in", tmp_path / "step"), tmp_path / "out")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["max_position_embeddings"], config["bos_token_id"], config["eos_token_id"]) == (64, 5, [6, 7])


def edited(folder: Path, **changes: Tensor | None) -> None:
    """Change tensors of a saved model; None removes one."""
    stored = load_file(folder / "model.safetensors") | changes
    save_file({key: tensor for key, tensor in stored.items() if tensor is not None}, folder / "model.safetensors")


def configured(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def test_a_tied_model_may_hold_its_head_as_well_or_instead(tmp_path: Path) -> None:
    model = a_model_of_theirs(tie_word_embeddings=True)
    table = model.model.embed_tokens.weight.detach().clone()
    for name, changes in {
        "both": {"lm_head.weight": table.clone()},
        "instead": {"lm_head.weight": table.clone(), "model.embed_tokens.weight": None},
        "frequencies": {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)},
    }.items():
        model.save_pretrained(tmp_path / name)
        edited(tmp_path / name, **changes)
        checkpoint = import_model(tmp_path / name, tmp_path / f"{name}-out")
        assert checkpoint.index.tensors.keys() == {f"model.{own}" for own in names(small(tie_word_embeddings=True))}
        same_logits(ours(checkpoint), model)


def names_a_file_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    content = {"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def holds_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model-00001-of-00002.bin")


def has_a_tensor_twice(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"lm_head.weight": torch.zeros(61, 32)}, folder / "b.safetensors")
    content = {"weight_map": {"lm_head.weight": "b.safetensors", "model.norm.weight": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


WRONG: dict[str, tuple[Any, str]] = {
    "no config.json": (lambda folder: (folder / "config.json").unlink(), "config.json cannot be read"),
    "another model": (lambda folder: configured(folder, model_type="mixtral"), 'only "llama" can be built'),
    "an impossible size": (lambda folder: configured(folder, hidden_size=0), "model.hidden_size = 0 must be"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    "pickles": (holds_pickles, "pickles (pytorch_model-00001-of-00002.bin), which can run code"),
    "a broken index": (
        lambda folder: (folder / "model.safetensors").rename(folder / "model.safetensors.index.json"),
        "model.safetensors.index.json is not UTF-8 text",
    ),
    "files elsewhere": (names_a_file_elsewhere, "names files that are not beside it: ../elsewhere.safetensors"),
    "a tensor twice": (has_a_tensor_twice, "has lm_head.weight twice: in a.safetensors and b.safetensors"),
    "a cut-off file": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9]),
        "model.safetensors is no safetensors file that can be read",
    ),
    "a broken header": (
        lambda folder: flip_a_byte(folder / "model.safetensors", 8),
        "model.safetensors is no safetensors file that can be read",
    ),
    "a missing tensor": (
        lambda folder: edited(folder, **{"model.layers.1.mlp.up_proj.weight": None}),
        "lacks model.layers.1.mlp.up_proj.weight",
    ),
    "a missing layer": (
        lambda folder: configured(folder, num_hidden_layers=4),
        "lacks model.layers.3.input_layernorm.weight, model.layers.3.self_attn.q_proj.weight, "
        "model.layers.3.self_attn.k_proj.weight and 6 more",
    ),
    "a missing head": (
        lambda folder: edited(folder, **{"lm_head.weight": None}),
        "lacks lm_head.weight; if it shares the embedding, set tie_word_embeddings to true in config.json",
    ),
    "a head beside a tied one": (
        lambda folder: configured(folder, tie_word_embeddings=True),
        "has tie_word_embeddings = true, but lm_head.weight differs from model.embed_tokens.weight",
    ),
    "a head in another format than the tied one": (
        lambda folder: (
            configured(folder, tie_word_embeddings=True),
            edited(folder, **{"lm_head.weight": torch.ones(61, 32, dtype=torch.float8_e4m3fn)}),
        ),
        "has tie_word_embeddings = true, but lm_head.weight differs from model.embed_tokens.weight",
    ),
    "a tensor too many": (
        lambda folder: edited(folder, **{"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}),
        "has tensors that are no part of this Llama: model.layers.0.self_attn.q_proj.bias",
    ),
    "another shape": (
        lambda folder: configured(folder, vocab_size=62),
        "model.embed_tokens.weight [61, 32] instead of [62, 32], lm_head.weight [61, 32] instead of [62, 32]",
    ),
    "quantized": (
        lambda folder: edited(folder, **{"model.norm.weight": torch.ones(32, dtype=torch.int8)}),
        "has tensors that are no plain floating-point numbers: model.norm.weight I8; legal: F64, F32, F16, BF16",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_no_llama_or_not_all_of_it_is_refused_in_one_sentence(tmp_path: Path, fault: str) -> None:
    a_model_of_theirs().save_pretrained(tmp_path / "in")
    damage, says = WRONG[fault]
    damage(tmp_path / "in")
    with pytest.raises(InputError) as error:
        import_model(tmp_path / "in", tmp_path / "out")
    assert len(error.value.problems) == 1, error.value.problems
    assert says in str(error.value)
    assert not (tmp_path / "out").exists()


def test_nothing_is_imported_over_something_or_left_half(tmp_path: Path) -> None:
    a_model_of_theirs().save_pretrained(tmp_path / "in")

    def interrupted(done: int, total: int) -> None:
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_model(tmp_path / "in", tmp_path / "out", interrupted)
    assert list((tmp_path / "out").iterdir()) == []
    import_model(tmp_path / "in", tmp_path / "out")
    with pytest.raises(InputError, match="is there already"):
        import_model(tmp_path / "in", tmp_path / "out")


PEAKS = """
import json, sys
from pathlib import Path
from torchlayout.checkpoint import Checkpoint
from torchlayout.checkpoint.huggingface import export_model, import_model
import torchlayout.data.corpus

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

source, folder, at_start = Path(sys.argv[1]), Path(sys.argv[2]), peak()
export_model(Checkpoint(source), folder / "out", dtype="bf16")
exported = peak() - at_start
import_model(folder / "out", folder / "again")
print(json.dumps([exported, peak() - at_start]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_model_passes_through_a_small_part_of_its_size_in_memory(tmp_path: Path) -> None:
    model = small(vocab_size=2048, hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    checkpoint = save(tmp_path, 4, model)
    size = sum(parameter.nbytes for parameter in llama(model).parameters())
    assert size > 100e6
    command = [sys.executable, "-c", PEAKS, str(checkpoint.path), str(tmp_path)]
    # The allocator gives what is freed back at once, so that the peak is of what is held.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    # A tensor here has 4 MiB, what is read for a checksum 16 MiB at once; the whole model in bf16 would be a half.
    assert [peak for peak in json.loads(done.stdout) if not 0 < peak < 0.4 * size] == []
