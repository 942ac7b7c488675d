"""Text to token ids: bytes, or any Hugging Face tokenizer.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torchlayout.data.corpus import Corpus
from torchlayout.errors import InputError

EOS_NAMES = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "[EOS]", "<|eos|>", "<|eot_id|>", "<|im_end|>")


class Tokenizer(Protocol):
    """What prepares and inspects a corpus: ids below `vocabulary`, `eos` between documents."""

    name: str
    identity: bytes
    vocabulary: int
    eos: int

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """The ids of each text, without special tokens."""
        ...

    def decode(self, tokens: NDArray[np.integer]) -> str:
        """Text of the ids; what is no whole character is replaced."""
        ...


class ByteTokenizer:
    """The 256 bytes of UTF-8 as ids 0 to 255, and 256 between documents."""

    name = "bytes"
    identity = hashlib.sha256(b"torchlayout bytes").digest()
    vocabulary = 257
    eos = 256

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """The UTF-8 bytes of each text, uint8."""
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8) for text in texts]

    def decode(self, tokens: NDArray[np.integer]) -> str:
        """Text of the bytes; what is no whole character is replaced."""
        return tokens[tokens < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class FileTokenizer:
    """A Hugging Face `tokenizer.json`; `eos` names its end-of-document token when the usual names do not.

    Raises InputError when the file is no tokenizer, has no such token, or the package tokenizers is missing.
    """

    name = "tokenizer.json"

    def __init__(self, path: Path, eos: str | None = None, eos_id: int | None = None) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise InputError(
                f"tokenizer {path} needs the package tokenizers: pip install 'torchlayout[text]'"
            ) from error
        try:
            self.text = path.read_bytes().decode("utf-8")
            self._tokenizer = tokenizers.Tokenizer.from_str(self.text)
        except OSError as error:
            raise InputError(
                f"tokenizer {path} cannot be read: {error.strerror}; give `bytes` or a Hugging Face tokenizer.json"
            ) from error
        except Exception as error:  # the package raises plain Exception for a file it cannot parse
            raise InputError(f"tokenizer {path} is not a Hugging Face tokenizer.json: {error}") from error
        # Files exported from a training run may truncate or pad; and text that spells a special token is text.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(ids.values(), default=0) + 1
        self.eos = _eos(path, ids, eos) if eos_id is None else eos_id
        self.identity = hashlib.sha256(f"{self.text}\0{self.eos}".encode()).digest()

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """The ids of each text, uint32, without special tokens."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.uint32) for one in encoded]

    def decode(self, tokens: NDArray[np.integer]) -> str:
        """Text of the ids."""
        text: str = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        return text


def load_tokenizer(name: str, eos: str | None = None) -> Tokenizer:
    """The tokenizer `bytes`, or the one in a tokenizer.json (or in the folder that holds it)."""
    if name == "bytes":
        if eos is not None:
            raise InputError(f"--eos {eos} cannot be used with the tokenizer bytes: its EOS is id 256")
        return ByteTokenizer()
    path = Path(name)
    return FileTokenizer(path / "tokenizer.json" if path.is_dir() else path, eos)


def tokenizer_of(corpus: Corpus) -> Tokenizer:
    """The tokenizer a corpus was made with; raises InputError when the file in it is not that one."""
    if corpus.tokenizer == "bytes":
        return ByteTokenizer()
    tokenizer = FileTokenizer(Path(corpus.tokenizer), eos_id=corpus.eos)
    if tokenizer.identity.hex() != corpus.manifest.tokenizer_sha256:
        raise InputError(f"{corpus.tokenizer} is not the tokenizer this corpus was made with; put that one back")
    return tokenizer


def _eos(path: Path, ids: dict[str, int], wanted: str | None) -> int:
    if wanted is not None:
        if wanted not in ids:
            raise InputError(f"tokenizer {path} has no token {wanted!r}; --eos must name one of its {len(ids)} tokens")
        return ids[wanted]
    beside = _configured_eos(path.with_name("tokenizer_config.json"))
    for name in (beside, *EOS_NAMES):
        if name in ids:
            return ids[name]
    raise InputError(
        f"tokenizer {path} has no EOS token to put between documents (sought: {', '.join(EOS_NAMES)}); "
        "name one of its tokens with --eos"
    )


def _configured_eos(path: Path) -> str:
    """What a tokenizer_config.json, which Hugging Face writes beside the tokenizer, names as EOS; '' for nothing."""
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    eos = config.get("eos_token") if isinstance(config, dict) else None
    if isinstance(eos, dict):
        eos = eos.get("content")
    return eos if isinstance(eos, str) else ""
