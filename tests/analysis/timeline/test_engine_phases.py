"""Model calls divided into what the engine did: waiting in its queue is told from computing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.look.analysis.timeline.page import as_json, page_of_timeline
from otel_rollout.look.analysis.timeline.phases import (
    ENGINE_PHASES,
    EnginePart,
    Phase,
    Segment,
    divided,
    filled,
    parts_of,
)
from otel_rollout.look.analysis.timeline.text import straggling
from otel_rollout.look.analysis.timeline.timeline import Timeline
from tests.analysis.timeline.steps import SECOND, at, call, timed, trajectory
from tests.analysis.timeline.test_perfetto import check, trace_of
from tests.cli.test_table import run
from tests.table.tables import engine_phase, row

_LENGTH = 60
_PHASES: tuple[Phase, ...] = ("generate", "tool", "reward")
spans = st.tuples(st.integers(0, _LENGTH), st.integers(0, 20))


def engine(number: int, of: str, start: float, *lengths: float) -> list[dict[str, Any]]:
    """Return the rows of a request below call ``of``, whose phases have these seconds."""
    trace, request = f"{number:x}", f"{of}1"
    identity = {"step": 12, "sample_index": str(number // 8), "rollout_n": number % 8}
    whole = {"start_ns": at(start), "duration_ns": round(sum(lengths) * SECOND)}
    rows = [row(trace, request, of, name="llm_request", kind=None, **identity, **whole)]
    for place, (name, length) in enumerate(zip(ENGINE_PHASES, lengths, strict=False)):
        times = {"start_ns": at(start), "duration_ns": round(length * SECOND)}
        rows.append(engine_phase(trace, f"{of}2{place}", request, name, **identity, **times))
        # It may trace its phases itself.
        rows.append(row(trace, f"{of}3{place}", request, name=name, kind=None, **identity, **times))
        start += length
    return rows


def step(path: Path) -> Timeline:
    """A step whose straggler waits in the queue, and which has a call without a request."""
    others = [
        each
        for number in range(7)
        for each in trajectory(number, 0, 10, call("LLM", 1, 9)) + engine(number, f"{number:x}c0", 1, 1, 1, 5)
    ]
    slow = trajectory(7, 0, 40, call("LLM", 1, 31), call("TOOL", 31, 35, "web"), call("LLM", 35, 39))
    return timed(path, *others, *slow, *engine(7, "7c0", 2, 20, 2, 6))


def test_time_of_model_calls_is_divided(tmp_path: Path) -> None:
    """The engine phases and the time outside add up to the phase; a sentence says that a straggler waited."""
    found = step(tmp_path)
    (generate,) = [time for time in found.phases if time.phase == "generate"]
    seconds = {time.name: time.seconds for time in found.engine}
    assert seconds == pytest.approx({"queue": 27, "prefill": 9, "decode": 41, "outside the engine": 13})
    assert sum(seconds.values()) == pytest.approx(generate.seconds)
    assert "12.00 s waiting in the engine's queue" in straggling(found)
    lane = next(lane for lane in as_json(found)["lanes"] if lane["path"] == "12/0/7")
    assert lane["engine"] == pytest.approx({"queue": 20, "prefill": 2, "decode": 6})
    assert lane["phases"]["generate"] == pytest.approx(34)
    assert sum(sum(moment.phases) for moment in found.moments) == pytest.approx(
        sum(moment.running for moment in found.moments)
    )


def test_page_draws_waiting_apart_from_computing(tmp_path: Path) -> None:
    """Queue, prefill and decode have colours and rows of their own, on the page and on the terminal."""
    page = page_of_timeline(step(tmp_path))
    for phase in ENGINE_PHASES:
        assert f'<i class="{phase}"></i>generate, {phase}' in page
        assert f'<path class="{phase}" d="M' in page
        assert f'<td class="inner">{phase}</td>' in page
    assert '<figure class="phases engine">' in page
    printed = run("timeline", "--from", tmp_path / "table").output
    rows = [line.split()[1] for line in printed.splitlines() if line.startswith("│")]
    assert rows[:5] == ["generate", "queue", "prefill", "decode", "outside"]


def test_step_without_requests_is_drawn_as_before(tmp_path: Path) -> None:
    """Operations of these names below others are no engine's."""
    named = [call("CHAIN", 2, 3, "queue"), call("CHAIN", 3, 4, "llm_request")]
    rows = trajectory(0, 0, 10, call("LLM", 1, 9), *named)
    below = row("0", "e", "0c2", name="decode", step=12, start_ns=at(3), duration_ns=SECOND)
    found = timed(tmp_path, *rows, below)
    assert found.engine == ()
    page = page_of_timeline(found)
    assert '<figure class="phases">' in page
    assert '<i class="queue">' not in page


