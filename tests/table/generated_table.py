"""Generate the rows of many trajectories of twenty spans each, for tests and benchmarks.

Ids, times and contents follow from the seed. A trajectory has a root, six model calls, six tool calls with an
operation around each, and a score. Some fail, some still run, and some have a second score that came later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SPANS = 20
ROLLOUTS = 8
"""Trajectories of a group."""
START_NS = 1_767_225_600_000_000_000  # 2026-01-01
_TURN_NS = 2_000_000_000
_TOOLS = ("search", "calculator", "python")
_ERRORS = ("TimeoutError", "ZeroDivisionError")
_WORDS = tuple("add two numbers divide by three search source otherwise answer check digit sum write".split())  # noqa: SIM905


@dataclass(frozen=True)
class Shape:
    """What a generated table holds.

    Attributes:
        trajectories: number of trajectories.
        per_step: trajectories of one step.
        seed: the seed of every random choice.
        content_words: words in a span's input and output.
    """

    trajectories: int
    per_step: int = 512
    seed: int = 7
    content_words: int = 40


def batches(shape: Shape, rows_each: int = 500_000) -> Iterator[pa.Table]:
    """Yield the rows in the order in which the trajectories end."""
    each = max(1, rows_each // SPANS)
    for first in range(0, shape.trajectories, each):
        yield _rows(shape, first, min(each, shape.trajectories - first))


def _rows(shape: Shape, first: int, count: int) -> pa.Table:
    random = np.random.default_rng([shape.seed, first])
    return pa.table(_Columns(shape, first, count, random).all(), schema=_schema())


def trace_id(shape: Shape, number: int) -> str:
    """Return the trace id of the trajectory with this number."""
    return f"{(number * 0x9E3779B97F4A7C15 + shape.seed) % (1 << 64):016x}{number:016x}"


class _Columns:
    """The columns of ``count`` trajectories from number ``first`` on."""

    def __init__(self, shape: Shape, first: int, count: int, random: np.random.Generator) -> None:
        self._shape, self._count, self._random = shape, count, random
        self._numbers = np.arange(first, first + count)
        self._trajectory = np.repeat(np.arange(count), SPANS)
        self._place = np.tile(np.arange(SPANS), count)
        place = self._place
        self._is_root = place == SPANS - 1
        self._is_score = place == SPANS - 2
        self._is_call = (place < 18) & (place % 3 == 0)
        self._is_operation = (place < 18) & (place % 3 == 2)
        self._is_tool = (place < 18) & (place % 3 == 1)
        self._ids_of_spans = pa.nulls(len(place), pa.string())

    def all(self) -> dict[str, Any]:
        """Return every column by its name."""
        return {**self._ids(), **self._times(), **self._kinds(), **self._scores(), **self._contents()}

    def _ids(self) -> dict[str, Any]:
        numbers, rows, place = self._numbers, len(self._place), self._place
        step = numbers // self._shape.per_step + 1
        sample = numbers // ROLLOUTS
        traces = pa.array([trace_id(self._shape, int(number)) for number in numbers])
        ids = self._random.integers(1 << 60, 1 << 63, rows)
        spans = self._ids_of_spans = pa.array([f"{number:016x}" for number in ids.tolist()])
        # A tool is inside its operation; every other span is inside the root.
        last = np.arange(rows) - place + SPANS - 1
        parents = np.where(self._is_tool, np.arange(rows) + 1, last)
        return {
            "trace_id": self._each(traces),
            "span_id": spans,
            "parent_span_id": spans.take(pa.array(parents, mask=self._is_root)),
            "run_id": self._same("run-generated"),
            "project": self._same("generated"),
            "experiment": self._same("first"),
            "step": self._each(pa.array(step)),
            "sample_index": self._each(pa.array(sample.astype(str).astype(object), pa.string())),
            "rollout_n": self._each(pa.array(numbers % ROLLOUTS)),
            "step_text": self._nothing(),
            "rollout_text": self._nothing(),
            "validate": pa.array(np.zeros(rows, bool)),
            "group_id": self._each(pa.array([f"group-{number}" for number in sample.tolist()])),
            "group_size": self._on_root(pa.array(np.full(self._count, ROLLOUTS))),
            "agent_name": self._on_root(pa.array(["tool_agent"] * self._count)),
            "policy_version_min": self._on_root(pa.array(step - 1)),
            "policy_version_max": self._on_root(pa.array(step)),
            "is_root": pa.array(self._is_root),
        }

    def _times(self) -> dict[str, Any]:
        count, place = self._count, self._place
        begins = START_NS + self._numbers * 1_000_000_007
        start = begins[self._trajectory] + (place // 3 + 1) * _TURN_NS + place * 1_000_003
        start = np.where(self._is_operation, start - 2_500_000, start)
        start = np.where(self._is_root, begins[self._trajectory], start)
        start = np.where(self._is_score, begins[self._trajectory] + 7 * _TURN_NS, start)
        duration = self._random.integers(1_000_000, _TURN_NS // 2, count * SPANS)
        duration = np.where(self._is_root, 9 * _TURN_NS, np.where(self._is_score, 0, duration))
        return {
            "start_time": pa.array(start // 1000, pa.timestamp("us", "UTC")),
            "start_ns": pa.array(start),
            "duration_ns": pa.array(duration),
        }

    def _kinds(self) -> dict[str, Any]:
        random, rows = self._random, len(self._place)
        tool = np.array(_TOOLS)[random.integers(0, len(_TOOLS), rows)]
        failed = (self._is_tool & (random.random(rows) < 0.02)) | (
            self._is_root & (random.random(rows) < 0.05)
        )
        error = np.array(_ERRORS)[random.integers(0, len(_ERRORS), rows)]
        message = np.char.add(error, ": it did not work")
        conditions = [self._is_root, self._is_call, self._is_tool, self._is_score]
        kind = np.select(conditions, ["AGENT", "LLM", "TOOL", "EVALUATOR"], "CHAIN")
        name = np.select(conditions, ["agent_loop", "generate", "call_tool", "score"], "act")
        tokens = random.integers(50, 4000, (3, rows))
        return {
            "name": _text(name),
            "kind": _text(kind),
            "scope": self._same("otel_rollout"),
            "model": _text(np.full(rows, "policy"), self._is_call),
            "tool_name": _text(tool, self._is_tool),
            "status": _text(np.where(failed, "error", "unset")),
            "error_type": _text(error, failed),
            "error_message": _text(message, failed),
            "tokens_in": pa.array(tokens[0], mask=~self._is_call),
            "tokens_out": pa.array(tokens[1] // 4, mask=~self._is_call),
            "tokens_cached": pa.array(tokens[2] // 8, mask=~self._is_call),
            "finish_reason": _text(np.full(rows, "stop"), self._is_call),
            "service": self._same("training"),
        }

    def _scores(self) -> dict[str, Any]:
        is_score, count = self._is_score, self._count
        rewards = np.round(self._random.random(count), 6)
        times = START_NS + self._numbers * 1_000_000_007 + 7 * _TURN_NS
        values = rewards[self._trajectory]
        repeated = pa.StructArray.from_arrays(
            [pa.array(["reward"] * count), pa.array(rewards), pa.nulls(count, pa.string()), pa.array(times)],
            names=["name", "value", "label", "time_ns"],
        )
        lengths = np.cumsum(np.concatenate([[0], self._is_root.astype(np.int32)]))
        lists = pa.ListArray.from_arrays(
            pa.array(lengths, pa.int32()), repeated, mask=pa.array(~self._is_root)
        )
        return {
            "score_name": _text(np.full(len(values), "reward"), is_score),
            "score_value": pa.array(values, mask=~is_score),
            "score_label": self._nothing(),
            "score_comment": _text(np.full(len(values), "compared with the answer"), is_score),
            "score_origin": self._nothing(),
            "score_by": _text(np.full(len(values), "trace"), is_score),
            "scores": lists,
        }

    def _contents(self) -> dict[str, Any]:
        turn, rows = self._place // 3, len(self._place)
        is_call = self._is_call
        reply = self._texts()
        asked = pc.binary_join_element_wise(
            '{"messages":[{"role":"user","content":"', self._texts(), '"}]}', ""
        )
        answer = pc.binary_join_element_wise('{"content":"', reply, '"}', "")
        has_content = pa.array(~self._is_score)
        counted = {
            "messages_system": np.ones(rows, int),
            "messages_user": np.ones(rows, int),
            "messages_assistant": turn,
            "messages_tool": turn,
            "turn_length": 2 + 2 * turn,
        }
        return {
            **{name: pa.array(values, pa.int64(), mask=~is_call) for name, values in counted.items()},
            "reply": pc.if_else(pa.array(is_call), reply, None),
            "continues": self._nothing(),
            "shared": pa.nulls(rows, pa.int64()),
            **self._breaks(),
            "input": pc.if_else(has_content, asked, None),
            "output": pc.if_else(has_content, answer, None),
            "attributes": self._same('{"input.mime_type":"application/json"}'),
            "events": self._nothing(),
            "links": self._nothing(),
            "resource": self._same('{"service.name":"training"}'),
        }

    def _breaks(self) -> dict[str, Any]:
        """Return broken prefixes: of every 50th trajectory, between its second and its third call."""
        rows = len(self._place)
        is_broken = (self._place == 6) & (self._numbers[self._trajectory] % 50 == 0)
        second = self._ids_of_spans.take(pa.array(np.arange(rows) - 3, mask=~is_broken))
        numbers = {"break_token": 120, "break_removed": 2, "break_added": 1}
        return {
            "break_of": second,
            **{name: pa.array(np.full(rows, value), mask=~is_broken) for name, value in numbers.items()},
            "break_kind": _text(np.full(rows, "retokenized"), is_broken),
            "break_was": _text(np.full(rows, "a|b"), is_broken),
            "break_became": _text(np.full(rows, "ab"), is_broken),
        }

    def _texts(self) -> Any:
        """Return a text for each row, of random words."""
        words, rows = self._shape.content_words, len(self._place)
        some = self._random.integers(0, len(_WORDS), (4096, max(1, words // 4)))
        quarters = pa.array([" ".join(_WORDS[index] for index in line) for line in some.tolist()])
        parts = [quarters.take(pa.array(self._random.integers(0, 4096, rows))) for _ in range(4)]
        return pc.binary_join_element_wise(*parts, " ")

    def _each(self, of_trajectories: Any) -> Any:
        return of_trajectories.take(pa.array(self._trajectory))

    def _on_root(self, of_trajectories: Any) -> Any:
        return of_trajectories.take(pa.array(self._trajectory, mask=~self._is_root))

    def _same(self, text: str) -> Any:
        return pa.array([text]).take(pa.array(np.zeros(len(self._place), int)))

    def _nothing(self) -> Any:
        return pa.nulls(len(self._place), pa.string())


def _text(values: Any, where: Any = None) -> Any:
    unique, index = np.unique(values, return_inverse=True)
    return pa.array(unique.tolist()).take(pa.array(index, mask=None if where is None else ~where))


def _schema() -> pa.Schema:
    text, number, instant = pa.string(), pa.int64(), pa.timestamp("us", "UTC")
    score = pa.struct([("name", text), ("value", pa.float64()), ("label", text), ("time_ns", number)])
    types = {
        **dict.fromkeys(["trace_id", "span_id", "parent_span_id", "run_id", "project", "experiment"], text),
        "step": number,
        "sample_index": text,
        "rollout_n": number,
        "step_text": text,
        "rollout_text": text,
        "validate": pa.bool_(),
        "group_id": text,
        "group_size": number,
        "agent_name": text,
        "policy_version_min": number,
        "policy_version_max": number,
        **dict.fromkeys(["name", "kind", "scope", "model", "tool_name"], text),
        "is_root": pa.bool_(),
        "start_time": instant,
        "start_ns": number,
        "duration_ns": number,
        **dict.fromkeys(["status", "error_type", "error_message"], text),
        **dict.fromkeys(["tokens_in", "tokens_out", "tokens_cached"], number),
        "finish_reason": text,
        "score_name": text,
        "score_value": pa.float64(),
        "score_label": text,
        **dict.fromkeys(["score_comment", "score_origin", "score_by"], text),
        "scores": pa.list_(pa.field("element", score)),
        **dict.fromkeys(["messages_system", "messages_user", "messages_assistant", "messages_tool"], number),
        "reply": text,
        "continues": text,
        "shared": number,
        "turn_length": number,
        "break_of": text,
        **dict.fromkeys(["break_token", "break_removed", "break_added"], number),
        **dict.fromkeys(["break_kind", "break_was", "break_became"], text),
        **dict.fromkeys(["input", "output", "attributes", "events", "links", "resource", "service"], text),
    }
    return pa.schema(list(types.items()))
