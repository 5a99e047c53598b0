"""Make a root span's attributes: identity, extra facts, and previews."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import orjson

from otel_rollout.base import semconv
from otel_rollout.base.errors import warn_once
from otel_rollout.base.given import PLAIN, builtin, reading, scalar
from otel_rollout.base.suggest import closest
from otel_rollout.record.capture import encoding

Scalar = bool | int | float | str | None
PREVIEW_BYTES: Final = 16 << 10
"""Maximum bytes of an operation's input or output that are copied to the root span."""


Preview = bytes | tuple[bytes, int]
"""JSON of an input or output; for long JSON, its first ``PREVIEW_BYTES`` and the number of remaining
bytes."""
_NO_DATASET_ROWS: Final = (bool, float)
"""Types of a dataset row that is probably a mistake: the result of a comparison or a division."""
_ARGUMENTS: Final = ("sample_index", "step", "rollout_n", "validate", "name", "token2text", "group_size")
_FACTS: Final = frozenset({"agent_name", "group_id"})
"""Extras that integrations record; they are no misspelt arguments."""
_MISSPELT: Final = 0.77
"""Minimum similarity of an extra to an argument's name for a warning: "validation" warns, "trace_id" does
not."""


def recorded_identity(identity: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return identity values as they are recorded: ``validate`` as a bool, a bool step or rollout as an int.

    Raises:
        Unusable: a value cannot be read.
    """
    known = {key: value if type(value) in PLAIN else _read(key, value) for key, value in identity.items()}
    if type(known[semconv.VALIDATE]) is not bool:
        known[semconv.VALIDATE] = bool(known[semconv.VALIDATE])
    for key in (semconv.STEP, semconv.ROLLOUT_N):
        number = known.get(key)
        if isinstance(number, bool):
            known[key] = int(number)
    index = known.get(semconv.SAMPLE_INDEX)
    if type(index) in _NO_DATASET_ROWS:
        _warn_of_dataset_row(index)
    return known


def identity_value(key: str, value: Any) -> Scalar:
    """Return one identity value as it is recorded.

    Raises:
        Unusable: the value cannot be read.
    """
    return recorded_identity({semconv.VALIDATE: False, key: value})[key]


def _read(key: str, value: Any) -> Scalar:
    with reading(f"{key.removeprefix(semconv.EXTRA_PREFIX)}="):
        return _scalar(value)
    return None


def _warn_of_dataset_row(index: Scalar) -> None:
    """Warn, once, of a dataset row that is neither a text nor a whole number."""
    warn_once(
        f"rollout_trace_attr: sample_index={index!r} is neither an integer nor a text; it names the "
        f"dataset row {str(index)!r}",
        once_for="a sample_index of another type",
    )


def are_of_two_trajectories(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two identities name different steps, samples or rollouts."""
    first, second = recorded_identity(one), recorded_identity(other)
    return any(
        None not in (first[key], second[key]) and first[key] != second[key]
        for key in (semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N)
    )


def extra_attribute(name: str, value: Any, identity: Mapping[str, Any]) -> tuple[str, Scalar]:
    """Return the attribute of an extra argument; warn of a likely misspelling."""
    argument = _similar_argument(name)
    if argument is not None:
        _warn_if_misspelt(name, argument, identity)
    return _name_of_extra(name), value if type(value) in PLAIN else _read_extra(name, value)


def _read_extra(name: str, value: Any) -> Scalar:
    with reading(f"{name}=", f"rollout_trace_attr() ignores {name}="):
        # A group's size is recorded as an integer. Other floats stay floats.
        return _scalar(value) if name == "group_size" else _as_otlp(builtin(value), value)
    return None


@functools.lru_cache(maxsize=256)
def _name_of_extra(extra: str) -> str:
    """Return an extra's attribute name; warn if the plain name is reserved."""
    name = semconv.EXTRA_PREFIX + extra
    if name not in semconv.NO_EXTRAS and not name.startswith(
        (semconv.SCORE_PREFIX, semconv.SCORE_TIME_PREFIX)
    ):
        return name
    renamed = semconv.EXTRA_RENAMED + extra
    warn_once(f"rollout_trace_attr: {extra!r} is recorded as {renamed}, because the name {name} is reserved")
    return renamed


@functools.lru_cache(maxsize=256)
def _similar_argument(extra: str) -> str | None:
    """Return the argument of ``rollout_trace_attr`` with a similar name, if any."""
    return None if extra in _ARGUMENTS or extra in _FACTS else closest(extra, _ARGUMENTS, _MISSPELT)


def _warn_if_misspelt(extra: str, argument: str, identity: Mapping[str, Any]) -> None:
    """Warn, once for each argument, of an extra similar to an argument not given."""
    value = identity.get(semconv.EXTRA_PREFIX + argument)
    is_given = value is not None and value is not False
    if not is_given:
        warn_once(
            f"rollout_trace_attr has no argument {extra!r}, which is recorded as "
            f"{semconv.EXTRA_PREFIX}{extra}; perhaps {argument!r} is meant",
            once_for=f"a misspelling of {argument}",
        )


def _scalar(value: Any) -> Scalar:
    """Return an identity value as a type of OTLP, equal in every process and backend."""
    return _as_otlp(scalar(value), value)


def _as_otlp(converted: Any, value: Any) -> Scalar:
    """Return a builtin scalar unchanged, any other value as JSON (text unquoted)."""
    if converted is None or isinstance(converted, (bool, int, float, str)):
        return converted
    encoded = encoding.to_json(value, PREVIEW_BYTES)
    return str(orjson.loads(encoded)) if encoded.startswith(b'"') else encoded.decode()


def cut_preview(encoded: bytes) -> Preview:
    """Cut long JSON to what is recorded on the root span."""
    return encoded[:PREVIEW_BYTES], len(encoded) - PREVIEW_BYTES


def preview_json(preview: Preview) -> bytes:
    """Return a preview as JSON; long JSON becomes a string with its beginning."""
    if isinstance(preview, bytes):
        return preview
    beginning, more = preview
    text = beginning.decode("utf-8", "ignore")
    return encoding.to_json(f"{text}… ({more} more bytes)", 2 * PREVIEW_BYTES)
