"""TRL's asynchronous GRPO worker, in its own process: traces against what the worker returned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_rollout.base.known_exporters import PREFIXES
from otel_rollout.integrations.trl.async_training import OVERSIZE, STALE, UNUSED
from tests import given_scores
from tests.given_scores import Given
from tests.spool_reader import Recorded, read_trajectories
from tests.trl.programs.async_training import FIRST_STEP
from tests.trl.programs.completions_server import FIRST_TURNS

SIBLINGS = 4
ERROR = 2
WORKERS = {"mentions_five", "is_short", "reward", "trained_reward", "advantage"}
"""Scores that the worker gives."""
TRAINERS = {"trained", "trained_tokens", "trained_step"}
FACTS = ("completion_length", "num_turns", "training_rows")


class Run:
    """What the program of two workers has returned and recorded."""

    def __init__(self, place: Path) -> None:
        account = json.loads((place / "account.json").read_text())
        self.samples: list[dict[str, Any]] = account["samples"]
        self.exchanges: list[dict[str, Any]] = account["exchanges"]
        self.log_probs = {json.dumps(row["input_ids"]): row["log_probs"] for row in account["trained"]}
        self.trained: list[list[int]] = [row["input_ids"] for row in account["trained"]]
        self.output = (place / "output.txt").read_text()
        traces: dict[bytes, list[Recorded]] = defaultdict(list)
        for span in read_trajectories(place / "spool"):
            traces[span.span.trace_id].append(span)
        for spans in traces.values():
            spans.sort(key=lambda span: span.span.start_time_unix_nano)
        given = given_scores.of_run(place / "rollouts")
        self.traces = [Trace(spans, given.get(id_.hex(), {})) for id_, spans in traces.items()]

    @property
    def scored(self) -> list[Trace]:
        """The traces of the samples that the worker returned, by group and sibling."""
        scored = [trace for trace in self.traces if "advantage" in trace.scores]
        return sorted(scored, key=lambda trace: (trace.identity["sample_index"], trace.identity["rollout_n"]))

    def sample_of(self, trace: Trace) -> dict[str, Any]:
        """Return the one sample that has the trace's tokens."""
        ids = trace.calls[-1].input["prompt_ids"] + trace.calls[-1].output["response_ids"]
        (found,) = [sample for sample in self.samples if sample["input_ids"] == ids]
        return found


