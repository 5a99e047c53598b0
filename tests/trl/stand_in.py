"""A trainer without torch: TRL's traced methods, and in which order they call each other."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from otel_rollout.integrations.trl.patched_modules import seams

Message = dict[str, Any]


class Column(list[Any]):
    """A column of a tensor, or a mask of which that is the sum."""

    @property
    def shape(self) -> tuple[int]:
        """The number of rows."""
        return (len(self),)

    def tolist(self) -> list[Any]:
        """Return the values."""
        return list(self)

    def sum(self, dim: int) -> Column:
        """Return the number of tokens of each row."""
        return self


class Base:
    """The methods of ``GRPOTrainer``, not traced.

    Args:
        reply: returns the message that answers the row of this number in a batched call of this number.
        tools: the functions that the model may call.
        reward: is called with the completions.
    """

    max_tool_calling_iterations = 3
    num_generations = num_generations_eval = 2
    eos_token_ids = (2,)
    reward_func_names = ()

    def __init__(
        self,
        reply: Callable[[int, int], Message],
        tools: Sequence[Callable[..., Any]] = (),
        reward: Callable[[list[Any]], None] = lambda completions: None,
    ) -> None:
        self.reply, self.tools, self.reward = reply, tools, reward
        self.model = SimpleNamespace(training=True)
        self.state, self._step = SimpleNamespace(global_step=0), 0
        self.accelerator = SimpleNamespace(num_processes=1, process_index=0)
        self._tokenizer = SimpleNamespace(pad_token_id=0)
        self._calls = itertools.count(1)
        self._parsed: dict[int, Message] = {}
        self.trained: list[Any] = []

    def _generate_single_turn(self, prompt_ids: Sequence[Any]) -> tuple[list[list[int]], None]:
        call, ids = next(self._calls), []
        for row in range(len(prompt_ids)):
            token = 100 * call + row
            self._parsed[token] = copy.deepcopy(self.reply(call, row))
            ids.append([token, 2])
        return ids, None

    def _get_tool_suffix_ids(self, tool_messages: Sequence[Message]) -> list[int]:
        return [7] * len(tool_messages)

    def _tool_call_loop(
        self, prompt_ids: Sequence[Any], completion_ids: list[Any], completions: list[list[Message]]
    ) -> list[Any]:
        rows = [row for row, messages in enumerate(completions) if messages[-1].get("tool_calls")]
        while rows:
            suffixes = []
            for row in rows:
                answers = []
                for call in completions[row][-1]["tool_calls"]:
                    name, arguments = call["function"]["name"], call["function"]["arguments"]
                    try:
                        content = str(self._sync_tool_dicts[row][name](**arguments))
                    except Exception as error:
                        content = str({"error": str(error)})
                    answers.append({"role": "tool", "name": name, "content": content})
                completions[row] += answers
                suffixes.append(self._get_tool_suffix_ids(answers))
            contexts = [
                prompt_ids[row] + completion_ids[row] + suffix
                for row, suffix in zip(rows, suffixes, strict=True)
            ]
            ids, _ = self._generate_single_turn(contexts)
            for row, context, answer in zip(rows, contexts, ids, strict=True):
                completion_ids[row] = context[len(prompt_ids[row]) :] + answer
                completions[row].append(self._parsed[answer[0]])
            rows = [row for row in rows if completions[row][-1].get("tool_calls")]
        return completion_ids

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        prompt_ids = [[1] * len(prompt) for prompt in prompts]
        ids, _ = self._generate_single_turn(prompt_ids)
        completions = [[self._parsed[answer[0]]] for answer in ids]
        if self.tools:
            ids = self._tool_call_loop(prompt_ids, ids, completions)
        return prompt_ids, ids, None, completions, None

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> None:
        self.reward(completions)

    def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
        self._sync_tool_dicts = [{tool.__name__: tool for tool in self.tools} for _ in inputs]
        self._async_tool_dicts: list[dict[str, Any]] = [{} for _ in inputs]
        prompts = [columns["prompt"] for columns in inputs]
        _, ids, _, completions, *_ = self._generate(prompts)
        self.trained = copy.deepcopy(completions)
        self._calculate_rewards(inputs, prompts, completions, ids)
        return {
            "advantages": Column([0.0] * len(inputs)),
            "completion_mask": Column(len(answer) for answer in ids),
        }

    def run(self, question: str = "Q") -> None:
        """Generate and score a batch of two siblings."""
        self._generate_and_score_completions([{"prompt": user(question)} for _ in range(2)])


def traced() -> type[Base]:
    """Return a class of its own whose methods are traced."""
    module = ModuleType("trl.trainer.grpo_trainer")
    methods = {name: value for name, value in vars(Base).items() if callable(value)}
    module.GRPOTrainer = type("GRPOTrainer", (Base,), methods)  # type: ignore[attr-defined]
    seams.patch((".trajectory", ".generation", ".tool_loop", ".rewards"), module)
    trainer: type[Base] = module.GRPOTrainer  # type: ignore[attr-defined]
    return trainer


def user(text: str) -> list[Message]:
    """Return a prompt."""
    return [{"role": "user", "content": text}]


def says(text: str) -> Message:
    """Return an answer."""
    return {"role": "assistant", "content": text}


def calls(*functions: tuple[str, Any]) -> Message:
    """Return an answer that asks for tool calls, given their names and arguments."""
    asked = [
        {"type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in functions
    ]
    return {"role": "assistant", "content": "", "tool_calls": asked}
