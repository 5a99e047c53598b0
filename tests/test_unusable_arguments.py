"""No argument of a public function holds up the program, and an unusable one is named in one warning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pytest
from opentelemetry import context, trace

import otel_rollout
from otel_rollout import http, rollout_trace_attr, score, score_batch
from otel_rollout.integrations.kit import spans, training_outcome
from otel_rollout.integrations.kit.open_operation import OpenOperation
from otel_rollout.integrations.kit.open_trajectory import OpenTrajectory
from tests.fresh_process import fresh_process

DEADLINE: Final = 60
"""Seconds in which each call returns."""
TOO_FAR: Final = 1 << 22
"""Entries after which an argument is no longer walked, but walked on for ever."""


class WalkedTooFarError(BaseException):
    """Raised by an endless argument; no exception that the product would catch."""


def endless(entry: Callable[[int], Any] = int) -> Iterator[Any]:
    yield from map(entry, range(TOO_FAR))
    raise WalkedTooFarError


class Endless(Sequence[Any]):
    """Two entries, as its length says, and others without end."""

    length = 2

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, _: Any) -> Any:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return endless()


class Long(Endless):
    length = 10**9


class Negative(Endless):
    length = -1


class Lengthless(Endless):
    def __len__(self) -> int:
        raise RuntimeError("no length")


class Unwalkable(Endless):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no entries")


class EndlessMapping(Mapping[str, Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, _: str) -> Any:
        return 1

    def __iter__(self) -> Iterator[str]:
        return endless(str)


class Untouchable:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


GENERATOR, MAPPING, UNTOUCHABLE = "endless generator", "endless mapping", "raising attributes"
WALKED: Final[dict[str, Callable[[], Any]]] = {
    "range": lambda: range(10**8),
    "length of 10**9": Long,
    "endless entries": Endless,
    "negative length": Negative,
    "raising length": Lengthless,
    "raising entries": Unwalkable,
}
UNUSABLE: Final[dict[str, Callable[[], Any]]] = {
    **WALKED,
    GENERATOR: endless,
    MAPPING: EndlessMapping,
    UNTOUCHABLE: Untouchable,
}
EVERY: Final = frozenset(UNUSABLE)
COLUMN: Final = frozenset(WALKED) | {UNTOUCHABLE}
"""What is taken for a column of a batch. Anything else is one value for all trajectories."""


class Argument(NamedTuple):
    """An argument of a public function.

    Attributes:
        call: calls the function with an unusable value.
        name: how the warning names the argument.
        refused: the values that cause a warning; of others, text is recorded.
    """

    call: Callable[[Any], Any]
    name: str
    refused: frozenset[str] = EVERY


def scored(**arguments: Any) -> None:
    score(**{"name": "reward", "value": 1.0, "step": 1, "sample_index": 2, **arguments})


def batch(**arguments: Any) -> None:
    score_batch(**{"scores": {"reward": [1.0, 2.0]}, "step": 1, "sample_index": [1, 2], **arguments})


def trajectory(**arguments: Any) -> None:
    with rollout_trace_attr(**{"step": 1, "sample_index": 2, **arguments}):
        score("reward", 1.0)


def in_trajectory(call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    with rollout_trace_attr(step=1, sample_index=2):
        call(*arguments, **named)


def on_span(record: Callable[[trace.Span], Any]) -> None:
    with (
        rollout_trace_attr(step=1, sample_index=2),
        trace.get_tracer("library").start_as_current_span("span") as span,
    ):
        record(span)


def operation(**arguments: Any) -> None:
    with rollout_trace_attr(step=1, sample_index=2):
        given = {"name": "tool", "kind": "TOOL", "context": context.get_current(), **arguments}
        OpenOperation(**given).end()


def open_trajectory(**arguments: Any) -> None:
    opened = OpenTrajectory(rollout_trace_attr(step=1, sample_index=2))
    opened.record(**{"name": "tool", "kind": "TOOL", "times": (1, 2), **arguments})
    opened.end()


def outcomes(**arguments: Any) -> None:
    given = training_outcome.TrainingOutcomes(**arguments)
    training_outcome.record_training_outcomes(given, step=1, sample_index=[1, 2])


IDENTITY: Final = ("step", "sample_index", "rollout_n", "validate")
ARGUMENTS: Final[dict[str, Argument]] = {
    "score name": Argument(lambda v: scored(name=v), "name="),
    "score value": Argument(lambda v: scored(value=v), "value="),
    "score trajectory": Argument(lambda v: score("reward", 1.0, trajectory=v), "trajectory="),
    "score comment": Argument(lambda v: scored(comment=v), "comment=", frozenset()),
    **{
        f"score {part}": Argument(
            lambda v, part=part: scored(**{part: v}), f"{part}=", frozenset({UNTOUCHABLE})
        )
        for part in IDENTITY
    },
    **{
        f"score_batch {part}": Argument(lambda v, part=part: batch(**{part: v}), f"{part}=", COLUMN)
        for part in IDENTITY
    },
    **{
        f"score_batch {part} of one number": Argument(
            lambda v, part=part: batch(**{"scores": {"reward": 1.0}, "sample_index": 2, part: v}),
            f"{part}=",
            COLUMN,
        )
        for part in IDENTITY
    },
    "score_batch scores": Argument(lambda v: batch(scores=v), "scores="),
    "score_batch score": Argument(lambda v: batch(scores={"reward": v}), "'reward'"),
    "score_batch score of a trajectory": Argument(lambda v: batch(scores={"reward": [v, 1]}), "'reward'"),
    "score_batch comments": Argument(lambda v: batch(comments=v), "comments="),
    "score_batch comment": Argument(lambda v: batch(comments={"reward": v}), "'reward'", COLUMN),
    "score_batch token_values": Argument(lambda v: batch(token_values=v), "token_values="),
    "score_batch values": Argument(lambda v: batch(token_values={"logprob": v}), "'logprob'"),
    "score_batch values of a trajectory": Argument(
        lambda v: batch(token_values={"logprob": [v, [0.5]]}), "'logprob'"
    ),
    "score_batch trajectory": Argument(
        lambda v: score_batch({"reward": [1.0, 2.0]}, trajectory=v), "trajectory="
    ),
    "score_batch trajectory of one number": Argument(
        lambda v: score_batch({"reward": 1.0}, trajectory=v), "trajectory="
    ),
    "record_training_outcomes advantage": Argument(lambda v: outcomes(advantage=v), "'advantage'"),
    "record_training_outcomes reason": Argument(
        lambda v: outcomes(trained=[True, False], reason=v), "'trained'", COLUMN
    ),
    "record_training_outcomes outcomes": Argument(
        lambda v: training_outcome.record_training_outcomes(v, step=1, sample_index=[1]), "outcomes="
    ),
    **{
        f"rollout_trace_attr {part}": Argument(
            lambda v, part=part: trajectory(**{part: v}), f"{part}=", frozenset({UNTOUCHABLE})
        )
        for part in (*IDENTITY, "agent_name", "group_size")
    },
    "rollout_trace_attr name": Argument(lambda v: trajectory(name=v), "name=", frozenset()),
    **{
        f"rollout_trace_attr {flag}": Argument(
            lambda v, flag=flag: trajectory(**{flag: v}),
            f"{flag}=",
            frozenset({"negative length", "raising length"}),
        )
        for flag in ("trace", "token2text")
    },
    "set_input": Argument(
        lambda v: in_trajectory(lambda: rollout_trace_attr().set_input(v)), "", frozenset()
    ),
    "operation": Argument(
        lambda v: in_trajectory(otel_rollout.rollout_trace_op(lambda given: given), v), "", frozenset()
    ),
    "record_engine_times metrics": Argument(
        lambda v: in_trajectory(otel_rollout.record_engine_times, v), "metrics", EVERY - {MAPPING}
    ),
    "record_engine_times request_id": Argument(
        lambda v: in_trajectory(otel_rollout.record_engine_times, {"queue_time_ms": 1.0}, v), "request_id="
    ),
    "publish_run": Argument(lambda v: otel_rollout.publish_run(spool=v), "spool="),
    "trajectory_key secret": Argument(lambda v: in_trajectory(otel_rollout.trajectory_key, v), "secret="),
    "inject_headers headers": Argument(
        lambda v: in_trajectory(http.inject_headers, v, "http://127.0.0.1"), "headers="
    ),
    "inject_headers url": Argument(lambda v: in_trajectory(http.inject_headers, {}, v), "url="),
    "extract_headers headers": Argument(http.extract_headers, "headers="),
    "extract_headers header": Argument(lambda v: http.extract_headers({"traceparent": v}), "'traceparent'"),
    "Span.set_attribute": Argument(
        lambda v: on_span(lambda span: span.set_attribute("key", v)), "'key'", EVERY - {GENERATOR}
    ),
    "Span.set_attribute of a list": Argument(
        lambda v: on_span(lambda span: span.set_attribute("key", [[v]])),
        "'key'",
        EVERY - {GENERATOR},
    ),
    "Span.set_attributes": Argument(lambda v: on_span(lambda span: span.set_attributes(v)), "attribute"),
    "Span.add_event": Argument(lambda v: on_span(lambda span: span.add_event("event", v)), ""),
    "Span.record_exception": Argument(
        lambda v: on_span(lambda span: span.record_exception(ValueError(), v)), "event"
    ),
    "Tracer.start_span attributes": Argument(
        lambda v: in_trajectory(lambda: trace.get_tracer("library").start_span("span", attributes=v).end()),
        "attribute",
    ),
    "tracer_provider attributes": Argument(
        lambda v: in_trajectory(
            lambda: (
                otel_rollout.tracer_provider().get_tracer("library", attributes=v).start_span("span").end()
            )
        ),
        "attributes",
        frozenset({MAPPING}),
    ),
    "kit set_attributes": Argument(
        lambda v: on_span(lambda span: spans.set_attributes(span, v)), "attributes="
    ),
    "kit set_output": Argument(lambda v: in_trajectory(spans.set_output, v), "", frozenset()),
    "kit tool_call": Argument(lambda v: spans.tool_call(v, v), "", frozenset()),
    "OpenOperation attributes": Argument(lambda v: operation(attributes=v), "attributes="),
    "OpenOperation input": Argument(lambda v: operation(input=v), "", frozenset()),
    "OpenOperation kind": Argument(lambda v: operation(kind=v), "kind="),
    "OpenOperation context": Argument(lambda v: operation(context=v), "context=", EVERY - {MAPPING}),
    "OpenTrajectory.record attributes": Argument(lambda v: open_trajectory(attributes=v), "attributes="),
    "OpenTrajectory.record times": Argument(lambda v: open_trajectory(times=v), "times="),
    "OpenTrajectory.record error": Argument(lambda v: open_trajectory(error=v), "", frozenset()),
}


@pytest.fixture(scope="module", autouse=True)
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Record in this process."""
    with fresh_process():
        otel_rollout.configure("spool", training_tokens=True, spool_dir=str(tmp_path_factory.mktemp("spool")))
        otel_rollout.instrument()
        with rollout_trace_attr():
            pass
        yield


