"""Layout: how a model is spread over ranks, as one frozen value; parse, print, check, enumerate, split."""

from torchlayout.layout.value import Layout

__all__ = ["Layout"]
