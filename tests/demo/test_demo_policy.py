"""The scripted model: repeatable, fallible, and better with each update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import fmean

import pytest

from otel_rollout_demo.dataset import Row, load
from otel_rollout_demo.policy import ScriptedPolicy, worked_steps
from otel_rollout_demo.reward import compute_score

ROWS = load("train")


def conversation(row: Row, *turns: tuple[str, str]) -> str:
    """Render a conversation as the model reads it."""
    said = [("user", row["extra_info"]["question"]), *turns]
    return (
        "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said) + "<|im_start|>assistant\n"
    )


def replies(policy: ScriptedPolicy, row: Row, version: int = 0, n: int = 100) -> Iterator[str]:
    """Return the first turns of ``n`` trajectories."""
    for i in range(n):
        yield policy.reply(conversation(row), request_id=f"r{i}", version=version, temperature=1.0)


def test_equal_seed_and_request_give_equal_replies() -> None:
    """A reply depends on seed, request, weights and conversation, and on nothing else."""
    first, second = (list(replies(ScriptedPolicy(ROWS, seed=7), ROWS[3])) for _ in range(2))
    assert first == second
    assert first != list(replies(ScriptedPolicy(ROWS, seed=8), ROWS[3]))


def test_siblings_rarely_say_the_same_letter_for_letter() -> None:
    """Trajectories of one problem that calculate the same use other words, as samples of a model do."""
    policy, row = ScriptedPolicy(ROWS, seed=7), ROWS[2]
    steps = worked_steps(row["extra_info"]["answer"])
    heard = []
    for number in range(100):
        turns: list[tuple[str, str]] = []
        said = "<tool_call>"
        while "<tool_call>" in said:
            said = policy.reply(
                conversation(row, *turns), request_id=f"r{number}", version=9, temperature=1.0
            )
            turns.append(("assistant", said))
            done = sum(role == "tool" for role, _ in turns)
            for step in steps[done : done + said.count("<tool_call>")]:
                turns.append(("tool", f"<tool_response>\n{step.value}\n</tool_response>"))
        heard.append("".join(said for role, said in turns if role == "assistant"))
    assert len(set(heard)) > 50


@pytest.mark.parametrize(
    "words",
    [
        '"expression": "14 * 7"}}',
        '"expression": "14 * 7"}\n',
        '"python"',
        "/ 0",
        "14 + 7",
        "not sure",
        "####",
    ],
)
def test_first_turns_contain_each_kind_of_mistake(words: str) -> None:
    """Some first turns are right, and each mistake that a first turn can have occurs."""
    assert any(words in reply for reply in replies(ScriptedPolicy(ROWS, seed=0), ROWS[0], n=300))


def test_independent_steps_are_mostly_called_in_one_turn() -> None:
    """Independent calculations mostly share a turn; dependent ones never do."""
    calls = [
        reply.count("<tool_call>") for reply in replies(ScriptedPolicy(ROWS, seed=0), ROWS[3], version=9)
    ]
    assert Counter(calls)[2] > Counter(calls)[1] > 0
    dependent = [
        reply.count("<tool_call>") for reply in replies(ScriptedPolicy(ROWS, seed=0), ROWS[0], version=9)
    ]
    assert max(dependent) == 1


def test_later_steps_use_the_tools_results() -> None:
    """A wrong intermediate result is used in later steps, as a model would."""
    policy = ScriptedPolicy(ROWS, seed=0)
    prompt = conversation(ROWS[0], ("tool", "<tool_response>\n21\n</tool_response>"))
    said = [policy.reply(prompt, request_id=f"r{i}", version=9, temperature=0.0) for i in range(10)]
    assert any('"21 * 6"' in reply for reply in said)


def test_tool_error_leads_to_another_try_or_to_the_end() -> None:
    """After a tool error some trajectories try again and others end."""
    policy = ScriptedPolicy(ROWS, seed=0)
    prompt = conversation(ROWS[0], ("tool", "<tool_response>\nError: division by zero\n</tool_response>"))
    said = [policy.reply(prompt, request_id=f"r{i}", version=9, temperature=1.0) for i in range(50)]
    assert any("14 * 7" in reply for reply in said)
    assert any("not sure" in reply for reply in said)


def test_unknown_problem_gets_an_answer_without_number() -> None:
    """A question outside the dataset raises no exception."""
    said = ScriptedPolicy(ROWS, seed=0).reply("What?", request_id="r", version=0, temperature=1.0)
    assert compute_score("", said, "1").score == 0


def test_updates_reduce_mistakes() -> None:
    """The share of right first turns rises with each update."""
    policy = ScriptedPolicy(ROWS, seed=0)
    right = [
        fmean('"expression": "14 * 7"}}' in reply for reply in replies(policy, ROWS[0], version, n=300))
        for version in range(4)
    ]
    assert right == sorted(right)
    assert right[-1] - right[0] > 0.1
