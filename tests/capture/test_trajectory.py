"""Trajectories: identity, the root's input and output, and switching off."""

import asyncio
import gc
import os
import threading
import uuid
import weakref
from datetime import date
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.record.capture import encoding
from otel_rollout.record.capture.trajectory_attributes import _name_of_extra
from tests.spool_reader import read_directory

IDENTITY = {
    "rollout.project_name": "project",
    "rollout.experiment_name": "experiment",
    "rollout.step": 4,
    "rollout.sample_index": "row-7",
    "rollout.rollout_n": 2,
    "rollout.validate": True,
}


@rollout_trace_op(name="turn")
def turn(text: str) -> str:
    return text.upper()


def test_every_span_carries_the_identity(recorded):
    """Root, operation and score have equal values of equal types."""
    with rollout_trace_attr("row-7", step=4, rollout_n=2, validate=True, agent_name="math"):
        turn("hi")
        score("reward", 0.5)
    spans = recorded()
    assert [s.name for s in spans] == ["turn", "score reward", "rollout_trace"]
    for span in spans:
        assert {k: v for k, v in span.attributes.items() if k in IDENTITY} == IDENTITY
    assert spans[-1].attributes["rollout.agent_name"] == "math"
    assert spans[-1].attributes["openinference.span.kind"] == "AGENT"


def test_numpy_identity_is_recorded_as_plain_types(recorded):
    """Datasets yield numpy scalars, which are recorded as integers."""
    with rollout_trace_attr(sample_index=np.int64(3), step=np.int32(1), validate=np.bool_(False)):
        pass
    attributes = recorded()[0].attributes
    assert [attributes[f"rollout.{key}"] for key in ("sample_index", "step", "validate")] == [3, 1, False]


def test_bools_in_place_of_numbers_are_recorded_as_numbers(recorded):
    """A path such as 1/7/0 names the trajectory everywhere, and so does the score's identity."""
    with rollout_trace_attr(step=True, sample_index=7, rollout_n=False):
        pass
    score("reward", 1.0, step=True, sample_index=7, rollout_n=False)
    for span in recorded():
        values = [span.attributes.get(f"rollout.{key}") for key in ("step", "rollout_n")]
        assert [(type(value), value) for value in values] == [(int, 1), (int, 0)], span.name


def test_extra_that_is_no_scalar_is_recorded_as_json(recorded):
    """The trajectory and its operations are recorded whole."""
    with rollout_trace_attr(step=1, who=np.arange(3), what=object):
        turn("x")
    call, root = recorded()
    assert call.span.parent_span_id == root.span.span_id
    assert root.attributes["rollout.who"] == "[0,1,2]"


def test_ended_trajectory_takes_no_memory_without_garbage_collection(recorded):
    """Trainers switch the garbage collector off."""
    gc.collect()
    gc.disable()
    try:
        with rollout_trace_attr(step=1) as trajectory:
            turn("x" * 1000)
        alive = weakref.ref(trajectory)
        del trajectory
        assert alive() is None
    finally:
        gc.enable()


def test_identity_that_was_not_given_is_not_recorded(recorded):
    """No identity attribute is null."""
    with rollout_trace_attr(step=1):
        pass
    assert "rollout.sample_index" not in recorded()[0].attributes


def test_identity_cannot_be_overwritten_inside(recorded):
    """Setting an identity attribute by hand neither changes nor duplicates it."""
    with rollout_trace_attr(step=1):
        trace.get_current_span().set_attribute("rollout.step", 99)
    assert recorded()[0].attributes["rollout.step"] == 1


def test_root_has_the_first_input_and_the_last_output(recorded):
    """A list of traces shows this input and output by default."""
    with rollout_trace_attr():
        turn("question")
        turn("answer")
    root = recorded()[-1]
    assert (root.input, root.output) == ({"text": "question"}, "ANSWER")


def test_set_input_and_set_output_win_over_operations(recorded):
    """The root has the values set by hand."""
    with rollout_trace_attr() as trajectory:
        trajectory.set_input("What is 2+2?")
        turn("x")
        trajectory.set_output({"answer": "4"})
    root = recorded()[-1]
    assert (root.input, root.output) == ("What is 2+2?", {"answer": "4"})


