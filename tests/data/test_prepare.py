"""Preparing a corpus: the same bytes whatever happens on the way, and other input never mixed in."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.corpora import expected, files_in, json_lines, run, running, tokens_of
from torchlayout.data import sources
from torchlayout.data.corpus import Corpus
from torchlayout.data.prepare import prepare
from torchlayout.errors import InputError

UNIT = 2**19


@pytest.fixture(scope="module", autouse=True)
def _many_units() -> Iterator[None]:
    """Units of half a MiB, so that seven megabytes are a dozen of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_SMALLEST", UNIT)
        yield


def corpus_source(folder: Path, lines: int = 30_000) -> Path:
    """About 7 MB of JSON lines and text."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(500)]
    documents = [" ".join(rng.choices(words, k=40)) for _ in range(lines)]
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_bytes(json_lines(documents))
    (folder / "b.txt").write_text("\n".join(documents[:5000]))
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_source(tmp_path_factory.mktemp("source") / "in")


@pytest.fixture(scope="module")
def finished(source: Path) -> Path:
    prepare([str(source)], source.parent / "finished", workers=1)
    return source.parent / "finished"


def test_processes_change_no_byte(source: Path, finished: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = prepare([str(source)], tmp_path / "out", workers=3, report=lambda at, total: seen.append((at, total)))
    assert len(done.manifest.shards) > 10
    assert files_in(tmp_path / "out") == files_in(finished)
    total = sum(path.stat().st_size for path in source.iterdir())
    assert (seen[0], seen[-1]) == ((0, total), (total, total))
    assert len(seen) > len(done.manifest.shards)
    assert [at for at, _ in seen] == sorted(at for at, _ in seen)


def test_preparing_again_keeps_everything(source: Path, finished: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in finished.glob("*.tokens")}
    done = prepare([str(source)], finished, workers=2)
    assert done.kept == len(before) == len(done.manifest.shards)
    assert before == {path.name: path.stat().st_mtime_ns for path in finished.glob("*.tokens")}


KILLED = """
import multiprocessing, os, signal, sys
from torchlayout.data import sources
from torchlayout.data.prepare import prepare
sources._SMALLEST = int(sys.argv[4])
def report(done, total):
    if done > 0.6 * total:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
