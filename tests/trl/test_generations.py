"""Tests of batches that generate in unusual ways, with a stand-in for TRL's trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from otel_rollout.base import semconv
from otel_rollout.integrations.state import state
from tests.spool_reader import Recorded
from tests.trl.stand_in import calls, says, traced, user

Reader = Callable[[], list[Recorded]]


@pytest.fixture(autouse=True)
def _first_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "trainer_count", 0)


def shown(span: Recorded, key: str = semconv.OUTPUT_VALUE) -> Any:
    """Return a span's output, or its input."""
    return json.loads(span.attributes[key]) if key in span.attributes else None


def of_row(spans: list[Recorded], row: int) -> list[Recorded]:
    """Return the spans of one sibling in order, the root first."""
    found = [span for span in spans if span.attributes.get("rollout.rollout_n") == row]
    return sorted(found, key=lambda span: (bool(span.span.parent_span_id), span.span.start_time_unix_nano))


def roots(spans: list[Recorded]) -> list[Any]:
    """Return prompt, completion, length and turns of each sibling's trajectory."""
    found = [of_row(spans, row)[0] for row in range(2)]
    return [
        (
            *(text_of(shown(root, key)) for key in (semconv.INPUT_VALUE, semconv.OUTPUT_VALUE)),
            root.attributes.get("rollout.completion_length"),
            root.attributes.get("rollout.num_turns"),
        )
        for root in found
    ]


def text_of(messages: Any) -> Any:
    """Return the texts of messages, joined."""
    return messages and " ".join(message["content"] for message in messages)


def generations(spans: list[Recorded]) -> list[tuple[Any, Any]]:
    """Return what the first sibling's model calls were sent, and what they answered."""
    found = [span for span in of_row(spans, 0) if span.name == "generate"]
    return [(text_of(shown(span, semconv.INPUT_VALUE)["messages"]), shown(span)["content"]) for span in found]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return our warnings."""
    return [record.getMessage() for record in caplog.records if record.name == "otel_rollout"]


def numbered(call: int, row: int) -> dict[str, Any]:
    """Answer with the number of the batched call, and that of the row."""
    return says(f"{call}.{row}")


def test_answers_of_the_generation_that_is_scored_win(recorded: Reader) -> None:
    """The first generation's prompts are hidden. Its calls are recorded as what they were."""
    trainer = traced()

    class Rewriting(trainer):  # type: ignore[misc, valid-type]
        def _generate(self, prompts: list[Any]) -> Any:
            rewritten, *_ = zip(*super()._generate([user("REWRITE")] * len(prompts))[3], strict=True)
            return super()._generate([user(message["content"]) for message in rewritten])

    Rewriting(numbered).run()
    spans = recorded()
    assert roots(spans) == [("1.0", "2.0", 2, 2), ("1.1", "2.1", 2, 2)]
    assert generations(spans) == [("REWRITE", "1.0"), ("1.0", "2.0")]


def test_second_generation_does_not_continue_the_first_one(recorded: Reader) -> None:
    """The first one ends in a tool loop; the second one's calls have contexts of their own."""
    trainer = traced()

    class Twice(trainer):  # type: ignore[misc, valid-type]
        def _generate(self, prompts: list[Any]) -> Any:
            super()._generate(prompts)
            return super()._generate(prompts)

    def add() -> str:
        return "sum"

    run = Twice(lambda call, row: calls(("add", {})) if call % 2 else numbered(call, row), [add])
    run.run()
    spans = recorded()
    assert [text_of(completion) for completion in run.trained] == [" sum 4.0", " sum 4.1"]
    assert roots(spans) == [("Q", " sum 4.0", 5, 4), ("Q", " sum 4.1", 5, 4)]
    assert generations(spans) == [("Q", ""), ("Q  sum", "2.0"), ("Q", ""), ("Q  sum", "4.0")]


def test_first_generation_wins_if_the_trainer_uses_it(recorded: Reader) -> None:
    """Best of two: each row has the prompt and the length of the answer that was chosen."""
    trainer = traced()

    class Best(trainer):  # type: ignore[misc, valid-type]
        def _generate(self, prompts: list[Any]) -> Any:
            first = super()._generate([user("first")] * 2)
            second = super()._generate([user("second")] * 2)
            first[3][1] = second[3][1]
            return first

    Best(numbered).run()
    assert roots(recorded()) == [("first", "1.0", 2, 2), ("second", "2.1", 2, 2)]


