"""A corpus on disk: windows over its token files, and every damage noticed and named."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from torchlayout.data.corpus import Corpus, Manifest
from torchlayout.data.prepare import prepare
from torchlayout.data.shard import ShardWriter, read_header
from torchlayout.errors import InputError


def build(directory: Path, parts: list[list[int]], vocabulary: int = 257, eos: int = 256) -> np.ndarray:
    """A corpus of one token file for each part; returns all its tokens."""
    directory.mkdir()
    names = [f"shard-{number:05d}.tokens" for number in range(len(parts))]
    headers = []
    for name, part in zip(names, parts, strict=True):
        with ShardWriter(directory / name, vocabulary, eos, b"\1" * 32) as shard:
            shard.write(np.array(part, dtype=np.int64), part.count(eos))
            headers.append(shard.finish(len(part), 0, 0))
    Manifest.of("bytes", names, headers).write(directory)
    return np.array([token for part in parts for token in part])


PARTS = [[1, 2, 256], [], [3], [4, 5, 6, 7, 256, 8], [], [256]]


def test_samples_are_windows_that_share_one_token_across_token_files(tmp_path: Path) -> None:
    tokens = build(tmp_path / "c", PARTS)
    corpus = Corpus.open(tmp_path / "c")
    assert (corpus.token_count, corpus.vocabulary, corpus.eos, corpus.tokenizer) == (11, 257, 256, "bytes")
    for length in range(1, 12):
        assert corpus.samples(length) == (11 - 1) // length
        for index in range(corpus.samples(length)):
            sample = corpus.sample(index, length)
            assert sample.dtype == np.int64
            assert sample.tolist() == tokens[index * length : index * length + length + 1].tolist()
        with pytest.raises(IndexError):
            corpus.sample(corpus.samples(length), length)


@pytest.mark.parametrize(("vocabulary", "width"), [(65_536, 2), (65_537, 4)])
def test_tokens_take_two_bytes_up_to_65536_ids_and_four_above(tmp_path: Path, vocabulary: int, width: int) -> None:
    tokens = build(tmp_path / "c", [[vocabulary - 1, 0, 1]], vocabulary, eos=0)
    corpus = Corpus.open(tmp_path / "c")
    assert (tmp_path / "c" / "shard-00000.tokens").stat().st_size == 256 + 3 * width
    assert corpus.sample(0, 2).tolist() == tokens.tolist()


def test_the_header_has_the_stated_fields_at_the_stated_places(tmp_path: Path) -> None:
    build(tmp_path / "c", [[1, 2, 256, 3]])
    raw = (tmp_path / "c" / "shard-00000.tokens").read_bytes()
    magic, version, width, tokens, documents, vocabulary, eos = struct.unpack_from("<8sIIQQQQ", raw)
    assert (magic, version, width) == (b"TLTOKENS", 1, 2)
    assert (tokens, documents, vocabulary, eos) == (4, 1, 257, 256)
    assert np.frombuffer(raw, "<u2", offset=256).tolist() == [1, 2, 256, 3]


def verified(directory: Path) -> list[str]:
    corpus = Corpus(directory, Manifest.read(directory))
    return [fault for _, fault in corpus.verify() if fault is not None]


@pytest.mark.parametrize("at", [0, 9, 12, 16, 24, 32, 40, 75, 120, 150, 200, 255, 256, 261])
def test_any_flipped_bit_is_found_and_its_file_named(tmp_path: Path, at: int) -> None:
    build(tmp_path / "c", [[1, 2, 256], [3, 4, 5]])
    assert verified(tmp_path / "c") == []
    path = tmp_path / "c" / "shard-00001.tokens"
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)
    (fault,) = verified(tmp_path / "c")
    assert "shard-00001.tokens" in fault
    if at < 256:
        with pytest.raises(InputError, match=r"shard-00001\.tokens"):
            Corpus.open(tmp_path / "c")


def test_a_shortened_missing_or_foreign_token_file_is_refused_by_name(tmp_path: Path) -> None:
    build(tmp_path / "c", [[1, 2, 256], [3, 4, 5]])
    build(tmp_path / "other", [[9, 9, 9]])
    path = tmp_path / "c" / "shard-00000.tokens"
    whole = path.read_bytes()
    for change, sentence in [
        (lambda: path.write_bytes(whole[:-1]), "has 261 bytes where its header promises 262"),
        (lambda: path.write_bytes(b"hello"), "is not a token file"),
        (lambda: path.write_bytes((tmp_path / "other" / path.name).read_bytes()), "belongs to another corpus"),
        (lambda: path.unlink(), "cannot be read: No such file"),
    ]:
        change()
        with pytest.raises(InputError, match=sentence) as caught:
            Corpus.open(tmp_path / "c")
        assert str(path) in str(caught.value)
        assert sentence in verified(tmp_path / "c")[0]


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    build(tmp_path / "c", [[1, 2, 256]])
    path = tmp_path / "c" / "shard-00000.tokens"
    raw = bytearray(path.read_bytes())
    raw[8] = 2
    path.write_bytes(raw)
    with pytest.raises(InputError, match="has format version 2; this torchlayout reads version 1"):
        read_header(path)
    manifest = tmp_path / "c" / "corpus.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 3'))
    with pytest.raises(InputError, match="has format version 3"):
        Corpus.open(tmp_path / "c")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "x"}', '{"format": "torchlayout corpus", "version": 1}'])
def test_a_damaged_manifest_is_a_sentence(tmp_path: Path, text: str) -> None:
    build(tmp_path / "c", [[1, 2, 256]])
    (tmp_path / "c" / "corpus.json").write_text(text)
    with pytest.raises(InputError, match=r"corpus\.json is damaged"):
        Corpus.open(tmp_path / "c")


def test_a_manifest_that_lists_other_tokens_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "c", [[1, 2, 256], [3, 4, 5]])
    path = tmp_path / "c" / "corpus.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"tokens": 7}))
    with pytest.raises(InputError, match="do not add up to 7"):
        Corpus.open(tmp_path / "c")
    path.write_text(json.dumps(content | {"sha256": "0" * 64}))
    assert verified(tmp_path / "c") == [f"{path}: its checksum does not fit"]


def test_an_absent_or_unfinished_corpus_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not exist; make it with: torchlayout data prepare .* --out"):
        Corpus.open(tmp_path / "c")
    source = tmp_path / "a.txt"
    source.write_text("text")
    prepare([str(source)], tmp_path / "c", workers=1)
    (tmp_path / "c" / "corpus.json").unlink()
    with pytest.raises(InputError, match=r"holds no finished corpus .* make or finish it with"):
        Corpus.open(tmp_path / "c")
