"""Replies of the scripted engine, for each kind of question."""

from __future__ import annotations

from typing import Any

from otel_rollout_demo.tokenizer import load_tokenizer

SYSTEM = "Answer with tools."
QUESTIONS = {
    0: "add: what is 19 and 23?",  # a function tool
    1: "note: keep 42 in mind",  # a BaseTool whose execute is decorated
    2: "break: use what is broken",  # a BaseTool whose execute is not decorated, and raises
    3: "lost: call what does not exist, then write what nobody can read",
    4: "say: hello",  # no tool
}
"""Sample index → question."""
UNANSWERED = 5
"""A sample whose question the engine never answers."""
AGENTS = {index: "single_turn_agent" if index == 4 else "tool_agent" for index in QUESTIONS}
POLICY_VERSION = 7


def _call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


REPLIES = {
    "add": [_call("add", '{"a": 19, "b": 23}'), "#### 42"],
    "note": [_call("note", '{"text": "42"}'), "#### 42"],
    "break": [_call("broken", "{}"), "#### 0"],
    "lost": [_call("nowhere", "{}"), _call("add", "{not json") + _call("add", '"no object"'), "#### 0"],
    "say": ["hello", "hello again"],
}


_NO_ANSWER = "wait: for what never comes"


class Script:
    """Reply to prompts, in a fixed way."""

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer()

    def reply(self, prompt_ids: list[int]) -> tuple[list[int], str] | None:
        """Return the tokens that follow a prompt, and their stop reason.

        None for no answer.

        A question with "twice" in it is aborted after its first two tokens and resumed by the client.
        """
        conversation: str = self._tokenizer.decode(prompt_ids)
        before, _, begun = conversation.rpartition("<|im_start|>assistant\n")
        question = conversation.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        if question == _NO_ANSWER:
            return None
        turn = before.count("<|im_start|>assistant\n")
        text = REPLIES[question.split(":")[0]][turn] + "<|im_end|>"
        tokens = self._tokenizer.encode(text[len(begun) :], add_special_tokens=False)
        if "twice" in question and turn == 0 and not begun:
            return tokens[:2], "aborted"
        return tokens, "completed"


def rows(indices: list[int], step: int, validate: bool, twice: bool) -> list[dict[str, Any]]:
    """Return rows of a dataset as verl's dataset gives them to trainers."""
    kind = "val" if validate else "train"
    return [
        {
            "raw_prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": _question(index, twice)},
            ],
            "agent_name": AGENTS.get(index, "tool_agent"),
            "data_source": "script",
            "reward_model": {"style": "rule", "ground_truth": "42"},
            "extra_info": {"index": index},
            "index": index,
            "tools_kwargs": {},
            "uid": f"{kind}{step}q{index}",
        }
        for index in indices
    ]


def _question(index: int, twice: bool) -> str:
    if index == UNANSWERED:
        return _NO_ANSWER
    return QUESTIONS[index] + (" (twice)" if twice and index == 0 else "")