def test_completion_that_the_trainer_has_changed_is_recorded_as_scored(recorded: Reader) -> None:
    """Its number of generated tokens is not known. What a reward function changes is not shown."""
    trainer = traced()

    class Changing(trainer):  # type: ignore[misc, valid-type]
        def _generate(self, prompts: list[Any]) -> Any:
            ids, answers, mask, completions, log_probs = super()._generate([user("hidden")] * 2)
            completions[0] = [says("changed")]
            return ids, answers, mask, completions, log_probs

    def mutate(completions: list[Any]) -> None:
        completions[0][0]["content"] = "mutated"
        completions[1].append(says("more"))

    Changing(numbered, reward=mutate).run()
    assert roots(recorded()) == [("Q", "changed", None, 2), ("hidden", "1.1", 2, 2)]


def test_generation_by_a_reward_function_is_left_out(
    recorded: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    """The judge has as many prompts as the batch has rows. One warning says what is missing."""
    run = traced()(numbered, reward=lambda completions: run._generate([user("JUDGE")] * 2) and None)
    run.run()
    spans = recorded()
    assert roots(spans) == [("Q", "1.0", 2, 2), ("Q", "1.1", 2, 2)]
    assert generations(spans) == [("Q", "1.0")]
    assert warnings(caplog) == [
        "otel-rollout: a generation is not recorded: the trainer generates while the rewards of a TRL batch "
        "are calculated, or later."
    ]


def test_generation_by_a_tool_is_left_out(recorded: Reader, caplog: pytest.LogCaptureFixture) -> None:
    """The tool's span is recorded, and the row's own calls keep their contexts."""

    def ask() -> str:
        return str(run._generate([user("INNER")] * 2)[3][0][0]["content"])

    def reply(call: int, row: int) -> dict[str, Any]:
        return calls(("ask", {})) if (call, row) == (1, 0) else numbered(call, row)

    run = traced()(reply, [ask])
    run.run()
    spans = recorded()
    assert roots(spans) == [("Q", " 2.0 3.0", 5, 4), ("Q", "1.1", 2, 2)]
    assert generations(spans) == [("Q", ""), ("Q  2.0", "3.0")]
    assert warnings(caplog) == [
        "otel-rollout: a generation is not recorded: it began while the trainer generated a TRL batch."
    ]


def test_answers_that_are_not_certain_are_left_out(
    recorded: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer with rewards of its own has generated twice, and then for one row only."""
    trainer = traced()

    class Own(trainer):  # type: ignore[misc, valid-type]
        def _generate(self, prompts: list[Any]) -> Any:
            super()._generate(prompts)
            result = super()._generate(prompts)
            super()._generate(prompts[:1])
            return result

        def _calculate_rewards(self, *_: Any) -> None:
            pass

    Own(numbered).run()
    spans = recorded()
    assert roots(spans) == [(None, None, None, None)] * 2
    assert generations(spans) == [("Q", "1.0"), ("Q", "2.0")]
    assert warnings(caplog) == [
        "otel-rollout: model calls of a TRL batch are not recorded: 1 prompts were generated, and 2 "
        "were expected.",
        "otel-rollout: prompts and completions of a TRL batch are not recorded: the trainer has "
        "generated several times, and it is not known which answers it uses.",
    ]


def test_tool_that_is_added_while_the_loop_runs_is_no_error(recorded: Reader) -> None:
    """Its answer is recorded. Calls that cannot reach it, and unknown names, are errors as before."""

    def add() -> str:
        trainer._sync_tool_dicts[0]["new"] = lambda x: x + 1
        return "added"

    asked = calls(
        ("new", {"x": 0}), ("add", {}), ("new", {"x": 1}), ("new", "text"), ("add", 1), ("nope", {})
    )
    trainer = traced()(lambda call, row: asked if (call, row) == (1, 0) else says("done"), [add])
    trainer.run()
    tools = {
        (span.attributes["gen_ai.tool.name"], json.dumps(shown(span, semconv.INPUT_VALUE)["arguments"])): (
            span.span.status.code,
            shown(span),
        )
        for span in of_row(recorded(), 0)
        if span.name.startswith("execute_tool")
    }
    assert tools == {
        ("new", '{"x": 0}'): (2, None),  # before it was added
        ("add", "{}"): (0, "added"),
        ("new", '{"x": 1}'): (0, "2"),
        ("new", '"text"'): (2, None),
        ("add", "1"): (2, None),
        ("nope", "{}"): (2, None),
    }
