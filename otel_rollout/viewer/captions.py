"""Figures and facts in the few words that stand beside a turn or above a conversation."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from otel_rollout.viewer.comparison import Comparison
from otel_rollout.viewer.conversation import FAILURE, MODEL, TOOL, Conversation, Turn
from otel_rollout.viewer.messages import Call, as_text, ids_in
from otel_rollout.viewer.printable import in_one_line
from otel_rollout.viewer.summary import Score, Summary, Tokens, started

_LONG: Final = 30
"""Characters of a word that are shown where it is named."""
_MANY: Final = 8
"""Numbers of a list that are shown."""

_NOT_PLAIN: Final = re.compile(r"""[^\w@%+=:,./-]""")
"""What a shell may take for something else, or part a word at."""


def duration(seconds: float | None) -> str:
    """Seconds as people say them; empty where not known."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1 if seconds >= 0.0001 else 2}f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def score(value: Score | None) -> str:
    """A score's value."""
    if value is None:
        return ""
    if isinstance(value.value, float):
        return f"{value.value:.6g}" if value.value != int_of(value.value) else f"{value.value:.1f}"
    return str(value.value).lower() if isinstance(value.value, bool) else str(value.value)


def int_of(number: float) -> float | None:
    """The number, if it is whole."""
    return number if number.is_integer() and abs(number) < 1e15 else None


def reward(summary: Summary) -> str:
    """The score called reward."""
    return score(next((given for given in summary.scores if given.name == "reward"), None))


def tokens(counted: Tokens) -> str:
    """Tokens in and out."""
    parts = [] if counted.input is None else [f"{counted.input} in"]
    parts += [f"{counted.cached} cached"] if counted.cached else []
    parts += [] if counted.output is None else [f"{counted.output} out"]
    return " · ".join(parts)


def role(turn: Turn) -> str:
    """Who speaks, or what was done."""
    if turn.role == FAILURE:
        return turn.name
    return f"{turn.role} {turn.name}" if turn.name else turn.role


def beside(turn: Turn) -> str:
    """What stands beside who speaks: tokens, why it stopped, how long it took."""
    parts = [turn.inside and f"in {turn.inside}", tokens(turn.tokens), turn.finish, duration(turn.seconds)]
    return " · ".join(filter(None, parts))


def arguments(given: Any) -> str:
    """Arguments in one line, as Python has them where they have names."""
    if isinstance(given, Mapping):
        return ", ".join(f"{name}={_literal(value)}" for name, value in given.items())
    return "" if given is None else _literal(given)


def _literal(value: Any) -> str:
    if len(ids_in(value)) > _MANY:
        return f"[{', '.join(map(str, value[:_MANY]))}, … {len(value)} numbers]"
    return repr(value) if isinstance(value, (str, bool, type(None))) else as_text(value)


def call(called: Call) -> str:
    """A call in one line."""
    return f"{called.name}({arguments(called.arguments)})"


def problem(turn: Turn) -> str:
    """An error, unless the text says the same."""
    what = turn.problem.partition(": ")[2] or turn.problem
    return "" if what in turn.text else turn.problem


def facts(conversation: Conversation) -> Iterator[tuple[str, str]]:
    """What is known of a conversation as a whole."""
    of = conversation.summary
    yield "trace", of.trace_id
    yield "run", run(of)
    yield "began", started(of)
    yield "took", took(conversation)
    for name, value in of.facts.items():
        yield name, as_text(value)


def run(of: Summary) -> str:
    """Which run a trajectory is of, with its project, and its experiment where that is another name."""
    experiment = of.experiment if of.experiment != of.run else ""
    named = [f"{what} {name}" for what, name in (("project", of.project), ("experiment", experiment)) if name]
    return " · ".join(filter(None, (of.run, *named)))


def name(summary: Summary) -> str:
    """What a trajectory is called in a list, to be pasted into a shell."""
    shown = in_one_line(summary.path)
    return shlex.quote(shown) if _NOT_PLAIN.search(shown) else shown


def counted_runs(summaries: Sequence[Summary]) -> Iterator[str]:
    """For each run that trajectories are of: how many, which, and when the first began."""
    runs: dict[str, list[Summary]] = {}
    for one in summaries:
        runs.setdefault(f"run {run(one)}" if one.run else run(one), []).append(one)
    for named, found in runs.items():
        began = started(min(found, key=lambda one: one.start_ns or math.inf))
        number = f"{len(found)} trajector{'y' if len(found) == 1 else 'ies'}"
        yield " · ".join(filter(None, (number, named, began and f"began {began}")))


def title(summary: Summary) -> str:
    """What a trajectory is called where there are several."""
    return f"{summary.path or summary.name} ({summary.trace_id[:8]})"


def took(conversation: Conversation) -> str:
    """How long, how many calls, how many tokens."""
    of = conversation.summary
    failed = conversation.failures
    return " · ".join(
        filter(
            None,
            (
                duration(of.seconds) or "not ended",
                counted(conversation.model_calls, "model call"),
                counted(conversation.tool_calls, "tool call"),
                f"{failed} failed" if failed else "",
                f"{written} tokens written" if (written := conversation.tokens_written) is not None else "",
            ),
        )
    )


def counted(number: int, of_what: str) -> str:
    """A number of things."""
    return f"{number} {of_what}{'' if number == 1 else 's'}"


def side_by_side(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """What is known of two conversations, name by name."""
    pair = [dict(_measured(conversation)) for conversation in (comparison.one, comparison.other)]
    for name in dict.fromkeys([*pair[0], *pair[1]]):
        yield name, pair[0].get(name, ""), pair[1].get(name, "")


def _measured(conversation: Conversation) -> Iterator[tuple[str, str]]:
    of = conversation.summary
    yield "run", run(of)
    yield "state", of.state
    yield "took", duration(of.seconds)
    yield "model calls", str(conversation.model_calls)
    yield "tool calls", str(conversation.tool_calls)
    yield "failed", str(conversation.failures)
    yield "tokens written", "" if (written := conversation.tokens_written) is None else str(written)
    for given in of.scores:
        yield given.name, score(given)


def parting(comparison: Comparison) -> str:
    """Where two conversations part, in a sentence."""
    where = comparison.divergence
    if where is None:
        return f"The same in all {len(comparison.one.turns)} turns."
    turn, (mine, theirs) = where.turn + 1, comparison.rows[0]
    if mine is None or theirs is None:
        return f"{counted(where.turn, 'turn')} alike; then one of them has ended."
    if (mine.role, mine.name) != (theirs.role, theirs.name):
        return f"They part at turn {turn}: here the {role(mine)}, there the {role(theirs)}."
    here = f"turn {turn} ({role(mine)})"
    changed = [parts[1] for one in (mine, theirs) if (parts := comparison.changed(one))]
    words = " and ".join(f"“{word[:_LONG]}{'…' if len(word) > _LONG else ''}”" for word in changed)
    said = f" ({words})" if words else ""
    if where.token is not None:
        ids = " and ".join("its end" if id_ is None else str(id_) for id_ in where.ids)
        return f"They part at {here}, token {where.token + 1} of it: {ids}{said}."
    if mine.text != theirs.text:
        return f"They part at {here}, character {where.characters + 1} of it{said}."
    return f"They part at {here}: the same words, other {_what_differs(mine, theirs)}."


def _what_differs(one: Turn, other: Turn) -> str:
    if one.arguments != other.arguments or one.role == TOOL:
        return "arguments"
    return "calls" if one.role == MODEL and one.calls != other.calls else "errors"
