"""See every trajectory of an agentic-RL rollout, with OpenTelemetry.

User code needs two names; an environment variable switches recording on::

    from otel_rollout import rollout_trace_attr, rollout_trace_op

    @rollout_trace_op
    async def generate(prompt): ...

    with rollout_trace_attr(step=1, sample_index=3, rollout_n=0):
        await generate("…")

    $ OTEL_TRACES_EXPORTER=mlflow MLFLOW_TRACKING_URI=http://127.0.0.1:5000 python train.py
"""

from __future__ import annotations

import os as _os
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any, Final

from otel_rollout import settings_reader as _settings_reader
from otel_rollout.base.errors import guard_loggers as _guard_loggers
from otel_rollout.base.errors import internal_errors as _internal_errors
from otel_rollout.base.version import VERSION as __version__
from otel_rollout.record.capture.decorator import rollout_trace_op
from otel_rollout.record.capture.scores import score
from otel_rollout.record.capture.trajectory import Trajectory, rollout_trace_attr
from otel_rollout.record.recording.state import state as _recording
from otel_rollout.record.runs import membership as _membership
from otel_rollout.record.runs.state import state as _runs
from otel_rollout.settings import ExporterOptions, Settings, SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from otel_rollout.account.report import ExporterCount, Report, StepCount
    from otel_rollout.otlp.scan import StepKey
    from otel_rollout.record.capture.engine_request import record_engine_times
    from otel_rollout.record.capture.score_batch import score_batch
    from otel_rollout.rollout_table import RolloutTable

__all__ = [
    "ExporterCount",
    "Report",
    "SettingsError",
    "StepCount",
    "StepKey",
    "Trajectory",
    "__version__",
    "child_environment",
    "configure",
    "instrument",
    "open_table",
    "publish_run",
    "record_engine_times",
    "rollout_trace_attr",
    "rollout_trace_op",
    "score",
    "score_batch",
    "shutdown",
    "status",
    "tracer_provider",
    "trajectory_key",
    "uninstrument",
]


_IMPORTED_WHEN_USED: Final = {
    "ExporterCount": "otel_rollout.account.report",
    "Report": "otel_rollout.account.report",
    "StepCount": "otel_rollout.account.report",
    "StepKey": "otel_rollout.otlp.scan",
    "record_engine_times": "otel_rollout.record.capture.engine_request",
    "score_batch": "otel_rollout.record.capture.score_batch",
}
"""Public names → modules that take long to import."""


def configure(
    exporters: str | list[str] | ExporterOptions | None = None,
    *,
    project_name: str | None = None,
    experiment_name: str | None = None,
    **settings: Any,
) -> None:
    """Set up tracing from code; call this before Ray is started.

    Processes started afterwards inherit the settings through their environment. A call that changes a setting
    while this process records ends the run and begins another one.

    Args:
        exporters: where spans go: a name (``"mlflow"``), several, or a mapping of names to keyword
            arguments of the exporter (``{"mlflow": {"tracking_uri": "sqlite:///mlflow.db"}}``).
        project_name: name of the MLflow experiment or Weave project.
        experiment_name: name of this training run within the project.
        settings: any other field of :class:`otel_rollout.settings.Settings`.

    Raises:
        SettingsError: a setting does not exist, a value cannot be used, or an exporter is not installed.
    """
    _membership.configure(
        {
            "exporters": exporters,
            "project_name": project_name,
            "experiment_name": experiment_name,
            **settings,
        }
    )
    _switch_on_instrumentors()  # instrument() may have come first


def instrument() -> None:
    """Let trajectories continue in Ray, in pools and over HTTP.

    Call this before ``ray.init``. Code that calls tasks and actors stays unchanged. ``ray.init`` then gives
    this process's settings to the job's workers. ``ray.shutdown`` first waits until the cluster's other
    nodes have delivered. A second call has no effect; :func:`uninstrument` undoes the first. Without Ray,
    pools are instrumented; on a version of Ray that is not supported, a warning says what does not work.
    HTTP requests of a trajectory carry ``traceparent`` to private hosts (setting ``traceparent_hosts``).
    Never raises.

    It also switches on the instrumentors that ``OTEL_ROLLOUT_INSTRUMENT`` names, here and in the workers.
    """
    from otel_rollout.record.propagation import instrument as propagation  # here: most workers do not need it

    propagation.instrument()
    if _present_settings().enabled:
        from otel_rollout.record.recording import joining

        joining.install()


def uninstrument() -> None:
    """Undo :func:`instrument` in this process; a running job's workers do not change.

    Spans of other libraries are then recorded only if their tracer comes from an SDK provider that the
    application has set, or from :func:`tracer_provider`.
    """
    from otel_rollout.integrations.state import state as integrations
    from otel_rollout.record.propagation import instrument as propagation

    propagation.uninstrument()
    if integrations.instrumentors:
        from otel_rollout.integrations import instrumentor_switch

        instrumentor_switch.switch_off()
    if _recording.join_patches is not None:
        from otel_rollout.record.recording import joining

        joining.uninstall()


