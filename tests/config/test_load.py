from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchlayout.config import Config
from torchlayout.config.show import commented_default, schema
from torchlayout.errors import InputError
from torchlayout.files import parse_toml
from torchlayout.layout import Layout

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
MINIMAL = '[model]\npreset = "debug"\n[data]\npath = "corpus"\n'


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "minimal.toml"
    path.write_text(MINIMAL)
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_file_in_configs_is_loaded_and_can_run_as_it_is_documented(path: Path) -> None:
    config = Config.load(path)
    assert config.run.name
    assert config.check() == []
    for label in ("fsdp8", "pp2-fsdp2-tp2+sp") if "GPU" not in path.read_text() else ():
        assert Config.load(path, layout=label).check(8) == []


def test_model_and_data_path_are_all_that_a_file_must_say(minimal: Path) -> None:
    config = Config.load(minimal)
    assert config.model.hidden_size == 64
    assert (config.run.seed, config.data.sequence_length, config.batch.global_size) == (1234, 2048, 32)
    assert config.check(8) == []


def test_a_value_of_the_configuration_cannot_be_changed(minimal: Path) -> None:
    config = Config.load(minimal)
    with pytest.raises(ValueError, match="frozen"):
        config.train.steps = 5  # type: ignore[misc]


def test_an_override_is_a_toml_value_and_else_a_text(minimal: Path) -> None:
    config = Config.load(
        minimal,
        ["train.steps=50", "data.shuffle=false", "run.name=first", 'data.path="a b"', "optimizer.betas=[0.8, 0.9]"],
    )
    assert config.train.steps == 50
    assert config.data.shuffle is False
    assert (config.run.name, config.data.path) == ("first", "a b")
    assert config.optimizer.betas == (0.8, 0.9)


def test_an_override_that_closes_its_value_and_opens_another_key_is_one_text(minimal: Path) -> None:
    with pytest.raises(InputError, match="folder name"):
        Config.load(minimal, ["run.name=1\nseed = 5"])


def test_the_last_override_of_a_key_counts(minimal: Path) -> None:
    assert Config.load(minimal, ["train.steps=5", "train.steps=7"]).train.steps == 7


def test_an_override_reaches_into_the_scaling_of_a_preset(minimal: Path) -> None:
    config = Config.load(minimal, ["model.preset=llama3-8b", "model.rope_scaling.factor=4.0"])
    assert config.model.rope_scaling is not None
    assert config.model.rope_scaling.factor == 4.0
    assert config.model.rope_scaling.original_max_position_embeddings == 8192


def test_what_was_written_loads_as_the_same_configuration(minimal: Path, tmp_path: Path) -> None:
    overrides = ["model.preset=llama3-8b", "optimizer.fused=true", "optimizer.learning_rate=1.2345678901234567e-5"]
    for label in (None, "pp2-fsdp2-tp2+sp"):
        config = Config.load(minimal, overrides, label)
        config.write(tmp_path / "run" / "config.toml")
        assert Config.load(tmp_path / "run" / "config.toml") == config


def test_ranks_to_profile_are_written_and_read_as_a_list(minimal: Path, tmp_path: Path) -> None:
    config = Config.load(minimal, ["profile.ranks=[0, 3]"])
    assert config.profile.ranks == (0, 3)
    config.write(tmp_path / "config.toml")
    assert Config.load(tmp_path / "config.toml") == config


def test_what_a_profile_would_be_does_not_matter_where_there_is_none(minimal: Path) -> None:
    config = Config.load(minimal, ["profile.start_step=1000", "profile.ranks=[7]", "profile.steps=0"])
    assert config.check(1) == []


def test_writing_leaves_no_half_written_file(minimal: Path, tmp_path: Path) -> None:
    Config.load(minimal).write(tmp_path / "run" / "config.toml")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.toml"]


