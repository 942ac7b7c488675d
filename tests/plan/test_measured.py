from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measured_rows import ROW, published, runs_of, write_rows
from torchlayout.errors import InputError
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.plan.measured.choose import choose
from torchlayout.plan.measured.metrics import quantile
from torchlayout.plan.measured.predict import model_flops
from torchlayout.plan.measured.runs import COLUMNS, read_runs
from torchlayout.plan.software import Software


def problem_of(path: Path, rows: list[dict[str, object]]) -> str:
    with pytest.raises(InputError) as caught:
        runs_of(path, rows)
    return str(caught.value).replace(str(path), "FILE")


def test_a_row_becomes_a_job(tmp_path: Path) -> None:
    change = {"tp": 4, "sp": "True", "dp": 8, "recompute": "full", "norm": "eager", "mbs": 2, "attention": "unfused"}
    (run,) = runs_of(tmp_path / "a.csv", [change | {"mem_gb": 51.5, "mfu": 40, "note": "of a test"}])
    assert run.job.layout == Layout(
        pipeline=2, shard=8, tensor=4, micro_batch=2, sequence_parallel=True, recompute="ckpt", zero=1, norm="eager"
    )
    assert (run.job.batch, run.job.sequence, run.job.micro_batches, run.job.attention) == (2048, 2048, 128, "unfused")
    assert (run.job.precision, run.job.reduce, run.job.model.num_hidden_layers) == ("bf16", "fp32", 40)
    assert (run.hardware.name, run.software.name) == ("a100-sxm-80gb", "scaling-2311.05610")
    assert (run.step_seconds, run.memory_gb, run.mfu, run.trust, run.note) == (40.0, 51.5, 40.0, "ok", "of a test")
    assert run.place == f"{tmp_path / 'a.csv'} line 2"


@pytest.mark.parametrize(
    ("precision", "peak", "reduce"),
    [
        ("bf16", "bf16", "fp32"),
        ("fp16", "fp16", "fp32"),
        ("amp_bf16/DEFAULT", "bf16", "fp32"),
        ("bf16/PURE", "bf16", "bf16"),
        ("bf16+fp32 grad accum", "bf16", "fp32"),
    ],
)
def test_the_precision_names_the_peak_that_counts(tmp_path: Path, precision: str, peak: str, reduce: str) -> None:
    (run,) = runs_of(tmp_path / "a.csv", [{"precision": precision}])
    assert (run.job.precision, run.job.reduce) == (peak, reduce)


@pytest.mark.parametrize(
    ("sharding", "replicate", "shard", "zero"),
    [("none", 16, 1, 2), ("zero0", 16, 1, 2), ("zero1", 1, 16, 1), ("zero2", 1, 16, 2), ("zero3", 1, 16, 3),
     ("hsdp", 2, 8, 3)],
)  # fmt: skip
def test_sharding_is_over_data_ranks(tmp_path: Path, sharding: str, replicate: int, shard: int, zero: int) -> None:
    (run,) = runs_of(tmp_path / "a.csv", [{"sharding": sharding}])
    assert (run.job.layout.replicate, run.job.layout.shard, run.job.layout.zero) == (replicate, shard, zero)


def test_sequence_parallelism_without_a_tensor_axis_is_none(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path / "a.csv", [{"tp": 1, "sp": "True", "dp": 32}])
    assert not run.job.layout.sequence_parallel


