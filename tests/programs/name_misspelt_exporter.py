"""Record with a misspelt exporter; end once both processes have reported it."""

from __future__ import annotations

import otel_rollout
from otel_rollout.base.state import state
from tests.waiting import wait_for


def has_reported() -> bool:
    return any("mlfow" in message for message in state.reported)


def main() -> None:
    """Record one trajectory."""
    with otel_rollout.rollout_trace_attr(step=1):
        pass
    wait_for(lambda: otel_rollout.status().exporters["mlfow"].problem, what="the forwarder's error")
    wait_for(has_reported, what="this process's error")


if __name__ == "__main__":
    main()
