"""Write the figures of a report as words, for the terminal and for pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from otel_rollout.look.analysis.report.changes import RunChange, ToolHistory, histories_of
from otel_rollout.look.analysis.report.measures import Unit
from otel_rollout.look.analysis.report.report import StepReport, Tool
from otel_rollout.look.conversation.formatting import counted, duration, percent, steps_in_words
from otel_rollout.look.pages.scale import short_number

UNKNOWN: Final = "–"
"""Text of a figure that was not recorded."""
_NEVER: Final = {
    **dict.fromkeys(("failed", "turns", "tool calls", "unparsable calls"), "0"),
    **dict.fromkeys(("generate", "tool", "reward", "waiting"), "0 s"),
}
"""Heading → the cell of a step in which nothing of the kind happened: a number or a time."""
_NAMED: Final = 5
"""Maximum trajectories that a note names."""
_MAX_PARTS: Final = 4
"""Maximum causes of a change that have a line each."""
_MAX_TOOLS: Final = 12
"""Maximum tools that are listed: those with the most errors."""
_REASONS: Final = 10
"""Maximum reasons, or classes of errors, that have a line each."""


def number(value: float | None) -> str:
    """Return a number, or a dash for one that is not known."""
    if value is None:
        return UNKNOWN
    if not isinstance(value, float) or abs(value) >= 1000:
        return short_number(value)
    return f"{float(f'{value:.12g}'):.3g}"  # the last digits of a sum depend on its order


def seconds(value: float | None) -> str:
    """Return a duration, or a dash."""
    return "0 s" if value == 0 else duration(value) or UNKNOWN


def share(part: int | None, whole: int) -> str:
    """Return a share in percent, or a dash if the part is unknown or the whole is 0."""
    return UNKNOWN if part is None or not whole else percent(part / whole)


def in_unit(value: float, unit: Unit) -> str:
    """Return a figure in its unit."""
    return {"share": percent, "seconds": seconds, "number": number}[unit](value)


LEGEND: Final = (
    "The usual change of a figure is how much it moves by chance, from step to step. "
    "Changes of 3 times that or more are listed: possible causes first, then what follows from them."
)
"""What the number beside a change means."""


def times_usual(given: RunChange) -> str:
    """Return how surprising a change is: ``31.7 × the usual change``."""
    return f"{given.surprise:.1f} × the usual change"


def change(given: RunChange) -> str:
    """Return a change: ``tool browser: errors 2% → 61%``."""
    before, after = (in_unit(value, given.unit) for value in (given.before, given.after))
    return f"{given.label} {before} → {after}"


def once(changes: Sequence[RunChange]) -> list[RunChange]:
    """Return the changes with only the first of a figure's variants, such as median and p95."""
    found: dict[str, RunChange] = {}
    for change in changes:
        found.setdefault(change.label.partition(", ")[0], change)
    return list(found.values())


def parts(given: RunChange) -> Iterator[str]:
    """Yield the causes of a change: ``TimeoutError 0% → 58%``; ``all TimeoutError`` for the only one."""
    first = given.parts[0] if len(given.parts) == 1 else None
    if first and (first.before, first.after) == (given.before, given.after):
        yield f"all {first.name}"
        return
    for part in given.parts[:_MAX_PARTS]:
        yield f"{part.name} {percent(part.before)} → {percent(part.after)}"
    if (more := len(given.parts) - _MAX_PARTS) > 0:
        yield f"and {more} more"


LONGEST: Final = "longest trajectory"
"""Heading of the column whose cells name trajectories."""
ENGINE_TITLE: Final = "in the engine: queue, prefill and decode of a trajectory, quantiles of a request"
"""Heading of the table."""
_Row = dict[str, str]
"""Heading → cell."""


def tools(steps: Sequence[StepReport], most: int) -> list[tuple[str, list[str]]]:
    """Return a table of the tools that steps call: how often each fails, since when, its errors by step.

    Args:
        steps: the steps.
        most: maximum steps, the last ones, that have a column each.

    Returns:
        Heading and cells of each column.
    """
    known = histories_of(steps)
    found = known[:_MAX_TOOLS]
    first = max(0, len(steps) - most)
    return [
        (
            "tool" if found == known else f"tool ({len(found)} of {len(known)})",
            [tool.name or UNKNOWN for tool in found],
        ),
        ("calls", [str(tool.calls) for tool in found]),
        ("tool errors", [_errors(tool) for tool in found]),
        ("rise at", [tool.risen_at or UNKNOWN for tool in found]),
        *(
            (
                f"step {steps[place].name}",
                [_in_step(of) if (of := tool.steps[place]) else "" for tool in found],
            )
            for place in range(first, len(steps) if len(steps) > 1 else 0)
        ),
        ("by type", [", ".join(error_types(tool.error_types)) for tool in found]),
    ]


