"""Reading Zstandard files of one or many frames, noticing those that break off."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

import zstandard

_CHUNK = 2**18


class ZstandardFile(io.RawIOBase):
    """The decompressed bytes of a file; EOFError where it is truncated or damaged.

    The package's own stream reader takes a truncated file for a short one.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        # Files made with --long need a window above the default limit.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._frame: Any = None
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of `buffer`; 0 at the end."""
        while not self._ready:
            if not self._advance():
                return 0
        taken = min(len(self._ready), len(buffer))
        buffer[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken

    def _advance(self) -> bool:
        """Decompress the next chunk; False at the end of the last frame."""
        chunk = self._compressed or self._raw.read(_CHUNK)
        self._compressed = b""
        if not chunk:
            if self._frame is not None:
                raise EOFError("the file ends in the middle of a Zstandard frame")
            return False
        if self._frame is None:
            self._frame = self._decompressor.decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(chunk))
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        if self._frame.eof:
            self._compressed, self._frame = self._frame.unused_data, None
        return True
