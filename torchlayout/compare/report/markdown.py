"""report.md: the report as GitHub shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchlayout.compare.report import text
from torchlayout.compare.report.document import LayoutResult, Report

# Longer lists of reasons are in report.html and report.json; a page of 1,000 of them is not read.
MOST_REASONS = 30
WITHOUT_TRACES = "What differs is named; what each difference costs only traces of the runs would tell."
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$])")


def markdown(report: Report) -> str:
    """The whole report as one Markdown text."""
    return "\n\n".join(_parts(report)) + "\n"


def plain(words: str) -> str:
    """A text of unknown origin on one line, so that Markdown takes no character of it for its own."""
    return _SPECIAL.sub(r"\\\1", " ".join(words.split()))


def code(words: str) -> str:
    """A text of unknown origin as code on one line, also inside a table."""
    flat = " ".join(words.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", flat)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{edge}{flat}{edge}{fence}"


def block(words: str, language: str) -> str:
    """A text of unknown origin as a block of code."""
    longest = max((len(run) for run in re.findall("`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{words.rstrip()}\n{fence}"


def _parts(report: Report) -> Iterator[str]:
    yield f"# {plain(report.study.name)}"
    yield f"**{plain(report.verdict.sentence)}**"
    yield plain(f"{text.setting(report)}. Layouts: {text.statuses(report)}.")
    if report.verdict.problems:
        yield "> [!WARNING]\n" + "\n".join(f"> - {plain(problem)}" for problem in report.verdict.problems)
    yield _verdict(report)
    if report.best is not None:
        yield from _best(report.best)
    yield "## Layouts"
    yield _table(report)
    yield plain(
        "Speed is against the first layout that ran, above 1 is faster, with a 95% interval from three repeats on. "
        f"Memory is that of the worst rank. {report.study.mfu_note}"
    )
    if reasons := list(_reasons(report)):
        yield "## Why the others lose"
        yield WITHOUT_TRACES if all(layout.shares is None for layout in report.layouts) else "By their traces:"
        yield "\n".join(reasons)
    if report.figures:
        yield "## Figures"
        yield "\n".join(f"![{plain(name)}](figures/{name}.svg)" for name in report.figures)


def _verdict(report: Report) -> str:
    def answer(good: bool, yes: str, no: str) -> str:
        return f"- {yes}" if good else f"- **{no}**"

    if not report.measured:
        return "- No layout has finished a run: there is nothing to judge yet."
    verdict = report.verdict
    return "\n".join(
        [
            answer(
                verdict.fair,
                "Fair: same data, initial weights, tokens, optimizer, settings, software and hardware.",
                "Not fair: the layouts did not run on equal terms.",
            ),
            answer(
                verdict.parity,
                "Parity: all layouts trained the same model within the tolerance.",
                "No parity: the layouts did not train the same model.",
            ),
        ]
    )


def _best(best: LayoutResult) -> Iterator[str]:
    yield f"## Best layout: {code(best.label)}"
    if best.torchrun:
        yield block(best.torchrun, "bash")
    if best.config_toml:
        toml = block(best.config_toml, "toml")
        yield f"<details><summary>Configuration</summary>\n\n{toml}\n\n</details>"


def _table(report: Report) -> str:
    known = report.measured
    columns: dict[str, Sequence[str]] = {
        "layout": [code(layout.label) for layout in report.layouts],
        "status": [text.STATUS_WORDS[layout.status] for layout in report.layouts],
        "speed": [text.ratio(layout.ratio) for layout in report.layouts],
        "step": [text.spread(layout.step_seconds) for layout in report.layouts],
        "tokens/s": [
            text.count(layout.tokens_per_second.median if layout.tokens_per_second else None)
            for layout in report.layouts
        ],
    }
    if any(layout.mfu is not None for layout in known):
        columns["MFU"] = [text.percent(layout.mfu) for layout in report.layouts]
        columns["HFU"] = [text.percent(layout.hfu) for layout in report.layouts]
    columns["peak memory"] = [text.memory(layout) for layout in report.layouts]
    columns["data"] = [text.percent(layout.data_seconds_fraction) for layout in report.layouts]
    if any(layout.bubble_fraction is not None for layout in known):
        columns["bubble"] = [text.percent(layout.bubble_fraction, 0) for layout in report.layouts]
    columns["parity"] = [text.parity(layout.parity) for layout in report.layouts]
    columns["fair"] = [text.fair(layout.fair) for layout in report.layouts]
    order = {layout.label: place for place, layout in enumerate(known)}
    rows = sorted(
        zip(report.layouts, zip(*columns.values(), strict=True), strict=True),
        key=lambda row: order.get(row[0].label, len(order)),
    )
    lines = [list(columns), ["---"] * 2 + ["---:"] * (len(columns) - 2), *(cells for _, cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _reasons(report: Report) -> Iterator[str]:
    ran = [layout for layout in report.measured if layout.why_slower]
    others = [layout for layout in report.layouts if layout.status != "ok" and layout.why_slower]
    losers = [*others, *ran] if len(others) < len(ran) else [*ran, *others]
    for layout in losers[:MOST_REASONS]:
        yield f"- {code(layout.label)} ({text.STATUS_WORDS[layout.status]})"
        yield from (f"  - {plain(reason)}" for reason in layout.why_slower)
    if len(losers) > MOST_REASONS:
        yield f"- and {len(losers) - MOST_REASONS:,} more in `report.html` and `report.json`"
