"""Reading sources: the right tokens from every kind, and a sentence for everything that can be wrong with one."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.corpora import expected, json_lines, run, tokens_of
from torchlayout.data import read, sources
from torchlayout.data.prepare import prepare
from torchlayout.errors import InputError

DOCUMENTS = ["first\nsecond", "", "\u00e9t\u00e9 \U0001f600", "a", "  \n", "last"]
FILLED = [document for document in DOCUMENTS if document]


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_text_and_json_lines_give_their_bytes_and_an_end_of_document(
    tmp_path: Path, kind: str, compression: str
) -> None:
    if kind == "txt":
        raws = {f"{number}.txt": document.encode() for number, document in enumerate(DOCUMENTS)}
    else:
        raws = {"all.jsonl": json_lines(DOCUMENTS).replace(b"\n", b"\n\n", 2)}
    (tmp_path / "in").mkdir()
    compress = {"": bytes, ".gz": two_gzip_members, ".zst": two_zstandard_frames}[compression]
    for name, raw in raws.items():
        (tmp_path / "in" / f"{name}{compression}").write_bytes(compress(raw))
    done = run(tmp_path, "in")
    assert tokens_of(tmp_path / "out") == expected(*FILLED)
    assert (done.manifest.documents, done.manifest.empty_documents) == (len(FILLED), 1)


def two_gzip_members(raw: bytes) -> bytes:
    return gzip.compress(raw[:5]) + gzip.compress(raw[5:])


def two_zstandard_frames(raw: bytes) -> bytes:
    return zstandard.compress(raw[:5]) + zstandard.compress(raw[5:])


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_parquet_gives_the_column_that_is_named(tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.array([*DOCUMENTS, None], pa.string())
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    table = pa.table({"id": list(range(7)), "body": column})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    done = run(tmp_path, "a.parquet", text_field="body")
    assert tokens_of(tmp_path / "out") == expected(*FILLED)
    assert done.manifest.empty_documents == 2


def test_a_directory_is_read_in_sorted_order_without_hidden_and_unknown_files(tmp_path: Path) -> None:
    for name in ("b/x.txt", "a.md", "b/.hidden.txt", ".git/y.txt", "b/image.png", "a/z.txt.gz"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(name.encode()) if name.endswith("gz") else name.encode())
    (tmp_path / "single.txt").write_text("single")
    run(tmp_path, "single.txt", "in")
    assert tokens_of(tmp_path / "out") == expected("single", "a.md", "a/z.txt.gz", "b/x.txt")


@given(
    documents=st.lists(st.text(st.sampled_from("ab\u00e9\U0001f600 \n"), max_size=60), min_size=1, max_size=4),
    target=st.integers(10, 60),
    block=st.integers(5, 40),
    limit=st.integers(5, 20),
)
@settings(max_examples=60, deadline=None)
def test_cutting_into_units_and_blocks_never_shows_in_the_tokens(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], target: int, block: int, limit: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    for number, document in enumerate(documents):
        (folder / f"{number}.txt").write_bytes(document.encode())
    (folder / "9.jsonl").write_bytes(json_lines([*documents, "end"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_SMALLEST", target)
        patch.setattr(read, "_BLOCK", block)
        patch.setattr(read, "_LINE_LIMIT", limit)
        prepare([str(folder)], folder / "out", workers=1)
    filled = [document for document in documents if document]
    assert tokens_of(folder / "out") == expected(*filled, *filled, "end")


def test_row_groups_are_cut_into_units_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    documents = [f"document {number}" for number in range(50)]
    pq.write_table(pa.table({"text": documents}), tmp_path / "a.parquet", row_group_size=7)
    monkeypatch.setattr(sources, "_SMALLEST", 400)
    done = run(tmp_path, "a.parquet")
    assert len(done.manifest.shards) > 2
    assert tokens_of(tmp_path / "out") == expected(*documents)


def test_invalid_utf8_is_replaced_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfgood \xff bad \xe9\n kept \xef\xbf\xbd")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "x\xffy"}\n{"text": "lone \\ud800 pair \\ud83d\\ude00"}\n')
    done = run(tmp_path, "a.txt", "b.jsonl")
    mark = "\ufffd"
    texts = (f"good {mark} bad {mark}\n kept {mark}", f"x{mark}y", f"lone {mark} pair \U0001f600")
    assert tokens_of(tmp_path / "out") == expected(*texts)
    assert done.manifest.replaced == 4


def write_parquet(path: Path, **columns: list[object]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)


BAD: dict[str, tuple[str, bytes | None, str]] = {
    "missing": ("nowhere.txt", None, r"^source .*nowhere\.txt does not exist$"),
    "unknown extension": ("a.docx", b"x", r"^source .*a\.docx has an unknown extension '\.docx'; legal: \.txt"),
    "no extension": ("README", b"x", r"unknown extension ''"),
    "plain json": ("a.json", b"{}", r"unknown extension '\.json'"),
    "empty file": ("a.txt", b"", r"^the corpus would be empty: all 1 source files are empty$"),
    "no text": ("a.jsonl", b'{"text": ""}\n', r"^the corpus would be empty: no text in 1 source files$"),
    "only a mark": ("a.txt", b"\xef\xbb\xbf", r"^the corpus would be empty: no text"),
    "not JSON": ("a.jsonl", b'{"text": "a"}\nhello\n', r"^line 2 of .*a\.jsonl is not valid JSON: Expecting value"),
    "not an object": ("a.jsonl", b"[1]\n", r"^line 1 of .* is not a JSON object but a list$"),
    "deep JSON": ("a.jsonl", b"[" * 100_000, r"^line 1 of .* is not valid JSON"),
    "long number": ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}", r"^line 1 of .* is not valid JSON"),
    "missing field": (
        "a.jsonl",
        b'{"text": "a"}\n{"body": "x", "id": 1}\n',
        r"^line 2 of .* has no field 'text'; --text-field must name one of its fields: body, id$",
    ),
    "no text in field": ("a.jsonl", b'{"text": 3}\n', r"^line 1 of .*: field 'text' is not text but a int$"),
    "not gzip": ("a.txt.gz", b"plain text", r"^source .*a\.txt\.gz is damaged: Not a gzipped file"),
    "truncated gzip": ("a.txt.gz", gzip.compress(os.urandom(5000))[:-900], r"is damaged: Compressed file ended"),
    "damaged gzip": ("a.txt.gz", gzip.compress(b"x" * 999)[:-8] + b"12345678", r"is damaged: CRC check failed"),
    "not zstandard": ("a.jsonl.zst", b"plain text here", r"^source .*a\.jsonl\.zst is damaged: "),
    "truncated zstandard": (
        "a.txt.zst",
        zstandard.compress(os.urandom(5000))[:-900],
        r"is damaged: the file ends in the middle of a Zstandard frame$",
    ),
    "not parquet": ("a.parquet", b"PAR1 no PAR1", r"^source .*a\.parquet is not a readable Parquet file: "),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sources_are_one_sentence(tmp_path: Path, case: str) -> None:
    name, content, sentence = BAD[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence) as caught:
        run(tmp_path, name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_the_line_number_of_bad_json_counts_from_the_start_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(["x" * 50] * 100) + b"bad\n")
    monkeypatch.setattr(sources, "_SMALLEST", 500)
    with pytest.raises(InputError, match=r"^line 101 of .*a\.jsonl"):
        run(tmp_path, "a.jsonl")


def test_bad_parquet_columns_are_one_sentence(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", id=[1, 2], body=["a", "b"])
    with pytest.raises(InputError, match=r"has no column 'text'; --text-field must name one of: id, body$"):
        run(tmp_path, "a.parquet")
    with pytest.raises(InputError, match=r"column 'id' holds int64, not text"):
        run(tmp_path, "a.parquet", text_field="id")


def test_all_bad_sources_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.docx").write_text("x")
    with pytest.raises(InputError) as caught:
        run(tmp_path, "nowhere", "empty", "a.docx")
    assert [problem.rsplit("/", 1)[1].split()[0] for problem in caught.value.problems[:1]] == ["nowhere"]
    assert len(caught.value.problems) == 3
    assert "holds no file of a known kind" in caught.value.problems[1]


@pytest.mark.parametrize("package", ["pyarrow", "zstandard"])
def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    name = {"pyarrow": "a.parquet", "zstandard": "a.txt.zst"}[package]
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "torchlayout.data.zstd", raising=False)
    with pytest.raises(InputError, match=rf"needs the package {package}: pip install 'torchlayout\[text\]'$"):
        run(tmp_path, name)


def test_tokens_are_what_numpy_reads(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    run(tmp_path, "a.txt")
    raw = np.fromfile(tmp_path / "out" / "shard-00000.tokens", "<u2", offset=256)
    assert raw.tolist() == [97, 98, 99, 256]
