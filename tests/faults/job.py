"""Record as lines on standard input say, and answer each line with JSON.

    record NAME COUNT [ROW]  a trajectory with operations NAME.0, …; answers once it is on disk
    open NAME                a trajectory that does not end, with one operation
    huge NAME BYTES          a trajectory with one attribute of that size, and no operations
    across NAME CLOCK        a trajectory and an operation, in which the clock (a file) is set back by an hour
    status                   the delivery report
    shutdown SECONDS         the delivery report at the end

OTEL_TEST_EXPORTERS has the exporters for ``configure()``, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.account.report import Report
from otel_rollout.record import runtime
from tests.faults.inside import SITE

ROOT = Path(__file__).parent.parent.parent
EXPORTERS = "OTEL_TEST_EXPORTERS"
PATH = os.pathsep.join(filter(None, [str(SITE), str(ROOT), os.environ.get("PYTHONPATH")]))
"""The PYTHONPATH of processes in these tests."""


def record(name: str, count: int, row: int = 0) -> None:
    """Record a trajectory."""
    with rollout_trace_attr(name=name, step=1, sample_index=row, rollout_n=0):
        _operations(name, count)


def _operations(name: str, count: int) -> None:
    for number in range(count):
        rollout_trace_op(name=f"{name}.{number}")(lambda: None)()


def names(name: str, count: int) -> list[str]:
    """Return the names of the spans that ``record`` records."""
    return [name, *(f"{name}.{number}" for number in range(count))]


def as_json(report: Report) -> dict[str, Any]:
    """Return the parts of a report that these tests check."""
    return {
        "directory": report.directory,
        "started": report.started,
        "recorded": report.recorded,
        "unfinished": report.unfinished,
        "open": report.open,
        "lost": report.lost,
        "dropped": dict(report.dropped),
        "exporters": {name: dataclasses.asdict(count) for name, count in report.exporters.items()},
    }


def main() -> None:
    """Execute commands until the input ends."""
    if exporters := os.environ.get(EXPORTERS):
        otel_rollout.configure(json.loads(exporters))
    for line in sys.stdin:
        print(json.dumps(_do(*line.split())), flush=True)


def _do(what: str, *arguments: str) -> Any:
    if what == "record":
        record(arguments[0], *map(int, arguments[1:]))
        return _on_disk()
    if what == "open":
        rollout_trace_attr(name=arguments[0], step=1).__enter__()
        _operations(arguments[0], 1)
        return _on_disk()
    if what == "huge":
        with rollout_trace_attr(name=arguments[0], step=1):
            trace.get_current_span().set_attribute("text", "x" * int(arguments[1]))
        return _on_disk()
    if what == "across":
        with rollout_trace_attr(name=arguments[0], step=1):
            rollout_trace_op(name=arguments[0] + ".0")(_set_back)(Path(arguments[1]))
        return names(arguments[0], 1)
    if what == "status":
        return as_json(otel_rollout.status())
    if what == "shutdown":
        return as_json(otel_rollout.shutdown(float(arguments[0])))
    raise ValueError(what)


def _set_back(clock: Path) -> None:
    clock.write_text(str(float(clock.read_text()) - 3600))


def _on_disk() -> bool:
    active = runtime.current()
    return active is not None and active.writer.flush(60)


class Job:
    """The program in a process of its own.

    Args:
        variables: its environment.
        exporters: exporters to configure in it; None: those of the environment.
        within: command to run it with.
    """

    def __init__(
        self,
        variables: dict[str, str],
        exporters: Mapping[str, Any] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        environment = {**variables, "PYTHONPATH": PATH}
        if exporters is not None:
            environment[EXPORTERS] = json.dumps(exporters)
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", "tests.faults.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self, *words: object) -> Any:
        """Send a command and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def record(self, name: str, count: int, row: int = 0) -> list[str]:
        """Record a trajectory; return the names of its spans, once they are on disk."""
        assert self.ask("record", name, count, row)
        return names(name, count)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    main()
