"""Read and change the JSON of a line, where decoded spans would cost more or lose fields."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from otel_rollout.otlp.writer import SCOPES, AttributeInput, attribute_list

HEAD_WITHOUT_RESOURCE: Final = b'{"resourceSpans":[{' + SCOPES
"""Text that, put before a line without its resource head, makes the line JSON."""
NOT_TEXT: Final = ("intValue", "doubleValue", "bytesValue")
"""Members of a value that are JSON strings but not text: numbers, and bytes in base64."""
_REQUEST_HEAD: Final = b'{"resourceSpans":['
_REQUEST_TAIL: Final = b"]}"
_STATUS_ERROR: Final = 2


class JsonAttributes:
    """The attributes of a resource or span in a line's JSON; a change to them changes the JSON.

    Args:
        fields: the JSON object of the resource or span.
    """

    __slots__ = ("_values", "fields")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self._values: dict[str, dict[str, Any]] = {}
        """Name of each attribute → its value; empty until the first use, and after a change of the list."""

    def __contains__(self, key: str) -> bool:
        return key in (self._values or self._by_key())

    def text(self, key: str) -> str | None:
        """Return the text of an attribute; None if the attribute is missing or not text."""
        text = (self._values or self._by_key()).get(key, {}).get("stringValue")
        return text if isinstance(text, str) else None

    def texts(self, key: str) -> list[str]:
        """Return the texts of an attribute that is text or a list of texts; empty without any."""
        value = (self._values or self._by_key()).get(key, {})
        entries = value.get("arrayValue", {}).get("values", [value])
        return [entry["stringValue"] for entry in entries if "stringValue" in entry]

    def set_text(self, key: str, text: str) -> None:
        """Change an attribute's text; raise KeyError if the attribute is missing."""
        (self._values or self._by_key())[key]["stringValue"] = text

    def scalars(self) -> dict[str, Any]:
        """Return the attributes, with None for lists and other values that are not scalars."""
        return {entry["key"]: _scalar(entry["value"]) for entry in self.fields.get("attributes", ())}

    def replace(
        self, removed: Container[str], added: Mapping[str, Any], kept_as: Mapping[str, str] | None = None
    ) -> None:
        """Remove attributes, and append others; ``kept_as`` gives removed ones another name."""
        entries = self.fields.get("attributes", ())
        changed = [entry for entry in entries if entry["key"] not in removed]
        if kept_as:
            changed += [{**e, "key": kept_as[e["key"]]} for e in entries if e["key"] in kept_as]
        self.fields["attributes"] = changed + _entries_of(added)
        self._values = {}

    def _by_key(self) -> dict[str, dict[str, Any]]:
        self._values = {entry["key"]: entry["value"] for entry in self.fields.get("attributes", ())}
        return self._values


class JsonSpan(JsonAttributes):
    """A span in a line's JSON; a field is checked when it is read."""

    __slots__ = ()

    @property
    def trace_id(self) -> str:
        """The trace's id in hex."""
        return str(self.fields["traceId"])

    @property
    def span_id(self) -> str:
        """The span's id in hex."""
        return str(self.fields["spanId"])

    @property
    def parent_id(self) -> str:
        """The parent's id in hex; empty for a root span."""
        return str(self.fields.get("parentSpanId") or "")

    @property
    def start_ns(self) -> int:
        """The start, Unix time in ns."""
        return int(self.fields["startTimeUnixNano"])

    @property
    def end_ns(self) -> int:
        """The end, Unix time in ns."""
        return int(self.fields["endTimeUnixNano"])

    @end_ns.setter
    def end_ns(self, end_ns: int) -> None:
        self.fields["endTimeUnixNano"] = str(end_ns)

    @property
    def seconds(self) -> float:
        """The duration; 0 if the span ends before it begins."""
        return max(0, self.end_ns - self.start_ns) / 1e9

    @property
    def has_failed(self) -> bool:
        """Whether the status is an error."""
        return bool(self.fields.get("status", {}).get("code") == _STATUS_ERROR)

    def hide_text(self, mark: str, kept: Container[str]) -> None:
        """Replace all text by ``mark``, except names and the attributes in ``kept``."""
        span = self.fields
        for part in (span, *span.get("events", ()), *span.get("links", ())):
            for entry in part.get("attributes", ()):
                if entry["key"] not in kept:
                    _hide_text(entry["value"], mark)
        if "message" in span.get("status", {}):
            span["status"]["message"] = mark


