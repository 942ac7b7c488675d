"""README.md and docs/ as data: their blocks, labels and commands; and whether a command could be given as printed."""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from torchlayout.config import Config
from torchlayout.files import parse_toml

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = [README, *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in DOCS}

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LABEL = re.compile(r"(pp|dp|fsdp|cp|tp)\d+([-+][a-z0-9]+)*")
PLACE = re.compile(r"(torchlayout|tests|docs|configs|launch|benchmarks|\.ci)/[\w./-]*")
SHELL_WORDS = {"pip", "tensorboard", "sbatch"}
TORCHRUN_OPTIONS = {
    "--nproc-per-node",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--max-restarts",
    "--signals-to-handle",
    "--shutdown-timeout",
}


def blocks(language: str) -> list[tuple[str, str]]:
    """Every fenced block of a language: the file it is in with its number, and its text."""
    return [
        (f"{name}-{number}", text)
        for name, document in TEXTS.items()
        for number, (found, text) in enumerate(BLOCK.findall(document))
        if found == language
    ]


def prose(name: str) -> str:
    """A document without its blocks."""
    return BLOCK.sub("", TEXTS[name])


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell block."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def commands_in_prose(name: str) -> Iterator[list[str]]:
    """Spans that are commands; one without arguments only has to exist."""
    for span in SPAN.findall(prose(name)):
        if re.match(r"(python|torchrun|torchlayout|pip|\./launch/\S+|\.ci/run)( |$)", span):
            words = shlex.split(span.replace("...", ""))
            bare = words[0] == "torchlayout" and len(words) <= 3
            yield [*words, "--help"] if bare and "--help" not in words and len(words) > 1 else words


def own_files() -> dict[str, str]:
    """The configuration files that the documents tell a reader to write: blocks that begin with `# NAME.toml`."""
    texts = [text for _, text in blocks("toml")]
    return {found[1]: text for text in texts if (found := re.match(r"# (\S+\.toml)\n", text))}


Find = Callable[[str], Path]
"""The configuration file that a command names."""


def parsed(app: typer.Typer, words: list[str]) -> dict[str, Any]:
    """What a command of typer makes of its words, without running it."""
    command: Any = typer.main.get_command(app)
    path = [command.name or ""]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words[0] if words[0] in command.commands else getattr(command, "default", words[0])
        assert name in command.commands, f"{name} is no command; there are {list(command.commands)}"
        path.append(name)
        command, words = command.commands[name], words[name == words[0] :]
    if "--help" in words or hasattr(command, "commands"):
        assert words in ([], ["--help"])
        return {}
    parameters: dict[str, Any] = command.make_context(" ".join(path), list(words)).params
    return parameters


def check_configuration(path: Path, overrides: list[str], layout: str | None, world: int | None) -> None:
    config = Config.load(path, overrides, layout)
    assert config.check(world or config.layout.layout(1).world) == []


def check_module(module: str, words: list[str], world: int | None, configuration: Find) -> None:
    """A command `python -m MODULE WORDS`."""
    if module == "torchlayout.train":
        found = parsed(importlib.import_module("torchlayout.train.__main__").app, words)
        check_configuration(configuration(str(found["config"])), found["override"] or [], found["layout"], world)
    elif module == "torchlayout.train.summary":
        app = typer.Typer()
        app.command()(importlib.import_module(module).main)
        assert parsed(app, words)["runs"]
    else:
        raise AssertionError(f"{module} is not a module that is run")


def check_torchrun(words: list[str], configuration: Find) -> None:
    options, module, rest = {}, None, list(words)
    while rest:
        option = rest.pop(0)
        if option == "-m":
            module = rest.pop(0)
            break
        assert option in TORCHRUN_OPTIONS, option
        options[option] = rest.pop(0)
    assert module is not None
    check_module(module, rest, int(options["--nproc-per-node"]) * int(options.get("--nnodes", 1)), configuration)


def check_script(words: list[str], environment: list[str], configuration: Find) -> None:
    """A shell script of the repository; those that train pass their arguments on."""
    script = ROOT / words[0]
    assert script.is_file(), script
    assert os.access(script, os.X_OK), script
    for variable in environment:
        assert f"${{{variable.split('=')[0]}:-" in script.read_text()
    if script.name in ("torchrun.sh", "slurm.sbatch") and len(words) > 1:
        check_module("torchlayout.train", words[1:], None, configuration)
    else:
        assert all((ROOT / word).exists() for word in words[1:])


def check_pip(words: list[str]) -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    assert words[:3] == ["install", "-c", "constraints.txt"]
    for word in words[3:]:
        if "==" in word:
            assert f"\n{word}\n" in constraints, word
        elif extras := re.search(r"\[([\w,]+)\]", word):
            known = parse_toml((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(extras[1].split(",")) <= known.keys()


def check_command(words: list[str], configuration: Find) -> None:
    """Fail where a command of the documents does not exist, or would be refused; nothing is run."""
    environment = [word for word in words if re.match(r"[A-Z_]+=", word)]
    program, *rest = [word for word in words if word not in environment]
    if program == "torchlayout":
        found = parsed(importlib.import_module("torchlayout.cli").app, rest)
        if found and rest[:2] == ["config", "check"]:
            check_configuration(
                configuration(str(found["file"])), found["assignments"] or [], found["layout"], found["world"]
            )
        if "gpus" in found:
            Config.load(configuration(str(found["file"])), found["assignments"] or [])
    elif program == "torchrun":
        check_torchrun(rest, configuration)
    elif program == "python" and rest[0] == "-m":
        check_module(rest[1], rest[2:], 1, configuration)
    elif program == "python" and rest[0] == "-c":
        compile(rest[1], "README", "exec")
    elif program == "python":
        source = (ROOT / rest[0]).read_text()
        assert all(f'"{word}"' in source for word in rest[1:] if word.startswith("--"))
    elif program == "sbatch":
        scripts = [word for word in rest if not word.startswith("--nodes=")]
        check_script(scripts, [], configuration)
    elif program == "pip":
        check_pip(rest)
    elif "/" in program:
        check_script([program.removeprefix("./"), *rest], environment, configuration)
    else:
        assert program in SHELL_WORDS
