"""Record the scores of a whole batch as one line, and turn the line into a line for each score.

The trainer's process writes the one line. A reader of the spool makes a line of each score: an evaluation
span, as :func:`otel_rollout.score` records it. The ids of these spans are hashes of the batch's ids. So all
readers make equal lines, at any time, and no file has to hold the lines.
"""

from __future__ import annotations

import base64
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.base.training_scores import TRAINING_TOKENS
from otel_rollout.otlp import evaluations, score_columns, writer
from otel_rollout.otlp.json_line import HEAD_WITHOUT_RESOURCE, spans_of_json
from otel_rollout.otlp.scan import SPANS, StepKey, step_of
from otel_rollout.otlp.score_columns import PackedColumn, Unpacked
from otel_rollout.otlp.span import UNREADABLE

SPAN_NAME: Final = "score batch"
ROW_NS: Final = 1000
"""Nanoseconds between the rows of one trajectory; backends keep times in microseconds."""
_HEAD: Final = writer.head_of(semconv.SCORE_BATCH_DATA) + b'{"bytesValue":"'
_TAIL: Final = b'"}}'
_TOKENS: Final = b'"key":"%b' % semconv.TOKENS_PREFIX.encode()
_INTERNAL: Final = 1
_LOCAL_ROOT: Final = 0x03 | writer.HAS_IS_REMOTE
_BELOW_REMOTE: Final = _LOCAL_ROOT | writer.IS_REMOTE
_MAX_SHOWN_BYTES: Final = 16 << 10
"""Maximum bytes of a score that its span also has as output value."""
_NAMING: Final = {score_columns.TRACE, *score_columns.IDENTITY}
_KIND: Final = writer.attribute(semconv.SPAN_KIND, semconv.KIND_EVALUATOR)
_OUTPUT_TYPE: Final = writer.attribute(semconv.OUTPUT_MIME_TYPE, semconv.JSON_MIME_TYPE)
_UNREADABLE: Final = (*UNREADABLE, struct.error)


def attributes_of(columns: Sequence[PackedColumn], rows: int) -> tuple[bytes, bytes]:
    """Encode a batch as attributes of a span.

    Returns:
        The encoded attributes, the last of which has an empty value; and this value, the data in base64.
    """
    attributes, data = score_columns.pack(columns, rows)
    described = b",".join(writer.attribute(key, value) for key, value in attributes.items())
    return b"%b,%b%b" % (described, _HEAD, _TAIL), base64.b64encode(data)


def around_data(line: bytes, data: bytes = b"") -> tuple[bytes, bytes]:
    """Split the line of a batch at the place where its data is to be inserted.

    Args:
        line: the line without its resource head.
        data: the data, if somebody else has changed the line, and it has to be read with them.

    Raises:
        ValueError: the line records no batch, has its data already, or cannot be read with ``data``.
    """
    at = line.index(_HEAD) + len(_HEAD)
    if not line.startswith(_TAIL, at):
        raise ValueError("the line has bytes where a batch's data belongs")
    if data and batch_in(b"".join((HEAD_WITHOUT_RESOURCE, line[:at], data, line[at:]))) is None:
        raise ValueError("the batch cannot be read with the changed texts")
    return line[:at], line[at:]


def is_batch(line: bytes) -> bool:
    """Return whether a line records a batch, readable or not."""
    return _HEAD in line


def batch_in(line: bytes) -> ScoreBatch | None:
    """Return the batch of a line; None for another line, and for a batch that is damaged or empty."""
    if not is_batch(line):
        return None
    try:
        batch = ScoreBatch(line)
    except _UNREADABLE:
        return None
    return batch if 0 < len(batch) <= len(line) else None


def expanded(line: bytes) -> Iterator[bytes]:
    """Yield the lines of a batch's scores; another line, or a damaged batch, as it is."""
    batch = batch_in(line)
    if batch is None:
        yield line
    else:
        yield from batch.lines()


def spans_in(line: bytes) -> int:
    """Return the number of spans in a line; for a batch, the number of its scores."""
    batch = batch_in(line)
    return 1 if batch is None else len(batch)


def steps_in(line: bytes, start: int = 0) -> Counter[StepKey]:
    """Count the spans in a line by step, from the span number ``start`` on; see :func:`spans_in`."""
    batch = batch_in(line)
    return Counter([step_of(line)] if batch is None else map(step_of, batch.lines(start)))


def without_tokens(line: bytes) -> bytes:
    """Return the line of a score without its values per token."""
    if _TOKENS not in line:
        return line
    data = orjson.loads(line)
    for span in spans_of_json(data):
        tokens = {name for name in span.attributes if name.startswith(semconv.TOKENS_PREFIX)}
        span.replace(tokens, {})
    return orjson.dumps(data) + b"\n"


class _Row(NamedTuple):
    """What the scores of one trajectory share in their lines."""

    head: bytes
    identity: bytes
    comments: Mapping[str, str]
    tokens: bytes


