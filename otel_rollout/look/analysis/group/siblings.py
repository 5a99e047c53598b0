"""Find and read the siblings of a group, in a table, a spool or MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_rollout.base.printable import in_one_line
from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import VALIDATION, Summary, readings_of, references
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.sources import reference
from otel_rollout.look.sources.private_table import Source
from otel_rollout.look.sources.table_source import TableSource, conversations_in, runs_with
from otel_rollout.table import views
from otel_rollout.table.filters import OF_TRAJECTORY, all_of, equals, of_path
from otel_rollout.table.query import Engine
from otel_rollout.table.rows import integer_in

MAX_SIBLINGS: Final = 128
"""Maximum siblings that are read of a group; a run without dataset rows is one large group."""
_TRACES_AT_ONCE: Final = 16
"""Trajectories whose spans are in memory at a time."""
_MISSING: Final = "-"
"""Part of a name that was not recorded."""
_FORMS: Final = "STEP/SAMPLE, such as 12/7 or validation/12/7; `-` stands for a part that was not recorded"


@dataclass(frozen=True)
class Sibling:
    """One trajectory of a group.

    Attributes:
        name: its path; with the beginning of its trace id if several trajectories have this path.
        reference: what ``otel-rollout show`` takes: its path, or its trace id if several have this path.
        conversation: the trajectory's own turns, without those of evaluators and sub-trajectories.
    """

    name: str
    reference: str
    conversation: Conversation

    @property
    def summary(self) -> Summary:
        """Identity, state and scores."""
        return self.conversation.summary


@dataclass(frozen=True)
class Siblings:
    """The trajectories of a group, in the order of their names.

    Attributes:
        path: the group's name, such as ``12/7``.
        found: the trajectories that were read.
        number: number of trajectories in the group; more than were read if the group is large.
        location: the table, spool or server, for a person.
        notes: remarks, such as that an older run is shown.
    """

    path: str
    found: tuple[Sibling, ...]
    number: int
    location: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupName:
    """Name of a group, as a person typed it.

    Attributes:
        validate: whether the group is of a validation.
        step: its step; ``-`` if none was recorded.
        sample: its dataset row; ``-`` if none was recorded.
    """

    validate: bool
    step: str
    sample: str

    @property
    def path(self) -> str:
        """The group's name in the form of the views."""
        return "/".join([*([VALIDATION] if self.validate else []), self.step, self.sample])

    @property
    def conditions(self) -> list[str]:
        """SQL conditions that all rows of the group's trajectories meet."""
        return [*of_path(self.validate, self.step), OF_TRAJECTORY]

    def has(self, summary: Summary) -> bool:
        """Return whether a whole trajectory is in the group, not only a sub-trajectory of it."""
        return in_one_line(summary.path).startswith(in_one_line(self.path) + "/")


def names_in(text: str) -> list[GroupName]:
    """Return the groups that a text may name: the group itself, or the group of a trajectory.

    Raises:
        ViewerError: the text names no group.
    """
    found = []
    for validate, (step, *rest) in readings_of(text):
        samples = ["/".join(rest)] if rest else []
        if len(rest) > 1 and (integer_in(rest[-1]) is not None or rest[-1] == _MISSING):
            samples.append("/".join(rest[:-1]))
        found += [GroupName(validate, step, sample.rstrip("/")) for sample in samples]
    if not found:
        raise ViewerError(f"{text!r} does not name a group: write {_FORMS}.")
    return found


def siblings_in(source: Source, text: str) -> Siblings:
    """Read a group's siblings from the newest run that has the group, as ``otel-rollout show`` does.

    Args:
        source: the table, spool, file or MLflow.
        text: the group's name, or the name of one of its trajectories.

    Raises:
        ViewerError: the text names no group, there is none of this name, or the source cannot be read.
        TableError: the table cannot be read.
    """
    for name in names_in(text):
        wanted = reference.parse(name.path)
        for table, number in source.tables(wanted):
            if found := _in_table(table, name):
                number = max(number or 0, found.number)
                notes = source.notes_on(wanted, [found.found[0].summary])
                return replace(found, number=number, location=source.location, notes=notes)
    raise ViewerError(_not_found(text, f" in {source.place}" if source.place else ""))


def _in_table(table: TableSource, name: GroupName) -> Siblings | None:
    """Return a group's siblings; None if the table has none."""
    named = _named(table.engine, name)
    if not named:
        return None
    conditions = [*name.conditions, equals("group_path", named)]
    for run in runs_with(table.engine, [table.run, *conditions]):
        ids, number = _trace_ids(table.engine, conditions, Run(**run))
        if found := _read(table.engine, ids, name):
            return Siblings(name.path, found, number if number > len(ids) else len(found))
    return None


def _named(engine: Engine, name: GroupName) -> list[str]:
    """Return the recorded paths of groups that lists print as this name."""
    sql = f"SELECT DISTINCT group_path FROM {views.RECORDED}{all_of(name.conditions)}"  # noqa: S608
    paths = (row["group_path"] for row in engine.dicts(sql))
    return sorted(path for path in paths if path and in_one_line(path) == in_one_line(name.path))


def _trace_ids(engine: Engine, conditions: Sequence[str], run: Run) -> tuple[list[str], int]:
    """Return the trace ids of a group's first siblings, and the number of all."""
    of_group = f"FROM {views.RECORDED}{all_of([run.condition, *conditions])}"
    rows = engine.dicts(
        "SELECT trace_id, min(rollout_n) AS rollout, min(start_ns) AS start, count(*) OVER () AS number "
        f"{of_group} GROUP BY trace_id ORDER BY rollout, start, trace_id LIMIT {MAX_SIBLINGS}"
    )
    return [row["trace_id"] for row in rows], rows[0]["number"] if rows else 0


def _read(engine: Engine, trace_ids: Sequence[str], name: GroupName) -> tuple[Sibling, ...]:
    """Read trajectories, a few at a time; keep those in the group."""
    conversations = [
        conversation
        for conversation in conversations_in(engine, trace_ids, _TRACES_AT_ONCE)
        if name.has(conversation.summary)
    ]
    conversations.sort(key=lambda each: each.summary.order)
    named = references([each.summary for each in conversations])
    return tuple(
        Sibling(_name(each.summary, named[each.summary.trace_id]), named[each.summary.trace_id], each.own)
        for each in conversations
    )


def _name(summary: Summary, named: str) -> str:
    return summary.path if named == summary.path else f"{summary.path} ({summary.trace_id[:8]})"


def _not_found(text: str, where: str) -> str:
    if text.endswith("/"):
        step = text.removeprefix(f"{VALIDATION}/").strip("/")
        listing = f"{step} --validation" if text.startswith(VALIDATION) else step
        return (
            f"{text} names a step, not a group: `otel-rollout groups --step {listing}` with the same --from "
            "lists its groups."
        )
    return (
        f"There is no group {text}{where}. `otel-rollout groups` with the same --from lists the groups; "
        f"those of a validation are called {VALIDATION}/…"
    )
