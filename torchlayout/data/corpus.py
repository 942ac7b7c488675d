"""A prepared corpus: token files and the manifest that makes one endless row of tokens of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchlayout.data.files import refusing_full_disk
from torchlayout.data.shard import HEADER_BYTES, Header, payload_checksum, read_header, token_type
from torchlayout.errors import InputError
from torchlayout.files import write_atomically

MANIFEST = "corpus.json"
FORMAT, VERSION = "torchlayout corpus", 1
_PREPARE = "torchlayout data prepare SOURCE... --out {} (or --python-library for SOURCE, which is on every machine)"


@dataclass(frozen=True)
class Shard:
    """A token file as the manifest lists it."""

    file: str
    tokens: int
    documents: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What `corpus.json` holds: the identity of the tokens, and how much there is of them."""

    tokenizer: str
    tokenizer_sha256: str
    vocabulary: int
    eos: int
    tokens: int
    documents: int
    empty_documents: int
    replaced: int
    source_bytes: int
    sha256: str
    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, tokenizer: str, names: Sequence[str], headers: Sequence[Header]) -> Manifest:
        """The manifest of finished token files in their order."""
        digest = hashlib.sha256(b"".join(header.checksum for header in headers)).hexdigest()
        return cls(
            tokenizer=tokenizer,
            tokenizer_sha256=headers[0].tokenizer.hex(),
            vocabulary=headers[0].vocabulary,
            eos=headers[0].eos,
            tokens=sum(header.tokens for header in headers),
            documents=sum(header.documents for header in headers),
            empty_documents=sum(header.empty_documents for header in headers),
            replaced=sum(header.replaced for header in headers),
            source_bytes=sum(header.source_bytes for header in headers),
            sha256=digest,
            shards=tuple(
                Shard(name, header.tokens, header.documents, header.checksum.hex())
                for name, header in zip(names, headers, strict=True)
            ),
        )

    def write(self, directory: Path) -> None:
        """Write `corpus.json`, which makes the directory a corpus."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        with refusing_full_disk(directory):
            write_atomically(directory / MANIFEST, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read `corpus.json`; raises InputError when it is absent, broken, or of another version."""
        path = directory / MANIFEST
        if not directory.is_dir():
            raise InputError(f"corpus {directory} does not exist; make it with: {_PREPARE.format(directory)}")
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError("another format")
            if (version := content.pop("version")) != VERSION:
                raise InputError(f"corpus {directory} has format version {version}; this torchlayout reads {VERSION}")
            shards = tuple(Shard(**shard) for shard in content.pop("shards"))
            manifest = cls(**content, shards=shards)
        except FileNotFoundError as error:
            raise InputError(
                f"{directory} holds no finished corpus ({MANIFEST} is not there); make or finish it with: "
                f"{_PREPARE.format(directory)}"
            ) from error
        except OSError as error:
            raise InputError(f"corpus file {path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"corpus file {path} is damaged: it is not the manifest of a corpus") from error
        if sum(shard.tokens for shard in shards) != manifest.tokens:
            raise InputError(f"corpus file {path} is damaged: its token files do not add up to {manifest.tokens}")
        return manifest


class Corpus:
    """The tokens of a prepared directory, memory mapped, cut into samples of `sequence_length` + 1 tokens."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._starts = np.cumsum([0] + [shard.tokens for shard in manifest.shards])
        self._maps: dict[int, NDArray[np.unsignedinteger]] = {}

    @classmethod
    def open(cls, path: str | Path) -> Corpus:
        """Open a corpus; raises InputError when it is absent, unfinished or a token file is not as promised."""
        corpus = cls(Path(path), Manifest.read(Path(path)))
        for shard in corpus.manifest.shards:
            corpus._check_header(shard)
        return corpus

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Path, Manifest]]:
        return Corpus, (self.path, self.manifest)  # without the maps, which would pickle as copies of the files

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self.manifest.vocabulary

    @property
    def eos(self) -> int:
        """The id that ends each document."""
        return self.manifest.eos

    @property
    def token_count(self) -> int:
        """Tokens in the whole corpus, ends of documents included."""
        return self.manifest.tokens

    @property
    def tokenizer(self) -> str:
        """`bytes`, or the path of the tokenizer.json beside the token files."""
        name = self.manifest.tokenizer
        return name if name == "bytes" else str(self.path / name)

    def samples(self, sequence_length: int) -> int:
        """How many samples of `sequence_length` inputs and labels there are; 0 when the corpus is too small."""
        return max(0, (self.token_count - 1) // sequence_length)

    def sample(self, index: int, sequence_length: int) -> NDArray[np.int64]:
        """Tokens [index x sequence_length, ... + sequence_length + 1) of the corpus, int64 [sequence_length + 1]."""
        if not 0 <= index < self.samples(sequence_length):
            raise IndexError(f"sample {index} of {self.samples(sequence_length)}")
        return self.window(index * sequence_length, sequence_length + 1)

    def window(self, start: int, length: int) -> NDArray[np.int64]:
        """Tokens [start, start + length) of the corpus, fewer at its end, int64."""
        stop = min(start + length, self.token_count)
        out = np.empty(max(0, stop - start), dtype=np.int64)
        shard, at = int(np.searchsorted(self._starts, start, side="right")) - 1, start
        while at < stop:
            here = self._map(shard)[at - int(self._starts[shard]) :][: stop - at]
            out[at - start : at - start + len(here)] = here
            at += len(here)
            shard += 1
        return out

    def _map(self, shard: int) -> NDArray[np.unsignedinteger]:
        if shard not in self._maps:
            listed, dtype = self.manifest.shards[shard], token_type(self.vocabulary)
            tokens: NDArray[np.unsignedinteger] = np.empty(0, dtype)
            path = self.path / listed.file
            try:
                if listed.tokens:  # nothing cannot be mapped
                    tokens = np.memmap(path, dtype, "r", HEADER_BYTES, (listed.tokens,))
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it has become shorter"
                raise InputError(f"token file {path} cannot be read: {why}") from error
            self._maps[shard] = tokens
        return self._maps[shard]

    def _check_header(self, shard: Shard) -> None:
        path, manifest = self.path / shard.file, self.manifest
        header = read_header(path)
        found = (header.tokens, header.checksum.hex(), header.vocabulary, header.eos, header.tokenizer.hex())
        if found != (shard.tokens, shard.sha256, manifest.vocabulary, manifest.eos, manifest.tokenizer_sha256):
            raise InputError(f"token file {path} belongs to another corpus than the {MANIFEST} beside it")

    def verify(self) -> Iterator[tuple[str, str | None]]:
        """(file, what is wrong or None) for each token file, read whole, and at last for the corpus."""
        for shard in self.manifest.shards:
            yield shard.file, self._fault(shard)
        joined = hashlib.sha256(b"".join(bytes.fromhex(shard.sha256) for shard in self.manifest.shards)).hexdigest()
        yield MANIFEST, None if joined == self.manifest.sha256 else f"{self.path / MANIFEST}: its checksum does not fit"

    def _fault(self, shard: Shard) -> str | None:
        path = self.path / shard.file
        try:
            self._check_header(shard)
            if payload_checksum(path).hex() != shard.sha256:
                return f"token file {path} is damaged: the checksum of its tokens does not fit; prepare it again"
        except InputError as error:
            return str(error)
        except OSError as error:
            return f"token file {path} cannot be read: {error.strerror}"
        return None
