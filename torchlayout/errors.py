"""The one error for what a user got wrong: sentences, exit code 2, no traceback."""

from __future__ import annotations


class InputError(Exception):
    """Bad input by a user: one sentence a problem, each naming the key, the value and what would be legal."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems: tuple[str, ...] = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)