def _in_step(tool: Tool) -> str:
    return f"{number(tool.errors)}/{tool.known or tool.calls}"


def _errors(tool: ToolHistory) -> str:
    told = failed(tool.errors, tool.known, tool.calls)
    return told if tool.errors is None else f"{tool.errors} ({told})"


def failed(errors: int | None, known: int, calls: int) -> str:
    """Return the share of failed calls, and of how many if not every call tells whether it failed."""
    return share(errors, known) + (f" of {known}" if 0 < known < calls else "")


def error_types(counts: Mapping[str, int]) -> list[str]:
    """Return how often each class of errors occurs; the class is named without its module."""
    by_class: Counter[str] = Counter()
    for name, count in counts.items():
        by_class[name.rpartition(".")[2] if name.replace(".", "").isidentifier() else name] += count
    return [f"{name} {count}" for name, count in by_class.most_common()]


def figures(step: StepReport) -> _Row:
    """Return a step's figures."""
    reward = step.reward
    spread = "" if reward.std is None else f" ± {number(reward.std)}"
    odd = f", {reward.odd} NaN, infinite or huge" if reward.odd else ""
    quantiles = {"p10": reward.p10, "p50": reward.p50, "p90": reward.p90}
    compared = step.groups_compared
    return {
        "trajectories": f"{step.trajectories}" + (f" ({step.running} running)" if step.running else ""),
        "failed": str(step.failed),
        "reward": f"{number(reward.mean)}{spread}{_covered(reward.count, step)}{odd}",
        **{name: number(None if reward.values else value) for name, value in quantiles.items()},
        "no spread": f"{step.groups_without_spread} of {compared}" if compared else UNKNOWN,
        "turns": number(step.turns_mean),
        "tokens in": number(step.tokens_in),
        "tokens out": number(step.tokens_out),
        "cut replies": share(step.replies_truncated, step.replies_ended),
        "tool calls": str(step.tool_calls),
        "tool errors": failed(step.tool_errors, step.tool_calls_known, step.tool_calls),
        "unparsable calls": str(step.parse_failures),
        "policy lag": number(step.policy_lag.mean),
    }


def _covered(count: int, step: StepReport) -> str:
    """Return in brackets how many trajectories a mean is of, running ones too; nothing if of all or none."""
    return f" ({count} of {step.trajectories})" if 0 < count < step.trajectories else ""


def times(step: StepReport) -> _Row | None:
    """Return a step's durations, of which the phases are means of a trajectory; None without any."""
    known = step.seconds
    if known.slowest is None:
        return None
    parts = {name: seconds(getattr(known, name)) for name in ("generate", "tool", "reward", "waiting")}
    quantiles = {"median": known.p50, "p95": known.p95, "longest": known.max}
    return {**{name: seconds(value) for name, value in quantiles.items()}, **parts, LONGEST: known.slowest}


def engine(step: StepReport) -> _Row | None:
    """Return what a step's requests took in the engine; None without any.

    The times of the three phases are means of a trajectory.
    """
    known = step.engine
    if known is None:
        return None
    return {
        "requests": str(known.requests),
        "calls without request": str(known.calls_without_request),
        "queue": seconds(known.queue_seconds),
        "prefill": seconds(known.prefill_seconds),
        "decode": seconds(known.decode_seconds),
        "queue p50": seconds(known.queue_p50),
        "queue p95": seconds(known.queue_p95),
        "first token p50": seconds(known.first_token_p50),
        "first token p95": seconds(known.first_token_p95),
    }


def trainer(step: StepReport) -> _Row | None:
    """Return what training made of a step's trajectories; None without such scores."""
    known = step.trainer
    if known is None:
        return None
    by_step = ", by step" if known.lag_source == "step" else ""
    of = partial(_covered, step=step)
    return {
        "trained": f"{share(known.trained, known.known)}{of(known.known)}",
        "advantage": f"{number(known.advantage_magnitude)}{of(known.advantages)}",
        "trained reward": f"{number(known.reward_mean)}{of(known.trained_rewards)}",
        "reward differs": str(known.rewards_differing) if known.rewards_compared else UNKNOWN,
        "policy lag": f"{_with_most(known.lag_mean, known.lag_max, by_step)}{of(known.lags)}",
        "mismatch": f"{_with_most(known.mismatch_mean, known.mismatch_max)}{of(known.mismatches)}",
        "at turn": number(known.mismatch_turn),
        "importance ratio": f"{number(known.importance_ratio)}{of(known.importance_ratios)}",
    }


