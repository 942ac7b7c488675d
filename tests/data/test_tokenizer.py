"""Tokenizers: bytes, and any Hugging Face tokenizer.json, as the library itself encodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from torchlayout.data import read, sources
from torchlayout.data.corpus import Corpus
from torchlayout.data.prepare import prepare
from torchlayout.data.tokenizer import ByteTokenizer, FileTokenizer, load_tokenizer, tokenizer_of
from torchlayout.errors import InputError

TEXTS = ["the layout of the mesh", "the mesh of the layout\n", "", "a rank, a stage <|endoftext|> of the mesh"]


def trained(path: Path, special: list[str], truncate: bool = False) -> Path:
    """A byte-level BPE tokenizer.json like those of GPT-2 and Llama 3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    if truncate:
        tokenizer.enable_truncation(3)
        tokenizer.enable_padding(length=50)
    tokenizer.save(str(path))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return trained(tmp_path / "tokenizer.json", ["<unk>", "<|endoftext|>"], truncate=True)


def test_a_corpus_holds_what_the_library_encodes_with_eos_between_documents(file: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    prepare([str(source)], tmp_path / "out", tokenizer=str(file), workers=2)
    corpus = Corpus.open(tmp_path / "out")
    reference = Tokenizer.from_file(str(file))
    reference.no_truncation()
    reference.no_padding()
    reference.encode_special_tokens = True
    eos = reference.token_to_id("<|endoftext|>")
    ids = [id for text in TEXTS if text for id in (*reference.encode(text, add_special_tokens=False).ids, eos)]
    assert corpus.window(0, corpus.token_count).tolist() == ids
    assert (corpus.eos, corpus.vocabulary) == (eos, reference.get_vocab_size())
    assert corpus.token_count > 20  # nothing was truncated


def test_text_that_spells_a_special_token_stays_text(file: Path) -> None:
    tokenizer = load_tokenizer(str(file))
    (ids,) = tokenizer.encode(["a <|endoftext|> b"])
    assert tokenizer.eos not in ids.tolist()
    assert tokenizer.decode(ids) == "a <|endoftext|> b"


def test_the_corpus_decodes_after_it_was_moved(file: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text(TEXTS[0])
    prepare([str(source)], tmp_path / "out", tokenizer=str(file), workers=1)
    file.unlink()
    (tmp_path / "out").rename(tmp_path / "moved")
    corpus = Corpus.open(tmp_path / "moved")
    assert tokenizer_of(corpus).decode(corpus.window(0, corpus.token_count - 1)) == TEXTS[0]
    trained(tmp_path / "moved" / "tokenizer.json", ["<|endoftext|>", "<x>"])
    with pytest.raises(InputError, match="is not the tokenizer this corpus was made with"):
        tokenizer_of(corpus)


def test_long_documents_are_tokenized_in_blocks_that_decode_to_the_whole(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the mesh of the layout \u00e9t\u00e9 " * 40 + "\u00e9" * 100
    (tmp_path / "a.txt").write_bytes(text.encode())
    monkeypatch.setattr(read, "_BLOCK", 64)
    monkeypatch.setattr(read, "_LINE_LIMIT", 64)
    monkeypatch.setattr(sources, "_SMALLEST", 300)
    prepare([str(tmp_path / "a.txt")], tmp_path / "out", tokenizer=str(file), workers=1)
    corpus = Corpus.open(tmp_path / "out")
    assert len(corpus.manifest.shards) > 2
    tokens = corpus.window(0, corpus.token_count)
    assert (tokens == corpus.eos).sum() == 1
    assert tokenizer_of(corpus).decode(tokens[:-1]) == text


@given(st.text())
def test_bytes_decode_to_the_text_they_encode(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()
    (ids,) = ByteTokenizer().encode([clean])
    assert ids.tolist() == list(clean.encode())
    assert ByteTokenizer().decode(np.append(ids.astype(np.int64), 256)) == clean


def test_a_vocabulary_above_65536_takes_four_bytes(tmp_path: Path) -> None:
    vocabulary = {f"w{number}": number for number in range(70_000)} | {"</s>": 70_000, "[UNK]": 70_001}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text("w69999 w1 unknown")
    prepare([str(tmp_path / "a.txt")], tmp_path / "out", tokenizer=str(tmp_path / "words.json"), workers=1)
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.vocabulary == 70_002
    assert corpus.window(0, 9).tolist() == [69_999, 1, 70_001, 70_000]
    assert (tmp_path / "out" / "shard-00000.tokens").stat().st_size == 256 + 4 * 4


@pytest.mark.parametrize("content", ["</s>", {"content": "</s>"}])
def test_the_configuration_beside_the_tokenizer_names_its_eos(tmp_path: Path, content: object) -> None:
    file = trained(tmp_path / "tokenizer.json", ["<|endoftext|>", "</s>", "<end>"])
    assert load_tokenizer(str(file)).eos == 0
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": content}))
    assert load_tokenizer(str(tmp_path)).eos == 1
    assert load_tokenizer(str(file), eos="<end>").eos == 2


def test_another_eos_is_another_corpus(tmp_path: Path) -> None:
    file = trained(tmp_path / "tokenizer.json", ["<|endoftext|>", "<end>"])
    (tmp_path / "a.txt").write_text("text")

    def run(**options: str) -> None:
        prepare([str(tmp_path / "a.txt")], tmp_path / "out", workers=1, **options)  # type: ignore[arg-type]

    run(tokenizer=str(file))
    with pytest.raises(InputError, match=r"its tokenizer\.json is another one, or its EOS another token"):
        run(tokenizer=str(file), eos="<end>")
    with pytest.raises(InputError, match=r"its tokenizer is tokenizer\.json, now it is bytes"):
        run(tokenizer="bytes")


def test_bad_tokenizers_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = trained(tmp_path / "none.json", ["<unk>"])
    (tmp_path / "broken.json").write_text('{"version": "1.0"}')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for name, eos, sentence in [
        (str(none), None, r"none\.json has no EOS token to put between documents .* --eos$"),
        (str(none), "<eos>", r"none\.json has no token '<eos>'; --eos must name one of its \d+ tokens"),
        (str(tmp_path / "broken.json"), None, r"broken\.json is not a Hugging Face tokenizer\.json: "),
        (str(tmp_path / "binary.json"), None, r"binary\.json is not a Hugging Face tokenizer\.json: "),
        ("byte", None, r"^tokenizer byte cannot be read: No such file or directory; give `bytes` or"),
        ("bytes", "<eos>", r"^--eos <eos> cannot be used with the tokenizer bytes"),
    ]:
        with pytest.raises(InputError, match=sentence) as caught:
            load_tokenizer(name, eos)
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"needs the package tokenizers: pip install 'torchlayout\[text\]'$"):
        FileTokenizer(none)
