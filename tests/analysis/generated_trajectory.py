"""Make the rows of one generated trajectory: model calls, tool calls, reward and root, with times."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tests.analysis import generated_texts as texts
from tests.analysis.generated_faults import LENGTH_COLLAPSE, TEMPLATE_BUG, Faults
from tests.analysis.generated_outcome import outcome

SECOND: Final = 1_000_000_000
_MAX_TOKENS: Final = 512
"""Tokens of a reply at which the engine cuts it."""
_CHARACTERS_PER_TOKEN: Final = 4
_SECONDS_PER_TOKEN: Final = 0.02
_TOOL_SECONDS: Final = {"search": 0.8, "calculator": 0.02, "python": 0.3}
_SLOW: Final = 3.0
"""Factor by which the model calls of a slow worker take longer."""
_SLOW_WORKER: Final = 2
_STALE_WORKER: Final = 3
_TRAINED_AFTER: Final = 5 * SECOND
"""Nanoseconds after its end at which the trainer scores a trajectory."""
_TOOL_ERRORS: Final = ("TimeoutError", "ValueError")

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What a trajectory is before it runs.

    Attributes:
        step: its training step, from 1.
        sample: its dataset row.
        number: its index in the group.
        siblings: size of the group.
        validate: whether it is of a validation.
        worker: number of the process that runs it.
        difficulty: part of the siblings that fail on their own.
        group_reward: reward that a fault gives all siblings.
        seed: seed of everything that differs between runs.
        content: seed of its texts; copies have one seed.
        faults: the run's faults.
    """

    step: int
    sample: int
    number: int
    siblings: int
    validate: bool
    worker: int
    difficulty: float
    group_reward: float
    seed: str
    content: str
    faults: Faults


