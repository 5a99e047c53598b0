"""examples/own_trainer: a trainer that knows nothing of tracing, and its integration on the public kit."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_rollout.rollout_table import open_table
from tests import given_scores
from tests.spool_reader import Recorded, read_trajectories

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_trainer"
STEPS = 3


class Node(NamedTuple):
    """What is compared of a span, and the spans below it in order of their start."""

    name: str
    kind: str
    input: Any
    output: Any
    error: str
    below: list[Node]


@pytest.fixture
def train(test_exporters: None, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs the example as a program of its own and returns what it printed."""

    def run(exporter: str, program: Path = EXAMPLE / "train.py") -> str:
        variables = {
            "OTEL_TRACES_EXPORTER": exporter,
            "OTEL_TEST_FILE": str(tmp_path / "delivered"),
            "OTEL_ROLLOUT_DELTA_URI": str(tmp_path / "rollouts"),
        }
        ran = subprocess.run(
            [sys.executable, "-W", "error", str(program), str(STEPS)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the names of the training script, untraced in this process."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield runpy.run_path(str(EXAMPLE / "train.py"))
    for name in ("pocket_trainer", "pocket_tracing"):
        sys.modules.pop(name, None)


def untraced_account(example: dict[str, Any]) -> dict[tuple[int, int, int], Any]:
    """Return (step, question, sibling) → the conversation, of an untraced training."""
    trainer = example["make_trainer"]()
    return {
        (step, *divmod(position, trainer.group_size)): conversation
        for step in range(1, STEPS + 1)
        for position, conversation in enumerate(trainer.train_step())
    }


def expected(conversation: Any) -> Node:
    """Return the tree of a conversation that the trainer has given."""
    below = []
    for position, message in enumerate(conversation.messages):
        if message["role"] == "assistant":
            asked = {"messages": conversation.messages[:position]}
            below.append(Node("generate", "LLM", asked, message, "", []))
        elif message["role"] == "tool":
            call = conversation.messages[position - 1]["tool_calls"][0]["function"]
            failed, text = message["content"].startswith("Error: "), message["content"]
            output = None if failed else int(text)
            error = f"ZeroDivisionError: {text.removeprefix('Error: ')}" if failed else ""
            below.append(Node("execute_tool calculate", "TOOL", call["arguments"], output, error, []))
    for name, reward in conversation.rewards.items():
        below += [Node(name, "EVALUATOR", None, reward, "", []), score(name, reward)]
    below.append(score("reward", sum(conversation.rewards.values())))
    first, last = conversation.messages[0], conversation.messages[-1]
    return Node("rollout_trace", "AGENT", first, last, "", below)


def score(name: str, value: Any) -> Node:
    """Return the span of a score."""
    return Node(f"score {name}", "EVALUATOR", None, value, "", [])


def recorded(span: Recorded, spans: list[Recorded]) -> Node:
    """Return the tree of a recorded span."""
    below = [each for each in spans if each.span.parent_span_id == span.span.span_id]
    below.sort(key=lambda each: each.span.start_time_unix_nano)
    return Node(
        span.name,
        span.attributes.get("openinference.span.kind", ""),
        span.input if "input.value" in span.attributes else None,
        span.output if "output.value" in span.attributes else None,
        span.span.status.message,
        [recorded(each, spans) for each in below],
    )


def test_every_trajectory_of_the_trainer_is_one_tree(
    train: Callable[..., str], example: dict[str, Any], tmp_path: Path
) -> None:
    """Messages, tools with their errors, rewards and advantages equal the account of an untraced training."""
    assert train("test-file") == train("none")
    by_trace = defaultdict(list)
    for span in read_trajectories(tmp_path / "spool"):
        by_trace[span.span.trace_id].append(span)
    found = {}
    for spans in by_trace.values():
        (root,) = [span for span in spans if not span.span.parent_span_id]
        facts = root.attributes
        identity = tuple(facts[f"rollout.{name}"] for name in ("step", "sample_index", "rollout_n"))
        found[identity] = recorded(root, spans)
        assert (facts["rollout.group_size"], facts["rollout.policy_version_min"]) == (4, identity[0] - 1)
    account = untraced_account(example)
    assert found == {identity: expected(conversation) for identity, conversation in account.items()}


def test_outcome_of_a_step_reaches_each_of_its_trajectories(
    train: Callable[..., str], example: dict[str, Any], tmp_path: Path
) -> None:
    """Advantage, whether the loss uses it, and why not: from one call per step."""
    train("delta")
    scores = given_scores.of_run(tmp_path / "rollouts")
    ids = open_table(tmp_path / "rollouts").sql(
        "SELECT trace_id, step, sample_index, rollout_n FROM trajectories"
    )
    by_identity = {
        (row["step"], int(row["sample_index"]), int(row["rollout_n"])): scores[row["trace_id"]] for row in ids
    }
    account = untraced_account(example)
    assert by_identity.keys() == account.keys()
    for identity, conversation in account.items():
        advantage = conversation.advantage
        found = by_identity[identity]
        assert found["advantage"] == (advantage, None)
        assert found["trained"] == (advantage != 0, None if advantage else "as its group")


def test_batched_model_call_is_named_on_the_span_of_each_conversation(
    train: Callable[..., str], tmp_path: Path
) -> None:
    """Spans of one batch have its times, its name and its size."""
    train("test-file")
    calls = [span for span in read_trajectories(tmp_path / "spool") if span.name == "generate"]
    batches = defaultdict(list)
    for call in calls:
        batches[call.attributes["rollout.batch_id"]].append(call)
    assert len(batches) == 2 * STEPS
    for members in batches.values():
        assert {member.attributes["rollout.batch_size"] for member in members} == {len(members)}
        assert len({(m.span.start_time_unix_nano, m.span.end_time_unix_nano) for m in members}) == 1


FAILING = """
import train

def fails(conversation):
    raise ValueError("no reward today")

trainer = train.make_trainer()
trainer.reward_functions = {"fails": fails}
try:
    trainer.train_step()
except ValueError as error:
    print(error)
"""


def test_error_that_ends_a_step_ends_its_trajectories_as_failed(
    train: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's exception is that of the untraced trainer."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLE), os.environ.get("PYTHONPATH", "")]))
    program = tmp_path / "failing.py"
    program.write_text(FAILING)
    assert train("test-file", program) == train("none", program) == "no reward today\n"
    spans = read_trajectories(tmp_path / "spool")
    roots = [span for span in spans if not span.span.parent_span_id]
    assert [root.span.status.message for root in roots] == ["ValueError: no reward today"] * 12
    (failed,) = [span for span in spans if span.name == "fails"]
    assert failed.span.status.message == "ValueError: no reward today"
