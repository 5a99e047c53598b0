"""The views of an inference engine's requests, and what the engine's spans must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_rollout.look.analysis.run_choice import rows_of as run_rows
from otel_rollout.look.analysis.run_choice import run_of
from otel_rollout.otlp import engine_phases
from otel_rollout.otlp.json_line import spans_of
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine
from otel_rollout.table.rows import batch_of, rows_of
from otel_rollout.table.store import Store
from otel_rollout.table.views import sql_of
from otel_rollout.turns.line_rewriter import LineRewriter
from tests.engine_spans import Call, trajectory
from tests.table.tables import asked, engine_phase, root, row, written

PLAIN = ("turns", "tool_calls", "tokens_in", "tokens_out", "state", "reward")


def table_of(path: Path, *lines: bytes) -> Store:
    """Write a table with the spans of lines, as the forwarder rewrites them."""
    rewriter = LineRewriter(path)
    spans = [span for line in lines for span in spans_of(rewriter.rewrite(line).encoded)]
    store = Store(location_of(str(path / "table")))
    store.append([batch_of(rows_of(spans))], "tests", 0)
    return store


def test_trajectory_has_the_times_of_its_requests(tmp_path: Path) -> None:
    """Seconds are summed over the requests; a call without a request is counted."""
    calls = [Call(), Call(queue=0.5, requests=2, kind="CHAIN"), Call(requests=0)]
    store = table_of(tmp_path, *trajectory(calls), *trajectory([Call(requests=0)], trace=2, rollout=1))
    (found,) = asked(store, "SELECT * FROM engine_time")
    assert (found["rollout_n"], found["requests"], found["calls_without_request"]) == (0, 3, 1)
    times = [found[f"{name}_seconds"] for name in ("queue", "prefill", "decode", "first_token")]
    assert times == pytest.approx([1.12, 0.24, 3.6, (0.2 + 2 * 0.58) / 3])
    requests = asked(
        store, "SELECT queue_seconds, first_token_seconds FROM engine_requests ORDER BY start_ns"
    )
    assert [tuple(each.values()) for each in requests] == [(0.12, 0.2), (0.5, 0.58), (0.5, 0.58)]


def test_step_has_quantiles_of_requests(tmp_path: Path) -> None:
    """The means are of a trajectory, the quantiles of a request."""
    lines = [
        line
        for number in range(10)
        for line in trajectory([Call(queue=0.1 * number)] * 2, trace=number + 1, rollout=number)
    ]
    lines += trajectory([Call(requests=0)] * 2, trace=11, rollout=10)  # by an engine that does not trace
    (found,) = asked(table_of(tmp_path, *lines), "SELECT * FROM engine_steps")
    assert (found["trajectories"], found["requests"], found["calls_without_request"]) == (10, 20, 2)
    assert found["queue_seconds"] == pytest.approx(0.9)
    assert (found["queue_p50"], found["queue_p95"]) == pytest.approx((0.45, 0.9))
    assert found["first_token_p50"] == pytest.approx(0.53)


@pytest.mark.parametrize(
    "names", [Call().tokens, ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")]
)
def test_requests_change_no_count_of_a_trajectory(tmp_path: Path, names: Any) -> None:
    """Turns, tool calls and tokens are those without the engine's spans, whatever names its counts have."""
    without = table_of(tmp_path / "a", *trajectory([Call(requests=0)] * 2))
    with_requests = table_of(tmp_path / "b", *trajectory([Call(tokens=names)] * 2))
    sql = f"SELECT {', '.join(PLAIN)} FROM trajectories"
    assert asked(with_requests, sql) == asked(without, sql)
    assert asked(with_requests, sql)[0]["tokens_out"] == 92
    turns = "SELECT name, tokens_in, tokens_out, reply FROM turns ORDER BY start_ns"
    assert asked(with_requests, turns) == asked(without, turns)
    phases = "SELECT generate_seconds, tool_seconds, waiting_seconds FROM phases"
    assert asked(with_requests, phases) == asked(without, phases)