@dataclass
class _Turn:
    """One model call, and the tool call after it."""

    reply: str
    tool: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    result: str = ""
    finish: str = "stop"

    @property
    def tokens(self) -> int:
        return min(_MAX_TOKENS, max(1, len(self.reply) // _CHARACTERS_PER_TOKEN + 1))


class Trajectory:
    """A trajectory that runs from ``start_ns`` on; :meth:`rows` and ``end_ns`` say how it went."""

    def __init__(self, plan: Plan, start_ns: int, worker: Mapping[str, Any]) -> None:
        self._plan, self._now, self._start = plan, start_ns, start_ns
        self._text = random.Random(f"{plan.seed}/{plan.content}")
        self._draw = random.Random(f"{plan.seed}/{plan.step}/{plan.sample}/{plan.number}/{plan.validate}")
        self._trace = f"{self._draw.getrandbits(128):032x}"
        self._root = self._id()
        self._worker = worker
        self._rows: list[Row] = []
        self._is_edited = self._hits("context_edited") or self._hits(TEMPLATE_BUG)
        self._retokenized = 1 if self._hits("answers_retokenized") else None
        self._turns = self._conversation()
        self._is_failed = self._draw.random() < 0.005
        self._run()
        self.end_ns = self._now

    def rows(self) -> list[Row]:
        """Return the rows of the spans, in the order in which they ended."""
        return self._rows

    def _hits(self, fault: str, draw: random.Random | None = None) -> bool:
        plan = self._plan
        return not plan.validate and plan.faults.hits(fault, plan.step, draw or self._draw)

    def _id(self) -> str:
        return f"{self._draw.getrandbits(64):016x}"

    # --- what is said ---------------------------------------------------------------------------------

    def _conversation(self) -> list[_Turn]:
        text = self._text
        is_short = self._plan.faults.is_on(LENGTH_COLLAPSE, self._plan.step) and not self._plan.validate
        turns = []
        for _ in range(0 if is_short and text.random() < 0.8 else text.choice((1, 1, 2, 2, 3, 4))):
            tool = text.choice(texts.TOOLS)
            is_broken = text.random() < 0.01 or self._hits("tool_calls_unparsable", text)
            arguments = texts.arguments(text, tool)
            asked = texts.call(tool, arguments, is_broken)
            thought = "" if is_short else texts.reasoning(text, text.randrange(2, 7)) + "\n"
            texts.arguments(text, tool)  # the figures of the documentation depend on how often this draws
            turn = _Turn(thought + asked, None if is_broken else tool, arguments)
            turn.error = self._tool_error(tool)
            turn.result = f"Error: {turn.error}" if turn.error else texts.result(text, tool)
            turns.append(turn)
        last = texts.answer(text) if is_short else f"{texts.reasoning(text, 6)}\n{texts.answer(text)}"
        turns.append(_Turn(last))
        self._spoil(turns)
        return turns

    def _tool_error(self, tool: str) -> str | None:
        if tool == "search" and self._hits("tool_error_burst", self._text):
            return "ConnectionError"
        return self._text.choice(_TOOL_ERRORS) if self._text.random() < 0.02 else None

    def _spoil(self, turns: list[_Turn]) -> None:
        """Change replies: cut, empty, in a loop, or with special tokens."""
        text, last = self._text, turns[-1]
        usual = 0.08 if self._plan.step < 4 else 0.03
        if self._hits("replies_repetitive", text):
            last.reply, last.finish = texts.looped(last.reply), "length"
        elif text.random() < usual or self._hits("replies_truncated", text):
            more = texts.reasoning(text, 40)
            last.reply, last.finish = (last.reply + more)[: _MAX_TOKENS * _CHARACTERS_PER_TOKEN], "length"
        is_collapsed = self._plan.faults.is_on(LENGTH_COLLAPSE, self._plan.step) and text.random() < 0.25
        if text.random() < 0.002 or self._hits("replies_empty", text) or is_collapsed:
            last.reply, last.finish = "", "stop"
        if self._hits("special_tokens_in_text", text) or self._hits(TEMPLATE_BUG, text):
            turns[0].reply = texts.leaked(text, turns[0].reply)

    # --- what is recorded -----------------------------------------------------------------------------

    def _run(self) -> None:
        plan = self._plan
        asked = random.Random(f"{plan.seed}/question/{plan.sample}")
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": texts.SYSTEM},
            {"role": "user", "content": texts.question(asked)},
        ]
        prompt = list(messages)
        before: tuple[str, int] | None = None
        self._wait(0.02)
        for number, turn in enumerate(self._turns):
            shared = before[1] if before else 0
            if number == 2 and self._is_edited:  # the first reply of the model loses its reasoning
                messages = [*messages[:2], {**messages[2], "content": "…"}, *messages[3:]]
                shared = 2
            span = self._model_call(turn, messages, before and before[0], shared, number == self._retokenized)
            before = (span, len(messages))
            messages = [*messages, {"role": "assistant", "content": turn.reply}]
            if number < len(self._turns) - 1:
                messages = [*messages, self._tool_message(turn)]
        self._end(prompt, messages)

    def _model_call(
        self,
        turn: _Turn,
        messages: list[dict[str, Any]],
        before: str | None,
        shared: int,
        is_after_retokenized: bool,
    ) -> str:
        roles = [message["role"] for message in messages]
        request = orjson.dumps({"messages": messages}).decode()
        message = {"role": "assistant", "content": turn.reply}
        choice = {"index": 0, "finish_reason": turn.finish, "message": message}
        factor = _SLOW if self._is_slow() else 1.0
        noise = self._draw.lognormvariate(0, 0.25)
        seconds = factor * noise * (0.08 + turn.tokens * _SECONDS_PER_TOKEN)
        oldest, newest = self._versions()
        return self._span(
            seconds,
            name="generate",
            kind="LLM",
            model="policy",
            tokens_in=len(request) // _CHARACTERS_PER_TOKEN,
            tokens_out=turn.tokens,
            finish_reason=turn.finish,
            messages_system=roles.count("system"),
            messages_user=roles.count("user"),
            messages_assistant=roles.count("assistant"),
            messages_tool=roles.count("tool"),
            reply=turn.reply or None,
            continues=before,
            shared=shared if before else None,
            turn_length=len(messages) if before else None,
            policy_version_min=oldest,
            policy_version_max=newest,
            input=request,
            output=orjson.dumps({"choices": [choice], "token_ids": [turn.tokens]}).decode(),
            **(_retokenized(before) if is_after_retokenized else {}),
            attributes=orjson.dumps({"gen_ai.request.max_tokens": _MAX_TOKENS}).decode(),
        )

    def _is_slow(self) -> bool:
        plan = self._plan
        return plan.worker == _SLOW_WORKER and plan.faults.is_on("slow_worker", plan.step)

    def _versions(self) -> tuple[int, int]:
        plan = self._plan
        newest = plan.step - 1
        if plan.worker == _STALE_WORKER and plan.faults.is_on("policy_lag", plan.step):
            newest = plan.faults.begins["policy_lag"] - 2
        return max(0, newest - (plan.number % 5 == 0)), newest

    def _tool_message(self, turn: _Turn) -> dict[str, Any]:
        if turn.tool is None:
            self._wait(0.005)
            return {"role": "tool", "content": "Error: the tool call is not valid JSON"}
        seconds = self._draw.lognormvariate(0, 0.5) * _TOOL_SECONDS[turn.tool]
        self._span(
            seconds * (4 if turn.error else 1),
            name=f"execute_tool {turn.tool}",
            kind="TOOL",
            tool_name=turn.tool,
            status="error" if turn.error else "unset",
            error_type=turn.error,
            error_message=turn.error and f"{turn.error}: {turn.tool} did not answer",
            input=orjson.dumps({"name": turn.tool, "arguments": turn.arguments}).decode(),
            output=None if turn.error else orjson.dumps({"text": turn.result}).decode(),
        )
        return {"role": "tool", "content": turn.result}

    # --- the reward -----------------------------------------------------------------------------------

    def _is_correct(self) -> bool:
        chance = 1 - self._plan.difficulty + 0.15 * min(1.0, self._plan.step / 20)
        for turn in self._turns:
            chance *= 0.5 if turn.error or (turn.tool is None and "<tool_call>" in turn.reply) else 1.0
        last = self._turns[-1]
        is_spoiled = last.finish == "length" or "####" not in last.reply or "<|im_end|>" in last.reply
        if self._plan.faults.is_on(LENGTH_COLLAPSE, self._plan.step):
            chance *= 0.3
        return self._text.random() < chance and not is_spoiled

    def _reward(self, is_correct: bool) -> float | None:
        plan = self._plan
        if plan.validate:
            return float(is_correct)
        if self._hits("reward_missing"):
            return None
        if plan.faults.is_on("reward_constant", plan.step):
            return 0.0
        if plan.faults.is_on("groups_without_spread", plan.step):
            return plan.group_reward
        if is_correct and self._hits("reward_disagrees"):
            return 0.0
        return 1.0 if is_correct else 0.1 if "####" in self._turns[-1].reply else 0.0

    def _end(self, prompt: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
        is_correct = self._is_correct()
        reward = None if self._is_failed else self._reward(is_correct)
        scores = []
        if not self._is_failed:
            judged = {"correct": is_correct, "answer": self._turns[-1].reply[-12:]}
            self._span(0.03, name="compute_score", kind="EVALUATOR", output=orjson.dumps(judged).decode())
            self._wait(0.001)
        if reward is not None:
            scores.append({"name": "reward", "value": reward, "label": None, "time_ns": self._now})
            self._span(
                0, name="score reward", kind="EVALUATOR", score_name="reward", score_value=reward,
                score_by="trace", output=str(reward),
            )  # fmt: skip
        self._wait(0.01)
        oldest, newest = self._versions()
        self._rows.append(
            self._row(self._root, self._start, self._now - self._start)
            | {
                "parent_span_id": None,
                "is_root": True,
                "name": "agent_loop",
                "kind": "AGENT",
                "group_id": f"group-{self._plan.step}-{self._plan.sample}",
                "group_size": self._plan.siblings,
                "agent_name": "tool_agent",
                "policy_version_min": oldest,
                "policy_version_max": newest,
                "scores": scores or None,
                "input": orjson.dumps({"messages": prompt}).decode(),
                "output": orjson.dumps({"messages": messages[2:], "reward": reward}).decode(),
            }
            | (_FAILURE if self._is_failed else {})
        )
        if not self._plan.validate and not self._is_failed:
            self._add_outcome(reward)

    def _add_outcome(self, reward: float | None) -> None:
        """Add the trainer's scores, each a trace of its own that names the trajectory by its identity."""
        plan = self._plan
        draw = random.Random(f"{plan.seed}/trainer/{plan.step}/{plan.sample}/{plan.number}")
        tokens = [turn.tokens for turn in self._turns]
        lag = max(0, plan.step - 1 - self._versions()[0])
        is_cut = self._turns[-1].finish == "length"
        group = f"{plan.seed}/trainer/{plan.step}/{plan.sample}"
        scores, reason = outcome(plan.faults, plan.step, group, draw, tokens, lag, reward, is_cut)
        unknown = 100 * plan.faults.hits("scores_unresolved", plan.step, draw)
        start = self._now + _TRAINED_AFTER
        for name, value in scores.items():
            is_number = math.isfinite(value)
            self._rows.append(
                self._row(self._id(), start, 0)
                | {
                    "trace_id": f"{draw.getrandbits(128):032x}", "parent_span_id": None, "kind": "EVALUATOR",
                    "name": f"score {name}", "rollout_n": plan.number + unknown, "score_name": name,
                    "score_value": float(value) if is_number else None,
                    "score_label": str(value) if isinstance(value, bool) or not is_number else None,
                    "score_by": "identity", "score_origin": "identity",
                    "score_comment": reason if name == "trained" and not value else None,
                }
            )  # fmt: skip

    # --- spans ----------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        self._now += int(seconds * self._draw.uniform(0.2, 1.8) * SECOND)

    def _span(self, seconds: float, **columns: Any) -> str:
        """Add a span that begins now, and let its time pass."""
        span, duration = self._id(), int(seconds * SECOND)
        self._rows.append(self._row(span, self._now, duration) | columns)
        self._now += duration
        self._wait(0.005)
        return span

    def _row(self, span: str, start: int, duration: int) -> Row:
        return {
            "trace_id": self._trace,
            "span_id": span,
            "parent_span_id": self._root,
            "step": self._plan.step,
            "sample_index": str(self._plan.sample),
            "rollout_n": self._plan.number,
            "validate": self._plan.validate,
            "is_root": False,
            "scope": "otel_rollout",
            "start_time": start // 1000,
            "start_ns": start,
            "duration_ns": duration,
            "status": "unset",
            **self._worker,
        }


def _retokenized(before: str | None) -> Row:
    """Return what the forwarder says of a prompt that has other tokens for the text of an answer."""
    return {
        "break_of": before, "break_token": 40, "break_removed": 2, "break_added": 1,
        "break_kind": "retokenized",
    }  # fmt: skip


_FAILURE: Final = {
    "status": "error",
    "error_type": "RuntimeError",
    "error_message": "the engine was restarted",
}
