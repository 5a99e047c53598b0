"""Numbers and bytes of OTLP/JSON are what protobuf's JSON mapping says, or refused."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.otlp.json_line import UnreadableLineError, spans_of
from otel_rollout.otlp.json_values import bytes_of_base64, double_of_json
from otel_rollout.otlp.line_protobuf import entries_of
from otel_rollout.otlp.received_json import span_of

WRONG = [
    *({"doubleValue": text} for text in ("1e400", "-1e400", "9" * 400, "inf", "nan", "infinity", "")),
    *({"bytesValue": text} for text in ("!!!", "AQ I=", "A", "AQ==AQ==", "ü", "AQI=\n", "AQ===", 5)),
]


@given(st.floats())
def test_every_double_is_read_as_number_and_as_text(value: float) -> None:
    """The three values that JSON has no number for have names."""
    name = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(
        value, "NaN" if math.isnan(value) else repr(value)
    )
    assert repr(double_of_json(name)) == repr(value)
    if math.isfinite(value):
        assert repr(double_of_json(value)) == repr(value)


@given(st.binary(max_size=12), st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]), st.booleans())
def test_base64_is_read_in_either_alphabet(
    content: bytes, encode: Callable[[bytes], bytes], is_padded: bool
) -> None:
    """Padding may be missing."""
    text = encode(content).decode()
    assert bytes_of_base64(text if is_padded else text.rstrip("=")) == content


@pytest.mark.parametrize("value", WRONG, ids=str)
def test_wrong_value_is_refused_by_every_reader_of_json(value: dict[str, object]) -> None:
    """A number that is too large is not infinite, and text that is no base64 is not empty."""
    attributes = [{"key": "a", "value": value}]
    span = {
        "traceId": "01" * 16,
        "spanId": "01" * 8,
        "name": "s",
        "kind": 1,
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": attributes,
    }
    with pytest.raises(ValueError, match="of a wrong type or value"):
        span_of(span)
    with pytest.raises((ValueError, TypeError)):
        entries_of(attributes)
    with pytest.raises(UnreadableLineError):
        spans_of(orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
