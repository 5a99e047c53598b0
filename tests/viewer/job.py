"""Record a rollout of differing siblings, a validation, and token ids.

Print the ids of its trajectories as JSON, by path.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from opentelemetry import trace
from tokenizers import Tokenizer

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
from otel_rollout.base import semconv

SYSTEM = "Use the calculator."
QUESTION = "What is 6 times 7?"
HOSTILE = "[bold]not bold[/bold] <script>alert(1)</script> \x1b[31mnot red\x1b[0m & done"
TOKENIZER = Path(__file__).parents[2] / "examples/otel_rollout_demo/data/tokenizer/tokenizer.json"


class Agent:
    """Call a tool once and give a fixed answer."""

    def __init__(self, expression: str, answer: str) -> None:
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION},
        ]
        self.expression = expression
        self.answer = answer

    @rollout_trace_op(kind=semconv.KIND_LLM)
    def generate(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        span = trace.get_current_span()
        span.set_attribute(semconv.GEN_AI_USAGE_INPUT_TOKENS, 10 * len(messages))
        span.set_attribute(semconv.GEN_AI_USAGE_OUTPUT_TOKENS, 5)
        if messages[-1]["role"] == "tool":
            return {
                "choices": [
                    {"finish_reason": "stop", "message": {"role": "assistant", "content": self.answer}}
                ]
            }
        function = {"name": "calculator", "arguments": json.dumps({"expression": self.expression})}
        call = {"id": "call-1", "type": "function", "function": function}
        message = {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
        return {"choices": [{"finish_reason": "tool_calls", "message": message}]}

    @rollout_trace_op(kind=semconv.KIND_TOOL)
    def calculator(self, expression: str) -> str:
        trace.get_current_span().set_attribute(semconv.GEN_AI_TOOL_CALL_ID, "call-1")
        if expression != "6 * 7":
            raise ValueError(f"cannot read {expression!r}")
        return "42"

    def run(self) -> None:
        self.messages.append(self.generate(list(self.messages))["choices"][0]["message"])
        try:
            answer = self.calculator(self.expression)
        except ValueError as error:
            answer = f"Error: {error}"
        self.messages.append({"role": "tool", "tool_call_id": "call-1", "content": answer})
        self.generate(list(self.messages))


class TokenAgent:
    """Send token ids; each request repeats all before it."""

    def __init__(self, turns: int, last: str) -> None:
        self.tokenizer = Tokenizer.from_file(str(TOKENIZER))
        self.turns = turns
        self.last = last

    def encoded(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    @rollout_trace_op(kind=semconv.KIND_LLM, token2text=True)
    def generate(self, prompt_ids: list[int], said: str) -> dict[str, Any]:
        return {"token_ids": self.encoded(said), "stop_reason": "completed"}

    def run(self) -> None:
        ids = self.encoded("<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n")
        for turn in range(self.turns):
            said = self.last if turn == self.turns - 1 else f"Number {turn} it is."
            ids = [*ids, *self.generate(ids, f"{said}<|im_end|>")["token_ids"]]
            ids = [
                *ids,
                *self.encoded(f"\n<|im_start|>user\nAfter {turn}?<|im_end|>\n<|im_start|>assistant\n"),
            ]


def main() -> None:
    """Record the rollout."""
    ids: dict[str, str | None] = {}
    for sibling, (expression, answer) in enumerate(
        [("6 * 7", "It is 42."), ("6 x 7", "It is 41."), ("6 * 7", HOSTILE)]
    ):
        with rollout_trace_attr(
            step=1, sample_index=7, rollout_n=sibling, agent_name="calculating"
        ) as trajectory:
            Agent(expression, answer).run()
            score("reward", float("42" in answer), comment="looked for 42")
        ids[f"1/7/{sibling}"] = trajectory.id
    with rollout_trace_attr(step=1, sample_index=7, rollout_n=0, validate=True) as trajectory:
        Agent("6 * 7", "It is 42.").run()
    ids["validation/1/7/0"] = trajectory.id
    for sibling, last in enumerate(["The end is here.", "The end is near."]):
        with rollout_trace_attr(step=2, sample_index="counting", rollout_n=sibling) as trajectory:
            TokenAgent(5, last).run()
        ids[f"2/counting/{sibling}"] = trajectory.id
    time.sleep(0.01)  # scores are ordered by time, in milliseconds
    score("judged", "well", comment="by hand", trajectory=ids["1/7/0"])
    report = otel_rollout.shutdown(60)
    assert not report.undelivered, report.summary()
    print(json.dumps(ids))


if __name__ == "__main__":
    main()
