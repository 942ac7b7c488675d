"""`torchlayout checkpoint`: what people and machines read, and how each verb exits."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints import flip_a_byte, llama, save, small
from torchlayout.cli import main
from torchlayout.config.model import read_huggingface
from torchlayout.records import RunDirectory

PARAMETERS = sum(parameter.numel() for parameter in llama(small()).parameters())


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `torchlayout checkpoint ...`."""
    with pytest.raises(SystemExit) as exit:
        main(["checkpoint", *map(str, arguments)])
    out, err = capsys.readouterr()
    code = exit.value.code
    assert isinstance(code, int)
    return code, out, err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 2 and 10."""
    for step in (2, 10):
        save(tmp_path / "run", step, small())
    return tmp_path / "run"


def step(run: Path, number: int) -> Path:
    return run / "checkpoints" / f"step_{number}"


def test_list_shows_every_checkpoint_in_order(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (step(run, 2) / "COMMITTED").unlink()
    code, out, _ = command(capsys, "list", run, "--json")
    rows = json.loads(out)["checkpoints"]
    assert code == 0
    assert [row["path"] for row in rows] == [str(step(run, 2)), str(step(run, 10))]
    assert (rows[0]["step"], rows[0]["bytes"], "no COMMITTED" in rows[0]["fault"]) == (None, None, True)
    assert (rows[1]["step"], rows[1]["layout"], rows[1]["world"], rows[1]["fault"]) == (10, "fsdp2", 2, None)
    code, out, _ = command(capsys, "list", run)
    assert code == 0
    assert str(step(run, 10)) in out
    assert f"{rows[1]['bytes']:,}" in out
    assert "it has no COMMITTED" in out


def test_verify_passes_a_sound_run_and_exits_1_at_the_damaged_file(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(capsys, "verify", run)
    assert (code, out.count("all 3 files are as they were written")) == (0, 2)
    assert "MB/s" in err
    flip_a_byte(step(run, 10) / "rank_00001.safetensors")
    code, out, _ = command(capsys, "verify", run)
    assert code == 1
    assert f"{step(run, 10) / 'rank_00001.safetensors'} is not what was written" in out
    assert f"{step(run, 2)}: all 3 files" in out
    assert command(capsys, "verify", step(run, 2))[0] == 0
    code, out, _ = command(capsys, "verify", step(run, 10), "--json")
    found = json.loads(out)
    assert (code, found["sound"], len(found["checkpoints"][0]["faults"])) == (1, False, 1)


def test_inspect_says_where_training_was_and_what_is_stored(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "inspect", step(run, 10), "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["step"], facts["layout"], facts["world"], facts["optimizer_steps"]) == (10, "fsdp2", 2, 10)
    assert (facts["samples_consumed"], facts["tokens_consumed"]) == (80, 1280)
    assert (facts["parameters"], facts["model"]["hidden_size"]) == (PARAMETERS, 32)
    assert sum(math.prod(one["shape"]) for one in facts["tensors"] if one["name"].startswith("model.")) == PARAMETERS
    one = next(tensor for tensor in facts["tensors"] if tensor["name"] == "model.embedding.weight")
    assert one == {"name": "model.embedding.weight", "dtype": "F32", "shape": [61, 32], "chunks": 2}
    assert sum(file["bytes"] for file in facts["files"]) == facts["bytes"]
    code, out, _ = command(capsys, "inspect", run)
    assert code == 0
    for shown in (str(step(run, 10)), f"{PARAMETERS:,}", "1,280", "optimizer.exp_avg.embedding.weight", "[61, 32]"):
        assert shown in out


def test_a_run_is_inspected_and_exported_at_its_newest_sound_checkpoint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_a_byte(step(run, 10) / "rank_00001.safetensors")
    code, out, err = command(capsys, "inspect", run, "--json")
    assert (code, json.loads(out)["step"]) == (0, 2)
    assert f"skipped: {step(run, 10) / 'rank_00001.safetensors'} is not what was written" in err
    code, out, _ = command(capsys, "export", run, tmp_path / "out")
    assert code == 0
    assert f"the model of {step(run, 2)} in fp32: config.json, model.safetensors" in out
    code, out, err = command(capsys, "export", step(run, 10), tmp_path / "other")
    assert (code, out) == (2, "")
    assert "is not what was written" in err


def test_what_is_exported_is_imported_again(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(
        capsys, "export", step(run, 10), tmp_path / "out", "--dtype", "bf16", "--max-shard-gib", 2e-5
    )
    assert code == 0, err
    assert "in bf16: config.json, model-00001-of-0000" in out
    code, out, err = command(capsys, "import", tmp_path / "out", tmp_path / "in")
    assert code == 0, err
    assert f'checkpoint.resume = "{tmp_path / "in"}"' in out
    assert command(capsys, "verify", tmp_path / "in")[0] == 0
    code, out, _ = command(capsys, "inspect", tmp_path / "in", "--json")
    facts = json.loads(out)
    assert (facts["step"], facts["optimizer_steps"], facts["tokens_consumed"]) == (0, 0, 0)
    assert {tensor["dtype"] for tensor in facts["tensors"]} == {"F32"}
    assert command(capsys, "list", tmp_path / "in")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list", "NOWHERE"], "is no folder; give a run"),
        (["list", "EMPTY"], "holds no checkpoint; a run saves some where checkpoint.every is above 0"),
        (["verify", "NOWHERE"], "is no folder"),
        (["inspect", "EMPTY"], "holds no checkpoint"),
        (["export", "EMPTY", "OUT"], "holds no checkpoint"),
        (["export", "RUN", "RUN"], "is there already; name a folder that is new or empty"),
        (["export", "RUN", "OUT", "--max-shard-gib", "0"], "--max-shard-gib 0 must be above 0"),
        (["export", "RUN", "OUT", "--max-shard-gib", "nan"], "--max-shard-gib nan must be above 0"),
        (["export", "RUN", "OUT", "--dtype", "fp8"], "'fp8' is not one of 'fp32', 'bf16'"),
        (["export", "RUN", "OUT", "--tokenizer", "NOWHERE"], "is no file; name the corpus's tokenizer.json"),
        (["import", "EMPTY", "OUT"], "config.json cannot be read"),
        (["import", "NOWHERE", "OUT"], "cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_2(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"RUN": run, "EMPTY": tmp_path / "empty", "NOWHERE": tmp_path / "nowhere", "OUT": tmp_path / "out"}
    code, out, err = command(capsys, *(places.get(word, word) for word in arguments))
    assert (code, out) == (2, "")
    sentences = [line for line in err.splitlines() if "MB/s" not in line]
    assert len(sentences) == 1, err
    assert sentence in sentences[0]
    assert not (tmp_path / "out").exists()


def test_an_index_that_is_damaged_is_one_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_a_byte(step(run, 10) / "index.json", 40)
    code, out, err = command(capsys, "inspect", step(run, 10))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "index.json is not what was written" in err


def test_looking_at_checkpoints_loads_no_torch(run: Path) -> None:
    script = (
        "import sys\nfrom torchlayout.cli import main\n"
        "for verb in ('list', 'verify', 'inspect'):\n"
        "    try: main(['checkpoint', verb, sys.argv[1]])\n"
        "    except SystemExit as exit: assert exit.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(run)], check=True, capture_output=True, timeout=60)


def train(corpus: Path, folder: Path, **values: Any) -> subprocess.CompletedProcess[str]:
    """Train the model of folder/in for some steps, in one process."""
    config = folder / "config.toml"
    model = "\n".join(f"{key} = {json.dumps(value)}" for key, value in SIZES.items())
    config.write_text(f'[model]\n{model}\n[data]\npath = "{corpus}"\nsequence_length = 16\nworkers = 0\n')
    base = {"run.directory": folder, "batch.global_size": 2, "precision.parameters": "fp32", "train.steps": 1}
    line = [sys.executable, "-m", "torchlayout.train", str(config)]
    line += [part for key, value in (base | values).items() for part in ("--set", f"{key}={value}")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment, check=False)


SIZES = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("named", ["in", "in/step_0"])
def test_a_run_begins_with_imported_weights_and_refuses_those_of_another_model(
    small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    model = small(**SIZES)
    save(tmp_path / "first", 4, model)
    assert command(capsys, "export", tmp_path / "first", tmp_path / "hf")[0] == 0
    assert command(capsys, "import", tmp_path / "hf", tmp_path / "in")[0] == 0
    settings = {"checkpoint.resume": tmp_path / named, "checkpoint.every": 1, "optimizer.learning_rate": 1e-12}
    done = train(small_corpus, tmp_path, **settings, **{"run.name": "second"})
    assert done.returncode == 0, done.stderr
    assert f"resumed from {tmp_path / 'in' / 'step_0'}" in done.stdout
    assert [line["step"] for line in RunDirectory(tmp_path / "second").metrics()] == [1]
    # The learning rate moves nothing, so what comes out is what went in.
    assert command(capsys, "export", tmp_path / "second", tmp_path / "out")[0] == 0
    before, after = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("hf", "out"))
    assert sum(a != b for a, b in zip(before, after, strict=True)) < len(before) / 1000
    assert read_huggingface(tmp_path / "hf") == read_huggingface(tmp_path / "out")
    other = train(small_corpus, tmp_path, **settings, **{"run.name": "third", "model.hidden_size": 64})
    assert other.returncode == 2
    assert "was written with model.hidden_size = 32, this run has 64" in other.stderr
