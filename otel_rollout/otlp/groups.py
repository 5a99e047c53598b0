"""Name the group of a trajectory: the trajectories that are made for one dataset row in one step."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from otel_rollout.base import semconv
from otel_rollout.base.given import scalar

_WHOLE_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""Text that counts as an integer."""


class Group(NamedTuple):
    """The name of a group; make it with :meth:`named` or :meth:`of`."""

    experiment: Any
    step: Any
    sample_index: Any
    validate: Any

    @classmethod
    def named(cls, experiment: Any, step: Any, sample_index: Any, validate: Any) -> Group:
        """Return the group with this name. The values 1, 1.0 and "1" give the same group, as in listings."""
        return cls(
            experiment,
            step if type(step) is int else _name(step),
            sample_index if type(sample_index) is int else _name(sample_index),
            validate if type(validate) is bool else bool(scalar(validate)),
        )

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Group:
        """Return the group of a trajectory, by its identity attributes."""
        return cls.named(
            identity.get(semconv.EXPERIMENT_NAME),
            identity.get(semconv.STEP),
            identity.get(semconv.SAMPLE_INDEX),
            identity.get(semconv.VALIDATE),
        )


def _name(value: Any) -> Any:
    """Return a step or row as in a group's name: text of an integer becomes that integer."""
    known = scalar(value)
    return int(known) if isinstance(known, str) and _WHOLE_NUMBER.fullmatch(known) else known


def group_hash(group: Group, seed: str = "") -> float:
    """Return a number from 0 to 1 for a group, the same number in all processes.

    The numbers are spread evenly. Trajectories with neither row nor step share one number. The numbers for
    different seeds are independent.
    """
    return _hash(seed, *group)


@functools.lru_cache(maxsize=256, typed=True)  # siblings start together; `typed`, because 1 and True differ
def _hash(*names: Any) -> float:
    digest = hashlib.blake2b(repr(names).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / (1 << 64)
