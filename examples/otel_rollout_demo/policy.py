"""Answer as a scripted model: read a conversation, return the next turn's text.

The scripted model knows the solution of each problem of the dataset. It makes the mistakes of a model in
training: a wrong plan, broken tool-call JSON, a function that does not exist, a division by zero, no answer.
Each trajectory draws a mistake and the mistake's place from (seed, request id), so a run is repeatable for
any order of requests. Each weight update makes mistakes rarer. Like a model, the policy remembers nothing
between turns except the prompt.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_rollout_demo.dataset import Row


class Mistake(Enum):
    """A mistake in a trajectory; the value is its share of all mistakes."""

    WRONG_PLAN = 0.30
    MALFORMED_JSON = 0.15
    UNKNOWN_TOOL = 0.16
    DIVISION_BY_ZERO = 0.14
    GIVES_UP = 0.11
    GUESSES = 0.09
    NO_ANSWER_LINE = 0.05


_TOOL_MISTAKES: Final = {Mistake.MALFORMED_JSON, Mistake.UNKNOWN_TOOL, Mistake.DIVISION_BY_ZERO}

_OPENINGS: Final = ("I need this first. ", "Let me take it step by step. ", "")
_NEXT: Final = ("Next: {}.", "Now I work out: {}.", "I calculate: {}.", "Then: {}.", "I go on: {}.")
_CLOSINGS: Final = ("So the answer is {}.", "That makes {}.", "The answer is {}.", "I get {}.", "It is {}.")
_RETRY: Final = "That call did not work. I try again. "
_GIVE_UP: Final = "I am not sure how to go on from here, so I stop."
_UNKNOWN_PROBLEM: Final = "I do not know how to solve this problem."


@dataclass(frozen=True)
class Step:
    """A line of a worked solution, such as ``Loaves in a week: 14 * 7 = 98``."""

    label: str
    expression: str
    value: str


@dataclass(frozen=True)
class Character:
    """Behaviour of the model throughout one trajectory."""

    mistake: Mistake | None
    at: int  # the step of the solution in which it happens
    recovers: bool  # from an error that a tool reports
    parallel: bool  # asks for independent steps in one turn
    styles: tuple[int, ...]  # words of the turn after each number of results


class ScriptedPolicy:
    """Answer the problems of ``rows``, as the module's text describes."""

    def __init__(self, rows: list[Row], seed: int) -> None:
        self._solutions = {
            row["extra_info"]["question"]: worked_steps(row["extra_info"]["answer"]) for row in rows
        }
        self._seed = seed

    def reply(self, prompt: str, *, request_id: str, version: int, temperature: float) -> str:
        """Return the next assistant turn, without its end token.

        Args:
            prompt: The whole conversation as text, with turn marks.
            request_id: The trajectory's name, on which its draws depend.
            version: Number of weight updates so far; each makes mistakes rarer.
            temperature: 0 halves the mistakes, as greedy decoding does.
        """
        turns = list(_turns(prompt))
        question = next((text for role, text in turns if role == "user"), "")
        steps = self._solutions.get(question)
        if steps is None:
            return _UNKNOWN_PROBLEM
        answers = [_tool_text(text) for role, text in turns if role == "tool"]
        results = [text for text in answers if not text.startswith("Error")]
        character = self._character(request_id, version, temperature, len(steps))
        return _next_turn(steps, results, failed=len(results) < len(answers), character=character)

    def _character(self, request_id: str, version: int, temperature: float, n_steps: int) -> Character:
        draw = random.Random(f"{self._seed}/{request_id}")  # noqa: S311 - must be repeatable
        skill = min(0.3 + 0.2 * version, 0.9)
        chance = (1 - skill) * (1.0 if temperature > 0 else 0.5)
        # Make every draw, used or not, so that the skill does not change the other draws.
        errs = draw.random() < chance
        mistake = draw.choices(list(Mistake), weights=[mistake.value for mistake in Mistake])[0]
        return Character(
            mistake=mistake if errs else None,
            at=draw.randrange(n_steps),
            recovers=draw.random() < 0.6,
            parallel=draw.random() < 0.8,
            styles=(draw.randrange(len(_OPENINGS)), *(draw.randrange(len(_NEXT)) for _ in range(n_steps))),
        )


