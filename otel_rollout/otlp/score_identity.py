"""Find the trajectory that a score names by its identity.

Such a score comes from a process that knows no trace id: a trainer's process, or a judge that starts a day
later. The score is an evaluation span of its own trace. It belongs to the only trajectory that fits, or to
none.

- If the run of the score has recorded trajectories, only these count. A trajectory of equal identity in
  another run, such as an earlier attempt of the experiment, does not count.
- If the run of the score has recorded no trajectory, those of other runs count.
- A score without ``rollout_n`` fits each trajectory of the dataset row in the step.
- If several fit, a trajectory that began after the score was given does not count: a repeated step takes no
  score that was given to its earlier attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from otel_rollout.base import semconv


class Unresolved(Enum):
    """Why a score by identity belongs to no trajectory."""

    UNKNOWN = "unknown"
    """No trajectory has the identity."""
    AMBIGUOUS = "ambiguous"
    """Several trajectories have the identity, for example those of a step that was tried again."""


class TrajectoryIdentity(NamedTuple):
    """The identity of a trajectory, or the identity that a score names, as text.

    ``rollout_n`` is empty if it is not named. ``run`` is the id of the run that recorded the span.
    """

    project: str
    experiment: str
    step: str
    sample_index: str
    rollout_n: str
    validate: bool
    run: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any], run: object) -> TrajectoryIdentity:
        """Read an identity from the attributes of a span, or from their texts in a backend."""
        return cls(
            project=_text(attributes.get(semconv.PROJECT_NAME)),
            experiment=_text(attributes.get(semconv.EXPERIMENT_NAME)),
            step=_text(attributes.get(semconv.STEP)),
            sample_index=_text(attributes.get(semconv.SAMPLE_INDEX)),
            rollout_n=_text(attributes.get(semconv.ROLLOUT_N)),
            validate=attributes.get(semconv.VALIDATE) in (True, "True"),
            run=_text(run),
        )

    @classmethod
    def of_stored(cls, known: Mapping[str, Any], project: str, run: object) -> TrajectoryIdentity:
        """Read an identity from a tracker, which has the attributes by their short names."""
        attributes = {name: known.get(semconv.short_name(name)) for name in semconv.IDENTITY}
        return cls.of({**attributes, semconv.PROJECT_NAME: project}, run)

    @property
    def path(self) -> str:
        """Project, experiment, step, sample and rollout for a person."""
        validation = "validation/" if self.validate else ""
        rollout = f"/{self.rollout_n}" if self.rollout_n else ""
        path = f"{validation}{self.step}/{self.sample_index}{rollout}"
        return " ".join(filter(None, (self.project, self.experiment, path)))

    def fits(self, trajectory: TrajectoryIdentity) -> bool:
        """Return whether a score with this identity fits a trajectory, in whatever run it was recorded."""
        return self._replace(rollout_n="", run="") == trajectory._replace(rollout_n="", run="") and (
            self.rollout_n in ("", trajectory.rollout_n)
        )


Handle = TypeVar("Handle")


@dataclass(frozen=True)
class Candidate(Generic[Handle]):
    """A stored trajectory.

    Attributes:
        identity: the trajectory's identity.
        handle: finds the trajectory again.
        start_ns: when it began, Unix time in ns; 0 if that is not known.
    """

    identity: TrajectoryIdentity
    handle: Handle
    start_ns: int = 0


def is_by_identity(attributes: Mapping[str, Any]) -> bool:
    """Return whether a span is a score by identity."""
    return attributes.get(semconv.SCORE_ORIGIN) == semconv.ORIGIN_IDENTITY


def may_be_by_identity(line: bytes) -> bool:
    """Return whether a line may hold a score by identity; other lines need not be decoded."""
    return b'"rollout.score_origin"' in line and b'"identity"' in line


def trajectory_of(
    score: TrajectoryIdentity, candidates: Iterable[Candidate[Handle]], *, has_own: bool, given_ns: int
) -> Candidate[Handle] | Unresolved:
    """Return the only trajectory that fits a score, or why there is none.

    Args:
        score: the identity that the score names.
        candidates: stored trajectories.
        has_own: whether the run of the score has recorded trajectories.
        given_ns: when the score was given, Unix time in ns.
    """
    found = [one for one in candidates if score.fits(one.identity)]
    if has_own:
        found = [one for one in found if one.identity.run == score.run]
    if len(found) > 1:  # clocks of two machines may differ, so the only one that fits need not have begun
        found = [one for one in found if one.start_ns <= given_ns] or found
    if len(found) == 1:
        return found[0]
    return Unresolved.AMBIGUOUS if found else Unresolved.UNKNOWN


def _text(value: object) -> str:
    return "" if value is None else str(value)