def test_equal_models_are_one_value(tmp_path: Path) -> None:
    first, second, third = runs_of(tmp_path / "a.csv", [{}, {"tp": 1, "dp": 32}, {"note": "tied_emb True"}])
    assert first.job.model is second.job.model
    assert (first.job.model.tie_word_embeddings, third.job.model.tie_word_embeddings) == (False, True)


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("tp", "two", '= "two" is not a whole number; legal: 1 to 999999999'),
        ("tp", "0", '= "0" is not a whole number; legal: 1 to 999999999'),
        ("tp", "\u0663", '= "\u0663" is not a whole number; legal: 1 to 999999999'),
        ("layers", "", '= "" is not a whole number; legal: 1 to 999999999'),
        ("sp", "maybe", '= "maybe" is neither true nor false; legal: True, False'),
        ("step_time_s", "-1", '= "-1" is not a number; legal: a decimal number above 0, or nothing'),
        ("step_time_s", "nan", '= "nan" is not a number; legal: a decimal number above 0, or nothing'),
        ("step_time_s", "", '= "" says nothing of a run that ended well; legal: seconds, or mem_gb'),
        ("status", "OOM", '= "OOM" is unknown; did you mean oom? legal: ok, oom, error'),
        ("sharding", "zero4", '= "zero4" is unknown; did you mean zero3? legal: none, zero0, zero1, zero2'),
        ("attention", "flash3", '= "flash3" is unknown; did you mean flash? legal: unfused, fused-softmax, flash1'),
        ("recompute", "", '= "" is unknown; legal: none, full, selective'),
        ("norm", "rms", '= "rms" is unknown; legal: eager, fused, (empty)'),
        ("precision", "fp8", '= "fp8" names no format; legal: bf16 or fp16, amp_ before it, anything behind it'),
        ("gpus", "32", '= "32" is not tp x pp x cp x dp = 2 x 2 x 1 x 16; legal: 64'),
        ("gbs", "100", '= "100" is not a multiple of dp x mbs; legal: multiples of 16'),
        ("source", "somebody", '= "somebody" names no stack with a profile; give --software, legal: '),
        ("gpu", "a100-sxm-90gb", '= "a100-sxm-90gb" is no device that is known; did you mean a100-sxm-80gb?'),
    ],
)
def test_what_is_wrong_is_a_sentence_with_file_line_column_and_value(
    tmp_path: Path, column: str, value: str, sentence: str
) -> None:
    problem = problem_of(tmp_path / "a.csv", [{}, {column: value}])
    assert problem.startswith(f"FILE line 3: {column} {sentence}")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"heads": 39}, "model.num_key_value_heads = 40 does not divide model.num_attention_heads = 39"),
        ({"pp": 1, "dp": 32, "vp": 2}, 'layout.schedule = "interleaved" orders the stages of a pipeline'),
    ],
)
def test_what_is_no_model_or_no_layout_is_a_sentence_with_file_and_line(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    assert problem_of(tmp_path / "a.csv", [{}, change]).startswith(f"FILE line 3: {sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "FILE line 1 has no columns; legal: source, model,"),
        ("source,model\n", "FILE line 1 lacks the column layers, hidden,"),
        (f"{','.join(COLUMNS)},tp\n", 'FILE line 1 has the column "tp" twice'),
        (f"{','.join(COLUMNS)}\n1,2\n", f"FILE line 2 has 2 cells; legal: {len(COLUMNS)}"),
        (f'{",".join(COLUMNS)}\n"a" b,2\n', "FILE line 2 is not CSV: "),
    ],
)
def test_a_file_that_is_no_table_of_runs_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert str(caught.value).replace(str(path), "FILE").startswith(sentence)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv cannot be read: No such file"):
        read_runs(tmp_path / "none.csv")


def test_optional_columns_may_be_missing_and_further_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "cluster"])
        writer.writerow([*(ROW[column] for column in COLUMNS), "north"])
    (run,) = read_runs(path)
    assert (run.trust, run.memory_gb, run.cells["cluster"]) == ("ok", None, "north")


