"""Record scores of a whole batch of trajectories at once."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.errors import Unusable, fault, warn_once
from otel_rollout.base.given import items, reading
from otel_rollout.base.redaction_names import MARK
from otel_rollout.base.training_scores import TRAINING_TOKENS
from otel_rollout.otlp import evaluations, score_columns, writer
from otel_rollout.otlp import score_batch as batches
from otel_rollout.otlp.score_columns import PackedColumn
from otel_rollout.record import runtime
from otel_rollout.record.capture import score_columns as captured
from otel_rollout.record.capture.score_rows import number_of, rows_of
from otel_rollout.record.capture.scores import as_score, is_score_name
from otel_rollout.record.recording.identity import Identity
from otel_rollout.record.recording.span import LOCAL_PARENT
from otel_rollout.redaction import redaction

_LINE_BYTES: Final = 1 << 20
"""Bytes of data after which a batch continues in another line, so that lines fit into the journal."""
_KIND: Final = writer.attribute(semconv.SPAN_KIND, semconv.KIND_EVALUATOR)
_NAME: Final = writer.json_string(batches.SPAN_NAME)
_INTERNAL: Final = 1


def score_batch(
    scores: Mapping[str, Any],
    *,
    trajectory: Sequence[str | None] | None = None,
    step: Any = None,
    sample_index: Any = None,
    rollout_n: Any = None,
    validate: Any = False,
    comments: Mapping[str, Sequence[str | None]] | None = None,
    token_values: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Score the trajectories of a batch: a whole training step with one call. Never raises.

    Each argument is a list, or a numpy or torch array of shape (batch,), with one entry per trajectory of the
    batch; or it is one value for all of them. Arrays are copied as they are, and the forwarder makes the
    scores. Scores, comments and values per token of another length than the batch are left out, with a
    warning. A batch has at most 1,048,576 trajectories.

    Args:
        scores: the score's name → its values, as :func:`otel_rollout.score` takes them; None records nothing
            for that trajectory.
        trajectory: :attr:`Trajectory.id` of each trajectory; None for one without.
        step: steps of the trajectories.
        sample_index: dataset rows of the trajectories.
        rollout_n: the trajectories' indices in their groups.
        validate: whether the steps are validations.
        comments: the score's name → the reasons, in words.
        token_values: name → for each trajectory one array of shape (tokens,), or None; recorded only if
            ``OTEL_ROLLOUT_TRAINING_TOKENS`` asks for it.
    """
    try:
        active = runtime.current()
        if active is None:
            return
        named = {"step": step, "sample_index": sample_index, "rollout_n": rollout_n, "validate": validate}
        scores, comments = _named("scores", scores), _mapping("comments", comments)
        tokens = _named("token_values", token_values) if active.settings.training_tokens else {}
        number = number_of(trajectory, named, _size_of(scores))
        values = _score_columns(active, scores, number)
        values += _comment_columns(comments, {column.name for column in values}, number)
        token_columns = _token_columns(tokens, number)
        if not number or not (values or token_columns):  # then do not read the trajectories
            return
        naming, excluded = rows_of(trajectory, named, number, active.project, active.sampling)
        for columns in filter(None, (values, token_columns)):
            _record(active, number, [*naming, *columns], excluded)
    except Unusable as error:
        warn_once(f"score_batch() recorded nothing: {error}", f"score batch {error.subject}")
    except Exception as error:  # noqa: BLE001
        fault("recording the scores of a batch", error)


def _mapping(name: str, given: Any) -> dict[str, Any]:
    """Return an argument that maps names to values as a dict; warn of any other, and return an empty one."""
    if given is None:
        return {}
    with reading("it", f"score_batch() ignores {name}="):
        if isinstance(given, Mapping):
            return dict(items(given))
        raise Unusable(f"is a {type(given).__name__}; give a dict of names and values")
    return {}


def _named(name: str, given: Any) -> dict[str, Any]:
    """Return an argument that maps names of scores to values, without names that a score may not have."""
    known = _mapping(name, given)
    loss = "left out a score" if name == "scores" else "left out values per token"
    return {key: values for key, values in known.items() if is_score_name(key, "score_batch", loss)}


def _size_of(scores: Mapping[str, Any]) -> int:
    """Return the length of the first score with a value for each trajectory; 1 if there is none."""
    for name, values in scores.items():
        with _left_out(f"score {name!r}"):
            if captured.is_column(values):
                return captured.length_of(values)
    return 1


def _left_out(what: str) -> reading:
    """Return a block whose exceptions become a warning that a column is left out."""
    return reading("it", f"score_batch() recorded no {what}")


def _score_columns(active: runtime.Runtime, scores: Mapping[str, Any], rows: int) -> list[PackedColumn]:
    columns: list[PackedColumn] = []
    for name, values in scores.items():
        with _left_out(f"score {name!r}"):
            values = captured.spread(values, rows)
            column = captured.numbers(score_columns.SCORE, name, values, rows)
            columns += _listed_scores(active, name, values, rows) if column is None else [column]
    return columns


