"""Hold one span: the record that is read, changed, measured and exported.

A span is read from a line's JSON. Fields are decoded and checked at their first use, in three groups: the
head, the attributes, and what metrics, tail sampling and most rewriting do not read. Rewriting changes the
JSON and the decoded field together. Exporters get *complete* spans, whose fields are all decoded and in the
ranges that OTLP has. A complete span does not keep its JSON, which takes more memory.

All text of a span is text that UTF-8 can hold, because JSON with half a surrogate pair is unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from otel_rollout.base import semconv
from otel_rollout.otlp.json_values import (
    attributes_of,
    hide_texts,
    integer_of,
    set_text,
    text_of,
)
from otel_rollout.otlp.origin import Resource, SpanScope, resource_of, scope_of
from otel_rollout.otlp.writer import HAS_IS_REMOTE, IS_REMOTE, attribute_list

UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Exceptions that reading raises for JSON that is no span."""
OK: Final = 1
ERROR: Final = 2
"""Codes of a status; 0 is unset."""
_USUAL_ID: Final = {digits: re.compile(f"(?!0+$)[0-9a-f]{{{digits}}}").fullmatch for digits in (16, 32)}
_HEX: Final = re.compile(r"[0-9a-fA-F]+").fullmatch
_SCALARS: Final = frozenset({str, bool, int, float})
_JSON = dict[str, Any]
_NOWHERE: Final[tuple[_JSON, _JSON]] = ({}, {})
DROPPED: Final = ("droppedAttributesCount", "droppedEventsCount", "droppedLinksCount")
_COUNTS_OF_DROPPED: Final = frozenset(DROPPED)
_NONE_DROPPED: Final = (0, 0, 0)


class Event(NamedTuple):
    """An event of a span, at a Unix time in ns; ``dropped`` counts attributes."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any]
    dropped: int = 0


class Link(NamedTuple):
    """A link to a span, by ids in hex, which may be zeros; ``dropped`` counts attributes."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Any]
    trace_state: str = ""
    flags: int = 0
    dropped: int = 0


