"""Redact secrets in a line before it is written anywhere.

``OTEL_ROLLOUT_REDACT=secrets`` replaces the secrets that :mod:`otel_rollout.redaction.secret_finder` finds.
``everything`` replaces all text except what :mod:`otel_rollout.redaction.kept` names. An application may name
its own functions.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from otel_rollout.base import semconv
from otel_rollout.base.errors import logger, pass_on
from otel_rollout.base.redaction_names import EVERYTHING, MARK, SHIPPED, problem
from otel_rollout.base.setting_parsers import listed
from otel_rollout.otlp.json_line import HEAD_WITHOUT_RESOURCE, changed_texts, scopes_of_json, spans_of_json
from otel_rollout.otlp.json_values import hide_texts
from otel_rollout.otlp.span import Span
from otel_rollout.otlp.writer import AttributeInput

Redaction = Callable[[bytes], bytes]
BUDGET: Final = 0.25
"""Seconds of processor time that an application's function may take for one line."""
PAUSE: Final = 10.0
"""Length of the pause after a line that exceeded BUDGET, as a multiple of the line's processor time."""


def redaction_of(names: str) -> Redaction | None:
    """Return the redaction that ``OTEL_ROLLOUT_REDACT`` names; None if it names none.

    Raises:
        ValueError: for a word or function that cannot be used; then nothing is recorded.
    """
    if wrong := problem(names):
        raise ValueError(f"OTEL_ROLLOUT_REDACT={names!r} {wrong}")
    steps = [_step(name) for name in listed(names)]
    if not steps:
        return None

    def redact(line: bytes) -> bytes:
        for step in steps:
            line = step(line)
        return line

    return redact


def _step(name: str) -> Redaction:
    if name == SHIPPED:
        from otel_rollout.redaction import secret_finder  # here: its patterns take a tenth of our import

        return secret_finder.redact_secrets
    if name == EVERYTHING:
        return without_content
    return _of_the_application(name)


def hides(names: str, name: str) -> bool:
    """Return whether ``OTEL_ROLLOUT_REDACT`` replaces a text with this name."""
    steps = listed(names)
    if EVERYTHING in steps:
        return True
    if SHIPPED not in steps:
        return False
    from otel_rollout.redaction.secret_patterns import is_secret_name

    return is_secret_name(name)


def redacted_attributes(
    redact: Redaction | None, attributes: Mapping[str, AttributeInput]
) -> dict[str, AttributeInput]:
    """Redact the text of a resource's attributes.

    A function of the application gets the attributes in a line of their own. If the function fails, only the
    run's id is left: unredacted text is never written.
    """
    if redact is None:
        return dict(attributes)
    try:
        return changed_texts(attributes, redact)
    except Exception as error:  # noqa: BLE001 - of the application's function
        pass_on(error)
        logger.warning(
            "otel-rollout: the resource's attributes are not recorded: redaction failed: %r", error
        )
        return {key: value for key, value in attributes.items() if key == semconv.RUN_ID}


def _of_the_application(name: str) -> Redaction:
    module, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"OTEL_ROLLOUT_REDACT={name!r}: there is no such function ({error}); give `secrets`, "
            "`everything` or module:function, importable in every process"
        ) from error
    if not callable(function):
        raise ValueError(f"OTEL_ROLLOUT_REDACT={name!r}: {function_name} is no function")

    def redact(line: bytes) -> bytes:
        try:
            text = (HEAD_WITHOUT_RESOURCE + line).decode()
            returned = function(text)
            return line if returned == text else _as_line(returned, line)
        except Exception as error:  # noqa: BLE001 - its text may hold what was to be redacted
            pass_on(error)
            raise ValueError(f"OTEL_ROLLOUT_REDACT={name!r}: {type(error).__name__}") from None

    return _Budgeted(redact, name)


def _as_line(returned: str, line: bytes) -> bytes:
    """Return what an application's function has made of a line, without the head.

    Raises:
        ValueError, TypeError, LookupError: it is no line with the spans of ``line``.
    """
    changed = returned.strip().encode()
    data = orjson.loads(changed)
    if b"\n" in changed or not changed.startswith(HEAD_WITHOUT_RESOURCE):  # written by the function anew
        changed = orjson.dumps(data)
    if not changed.startswith(HEAD_WITHOUT_RESOURCE) or _ids_in(data) != _ids_in(
        orjson.loads(HEAD_WITHOUT_RESOURCE + line)
    ):
        raise ValueError("the spans have to stay")
    return changed[len(HEAD_WITHOUT_RESOURCE) :] + b"\n"


def _ids_in(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the ids of a line's spans, which are readable."""
    return [(span.trace_id, span.span_id) for span in map(Span.complete, spans_of_json(data))]


class _Budgeted:
    """Bounds the time of an application's function.

    Nothing can interrupt a regular expression. So if the function exceeded BUDGET for a line, the content of
    the line is replaced. During the pause that follows, the content of all lines of at least half that length
    is replaced without a call of the function.

    Args:
        redact: calls the function.
        name: the function's name, for messages.
    """

    def __init__(self, redact: Redaction, name: str) -> None:
        self._redact = redact
        self._name = name
        self._max_bytes: float = math.inf
        self._paused_until = 0.0

    def __call__(self, line: bytes) -> bytes:
        """Redact a line, or replace the line's whole content."""
        if len(line) >= self._max_bytes:
            if time.monotonic() < self._paused_until:
                return without_content(line)
            self._max_bytes = math.inf
        start = time.thread_time()  # processor time: waits for other threads do not count
        redacted = self._redact(line)
        seconds = time.thread_time() - start
        if seconds <= BUDGET:
            return redacted
        self._max_bytes = min(self._max_bytes, len(line) // 2)
        self._paused_until = time.monotonic() + PAUSE * seconds
        logger.warning(
            "otel-rollout: OTEL_ROLLOUT_REDACT: %s took %.1f s of processor time for a span of %d bytes; the "
            "content of such spans is replaced for the next %.0f s",
            self._name,
            seconds,
            len(line),
            PAUSE * seconds,
        )
        return without_content(line)


def without_content(line: bytes) -> bytes:
    """Replace all text in a line, except what :mod:`otel_rollout.redaction.kept` names."""
    from otel_rollout.redaction import kept  # here: the names of calls take a tenth of our import

    data = orjson.loads(HEAD_WITHOUT_RESOURCE + line)
    for scope in scopes_of_json(data):
        hide_texts(scope, MARK, kept.is_kept)
    for span in spans_of_json(data):
        kept.keep_tool_name(span)
        span.hide_text(MARK, kept.is_kept)
    return orjson.dumps(data)[len(HEAD_WITHOUT_RESOURCE) :] + b"\n"
