"""Each task stays in the trajectory that it has entered, whatever spans libraries leave open."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from tests.spool_reader import Recorded

LIBRARY = trace.get_tracer("library")
Read = Callable[[], list[Recorded]]


def stream() -> Iterator[int]:
    """Yield parts of an answer, in a span that is current meanwhile, as smolagents does."""
    with LIBRARY.start_as_current_span("stream"):
        yield 1
        yield 2


async def async_stream() -> AsyncIterator[int]:
    """Yield parts of an answer in a task, in a span that is current meanwhile."""
    with LIBRARY.start_as_current_span("stream"):
        yield 1
        yield 2


@rollout_trace_op(name="op")
def op() -> None:
    """Do nothing."""


def in_library(name: str) -> None:
    """Make a span of a library."""
    with LIBRARY.start_as_current_span(name):
        pass


def names_of(spans: list[Recorded]) -> dict[object, list[str]]:
    """Return the names of the spans below the root of each sample."""
    below = [span for span in spans if span.name != "rollout_trace"]
    samples = dict.fromkeys(span.attributes["rollout.sample_index"] for span in below)
    return {
        sample: sorted(each.name for each in below if each.attributes["rollout.sample_index"] == sample)
        for sample in samples
    }


def test_abandoned_stream_does_not_keep_its_task_in_the_trajectory(recorded: Read) -> None:
    """After the block, spans are outside; the next trajectory is linked to none."""
    with rollout_trace_attr(sample_index=1):
        abandoned = stream()
        next(abandoned)
    in_library("outside")
    with rollout_trace_attr(sample_index=2):
        in_library("inside")
    abandoned.close()
    in_library("outside after it is closed")
    spans = recorded()
    assert not any(span.span.links for span in spans)
    assert names_of(spans) == {1: ["stream"], 2: ["inside"]}


def test_stream_abandoned_in_a_task_does_not_keep_it_in_the_trajectory(recorded: Read) -> None:
    """``async for … break`` leaves the generator open beyond the block."""

    async def program() -> None:
        async with rollout_trace_attr(sample_index=1):
            abandoned = async_stream()
            async for _ in abandoned:
                break
        in_library("outside")
        async with rollout_trace_attr(sample_index=2):
            in_library("inside")

    asyncio.run(program())
    assert {name for names in names_of(recorded()).values() for name in names} == {"stream", "inside"}


def test_stream_closed_in_a_later_trajectory_leaves_that_one_current(recorded: Read) -> None:
    """A variable that is bound again closes the stream before: spans, operations and scores stay here."""
    for sample in (1, 2, 3):
        with rollout_trace_attr(sample_index=sample):
            events = stream()  # closes the stream of the sample before, whose span restores its context
            score("reward", sample)
            in_library("first")
            next(events)
            op()
        in_library("outside")
    events.close()
    in_library("outside")
    spans = recorded()
    roots = [span for span in spans if span.name == "rollout_trace"]
    assert [root.attributes["rollout.score.reward"] for root in roots] == [1, 2, 3]
    assert len(roots) == len({root.span.trace_id for root in roots})
    assert names_of(spans) == {
        1: ["first", "op", "score reward", "stream"],
        2: ["first", "op", "score reward", "stream"],
        3: ["first", "op", "score reward", "stream"],
    }


@pytest.mark.parametrize("begin", [op, lambda: in_library("late"), lambda: score("late", 1)])
def test_whatever_begins_first_after_a_stream_is_closed_stays_here(
    begin: Callable[[], None], recorded: Read
) -> None:
    """An operation, a library's span and a score each return to the trajectory of the block."""
    with rollout_trace_attr(sample_index=1):
        events = stream()
        next(events)
    with rollout_trace_attr(sample_index=2):
        events.close()
        begin()
    in_library("outside")
    assert set(names_of(recorded())) == {1, 2}


@pytest.mark.parametrize("is_collected", [False, True], ids=["closed", "collected"])
def test_span_of_the_sdk_after_a_stream_is_closed_stays_here(
    is_collected: bool, recorded: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the application's own provider, the end of the stream's span returns to this trajectory."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(sys.modules[__name__], "LIBRARY", provider.get_tracer("library"))
    with rollout_trace_attr(sample_index=1):
        events = stream()
        next(events)
    with rollout_trace_attr(sample_index=2):
        if is_collected:
            del events
        else:
            events.close()
        in_library("first")
        in_library("second")
    spans = recorded()
    assert names_of(spans) == {1: ["stream"], 2: ["first", "second"]}
    (root,) = [
        each
        for each in spans
        if each.attributes["rollout.sample_index"] == 2 and each.name == "rollout_trace"
    ]
    assert {each.span.trace_id for each in spans if each.name in ("first", "second")} == {root.span.trace_id}


def test_trajectory_in_a_trajectory_returns_to_the_outer_one(recorded: Read) -> None:
    """The inner block's stream is closed in the outer block."""
    with rollout_trace_attr(sample_index=1):
        with rollout_trace_attr(sample_index=2):
            events = stream()
            next(events)
        in_library("outer")
        events.close()
        in_library("outer")
    assert names_of(recorded()) == {2: ["stream"], 1: ["outer", "outer"]}


def test_task_that_outlives_its_trajectory_keeps_it(recorded: Read) -> None:
    """A task started inside goes on in that trajectory, while the program is in another one."""

    async def late() -> None:
        await asyncio.sleep(0)
        in_library("late")

    async def program() -> None:
        async with rollout_trace_attr(sample_index=1):
            task = asyncio.create_task(late())
        async with rollout_trace_attr(sample_index=2):
            await task
            in_library("inside")

    asyncio.run(program())
    assert names_of(recorded()) == {1: ["late"], 2: ["inside"]}
