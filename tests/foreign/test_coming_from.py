"""docs/tutorial.md, Logfire: their program runs with the client that is tested here."""

from __future__ import annotations

from pathlib import Path

from tests.coming_from import programs, run


def test_their_program_runs(tmp_path: Path) -> None:
    """Its console shows the span and the call below it; nothing is sent."""
    theirs, _ = programs("Logfire")
    printed = run(theirs, tmp_path, LOGFIRE_SEND_TO_LOGFIRE="false", COLUMNS="100")
    shown = [line.partition(" ")[2] for line in printed.splitlines()]
    assert shown == ["rollout", "  calculate expression=6 * 7"]
