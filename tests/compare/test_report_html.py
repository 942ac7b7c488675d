from __future__ import annotations

import base64
import hashlib
import json
import re
from fnmatch import fnmatch
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from harness import reports
from torchlayout.compare.report.document import Report
from torchlayout.compare.report.html import LOSSES_IN_PAGE, bundle, embedded, page, style
from torchlayout.files import read_toml

ROOT = Path(__file__).parents[2]
HOSTILE = "</script><!--<script>alert(1)//{{data}}&lt;\u2028"


def content_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def written(content: dict[str, Any], markdown: str = "# report") -> str:
    return page(Report.model_validate(content), markdown, [])


def test_the_policy_allows_the_one_script_and_the_one_style_by_hash() -> None:
    text = written(reports.study())
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert found
    policy = dict(part.strip().split(" ", 1) for part in unescape(found[1]).split(";"))
    assert policy["default-src"] == "'none'"
    for kind, pattern in (("script", r"<script>(.*?)</script>"), ("style", r"<style>(.*?)</style>")):
        (inline,) = re.findall(pattern, text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in found[1]


def test_the_page_names_nothing_outside_itself() -> None:
    text = written(reports.study())
    assert not re.search(r'(?:src|href|action)\s*=\s*"(?!data:)', text)
    assert not re.search(r"@import|url\((?!['\"]?data:)", text)
    assert " style=" not in text.split("<script>")[0], "the policy refuses style attributes"


def test_hostile_words_are_data() -> None:
    content = reports.study(("fsdp8",))
    content["study"]["name"] = HOSTILE
    content["layouts"].append(reports.blank(HOSTILE, "failed", None, HOSTILE))
    text = written(content, HOSTILE)
    assert text.count("</script>") == 2
    assert "alert(1)//{{data}}" not in text.split("<script type")[0].replace("&lt;", "")[:400]
    assert content_of(text)["layouts"][1]["reason"] == HOSTILE
    assert embedded({"x": "</script>&\u2028"}) == '{"x":"\\u003c/script\\u003e\\u0026\\u2028"}'


def test_the_bundle_holds_no_end_of_its_element_and_leaves_one_name() -> None:
    assert "</script" not in bundle().lower()
    assert "</style" not in style().lower()
    assert re.findall(r"globalThis\.(\w+) =", bundle()) == ["torchlayoutReport"]


@pytest.mark.parametrize(
    ("steps", "stride", "kept"), [(0, 1, 0), (1, 1, 1), (200, 1, 200), (201, 2, 101), (1000, 5, 201)]
)
def test_a_page_has_enough_losses_and_always_the_last(steps: int, stride: int, kept: int) -> None:
    content = reports.study(("fsdp8",))
    losses = [10 - number / 1000 + 1e-9 for number in range(steps)]
    content["layouts"][0]["losses"] = losses
    shown = content_of(written(content))["layouts"][0]["losses"]
    assert (shown["stride"], shown["count"], len(shown["values"])) == (stride, steps, kept)
    assert kept <= LOSSES_IN_PAGE + 1
    if losses:
        assert shown["values"][-1] == pytest.approx(losses[-1], abs=1e-8)


def test_a_thousand_layouts_stay_below_four_megabytes() -> None:
    assert len(written(reports.large(1000))) < 4e6


def test_every_file_of_the_page_is_shipped_with_the_package() -> None:
    patterns = read_toml(ROOT / "pyproject.toml")["tool"]["setuptools"]["package-data"]["torchlayout"]
    folder = ROOT / "torchlayout"
    paths = [path for web in folder.rglob("web") for path in web.rglob("*") if path.is_file()]
    files = [path.relative_to(folder).as_posix() for path in paths if path.suffix not in (".py", ".pyc")]
    assert len(files) > 15
    assert "web/uplot/LICENSE" in files
    assert [name for name in files if not any(fnmatch(name, pattern) for pattern in patterns)] == []