def test_gradients_are_reduced_in_the_wider_of_fp32_and_the_parameters(minimal: Path) -> None:
    reduced = {
        parameters: Config.load(minimal, [f"precision.parameters={parameters}"]).precision.reduce
        for parameters in ("bf16", "fp32", "fp64")
    }
    assert reduced == {"bf16": "fp32", "fp32": "fp32", "fp64": "fp64"}
    assert Config.load(minimal, ["precision.reduce=bf16"]).precision.reduce == "bf16"


class TestLayout:
    def test_without_a_layout_the_ranks_shard_the_model(self, minimal: Path) -> None:
        config = Config.load(minimal)
        assert [str(config.layout_for(world)) for world in (1, 8)] == ["fsdp1", "fsdp8"]

    def test_a_label_and_its_parts_name_the_same_layout(self, minimal: Path) -> None:
        parts = ["pipeline=2", "shard=2", "tensor=2", "sequence_parallel=true", "schedule=gpipe", "micro_batch=2"]
        by_parts = Config.load(minimal, [f"layout.{part}" for part in parts])
        by_label = Config.load(minimal, layout="pp2-fsdp2-tp2+sp+gpipe+mb2")
        assert by_parts.layout_for(8) == by_label.layout_for(8)

    def test_kernels_fill_what_the_label_leaves_out(self, minimal: Path) -> None:
        overrides = ["kernels.attention=math", "kernels.norm=eager", "kernels.compile=true"]
        layout = Config.load(minimal, overrides, "fsdp2+flash").layout_for(2)
        assert layout == Layout(shard=2, attention="flash", norm="eager", compile=True)
        assert Config.load(minimal, overrides).layout_for(2).attention == "math"

    def test_a_given_label_replaces_the_section(self, tmp_path: Path) -> None:
        path = tmp_path / "parts.toml"
        path.write_text(MINIMAL + "[layout]\ntensor = 2\n")
        assert Config.load(path, layout="fsdp4").layout_for(4) == Layout(shard=4)

    def test_another_number_of_ranks_is_refused_with_both_numbers(self, minimal: Path) -> None:
        config = Config.load(minimal, layout="fsdp4")
        with pytest.raises(InputError, match="is for 4 ranks, but there are 8"):
            config.layout_for(8)
        assert len(config.check(8)) == 1


def test_the_commented_default_is_a_file_with_every_key_and_default() -> None:
    text = commented_default()
    config = Config.from_dict(parse_toml(text))
    assert config == Config.from_dict({"model": {"preset": "debug"}, "data": {"path": "data/python-library"}})
    keys = {line.lstrip("# ").split(" =")[0] for line in text.splitlines() if " =" in line}
    assert {key for section in config.model_dump().values() for key in section} <= keys
    assert "None" not in text


def test_every_key_has_a_description() -> None:
    def undescribed(node: Any, path: str = "") -> list[str]:
        if not isinstance(node, dict):
            return []
        own = [
            f"{path}.{key}"
            for key, value in node.get("properties", {}).items()
            if not value.keys() & {"description", "$ref"}
        ]
        return own + [found for key, value in node.items() for found in undescribed(value, f"{path}.{key}")]

    assert undescribed(schema()) == []


def test_the_schema_knows_the_two_ways_to_name_a_model() -> None:
    model = schema()["$defs"]["ModelConfig"]
    assert "llama-13b" in model["properties"]["preset"]["enum"]
    assert model["additionalProperties"] is False
    assert {"required": ["preset"]} in model["anyOf"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
KEYS = sorted(f"{name}.{key}" for name, table in parse_toml(commented_default()).items() for key in table)


@given(key=st.sampled_from(KEYS), value=VALUES)
def test_whatever_stands_at_a_key_gives_a_configuration_or_sentences(key: str, value: Any) -> None:
    section, name = key.split(".")
    raw: dict[str, Any] = {"model": {"preset": "debug"}, "data": {"path": "corpus"}}
    raw[section] = raw.get(section, {}) | {name: value}
    problems = problems_of(raw)
    assert all(section in problem and "\n" not in problem and len(problem) < 600 for problem in problems)


def problems_of(raw: dict[str, Any]) -> tuple[str, ...]:
    try:
        Config.from_dict(raw)
    except InputError as error:
        return error.problems or ("",)
    return ()