def _listed_scores(active: runtime.Runtime, name: str, values: Any, rows: int) -> list[PackedColumn]:
    """Return the columns of a score whose values are no array of numbers."""
    known = captured.entries(values, rows)
    if not captured.PLAIN.issuperset(map(type, known)):
        known, bad = captured.converted(known, as_score)
        if bad is not None:
            warn_once(
                f"score_batch() recorded not every {name!r}: a value is a {type(bad).__name__}, which is no "
                "score; give a number, True or False, or a text",
                f"score batch value {type(bad)}",
            )
    if redaction.hides(active.settings.redact, name):
        known = [MARK if evaluations.is_label(value) else value for value in known]
    return captured.by_type(score_columns.SCORE, name, known)


def _comment_columns(comments: Mapping[str, Any], names: set[str], rows: int) -> list[PackedColumn]:
    columns: list[PackedColumn] = []
    for name, texts in comments.items():
        if name not in names:
            continue
        with _left_out(f"comments of {name!r}"):
            found, _ = captured.converted(captured.entries(captured.spread(texts, rows), rows), str)
            columns += captured.by_type(score_columns.COMMENT, name, found)
    return columns


def _token_column(name: str, arrays: Any, rows: int) -> PackedColumn | None:
    what = f"values per token {name!r}"
    with _left_out(what):
        if not captured.is_column(arrays):
            raise Unusable("has no entry for each trajectory")
        column, bad = captured.tokens(name, captured.entries(captured.spread(arrays, rows), rows))
        if bad is not None:
            warn_once(
                f"score_batch() recorded not all {what}: those of a trajectory are a "
                f"{type(bad).__name__} that holds no numbers, or too many",
                f"score batch {what}",
            )
        return column
    return None


def _token_columns(token_values: Mapping[str, Any], rows: int) -> list[PackedColumn]:
    """Return the columns of values per token, and a score's column with the number of these values."""
    columns: list[PackedColumn] = []
    lengths = [-1] * rows
    for name, arrays in token_values.items():
        column = _token_column(name, arrays, rows)
        if column is None:
            continue
        columns.append(column)
        for row, (start, end) in enumerate(pairwise((0, *column.ends))):
            if column.present[row]:
                lengths[row] = max(lengths[row], end - start)
    if columns:
        packed = struct.pack(f"<{rows}q", *lengths)
        present = bytes(length >= 0 for length in lengths)
        columns.append(PackedColumn(score_columns.SCORE, TRAINING_TOKENS, "q", packed, present))
    return columns


# --- The line -----------------------------------------------------------------------------------------------


def _record(
    active: runtime.Runtime, number: int, columns: Sequence[PackedColumn], excluded: Mapping[str, bytes]
) -> None:
    """Record the scores of a batch, and count those of trajectories that are not recorded."""
    for reason, rows in excluded.items():
        if any(rows):
            active.writer.counters.skip(
                reason, _number_of([each.chosen(rows) for each in columns], sum(rows))
            )
    if any(map(any, excluded.values())):
        kept = bytes(not any(reasons) for reasons in zip(*excluded.values(), strict=True))
        columns, number = [column.chosen(kept) for column in columns], sum(kept)
    identity, now = Identity(active.project), time.time_ns()
    for start, end in _parts(columns, number):
        part = columns if end - start == number else [column.part(start, end) for column in columns]
        if scores := _number_of(part, end - start):
            _write(active, identity, part, end - start, scores, now + start * batches.ROW_NS)


def _number_of(columns: Sequence[PackedColumn], rows: int) -> int:
    """Return the number of scores in columns of ``rows`` rows."""
    return sum(rows - column.present.count(0) for column in columns if column.field == score_columns.SCORE)


def _parts(columns: Sequence[PackedColumn], rows: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows whose data fit into a line; a row with more data is alone."""
    width = sum(column.width for column in columns if column.field != score_columns.TOKENS)
    tokens = [column for column in columns if column.field == score_columns.TOKENS]
    if not tokens:
        step = max(1, _LINE_BYTES // max(1, width))
        yield from ((start, min(start + step, rows)) for start in range(0, rows, step))
        return
    start, size = 0, 0
    for row in range(rows):
        own = width + sum(column.place_of(row + 1) - column.place_of(row) for column in tokens)
        if row > start and size + own > _LINE_BYTES:
            yield start, row
            start, size = row, 0
        size += own
    if rows > start:
        yield start, rows


def _write(
    active: runtime.Runtime,
    identity: Identity,
    columns: Sequence[PackedColumn],
    rows: int,
    scores: int,
    time_ns: int,
) -> None:
    # Not through the application's own provider: its sampler decides about the application's traces.
    tracer = active.tracer
    attributes, data = batches.attributes_of(columns, rows)
    pieces = writer.line(
        tracer.scope,
        writer.head_below(b"%032x" % (tracer.random_bits(128) or 1), b"", LOCAL_PARENT),
        b"%016x" % (tracer.random_bits(64) or 1),
        _NAME,
        _INTERNAL,
        time_ns,
        time_ns,
        (b"[", b",".join((identity.encode(), _KIND, attributes)), b"]"),
    )
    active.writer.write_batch(b"".join(pieces), data, identity, scores)
