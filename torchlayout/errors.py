"""The one error for what a user got wrong: sentences, exit code 2, no traceback."""

from __future__ import annotations

import errno

PATHS = {errno.ENAMETOOLONG, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
"""What the system says of a path that a user should have chosen otherwise."""


class InputError(Exception):
    """Bad input by a user: one sentence a problem, each naming the key, the value and what would be legal."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems: tuple[str, ...] = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


def about_path(error: OSError) -> str | None:
    """The sentence about a path that cannot be used; None for every other error of the system."""
    return f"{error.filename} cannot be used: {error.strerror}" if error.errno in PATHS and error.filename else None
