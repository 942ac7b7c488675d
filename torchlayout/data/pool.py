"""Tasks in parallel processes that die with their parent and never leave it waiting for a dead one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

from torchlayout.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")
Advance = Callable[[int], None]
Work = Callable[[Task, Advance], Result]


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(
    tasks: Iterable[Task], start: Callable[[], Work[Task, Result]], workers: int, advance: Advance
) -> Generator[Result, None, None]:
    """The results of `start()(task, advance)` for all tasks, as they come, from `workers` processes.

    `start` runs once in each process; it and the tasks must pickle. One worker is this process itself.
    Raises what a task raised (InputError as such), or InputError when a process died; the others are ended first.
    """
    waiting = deque(tasks)
    workers = min(workers, len(waiting))
    if workers <= 1:
        work = start()
        for task in waiting:
            yield work(task, advance)
        return
    busy: dict[Connection, BaseProcess] = {}
    try:
        for _ in range(workers):
            connection, process = _spawned(start)
            busy[connection] = process
            connection.send(waiting.popleft())
        while busy:
            for ready in wait(list(busy)):
                connection = cast(Connection, ready)
                kind, value = _received(connection, busy[connection])
                if kind == "advance":
                    advance(value)
                    continue
                yield value
                if waiting:
                    with suppress(BrokenPipeError):  # a worker that just died is noticed when it is read
                        connection.send(waiting.popleft())
                else:
                    connection.close()
                    busy.pop(connection).join()
    finally:
        for left in busy.values():
            left.terminate()
        for left in busy.values():
            left.join()


def _spawned(start: Callable[[], Work[Any, Any]]) -> tuple[Connection, BaseProcess]:
    """A worker process and the connection to it; not forked: parent and tokenizers have threads."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, start), daemon=True)
    # The parent alone hears Ctrl-C, from the first moment of its workers on, and ends them. The tracker must run by
    # then: starting it would unblock the signal again.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    return ours, process


def _received(connection: Connection, process: BaseProcess) -> tuple[str, Any]:
    try:
        kind, value = connection.recv()
    except (EOFError, ConnectionResetError) as error:
        process.join()
        raise InputError(
            f"a worker process ended with exit code {process.exitcode} (killed, or out of memory?); run the same "
            "command again, with fewer --workers if memory is short: finished token files are kept"
        ) from error
    if kind == "refused":
        raise InputError(*value)
    if kind == "failed":
        raise RuntimeError(f"a worker process failed:\n{value}")
    return kind, value


def _serve(connection: Connection, start: Callable[[], Work[Any, Any]]) -> None:
    """Work until the parent closes the connection or dies: either way the pipe breaks."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    try:
        work = start()
        while True:
            task = connection.recv()
            connection.send(("done", work(task, lambda size: connection.send(("advance", size)))))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except InputError as error:
        connection.send(("refused", error.problems))
    except Exception:
        connection.send(("failed", traceback.format_exc()))
