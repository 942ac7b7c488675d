"""README.md and docs/ say what is there: commands parse, labels are layouts, keys are legal, names and paths exist.

python tests/test_readme.py        # rewrites the list of keys in docs/configuration.md
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from harness.documents import (
    LABEL,
    PLACE,
    ROOT,
    SPAN,
    TEXTS,
    Find,
    blocks,
    check_command,
    commands,
    commands_in_prose,
    own_files,
    prose,
)
from torchlayout.compare.sections import CompareSection, StudyKeys, SweepSection
from torchlayout.config import Config
from torchlayout.config.load import KEYS
from torchlayout.config.show import commented_default
from torchlayout.errors import InputError
from torchlayout.files import parse_toml
from torchlayout.hardware import Hardware
from torchlayout.layout import Layout
from torchlayout.schedule import actions, timeline

COMMANDS = [
    pytest.param(words, id=" ".join(words)[:80])
    for words in [
        *(words for _, text in blocks("bash") for words in commands(text)),
        *(words for name in TEXTS for words in commands_in_prose(name)),
    ]
]


@pytest.fixture
def configuration(tmp_path: Path) -> Find:
    """Finds the file that a command names."""

    def find(name: str) -> Path:
        if name in own_files():
            path = tmp_path / name
            path.write_text(own_files()[name])
            return path
        assert (ROOT / name).is_file(), name
        return ROOT / name

    return find


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_can_be_given_as_it_is_printed(words: list[str], configuration: Find) -> None:
    check_command(words, configuration)


def test_commands_are_found_and_wrong_ones_are_not_let_through(configuration: Find) -> None:
    assert len(COMMANDS) > 20
    for wrong in (
        "torchlayout data prepair x --out y",
        "torchlayout config check configs/quickstart.toml --wrold 2",
        "torchlayout config check configs/quickstart.toml --layout tp3 --world 3",
        "torchrun --nproc-per-node 4 -m torchlayout.train configs/quickstart.toml --layout fsdp8",
        "python -m torchlayout.train configs/llama_debug.toml --set train.stesp=3",
        "python benchmarks/parity.py --precison fp32",
        "pip install -c constraints.txt torch==1.0.0",
        "./launch/quickstrat.sh",
        "make all",
    ):
        with pytest.raises((AssertionError, InputError, OSError, typer.TyperException)):
            check_command(shlex.split(wrong), configuration)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in blocks("toml")])
def test_every_configuration_that_is_shown_is_legal(text: str) -> None:
    raw = parse_toml(text)
    if "peak_flops" in raw:
        Hardware.model_validate(raw)  # a device's own file
        return
    raw.setdefault("model", {"preset": "debug"})
    raw.setdefault("data", {"path": "data/python-library"})
    config = Config.from_dict(raw)
    assert config.check(None) == []


@pytest.mark.parametrize("name", TEXTS)
def test_every_label_is_a_layout(name: str) -> None:
    for span in SPAN.findall(TEXTS[name]):
        if LABEL.fullmatch(span):
            assert str(Layout.parse(span))


@pytest.mark.parametrize("name", TEXTS)
def test_every_dotted_key_is_a_key(name: str) -> None:
    for span in SPAN.findall(prose(name)):
        section, _, key = span.split(" ")[0].partition(".")
        if section in KEYS and re.fullmatch(r"[a-z_]+", key) and key not in ("toml", "py", "json", "jsonl"):
            assert key in KEYS[section], span


@pytest.mark.parametrize("name", TEXTS)
def test_every_path_and_link_leads_somewhere(name: str) -> None:
    places = [place for span in SPAN.findall(prose(name)) for place in span.split(" ") if PLACE.fullmatch(place)]
    assert [place for place in places if not (ROOT / place).exists()] == []
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", TEXTS[name])]
    folder = ROOT if name == "README.md" else ROOT / "docs"
    assert [link for link in links if "://" not in link and not (folder / link).is_file()] == []


@pytest.mark.parametrize("name", TEXTS)
def test_every_test_that_is_named_is_there(name: str) -> None:
    there = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", TEXTS[name]))
    assert {test for test in named if f"def {test}(" not in there} == set()


def test_the_list_of_keys_is_the_schema() -> None:
    shown = between(TEXTS["configuration.md"], "keys")
    assert shown == f"```toml\n{commented_default().strip()}\n```", "run: python tests/test_readme.py"
    for section, keys in KEYS.items():
        part = shown.split(f"\n[{section}]\n")[1].split("\n[")[0]
        assert [key for key in keys if not re.search(rf"^(# )?{key} =", part, re.MULTILINE)] == []


def test_the_table_of_schedules_is_what_the_timeline_says() -> None:
    seconds = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
    rows = re.findall(
        r"^\| `(\w+)` \| (\d) \| ([\d.]+)% \| ([\d., ]+) \|", between(TEXTS["layouts.md"], "schedules"), re.M
    )
    assert len(rows) == 7
    for choice, stages, idle, held in rows:
        layout = Layout.parse(f"pp4+{choice}")
        found = timeline(actions(layout, 16), lambda action, n=layout.virtual_stages: seconds[action.kind] / n)
        assert layout.virtual_stages == int(stages)
        assert [f"{found.bubble(rank):.1%}" for rank in range(4)] == [f"{idle}%"] * 4
        assert [f"{found.in_flight(rank) / int(stages):g}" for rank in range(4)] == held.split(", ")


def test_every_layout_of_the_parity_benchmark_is_listed() -> None:
    cases = importlib.import_module("harness.cases").CASES
    listed = {
        name: re.findall(r"ranks  (.+?\))", between(TEXTS[name], "parity")) for name in ("README.md", "parity.md")
    }
    assert sorted(listed["parity.md"]) == sorted(str(case) for case in cases)
    assert set(listed["README.md"]) <= set(listed["parity.md"])
    assert len(listed["README.md"]) >= 10


def test_every_private_name_of_torch_in_use_is_listed() -> None:
    listed = TEXTS["development.md"].split("## Private torch API")[1]
    trees = {
        path: ast.parse(path.read_text())
        for folder in ("torchlayout", "benchmarks", "tests/schedule", "tests/harness")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    # Of namedtuple, of a private module named whole, of os, of sys.
    own = {"_replace", "_asdict", "_ops", "_exit", "_getframe"}
    for tree in trees.values():
        own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        own |= {
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
    for path, tree in trees.items():
        for name in private_names(tree) - own:
            families = (name, name.removeprefix("_scaled_dot_product"), re.sub(r"(_for_cpu)?(_backward)?$", "", name))
            assert any(re.search(rf"{known}\b", listed) for known in families), f"{path.name} uses {name}"
            assert str(path.relative_to(ROOT)) in listed, path


def private_names(tree: ast.AST) -> set[str]:
    """Attributes with one leading underscore, and names of that kind that are imported or asked for by getattr."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            found |= {
                word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            }
    return {name for name in found if re.fullmatch(r"_[a-z]\w*", name)}


def test_the_readme_is_short_and_nothing_is_left_to_fill_in() -> None:
    assert len(TEXTS["README.md"].splitlines()) < 260
    assert [name for name, text in TEXTS.items() if "FILL" in text] == []


def between(text: str, name: str) -> str:
    """What stands between the two comments of a name."""
    found = re.search(rf"<!-- {name}: begin[^\n]*-->\n(.*?)\n<!-- {name}: end -->", text, re.DOTALL)
    assert found is not None, name
    return found[1]


def test_every_key_of_a_study_is_documented() -> None:
    text = TEXTS["compare.md"]
    keys = [*CompareSection.model_fields, *StudyKeys.model_fields, *SweepSection.model_fields]
    assert [key for key in keys if f"`{key}`" not in text and f"{key} =" not in text] == []


def main() -> None:
    """Put the output of `torchlayout config show` into docs/configuration.md."""
    path = ROOT / "docs" / "configuration.md"
    text = path.read_text(encoding="utf-8")
    new = f"```toml\n{commented_default().strip()}\n```"
    path.write_text(text.replace(between(text, "keys"), new), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