def test_request_inside_an_inner_call_is_of_the_outer_call(tmp_path: Path) -> None:
    """A client inside an operation makes two spans of one call; a span of HTTP may be between them."""
    store = written(
        tmp_path / "table",
        [
            root("1"), row("1", "b", "a1", kind="LLM"), row("1", "c", "b", kind="LLM"),
            row("1", "d", "c", kind=None, name="POST"), row("1", "e", "d", kind=None, name="llm_request"),
            row("1", "f", "a1", kind="LLM", name="llm_request"), engine_phase("1", "9", "f", "queue"),
            row("1", "8", "b", name="llm_request", attributes='{"size":"gen_ai.latency."}'),
        ],
    )  # fmt: skip
    (found,) = asked(store, "SELECT requests, calls_without_request, queue_seconds FROM engine_time")
    assert tuple(found.values()) == (1, 1, None)


def test_phases_of_the_engines_own_are_not_counted(tmp_path: Path) -> None:
    """An engine may trace its phases itself; ours have a mark, because MLflow keeps no scope."""
    rows = [root("1"), row("1", "b", "a1", kind="LLM"), row("1", "c", "b", kind=None, name="llm_request")]
    for span, scope in (("d", "vllm.tracing.otel"), ("e", None)):
        rows.append(row("1", span, "c", kind=None, name="queue", scope=scope))
        rows.append(row("1", f"{span}1", "c", kind=None, name="decode", scope=scope))
    rows += [engine_phase("1", "f", "c", "queue"), engine_phase("1", "f1", "c", "decode")]
    store = written(tmp_path / "table", rows)
    (found,) = asked(store, "SELECT queue_seconds, decode_seconds FROM engine_time")
    assert tuple(found.values()) == (1.0, 1.0)


def test_longest_time_of_a_request_is_that_of_the_view() -> None:
    """The view is SQL, and cannot take the constant from the code."""
    assert f"BETWEEN 0 AND {engine_phases.MAX_SECONDS} " in sql_of("engine_requests")


def test_spans_that_are_their_own_ancestors_end_the_search(tmp_path: Path) -> None:
    """Damaged parents make no query run forever."""
    rows = [root("1"), row("1", "b", "c", kind=None), row("1", "c", "b", kind=None)]
    rows += [row("1", "d", "b", kind=None, name="llm_request")]
    (found,) = asked(written(tmp_path / "table", rows), "SELECT requests FROM engine_time")
    assert found["requests"] == 1


def test_spans_that_begin_in_one_nanosecond_are_not_compared(tmp_path: Path) -> None:
    """An engine's first phase begins with its request; only rows of one span are repeated."""
    begin = {"start_ns": 1_767_225_600_000_000_007}
    rows = [
        root("1"),
        row("1", "b", "a1", **begin),
        row("1", "c", "a1", **begin),
        row("2", "b", "a2", **begin),
    ]
    store = written(tmp_path / "table", rows)
    assert asked(store, "SELECT start_ns FROM repeated_starts") == []
    assert len(asked(store, "SELECT span_id FROM spans")) == 4
    again = written(tmp_path / "again", rows, [rows[1]])
    assert len(asked(again, "SELECT span_id FROM spans")) == 4


def test_requests_are_not_computed_where_there_are_none(tmp_path: Path) -> None:
    """A report of a run without an engine's spans costs what it did."""
    for name, calls, is_read in (("a", [Call(requests=0)], False), ("b", [Call()], True)):
        engine = Engine(table_of(tmp_path / name, *trajectory(calls)).open())
        plan = str(engine.run("EXPLAIN SELECT * FROM engine_time").column("plan").to_pylist())
        assert ("llm_request" in plan) == is_read
        rows = run_rows(engine, run_of(engine))
        (found,) = engine.run(f"SELECT requests FROM {rows}").column("requests").to_pylist()
        assert found == (1 if is_read else None)