def test_large_input_is_cut_on_the_root(recorded):
    """The operation has the whole input.

    The root has its beginning and the number of bytes that follow.
    """
    with rollout_trace_attr():
        turn("x" * 100_000)
    call, root = recorded()
    assert len(call.input["text"]) == 100_000
    assert len(root.input) < 20_000
    assert root.input.endswith("more bytes)")


def test_last_of_several_large_outputs_is_on_the_root(recorded):
    """The root has the first operation's input and the last one's output, of any size."""
    with rollout_trace_attr():
        for letter in "abc":
            turn(letter * 100_000)
    *_, root = recorded()
    assert root.input.startswith('{"text":"aaa')
    assert root.output.startswith('"CCC')
    assert root.output.endswith("more bytes)")


def test_trace_false_switches_off_the_block_alone(recorded):
    """Trajectory and operations are not recorded, not even in tasks.

    After the block, tracing is on.
    """

    async def inside() -> None:
        turn("task")

    with rollout_trace_attr(trace=False) as trajectory:
        turn("hidden")
        asyncio.run(inside())
        score("reward", 1.0)
        assert not trace.get_current_span().get_span_context().trace_flags.sampled
    assert trajectory.trace_id is None
    with pytest.raises(KeyError), rollout_trace_attr(trace=False):
        raise KeyError
    turn("shown")
    assert [s.input for s in recorded()] == [{"text": "shown"}]


def test_trajectory_inside_a_trajectory_is_a_span_of_its_trace(recorded):
    """The inner trajectory has an identity of its own."""
    with rollout_trace_attr(step=1, name="outer"):
        with rollout_trace_attr(step=2, name="inner"):
            turn("x")
        turn("y")
    spans = recorded()
    assert [(s.name, s.attributes["rollout.step"]) for s in spans] == [
        ("turn", 2),
        ("inner", 2),
        ("turn", 1),
        ("outer", 1),
    ]
    assert len({s.span.trace_id for s in spans}) == 1


def test_trace_id_is_known_while_the_trajectory_runs(recorded):
    """The trajectory can be found by this id later."""
    with rollout_trace_attr() as trajectory:
        pass
    assert trajectory.trace_id == recorded()[0].span.trace_id.hex()


def test_sub_trajectory_has_its_own_scores_input_and_output(recorded):
    """Outside the block, scores, input and output are the outer trajectory's."""
    with rollout_trace_attr(step=1, name="outer"):
        turn("first")
        with rollout_trace_attr(step=2, name="inner") as inner:
            turn("sub")
            score("reward", 1.0)
        score("reward", 0.0)
        turn("last")
    spans = {s.name: s for s in recorded() if s.name in ("outer", "inner")}
    outer, sub = spans["outer"], spans["inner"]
    assert (sub.input, sub.output, sub.attributes["rollout.score.reward"]) == ({"text": "sub"}, "SUB", 1.0)
    assert (outer.input, outer.output) == ({"text": "first"}, "LAST")
    assert outer.attributes["rollout.score.reward"] == 0.0
    scores = [s for s in recorded() if s.name == "score reward"]
    assert [s.span.parent_span_id for s in scores] == [sub.span.span_id, outer.span.span_id]
    assert [s.attributes["rollout.step"] for s in scores] == [2, 1]
    assert inner.trace_id == outer.span.trace_id.hex()


def test_trace_false_inside_a_trajectory_ignores_scores(recorded):
    """The recorded trajectory has no trace of the block."""
    with rollout_trace_attr(step=1, name="outer"):
        with rollout_trace_attr(trace=False):
            turn("hidden")
            score("reward", 1.0)
            with rollout_trace_attr(name="hidden, too"):
                turn("hidden")
                score("reward", 1.0)
        turn("shown")
    call, outer = recorded()
    assert (call.output, outer.input) == ("SHOWN", {"text": "shown"})
    assert "rollout.score.reward" not in outer.attributes


async def test_trace_false_ends_with_its_block(recorded):
    """The block may end by cancellation, or by the close of a generator."""

    async def waiting() -> None:
        async with rollout_trace_attr(trace=False):
            await asyncio.Event().wait()

    async def cancelled() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting(), 0.01)
        turn("after the cancellation")

    def holding():
        with rollout_trace_attr(trace=False):
            yield

    await asyncio.create_task(cancelled())
    generator = holding()
    next(generator)
    generator.close()
    turn("after the close")
    assert [s.output for s in recorded()] == ["AFTER THE CANCELLATION", "AFTER THE CLOSE"]


