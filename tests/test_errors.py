from __future__ import annotations

from torchlayout.errors import InputError


def test_an_input_error_is_one_line_a_problem() -> None:
    error = InputError("first.", "second.")
    assert error.problems == ("first.", "second.")
    assert str(error) == "first.\nsecond."
