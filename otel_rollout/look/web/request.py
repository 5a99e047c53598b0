"""Describe the request for a page, and find the trajectory that its address names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from otel_rollout.look.analysis.evidence import in_steps
from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.conversation.formatting import counted
from otel_rollout.look.conversation.summary import VALIDATION, Summary
from otel_rollout.look.conversation.trajectories import summaries_of
from otel_rollout.look.sources import reference
from otel_rollout.look.web.answers import Answers, Make, PageAnswer
from otel_rollout.look.web.links import ServedLinks
from otel_rollout.look.web.live import utc
from otel_rollout.look.web.snapshot import RunRow, Snapshot
from otel_rollout.table.filters import NO_STEP, Step, equals, step_named
from otel_rollout.table.select import QueryError, literal

REFRESH: Final = "refresh"
"""Parameter that says whether a browser loads the page again by itself: ``on`` or ``off``."""
REFRESH_SECONDS: Final = 5
"""Time after which a browser loads a page of a live run again."""
PENDING_SECONDS: Final = 2
"""Time after which a browser loads a page again that is being prepared."""
_MAX_FOUND: Final = 256
"""Maximum trajectories that are read for one name or group."""


class PendingError(Exception):
    """A page is being prepared; the message is one sentence."""


class ChoiceError(QueryError):
    """An address names several trajectories, or nothing that exists.

    Attributes:
        choices: text and address of each page that the address may mean.
        status: HTTP status of the answer: 300 or 404.
    """

    def __init__(self, sentence: str, choices: Sequence[tuple[str, str | None]], status: int = 404) -> None:
        super().__init__(sentence)
        self.choices, self.status = choices, status


@dataclass(frozen=True)
class Asked:
    """A request for a page of a run, and the version of the table that answers it.

    Attributes:
        path: path of the page's address.
        given: the address's parameters.
        snapshot: the version of the table.
        row: the run.
        links: addresses of other pages; its attributes say what the top of the page shows.
        reports: reports of runs.
        checks: results of runs' checks, which take longer.
        is_live: whether the run is being written.
    """

    path: str
    given: Mapping[str, str]
    snapshot: Snapshot
    row: RunRow
    links: ServedLinks
    reports: Answers
    checks: Answers
    is_live: bool

    @property
    def run(self) -> Run:
        """The run."""
        return self.row.run

    @property
    def step(self) -> Step:
        """The step that the address names."""
        return step_named(self.given.get("step", NO_STEP))

    @property
    def validate(self) -> bool:
        """Whether the step is one of validation."""
        return self.given.get("validate") == "true"

    def name(self, parameter: str) -> str:
        """Return the name of a group or trajectory from a parameter of the address.

        Raises:
            QueryError: the address lacks the parameter.
        """
        if not self.given.get(parameter):
            raise QueryError(f"The address does not say what to show: it lacks the parameter `{parameter}`.")
        return self.given[parameter]

    def trajectory(self, parameter: str) -> tuple[Summary, int | None]:
        """Return the trajectory that a parameter names, and the id of its first span.

        The id is None unless the name has the form of ``Trajectory.id``, which a sub-trajectory has, too.

        Raises:
            ChoiceError: several trajectories have this name.
            QueryError: there is no such trajectory.
            ViewerError: the text is no name of a trajectory.
        """
        name = self.name(parameter)
        wanted = reference.parse(name)
        if wanted.trace:
            found = self._found([f"trace_id LIKE {literal(wanted.trace + '%')}"])  # hex digits: no wildcard
        else:
            found = self._found([self.run.condition, equals("path", wanted.path)])
        if not found:
            raise QueryError(f"There is no trajectory {name} in {self.run.name}.")
        if len(found) > 1:
            choices = [(f"{one.path} ({one.trace_id})", self.links.trajectory(one.trace_id)) for one in found]
            sentence = f"{name} names {len(found)} trajectories of {self.run.name}; choose one."
            raise ChoiceError(sentence, choices, 300)
        return found[0], wanted.span

    def lists(self) -> list[tuple[str, str | None]]:
        """Return a link to the list of trajectories of the step that the address names, else of the run."""
        name = self.given.get("name", "")
        validate = self.validate or name.startswith(VALIDATION)
        step = self.given.get("step") or name.removeprefix(f"{VALIDATION}/").partition("/")[0]
        rows = f"roots WHERE {self.run.condition} AND {in_steps([(validate, step_named(step))])}"
        if number := self.snapshot.engine.count(rows):
            named = f"{'Validation step' if validate else 'Step'} {step} has {counted(number, 'trajectory')}"
            return [(named, self.links.to("/trajectories", step=step, validation=str(validate).lower()))]
        return [(f"The trajectories of {self.run.name}", self.links.to("/trajectories"))]

    def siblings_of(self, summary: Summary) -> list[Summary]:
        """Return all trajectories of a trajectory's group, in their order."""
        own = f"SELECT group_path FROM trajectories WHERE {equals('trace_id', summary.trace_id)}"  # noqa: S608
        return self._found([self.run.condition, f"group_path IN ({own})"])

    def _found(self, conditions: Sequence[str]) -> list[Summary]:
        return summaries_of(self.snapshot.engine, conditions, _MAX_FOUND)

    def refreshed(self, by_default: bool = True, is_changing: bool | None = None) -> None:
        """Let a browser load the page again while the run is live.

        Args:
            by_default: whether it does so if the address has no parameter ``refresh``.
            is_changing: whether the page may change; by default, whether the run is live.
        """
        if not (self.is_live if is_changing is None else is_changing):
            return
        is_on = self.given.get(REFRESH, "on" if by_default else "off") == "on"
        others = {name: value for name, value in self.given.items() if name != REFRESH}
        address = f"{self.path}?{urlencode({**others, REFRESH: 'off' if is_on else 'on'}, errors='replace')}"
        self.links.refresh_seconds = REFRESH_SECONDS if is_on else None
        self.links.refresh_switch = ("stop reloading" if is_on else "reload by itself", address)

    def answer(self, answers: Answers, make: Make, patience: float) -> PageAnswer | None:
        """Return the newest slow result of the run; None if there is none after ``patience`` seconds."""
        return answers.get(self.run, make, self.snapshot.version, patience)

    def answered(self, answers: Answers, kind: str, make: Make, patience: float) -> Any:
        """Return the value of a slow result, and let the page say when its data was read.

        Raises:
            PendingError: the result is not ready after ``patience`` seconds.
            Exception: what the computation of the result has raised.
        """
        answer = self.answer(answers, make, patience)
        if answer is None:
            raise PendingError(f"The {kind} of {self.run.name} is being prepared.")
        if answer.problem is not None:
            raise answer.problem.with_traceback(None)  # each raise would lengthen the kept traceback
        self.links.status = f"read at {utc(answer.read_at)}"
        return answer.value
