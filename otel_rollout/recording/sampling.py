"""Which traces are recorded: by OpenTelemetry's own samplers (``OTEL_TRACES_SAMPLER``), and by group.

A group is what was sampled for one dataset row in one step. Whether it is recorded follows from its name
alone, so that every process on every node decides alike, without asking anybody or drawing a number.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context as otel_context

from otel_rollout.base import semconv
from otel_rollout.base.errors import warn_once
from otel_rollout.recording.identity import scalar

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

    from otel_rollout.settings import Settings

ENTRY_POINTS = "opentelemetry_traces_sampler"
CHOSEN = otel_context.create_key("otel-rollout-chosen")
"""Under what a context holds the rows of a step that are chosen."""
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_GROUPS_PER_STEP_NEEDED = (
    "OTEL_ROLLOUT_SAMPLE_GROUPS has no effect here, where nobody sees a whole step: say in "
    "OTEL_ROLLOUT_GROUPS_PER_STEP how many groups a step has"
)
_logger = logging.getLogger("otel_rollout")
Decision = Callable[[int, str], bool]
"""Whether the trace with this id, whose first span has this name, is recorded."""


class Group(NamedTuple):
    """What all siblings have in common. Made by :meth:`named` or :meth:`of`."""

    experiment: Any
    step: Any
    sample_index: Any
    validate: Any

    @classmethod
    def named(cls, experiment: Any, step: Any, sample_index: Any, validate: Any) -> Group:
        """Return the group of this name: ``1``, ``1.0`` and ``"1"`` are one, as listings show them."""
        return cls(
            experiment,
            step if type(step) is int else _name(step),
            sample_index if type(sample_index) is int else _name(sample_index),
            validate if type(validate) is bool else bool(scalar(validate)),
        )

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Group:
        """The group of a trajectory with these identity attributes."""
        return cls.named(
            identity.get(semconv.EXPERIMENT_NAME),
            identity.get(semconv.STEP),
            identity.get(semconv.SAMPLE_INDEX),
            identity.get(semconv.VALIDATE),
        )


def _name(value: Any) -> Any:
    """A step or row, as a number where its text is that of a whole number."""
    known = scalar(value)
    return int(known) if isinstance(known, str) and _WHOLE.fullmatch(known) else known


def place_of_group(group: Group, seed: str = "") -> float:
    """A number from 0 to 1 that is the same for all trajectories of a group, in whatever process they run.

    Numbers of groups are spread evenly, and those of trajectories that name neither row nor step are all one.
    With another seed they are others, and have nothing to do with these.
    """
    return _place(seed, *group)


@functools.lru_cache(maxsize=256, typed=True)  # siblings begin together; 1, 1.0 and True are not the same
def _place(*names: Any) -> float:
    digest = hashlib.blake2b(repr(names).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / (1 << 64)


@dataclass(frozen=True)
class GroupSampling:
    """Which groups are recorded, see docs/sampling.md.

    Attributes:
        rate: share of groups.
        every: of which numbers steps are multiples that are recorded.
        validation: ``always``, ``never``, or ``sampled`` as training.
        most: groups of a step; 0: any number.
        out_of: groups that a step has; 0: not known.
        seed: makes another choice.
    """

    rate: float = 1.0
    every: int = 1
    validation: str = "sampled"
    most: int = 0
    out_of: int = 0
    seed: str = ""
    _random: random.Random = field(default_factory=random.SystemRandom, compare=False)
    """For trajectories of no group. Training seeds the global generator, and must not notice."""

    @classmethod
    def of(cls, configured: Settings) -> GroupSampling | None:
        """What the settings ask for; None when they leave nothing out."""
        sampling = cls(
            configured.sample_rate,
            configured.sample_every,
            configured.sample_validation,
            configured.sample_groups,
            configured.groups_per_step,
            configured.sample_seed,
        )
        is_all = sampling.rate == sampling.every == 1 and not sampling.most and sampling.validation != "never"
        return None if is_all else sampling

    def takes(self, group: Group, context: otel_context.Context) -> bool:
        """Whether a trajectory of this group, begun in this context, is recorded."""
        decided = self._by_step(group)
        if decided is not None:
            return decided
        chosen = chosen_in(context) if self.most else None
        if chosen is not None:
            return group.sample_index in chosen and self._place(group) < self.rate
        return self._place(group) < self._expected_share()

    def chosen(self, groups: Iterable[Group]) -> frozenset[Any] | None:
        """The rows of a whole step that are recorded where there is a limit; None where there is none."""
        if not self.most:
            return None
        limited: dict[Group, float] = {}
        unlimited = set()
        for group in set(groups):
            decided = self._by_step(group)
            if decided:
                unlimited.add(group.sample_index)
            elif decided is None:
                limited[group] = self._place(group)
        first = sorted(limited, key=limited.__getitem__)[: self.most]
        return frozenset(unlimited | {group.sample_index for group in first})

    def _by_step(self, group: Group) -> bool | None:
        if group.validate and self.validation != "sampled":
            return self.validation == "always"
        if self.every > 1 and type(group.step) is int and group.step % self.every:
            return False
        return None

    def _place(self, group: Group) -> float:
        if group.sample_index is None:
            return self._random.random()
        return place_of_group(group, f"sample {self.seed}")

    def _expected_share(self) -> float:
        if not self.most:
            return self.rate
        if not self.out_of:
            warn_once(_GROUPS_PER_STEP_NEEDED)
            return self.rate
        return min(self.rate, self.most / self.out_of)


def with_chosen(rows: frozenset[Any] | None, context: otel_context.Context) -> otel_context.Context:
    """A context in which those rows of a whole step are chosen to be recorded; None: nobody has chosen."""
    return otel_context.set_value(CHOSEN, rows, context)


def chosen_in(context: otel_context.Context) -> frozenset[Any] | None:
    """The rows chosen of the step that ``context`` is inside of, if anybody has."""
    rows = otel_context.get_value(CHOSEN, context)
    return rows if isinstance(rows, frozenset) else None


def decision_of(name: str, argument: str) -> Decision | None:
    """The decision that a sampler takes for traces that begin with us; None when all are recorded.

    Below a span that exists already its decision holds, whatever the sampler: a trace is recorded whole or
    not at all.

    Args:
        name: as in ``OTEL_TRACES_SAMPLER``.
        argument: as in ``OTEL_TRACES_SAMPLER_ARG``.

    Raises:
        ValueError: for a sampler that does not exist, or an argument it does not take.
    """
    kind = name.removeprefix("parentbased_")
    if kind == "always_on":
        return None
    if kind == "always_off":
        return lambda trace_id, span_name: False
    sampler = _ratio(argument) if kind == "traceidratio" else _installed(name, argument)
    from opentelemetry.sdk.trace.sampling import Decision as SdkDecision

    recorded = SdkDecision.RECORD_AND_SAMPLE
    return lambda trace_id, span_name: sampler.should_sample(None, trace_id, span_name).decision is recorded


def _ratio(argument: str) -> Sampler:
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    try:
        return TraceIdRatioBased(float(argument or 1))
    except ValueError:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG={argument!r} is no share from 0 to 1") from None


def _installed(name: str, argument: str) -> Sampler:
    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        known = ", ".join(sorted({point.name for point in entry_points(group=ENTRY_POINTS)}))
        raise ValueError(f"OTEL_TRACES_SAMPLER={name!r} is not installed; known are {known}")
    try:
        sampler: Sampler = found[0].load()(argument)
    except Exception as error:
        raise ValueError(f"OTEL_TRACES_SAMPLER={name!r} cannot be set up: {error}") from error
    return sampler
