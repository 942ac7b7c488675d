"""A comparison as a frozen value: which layouts are trained on what, how often, and how they are started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from torchlayout.compare.planned import Planned, from_labels, from_sweep, parse
from torchlayout.compare.sections import CompareSection, StudyKeys, SweepSection
from torchlayout.config import Config
from torchlayout.errors import InputError
from torchlayout.files import read_toml, write_atomically
from torchlayout.layout import Layout
from torchlayout.layout.words import nearest
from torchlayout.tables import NAME_PATTERN, Section, sentences, shown

# Keys of the base configuration that the study itself says, and where it says them.
SAID_ELSEWHERE = {
    "layout": "layouts or [sweep]",
    "run.name": "name",
    "run.directory": "directory",
    "train.steps": "compare.steps",
    "train.host_memory_limit_gib": "compare.host_memory_limit_gib",
}


Table = TypeVar("Table", bound=Section)
TABLES = ("base", "override", "sweep", "compare")


@dataclass(frozen=True)
class Study:
    """A comparison: the training they share, the layouts, and how they are run.

    base is the configuration without [layout]; labels and sweep say the same as layouts, as the file says it.
    """

    name: str
    parent: Path
    base: Config
    labels: tuple[str, ...] | None
    sweep: SweepSection | None
    compare: CompareSection

    @classmethod
    def load(cls, path: str | Path) -> Study:
        """The study in a TOML file; raises InputError with a sentence for each thing that is wrong."""
        path = Path(path)
        raw = read_toml(path)
        problems = [
            f"{key} is not a key of a study; {nearest(key, (*StudyKeys.model_fields, *TABLES))}"
            for key in raw
            if key not in StudyKeys.model_fields and key not in TABLES
        ]
        found: dict[str, Any] = {}
        for name, read in _READERS.items():
            try:
                found[name] = read(raw, path)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(*problems)
        keys: StudyKeys = found["keys"]
        study = cls(keys.name, Path(keys.directory), found["base"], keys.layouts, found["sweep"], found["compare"])
        study.run_settings()
        _ = study.layouts
        return study

    @property
    def directory(self) -> Path:
        """Where the study's files are."""
        return self.parent / self.name

    @property
    def world(self) -> int:
        """Ranks of every layout."""
        return self.compare.nproc * self.compare.nnodes

    @cached_property
    def layouts(self) -> tuple[Planned, ...]:
        """The layouts in the order of the file, the illegal ones with their reason."""
        if self.sweep is not None:
            return from_sweep(self.sweep.choices, self.base, self.world)
        return from_labels(self.labels or (), self.base, self.world)

    def canonical(self, label: str) -> str:
        """The label of the layout that a label names in this study; raises InputError where it is none."""
        return str(parse(label, self.base))

    def toml_of(self, layout: Layout) -> str:
        """The configuration file that trains the base in a layout."""
        import tomli_w

        tables = self.base.tables()
        # The label leaves out kernels that are the default, so the file says them all.
        kernels = {"attention": layout.attention, "norm": layout.norm, "compile": layout.compile}
        tables["kernels"] |= kernels
        tables["train"].pop("wall_time_limit_minutes", None)  # a study has limits of its own
        tables["run"]["name"] = f"{self.name}-{layout}"
        return tomli_w.dumps(tables | {"layout": {"label": str(layout)}})

    def run_settings(self) -> dict[str, Any]:
        """What a run of the study sets in that configuration: few steps, a warm-up that fits, nothing but steps.

        Raises InputError where these steps cannot be.
        """
        steps, optimizer = self.compare.steps, self.base.optimizer
        longest = int(steps * (1 - optimizer.decay_fraction)) if optimizer.decay == "wsd" else steps
        settings: dict[str, Any] = {
            "train.steps": steps,
            "train.evaluate_every": 0,
            "checkpoint.every": 0,
            "checkpoint.resume": "never",
            "optimizer.warmup_steps": min(optimizer.warmup_steps, longest),
            "profile.steps": steps - self.compare.last_measured_step,
        }
        if self.compare.profile:
            settings |= {"profile.start_step": self.compare.last_measured_step + 1, "profile.ranks": "all"}
        if self.compare.host_memory_limit_gib is not None:
            settings["train.host_memory_limit_gib"] = self.compare.host_memory_limit_gib
        raw = self.base.tables()
        for key, value in settings.items():
            section, name = key.split(".")
            raw[section] = raw[section] | {name: value}
        Config.from_dict(raw)
        return settings

    def write(self, path: Path) -> None:
        """Writes the study with everything resolved, as a file that can be loaded again from anywhere."""
        import tomli_w

        tables: dict[str, Any] = {"name": self.name, "directory": str(self.parent)}
        if self.labels is not None:
            tables["layouts"] = list(self.labels)
        tables["compare"] = self.compare.model_dump(exclude_none=True)
        if self.sweep is not None:
            tables["sweep"] = self.sweep.choices
        write_atomically(path, tomli_w.dumps(tables | {"base": self.base.tables()}))

    def differences(self, other: Study) -> list[str]:
        """What makes results of the two studies incomparable, a phrase each; not layouts, repeats or time-outs."""
        mine, theirs = _identity(self), _identity(other)
        return [
            f"{key} is {shown(mine.get(key))} and was {shown(theirs.get(key))}"
            for key in sorted(mine | theirs)
            if mine.get(key) != theirs.get(key)
        ]