class Span:
    """A span.

    Args:
        fields: the span's JSON.
        within: the JSON of its resource and of its scope, each with its schema; None for a complete span.

    Attributes:
        fields: the JSON; empty for a complete span.
        trace_id, span_id: ids in lower-case hex.
        parent_id: the parent's id; empty for a root span.
        flags: OTLP's flags.
        kind: OTLP's ``SpanKind``.
        start_ns, end_ns: Unix time in ns.
        dropped: how many attributes, events and links its recorder has dropped.
        status: OTLP's ``StatusCode``; ``message`` describes it.
        is_running: whether the span has not ended. Then ``end_ns`` means nothing.
    """

    fields: _JSON
    _within: tuple[_JSON, _JSON] | None
    resource: Resource
    scope: SpanScope
    trace_id: str
    span_id: str
    parent_id: str
    flags: int
    trace_state: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: Sequence[Event]
    links: Sequence[Link]
    dropped: tuple[int, ...]
    status: int
    message: str
    is_running: bool
    __slots__ = tuple(__annotations__)

    def __init__(self, fields: _JSON, within: tuple[_JSON, _JSON] | None = _NOWHERE) -> None:
        self.fields = fields
        self._within = within
        self.is_running = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Decode a field's group when Python finds the field's slot empty, which is at its first use."""
            if name in _HEAD:
                self._decode_head()
            elif name == "attributes":
                self.attributes = attributes_of(self.fields)
            elif name == "resource":
                self.resource = resource_of(self._within[0])
            elif name == "scope":
                self.scope = scope_of(self._within[1])
            elif name in _REST:
                self._decode_rest()
            return object.__getattribute__(self, name)

    @classmethod
    def made(
        cls,
        ids: tuple[str, str, str],
        name: str,
        times: tuple[int, int],
        attributes: dict[str, Any],
        **others: Any,
    ) -> Span:
        """Make a complete span of decoded fields.

        Args:
            ids: ids of the trace, the span and its parent.
            name: the span's name.
            times: start and end, Unix time in ns.
            attributes: the attributes.
            others: further attributes of this class.
        """
        span = cls({}, None)
        span.trace_id, span.span_id, span.parent_id = ids
        span.start_ns, span.end_ns = times
        span.name, span.attributes = name, attributes
        span.flags, span.trace_state, span.kind, span.status, span.message = 1, "", 1, 0, ""
        span.events, span.links, span.dropped = (), (), _NONE_DROPPED
        span.resource, span.scope = _NO_RESOURCE, _NO_SCOPE
        for other, value in others.items():
            setattr(span, other, value)
        return span

    def complete(self) -> Span:
        """Decode and check every field, in one thread; then the span changes no more.

        Raises:
            ValueError, LookupError, TypeError, AttributeError, ArithmeticError: a field has a wrong value.
        """
        within = self._within
        if within is not None:
            self._decode_head()
            self._decode_rest()
            self.attributes = self.attributes  # they may be decoded already, and changed
            self.resource, self.scope = resource_of(within[0]), scope_of(within[1])
            self._within = None
            self.fields = {}
        return self

    def opened(self) -> Span:
        """Return the span with head and attributes decoded, which is faster than at their first use."""
        self._decode_head()
        self.attributes = attributes_of(self.fields)
        return self

    def _decode_head(self) -> None:
        fields = self.fields
        self.trace_id = _trace_id(fields["traceId"])
        span_id, parent_id, status = fields["spanId"], fields.get("parentSpanId"), fields.get("status")
        self.span_id = span_id if _USUAL_ID[16](span_id) else _id(span_id, 16)
        self.parent_id = _parent_id(parent_id) if parent_id else ""
        self.start_ns = integer_of(fields["startTimeUnixNano"], 0, 1 << 64)
        self.end_ns = integer_of(fields["endTimeUnixNano"], 0, 1 << 64)
        self.status = integer_of(status.get("code"), 0, 1 << 31) if status else 0

    def _decode_rest(self) -> None:
        get = self.fields.get
        self.name = text_of(get("name"))
        self.flags = integer_of(get("flags"), 0, 1 << 32)
        self.trace_state = text_of(get("traceState"))
        self.kind = integer_of(get("kind"), 0, 1 << 31)
        self.message = text_of((get("status") or {}).get("message"))
        self.dropped = _dropped(self.fields)
        self.events = _events(get("events") or ())
        self.links = _links(get("links") or ())

    def copy(self, **changed: Any) -> Span:
        """Return a copy of a complete span with some other fields."""
        span = Span({}, None)
        for slot in _SLOTS:
            setattr(span, slot, changed[slot] if slot in changed else getattr(self, slot))
        return span

    def without_end(self) -> Span:
        """Return a copy of a complete span as a running one, without events and status.

        The line of a running span has an end only for the case that its process dies.
        """
        return self.copy(is_running=True, events=(), status=0, message="")

    @property
    def seconds(self) -> float:
        """The duration; 0 if the span ends before it begins."""
        return max(0, self.end_ns - self.start_ns) / 1e9

    @property
    def has_failed(self) -> bool:
        """Whether the status is an error."""
        return self.status == ERROR

    @property
    def has_succeeded(self) -> bool:
        """Whether it did not fail; most dumps do not say whether a call failed."""
        return not self.has_failed and bool(
            self.status or semconv.DUMP_FORMAT not in self.resource.attributes
        )

    @property
    def error_message(self) -> str:
        """What the status says of an error; empty without an error."""
        return self.message if self.status == ERROR else ""

    @property
    def raised(self) -> Mapping[str, Any]:
        """Attributes of the exception that was recorded last; nothing without one."""
        return next((event.attributes for event in reversed(self.events) if event.name == "exception"), {})

    @property
    def has_local_parent(self) -> bool:
        """Whether the span says that its parent is a span of its own process."""
        return bool(self.parent_id) and self.flags & (HAS_IS_REMOTE | IS_REMOTE) == HAS_IS_REMOTE

    @property
    def has_remote_parent(self) -> bool:
        """Whether the span says that its parent is in another process."""
        return bool(self.parent_id and self.flags & IS_REMOTE)

    def text(self, key: str) -> str | None:
        """Return the text of an attribute; None if the attribute is missing or not text."""
        text = self.attributes.get(key)
        return text if isinstance(text, str) else None

    def scalars(self) -> Mapping[str, Any]:
        """Return the attributes, with None for lists and other values that are not scalars."""
        attributes = self.attributes
        if _SCALARS.issuperset(map(type, attributes.values())):
            return attributes
        return {key: value if type(value) in _SCALARS else None for key, value in attributes.items()}

    # --- changes, of a span with its JSON -----------------------------------------------------------------

    def set_text(self, key: str, text: str) -> None:
        """Change an attribute's text; raise KeyError if the attribute is missing."""
        set_text(self.fields, key, text)
        self.attributes[key] = text

    def replace(
        self, removed: Collection[str], added: Mapping[str, Any], kept_as: Mapping[str, str] | None = None
    ) -> None:
        """Remove attributes, and append others; ``kept_as`` maps a removed name to the name it gets."""
        known, entries = self.attributes, self.fields.get("attributes", ())
        if not known.keys().isdisjoint(removed):
            kept = [entry for entry in entries if entry["key"] not in removed]
            self.attributes = {key: value for key, value in known.items() if key not in removed}
            if kept_as:
                kept += [{**e, "key": kept_as[e["key"]]} for e in entries if e["key"] in kept_as]
                self.attributes |= {kept_as[key]: value for key, value in known.items() if key in kept_as}
            entries = kept
        self.fields["attributes"] = [*entries, *orjson.loads(attribute_list(added))]
        self.attributes |= added

    def set_end(self, end_ns: int) -> None:
        """Change the end."""
        self.fields["endTimeUnixNano"], self.end_ns = str(end_ns), end_ns

    def rename(self, name: str) -> None:
        """Change the name."""
        self.fields["name"] = self.name = name

    def change_ids(self, span_id: str, parent_id: str) -> None:
        """Give the span other ids."""
        self.fields["spanId"], self.fields["parentSpanId"] = self.span_id, self.parent_id = span_id, parent_id

    def put_below(self, parent_id: str) -> None:
        """Give a root span a parent in another process, so that the trace has one root."""
        self.change_ids(self.span_id, parent_id)
        self.fields["flags"] = self.flags = self.flags & 0xFF | HAS_IS_REMOTE | IS_REMOTE

    def hide_text(self, mark: str, is_kept: Callable[[str, str], bool]) -> None:
        """Replace all text by ``mark`` in the JSON, except names and what ``is_kept``; see ``hide_texts``."""
        span = self.fields
        for part in (span, *span.get("events", ()), *span.get("links", ())):
            hide_texts(part, mark, is_kept)
        if "message" in span.get("status", {}):
            span["status"]["message"] = mark


