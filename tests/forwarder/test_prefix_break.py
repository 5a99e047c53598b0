"""Broken prefixes: turns whose tokens are not the beginning of the next prompt are named, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings

from otel_rollout.base import semconv
from otel_rollout.forwarder.line_rewriter import LineRewriter
from tests.forwarder.planted_breaks import Break, Planted, planted_breaks
from tests.forwarder.tokens_support import exported_by, line


def breaks_in(rewriter: LineRewriter, lines: list[bytes]) -> dict[int, Break]:
    """Return what exporters get to know of breaks, by the number of the call after."""
    found: dict[int, Break] = {}
    for number, each in enumerate(lines, start=1):
        said: Any = exported_by(rewriter, each).attributes
        if semconv.BREAK_OF in said:
            found[number] = Break(
                int(said[semconv.BREAK_OF], 16),
                int(said[semconv.BREAK_TOKEN]),
                int(said[semconv.BREAK_REMOVED]),
                int(said.get(semconv.BREAK_ADDED, -1)),
                said[semconv.BREAK_KIND],
            )
    return found


@settings(max_examples=300)
@given(planted=planted_breaks())
def test_exactly_the_planted_breaks_are_found(planted: Planted) -> None:
    """Each planted break is found at its token, and nothing else is one."""
    lines = [
        line(number, {"prompt_ids": call.prompt}, {"token_ids": call.answer})
        for number, call in enumerate(planted.calls, start=1)
    ]
    assert breaks_in(LineRewriter(Path()), lines) == planted.breaks
