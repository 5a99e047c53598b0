"""What is recorded of real trainings by TRL on the CPU, held against TRL's own account of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.base import training_scores
from otel_rollout.base.environment import PREFIXES
from tests import given_scores
from tests.given_scores import Given
from tests.spool_reader import Recorded, read_trajectories, tree
from tests.trl.script import FIRST, SIBLINGS

SCORED = ["done", "length", "score done", "score length", "score reward"]
"""Spans of the reward functions of the trainer with tools."""
OUTCOME = [f"score {name}" for name in vars(training_scores).values() if isinstance(name, str)]
"""Names of spans of what training made of a completion, which are recorded for a whole batch."""
SIMPLE = ["length", "score length", "score reward"]
"""Spans of a trainer with one reward function."""
TOO_LONG = '{"name":"long","arguments":{"words":500}}'
"""A call whose answer TRL removes, because it does not fit the completion."""


class Traces:
    """The trajectories of the program :mod:`tests.trl.programs.train`."""

    def __init__(self, place: Path, output: str) -> None:
        self.place = place
        self.output = output
        self.results = json.loads((place / "results.json").read_text())
        self._scores = given_scores.of_run(place / "rollouts")
        self._spans: dict[bytes, list[Recorded]] = defaultdict(list)
        for span in read_trajectories(place / "spool"):
            self._spans[span.span.trace_id].append(span)
        self.by_identity = {identity(root_of(spans)): spans for spans in self._spans.values()}
        assert len(self.by_identity) == len(self._spans), "an identity twice"

    def of(self, sample: int | str, sibling: int, step: int = 1, validate: bool = False) -> list[Recorded]:
        """Return the spans of a trajectory in order of their start."""
        spans = self.by_identity[validate, step, sample, sibling]
        return sorted(spans, key=lambda span: span.span.start_time_unix_nano)

    def below(self, sample: int | str, sibling: int, step: int = 1, validate: bool = False) -> list[Any]:
        """Return the names of the spans below a trajectory's root, as a tree."""
        (below,) = tree(self.of(sample, sibling, step, validate)).values()
        return [name for name in below if name not in OUTCOME]

    def score(self, root: Recorded, name: str) -> Any:
        """Return the value of a trajectory's score; None if it was not given."""
        given = self.given(root).get(name)
        return None if given is None else given.value

    def given(self, root: Recorded) -> dict[str, Given]:
        """Return a trajectory's scores."""
        return self._scores[root.span.trace_id.hex()]


def root_of(spans: list[Recorded]) -> Recorded:
    (root,) = [span for span in spans if not span.span.parent_span_id]
    return root


def identity(root: Recorded) -> tuple[bool, int, int | str, int]:
    """Return validation, step, prompt and sibling."""
    attributes = root.attributes
    return tuple(attributes[f"rollout.{name}"] for name in ("validate", "step", "sample_index", "rollout_n"))


