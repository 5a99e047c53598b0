"""Format durations, scores, tokens and names, for the terminal and the page."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from otel_rollout.base.printable import in_one_line
from otel_rollout.exporting.batching import grouped
from otel_rollout.look.conversation.comparison import Comparison, at_word, parting_of
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import Score, Summary, Tokens, start_time
from otel_rollout.look.conversation.turn import FAILURE, MODEL, EngineTime, Turn
from otel_rollout.otlp.engine_phases import DECODE, PREFILL, QUEUE
from otel_rollout.otlp.messages import Call, as_text, ids_in

_MAX_WORD: Final = 30
"""Maximum characters shown of a word in which two conversations differ."""
_END: Final = "its end"
"""What a sentence says in place of a word or token of a reply that ends before it."""
_NAMED: Final = 10
"""Maximum number of shown steps that are no numbers."""
_MAX_NUMBERS: Final = 8
"""Maximum numbers shown of a list of token ids among a tool's arguments."""

_FRAME: Final = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
"""Matches a frame of a stack trace as Python writes it."""
_NEEDS_QUOTES: Final = re.compile(r"""[^\w@%+=:,./-]""")
"""Matches a character that a shell would interpret, or split a word at."""


def duration(seconds: float | None) -> str:
    """Format a duration; return empty text for None."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1 if seconds >= 0.0001 else 2}f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def percent(share: float) -> str:
    """Format a share, with a digit after the point near 0 and 1; only 0 and 1 themselves are 0 and 100%."""
    if 0 < share < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1:
        return ">99.9%"
    digits = 1 if 0 < share < 0.0995 or 0.995 <= share < 1 else 0
    return f"{100 * share:.{digits}f}%"


def score(given: Score | None) -> str:
    """Format a score's value; empty without a score."""
    return "" if given is None else score_value(given.value)


def score_value(value: float | bool | str) -> str:
    """Format the value of a score."""
    if isinstance(value, float):
        is_whole = value.is_integer() and abs(value) < 1e15
        return f"{value + 0.0:.1f}" if is_whole else f"{value:.6g}"  # no -0.0
    return str(value).lower() if isinstance(value, bool) else str(value)


def reward(summary: Summary) -> str:
    """Format the score named ``reward``; empty without one."""
    return score(next((given for given in summary.scores if given.name == "reward"), None))


def tokens(counted: Tokens) -> str:
    """Format the known numbers of input, cached and output tokens."""
    parts = [] if counted.input is None else [f"{counted.input} in"]
    parts += [f"{counted.cached} cached"] if counted.cached else []
    parts += [] if counted.output is None else [f"{counted.output} out"]
    return " · ".join(parts)


def role(turn: Turn) -> str:
    """Format the role of a turn, with the name of the tool or evaluator."""
    if turn.role == FAILURE:
        return turn.name
    return f"{turn.role} {turn.name}" if turn.name else turn.role


def details(turn: Turn) -> str:
    """Format sub-trajectory, tokens, finish reason and duration of a turn."""
    parts = [
        turn.sub_trajectory and f"in {turn.sub_trajectory}",
        tokens(turn.tokens),
        turn.finish_reason,
        duration(turn.seconds),
    ]
    return " · ".join(filter(None, parts))


def engine(time: EngineTime) -> str:
    """Format what a model call's requests took in an inference engine, in one line."""
    named = "engine" if time.requests == 1 else f"engine, {time.requests} requests"
    parts = {phase: f"{duration(seconds)} {phase}" for phase, seconds in time.phases.items()}
    if time.tokens_per_second is not None:
        parts[DECODE] += f" ({time.tokens_per_second:.3g} tokens/s)"
    if time.first_token is not None:
        at_most = "at most " if time.requests > 1 else ""
        parts["first token"] = f"first token after {at_most}{duration(time.first_token)}"
    order = (QUEUE, PREFILL, "first token", DECODE)
    return f"{named}: {', '.join(parts[name] for name in order if name in parts) or 'no times'}"


def arguments(given: Any) -> str:
    """Format arguments in one line, named ones as in a Python call."""
    if isinstance(given, Mapping):
        return ", ".join(f"{name}={_literal(value)}" for name, value in given.items())
    return "" if given is None else _literal(given)


def _literal(value: Any) -> str:
    if len(ids_in(value)) > _MAX_NUMBERS:
        return f"[{', '.join(map(str, value[:_MAX_NUMBERS]))}, … {len(value)} numbers]"
    return repr(value) if isinstance(value, (str, bool, type(None))) else as_text(value)


