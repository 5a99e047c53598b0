"""Starts Ray's nodes for tests, once more where Ray gave up on one.

Ray waits 30 s for a node and has no setting for it. A busy machine of two cores takes longer now and then.
Older versions of Ray also draw a node's ports seconds before its agents listen there. Where something else
takes such a port meanwhile, the node dies after 30 s.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tests.ports import free_port

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

_GAVE_UP = ("The current node timed out during startup", "because the runtime env agent timed out")
_DRAWN_EARLY = (
    "dashboard_agent_listen_port",
    "gcs_server_port",
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
)
"""Ports of a node that Ray itself would draw before somebody listens there."""
_ATTEMPTS = 3
_DYING = 10
"""Seconds in which an aborted program writes where its threads stand, and its pipes are closed."""

Started = TypeVar("Started")


def start_ray(start: Callable[[], Started]) -> Started:
    """Call ``start``, which starts a node of Ray's, again if Ray gave up on it."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return start()
        except Exception as error:
            if not ray_gave_up(str(error)):
                raise
            _say_again()
    return start()


def add_node(cluster: Cluster, **options: Any) -> None:
    """Add a node to a cluster, the head if it is the first one, with ports that nobody else takes."""
    start_ray(lambda: cluster.add_node(**{name: free_port() for name in _DRAWN_EARLY}, **options))


def run_program(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program that starts Ray, again if Ray gave up on its node.

    Args:
        command: the program and its arguments.
        options: of :func:`subprocess.run`. What the program prints is captured as text.

    Raises:
        AssertionError: the time is over. The message has what was printed, and where the threads stand.
    """
    for _ in range(_ATTEMPTS - 1):
        ran = _run(command, **options)
        if ran.returncode == 0 or not ray_gave_up(ran.stdout + ran.stderr):
            return ran
        _say_again()
    return _run(command, **options)


def _run(command: Sequence[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    environ = {**(options.pop("env", None) or os.environ), "PYTHONFAULTHANDLER": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ, **options) as process:
        try:
            printed = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            try:
                printed = process.communicate(timeout=_DYING)
            finally:
                process.kill()
            raise AssertionError(f"no end after {timeout} s\n{printed[0]}\n{printed[1]}") from None
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *printed)


def ray_gave_up(said: str) -> bool:
    """Tell whether what a program printed says that Ray gave up on a node."""
    return any(reason in said for reason in _GAVE_UP)


def _say_again() -> None:
    print("Ray gave up on its node after 30 s, which is Ray's limit; it is started again", file=sys.stderr)
