"""A token file: a checksummed header of 256 bytes, then the tokens.

Header (little endian): magic, version, bytes a token, tokens, documents, vocabulary, eos, source bytes read, invalid
UTF-8 sequences replaced, empty documents left out, SHA-256 of the tokenizer, SHA-256 of the tokens, SHA-256 of
everything before it, zeros.
"""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from torchlayout.data.files import half_name, refusing_full_disk
from torchlayout.errors import InputError

MAGIC, VERSION, HEADER_BYTES = b"TLTOKENS", 1, 256
_FIELDS = struct.Struct("<8sIIQQQQQQQ32s32s")
_CHUNK = 4 * 2**20


def token_type(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """The type of a token on disk, little endian: uint16 up to 65,536 ids, else uint32."""
    return np.dtype("<u2" if vocabulary <= 2**16 else "<u4")


@dataclass(frozen=True)
class Header:
    """What a token file says about itself."""

    item_bytes: int
    tokens: int
    documents: int
    vocabulary: int
    eos: int
    source_bytes: int
    replaced: int
    empty_documents: int
    tokenizer: bytes
    checksum: bytes

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return HEADER_BYTES + self.tokens * self.item_bytes

    def pack(self) -> bytes:
        """The 256 bytes at the start of the file."""
        fields = _FIELDS.pack(MAGIC, VERSION, *astuple(self))
        return (fields + hashlib.sha256(fields).digest()).ljust(HEADER_BYTES, b"\0")


def read_header(path: Path) -> Header:
    """The header of a token file whose size fits; raises InputError that names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            raw = file.read(HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"token file {path} cannot be read: {error.strerror}") from error
    if raw[:8] != MAGIC or len(raw) < HEADER_BYTES:
        raise InputError(f"{path} is not a token file: it does not begin with a header of torchlayout")
    _, version, *fields = _FIELDS.unpack_from(raw)
    if version != VERSION:
        raise InputError(f"token file {path} has format version {version}; this torchlayout reads version {VERSION}")
    header = Header(*fields)
    if raw != header.pack():
        raise InputError(f"token file {path} has a damaged header: its checksum does not fit; prepare it again")
    if size != header.file_bytes:
        raise InputError(f"token file {path} has {size} bytes where its header promises {header.file_bytes}")
    return header


def payload_checksum(path: Path) -> bytes:
    """SHA-256 of the tokens in a token file, read from the disk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(HEADER_BYTES)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


class ShardWriter:
    """Writes a token file under a temporary name; only `finish` gives it its own, so a file that is there is whole."""

    def __init__(self, path: Path, vocabulary: int, eos: int, tokenizer: bytes) -> None:
        self._path, self._half = path, half_name(path)
        self._vocabulary, self._eos, self._tokenizer = vocabulary, eos, tokenizer
        self.dtype = token_type(vocabulary)
        self._digest = hashlib.sha256()
        self._tokens = self._documents = 0
        with refusing_full_disk(path.parent):
            self._file = self._half.open("wb", buffering=_CHUNK)
            self._file.write(b"\0" * HEADER_BYTES)

    def write(self, tokens: NDArray[np.integer], documents: int) -> None:
        """Append tokens, among them `documents` ends of documents."""
        raw = tokens.astype(self.dtype, copy=False).data
        self._digest.update(raw)
        self._tokens += len(tokens)
        self._documents += documents
        with refusing_full_disk(self._path.parent):
            self._file.write(raw)

    def finish(self, source_bytes: int, replaced: int, empty_documents: int) -> Header:
        """Complete the header, bring the file to the disk, and give it its name."""
        header = Header(
            self.dtype.itemsize,
            self._tokens,
            self._documents,
            self._vocabulary,
            self._eos,
            source_bytes,
            replaced,
            empty_documents,
            self._tokenizer,
            self._digest.digest(),
        )
        with refusing_full_disk(self._path.parent):
            self._file.seek(0)
            self._file.write(header.pack())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._half, self._path)
        return header

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: BaseException | TracebackType | None) -> None:
        if kind is not None:
            with suppress(OSError):  # on a full disk the rest of the buffer cannot be written either
                self._file.close()
            self._half.unlink(missing_ok=True)