def named(spans: list[Recorded], name: str) -> list[Recorded]:
    return [span for span in spans if span.name == name]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """Train with each of TRL's ways of generation, once for all tests."""
    place = tmp_path_factory.mktemp("trl")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    variables = {
        "OTEL_TRACES_EXPORTER": "delta",
        "OTEL_ROLLOUT_DELTA_URI": str(place / "rollouts"),
        "OTEL_ROLLOUT_SPOOL_DIR": str(place / "spool"),
        "OTEL_ROLLOUT_KEEP": "true",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.trl.programs.train", str(place)],
        env=kept | variables | {"CUDA_VISIBLE_DEVICES": ""},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=590,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return Traces(place, ended.stdout)


def test_each_completion_is_one_trajectory_of_its_trainer(traces: Traces) -> None:
    """Steps, prompts and siblings are complete; prompts of later trainers have the trainer's number."""
    expected = {(False, step, prompt, n) for step in (1, 2) for prompt in (0, 1) for n in range(SIBLINGS)}
    expected |= {(True, 2, prompt, n) for prompt in (0, 1) for n in range(2)}
    later = ("2:0", "2:1", "3:0", "4:0", "4:1", "5:0", "6:0")
    expected |= {(False, 1, prompt, n) for prompt in later for n in range(SIBLINGS)}
    assert set(traces.by_identity) == expected
    assert "otel-rollout: internal error" not in traces.output


def test_trajectories_equal_the_completions_table(traces: Traces) -> None:
    """Prompts, completions, rewards, advantages, extra columns, turns and tool calls: all of them."""
    import pandas as pd

    compared = 0
    for step in (1, 2):
        table = pd.read_parquet(traces.place / "completions" / f"completions_{step:05d}.parquet")
        for row, told in enumerate(table.to_dict("records")):
            spans = traces.of(row // SIBLINGS, row % SIBLINGS, step)
            root = root_of(spans)
            assert root.input == plain(told["prompt"])
            assert root.output == plain(told["completion"])
            for function in ("done", "length"):
                value = traces.score(root, function)
                assert math.isnan(told[function]) if value is None else value == told[function]
            assert traces.score(root, "advantage") == told["advantage"]
            assert root.attributes["rollout.extra.note"] == told["note"]
            roles = [message["role"] for message in told["completion"]]
            answered = [call for call in named(spans, "generate") if "role" in call.output]
            assert len(answered) == roles.count("assistant")
            calls = [span for span in spans if span.name.startswith("execute_tool")]
            kept = [call for call in calls if call.attributes.get("input.value") != TOO_LONG]
            assert len(kept) == roles.count("tool")
            compared += 1
    assert compared == 2 * 2 * SIBLINGS


def plain(messages: Any) -> list[dict[str, Any]]:
    """Return messages of a Parquet file without the columns that a message lacks."""
    found = []
    for message in messages:
        kept = {name: value for name, value in message.items() if value is not None}
        if "tool_calls" in kept:
            kept["tool_calls"] = [_without_nones(call) for call in kept["tool_calls"]]
        found.append(kept)
    return found


def _without_nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nones(inner) for name, inner in value.items() if inner is not None}
    return value


def test_tree_of_a_trajectory_has_its_turns_tools_rewards_and_outcome(traces: Traces) -> None:
    """Two calls of one turn, a failure, a turn without tools, and an answer that does not fit."""
    add, fetch = "execute_tool add", "execute_tool fetch"
    end = SCORED
    assert traces.below(0, 0) == ["generate", add, "generate", *end]
    assert traces.below(0, 1) == ["generate", add, fetch, fetch, "generate", *end]
    assert traces.below(0, 2) == ["generate", "execute_tool divide", "generate", *end]
    assert traces.below(0, 3) == ["generate", *end]
    assert traces.below(1, 0) == ["generate", "execute_tool unknown", add, add, "generate", *end]
    assert traces.below(0, 0, 2) == ["generate", add, "generate", add, "generate", *end]
    assert traces.below(0, 1, 2) == ["generate", "execute_tool long", *end]
    noted = {"execute_tool noted": ["_shout"]}
    assert traces.below(0, 2, 2) == ["generate", noted, "score noted", "generate", *end]


def test_model_call_has_messages_tokens_and_their_batch(traces: Traces) -> None:
    """The second call holds the tool's answer; its prompt begins with the first call's tokens."""
    first, second = named(traces.of(0, 0), "generate")
    asked = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    answer = {"role": "assistant", "tool_calls": [asked], "content": ""}
    question = {"role": "user", "content": "Add."}
    assert first.input["messages"] == [question]
    assert {**first.output, "response_ids": None} == {**answer, "response_ids": None}
    assert second.input["messages"] == [question, answer, {"role": "tool", "name": "add", "content": "3"}]
    assert second.output["content"] == "It is done."
    before = first.input["prompt_ids"] + first.output["response_ids"]
    assert second.input["prompt_ids"][: len(before)] == before
    described = second.attributes
    assert described["openinference.span.kind"] == "LLM"
    assert described["gen_ai.operation.name"] == "chat"
    assert described["gen_ai.request.temperature"] == 1.0
    assert described["gen_ai.request.max_tokens"] == 200
    assert described["gen_ai.usage.input_tokens"] == len(second.input["prompt_ids"])
    assert described["gen_ai.usage.output_tokens"] == len(second.output["response_ids"])
    assert described["gen_ai.response.finish_reasons"] == ["stop"]
    assert described["rollout.policy_version_min"] == described["rollout.policy_version_max"] == 0
    assert first.attributes["rollout.batch_size"] == 8
    assert described["rollout.batch_size"] == 6  # the others have no tool call
    batches = {named(traces.of(0, n), "generate")[0].attributes["rollout.batch_id"] for n in range(SIBLINGS)}
    assert batches == {first.attributes["rollout.batch_id"]}
    assert described["rollout.batch_id"] not in batches


def test_truncated_completion_is_not_trained(traces: Traces) -> None:
    """With mask_truncated_completions, the loss counts none of its tokens; the reason is said."""
    spans = traces.of(0, 3)
    (call,) = named(spans, "generate")
    root = root_of(spans)
    assert call.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert len(call.output["response_ids"]) == root.attributes["rollout.completion_length"] == 200
    assert (traces.score(root, "trained"), traces.score(root, "trained_tokens")) == (False, 0)
    reason = "the completion was cut off, and mask_truncated_completions is set"
    assert traces.given(root)["trained"].comment == reason


def test_trained_tokens_are_those_of_the_model(traces: Traces) -> None:
    """Tokens of tools' answers are not counted."""
    spans = traces.of(0, 0)
    root = root_of(spans)
    generated = sum(len(call.output["response_ids"]) for call in named(spans, "generate"))
    assert traces.score(root, "trained_tokens") == root.attributes["rollout.completion_length"] == generated
    assert traces.score(root, "trained") is True
    assert root.attributes["rollout.num_turns"] == 4


def test_turn_without_room_for_an_answer_has_no_message(traces: Traces) -> None:
    """The tool's answer fills the completion; TRL drops all tokens of the turn after it."""
    spans = traces.of(0, 3, 2)
    below = ["generate", "execute_tool long", "generate", *SCORED]
    assert traces.below(0, 3, 2) == below
    _, dropped = named(spans, "generate")
    assert dropped.output == {"response_ids": []}
    assert dropped.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert [message["role"] for message in root_of(spans).output] == ["assistant", "tool"]


def test_failures_of_tools_are_errors_in_the_trace(traces: Traces) -> None:
    """Exceptions, an unknown tool, and arguments that do not fit; TRL makes text of them for the model."""
    failed = {}
    for sample, sibling in ((0, 1), (0, 2), (1, 0), (1, 1), (1, 2)):
        for span in traces.of(sample, sibling):
            if span.name.startswith("execute_tool") and span.span.status.code == 2:
                failed[span.name, sample, sibling] = span
    assert {key: span.span.status.message for key, span in failed.items()} == {
        ("execute_tool fetch", 0, 1): "KeyError: 'empty'",
        ("execute_tool divide", 0, 2): "ZeroDivisionError: division by zero",
        ("execute_tool unknown", 1, 0): "{'error': 'Tool unknown not found.'}",
        ("execute_tool add", 1, 1): "TypeError: add() got an unexpected keyword argument 'c'",
        ("execute_tool fetch", 1, 2): "TypeError: fetch() got an unexpected keyword argument 'what'",
    }
    unknown = failed["execute_tool unknown", 1, 0]
    assert unknown.input == {"name": "unknown", "arguments": {"a": 1}}
    assert unknown.attributes["gen_ai.tool.name"] == "unknown"
    (event,) = failed["execute_tool divide", 0, 2].span.events
    assert event.name == "exception"


def test_tool_call_has_arguments_and_result(traces: Traces) -> None:
    """Synchronous and asynchronous; a score that a tool gives is the trajectory's."""
    (add,) = named(traces.of(0, 1), "execute_tool add")
    first, second = named(traces.of(0, 1), "execute_tool fetch")
    assert (add.input, add.output) == ({"name": "add", "arguments": {"a": 3, "b": 4}}, 7)
    assert (first.input["arguments"], first.output) == ({"key": "x"}, "value of x")
    assert second.input["arguments"] == {"key": ""}
    assert add.attributes["openinference.span.kind"] == "TOOL"
    noted = traces.of(0, 2, 2)
    assert traces.score(root_of(noted), "noted") == 2.0
    assert named(noted, "_shout")[0].output == "SEEN"


def test_rewards_are_scores_and_their_weighted_sum_is_the_reward(traces: Traces) -> None:
    """A function that returns None for a completion gives it no score."""
    root = root_of(traces.of(0, 0))
    assert (traces.score(root, "done"), traces.score(root, "length"), traces.score(root, "reward")) == (
        1.0,
        3.0,
        2.5,
    )
    unrewarded = traces.of(1, 3)
    root = root_of(unrewarded)
    assert [traces.score(root, name) for name in ("done", "length", "reward", "advantage")] == [
        None,
        None,
        None,
        0,
    ]
    assert traces.given(root)["trained"].comment == "no reward function gave a reward"
    assert traces.below(1, 3) == ["generate", "done", "length"]
    rewards = [traces.score(root_of(traces.of(p, n)), "reward") for p in (0, 1) for n in range(SIBLINGS)]
    logged = traces.results["with_tools"]["reward"]
    known = [reward for reward in rewards if reward is not None]
    assert sum(known) / len(known) == pytest.approx(logged)


def test_evaluation_is_validation_of_the_present_weights(traces: Traces) -> None:
    """Nothing is trained; both generation batches count their prompts on."""
    root = root_of(traces.of(1, 1, step=2, validate=True))
    assert root.attributes["rollout.policy_version_min"] == 2
    assert root.attributes["rollout.group_size"] == 2
    assert root.input[0]["content"] == "Add."
    assert traces.score(root, "trained") is None
    assert traces.score(root, "advantage") is not None


def test_environments_are_named_and_their_methods_are_tools(traces: Traces) -> None:
    """An environment's own reward is a score of its trajectories only."""
    counted, waited = traces.of("2:0", 1), traces.of("2:1", 2)
    root = root_of(counted)
    assert root.attributes["rollout.environment"] == "counter"
    assert root.input == [{"role": "user", "content": "Count. You are in Counter."}]
    (count,) = named(counted, "execute_tool count")
    assert (count.input["arguments"], count.output) == ({"by": 2}, 2)
    assert (traces.score(root, "Counter"), traces.score(root, "reward")) == (2.0, 3.0)
    assert root_of(waited).attributes["rollout.environment"] == "waiting"
    assert named(waited, "execute_tool wait")[0].output == "waited"
    assert traces.score(root_of(waited), "Counter") is None
    rewards = ["done", "Counter", "score done"]
    below = ["generate", "execute_tool wait", "generate", *rewards, "score reward"]
    assert traces.below("2:1", 2) == below


def test_rollout_function_has_a_span_per_prompt(traces: Traces) -> None:
    """The span holds the tokens and TRL's env_mask; operations inside sample() are in the trajectory."""
    spans = traces.of("3:0", 2)
    play = "with_rollout_function.<locals>.play"
    assert traces.below("3:0", 2) == ["rollout_func", play, *SIMPLE]
    (whole,) = named(spans, "rollout_func")
    ids = whole.output["response_ids"]
    assert whole.output["response_mask"] == [1] * (len(ids) - 2) + [0, 1]
    assert named(spans, play)[0].output == ids[:-1]
    assert traces.score(root_of(spans), "trained_tokens") == len(ids) - 1


def test_rloo_and_derived_trainers_are_traced(traces: Traces) -> None:
    """RLOO with texts as prompts, in two generation batches of one step; GMPO, which is a GRPOTrainer."""
    assert traces.below("4:1", 3) == ["generate", *[name.replace("length", "text_length") for name in SIMPLE]]
    (call,) = named(traces.of("4:1", 3), "generate")
    assert call.input["prompt"] == "Two"
    assert call.output["text"] == "Reply 3."
    assert call.attributes["gen_ai.operation.name"] == "text_completion"
    assert root_of(traces.of("4:1", 3)).output == "Reply 3."
    assert traces.below("5:0", 1) == ["generate", *SIMPLE]


def test_reward_function_that_raises_ends_its_trajectories_as_errors(traces: Traces) -> None:
    """The exception passes; the completions are recorded."""
    assert traces.results["with_broken_reward"] == "no reward today"
    spans = traces.of("6:0", 1)
    assert traces.below("6:0", 1) == ["generate", "broken"]
    root, (reward,) = root_of(spans), named(spans, "broken")
    assert root.span.status.message == reward.span.status.message == "ArithmeticError: no reward today"
    assert root.output[0]["content"] == "Reply 1."


def test_reward_function_has_the_times_of_its_call(traces: Traces) -> None:
    """All rows of a batch share them; the score is the output."""
    blocks = [named(traces.of(0, n), "done")[0] for n in range(SIBLINGS)]
    assert len({(b.span.start_time_unix_nano, b.span.end_time_unix_nano) for b in blocks}) == 1
    assert [block.output for block in blocks] == [1.0, 1.0, 1.0, 0.0]
    assert blocks[0].attributes["openinference.span.kind"] == "EVALUATOR"
    assert len(FIRST["Add."]) == len(blocks)
