"""What this version trains, of all that a layout can say."""

from __future__ import annotations

from torchlayout.layout import Layout


def unsupported(layout: Layout) -> list[str]:
    """A sentence for each choice of a layout that can be named, checked and planned, but not yet trained."""
    problems = []
    if layout.context > 1:
        problems.append(f"layout {layout}: cp{layout.context} cannot be trained yet; leave out the context axis")
    if layout.recompute != "none":
        problems.append(f"layout {layout}: {layout.recompute} cannot be trained yet; leave out recomputation")
    if layout.compile:
        problems.append(f"layout {layout}: compile cannot be trained yet; leave it out")
    return problems
