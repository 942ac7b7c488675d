"""The published schema, and documents held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from harness.traces import Traced, device_pipeline, write_all
from torchlayout.layout import Layout
from torchlayout.schedule import actions, timeline
from torchlayout.trace.analyse import analyse
from torchlayout.trace.breakdown import Known
from torchlayout.trace.document import Axis, Share, schema, validated
from torchlayout.trace.names import AXES
from torchlayout.trace.shares import SHARES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """A pipeline of two ranks, with all that a run may know."""
    played = timeline(actions(Layout.parse("pp2+1f1b"), 4), lambda action: 1.0)
    known = Known("pp2", 1e12, {"seconds": 1.0, "shares": {"idle": 1.0}}, [{"version": 1, "rank": 0}], ["a note"])
    return analyse(write_all(tmp_path, device_pipeline(played.ranks, 12)), known).document


def test_the_published_schema_is_that_of_the_code() -> None:
    published = json.loads((ROOT / "docs" / "breakdown.schema.json").read_text())
    write_it_again = "import json; from torchlayout.trace.document import schema; print(json.dumps(schema(), indent=2))"
    assert published == schema(), f"python -c '{write_it_again}' > docs/breakdown.schema.json"


def test_nothing_but_what_the_schema_names_is_allowed() -> None:
    tables = [schema(), *schema()["$defs"].values()]
    assert len(tables) == 10
    assert all(table["additionalProperties"] is False for table in tables if "properties" in table)
    assert all(set(table["required"]) == set(table["properties"]) for table in tables)


def test_names_of_shares_and_axes_are_those_of_the_analysis() -> None:
    assert get_args(Share) == SHARES
    assert get_args(Axis) == AXES


def test_a_document_is_of_the_schema(document: dict[str, Any]) -> None:
    assert validated(document) == document
    assert validated(document)["pipeline"] is not None


def test_a_document_without_a_pipeline_or_a_transfer_is_of_the_schema(tmp_path: Path) -> None:
    trace = Traced()
    trace.op("aten::mm", 0, 1)
    assert validated(analyse(write_all(tmp_path, [trace])).document)["steps"][0]["step"] == 0


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"more": 1}, {"mean": {"compute": 1.0}}, {"world": "4"}, {"device": "tpu"}, {"ranks": [0.5]}],
)
def test_another_document_is_refused(change: dict[str, Any], document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        validated(document | change)
