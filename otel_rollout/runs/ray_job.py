"""The Ray job this process belongs to, for processes that nobody has told which run they are part of.

Nothing here starts Ray.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_rollout.base.interrupts import pass_on

RECEIVER_MARK: Final = "_OTEL_ROLLOUT_RAY_RECEIVER"
"""Variable in the runtime_env of a job whose workers take the carrier off again; names what it gives them."""


class RayJob(NamedTuple):
    """A job of a Ray cluster.

    Attributes:
        run_id: the run that its processes agree on; made of the cluster's and the job's ids.
        in_worker: whether this process is one of its workers, rather than its driver.
        is_prepared: whether its workers were told of a run, and take part in trajectories.
        owns_cluster: whether this process has started the cluster, whose workers have its environment.
    """

    run_id: str
    in_worker: bool
    is_prepared: bool
    owns_cluster: bool


def current() -> RayJob | None:
    """Return the job of this process; None where Ray is not connected, or not one that we know."""
    ray: Any = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return None
        worker = ray._private.worker.global_worker
        cluster, job = worker.current_cluster_and_job
        if job.is_nil():  # a worker that has no task yet
            return None
        digest = hashlib.sha256(f"{cluster.hex()} {job.hex()}".encode()).hexdigest()
        in_worker = worker.mode == ray.WORKER_MODE
        owns_cluster = not in_worker and bool(worker.node.head)
        # Ray crashes when it is asked for the runtime_env of a worker that it is just setting up.
        prepared = RECEIVER_MARK in os.environ if in_worker else is_prepared()
        return RayJob(f"run-{digest[:12]}", in_worker, prepared, owns_cluster)
    except Exception as error:  # noqa: BLE001 - a Ray that is half imported, or another version
        pass_on(error)
        return None


def variables_given_to_worker(environ: Mapping[str, str]) -> set[str] | None:
    """Return the names of the variables that a job gives this worker; None where no prepared job does.

    Other variables of a worker are those of its machine, which say nothing about the job.
    """
    given = environ.get(RECEIVER_MARK)
    return None if given is None else {*given.split(","), *_given_to_it_alone(environ)}


def _given_to_it_alone(environ: Mapping[str, str]) -> set[str]:
    """Return the names of the variables that this process does not have from the one that started it.

    A worker has them from the runtime_env of its task or actor, which the job's mark does not name. Ray's
    raylet, which starts workers, has the variables of the machine.
    """
    parent = Path(f"/proc/{os.getppid()}")
    try:
        variables = set((parent / "environ").read_bytes().split(b"\0"))
        name = (parent / "comm").read_text().strip()
    except OSError:  # gone, or another user's
        return set()
    mark = os.fsencode(f"{RECEIVER_MARK}={environ[RECEIVER_MARK]}")
    if name != "raylet" and mark not in variables:  # who started it is gone, and somebody else its parent
        return set()
    return {name for name, value in environ.items() if os.fsencode(f"{name}={value}") not in variables}


def is_prepared() -> bool:
    """Whether this job's workers take carriers off.

    Asked of Ray, in the driver and in workers alike: so it is true whoever has arranged it, and however.
    """
    import ray

    return f'"{RECEIVER_MARK}"' in ray.get_runtime_context().get_runtime_env_string()
