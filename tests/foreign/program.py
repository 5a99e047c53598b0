"""Run trajectories in a process that starts another library.

``python -m tests.foreign.program LIBRARY MOMENT`` prints the spans that the library's backend got. The
variable ``TEST_EXPORTERS`` holds the exporters of otel-rollout, as JSON; without it the program runs without
otel-rollout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

MOMENTS = ("first", "before", "between", "after")
"""When the library is started: before otel-rollout is imported; before, in, or after the first trajectory."""
TRAJECTORIES = 3


def main(name: str, moment: str) -> None:
    """Run the trajectories; start the library at its moment."""
    from tests.foreign.libraries import LIBRARIES, Library

    library: Library | None = None

    def start_at(now: str) -> None:
        nonlocal library
        if now == moment:
            library = LIBRARIES[name]()

    start_at("first")
    from opentelemetry import trace

    app = trace.get_tracer("app")
    exporters = json.loads(os.environ.get("TEST_EXPORTERS", "null"))
    rollout_trace_op: Callable[..., Any] = lambda **_: lambda function: function  # noqa: E731
    trajectory: Callable[..., Any] = lambda **_: nullcontext()  # noqa: E731
    if exporters is not None:
        import otel_rollout

        # Not by OTEL_TRACES_EXPORTER, which ddtrace reads, too.
        otel_rollout.configure(exporters, project_name="beside", experiment_name="experiment")
        otel_rollout.instrument()
        rollout_trace_op, trajectory = otel_rollout.rollout_trace_op, otel_rollout.rollout_trace_attr
    start_at("before")

    @rollout_trace_op(name="tool", kind="TOOL")
    def tool() -> None:
        """End the chain of calls."""

    @rollout_trace_op(name="turn", kind="LLM")
    async def turn() -> None:
        with app.start_as_current_span("app in task") as span:
            await asyncio.sleep(0.001)
            if library is not None:
                assert trace.get_current_span() is span
            tool()

    @rollout_trace_op(name="job")
    def job() -> None:
        with app.start_as_current_span("app in thread"):
            tool()

    @rollout_trace_op(name="around")
    def around() -> None:
        if library is None:
            tool()
        else:
            with library.native():
                tool()

    async def turns() -> None:
        await asyncio.gather(turn(), turn())

    @rollout_trace_op(name="episode")
    def episode(number: int) -> None:
        if number == 1:
            start_at("between")
        asyncio.run(turns())
        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(job), pool.submit(job)]:
                future.result()
        around()

    for number in range(1, TRAJECTORIES + 1):
        with trajectory(step=number, sample_index=number, rollout_n=0):
            episode(number)
        with app.start_as_current_span("app outside"):
            threading.Event().wait(0.001)
        if number == 1:
            start_at("after")
    if exporters is not None:
        otel_rollout.shutdown()
    assert library is not None
    if name == "datadog":
        sys.modules["ddtrace.trace"].tracer.shutdown()
    if name.startswith("sentry"):
        sys.modules["sentry_sdk"].flush(5)
    print(json.dumps(library.received()), flush=True)
    os._exit(0)  # the backend's threads serve for ever


if __name__ == "__main__":
    main(*sys.argv[1:])
