"""Set tracing up for a test job, and read the job's spans from the spool."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rollout import settings
from otel_rollout.record.recording.state import state
from tests import exporters
from tests.spool_reader import Recorded, read_directory

ROOT = Path(__file__).parent.parent.parent


def prepare(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and its Ray cluster record into ``directory``."""
    site = directory / "site"
    python_path = exporters.install(site)
    for name in [settings.CONFIG_VARIABLE, "RAY_ADDRESS", "RAY_RUNTIME_ENV_HOOK"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(directory / "spool"))
    monkeypatch.setenv("PYTHONPATH", python_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    monkeypatch.syspath_prepend(str(site))


@dataclass(frozen=True)
class Job:
    """Spans of a job, in whichever worker they were recorded."""

    spool: Path

    def spans(self, trace_id: str | None, count: int, timeout: float = 60) -> list[Recorded]:
        """Return the spans of a trace as soon as there are ``count``.

        Fail if there are more.
        """
        return self._wait(lambda span: span.span.trace_id.hex() == trace_id, count, timeout)

    def traces(self, trace_ids: set[str | None], count: int) -> dict[str, list[Recorded]]:
        """Return the spans of many traces, by trace id, as soon as there are ``count``."""
        grouped: dict[str, list[Recorded]] = {}
        for span in self._wait(lambda span: span.span.trace_id.hex() in trace_ids, count, 60):
            grouped.setdefault(span.span.trace_id.hex(), []).append(span)
        return grouped

    def all_spans(self) -> list[Recorded]:
        """Return all spans recorded until now, half a second after the last call."""
        time.sleep(0.5)
        return self._read()

    def _wait(self, wanted: Callable[[Recorded], bool], count: int, timeout: float) -> list[Recorded]:
        end = time.monotonic() + timeout
        while True:
            found = [span for span in self._read() if wanted(span)]
            if len(found) >= count or time.monotonic() > end:
                assert len(found) == count, [span.name for span in found]
                return found
            time.sleep(0.05)

    def _read(self) -> list[Recorded]:
        active = state.runtime
        assert active is None or active.writer.flush(10)
        for _ in range(100):
            with contextlib.suppress(json.JSONDecodeError):  # a worker is in the middle of a line
                return read_directory(self.spool)
            time.sleep(0.05)
        return read_directory(self.spool)