def child_environment() -> dict[str, str]:
    """Return the variables with which a child process's own OpenTelemetry joins the current trajectory.

    The child may be in any language, and need not know this package::

        subprocess.run(agent, env={**os.environ, **otel_rollout.child_environment()})

    ``TRACEPARENT`` (and ``TRACESTATE``) name the current span. If ``OTEL_ROLLOUT_RECEIVE`` is set,
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` and related variables name the run's receiver on this machine. The first
    call waits until the receiver listens: usually a second, at most thirty. So a coroutine calls
    ``await asyncio.to_thread(otel_rollout.child_environment)``. An endpoint that the environment already
    names stays. Never raises; without tracing the result is empty.
    """
    from otel_rollout.record.propagation import (
        child_environment as child,  # here: most processes start no agents
    )

    return child.child_environment()


def trajectory_key(secret: str) -> str:
    """Return the API key with which an agent's model calls belong to the current trajectory.

    For agents that cannot be edited: they ask a proxy that knows such keys (docs/agents.md)::

        subprocess.run(agent, env={**os.environ, "OPENAI_BASE_URL": proxy,
                                   "OPENAI_API_KEY": otel_rollout.trajectory_key(master_key)})

    The proxy also accepts the key if the trajectory is not recorded, or tracing is off. Never raises.

    Args:
        secret: the proxy's master key, which signs the key. The agent must not know it.
    """
    from otel_rollout.record.propagation import child_environment as child

    return child.trajectory_key(secret)


def tracer_provider() -> TracerProvider:
    """Return a provider whose spans belong to trajectories, for instrumentors' ``tracer_provider``.

    Most instrumentors need none: inside a trajectory, tracers of OpenTelemetry's API record by themselves.
    Hand this provider to a library that does not ask the API for its tracer, or that has been given another
    provider. If the application has set a provider of OpenTelemetry's SDK, the spans go through it. This
    package does not record them outside trajectories, and while tracing is off.
    """
    from otel_rollout.record.recording import joining

    return joining.JoinedTracerProvider()


def publish_run(**runs: str) -> None:
    """Link the rollout's traces, also delivered ones, to a tracker's run.

    Use this for runs that start after the first trajectory; for a run that starts earlier, set
    ``MLFLOW_RUN_ID`` or ``WANDB_RUN_ID``. Any process of the rollout may call this function, on any Ray node.
    It neither waits nor raises.

    Args:
        runs: exporter and run: ``mlflow="<run id>"``, ``weave="<entity>/<project>/<run>"``. Exporters that
            the rollout does not use are ignored.
    """
    from otel_rollout.record.launch import trackers

    trackers.publish_run(runs)


def open_table(uri: str | _os.PathLike[str]) -> RolloutTable:
    """Open a rollout table to read it: its views as DataFrames, SQL, and single trajectories.

    Args:
        uri: what ``OTEL_ROLLOUT_DELTA_URI`` named: a directory, or an address such as ``s3://bucket/rollouts``.

    Raises:
        TableError: there is no rollout table, or it cannot be read. The message is one sentence.
    """
    from otel_rollout import rollout_table  # here: training needs none of it

    return rollout_table.open_table(uri)


def status() -> Report:
    """Return this machine's counts of recorded and, per exporter, delivered spans."""
    from otel_rollout.record.launch import shutdown as launch_status

    return launch_status.status()


def shutdown(timeout: float | None = None) -> Report:
    """End recording in this process, and wait until the run's spans are delivered.

    The first process of a run does this when it exits. Spans that are not delivered in time stay on disk, and
    the forwarder continues to deliver them.

    Args:
        timeout: seconds to wait; by default ``OTEL_ROLLOUT_SHUTDOWN_TIMEOUT`` (30).

    Returns:
        The counts of recorded, delivered, rejected, dropped and pending spans.
    """
    from otel_rollout.record.launch import shutdown as launch_shutdown

    return launch_shutdown.shutdown(timeout)


@_internal_errors("switching on instrumentors")
def _switch_on_instrumentors() -> None:
    """Switch on the chosen instrumentors, if instrument() was called."""
    from otel_rollout.record.propagation.state import state as propagation

    configured = _present_settings() if propagation.patches is not None else None
    if configured is not None and configured.enabled and configured.instrument:
        from otel_rollout.integrations import instrumentor_switch

        instrumentor_switch.switch_on(configured)


def _register_exit() -> None:
    from otel_rollout.record.launch import at_exit  # here: only a process that records needs it

    at_exit.register()


@_internal_errors("waiting for frameworks")
def _wait_for_frameworks() -> None:
    """Trace frameworks also in a program that sets the variables after Python has started."""
    try:
        import otel_rollout_autoload
    except ImportError:  # this package is not installed, only found by a path
        return
    otel_rollout_autoload.wait()


def __getattr__(name: str) -> Any:
    """Import a public name that few processes use, at its first use (PEP 562)."""
    if name not in _IMPORTED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(_IMPORTED_WHEN_USED[name]), name)
    globals()[name] = value
    return value


def _present_settings() -> Settings:
    """Return this process's settings without fixing them: the program may still set variables."""
    return _runs.settings or _settings_reader.from_environment(_os.environ)[0]


_guard_loggers("otel_rollout", "otel_rollout.forwarder", "otel_rollout.viewer")
_runs.register_exit = _register_exit
_recording.switch_on_instrumentors = _switch_on_instrumentors
_membership.announce()
_wait_for_frameworks()
