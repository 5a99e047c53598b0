"""What an exporter has to bring across, in one form for all backends, and what an adapter is.

An adapter may rename fields and round times to what its backend keeps, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

IDENTITY = ("experiment_name", "step", "sample_index", "rollout_n", "validate")
"""Beside the project, which is where an adapter looks."""


class Score(NamedTuple):
    """A score as a backend shows it.

    Attributes:
        value: a number, bool or text.
        time_us: when it was given, Unix time in µs, rounded down.
        comment: why; empty without.
    """

    value: Any
    time_us: int
    comment: str


@dataclass
class Operation:
    """One span as a backend shows it.

    Attributes:
        id: the backend's own; used to find parents, and not compared.
        parent_id: the same of its parent.
        trace: trace id, 32 hex digits.
        name: of the operation.
        start_us: Unix time in µs, rounded down.
        end_us: the same.
        inputs: JSON value; one that is no object stands below ``value``, and none at all is ``{}``.
        output: JSON value.
        failed: whether its status is an error.
        message: the status's message, of an error.
        exception: type and message of the last exception recorded.
        identity: of its trajectory.
        scores: name → the newest score of that name, of what was scored.
        is_outside: whether it is the span of a score that was given from outside its trajectory. A backend
            need not show that span, but it shows the score.
    """

    id: str
    parent_id: str | None
    trace: str
    name: str
    start_us: int
    end_us: int
    inputs: Any
    output: Any
    failed: bool
    message: str
    exception: tuple[str, str] | None
    identity: Mapping[str, Any]
    scores: dict[str, Score] = field(default_factory=dict)
    is_outside: bool = False


class Adapter(Protocol):
    """A backend under test."""

    exporter: str
    """Name of the exporter, as in OTEL_TRACES_EXPORTER."""
    variables: Mapping[str, str]
    """Environment that leads the exporter to the backend."""

    def read(self, project: str) -> list[Operation]:
        """All operations of a project, read back by the backend's own client."""

    def shows(self, value: Any) -> Any:
        """What the backend is documented to show of a number, text, bool or None: mostly the same."""


def identity(attributes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The identity among attributes; what is missing is missing."""
    return {name: attributes[prefix + name] for name in IDENTITY if prefix + name in attributes}


def inputs(value: Any) -> Any:
    """Inputs as an object."""
    if isinstance(value, dict):
        return value
    return {} if value is None else {"value": value}


def exact(value: Any, shows: Callable[[Any], Any] = lambda value: value) -> Any:
    """A JSON value in a form whose parts are equal if their types are: ``1 == True == 1.0`` otherwise."""
    if isinstance(value, Mapping):
        return {shows(name): exact(entry, shows) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(entry, shows) for entry in value]
    shown = shows(value)
    return type(shown).__name__, repr(shown)


def trees(
    operations: Sequence[Operation], shows: Callable[[Any], Any] = lambda value: value
) -> dict[str, Any]:
    """Trace id → its operations, nested, siblings in order of their start. Without ids.

    Args:
        operations: of a project.
        shows: what a backend that they are compared with shows, see ``Adapter.shows``.
    """
    ids = {operation.id for operation in operations}
    assert len(ids) == len(operations), "an operation twice"

    def below(parent: str | None, among: Sequence[Operation]) -> list[dict[str, Any]]:
        found = [operation for operation in among if operation.parent_id == parent]
        found.sort(key=lambda operation: (operation.start_us, operation.name, operation.end_us))
        return [{**_compared(one, shows), "children": below(one.id, among)} for one in found]

    of_trace: dict[str, list[Operation]] = {}
    for operation in operations:
        assert operation.parent_id is None or operation.parent_id in ids, f"{operation.name} is an orphan"
        if not operation.is_outside:
            of_trace.setdefault(operation.trace, []).append(operation)
    return {trace: below(None, among) for trace, among in sorted(of_trace.items())}


def _compared(operation: Operation, shows: Callable[[Any], Any]) -> dict[str, Any]:
    fields = dict(vars(operation))
    for name in ("id", "parent_id", "trace", "is_outside"):
        del fields[name]
    return {name: exact(value, shows) for name, value in fields.items()}


def differences(found: Any, expected: Any, at: str = "") -> list[str]:
    """Where two trees differ, as lines for a person; empty where they do not."""
    if isinstance(found, dict) and isinstance(expected, dict):
        names = [*expected, *(name for name in found if name not in expected)]
        parts = [(f"{at}/{name}", found.get(name), expected.get(name)) for name in names]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        parts = [(f"{at}/{n}", *both) for n, both in enumerate(zip(found, expected, strict=True))]
    else:
        return [] if found == expected else [f"{at}: {found} in place of {expected}"]
    return [line for place, one, other in parts for line in differences(one, other, place)]
