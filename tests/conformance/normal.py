"""What an exporter has to bring across, in one form for all backends, and what an adapter is.

An adapter may rename fields and round times to what its backend keeps, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

IDENTITY = ("experiment_name", "step", "sample_index", "rollout_n", "validate")
"""Beside the project, which is where an adapter looks."""


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
        scores: name → value, the latest of each name, of what was scored.
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
    scores: dict[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """A backend under test."""

    exporter: str
    """Name of the exporter, as in OTEL_TRACES_EXPORTER."""
    variables: Mapping[str, str]
    """Environment that leads the exporter to the backend."""

    def read(self, project: str) -> list[Operation]:
        """All operations of a project, read back by the backend's own client."""


def identity(attributes: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The identity among attributes; what is missing is missing."""
    return {name: attributes[prefix + name] for name in IDENTITY if prefix + name in attributes}


def inputs(value: Any) -> Any:
    """Inputs as an object."""
    if isinstance(value, dict):
        return value
    return {} if value is None else {"value": value}


def trees(operations: Sequence[Operation]) -> dict[str, Any]:
    """Trace id → its operations, nested, siblings in order of their start. Without ids."""
    ids = {operation.id for operation in operations}
    assert len(ids) == len(operations), "an operation twice"

    def below(parent: str | None, among: Sequence[Operation]) -> list[dict[str, Any]]:
        found = [operation for operation in among if operation.parent_id == parent]
        found.sort(key=lambda operation: (operation.start_us, operation.name, operation.end_us))
        return [{**_compared(operation), "children": below(operation.id, among)} for operation in found]

    of_trace: dict[str, list[Operation]] = {}
    for operation in operations:
        assert operation.parent_id is None or operation.parent_id in ids, f"{operation.name} is an orphan"
        of_trace.setdefault(operation.trace, []).append(operation)
    return {trace: below(None, among) for trace, among in sorted(of_trace.items())}


def _compared(operation: Operation) -> dict[str, Any]:
    fields = dict(vars(operation))
    del fields["id"], fields["parent_id"], fields["trace"]
    # `1 == True`, but an identity has types.
    fields["identity"] = {name: (type(value), value) for name, value in operation.identity.items()}
    return fields