def test_hardware_and_software_that_are_given_stand_for_what_rows_name(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", [{"gpu": "unheard-of", "source": "somebody"}])
    (run,) = read_runs(path, Hardware.load("h100-sxm-80gb"), Software.load("scaling-2311.05610"))
    assert (run.hardware.name, run.software.name, run.gpu) == ("h100-sxm-80gb", "scaling-2311.05610", "unheard-of")


@given(column=st.sampled_from(sorted(ROW)), value=st.text(max_size=12) | st.sampled_from(["0", "1e99", "2", "-", "8"]))
def test_any_text_in_any_cell_is_read_or_refused_by_its_line(
    tmp_path_factory: pytest.TempPathFactory, column: str, value: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    try:
        write_rows(path, [{column: value}])
    except UnicodeEncodeError:
        return
    found = ""
    try:
        read_runs(path)
    except InputError as error:
        found = str(error)
    assert not found or found.startswith(f"{path} ")


class TestChoose:
    """--only and --leave-out."""

    ROWS = (
        {"model": "llama-13B", "tp": 1, "dp": 32, "attention": "flash1"},
        {"model": "llama-13B", "tp": 2},
        {"model": "llama-30B", "tp": 2, "source": "arXiv 2311.05610 data (30B@2048)"},
    )

    @pytest.mark.parametrize(
        ("only", "leave_out", "kept"),
        [
            ([], [], [0, 1, 2]),
            (["model=llama-13B"], [], [0, 1]),
            (["model=llama-13B", "tp=2"], [], [1]),
            (["tp=1,2"], [], [0, 1, 2]),
            (["source=arXiv 2311.05610 data (30B@2048)"], [], [2]),
            (["source=*(30B*"], [], [2]),
            ([], ["model=llama-13B tp=2"], [0, 2]),
            ([], ["source=arXiv 2311.05610 data (30B@2048) tp=2"], [0, 1]),
            ([], ["model=llama-13B tp=2", "model=llama-30B"], [0]),
        ],
    )
    def test_rules_keep_rows(self, tmp_path: Path, only: list[str], leave_out: list[str], kept: list[int]) -> None:
        runs = runs_of(tmp_path / "a.csv", self.ROWS)
        assert choose(runs, only, leave_out) == [runs[index] for index in kept]

    @pytest.mark.parametrize(
        ("only", "leave_out", "sentence"),
        [
            (["tp"], [], '--only "tp" is no rule; legal: COLUMN=VALUE,VALUE'),
            (["tps=2"], [], "--only tps: no such column in every file; did you mean tp"),
            (["tp=4"], [], "--only tp=4 is met by no row; rows have: 1, 2"),
            ([], ["tp=1 model=gpt"], "--leave-out model=gpt is met by no row; rows have: llama-13B, llama-30B"),
            (["tp=1"], ["model=llama-13B"], "--only and --leave-out leave none of 3 rows"),
        ],
    )
    def test_a_rule_that_says_nothing_is_refused(
        self, tmp_path: Path, only: list[str], leave_out: list[str], sentence: str
    ) -> None:
        with pytest.raises(InputError) as caught:
            choose(runs_of(tmp_path / "a.csv", self.ROWS), only, leave_out)
        assert str(caught.value).startswith(sentence)


PUBLISHED = {
    "llama_a100_hagemann2023.csv": (607, 243, 345),
    "llama_h100_ultrascale.csv": (1643, 1027, 372),
    "mpt_fsdp_mosaicml.csv": (41, 41, 0),
    "gpt_a100_vtrain.csv": (720, 720, 0),
    "llama2_fsdp_fms.csv": (8, 8, 0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_row_of_the_published_files_is_read(name: str) -> None:
    runs = read_runs(published(name))
    statuses = [run.status for run in runs]
    assert (len(runs), statuses.count("ok"), statuses.count("oom")) == PUBLISHED[name]


def test_the_convention_of_the_study_gives_its_published_mfu() -> None:
    runs = [run for run in read_runs(published("llama_a100_hagemann2023.csv")) if run.mfu and run.step_seconds]
    ratios = [100 * model_flops(run) / (run.step_seconds or 1) / (run.gpus * 312e12) / (run.mfu or 1) for run in runs]
    assert len(ratios) == 243
    # A few runs have steps of uneven length, whose mean MFU is not that of their mean step.
    assert statistics.median(abs(ratio - 1) for ratio in ratios) < 1e-3
    assert quantile([abs(ratio - 1) for ratio in ratios], 0.9) < 2e-3
