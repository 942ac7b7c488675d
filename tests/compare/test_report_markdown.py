from __future__ import annotations

import re

import pytest

from harness import reports
from torchlayout.compare.report.document import Report
from torchlayout.compare.report.markdown import block, code, markdown, plain
from torchlayout.compare.report.reasons import explain


def text(**changes: object) -> str:
    report = reports.study()
    report["layouts"] += reports.losers()
    report["verdict"] |= changes
    return markdown(explain(Report.model_validate(report)))


def table(words: str) -> list[list[str]]:
    rows = [line for line in words.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_the_verdict_is_the_first_thing_after_the_title() -> None:
    title, verdict = text().split("\n\n")[:2]
    assert title == "# llama-13b-2k"
    assert verdict.startswith("**fsdp8+mb2 is fastest here: 1.03x the speed of fsdp8")


def test_the_best_layout_can_be_copied() -> None:
    assert "```bash\ntorchrun --nproc-per-node 8 -m torchlayout.train config.toml --layout 'fsdp8+mb2'\n```" in text()
    assert '```toml\n[model]\npreset = "llama-13b"' in text()


def test_the_table_has_a_row_for_each_layout_the_fastest_first() -> None:
    heading, line, *rows = table(text())
    assert heading[:5] == ["layout", "status", "speed", "step", "tokens/s"]
    assert {len(row) for row in (heading, line, *rows)} == {12}
    assert rows[0][:2] == ["`fsdp8+mb2`", "measured"]
    assert re.fullmatch(r"1\.03x \(1\.02 to 1\.05\)", rows[0][2])
    assert [row[1] for row in rows[12:]] == ["out of memory", "timed out", "failed", "not run", "not run yet"]


def test_unknown_mfu_has_no_column_and_the_reason_is_given() -> None:
    words = markdown(Report.model_validate(reports.study(mfu=False)))
    assert "MFU" not in table(words)[0]
    assert "no MFU: the peak of" in words


def test_faults_of_the_comparison_stand_out() -> None:
    words = text(fair=False, problems=["fsdp4-tp2: batch digests differ from step 3 on"])
    assert "> [!WARNING]\n> - fsdp4-tp2: batch digests differ from step 3 on" in words
    assert "- **Not fair: the layouts did not run on equal terms.**" in words
    assert "- Parity: all layouts trained the same model" in words


def test_reasons_of_many_layouts_are_cut_short() -> None:
    report = reports.large(100)
    words = markdown(explain(Report.model_validate(report)))
    assert "and 69 more in `report.html` and `report.json`" in words
    assert len(table(words)) == 102


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("<script>", r"\<script\>"),
        ("a|b", r"a\|b"),
        ("[x](y)", r"\[x\](y)"),
        ("two\nlines", "two lines"),
        ("`*_~$", r"\`\*\_\~\$"),
    ],
)
def test_plain_text_has_no_power(given: str, expected: str) -> None:
    assert plain(given) == expected


def test_code_and_blocks_cannot_be_left() -> None:
    assert code("fsdp8") == "`fsdp8`"
    assert code("a`b``c") == "```a`b``c```"
    assert code("a|b\n| c |") == r"`a\|b \| c \|`"
    assert block("x\n```\ny", "toml") == "````toml\nx\n```\ny\n````"


def test_hostile_labels_leave_the_table_whole() -> None:
    report = reports.study(("fsdp8",))
    report["layouts"].append(reports.blank("a | b\n| `c` <img src=x>", "failed", None, "x | y\n# z"))
    rows = table(markdown(explain(Report.model_validate(report))))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) == 4