def returned(call: Callable[[Any], Any], value: Any) -> BaseException | None:
    """Call in a thread; return the exception that it raised.

    Raises:
        AssertionError: the call does not return.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(value)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "the call does not return"
    return raised[0] if raised else None


@pytest.mark.parametrize("value", UNUSABLE)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_unusable_argument_is_named_in_one_warning_and_the_call_returns(
    argument: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised, an endless argument is not walked, and the warning is no internal error."""
    given = ARGUMENTS[argument]
    error = returned(given.call, UNUSABLE[value]())
    assert error is None, repr(error)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (value in given.refused), messages
    assert all(given.name in message for message in messages)


@pytest.mark.parametrize("value", UNUSABLE)
@pytest.mark.parametrize(
    "call",
    [
        lambda value: otel_rollout.configure(value),
        lambda value: otel_rollout.configure({"spool": value}),
        lambda value: otel_rollout.configure("spool", target_variables=value),
        lambda value: otel_rollout.configure("spool", project_name=value),
        lambda value: otel_rollout.rollout_trace_op(exclude=value),
        lambda value: otel_rollout.rollout_trace_op(capture=value),
        lambda value: otel_rollout.rollout_trace_op(kind=value),
    ],
)
def test_function_that_refuses_an_argument_does_so_at_once(call: Callable[[Any], Any], value: str) -> None:
    """The exception is one of those that the function documents."""
    error = returned(call, UNUSABLE[value]())
    assert isinstance(error, (otel_rollout.SettingsError, TypeError, ValueError, RuntimeError)), repr(error)