class Trace:
    """The spans of one trajectory."""

    def __init__(self, spans: list[Recorded], given: dict[str, Given]) -> None:
        (self.root,) = [span for span in spans if not span.span.parent_span_id]
        self.spans = spans
        self.given = given

    def of_kind(self, kind: str) -> list[Recorded]:
        """Return the spans of an OpenInference kind, by start."""
        return [span for span in self.spans if span.attributes["openinference.span.kind"] == kind]

    @property
    def calls(self) -> list[Recorded]:
        return self.of_kind("LLM")

    @property
    def identity(self) -> dict[str, Any]:
        names = ("step", "sample_index", "rollout_n", "validate", "group_id", "group_size")
        return {name: self.root.attributes.get(f"rollout.{name}") for name in names}

    @property
    def scores(self) -> dict[str, Any]:
        """Value of each score by name."""
        return {name: score.value for name, score in self.given.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the program once for all tests."""
    place = tmp_path_factory.mktemp("async")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    variables = {
        "OTEL_ROLLOUT_SPOOL_DIR": str(place / "spool"),
        "OTEL_ROLLOUT_KEEP": "true",
        "OTEL_TRACES_EXPORTER": "delta",
        "OTEL_ROLLOUT_DELTA_URI": str(place / "rollouts"),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.trl.programs.async_worker", str(place / "account.json")],
        env=kept | variables,
        timeout=900,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    (place / "output.txt").write_text(ended.stdout)
    return Run(place)


def test_each_sample_of_the_worker_has_one_trace_with_its_identity(run: Run) -> None:
    """The prompts are counted from the worker's first row, the siblings in their group."""
    expected = [
        {
            "step": 7,
            "sample_index": 1 + group,
            "rollout_n": sibling,
            "validate": False,
            "group_id": str(group),
            "group_size": SIBLINGS,
        }
        for group in range(2)
        for sibling in range(SIBLINGS)
    ]
    assert [trace.identity for trace in run.scored] == expected
    assert {run.sample_of(trace)["model_version"] for trace in run.scored} == {7}
    assert all(
        trace.root.attributes["rollout.group_id"] == str(run.sample_of(trace)["group_id"])
        for trace in run.scored
    )


def test_rewards_and_advantages_equal_those_of_the_samples(run: Run) -> None:
    """A function that gives no reward gives no score."""
    for trace in run.scored:
        sample = run.sample_of(trace)
        rewards = {
            name.removeprefix("rewards/"): value
            for name, value in sample["metrics"].items()
            if (name == "reward" or name.startswith("rewards/")) and value == value
        }
        of_worker = {name: value for name, value in trace.scores.items() if name in WORKERS}
        expected = {**rewards, "trained_reward": rewards.get("reward"), "advantage": sample["advantage"]}
        assert of_worker == {name: value for name, value in expected.items() if value is not None}
    assert sum("is_short" not in trace.scores for trace in run.scored) == 2
    assert {trace.scores["reward"] > 1 for trace in run.scored} == {True, False}


def test_reward_functions_are_spans_with_times_and_their_reward(run: Run) -> None:
    """A call that rewards a group is a span in each of its trajectories."""
    for trace in run.scored:
        sample = run.sample_of(trace)
        spans = [span for span in trace.of_kind("EVALUATOR") if not span.name.startswith("score ")]
        rewards = {span.name: json.loads(span.attributes.get("output.value", "NaN")) for span in spans}
        expected = {name: sample["metrics"][f"rewards/{name}"] for name in ("mentions_five", "is_short")}
        assert sorted(map(str, rewards.items())) == sorted(map(str, expected.items()))  # NaN differs from NaN
        assert all(span.attributes["rollout.batch_size"] == SIBLINGS for span in spans)
        assert all(span.span.end_time_unix_nano > span.span.start_time_unix_nano for span in spans)


def test_model_calls_have_the_tokens_and_messages_of_the_server(run: Run) -> None:
    """Each call is found by the span id that its request carried."""
    calls = {span.span.span_id.hex(): span for trace in run.traces for span in trace.calls}
    for exchange in run.exchanges:
        span = calls[exchange["traceparent"].split("-")[2]]
        assert span.input["prompt_ids"] == exchange["prompt_ids"]
        assert span.output["response_ids"] == exchange["response_ids"]
        assert span.output["log_probs"] == exchange["log_probs"]
        usage = [span.attributes[f"gen_ai.usage.{name}_tokens"] for name in ("input", "output")]
        assert usage == [len(exchange["prompt_ids"]), len(exchange["response_ids"])]
        is_cut = exchange["text"] == FIRST_TURNS[3]
        assert span.attributes["gen_ai.response.finish_reasons"] == ["length" if is_cut else "stop"]
        versions = [span.attributes[f"rollout.policy_version_{name}"] for name in ("min", "max")]
        assert versions == [7, 7]
    assert len(run.exchanges) == sum(len(trace.calls) for trace in run.scored)


def test_messages_of_a_trace_are_those_of_its_sample(run: Run) -> None:
    """The last model call's messages and reply are the sample's prompt and completion."""
    for trace in run.scored:
        sample, last = run.sample_of(trace), trace.calls[-1]
        conversation = sample["prompt"] + sample["completion"]
        tokens = {"response_ids", "log_probs"}
        message = {name: value for name, value in last.output.items() if name not in tokens}
        assert [*last.input["messages"], message] == conversation
        assert trace.root.input == sample["prompt"]
        assert trace.root.output == sample["completion"]
        facts = [trace.root.attributes[f"rollout.{name}"] for name in FACTS]
        generated = sum(len(call.output["response_ids"]) for call in trace.calls)
        assert facts == [generated, 1 + len(sample["completion"]), 1]


def test_sampled_tokens_of_a_sample_are_the_answers_of_its_model_calls(run: Run) -> None:
    """The tokens that the loss counts are those of the model calls, in order."""
    for trace in run.scored:
        sample = run.sample_of(trace)
        mask = sample["completion_mask"]
        trained = [id_ for id_, counts in zip(sample["input_ids"], mask, strict=True) if counts]
        assert trained == [id_ for call in trace.calls for id_ in call.output["response_ids"]]


def test_tool_calls_have_arguments_answers_and_errors(run: Run) -> None:
    """A failure that TRL turns into text is an error of the span; so is a tool that does not exist."""
    found = {
        trace.identity["rollout_n"] if trace.identity["sample_index"] == 1 else None: [
            (span.name, span.input["arguments"], span.attributes.get("output.value"), span.span.status.code)
            for span in trace.of_kind("TOOL")
        ]
        for trace in run.scored
    }
    seen = sorted((found[sibling] for sibling in range(SIBLINGS)), key=str)
    unknown = "\"{'error': 'unknown tool nowhere'}\""
    assert seen == [
        [("execute_tool add", {"a": 2, "b": 3}, "5", 0)],
        [
            ("execute_tool fail", {"text": "boom"}, None, ERROR),
            ("execute_tool add_later", {"a": 4, "b": 4}, "8", 0),
        ],
        [
            ("execute_tool nowhere", {"x": 1}, unknown, ERROR),
            ("execute_tool add", {"a": 1, "b": 1}, "2", 0),
        ],
        [],
    ]
    (failed,) = {
        event.name: {attribute.key: attribute.value.string_value for attribute in event.attributes}
        for trace in run.scored
        for span in trace.of_kind("TOOL")
        for event in span.span.events
    }.values()
    assert failed["exception.type"] == "ValueError"
    assert failed["exception.message"] == "boom"


def test_refused_request_is_an_event_of_a_call_that_succeeds(run: Run) -> None:
    """TRL asks again."""
    events = [
        [event.name for event in call.span.events]
        for trace in run.scored
        for call in trace.calls
        if call.span.events
    ]
    assert events == [["exception"]]


def test_trained_trajectories_are_those_of_the_trainers_micro_batch(run: Run) -> None:
    """Each says in which step, and how many of its tokens the loss counts."""
    for trace in run.scored:
        sample = run.sample_of(trace)
        said = {name: value for name, value in trace.scores.items() if name in TRAINERS}
        if sample["input_ids"] in run.trained:
            tokens = sum(sample["completion_mask"])
            assert said == {"trained": True, "trained_tokens": tokens, "trained_step": FIRST_STEP}
        else:
            assert said == {"trained": False}
    assert run.trained


def test_lag_is_counted_from_the_version_of_the_model_calls(run: Run) -> None:
    """The trainer has the worker's version when it trains, and the next one when it drops a stale row."""
    for trace in run.scored:
        sample = run.sample_of(trace)
        reason = trace.given["trained"].comment
        lag = 0 if sample["input_ids"] in run.trained else None
        assert trace.scores.get("policy_lag") == (1 if reason == STALE else lag)


def test_mismatch_is_that_of_the_loss_and_of_the_server(run: Run) -> None:
    """Each trained row's; the token is counted from the first one of the model."""
    for trace in run.scored:
        sample = run.sample_of(trace)
        of_loss = run.log_probs.get(json.dumps(sample["input_ids"]))
        if of_loss is None:
            assert not [name for name in trace.scores if name.startswith("logprob_diff")]
            continue
        mask = np.array(sample["completion_mask"], dtype=bool)
        counted = np.flatnonzero(mask)
        sampler = np.array(sample["old_log_probs"], dtype=np.float32)[mask]
        differences = np.abs(sampler - np.array(of_loss, dtype=np.float32))
        token = counted[differences.argmax()]
        begins = mask & ~np.roll(mask, 1)
        assert trace.scores["logprob_diff_max"] == differences.max()
        assert trace.scores["logprob_diff_mean"] == pytest.approx(differences.mean(), rel=1e-5)
        assert trace.scores["logprob_diff_share"] == pytest.approx((differences > 0.1).mean())
        assert trace.scores["logprob_diff_token"] == token - counted[0]
        assert trace.scores["logprob_diff_turn"] == begins[: token + 1].sum()


def test_trajectory_that_is_not_trained_says_why(run: Run) -> None:
    """The first row is stale, the longest is over the budget, and training ends before the others."""
    reasons = {}
    for trace in run.scored:
        reasons[run.samples.index(run.sample_of(trace))] = trace.given["trained"].comment
    rows = [sample["input_ids"] for sample in run.samples]
    longest, last = max(map(len, rows)), rows.index(run.trained[-1])
    expected = {
        position: STALE
        if position == 0
        else None
        if row in run.trained
        else OVERSIZE
        if len(row) == longest and position < last
        else UNUSED
        for position, row in enumerate(rows)
    }
    assert reasons == expected
    assert {STALE, UNUSED} <= set(expected.values())


def test_trajectory_whose_answer_is_faulty_fails_and_its_siblings_are_cancelled(run: Run) -> None:
    """TRL's worker ends with the error; nothing of this group is scored."""
    ended = [trace for trace in run.traces if trace.identity["sample_index"] == 3]
    types = Counter(trace.root.attributes["error.type"] for trace in ended)
    assert types == {"IndexError": 1, "asyncio.exceptions.CancelledError": SIBLINGS - 1}
    assert all(trace.scores == {} for trace in ended)
    assert all(call.span.status.code == ERROR for trace in ended for call in trace.calls)


def test_trajectory_of_a_killed_worker_ends_as_an_error(run: Run) -> None:
    """Crash recovery ends it; nothing else is recorded."""
    recovered = [trace for trace in run.traces if trace not in run.scored and trace.identity["step"] == 0]
    assert sorted(trace.identity["rollout_n"] for trace in recovered) == list(range(SIBLINGS))
    assert all(trace.root.span.status.code == ERROR for trace in recovered)
    assert len(run.traces) == len(run.scored) + 2 * SIBLINGS


def test_nothing_of_ours_is_in_the_programs_output(run: Run) -> None:
    """No warning and no internal error; at the end, one message tells where the traces are."""
    lines = [line for line in run.output.splitlines() if "otel-rollout" in line]
    assert not [line for line in lines if "internal error" in line or "has no" in line], lines
