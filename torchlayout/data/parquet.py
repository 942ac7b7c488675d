"""Texts out of Parquet files; pyarrow is loaded only when there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchlayout.errors import InputError

_ROWS = 1024  # texts in memory at a time


def row_groups(path: str) -> int:
    """How many row groups the file has."""
    count: int = _opened(path).metadata.num_row_groups
    return count


def texts(path: str, start: int, stop: int, field: str) -> Iterator[tuple[bytes | None, float]]:
    """(UTF-8 or None for null, part of the rows read until here) for each row of row groups [start, stop)."""
    import pyarrow as pa

    file = _opened(path)
    _check_field(file.schema_arrow, field, path)
    total = sum(file.metadata.row_group(group).num_rows for group in range(start, stop))
    seen = 0
    try:
        groups = list(range(start, stop))
        for batch in file.iter_batches(batch_size=_ROWS, row_groups=groups, columns=[field]):
            column = batch.column(0)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            # As bytes: a writer may have stored invalid UTF-8 as string, which only our decoder may judge.
            for raw in column.cast(pa.large_binary()).to_pylist():
                seen += 1
                yield raw, seen / total
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"source {path} is damaged: {_line(error)}") from error


def _opened(path: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InputError(f"source {path} needs the package pyarrow: pip install 'torchlayout[text]'") from error
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"source {path} is not a readable Parquet file: {_line(error)}") from error


def _check_field(schema: Any, field: str, path: str) -> None:
    import pyarrow as pa

    if field not in schema.names:
        raise InputError(
            f"source {path} has no column {field!r}; --text-field must name one of: {', '.join(schema.names)}"
        )
    kind = schema.field(field).type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(inner) or pa.types.is_large_string(inner)):
        raise InputError(f"source {path}: column {field!r} holds {kind}, not text; choose another --text-field")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