def with_utf8(value: Any) -> Any:
    """Return a value with question marks for characters that UTF-8 cannot hold."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {with_utf8(key): with_utf8(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [with_utf8(entry) for entry in value]
    return value


@lru_cache(maxsize=1 << 10)  # spans of a trace share its id, and spans below one another their parent's
def _trace_id(value: Any) -> str:
    return _id(value, 32)


@lru_cache(maxsize=1 << 10)
def _parent_id(value: Any) -> str:
    """Return the parent's id; empty without a parent, for which some writers write zeros."""
    return _id(value, 16) if text_of(value).strip("0") else ""


def _id(value: Any, digits: int, least: int = 1) -> str:
    """Check an id in hex, and fill it with zeros.

    An id of zeros is invalid (W3C Trace Context). Only a link may have such an id, so that its attributes are
    not lost.
    """
    if _USUAL_ID[digits](value):
        return str(value)
    number = int(value, 16) if _HEX(value) else -1
    if not least <= number < 1 << 4 * digits:
        raise ValueError(f"an id is not {digits} hex digits, or is out of range")
    return f"{number:0{digits}x}"


def _dropped(holder: _JSON) -> tuple[int, ...]:
    if _COUNTS_OF_DROPPED.isdisjoint(holder):
        return _NONE_DROPPED
    return tuple(integer_of(holder.get(name), 0, 1 << 32) for name in DROPPED)


def _events(events: Iterable[_JSON]) -> Sequence[Event]:
    return [
        Event(
            text_of(event.get("name")),
            integer_of(event.get("timeUnixNano"), 0, 1 << 64),
            attributes_of(event),
            _dropped(event)[0],
        )
        for event in events
    ]


def _links(links: Iterable[_JSON]) -> Sequence[Link]:
    return [
        Link(
            _id(link["traceId"], 32, least=0),
            _id(link["spanId"], 16, least=0),
            attributes_of(link),
            text_of(link.get("traceState")),
            integer_of(link.get("flags"), 0, 1 << 32),
            _dropped(link)[0],
        )
        for link in links
    ]


_HEAD: Final = ("trace_id", "span_id", "parent_id", "start_ns", "end_ns", "status")
_REST: Final = ("name", "flags", "trace_state", "kind", "message", "dropped", "events", "links")
_SLOTS: Final = (*_HEAD, *_REST, "attributes", "resource", "scope", "is_running")
_NO_RESOURCE: Final = Resource({})
_NO_SCOPE: Final = SpanScope()
