"""Identify this process's Ray job, from which the job's processes derive a common run.

No function of this module starts Ray.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_rollout.base.errors import pass_on
from otel_rollout.record.runs.state import state

RECEIVER_MARK: Final = "_OTEL_ROLLOUT_RAY_RECEIVER"
"""Variable of workers that receive trajectories; lists the other variables that their job gives them."""

RECEIVES: Final = "_OTEL_ROLLOUT_RAY_RECEIVES"
"""Variable that the setup hook sets in a worker."""
SETUP_HOOK: Final = "otel_rollout_worker_setup"
"""Name of the setup hook, as Ray shows it in a runtime_env."""
NODE_VARIABLES: Final = "_OTEL_ROLLOUT_NODE_VARIABLES"
"""Variable of workers with the names of variables that the node sets to other values than the driver."""


class RayJob(NamedTuple):
    """A job of a Ray cluster.

    Attributes:
        run_id: id of the run on which the job's processes agree, derived from the ids of cluster and job.
        in_worker: whether this process is a worker of the job, rather than its driver.
        is_prepared: whether the job's workers inherit a run, and receive trajectories.
        owns_cluster: whether this process has started the cluster; if so, workers inherit its environment.
    """

    run_id: str
    in_worker: bool
    is_prepared: bool
    owns_cluster: bool


def current() -> RayJob | None:
    """Return this process's job; None if Ray is not connected or not supported."""
    ray: Any = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return None
        worker = ray._private.worker.global_worker
        cluster, job = worker.current_cluster_and_job
        if job.is_nil():  # a worker without a task yet
            return None
        digest = hashlib.sha256(f"{cluster.hex()} {job.hex()}".encode()).hexdigest()
        in_worker = worker.mode == ray.WORKER_MODE
        owns_cluster = not in_worker and bool(worker.node.head)
        return RayJob(f"run-{digest[:12]}", in_worker, is_prepared(), owns_cluster)
    except Exception as error:  # noqa: BLE001 - Ray may be half imported, or of another version
        pass_on(error)
        return None


def variables_given_to_worker(environ: Mapping[str, str]) -> set[str] | None:
    """Return names of variables that a job gives this worker; None if it gives none.

    A worker's other variables come from its machine, and say nothing about the job.
    """
    given = environ.get(RECEIVER_MARK)
    return None if given is None else {*given.split(","), *_variables_of_its_own(environ)}


def _variables_of_its_own(environ: Mapping[str, str]) -> set[str]:
    """Return names of variables that this process has not inherited from its parent.

    A worker gets such variables from the runtime_env of its task or actor; the job's mark does not list them.
    The parent of a worker is Ray's raylet, which has the variables of the machine.
    """
    parent = Path(f"/proc/{os.getppid()}")
    try:
        variables = set((parent / "environ").read_bytes().split(b"\0"))
        name = (parent / "comm").read_text().strip()
    except OSError:  # the parent is gone, or another user's
        return set()
    mark = os.fsencode(f"{RECEIVER_MARK}={environ[RECEIVER_MARK]}")
    if name != "raylet" and mark not in variables:  # the first parent is gone, and another took its place
        return set()
    return {name for name, value in environ.items() if os.fsencode(f"{name}={value}") not in variables}


def is_prepared() -> bool:
    """Return whether this job's workers receive trajectories.

    In a worker, the setup hook of this package leaves a mark. A driver that has started and prepared the
    cluster remembers the cluster's id. Any other driver looks for the hook in the job's runtime_env, where
    another hook may have replaced it.
    """
    import ray

    worker: Any = ray._private.worker.global_worker
    if worker.mode == ray.WORKER_MODE:
        return RECEIVES in os.environ or state.is_receiver
    if state.prepared_cluster == worker.current_cluster_and_job[0]:
        return True
    runtime_env = ray.get_runtime_context().get_runtime_env_string()
    return f'"{RECEIVER_MARK}"' in runtime_env and f'"{SETUP_HOOK}"' in runtime_env
