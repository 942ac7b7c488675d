from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchlayout.compare.study import Study
from torchlayout.errors import InputError
from torchlayout.layout import Layout

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted((CONFIGS / "compare").glob("*.toml"))
# Layouts that are legal, and those that are skipped, of each shipped study.
COUNTS = {
    "llama-13b_2k": (128, 0),
    "llama-13b_2k_sp": (24, 8),
    "llama-13b_8k": (216, 0),
    "llama-13b_8k_sp": (63, 9),
    "llama-30b_2k": (216, 0),
    "llama-30b_2k_sp": (45, 9),
    "llama-30b_8k": (192, 0),
    "llama-30b_8k_sp": (48, 0),
    "llama-65b_2k": (216, 0),
    "llama-65b_2k_sp": (54, 0),
    "llama3-8b_8gpu": (15, 0),
    "llama3-70b_64gpu": (15, 0),
    "quickstart": (5, 0),
}
BASE = """
[base.model]
preset = "debug"
[base.data]
path = "data/corpus"
sequence_length = 32
[base.batch]
global_size = 8
"""
COMPARE = "[compare]\nnproc = 4\nsteps = 5\n"
GOOD = 'layouts = ["fsdp4", "tp2-fsdp2+sp"]\n' + COMPARE + BASE


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Loads the study in a text."""

    def from_text(text: str, name: str = "a.toml") -> Study:
        (tmp_path / name).write_text(text)
        return Study.load(tmp_path / name)

    return from_text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_study_loads_and_its_layouts_are_legal_or_have_a_reason(path: Path) -> None:
    study = Study.load(path)
    legal = [planned for planned in study.layouts if planned.skipped_reason is None]
    assert (len(legal), len(study.layouts) - len(legal)) == COUNTS[path.stem]
    for planned in study.layouts:
        if planned.skipped_reason is None:
            assert planned.layout is not None
            assert planned.layout.world == study.world
        else:
            assert "layout.sequence_parallel = true splits the sequence over the tensor axis" in planned.skipped_reason
    assert study.name == path.stem


def test_the_quickstart_compares_one_layout_of_each_kind_on_eight_ranks() -> None:
    study = Study.load(CONFIGS / "compare" / "quickstart.toml")
    assert [planned.label for planned in study.layouts] == [
        "fsdp8",
        "dp2-fsdp4",
        "fsdp4-tp2+sp",
        "pp2-fsdp4",
        "pp2-fsdp2-tp2+sp",
    ]
    assert (study.world, study.compare.repeats) == (8, 1)


def test_the_sweeps_of_the_paper_reduce_once_a_step_in_bf16() -> None:
    for path in SHIPPED:
        study = Study.load(path)
        if study.sweep is not None:
            assert study.base.precision.reduce == "bf16"
            assert {planned.axes["zero"] for planned in study.layouts} == {1}


def test_the_name_is_that_of_the_file_where_none_is_given(load: Any) -> None:
    assert load(GOOD, "mine.toml").directory == Path("studies/mine")
    assert load('name = "other"\ndirectory = "here"\n' + GOOD).directory == Path("here/other")


def test_a_base_file_is_found_from_the_study_and_overridden(tmp_path: Path, load: Any) -> None:
    tables = BASE.replace("base.", "") + '[layout]\nlabel = "fsdp2"\n[train]\nlog_every = 7\n'
    (tmp_path / "base.toml").write_text(tables)
    override = '[override]\n"optimizer.clip_norm" = 0.5\n[override.batch]\nglobal_size = 16\n'
    study = load('base = "base.toml"\nlayouts = ["fsdp4"]\n' + COMPARE + override)
    assert (study.base.batch.global_size, study.base.train.log_every, study.base.optimizer.clip_norm) == (16, 7, 0.5)
    assert [planned.label for planned in study.layouts] == ["fsdp4"]


def test_what_a_run_sets_fits_its_few_steps(load: Any) -> None:
    study = load(GOOD + "[base.optimizer]\nwarmup_steps = 2000\n[base.train]\nsteps = 10000\n")
    assert study.run_settings() == {
        "train.steps": 5,
        "train.evaluate_every": 0,
        "checkpoint.every": 0,
        "checkpoint.resume": "never",
        "optimizer.warmup_steps": 5,
        "profile.steps": 0,
    }
    decaying = load(GOOD + '[base.optimizer]\nwarmup_steps = 4\ndecay = "wsd"\ndecay_fraction = 0.5\n')
    assert decaying.run_settings()["optimizer.warmup_steps"] == 2
    assert load(GOOD.replace("steps = 5", "steps = 5\nhost_memory_limit_gib = 2")).run_settings()[
        "train.host_memory_limit_gib"
    ] == pytest.approx(2.0)


def test_traces_are_taken_of_the_last_steps_which_do_not_count_as_speed(load: Any) -> None:
    study = load(GOOD.replace("steps = 5", "steps = 9\nprofile = true"))
    window = {key: value for key, value in study.run_settings().items() if key.startswith("profile.")}
    assert window == {"profile.steps": 2, "profile.start_step": 8, "profile.ranks": "all"}
    assert study.compare.last_measured_step == 7


def test_a_resolved_study_says_the_same_again(load: Any, tmp_path: Path) -> None:
    for text in (GOOD, GOOD.replace('layouts = ["fsdp4", "tp2-fsdp2+sp"]\n', "") + "[sweep]\ntensor = [1, 2]\n"):
        study = load(text)
        study.write(tmp_path / "resolved.toml")
        again = Study.load(tmp_path / "resolved.toml")
        assert again == study
        assert again.layouts == study.layouts
        assert again.differences(study) == []


def test_only_what_changes_results_is_a_difference(load: Any) -> None:
    study = load(GOOD)
    same = GOOD.replace("steps = 5", "steps = 5\nrepeats = 3\ntimeout_seconds = 9\nwarmup_steps = 1")
    assert load(same.replace('"fsdp4", ', "")).differences(study) == []
    other = GOOD.replace("steps = 5", "steps = 6") + "[base.run]\nseed = 1\n"
    assert load(other).differences(study) == ["base.run.seed is 1 and was 1234", "compare.steps is 6 and was 5"]


def test_the_file_of_a_layout_trains_it_whatever_the_kernels_of_the_base(load: Any, tmp_path: Path) -> None:
    from torchlayout.config import Config

    study = load('layouts = ["fsdp4", "fsdp4+sdpa"]\n' + COMPARE + BASE + '[base.kernels]\nattention = "math"\n')
    assert [planned.label for planned in study.layouts] == ["fsdp4+math", "fsdp4"]
    for planned in study.layouts:
        assert planned.layout is not None
        (tmp_path / "run.toml").write_text(study.toml_of(planned.layout))
        assert Config.load(tmp_path / "run.toml").layout_for(4) == planned.layout


class TestSweep:
    """Every combination of the choices, in the order of the layout's fields."""

    def labels(self, load: Any, sweep: str, more: str = "") -> dict[str, str | None]:
        study = load(COMPARE + BASE + more + "[sweep]\n" + sweep)
        return {planned.label: planned.skipped_reason for planned in study.layouts}

    def test_shard_is_what_is_left_of_the_ranks(self, load: Any) -> None:
        found = self.labels(load, "pipeline = [1, 2]\ntensor = [1, 2]\nmicro_batch = 2\n")
        assert list(found) == ["fsdp4+mb2", "fsdp2-tp2+mb2", "pp2-fsdp2+mb2", "pp2-tp2+mb2"]
        assert set(found.values()) == {None}

    def test_what_cannot_be_is_kept_with_its_reason(self, load: Any) -> None:
        sweep = "tensor = [1, 3, 4]\nsequence_parallel = [false, true]\nreplicate = [1, 2]\n"
        found = self.labels(load, sweep)
        assert len(found) == 12
        assert found["fsdp4"] is None
        assert "splits the sequence over the tensor axis and layout.tensor = 1" in str(found["fsdp4+sp"])
        assert "layout.tensor = 3 does not divide the 4 ranks" in str(found["tp3"])
        assert "layout.tensor = 4 is above num_key_value_heads = 2" in str(found["tp4"])
        assert found["dp2-tp4+sp"] == "layout.replicate = 2 x layout.tensor = 4 does not divide the 4 ranks"

    def test_a_layout_that_several_combinations_mean_is_there_once(self, load: Any) -> None:
        assert list(self.labels(load, 'pipeline = 2\nschedule = "zbv"\nvirtual_stages = [1, 2]\n')) == ["pp2-fsdp2+zbv"]

    def test_kernels_are_those_of_the_base_unless_they_are_swept(self, load: Any) -> None:
        kernels = '[base.kernels]\nnorm = "eager"\n'
        assert list(self.labels(load, 'attention = ["sdpa", "math"]\n', kernels)) == ["fsdp4+eager", "fsdp4+math+eager"]