def _with_most(mean: float | None, most: float | None, further: str = "") -> str:
    """Return a mean, with the greatest value in brackets."""
    return UNKNOWN if mean is None else f"{number(mean)} (max {number(most)}{further})"


_KINDS: Final[tuple[tuple[str, str, Callable[[StepReport], _Row | None]], ...]] = (
    ("", "", figures),
    ("time of a trajectory", "time, ", times),
    (ENGINE_TITLE, "engine, ", engine),
    ("what training made of them", "trainer, ", trainer),
)
"""Title of each table, prefix of the names of its facts, and function that returns a step's row."""


class StepTable(NamedTuple):
    """A table with a row for each of some steps.

    Attributes:
        title: its title; empty for the first one.
        steps: the steps.
        columns: heading and cells of each column.
    """

    title: str
    steps: Sequence[StepReport]
    columns: list[tuple[str, list[str]]]


def tables(steps: Sequence[StepReport]) -> Iterator[StepTable]:
    """Yield the tables for which steps have figures, without columns of nothing but zeros or unknowns."""
    for title, _, row_of in _KINDS:
        rows = [(step, row) for step in steps if (row := row_of(step))]
        columns = [(heading, [row[heading] for _, row in rows]) for heading in (rows[0][1] if rows else ())]
        said = [each for each in columns if set(each[1]) - {UNKNOWN, _NEVER.get(each[0])}]
        if rows:
            known = [step for step, _ in rows]
            yield StepTable(title, known, [("step", [step.name for step in known]), *said])


def trainer_notes(steps: Sequence[StepReport]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield notes on the training of steps, each with names of trajectories to look at."""
    found = [(step, step.trainer) for step in steps if step.trainer]
    differing = [(step, known) for step, known in found if known.rewards_differing]
    if differing:
        bad = sum(known.rewards_differing for _, known in differing)
        whole = sum(known.rewards_compared for _, known in differing)
        most = max(known.reward_difference or 0.0 for _, known in differing)
        yield (
            f"trained reward is not the recorded one: {bad} of {counted(whole, 'trajectory')}, "
            f"{_in(step for step, _ in differing)}, by up to {number(most)}"
        ), tuple(name for _, known in differing for name in known.differing)[:_NAMED]  # fmt: skip
    odd = [(step, known.not_finite) for step, known in found if known.not_finite]
    if odd:
        number_ = counted(sum(count for _, count in odd), "trajectory")
        yield f"NaN, infinite or huge: {number_}, {_in(step for step, _ in odd)}", ()
    for note in _filter_notes([(step, known.filtered) for step, known in found]):
        yield note, ()


def _filter_notes(filtered: Sequence[tuple[StepReport, Mapping[str, int]]]) -> Iterator[str]:
    """Yield the most frequent reasons of the filter, and how many others there are."""
    counts = sum((Counter(numbers) for _, numbers in filtered), Counter[str]())
    shown = counts.most_common(_REASONS)
    for reason, number_ in shown:
        steps = _in(step for step, numbers in filtered if reason in numbers)
        yield f"not trained, {reason.strip() or 'blank reason'}: {counted(number_, 'trajectory')}, {steps}"
    if others := len(counts) - len(shown):
        rest = counts.total() - sum(number_ for _, number_ in shown)
        yield f"not trained, {counted(others, 'other reason')}: {counted(rest, 'trajectory')}"


def _in(steps: Iterable[StepReport]) -> str:
    return steps_in_words(step.step for step in steps)


def facts(step: StepReport) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact below the heading of a step's page."""
    for _, beginning, row_of in _KINDS:
        for name, value in (row_of(step) or {}).items():
            if name != LONGEST:
                yield f"{beginning}{name}", value
    if step.reward.missing:
        yield "without a reward", str(step.reward.missing)
    if step.reward.odd:
        yield "reward NaN, infinite or huge", str(step.reward.odd)
    if step.policy_lag.mixed:
        yield "weights changed during", f"{step.policy_lag.mixed} trajectories"
    errors = Counter(step.error_types)
    for name, count in errors.most_common(_REASONS):
        yield f"failed with {name}", str(count)
    if len(errors) > _REASONS:
        rest = errors.total() - sum(count for _, count in errors.most_common(_REASONS))
        yield f"failed with {len(errors) - _REASONS} other errors", str(rest)
