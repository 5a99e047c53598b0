"""See every trajectory of an agentic-RL rollout, with OpenTelemetry.

Two names are all that user code needs, and an environment variable switches them on::

    from otel_rollout import rollout_trace_attr, rollout_trace_op

    @rollout_trace_op
    async def generate(prompt): ...

    with rollout_trace_attr(step=1, sample_index=3, rollout_n=0):
        await generate("…")

    $ OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=http://127.0.0.1:5000 python train.py
"""

from __future__ import annotations

from typing import Any

from otel_rollout import _state
from otel_rollout.account.report import ExporterCount, Report, StepCount, StepKey
from otel_rollout.base import logs as _logs
from otel_rollout.base.version import VERSION as __version__
from otel_rollout.capture.decorator import rollout_trace_op
from otel_rollout.capture.scores import score
from otel_rollout.capture.trajectory import Trajectory, rollout_trace_attr
from otel_rollout.launch import at_exit as _at_exit
from otel_rollout.launch import shutdown as _shutdown
from otel_rollout.launch import status as _status
from otel_rollout.launch import trackers as _trackers
from otel_rollout.runs import membership as _membership
from otel_rollout.settings import ExporterOptions, SettingsError

__all__ = [
    "ExporterCount",
    "Report",
    "SettingsError",
    "StepCount",
    "StepKey",
    "Trajectory",
    "__version__",
    "configure",
    "instrument",
    "publish_run",
    "rollout_trace_attr",
    "rollout_trace_op",
    "score",
    "shutdown",
    "status",
    "uninstrument",
]


def configure(
    exporters: str | list[str] | ExporterOptions | None = None,
    *,
    project_name: str | None = None,
    experiment_name: str | None = None,
    **settings: Any,
) -> None:
    """Set tracing up from code rather than from the environment; call it once, before Ray is started.

    Processes started afterwards inherit the set-up through their environment.

    Args:
        exporters: where spans go: a name (``"mlflow"``), several, or a mapping of names to keyword
            arguments of the exporter (``{"mlflow": {"tracking_uri": "sqlite:///mlflow.db"}}``).
        project_name: MLflow experiment, Weave project.
        experiment_name: this training run's name within the project.
        settings: any other field of :class:`otel_rollout.settings.Settings`.

    Raises:
        SettingsError: for a setting that does not exist, a value that cannot be used, an exporter that is
            not installed, or when recording has begun already.
    """
    _membership.configure(
        {
            "exporters": exporters,
            "project_name": project_name,
            "experiment_name": experiment_name,
            **settings,
        }
    )


def instrument() -> None:
    """Let trajectories continue in Ray tasks and actors, and in thread pools. Call it before ``ray.init``.

    Calls stay as they are. ``ray.init`` gives the job's workers this process's settings and has them take
    part; ``ray.shutdown`` first waits until the cluster's other nodes have delivered what they recorded.
    Calling it again does nothing; :func:`uninstrument` undoes it. Without Ray, and on a Ray that is not
    understood, what can be done is done, and the rest said. Never raises.
    """
    from otel_rollout.propagation import instrument as propagation  # here: most workers do not need it

    propagation.instrument()


def uninstrument() -> None:
    """Undo :func:`instrument` in this process. The workers of a running job stay as they are."""
    from otel_rollout.propagation import instrument as propagation

    propagation.uninstrument()


def publish_run(**runs: str) -> None:
    """Link the rollout's traces to a run of a tracker, those delivered already included.

    For runs that are started when traces exist already; a run that is known before is given by
    ``MLFLOW_RUN_ID`` or ``WANDB_RUN_ID``. Call it in any process of the rollout, usually the one that starts
    the run. Forwarders of other Ray nodes are told through Ray. Does not wait, and never raises.

    Args:
        runs: for an exporter its tracker's run: ``mlflow="<run id>"``, ``weave="<entity>/<project>/<run>"``.
            Exporters that the rollout does not use are ignored.
    """
    _trackers.publish_run(runs)


def status() -> Report:
    """Return how many spans this machine has recorded, and how many each exporter has delivered."""
    return _status.status()


def shutdown(timeout: float | None = None) -> Report:
    """End recording in this process, and wait until what this machine recorded is delivered.

    The first process of a run does so by itself when it exits. What is not delivered in time stays on disk,
    and the forwarder goes on delivering it.

    Args:
        timeout: seconds to wait; by default ``OTEL_ROLLOUT_SHUTDOWN_TIMEOUT`` (30).

    Returns:
        How many spans were recorded, delivered, rejected, dropped and left pending.
    """
    return _shutdown.shutdown(timeout)


_logs.guard_loggers("otel_rollout", "otel_rollout.forwarder", "otel_rollout.viewer")
_state.process.register_exit = _at_exit.register
_membership.announce()
