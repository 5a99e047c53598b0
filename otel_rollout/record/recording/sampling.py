"""Decide which traces are recorded, by sampler and by group: head sampling.

The samplers are OpenTelemetry's (``OTEL_TRACES_SAMPLER``). A group is the set of trajectories made for one
dataset row in one step. A hash of the group's name decides whether the group is recorded. So every process
on every node makes the same decision, without communication. Two cases differ. With ``sample_groups``, a
process that sees the whole step chooses its groups, and the context carries the choice. For a trajectory
without a dataset row, the operating system's random numbers decide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context

from otel_rollout.base.errors import warn_once
from otel_rollout.otlp.groups import Group, group_hash
from otel_rollout.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

ENTRY_POINTS = "opentelemetry_traces_sampler"
CHOSEN = otel_context.create_key("otel-rollout-chosen")
"""Key of the dataset rows of a step that are chosen to be recorded."""
_NO_WHOLE_STEP = (
    "OTEL_ROLLOUT_SAMPLE_GROUPS has no effect here, because no process sees a whole step: set "
    "OTEL_ROLLOUT_SAMPLE_RATE to a share of the groups"
)
Decision = Callable[[int, str], bool]
"""Decides, by trace id and name of the first span, whether a trace is recorded."""


class GroupSampling:
    """Decides which groups are recorded, see docs/volume.md.

    Args:
        configured: settings of the run, which exclude some groups.
    """

    def __init__(self, configured: Settings) -> None:
        self._settings = configured
        # For trajectories without a group. Training depends on the global generator.
        self._random = random.SystemRandom()

    def takes(self, group: Group, context: otel_context.Context) -> bool:
        """Return whether a trajectory of a group that starts in ``context`` is recorded."""
        decided = self._by_step(group)
        if decided is not None:
            return decided
        chosen = chosen_in(context) if self._settings.sample_groups else None
        if chosen is None and self._settings.sample_groups:
            warn_once(_NO_WHOLE_STEP)
        return (chosen is None or group.sample_index in chosen) and self._hash(
            group
        ) < self._settings.sample_rate

    def excludes(self, group: Group) -> bool:
        """Return whether a group's name alone makes every process leave out the group."""
        decided = self._by_step(group)
        return self._hash(group) >= self._settings.sample_rate if decided is None else not decided

    def chosen(self, groups: Iterable[Group]) -> frozenset[Any] | None:
        """Choose the rows of a whole step that are recorded; None without a limit."""
        if not self._settings.sample_groups:
            return None
        limited: dict[Group, float] = {}
        unlimited = set()
        for group in set(groups):
            decided = self._by_step(group)
            if decided:
                unlimited.add(group.sample_index)
            elif decided is None:
                limited[group] = self._hash(group)
        first = sorted(limited, key=limited.__getitem__)[: self._settings.sample_groups]
        return frozenset(unlimited | {group.sample_index for group in first})

    def _by_step(self, group: Group) -> bool | None:
        if group.validate and self._settings.sample_validation != "sampled":
            return self._settings.sample_validation == "always"
        if (
            self._settings.sample_every > 1
            and type(group.step) is int
            and group.step % self._settings.sample_every
        ):
            return False
        return None

    def _hash(self, group: Group) -> float:
        if group.sample_index is None:
            return self._random.random()
        return group_hash(group, f"sample {self._settings.sample_seed}")


def with_chosen(rows: frozenset[Any] | None, context: otel_context.Context) -> otel_context.Context:
    """Return a context with the chosen rows of a step; None: no choice."""
    return otel_context.set_value(CHOSEN, rows, context)


def chosen_in(context: otel_context.Context) -> frozenset[Any] | None:
    """Return the chosen rows of the current step; None without a choice."""
    rows = otel_context.get_value(CHOSEN, context)
    return rows if isinstance(rows, frozenset) else None


def decision_of(name: str, argument: str) -> Decision | None:
    """Return a sampler's decision for traces that start in this process; None: all are recorded.

    Below an existing span, that span's decision holds, whatever the sampler: a trace is recorded whole or not
    at all.

    Args:
        name: value of ``OTEL_TRACES_SAMPLER``.
        argument: value of ``OTEL_TRACES_SAMPLER_ARG``.

    Raises:
        ValueError: for a sampler that does not exist, or an argument that it refuses.
    """
    root_sampler = name.removeprefix("parentbased_")
    if root_sampler == "always_on":
        return None
    if root_sampler == "always_off":
        return lambda trace_id, span_name: False
    sampler = _ratio(argument) if root_sampler == "traceidratio" else _installed(name, argument)
    from opentelemetry.sdk.trace.sampling import Decision as SdkDecision

    recorded = SdkDecision.RECORD_AND_SAMPLE
    return lambda trace_id, span_name: sampler.should_sample(None, trace_id, span_name).decision is recorded


def _ratio(argument: str) -> Sampler:
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    try:
        return TraceIdRatioBased(float(argument or 1))
    except ValueError:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG={argument!r} is not a share from 0 to 1") from None


def _installed(name: str, argument: str) -> Sampler:
    from importlib.metadata import entry_points

    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        known = ", ".join(sorted({point.name for point in entry_points(group=ENTRY_POINTS)}))
        raise ValueError(f"OTEL_TRACES_SAMPLER={name!r} is not installed; known are {known}")
    try:
        sampler: Sampler = found[0].load()(argument)
    except Exception as error:
        raise ValueError(f"OTEL_TRACES_SAMPLER={name!r} cannot be set up: {error}") from error
    return sampler