def call(called: Call) -> str:
    """Format a tool call in one line."""
    return f"{called.name}({arguments(called.arguments)})"


def error(turn: Turn) -> str:
    """Format the part of a turn's error that its text lacks: type and message, the message, or nothing."""
    kind, _, message = turn.error.partition(": ")
    if (message or kind) in turn.text:
        return ""
    is_kind_said = message and re.search(rf"(?<!\w){re.escape(kind)}(?!\w)", turn.text)
    return message if is_kind_said else turn.error


def facts(conversation: Conversation) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact about a conversation as a whole."""
    summary = conversation.summary
    yield "trace", summary.trace_id
    yield "run", run(summary)
    yield "began", start_time(summary)
    is_timed = summary.seconds is not None or summary.state == "running"
    yield "took" if is_timed else "made", totals(conversation)
    for name, value in summary.facts.items():
        yield name, as_text(value)


def run(summary: Summary) -> str:
    """Format a trajectory's run and project, and its experiment unless the run has the same name."""
    experiment = summary.experiment if summary.experiment != summary.run else ""
    project = f"project {summary.project}" if summary.project else ""
    return " · ".join(filter(None, (summary.run, project, experiment and f"experiment {experiment}")))


def quoted(reference: str) -> str:
    """Quote a trajectory's name so that it can be pasted into a shell."""
    shown = in_one_line(reference)
    return shlex.quote(shown) if _NEEDS_QUOTES.search(shown) else shown


def runs(summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield a line for each run: number of trajectories, name and first start."""
    by_run = grouped(summaries, lambda summary: f"{'run ' if summary.run else ''}{run(summary)}")
    for named, found in by_run.items():
        start = start_time(min(found, key=lambda summary: summary.start_ns or math.inf))
        number = counted(len(found), "trajectory")
        yield " · ".join(filter(None, (number, named, start and f"began {start}")))


def title(summary: Summary) -> str:
    """Format a trajectory's name together with its trace id."""
    return f"{summary.path or summary.name} ({summary.trace_id[:8]})"


def totals(conversation: Conversation) -> str:
    """Format duration, calls, failures and output tokens of a conversation."""
    summary, written = conversation.summary, conversation.summary.tokens.output
    parts = [
        duration(summary.seconds) or ("not ended" if summary.state == "running" else ""),
        counted(summary.turns, "model call"),
        counted(summary.tool_calls, "tool call"),
        badge(summary),
        counted(conversation.other_errors, "other error") if conversation.other_errors else "",
        "" if written is None else f"{counted(written, 'token')} written",
    ]
    return " · ".join(filter(None, parts))


def badge(summary: Summary) -> str:
    """Say how many tool calls of a trajectory failed; empty if none did."""
    return counted(summary.tool_errors, "tool error") if summary.tool_errors else ""


def counted(number: int, noun: str) -> str:
    """Format a number of things, with the noun's plural where due."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def first_of(texts: Sequence[str], most: int, of: int = 0, joint: str = ", ") -> str:
    """List the first of some texts, and say how many more there are.

    Args:
        texts: the texts, or the first of them.
        most: maximum texts to list.
        of: number of the texts, if ``texts`` lacks some.
        joint: what stands between two of them.
    """
    more = max(of, len(texts)) - most
    last = joint if "or" in joint else f"{joint}and "
    return joint.join(texts[:most]) + (f"{last}{more:,} more" if more > 0 else "")


def side_by_side(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield each fact about two conversations: its name and both values."""
    left, right = (dict(_figures(conversation)) for conversation in (comparison.left, comparison.right))
    for name in dict.fromkeys([*left, *right]):
        yield name, left.get(name) or "–", right.get(name) or "–"


def _figures(conversation: Conversation) -> Iterator[tuple[str, str]]:
    summary, written = conversation.summary, conversation.summary.tokens.output
    yield "run", run(summary)
    yield "state", summary.state
    if summary.error:
        yield "error", summary.error
    yield "took", duration(summary.seconds)
    yield "model calls", str(summary.turns)
    yield "tool calls", str(summary.tool_calls)
    yield "tool errors", "" if summary.tool_errors is None else str(summary.tool_errors)
    if conversation.other_errors:
        yield "other errors", str(conversation.other_errors)
    yield "tokens written", "" if written is None else str(written)
    for given in summary.scores:
        yield given.name, score(given)


def other_scores(comparison: Comparison) -> list[str]:
    """Return name and values of each score that differs between two conversations."""
    left, right = (
        {given.name: score(given) for given in each.summary.scores}
        for each in (comparison.left, comparison.right)
    )
    return [
        f"{name} {left.get(name, 'missing')} and {right.get(name, 'missing')}"
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name)
    ]