class ScoreBatch:
    """The scores of a batch, read from its line.

    Args:
        line: a line that records a batch.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error: the batch is
            damaged.
    """

    def __init__(self, line: bytes) -> None:
        (span,) = spans_of_json(orjson.loads(line))
        self._begin = line[: line.index(SPANS) + len(SPANS)]
        self._seed = bytes.fromhex(span.trace_id + span.span_id)
        attributes = span.attributes
        data = attributes.pop(semconv.SCORE_BATCH_DATA)
        self._rows, columns = score_columns.unpack(attributes, data)
        self._scores = [column for column in columns if column.field == score_columns.SCORE]
        self._others = [column for column in columns if column.field != score_columns.SCORE]
        self._times = list(_times(self._others, self._rows, span.start_ns))
        self._names = [(writer.json_string(f"score {column.name}"), column.name) for column in self._scores]
        self._known = [
            writer.attribute(key, attributes[key])
            for key in (semconv.PROJECT_NAME, semconv.EXPERIMENT_NAME)
            if key in attributes
        ]

    def __len__(self) -> int:
        """Return the number of scores."""
        return sum(self._rows - column.present.count(0) for column in self._scores)

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """Yield the lines of the scores, trajectory by trajectory, from the score number ``start`` on."""
        last, row = -1, _Row(b"", b"", {}, b"")
        for number, column in islice(self._cells(), start, None):
            if number != last:
                last, row = number, self._row(number)
            yield self._line(number, column, row)

    def _cells(self) -> Iterator[tuple[int, int]]:
        """Yield row and column of each score."""
        present = [column.present for column in self._scores]
        for row in range(self._rows):
            for column, rows in enumerate(present):
                if rows[row]:
                    yield row, column

    def _row(self, number: int) -> _Row:
        identity: dict[str, Any] = {}
        comments: dict[str, str] = {}
        tokens = b""
        ids = None
        for field, name, values, present in self._others:
            if not present[number]:
                continue
            value = values[number]
            if field == score_columns.TRACE:
                ids = value
            elif field == score_columns.COMMENT:
                comments[name] = value
            elif field == score_columns.TOKENS:
                text = orjson.dumps(value).decode()
                tokens += b"," + writer.attribute(semconv.TOKENS_PREFIX + name, text)
            else:
                identity[semconv.EXTRA_PREFIX + field] = value
        if ids is None:
            trace_id = blake2b(self._seed + number.to_bytes(8, "little"), digest_size=16).hexdigest().encode()
            head = writer.head_below(trace_id, b"", _LOCAL_ROOT)
        else:
            head = writer.head_below(ids[:16].hex().encode(), ids[16:].hex().encode(), _BELOW_REMOTE)
        order = (key for key in semconv.IDENTITY if key in identity)
        known = [*self._known, *(writer.attribute(key, identity[key]) for key in order), _KIND]
        return _Row(head, b",".join(known), comments, tokens)

    def _line(self, number: int, column: int, row: _Row) -> bytes:
        span_name, name = self._names[column]
        value = _score(self._scores[column].values[number])
        key = self._seed + number.to_bytes(8, "little") + name.encode("utf-8", "replace")
        is_below = row.head.find(b'{"parentSpanId":""') < 0
        origin = semconv.ORIGIN_OUTSIDE if is_below else semconv.ORIGIN_IDENTITY
        score = evaluations.attributes_of(name, value, row.comments.get(name), origin)
        attributes = [row.identity, *(writer.attribute(*item) for item in score.items())]
        shown = orjson.dumps(value)
        if len(shown) <= _MAX_SHOWN_BYTES:
            attributes += [_OUTPUT_TYPE, writer.attribute(semconv.OUTPUT_VALUE, shown.decode())]
        tokens = row.tokens if name == TRAINING_TOKENS else b""
        return b"".join(
            writer.line(
                self._begin,
                row.head,
                blake2b(key, digest_size=8).hexdigest().encode(),
                span_name,
                _INTERNAL,
                self._times[number],
                self._times[number],
                (b"[", b",".join(attributes), tokens, b"]"),
            )
        )


def _times(columns: Sequence[Unpacked], rows: int, time_ns: int) -> Iterator[int]:
    """Yield the time of each row; rows of one trajectory get rising times, so the last one counts."""
    named = [column.values for column in columns if column.field in _NAMING]
    before: Counter[tuple[Any, ...]] = Counter()
    for row in zip(*named, strict=True) if named else [()] * rows:
        yield time_ns + before[row] * ROW_NS
        before[row] += 1


def _score(value: Any) -> evaluations.Value:
    """Return a value as a score has it: a bool, a text, or a float that is finite."""
    if isinstance(value, (bool, str)):
        return value
    number = float(value)
    return number if number - number == 0 else str(number)