def worked_steps(answer: str) -> list[Step]:
    """Return the steps of a worked solution (``extra_info.answer``)."""
    found = []
    for line in answer.splitlines():
        label, is_step, calculation = line.partition(": ")
        expression, is_calculation, value = calculation.rpartition(" = ")
        if is_step and is_calculation and not re.search(r"\s", value):
            found.append(Step(label, expression, value))
    return found


def _turns(prompt: str) -> Iterator[tuple[str, str]]:
    """Yield role and text of each turn of a conversation."""
    for turn in prompt.split("<|im_start|>")[1:]:
        role, _, text = turn.partition("\n")
        said, is_whole, _ = text.partition("<|im_end|>")
        if is_whole:
            yield role, said


def _tool_text(message: str) -> str:
    return message.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")


def _next_turn(steps: list[Step], results: list[str], *, failed: bool, character: Character) -> str:
    done = len(results)
    mistake = character.mistake
    here = character.at == done
    if failed and not character.recovers:
        return _GIVE_UP
    if mistake is Mistake.GIVES_UP and done >= character.at:
        return _GIVE_UP
    style = character.styles[min(done, len(steps))]
    if mistake is Mistake.GUESSES and done == 0:
        return _final(_slip(steps[-1].value), style, mistake)
    if done >= len(steps):
        return _final(results[-1], style, mistake)

    # Later steps contain earlier results: replace these by the tool's actual answers, right or wrong.
    known = {step.value: result for step, result in zip(steps, results, strict=False)}
    wanted = _independent(steps[done:]) if character.parallel else steps[done : done + 1]
    expressions = [_substitute(step.expression, known) for step in wanted]
    wrong = character.at - done
    if mistake is Mistake.WRONG_PLAN and 0 <= wrong < len(expressions):
        expressions[wrong] = _other_operator(expressions[wrong])
    calls = [_call("calculator", expression) for expression in expressions]
    if mistake in _TOOL_MISTAKES and here and not failed:
        calls = [_faulty_call(mistake, expressions[0])]

    first, *others = (step.label for step in wanted[: len(calls)])
    labels = ", and ".join([first, *(label[0].lower() + label[1:] for label in others)])
    said = _RETRY if failed and here else _OPENINGS[style] if done == 0 else ""
    return "\n".join([said + _NEXT[style].format(labels), *calls])


def _final(value: str, style: int, mistake: Mistake | None) -> str:
    said = _CLOSINGS[style].format(value)
    return said if mistake is Mistake.NO_ANSWER_LINE else f"{said}\n#### {value}"


def _independent(steps: list[Step]) -> list[Step]:
    """Return the first step and the following steps that need no other's result."""
    chosen = steps[:1]
    for step in steps[1:]:
        if any(number in {earlier.value for earlier in chosen} for number in _numbers(step.expression)):
            break
        chosen = [*chosen, step]
    return chosen


def _numbers(expression: str) -> list[str]:
    return re.findall(r"[\d.]+", expression)


def _substitute(expression: str, known: dict[str, str]) -> str:
    return re.sub(r"[\d.]+", lambda found: known.get(found[0], found[0]), expression)


def _other_operator(expression: str) -> str:
    swap = {"+": "-", "-": "+", "*": "+", "/": "*"}
    return re.sub(r" ([-+*/]) ", lambda found: f" {swap[found[1]]} ", expression, count=1)


def _slip(value: str) -> str:
    """Return a wrong value: the last digit is off by two."""
    return value[:-1] + str((int(value[-1]) + 2) % 10)


def _call(name: str, expression: str) -> str:
    body = json.dumps({"name": name, "arguments": {"expression": expression}})
    return f"<tool_call>\n{body}\n</tool_call>"


def _faulty_call(mistake: Mistake, expression: str) -> str:
    if mistake is Mistake.UNKNOWN_TOOL:
        return _call("python", expression)
    if mistake is Mistake.DIVISION_BY_ZERO:
        return _call("calculator", f"{_numbers(expression)[0]} / 0")
    return _call("calculator", expression).replace("}}", "}")
