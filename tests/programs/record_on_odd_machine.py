"""Record, report and shut down, on a machine where something is missing."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import os; from otel_rollout.record.runs.membership import decide
print(os.fsencode(decide().working_dir))
"""


class FailingHandler(logging.Handler):
    """A handler of the application that fails."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the handler")


def main() -> None:
    """Do what the arguments say; import the package after the machine is prepared."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", choices=["closed", "missing", "failing"], help="what stderr or the log is")
    parser.add_argument("--remove", help="directory to remove first")
    parser.add_argument(
        "--child", action="store_true", help="start a process that prints the working directory"
    )
    parser.add_argument("--library", action="store_true", help="write to all three streams")
    parser.add_argument("--result", type=Path, help="file for the operation's result; default: stdout")
    parser.add_argument("--timeout", type=float, default=1)
    options = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if options.remove:
        os.rmdir(options.remove)
    if options.log == "closed":
        sys.stderr.close()
    elif options.log == "missing":
        sys.stderr = sys.stdout = None
    elif options.log == "failing":
        logging.getLogger().addHandler(FailingHandler())

    import otel_rollout

    with otel_rollout.rollout_trace_attr(step=1):
        result = otel_rollout.rollout_trace_op(lambda x: x)(5)
    if options.result:
        options.result.write_text(str(result))
    elif not options.library:
        print(result)
    if options.child:
        subprocess.run([sys.executable, "-c", CHILD], check=True, cwd="/")
    for stream in (0, 1, 2) if options.library else ():
        with contextlib.suppress(OSError):
            os.write(stream, b"printed by a library")
    _ = otel_rollout.status().problem
    otel_rollout.shutdown(options.timeout)


if __name__ == "__main__":
    main()