def _identity(study: Study) -> dict[str, Any]:
    facts = {f"base.{key}": value for key, value in flat(study.base.model_dump()).items()}
    for key in ("nproc", "nnodes", "steps", "host_memory_limit_gib"):
        facts[f"compare.{key}"] = getattr(study.compare, key)
    return facts


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tables.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def _keys(raw: dict[str, Any], path: Path) -> StudyKeys:
    given = {"name": path.stem} | {key: raw[key] for key in StudyKeys.model_fields if key in raw}
    try:
        keys = StudyKeys.model_validate(given)
    except ValidationError as error:
        problems = [problem.removeprefix(".") for problem in sentences(error, "", StudyKeys)]
        if "name" not in raw and any(NAME_PATTERN in problem for problem in problems):
            problems.append(f"the name of the file, {path.name}, is no name of a study; give it one: name = ...")
        raise InputError(*problems) from error
    if (keys.layouts is None) == ("sweep" not in raw):
        raise InputError(
            'a study has either layouts = ["fsdp8", ...] or a [sweep]; '
            + ("both are given" if keys.layouts else "neither is given")
        )
    return keys


def _base(raw: dict[str, Any], path: Path) -> Config:
    given, override = raw.get("base"), raw.get("override", {})
    if given is None:
        raise InputError('base is missing; give the file of a configuration (base = "../quickstart.toml") or [base.*]')
    if not isinstance(given, str | dict):
        raise InputError(f"base = {shown(given)} is neither the file of a configuration nor its tables")
    if not isinstance(override, dict):
        raise InputError(f"override = {shown(override)} is not a table of keys; write [override.train] above its keys")
    tables = read_toml(path.parent / given) if isinstance(given, str) else given
    changes = _nested(override)
    problems = [
        f"override.{key} cannot be: a study says it in {place}"
        for key, place in SAID_ELSEWHERE.items()
        if any(f"{leaf}.".startswith(f"{key}.") for leaf in flat(changes))
    ]
    if problems:
        raise InputError(*problems)
    try:
        return Config.from_dict({**_merged(tables, changes), "layout": {}})
    except InputError as error:
        where = f"{path.parent / given}: " if isinstance(given, str) else "base: "
        raise InputError(*(where + problem for problem in error.problems)) from error


def _nested(override: dict[str, Any]) -> dict[str, Any]:
    """Quoted dotted keys ("train.log_every" = 5) as tables."""
    tables: dict[str, Any] = {}
    for key, value in override.items():
        *outer, last = key.split(".")
        inner = {last: value}
        for name in reversed(outer):
            inner = {name: inner}
        tables = _merged(tables, inner)
    return tables


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = base.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _sweep(raw: dict[str, Any], path: Path) -> SweepSection | None:
    return _table("sweep", SweepSection, raw["sweep"]) if "sweep" in raw else None


def _compare(raw: dict[str, Any], path: Path) -> CompareSection:
    return _table("compare", CompareSection, raw.get("compare", {}))


def _table(name: str, model: type[Table], table: Any) -> Table:
    if not isinstance(table, dict):
        raise InputError(f"{name} = {shown(table)} is not a table of keys; write [{name}] above its keys")
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise InputError(*sentences(error, name, model)) from error


_READERS = {"keys": _keys, "base": _base, "sweep": _sweep, "compare": _compare}