def test_second_entry_of_a_trajectory_is_ignored_with_a_warning(recorded, caplog, monkeypatch):
    """The second entry may be inside the block or after it."""
    trajectory = rollout_trace_attr(name="trajectory")
    with trajectory:
        with trajectory:
            turn("inside")
        turn("still inside")
    with trajectory:
        turn("outside")
    spans = recorded()
    assert [s.name for s in spans] == ["turn", "turn", "trajectory", "turn"]
    assert [bool(s.span.parent_span_id) for s in spans] == [True, True, False, False]
    (warning,) = caplog.records
    assert "entered a second time" in warning.message


def test_end_without_entry_is_ignored_with_a_warning(recorded, caplog, monkeypatch):
    """An end without entry records nothing."""
    rollout_trace_attr().__exit__(None, None, None)
    turn("x")
    assert [s.name for s in recorded()] == ["turn"]
    assert "ended before it was entered" in caplog.records[0].message


def test_running_trajectory_pickles_as_one_not_entered(recorded):
    """A closure that holds it can be sent to another process; the recording stays."""
    with rollout_trace_attr(step=1, name="here") as trajectory:
        copy = cloudpickle.loads(cloudpickle.dumps(trajectory))
        copy.set_output("nowhere")
        assert copy.trace_id is None
    with copy:
        pass
    assert [(s.name, s.attributes["rollout.step"]) for s in recorded()] == [("here", 1), ("here", 1)]


async def test_cancelled_trajectory_is_recorded_as_cancelled(recorded):
    """Status and error type, which backends show, name the cancellation."""

    async def trajectory() -> None:
        async with rollout_trace_attr():
            await asyncio.Event().wait()

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(trajectory(), 0.01)
    (root,) = recorded()
    assert (root.span.status.code, root.span.status.message) == (2, "CancelledError: the task was cancelled")
    assert root.attributes["error.type"] == "asyncio.exceptions.CancelledError"


