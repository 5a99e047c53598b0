"""Change the processes that tests start: the speed of waiting, the clock, the moment of death.

``site/sitecustomize.py`` calls :func:`arrange`, so that recording processes and forwarders are the product's
own, started by the product's own command.

Variables:
    OTEL_TEST_HASTE   factor by which pauses of forwarders are shorter
    OTEL_TEST_CLOCK   file with the seconds that the machine's clock is ahead; it may change at any time
    OTEL_TEST_DEATHS  directory with a file for each point at which a forwarder is to die, and removes it
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SITE = Path(__file__).parent / "site"


def arrange() -> None:
    """Change this process as the variables say."""
    if clock := os.environ.get("OTEL_TEST_CLOCK"):
        _step_clock(Path(clock))
    if "otel_rollout.forwarder" in sys.orig_argv:
        if haste := os.environ.get("OTEL_TEST_HASTE"):
            _hurry(float(haste))
        if deaths := os.environ.get("OTEL_TEST_DEATHS"):
            _die_as_told(Path(deaths))


def _step_clock(clock: Path) -> None:
    """Set the time of day, as when somebody sets the machine's clock; the monotonic clock goes on."""
    real_time, real_time_ns = time.time, time.time_ns

    def ahead() -> float:
        return float(clock.read_text() or 0)

    time.time = lambda: real_time() + ahead()
    time.time_ns = lambda: real_time_ns() + int(ahead() * 1e9)


def _hurry(factor: float) -> None:
    from otel_rollout.forwarder import delivery

    delivery.FIRST_PAUSE /= factor
    delivery.LONGEST_PAUSE /= factor
    delivery.REFUSED_PAUSE /= factor


DEATHS = (
    "before the request",
    "after the answer",
    "in the cursor's transaction",
    "after the cursor's write",
    "completing a segment",
    "ending trajectories",
    "giving back buffers",
    "archiving a segment",
    "removing a segment",
)
"""Where a forwarder can be made to die, by SIGKILL."""
DEATHS_DECIDING = ("before the verdict", "in the verdict's transaction", "after the verdict")
"""The same where it decides which groups are delivered."""


def _die_as_told(deaths: Path) -> None:
    from otel_rollout.account import ledger
    from otel_rollout.forwarder import compaction, crash_recovery, delivery
    from otel_rollout.spool import segments

    def die(point: str) -> None:
        try:
            (deaths / point).unlink()
        except FileNotFoundError:  # not wanted, or another has died of it
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def before(owner: Any, name: str, point: str, is_it: Callable[..., bool] = lambda *_: True) -> None:
        function = getattr(owner, name)

        def dying(*arguments: Any, **options: Any) -> Any:
            if is_it(*arguments):
                die(point)
            return function(*arguments, **options)

        setattr(owner, name, dying)

    def after(owner: Any, name: str, point: str) -> None:
        function = getattr(owner, name)

        def dying(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            die(point)
            return result

        setattr(owner, name, dying)

    def at_statement(statement: str) -> None:
        if "INTO step VALUES" in statement:
            die("in the cursor's transaction")
        elif "INTO outcome VALUES" in statement:
            die("in the verdict's transaction")

    def watch_statements(self: Any, *arguments: Any, born: Any = ledger.Ledger.__init__) -> None:
        born(self, *arguments)
        self._db.set_trace_callback(at_statement)

    ledger.Ledger.__init__ = watch_statements  # type: ignore[method-assign]
    before(delivery.Delivery, "_export", "before the request")
    before(delivery.Delivery, "_advance", "after the answer")
    after(ledger.Ledger, "advance", "after the cursor's write")
    before(ledger.Ledger, "decide", "before the verdict")
    after(ledger.Ledger, "decide", "after the verdict")
    after(segments, "_end_of_last_line", "completing a segment")  # its writes are on disk, the cut is not
    before(crash_recovery.Path, "rename", "ending trajectories", lambda path, _: path.name.endswith(".new"))
    before(segments, "discard_buffers", "giving back buffers")
    before(compaction.Path, "replace", "archiving a segment", lambda path, _: path.parent.name == "archive")
    after(compaction, "archive", "removing a segment")
