"""Run the command ``otel-rollout`` with arguments and in folders that standard input lists, as JSON.

Print for each its exit status and its output. Modules, also those that the arguments name, are imported once:
each command runs in a process that is forked from this one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence

from otel_rollout.cli import app

DEADLINE = 60
"""Seconds after which a command is killed, which then has no exit status."""


def run(arguments: Sequence[str], folder: str, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in a folder; return its exit status, negative for a signal, and its output."""
    with tempfile.TemporaryFile("w+b") as output:
        child = os.fork()
        if not child:
            try:
                signal.alarm(DEADLINE)
                os.chdir(folder)
                os.environ.update(variables)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                app(list(arguments), prog_name="otel-rollout")
            except SystemExit as ended:
                status = ended.code
            except BaseException as error:
                sys.excepthook(type(error), error, error.__traceback__)
                status = 1
            else:
                status = 0
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return status, output.read().decode(errors="replace")


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    print(json.dumps([run(*case) for case in json.load(sys.stdin)]))