def test_tool_of_a_requests_name_is_no_request(tmp_path: Path) -> None:
    """As in the view ``engine_requests``."""
    requests = engine(0, "0c0", 1, 1, 1, 5)
    requests[0]["kind"] = "TOOL"
    assert timed(tmp_path, *trajectory(0, 0, 10, call("LLM", 1, 9)), *requests).engine == ()


def test_perfetto_has_a_colour_for_waiting(tmp_path: Path) -> None:
    """The phases are slices inside their request, whose categories tell waiting from computing."""
    slices = check(trace_of(step(tmp_path), tmp_path / "trace.json"))
    of_engine = {each["cat"]: each.get("cname") for each in slices if each["cat"].startswith("engine")}
    assert set(of_engine) == {"engine queue", "engine prefill", "engine decode"}
    assert len(set(of_engine.values())) == 3
    assert json.dumps(slices).count('"name": "llm_request"') == 8


def test_computing_counts_where_one_request_waits_and_another_is_computed() -> None:
    """A trajectory waits only while none of its requests is computed."""
    first = [EnginePart(0, 2, "queue"), EnginePart(2, 3, "prefill"), EnginePart(3, 6, "decode")]
    second = [EnginePart(0, 5, "queue"), EnginePart(5, 7, "prefill"), EnginePart(8, 9, "decode")]
    assert parts_of(first + second) == [
        EnginePart(0, 2, "queue"),
        EnginePart(2, 3, "prefill"),
        *[EnginePart(3, 5, "decode"), EnginePart(5, 6, "decode")],
        EnginePart(6, 7, "prefill"),
        EnginePart(8, 9, "decode"),
    ]


@given(
    st.lists(st.tuples(spans, st.sampled_from(_PHASES))),
    st.lists(st.tuples(spans, st.sampled_from(ENGINE_PHASES))),
)
def test_division_keeps_every_instant_and_phase(
    calls: list[tuple[tuple[int, int], Phase]], phases: list[tuple[tuple[int, int], str]]
) -> None:
    """Segments have no gap, and each instant of a model call has the engine phase that has come furthest."""
    parts: list[Segment] = []
    for (start, length), phase in sorted(calls):
        begin = max(start, parts[-1].end if parts else 0)
        parts += [Segment(begin, start + length, phase)] * (start + length > begin)
    segments = filled(parts, 0, _LENGTH)
    given_ = [EnginePart(start, start + length, phase) for (start, length), phase in phases]
    found = list(divided(segments, parts_of(given_)))
    assert [each.start for each in found] == [0, *(each.end for each in found[:-1])]
    assert all(each.end > each.start for each in found)
    for instant in range(_LENGTH):
        (before,) = (each for each in segments if each.start <= instant < each.end)
        (after,) = (each for each in found if each.start <= instant < each.end)
        running = {part.phase for part in given_ if part.start <= instant < part.end}
        shown = next((phase for phase in reversed(ENGINE_PHASES) if phase in running), "")
        is_call = before.phase == "generate"
        assert after == Segment(after.start, after.end, before.phase, before.name, shown if is_call else "")
