"""A line is scanned without decoding it, and equals what decoding gives."""

from __future__ import annotations

import pytest

from otel_rollout.otlp import scan, writer

TRACE_ID, SPAN_ID = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"


def line(scope: str = "openinference", end: int = 1_700_000_000_000_000_123) -> bytes:
    """Return a line as recorders write it."""
    head = writer.head_below(TRACE_ID, b"", 1)
    pieces = writer.line(
        writer.scope_head(scope, None, None, None), head, SPAN_ID, b'"s"', 1, 7, end, (b"[]",), b""
    )
    return writer.resource_head({"service.name": "p"}) + b"".join(pieces)


@pytest.mark.parametrize("name", ["openinference", 'a "quoted" \\ scope', "größe", ""])
def test_scope_is_the_recorded_name(name: str) -> None:
    """Escapes in the name are decoded."""
    assert scan.scope_of(line(name)) == name


def test_ids_and_end_are_those_of_the_span() -> None:
    """The trace id comes as bytes, and both ids in hex."""
    assert scan.trace_id_of(line()) == bytes.fromhex(TRACE_ID.decode())
    assert scan.ids_of(line()) == (TRACE_ID, SPAN_ID)
    assert scan.end_time_of(line()) == 1_700_000_000_000_000_123


def test_line_of_another_writer_has_none_of_them() -> None:
    """Nothing is guessed, and nothing raises."""
    assert scan.scope_of(b"{}") == ""
    assert scan.scope_of(line().replace(b'"openinference"', b'"open\\inference"')) == ""
    assert scan.trace_id_of(b"{}") is None
    assert scan.ids_of(b"{}") == (b"", b"")
    assert scan.end_time_of(b"{}") is None
