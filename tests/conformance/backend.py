"""Define operations and scores in one form for all backends, and an adapter.

An adapter may rename fields and round times to its backend's precision, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

IDENTITY = ("experiment_name", "step", "sample_index", "rollout_n", "validate")
"""The identity but for the project, by which an adapter reads."""


class Score(NamedTuple):
    """A score as a backend shows it.

    Attributes:
        value: a number, bool or text.
        time_us: when the score was given, Unix time in µs, rounded down.
        comment: why; empty without.
    """

    value: Any
    time_us: int
    comment: str


@dataclass
class Operation:
    """One span as a backend shows it.

    Attributes:
        id: the backend's own id, by which parents are found; not compared.
        parent_id: the backend's id of the parent.
        trace: trace id, 32 hex digits.
        name: of the operation.
        start_us: Unix time in µs, rounded down.
        end_us: Unix time in µs, rounded down.
        inputs: JSON object; any other value is below ``value``, and no input is ``{}``.
        output: JSON value.
        failed: whether its status is an error.
        message: the status's message; empty without an error.
        exception: type and message of the last exception recorded.
        identity: of its trajectory.
        scores: the newest score of each name that was given to this operation.
        is_outside: whether the operation is the span of a score that was given from outside its trajectory. A
            backend need not show the span, only the score.
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
    """Environment that makes the exporter write to the backend."""

    def read(self, project: str) -> list[Operation]:
        """Read all operations of a project by the backend's own client."""

    def shows(self, value: Any) -> Any:
        """Return how the backend documents that it shows a number, text, bool or None."""


def identity(attributes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the identity among attributes."""
    return {name: attributes[prefix + name] for name in IDENTITY if prefix + name in attributes}


def inputs(value: Any) -> Any:
    """Return inputs as an object."""
    if isinstance(value, dict):
        return value
    return {} if value is None else {"value": value}


def exact(value: Any, shows: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return a JSON value in a form that compares types, unlike ``1 == True == 1.0``."""
    if isinstance(value, Mapping):
        return {shows(name): exact(entry, shows) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(entry, shows) for entry in value]
    shown = shows(value)
    return type(shown).__name__, repr(shown)


def trees(
    operations: Sequence[Operation], shows: Callable[[Any], Any] = lambda value: value
) -> dict[str, Any]:
    """Map each trace id to its operations, nested, siblings in order of their start.

    Without ids.

    Args:
        operations: of a project.
        shows: ``Adapter.shows`` of the backend that the trees are compared with.
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
    """List where two trees differ, as lines for a person."""
    if isinstance(found, dict) and isinstance(expected, dict):
        names = [*expected, *(name for name in found if name not in expected)]
        parts = [(f"{at}/{name}", found.get(name), expected.get(name)) for name in names]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        parts = [(f"{at}/{n}", *both) for n, both in enumerate(zip(found, expected, strict=True))]
    else:
        return [] if found == expected else [f"{at}: {found} in place of {expected}"]
    return [line for path, one, other in parts for line in differences(one, other, path)]