def span_at(
    time_ns: int, trace_id: str, span_id: str, parent_id: str, name: str, attributes: Mapping[str, Any]
) -> JsonSpan:
    """Make a span without duration."""
    ids = {"traceId": trace_id, "spanId": span_id, "parentSpanId": parent_id}
    times = {"startTimeUnixNano": time_ns, "endTimeUnixNano": time_ns}
    return JsonSpan({**ids, "name": name, **times, "attributes": _entries_of(attributes)})


def running_root(placeholder: JsonSpan) -> JsonSpan:
    """Return a span as the root of a trajectory that runs: it has no parent, and 0 as its end."""
    return JsonSpan({**placeholder.fields, "parentSpanId": "", "endTimeUnixNano": "0"})


def trace_data(resource: Mapping[str, Any], spans: Iterable[JsonSpan]) -> dict[str, Any]:
    """Make the JSON of a line with one resource, given by its attributes, and no scope."""
    scopes = [{"spans": [span.fields for span in spans]}]
    return {"resourceSpans": [{"resource": {"attributes": _entries_of(resource)}, "scopeSpans": scopes}]}


def spans_of_json(data: Mapping[str, Any], other_than: str | None = None) -> Iterator[JsonSpan]:
    """Yield the spans of a line's JSON, except those of the scope ``other_than``."""
    for of_resource in data["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            if other_than is None or (of_scope.get("scope") or {}).get("name") != other_than:
                yield from map(JsonSpan, of_scope["spans"])


def without_spans(data: Mapping[str, Any], is_left_out: Callable[[JsonSpan], bool]) -> None:
    """Remove spans from a line's JSON."""
    for of_resource in data["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            of_scope["spans"] = [span for span in of_scope["spans"] if not is_left_out(JsonSpan(span))]


def resource_of_json(data: Mapping[str, Any]) -> JsonAttributes:
    """Return the first resource of a line's JSON."""
    return JsonAttributes(data["resourceSpans"][0].get("resource", {}))


def changed_texts(
    attributes: Mapping[str, AttributeInput], change: Callable[[bytes], bytes]
) -> dict[str, AttributeInput]:
    """Return attributes whose text ``change`` has changed, given them in a line without resource head."""
    line = change(b'"scope":{"attributes":%b},"spans":[]}]}]}\n' % attribute_list(attributes))
    scope = orjson.loads(HEAD_WITHOUT_RESOURCE + line)["resourceSpans"][0]["scopeSpans"][0]["scope"]
    entries = ((entry["key"], entry["value"]) for entry in scope["attributes"])
    return {key: value.get("stringValue", attributes.get(key)) for key, value in entries}


def request_of(lines: Iterable[bytes]) -> bytes:
    """Join the resource lists of OTLP JSON Lines to one request, without decoding the lines."""
    return _REQUEST_HEAD + b",".join(map(_resources_of, lines)) + _REQUEST_TAIL


def _resources_of(line: bytes) -> bytes:
    """Return the entries of a line's list ``resourceSpans``; other text unchanged."""
    bare = line.strip()
    if bare.startswith(_REQUEST_HEAD) and bare.endswith(_REQUEST_TAIL):
        return bare[len(_REQUEST_HEAD) : -len(_REQUEST_TAIL)]
    try:  # another program's line may have other spaces and another order of keys
        return orjson.dumps(orjson.loads(bare)["resourceSpans"])[1:-1]
    except (ValueError, KeyError, TypeError):
        return bare


# --- values -------------------------------------------------------------------------------------------------


def _scalar(value: Mapping[str, Any] | None) -> Any:
    """Return the scalar in a value; None for a list or no value."""
    for type_, content in (value or {}).items():
        scalar = int(content) if type_ == "intValue" else content
        return scalar if isinstance(scalar, (bool, int, float, str)) else None
    return None


def _entries_of(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value_of(value)} for key, value in attributes.items()]


def _value_of(value: Any) -> dict[str, Any]:
    """Encode text, a number, a boolean or a list of these."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value_of(entry) for entry in value]}}
    if isinstance(value, (bool, float)):
        return {"boolValue" if isinstance(value, bool) else "doubleValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def _hide_text(value: dict[str, Any], mark: str) -> None:
    """Replace text and bytes in a value."""
    if "stringValue" in value:
        value["stringValue"] = mark
    value.pop("bytesValue", None)
    for entry in value.get("arrayValue", {}).get("values", ()):
        _hide_text(entry, mark)
    for entry in value.get("kvlistValue", {}).get("values", ()):
        _hide_text(entry["value"], mark)