BAD = {
    "no layouts": (GOOD.replace("layouts", "# layouts"), "neither is given"),
    "layouts and a sweep": (GOOD + "[sweep]\ntensor = [1]\n", "both are given"),
    "unknown key": ("layout = 1\n" + GOOD, "layout is not a key of a study; did you mean layouts?"),
    "unknown table": (GOOD + "[swep]\ntensor = [1]\n", "swep is not a key of a study; did you mean sweep?"),
    "unknown compare key": (
        GOOD.replace("steps = 5", "steps = 5\nnprocs = 4"),
        "compare.nprocs is not a key; did you mean nproc?",
    ),
    "no steps": (GOOD.replace("steps = 5\n", ""), "compare.steps is missing"),
    "warm-up of all steps": (
        GOOD.replace("steps = 5", "steps = 5\nwarmup_steps = 5"),
        "compare.warmup_steps = 5 leaves none of compare.steps = 5 to measure; legal: 0 to 4",
    ),
    "traces of all steps": (
        GOOD.replace("steps = 5", "steps = 5\nwarmup_steps = 3\nprofile = true"),
        "compare.profile = true traces the last 2 steps, and compare.warmup_steps = 3 then leaves none of "
        "compare.steps = 5 to measure; set compare.steps to 6 or more",
    ),
    "nodes without a launcher": (
        GOOD.replace("steps = 5", "steps = 5\nnnodes = 2"),
        'compare.launcher = "torchrun" starts ranks on one node, and compare.nnodes = 2; legal: "srun"',
    ),
    "launcher without a command": (
        GOOD.replace("steps = 5", 'steps = 5\nlauncher = "mpirun -n {world}"'),
        "compare.launcher has no word {command}",
    ),
    "launcher with an unknown place": (
        GOOD.replace("steps = 5", 'steps = 5\nlauncher = "run {wrld} {command}"'),
        "compare.launcher has {wrld}, which stands for nothing; did you mean world?",
    ),
    "launcher that is no command": (
        GOOD.replace("steps = 5", "steps = 5\nlauncher = 'run \" {command}'"),
        "compare.launcher is no command: no closing quotation",
    ),
    "no label": (GOOD.replace("fsdp4", "fsdp4x"), 'layout label "fsdp4x"'),
    "a layout twice": (GOOD.replace("tp2-fsdp2+sp", "fsdp4+sdpa"), "layouts names fsdp4 twice"),
    "no word of a layout": (
        COMPARE + BASE + '[sweep]\nschedule = ["gpip"]\n',
        '[sweep]: layout.schedule = "gpip" is unknown',
    ),
    "no base": ('layouts = ["fsdp4"]\n' + COMPARE, "base is missing; give the file of a configuration"),
    "base that is not there": ('base = "none.toml"\nlayouts = ["fsdp4"]\n' + COMPARE, "none.toml cannot be read"),
    "bad base": (GOOD + "[base.optimizer]\nclip = 1\n", "base: optimizer.clip is not a key"),
    "override of the layout": (
        GOOD + '[override.layout]\nlabel = "fsdp4"\n',
        "override.layout cannot be: a study says it in layouts or [sweep]",
    ),
    "override of the steps": (GOOD + "[override.train]\nsteps = 3\n", "a study says it in compare.steps"),
    "name that is no folder": ('name = "a/b"\n' + GOOD, 'name = "a/b" must be a folder name'),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_study_is_a_sentence(case: str, load: Any) -> None:
    text, says = BAD[case]
    with pytest.raises(InputError) as refused:
        load(text)
    assert len(refused.value.problems) == 1, refused.value.problems
    assert says in str(refused.value)


def test_all_that_is_wrong_is_said_at_once(load: Any) -> None:
    with pytest.raises(InputError) as refused:
        load('name = "a/b"\nsurplus = 1\nlayouts = ["fsdp4"]\n[compare]\nnproc = 0\nsteps = 0\n')
    assert len(refused.value.problems) == 5


def test_a_label_that_is_no_layout_of_these_ranks_is_skipped_with_its_reason(load: Any) -> None:
    study = load(GOOD.replace("fsdp4", "tp8"))
    assert study.layouts[0].layout == Layout.parse("tp8")
    assert "is for 8 ranks, and the study has 4" in str(study.layouts[0].skipped_reason)
    assert "is above num_key_value_heads" in str(study.layouts[0].skipped_reason)
