"""Name the trajectories of a batch of scores, by their ids or by their identities."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.errors import Unusable, warn_once
from otel_rollout.base.given import reading
from otel_rollout.otlp.groups import Group
from otel_rollout.otlp.score_columns import PackedColumn
from otel_rollout.record.capture import score_columns as captured
from otel_rollout.record.capture.scores import check_named
from otel_rollout.record.capture.trajectory_attributes import identity_value
from otel_rollout.record.recording.sampling import GroupSampling

_INTEGERS: Final = frozenset("bBhHiIqQ")
_INDICES: Final = frozenset({int, str, type(None)})
_FLAG: Final = frozenset({bool})
"""Types of values that are recorded unchanged: ``_INDICES`` for indices, ``_FLAG`` for ``validate``."""
_UNKNOWN: Final = "score_of_unknown"
_UNRECORDED: Final = "score_of_unrecorded"


Named = Mapping[str, Any]
"""``step``, ``sample_index``, ``rollout_n`` and ``validate`` as the caller gives them."""


def number_of(trajectory: Any, named: Named, size: int) -> int:
    """Return the number of trajectories that a caller names; read none of them.

    Args:
        trajectory: ids of the trajectories; None if they are named by their identities.
        named: the parts of the identities.
        size: number of rows, if each part is one value for all of them.

    Raises:
        Unusable: ids and identities are given, or neither; or the parts of identities differ in length.
    """
    check_named(trajectory, named)
    if trajectory is not None:
        with reading("trajectory="):
            if captured.is_unordered(trajectory):
                raise Unusable(f"is a {type(trajectory).__name__}; give a list of ids")
            return captured.length_of(trajectory) if captured.is_column(trajectory) else size
    sizes = {}
    for name, values in named.items():
        with reading(f"{name}="):
            if captured.is_column(values):
                sizes[name] = captured.length_of(values)
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name}= has {number}" for name, number in sizes.items())
        raise Unusable(f"differ in number: {shown}", "its trajectories")
    return next(iter(sizes.values()), size)


def rows_of(
    trajectory: Any, named: Named, number: int, shared: Named, sampling: GroupSampling | None
) -> tuple[list[PackedColumn], dict[str, bytes]]:
    """Return the columns that name the trajectories, and the rows whose scores are not recorded.

    Args:
        trajectory: ids of the trajectories; None if they are named by their identities.
        named: the parts of the identities.
        number: number of the trajectories, a row each.
        shared: attributes that all trajectories have.
        sampling: says which trajectories are not recorded.

    Returns:
        The columns of ids, or of parts of identities. And a mapping: reason why scores are not recorded → a
        byte for each row, 1 if the reason applies.

    Raises:
        Unusable: an argument cannot be read.
    """
    if trajectory is not None:
        with reading("trajectory="):
            column, unknown, unrecorded = captured.trace_ids(
                captured.entries(captured.spread(trajectory, number), number)
            )
        return [column], {_UNKNOWN: unknown, _UNRECORDED: unrecorded}
    columns: list[PackedColumn] = []
    for name, values in named.items():
        if values is not None:
            with reading(f"{name}="):
                columns += _columns(name, captured.spread(values, number), number)
    needed = (_present(columns, name, number) for name in ("step", "sample_index"))
    excluded = {_UNKNOWN: bytes(not all(present) for present in zip(*needed, strict=True))}
    if sampling is not None:
        excluded[_UNRECORDED] = _sampled_out(columns, number, shared, sampling)
    return columns, excluded


def _columns(name: str, values: Any, rows: int) -> list[PackedColumn]:
    """Return the columns of a part of the identity, with the values as a trajectory has them."""
    column = captured.numbers(name, "", values, rows)
    if column is not None and column.code in ("?" if name == "validate" else _INTEGERS):
        return [column]
    found = captured.entries(values, rows)
    if not (_FLAG if name == "validate" else _INDICES).issuperset(map(type, found)):
        found, bad = captured.converted(found, partial(identity_value, semconv.EXTRA_PREFIX + name))
        if bad is not None:
            shown = type(bad).__name__
            warn_once(
                f"score_batch(): {name}= has a {shown}, which names no trajectory", f"batch {name} {shown}"
            )
    return captured.by_type(
        name, "", [value if type(value) in captured.PLAIN else str(value) for value in found]
    )


def _present(columns: Sequence[PackedColumn], name: str, number: int) -> bytes:
    """Return a byte for each row, 0 where a part of the identity has no value."""
    found = [column.present or b"\1" * number for column in columns if column.field == name]
    return bytes(map(any, zip(*found, strict=True))) if found else bytes(number)


def _sampled_out(
    columns: Sequence[PackedColumn], number: int, shared: Named, sampling: GroupSampling
) -> bytes:
    """Return a byte for each row, 1 where head sampling excludes the trajectory's group."""
    identities: list[dict[str, Any]] = [dict(shared) for _ in range(number)]
    for column in columns:
        values = column.values
        if isinstance(values, bytes):
            values = struct.unpack(f"<{number}{column.code}", values)
        for identity, value, is_present in zip(
            identities, values, column.present or b"\1" * number, strict=True
        ):
            if is_present:
                identity[semconv.EXTRA_PREFIX + column.field] = value
    groups = [Group.of(identity) for identity in identities]
    excluded = {group: sampling.excludes(group) for group in set(groups)}
    return bytes(excluded[group] for group in groups)
