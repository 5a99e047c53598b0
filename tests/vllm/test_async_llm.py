"""vLLM's AsyncLLM in an actor on Ray: what was recorded, against what the engine said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spool_reader import Recorded, read_trajectories, tree
from tests.vllm import running

PHASES = ["queue", "prefill", "decode"]
REQUEST = {"llm_request": PHASES}


class Run:
    """What the program recorded, and its own account."""

    def __init__(self, place: Path, model: Path) -> None:
        account = place / "account.json"
        self.output = running.run(
            "on_ray",
            str(model),
            str(account),
            place=place / "run",
            OTEL_ROLLOUT_RECEIVE="true",
            RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        )
        self.account: dict[str, Any] = json.loads(account.read_text())
        self.spans = read_trajectories(place / "run" / "spool")
        self.trees = running.trees(place / "run")

    def requests(self, name: str) -> list[Recorded]:
        """Return the spans of the requests of a trajectory."""
        return running.named(self.trees[name], "llm_request")


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the program, which starts two engines: some two minutes."""
    place = tmp_path_factory.mktemp("ray")
    return Run(place, tiny_model)


def test_example_has_the_engines_request_below_each_model_call(run: Run) -> None:
    """Four rollouts of two turns, at once: each call has its own request, by the id that the caller gave."""
    spans = [span for span in run.spans if span.attributes.get("rollout.step") == 1]
    roots = [span for span in spans if not span.span.parent_span_id]
    assert len(roots) == 4
    for root in roots:
        own = [span for span in spans if span.span.trace_id == root.span.trace_id]
        assert tree(own) == {root.name: [{"generate": [REQUEST]}] * 2 + ["score reward"]}
        row, sibling = root.attributes["rollout.sample_index"], root.attributes["rollout.rollout_n"]
        ids = {span.attributes["gen_ai.request.id"] for span in running.named(own, "llm_request")}
        assert ids == {f"{row}-{sibling}-{turn}" for turn in range(2)}


@pytest.mark.parametrize("kind", ["DELTA", "CUMULATIVE", "FINAL_ONLY"])
def test_streamed_answers_are_one_request(run: Run, kind: str) -> None:
    """Whatever of the answer the caller sees and when, the times are the engine's.

    vLLM joins tokens that a busy caller has not yet taken: there may be fewer chunks than tokens.
    """
    said = run.account[kind]
    assert 1 <= said["chunks"] <= (1 if kind == "FINAL_ONLY" else 8)
    assert said["tokens"] == run.account["outside"]["tokens"]
    assert tree(run.trees[kind]) == {kind: [REQUEST]}
    (request,) = run.requests(kind)
    for name, start, end in (
        ("time_in_queue", "queued_ts", "scheduled_ts"),
        ("time_in_model_prefill", "scheduled_ts", "first_token_ts"),
        ("time_in_model_decode", "first_token_ts", "last_token_ts"),
    ):
        expected = said["metrics"][end] - said["metrics"][start]
        assert request.attributes[f"gen_ai.latency.{name}"] == pytest.approx(expected)
    assert request.attributes["gen_ai.usage.completion_tokens"] == 8


def test_each_answer_of_several_is_a_request(run: Run) -> None:
    """With n=3 the engine makes three requests of one id."""
    assert tree(run.trees["several"]) == {"several": [REQUEST] * 3}
    assert [span.attributes["gen_ai.request.id"] for span in run.requests("several")] == ["several"] * 3


def test_requests_outside_and_of_unrecorded_trajectories_are_not_recorded(run: Run) -> None:
    """Nothing of them is attached to another trajectory."""
    ids = {span.attributes.get("gen_ai.request.id") for span in run.spans}
    assert not ids & {"outside", "unrecorded", "traced unrecorded"}


@pytest.mark.parametrize("name", ["abandon", "cancel", "traced abandon"])
def test_aborted_request_is_an_error_with_what_is_known(run: Run, name: str) -> None:
    """The caller closed its stream, or its task was cancelled; vLLM makes no span of it, also if it
    traces."""
    (request,) = run.requests(name)
    assert request.span.status.code == 2
    assert request.attributes["error.type"] == "aborted"
    assert request.attributes["gen_ai.usage.completion_tokens"] < 300
    assert request.scope == "otel_rollout"


def test_request_that_a_pause_ends_is_no_error(run: Run) -> None:
    """verl pauses the engine to update weights, and goes on later; vLLM's own spans have no error either."""
    (request,) = run.requests("pause")
    assert request.span.status.code == 0
    assert request.attributes["gen_ai.usage.completion_tokens"] == run.account["pause"]
    assert 0 < run.account["pause"] < 300
    assert tree(run.trees["pause"]) == {"pause": [REQUEST]}


def test_request_of_an_engine_that_dies_is_an_error(run: Run) -> None:
    """The caller gets vLLM's exception unchanged."""
    assert run.account["die"] == "EngineDeadError"
    assert run.account["cancel"].startswith("CancelledError(")
    (request,) = run.requests("die")
    assert request.span.status.code == 2
    assert request.attributes["error.type"].endswith("EngineDeadError")


def test_span_of_an_engine_that_traces_is_the_one_of_its_request(run: Run) -> None:
    """It has come by the receiver, once, with the phases; ours is not recorded beside it."""
    ids = set()
    for number in range(6):
        name = f"traced {number}"
        assert tree(run.trees[name]) == {name: [REQUEST]}
        (request,) = run.requests(name)
        assert request.scope == "vllm.tracing.otel"
        assert request.attributes["gen_ai.request.id"] == name
        assert request.attributes["rollout.step"] == 3
        expected = run.account[name]["metrics"]
        assert request.attributes["gen_ai.latency.time_in_model_decode"] == pytest.approx(
            expected["last_token_ts"] - expected["first_token_ts"]
        )
        ids.add(request.span.span_id)
    assert len(ids) == 6


def test_request_outside_does_not_join_the_first_requests_trajectory(run: Run) -> None:
    """vLLM's span of a request without headers is a trace of its own."""
    (request,) = [span for span in run.spans if span.attributes.get("gen_ai.request.id") == "traced outside"]
    assert not request.span.parent_span_id


def test_actors_process_is_traced_by_the_autoload_and_not_seeded(run: Run) -> None:
    """The workers of AsyncLLM are processes of their own, so its front end's ids do not repeat."""
    assert "otel_rollout.integrations.vllm.engines" in run.account["facts"]["modules"]
    assert run.account["facts"]["seeded"] is False
    assert "internal error" not in run.output
    assert "another target" not in run.output