prepare([sys.argv[1]], sys.argv[2], workers=int(sys.argv[3]), report=report)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_in_the_middle_it_goes_on_and_ends_with_the_same_bytes(
    source: Path, finished: Path, tmp_path: Path, workers: int
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(source), str(out), str(workers), str(UNIT)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    children = killed.stdout.split()
    assert len(children) == (workers if workers > 1 else 0)
    deadline = time.monotonic() + 20
    while any(running(child) for child in children):
        assert time.monotonic() < deadline, "workers outlive their killed parent"
        time.sleep(0.05)
    assert not (out / "corpus.json").exists()
    with pytest.raises(InputError, match="holds no finished corpus"):
        Corpus.open(out)
    done = prepare([str(source)], out, workers=workers)
    assert 0 < done.kept < len(done.manifest.shards)
    assert files_in(out) == files_in(finished)


def test_a_token_file_broken_off_is_made_again(source: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare([str(source)], out, workers=1)
    (out / "corpus.json").unlink()
    shard = out / "shard-00001.tokens"
    shard.write_bytes(shard.read_bytes()[:-100])
    (out / ".shard-00002.tokens.99.half").write_bytes(b"left over")
    done = prepare([str(source)], out, workers=1)
    assert done.kept == len(done.manifest.shards) - 1
    assert files_in(out) == files_in(finished)


def test_a_worker_that_is_killed_is_a_sentence_and_the_next_run_goes_on(
    source: Path, finished: Path, tmp_path: Path
) -> None:
    before = set(multiprocessing.active_children())

    def kill_one(done: int, total: int) -> None:
        if done:
            next(iter(set(multiprocessing.active_children()) - before)).kill()

    with pytest.raises(InputError, match=r"worker process ended with exit code -9 .* run the same command again"):
        prepare([str(source)], tmp_path / "out", workers=2, report=kill_one)
    assert set(multiprocessing.active_children()) <= before
    prepare([str(source)], tmp_path / "out", workers=1)
    assert files_in(tmp_path / "out") == files_in(finished)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_one_process_ends_all_and_leaves_nothing_half_written(
    source: Path, tmp_path: Path, workers: int
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(json_lines(["fine"] * 3) + b'{"text": "fine"\n')
    with pytest.raises(InputError, match=r"^line 4 of .*bad\.jsonl is not valid JSON: .* at column"):
        prepare([str(source), str(bad)], tmp_path / "out", workers=workers)
    assert not list((tmp_path / "out").glob(".*"))
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_a_full_disk_is_a_sentence_and_the_next_run_goes_on(
    source: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, sync = tmp_path / "out", os.fsync
    prepared = 0

    def full(descriptor: int) -> None:
        nonlocal prepared
        prepared += os.readlink(f"/proc/self/fd/{descriptor}").endswith(".half") and "shard" in os.readlink(
            f"/proc/self/fd/{descriptor}"
        )
        if prepared > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"^the disk that holds .*out is full; free some space and run the same"):
        prepare([str(source)], out, workers=1)
    monkeypatch.undo()
    assert not list(out.glob(".*"))
    done = prepare([str(source)], out, workers=1)
    assert done.kept == 1
    assert files_in(out) == files_in(finished)


@pytest.mark.parametrize(("workers", "at_end"), [(1, False), (2, False), (1, True)])
def test_a_source_that_changes_while_it_is_read_is_noticed(tmp_path: Path, workers: int, at_end: bool) -> None:
    source = corpus_source(tmp_path / "in", lines=2000)

    def touch(done: int, total: int) -> None:
        if not at_end or done == total:
            os.utime(source / "b.txt", ns=(1, 1))

    with pytest.raises(InputError, match=r"b\.txt changed while it was prepared"):
        prepare([str(source)], tmp_path / "out", workers=workers, report=touch)


def other_content(folder: Path) -> None:
    (folder / "a.txt").write_text("other")


def added(folder: Path) -> None:
    (folder / "c.txt").write_text("new")


def gone(folder: Path) -> None:
    (folder / "b.txt").unlink()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_content, r"source in/a\.txt has changed"),
        (added, r"source in/c\.txt was added"),
        (gone, r"source in/b\.txt is gone"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_changed_sources_are_noticed_and_started_over_only_on_request(
    tmp_path: Path, change: object, sentence: str, complete: bool
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("first")
    (folder / "b.txt").write_text("second")
    run(tmp_path, "in")
    if not complete:
        (tmp_path / "out" / "corpus.json").unlink()
    assert callable(change)
    change(folder)
    with pytest.raises(InputError, match=rf"already holds a corpus of other input \({sentence}\)"):
        run(tmp_path, "in")
    run(tmp_path, "in", overwrite=True)
    assert tokens_of(tmp_path / "out") == expected(*(path.read_text() for path in sorted(folder.iterdir())))


def test_other_options_and_foreign_directories_are_not_mixed_in(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "body": "b"}')
    run(tmp_path, "a.jsonl")
    with pytest.raises(InputError, match="its text_field is 'text', now 'body'"):
        run(tmp_path, "a.jsonl", text_field="body")
    (tmp_path / "z.txt").write_text("z")
    with pytest.raises(InputError, match="1 source files, none of which is among those now"):
        run(tmp_path, "z.txt")
    (tmp_path / "out" / "recipe.json").write_text("{")
    with pytest.raises(InputError, match=r"its recipe\.json is damaged"):
        run(tmp_path, "a.jsonl")
    (tmp_path / "out" / "recipe.json").unlink()
    with pytest.raises(InputError, match=r"its recipe\.json is missing"):
        run(tmp_path, "a.jsonl")


def test_a_run_that_finished_nothing_does_not_hold_the_directory(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "b"}')
    with pytest.raises(InputError, match="has no field 'text'"):
        run(tmp_path, "a.jsonl")
    run(tmp_path, "a.jsonl", text_field="body")
    assert tokens_of(tmp_path / "out") == expected("b")


def test_a_corpus_inside_its_own_source_directory_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    for _ in range(2):
        prepare([str(tmp_path / "in")], tmp_path / "in" / "out", workers=1)
    assert tokens_of(tmp_path / "in" / "out") == expected("a")


def test_two_preparations_of_one_directory_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")

    def again(done: int, total: int) -> None:
        with pytest.raises(InputError, match="is being prepared by another process"):
            run(tmp_path, "a.txt")

    run(tmp_path, "a.txt", report=again)


def test_the_python_library_is_its_sorted_text_without_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib"
    for name in ("b.py", "a.py", "pkg/c.py", "site-packages/no.py", "pkg/__pycache__/no.py", "data.txt"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(name)
    (library / "dangling.py").symlink_to(library / "nowhere.py")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(library))
    done = prepare([], tmp_path / "out", library=True, workers=1)
    assert tokens_of(tmp_path / "out") == expected("a.py", "b.py", "pkg/c.py")
    assert done.unreadable == 1


def test_this_python_has_a_library_of_megabytes(tmp_path: Path) -> None:
    done = prepare([], tmp_path / "out", library=True, workers=1)
    assert done.manifest.tokens > 5e6
    assert done.manifest.documents > 300


def test_out_that_is_a_file_and_no_source_at_all_are_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(InputError, match=r"^--out .*out cannot be made a directory: File exists$"):
        run(tmp_path, "a.txt")
    with pytest.raises(InputError, match=r"^nothing to prepare: give a SOURCE"):
        run(tmp_path)
    with pytest.raises(InputError, match=r"^--workers 0 must be at least 1$"):
        run(tmp_path, "a.txt", workers=0)
