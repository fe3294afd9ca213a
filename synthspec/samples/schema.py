"""The tables that flow between the stages, as Arrow schemas, and how they are read and written."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from synthspec.errors import UserError
from synthspec.files import whole

IDS = pa.list_(pa.int32())

# A span covers the tokens [start, end) of `input_ids`; the spans partition the completion.
SPAN = pa.struct([("kind", pa.string()), ("start", pa.int32()), ("end", pa.int32())])
# The evaluation set that chooses the checkpoint; never reported, so that nothing is judged by what chose it.
DEV = "dev"
SPAN_KINDS = ("forced", "structure", "value", "free")

PROMPTS = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("source", pa.string()),  # the name of the source in the spec
        ("dataset", pa.string()),  # hub id, package or file it came from
        ("revision", pa.string()),
        ("row", pa.int64()),
        ("licence", pa.string()),
    ]
)

MATCHES = pa.schema(
    [
        ("id", pa.string()),
        ("prompt_id", pa.string()),
        ("purpose", pa.string()),  # grammar | replay | ood
        ("grammar", pa.string()),  # null unless purpose is grammar
        ("tool", pa.string()),  # the grammar's tool that the prompt is nearest to, or null
        ("set", pa.string()),  # name of the out-of-distribution set; null unless purpose is ood
        ("score", pa.float64()),
    ]
)

# What the target wrote for the slots that ask it.
SLOT_VALUES = pa.schema(
    [
        ("grammar", pa.string()),
        ("slot", pa.string()),
        ("ids", IDS),
        ("text", pa.string()),
        ("state", pa.string()),  # kept, duplicate, truncated, degenerate or error
    ]
)

REQUESTS = pa.schema(
    [
        ("id", pa.string()),
        ("match_id", pa.string()),
        ("prompt_id", pa.string()),
        ("purpose", pa.string()),
        ("grammar", pa.string()),
        ("set", pa.string()),
        ("turn", pa.int32()),  # which of the target's turns in its conversation it asks for, from 0
        ("follows", pa.string()),  # id of the request that asked for the turn before
        ("messages", pa.string()),  # JSON list of {role, content}
        ("slots", pa.string()),  # JSON object: the invented value of each slot
        ("prompt_ids", IDS),  # the conversation as the target reads it, generation prompt included
        ("constraint", pa.string()),  # JSON of grammar.constraint.Constraint, or null
        ("max_new_tokens", pa.int32()),
        ("temperature", pa.float64()),  # 0 takes the likeliest token
        ("top_p", pa.float64()),
        ("top_k", pa.int32()),  # null: all
        ("seed", pa.int64()),
    ]
)

COMPLETIONS = pa.schema(
    [
        ("id", pa.string()),
        ("request_id", pa.string()),
        ("ids", IDS),  # as the target wrote them, the end token included
        ("finish_reason", pa.string()),  # stop | length
        ("logprobs", pa.list_(pa.float32())),  # of each token, where the spec asks for them
        ("target", pa.string()),  # fingerprint of the target that wrote it
    ]
)

TRACES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("ids", IDS),  # what was written, the end token included
        ("accepted", IDS),  # per verify step, how many drafted tokens the target agreed with
        ("places", IDS),  # per verify step, the index in `ids` that its first drafted token stood for
        ("finish_reason", pa.string()),  # stop | length
    ]
)

LINEAGE = pa.struct(
    [
        ("source", pa.string()),
        ("dataset", pa.string()),
        ("revision", pa.string()),
        ("row", pa.int64()),
        ("licence", pa.string()),
        ("prompt_id", pa.string()),
        ("match_id", pa.string()),
        ("request_id", pa.string()),
        ("completion_id", pa.string()),
        ("target", pa.string()),
    ]
)

SAMPLES = pa.schema(
    [
        ("id", pa.string()),
        ("purpose", pa.string()),
        ("grammar", pa.string()),
        ("set", pa.string()),
        ("turn", pa.int32()),  # which of the target's turns in its conversation it is, from 0
        ("input_ids", IDS),  # prompt and completion
        ("prompt_tokens", pa.int32()),
        ("loss_mask", pa.list_(pa.int8())),  # 1 on the tokens of the completion, else 0
        ("spans", pa.list_(SPAN)),
        ("constraint", pa.string()),
        ("held", pa.bool_()),  # decoded under its constraint
        ("max_new_tokens", pa.int32()),
        ("lineage", LINEAGE),
    ]
)


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as one parquet file that appears whole."""
    table = pa.Table.from_pylist(list(rows), schema=schema)
    with whole(path) as part:
        # Small groups, so that a few rows can be read without the others.
        pq.write_table(table, part, compression="zstd", row_group_size=1024)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a parquet file, or of all parquet files of a folder in name order.

    Raises:
        UserError: a file is missing or damaged.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    rows: list[dict[str, Any]] = []
    for file in files:
        with _readable(file):
            rows += pq.read_table(file).to_pylist()
    return rows


class Table:
    """A parquet file of which few rows are in memory at a time.

    Raises:
        UserError: it is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _readable(path):
            self._file = pq.ParquetFile(path)
        groups = (self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups))
        self._starts = [0, *accumulate(group.num_rows for group in groups)]
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, columns: list[str]) -> Iterator[dict[str, Any]]:
        """Some columns of all rows, in order."""
        with _readable(self._path):
            for batch in pq.ParquetFile(self._path).iter_batches(1024, columns=columns):
                yield from batch.to_pylist()

    def slice(self, places: range) -> list[dict[str, Any]]:
        """The rows at some places that follow each other."""
        first = bisect_right(self._starts, places.start) - 1
        last = bisect_left(self._starts, places.stop)
        with _readable(self._path), self._lock:  # one file handle, many threads
            found = self._file.read_row_groups([*range(first, last)])
        rows: list[dict[str, Any]] = found.slice(places.start - self._starts[first], len(places)).to_pylist()
        return rows


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{file} is missing: run again with --fresh and the stage that makes it") from None
    except (pa.ArrowException, OSError):
        raise UserError(f"{file} is damaged: run again with --fresh and the stage that makes it") from None