def raised_at(stack: str) -> str:
    """Return file, line and function of the innermost frame of a stack trace; empty without one."""
    frames = _FRAME.findall(stack)
    return f"{frames[-1][0]}:{frames[-1][1]}, in {frames[-1][2]} (traceback: --html)" if frames else ""


def divergence(comparison: Comparison) -> str:
    """Say in one sentence where two conversations begin to differ, or that only their scores do."""
    found = comparison.divergence
    if found is None:
        scores = ", ".join(other_scores(comparison))
        but = f", but other scores: {scores}" if scores else ""
        if not comparison.left.has_content:
            return f"What they said was not recorded: nothing tells them apart{but}."
        return f"The same in all {len(comparison.left.turns)} turns{but}."
    number, (left, right) = found.turn + 1, comparison.rows[0]
    if left is None or right is None:
        return f"{counted(found.turn, 'turn')} alike; then one of them has no more turns."
    if (left.role, left.name) != (right.role, right.name):
        return f"They part at turn {number}: here the {role(left)}, there the {role(right)}."
    turn = f"turn {number} ({role(left)})"
    if found.in_arguments:
        given = [changed_arguments(comparison, one) for one in (left, right)]
        words = [_quoted_word(parts[1]) for parts in given if parts and parts[1]]
        same = "the same words, " if left.text == right.text else ""
        quoted = f" ({' and '.join(words)})" if words else ""
        return f"They part at {turn}: {same}other arguments{quoted}."
    words = [_quoted_word(parts[1]) if (parts := comparison.changed(one)) else _END for one in (left, right)]
    quoted = f" ({' and '.join(words)})" if words != [_END, _END] else ""
    if found.token is not None:
        ids = " and ".join(_END if id_ is None else str(id_) for id_ in found.token_ids)
        return f"They part at {turn}, token {found.token + 1} of it: {ids}{quoted}."
    if left.text != right.text:
        if not (left.text and right.text):
            word = next(word for word in words if word != _END)
            return f"They part at {turn}: one begins with {word}, the other has no text."
        return f"They part at {turn}, character {found.characters + 1} of it{quoted}."
    return f"They part at {turn}: the same words, other {_what_differs(left, right)}."


def changed_arguments(comparison: Comparison, turn: Turn) -> tuple[str, str, str] | None:
    """Split a turn's arguments like :meth:`Comparison.changed` its text; None if they do not differ."""
    if comparison.divergence is None or not comparison.divergence.in_arguments:
        return None
    texts = [shown_arguments(each) for each in comparison.rows[0] if each is not None]
    return at_word(shown_arguments(turn), parting_of(texts)[1])


def shown_arguments(turn: Turn) -> str:
    """Return a turn's arguments in parentheses; empty where none are shown."""
    return f"({arguments(turn.arguments)})" if turn.shows_arguments else ""


def _quoted_word(word: str) -> str:
    return f"“{word[:_MAX_WORD]}{'…' if len(word) > _MAX_WORD else ''}”"


def _what_differs(one: Turn, other: Turn) -> str:
    return "calls" if one.role == MODEL and one.calls != other.calls else "errors"


def steps_in_words(steps: Iterable[int | str | None]) -> str:
    """Return steps as text, such as ``steps 3–7, 9, warm-up and those without a number``.

    None stands for steps without a number.
    """
    found = set(steps)
    numbers = sorted(step for step in found if isinstance(step, int))
    named = sorted(step for step in found if isinstance(step, str))
    if not numbers and not named:
        return "steps without a number"
    ranges: list[list[int]] = []
    for step in numbers:
        if ranges and step == ranges[-1][-1] + 1:
            ranges[-1][1:] = [step]
        else:
            ranges.append([step])
    texts = ["–".join(map(str, each)) for each in ranges] + named[:_NAMED]
    texts += ["…"] if len(named) > _NAMED else []
    others = " and those without a number" if None in found else ""
    return f"step{'s' if len(numbers) + len(named) > 1 else ''} {', '.join(texts)}{others}"


def command(opening: str, names: Sequence[str], options: Mapping[str, str | None]) -> str:
    """Return the shell command that opens the first of some names; its comment has the other names.

    Args:
        opening: the subcommand.
        names: what it opens, such as the paths of trajectories.
        options: options with their values; None stands for an option that is not needed.
    """
    first, *others = map(quoted, names)
    given = "".join(f" {name} {quoted(value)}" for name, value in options.items() if value)
    return f"otel-rollout {opening} {first}{given}" + (f"   # also {', '.join(others)}" if others else "")
