"""Llamas of Hugging Face's format, from a checkpoint and to one; one tensor in memory at a time.

Both sides rotate pairs (i, i + head_dim / 2), so that weights are renamed and never permuted. Only safetensors are
read: the older .bin and .pth files are pickles, which run code when they are loaded.
"""

from torchlayout.checkpoint.huggingface.read import import_model
from torchlayout.checkpoint.huggingface.write import export_model

__all__ = ["export_model", "import_model"]