def test_threads_record_into_their_own_trajectories(recorded):
    """Each thread's operations belong to the trajectory that the thread has entered."""
    together = threading.Barrier(4)

    def rollout(number: int) -> None:
        with rollout_trace_attr(sample_index=number):
            for _ in range(5):
                together.wait(10)
                turn(f"{number}")

    threads = [threading.Thread(target=rollout, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    turns = [s for s in recorded() if s.name == "turn"]
    assert len(turns) == 20
    assert all(s.output == str(s.attributes["rollout.sample_index"]) for s in turns)


@pytest.mark.parametrize("sampler", ["always_off", "traceidratio"])
def test_sampled_out_call_is_neither_bound_nor_encoded(fresh_process, test_exporters, monkeypatch, sampler):
    """Calls below are not recorded either, because the context carries the decision."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    otel_rollout.configure({"test-file": {"path": os.devnull}})
    monkeypatch.setattr(encoding, "to_json", lambda *_: pytest.fail("a value was encoded"))

    @rollout_trace_op
    def outer():
        assert not trace.get_current_span().get_span_context().trace_flags.sampled
        return trace.get_current_span(), turn("x")

    def numbers():
        yield trace.get_current_span().get_span_context().is_valid

    assert outer()[1] == "X"
    assert list(rollout_trace_op(numbers)()) == [True]
    assert not trace.get_current_span().get_span_context().is_valid
    with rollout_trace_attr(step=1) as trajectory:
        turn("x")
        trajectory.set_output("nothing")
        score("reward", 1.0)
    spool = Path(os.environ["OTEL_ROLLOUT_SPOOL_DIR"])
    assert not list(read_directory(spool))


def test_context_left_by_a_block_does_not_join_trajectories(recorded):
    """After baggage that was never detached, the next trajectory is its own trace."""
    outside = otel_context.get_current()

    @rollout_trace_op(name="leaves baggage")
    def op() -> None:
        otel_context.attach(baggage.set_baggage("user", "x"))

    try:
        for _ in range(3):
            with rollout_trace_attr():
                op()
                otel_context.attach(baggage.set_baggage("user", "y"))
        assert not trace.get_current_span().get_span_context().is_valid
    finally:
        otel_context.attach(outside)
    assert len({span.span.trace_id for span in recorded()}) == 3


def test_ended_operation_keeps_no_content_in_memory(recorded):
    """A task that outlives its operation does not keep the recorded values."""
    kept = []

    @rollout_trace_op
    def op(text: str) -> str:
        kept.append(trace.get_current_span())
        return text

    op("x" * 1000)
    (span,) = kept
    assert span.encoded == {}
    span.set_attribute("late", 1)
    assert span.encoded == {}


@pytest.mark.parametrize(("index", "text"), [(3.5, "3.5"), (True, "True")])
def test_dataset_row_of_another_type_is_warned_of_once(recorded, caplog, index, text):
    """It is recorded nevertheless, and the table names the row by its text."""
    for _ in range(3):
        with rollout_trace_attr(step=1, sample_index=index):
            pass
    (warning,) = [record.message for record in caplog.records]
    assert f"sample_index={index!r} is neither an integer nor a text" in warning
    assert f"the dataset row {text!r}" in warning
    assert [root.attributes["rollout.sample_index"] for root in recorded()] == [index] * 3


@pytest.mark.parametrize("index", [3, 3.0, "3.5", None])
def test_dataset_row_that_is_a_number_or_a_text_is_not_warned_of(recorded, caplog, index):
    """A whole number may come as a float."""
    with rollout_trace_attr(step=1, sample_index=index):
        pass
    assert caplog.records == []


@pytest.mark.parametrize(
    ("extra", "meant"), [("stepp", "step"), ("sample_idx", "sample_index"), ("validation", "validate")]
)
def test_extra_with_a_name_like_an_argument_is_warned_of_once(recorded, caplog, extra, meant):
    """The extra is recorded nevertheless, because it may be intended."""
    for _ in range(3):
        with rollout_trace_attr(**{extra: 7}):
            pass
    (warning,) = [record.message for record in caplog.records]
    assert f"has no argument {extra!r}" in warning
    assert f"perhaps {meant!r} is meant" in warning
    assert [root.attributes[f"rollout.{extra}"] for root in recorded()] == [7, 7, 7]


@pytest.mark.parametrize(
    "name",
    [
        "score_origin",
        "tokenizer",
        "text_of",
        "turn.continues",
        "run.id",
        "project_name",
        "experiment_name",
        "score.reward",
        "score_time.reward",
    ],
)
def test_extra_named_like_our_own_attribute_is_renamed(recorded, caplog, monkeypatch, name):
    """The attribute that exporters act on keeps its meaning.

    One warning names the new one.
    """
    _name_of_extra.cache_clear()
    for _ in range(2):
        with rollout_trace_attr(step=1, **{name: "outside"}):
            score("reward", 1.0)
    (warning,) = [record.message for record in caplog.records]
    assert f"{name!r} is recorded as rollout.extra.{name}" in warning
    for root in [span for span in recorded() if span.name == "rollout_trace"]:
        assert root.attributes[f"rollout.extra.{name}"] == "outside"
        assert root.attributes.get(f"rollout.{name}") != "outside"
        assert root.attributes["rollout.score.reward"] == 1.0


def test_identity_and_extras_as_text_have_no_quotes(recorded):
    """Users search tags by a row's UUID, path or date, not by quoted JSON."""
    row = uuid.UUID(int=7)
    with rollout_trace_attr(sample_index=row, data=Path("a/b"), day=date(2026, 1, 2), tags=["x"], raw=b"x"):
        pass
    (root,) = recorded()
    expected = {
        "sample_index": str(row),
        "data": "a/b",
        "day": "2026-01-02",
        "tags": '["x"]',
        "raw": "<1 bytes: x>",
    }
    assert {name: root.attributes[f"rollout.{name}"] for name in expected} == expected


def test_float_extra_stays_a_float(recorded):
    """A column of temperatures has one type.

    A step and the size of a group are whole numbers.
    """
    with rollout_trace_attr(step=2.0, temperature=1.0, top_p=np.float32(1.0), turns=3, group_size=8.0):
        pass
    (root,) = recorded()
    expected = {"step": "2", "temperature": "1.0", "top_p": "1.0", "turns": "3", "group_size": "8"}
    assert {name: repr(root.attributes[f"rollout.{name}"]) for name in expected} == expected


def test_extra_unlike_any_argument_is_not_warned_of(recorded, caplog):
    """An extra similar to an argument that was given causes no warning, either."""
    with rollout_trace_attr(step=0, steps=5, trace_id="t", agent_name="a", group_size=8, policy_version=3):
        pass
    assert caplog.records == []
