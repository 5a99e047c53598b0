"""Set up this process's runtime, with which it records, at its first span.

``capture`` asks :func:`current` for the :class:`Runtime`; None means that tracing is off.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Mapping

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, logger, pass_on
from otel_rollout.base.finalizers import watch_collections
from otel_rollout.base.state import reset
from otel_rollout.base.version import VERSION
from otel_rollout.base.waits import waits
from otel_rollout.otlp.writer import AttributeInput
from otel_rollout.record.launch import launcher
from otel_rollout.record.recording import runtime_context
from otel_rollout.record.recording.application import Application
from otel_rollout.record.recording.joined_span import end_never_ended
from otel_rollout.record.recording.provider import RecordingTracer, RecordingTracerProvider
from otel_rollout.record.recording.sampling import Decision, GroupSampling, decision_of
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.recording.tokenizers import Tokenizers
from otel_rollout.record.recording.writer import SegmentWriter
from otel_rollout.record.runs.founding import create_node_directory
from otel_rollout.record.runs.membership import settle
from otel_rollout.record.runs.state import state as runs
from otel_rollout.redaction.redaction import Redaction, redacted_attributes, redaction_of
from otel_rollout.settings import Settings
from otel_rollout.spool import layout


class Runtime:
    """The objects that a process records with: writer, tracer, forwarder supervisor.

    Args:
        configured: settings with tracing enabled and a run id.
        resource: redacted attributes of the resource.
        redact: redacts lines before they are written.
        decision: the sampler's decision; None records every trace.

    Attributes:
        project: the attributes that the identities of all trajectories have.

    Raises:
        OSError: the spool cannot be used.
    """

    def __init__(
        self,
        configured: Settings,
        resource: Mapping[str, AttributeInput],
        redact: Redaction | None,
        decision: Decision | None,
    ) -> None:
        self.settings = configured
        self.project = {
            semconv.PROJECT_NAME: configured.project_name,
            semconv.EXPERIMENT_NAME: configured.experiment,
        }
        found = functools.partial(create_node_directory, configured)
        node_dir = found()
        self.writer = SegmentWriter(
            node_dir,
            resource,
            spool_limit=configured.spool_limit or layout.default_limit(node_dir),
            found=found,
            redact=redact,
            observe=_span_observer(configured),
        )
        self.tokenizers = Tokenizers(node_dir, configured.tokenizer)
        self.provider = RecordingTracerProvider(self.writer, decision, configured.run_id)
        self.tracer: RecordingTracer = self.provider.get_tracer(semconv.SCOPE, VERSION)
        self.sampling = GroupSampling(configured) if configured.samples_groups else None
        self.application_tracer = Application(configured).tracer
        self.node_dir = node_dir
        self.keeper = launcher.ForwarderSupervisor(node_dir, configured, found)
        self.keeper.start()
        watch_collections()

    def close(self, timeout: float) -> None:
        """Flush and stop recording."""
        deadline = time.monotonic() + timeout
        end_never_ended()
        self.keeper.stop()
        self.tokenizers.finish(timeout / 2)
        self.writer.close(max(0.0, deadline - time.monotonic()))


class Start:
    """Creates a runtime in a thread, where no signal handler can interrupt it.

    Python runs signal handlers in the main thread. If a handler's exception interrupts a waiting caller, the
    start goes on, and the next caller waits for it. The caller holds locks while it waits, so the thread runs
    none of the application's code: redaction and sampler are loaded before, and a span that the thread
    happens to start (in a ``__del__``) is not recorded.

    Attributes:
        runtime: the runtime, once it exists.
        thread_id: id of the thread that is creating the runtime; 0 before and afterwards.
    """

    def __init__(self, configured: Settings) -> None:
        self.settings = configured
        self.runtime: Runtime | None = None
        self.thread_id = 0
        self._redact = redaction_of(configured.redact)  # the application's code, which may import modules
        self._resource = redacted_attributes(self._redact, _resource(configured))
        self._decision = _sampler_decision(configured)  # the application's code, too
        self._error: Exception | None = None
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        """Held while ``runtime`` and ``_is_abandoned`` are set."""
        self._is_abandoned = False
        self._is_over = threading.Event()

    def result(self) -> Runtime | None:
        """Wait for the runtime; return None if the start was abandoned.

        Raises:
            OSError: the spool cannot be used.
        """
        if not self._is_over.is_set():
            threading.Thread(target=self._run, name="otel-rollout-start", daemon=True).start()
            self._is_over.wait()
        if self._error is not None:
            raise self._error
        return None if self._is_abandoned else self.runtime

    @property
    def has_failed(self) -> bool:
        """Whether the runtime could not be created."""
        return self._is_over.is_set() and self._error is not None

    def abandon(self) -> Runtime | None:
        """Return the runtime if it exists; otherwise the thread that creates the runtime will close it."""
        with self._lock:
            self._is_abandoned = True
            return self.runtime

    def _run(self) -> None:
        if not self._turn.acquire(blocking=False):  # the thread of an interrupted caller is creating it
            return
        try:
            self.thread_id = threading.get_ident()
            created = Runtime(self.settings, self._resource, self._redact, self._decision)
            with self._lock:
                self.runtime = None if self._is_abandoned else created
            if self.runtime is None:
                created.close(waits().close)
        except BaseException as error:  # noqa: BLE001 - raised by result()
            self._error = error if isinstance(error, Exception) else RuntimeError(repr(error))
        finally:
            self.thread_id = 0  # another thread may get this id
            self._is_over.set()


def current() -> Runtime | None:
    """Return this process's runtime, set up at first use; None without tracing.

    Never raises.
    """
    active: Runtime | None = recording.runtime
    if active is not None or recording.off:
        return active
    start: Start | None = recording.start
    if start is not None and start.thread_id == threading.get_ident():  # a caller waits and holds the lock
        return None
    with recording.lock:
        if recording.is_starting:  # a span of the application's redaction or sampler, which is being loaded
            return None
        if recording.runtime is None and not recording.off:
            _set_up()
        active = recording.runtime
    if active is not None and not recording.metrics_are_offered:
        recording.metrics_are_offered = True  # once per process: the instruments serve all its runs
        recording.switch_on_instrumentors()  # instrument() may have come before the variables were set
        with internal_errors("offering metrics"):  # without the lock: a reader of metrics may wait for it
            from otel_rollout.record import metrics  # here, so that this package imports quickly
            from otel_rollout.record.launch.shutdown import delivered_here, present_writer

            metrics.offer(present_writer, delivered_here)
    return active


def _set_up() -> None:
    """Set ``recording.runtime``; set ``recording.off`` if this process does not record."""
    recording.is_starting = True
    try:
        _set_up_once()
    finally:
        recording.is_starting = False


def _set_up_once() -> None:
    try:
        if runs.is_over and not _may_begin_again():
            recording.off = True
            return
        configured = settle()
        if configured.enabled:
            started = _started(configured)
            recording.runtime = started
            recording.start = None
            if started is not None:
                with internal_errors("keeping OpenTelemetry's context whole"):
                    runtime_context.keep_whole()
            return
    except OSError as error:
        pass_on(error)  # TimeoutError, which time limits usually raise, is an OSError
        logger.error(
            "otel-rollout: tracing is OFF in this process: cannot record in %s: %s. Set "
            "OTEL_ROLLOUT_SPOOL_DIR to a local directory of your own with some room.",
            runs.settings.spool_dir if runs.settings else "the spool",
            error.strerror or error,
        )
    except Exception as error:  # noqa: BLE001 - training goes on without tracing
        pass_on(error)
        logger.error("otel-rollout: tracing is OFF in this process: %s", error)
    recording.off = True


def _started(configured: Settings) -> Runtime | None:
    """Return a runtime with these settings, from an interrupted start or a new one.

    Return None if a signal handler has ended recording meanwhile.
    """
    start: Start | None = recording.start
    if start is None or start.settings != configured:
        outdated = recording.take_runtime()
        if outdated is not None:
            outdated.close(waits().close)
        start = recording.start = Start(configured)
    try:
        started = start.result()
    except Exception:  # of the start; or of a signal handler, and the start goes on
        if start.has_failed:
            recording.start = None
        raise
    if started is not None and "console" in configured.exporters and runs.is_root:
        logger.warning(
            "otel-rollout: the exporter console prints into %s, because the forwarder process delivers.",
            started.node_dir / layout.FORWARDER_LOG,
        )
    if started is not None and configured.missing_exporters and runs.is_root:
        logger.warning(
            "otel-rollout: OTEL_ROLLOUT_STEP_METRICS=%s has no effect without %s in "
            "OTEL_TRACES_EXPORTER: its numbers come from the rollout table and go to the tracker.",
            configured.step_metrics,
            " and ".join(configured.missing_exporters),
        )
    return started


def _may_begin_again() -> bool:
    """Return whether a span after shutdown() begins another run.

    No run begins if the program has called configure(): such a program begins its runs itself.
    """
    if not runs.is_configured:
        return True
    logger.warning(
        "otel-rollout: shutdown() has ended recording; later spans are not recorded. Call configure() again "
        "to begin another run."
    )
    return False


def _sampler_decision(configured: Settings) -> Decision | None:
    try:
        return decision_of(configured.sampler, configured.sampler_arg)
    except ValueError as error:
        logger.error("otel-rollout: %s; all trajectories are recorded.", error)
        return None


def _span_observer(configured: Settings) -> Callable[[bytes], object] | None:
    """Return the function that measures recorded spans; None if no metrics of spans are wanted."""
    if not configured.metrics:
        return None
    from otel_rollout.account.span_metrics import SpanMetrics  # late: it costs time, and is off by default

    return SpanMetrics().observe


def _resource(configured: Settings) -> dict[str, str]:
    """Return the resource attributes of this process's spans."""
    resource = {semconv.SERVICE_NAME: configured.project_name, **configured.resource_attributes}
    if configured.service_name:  # takes precedence over OTEL_RESOURCE_ATTRIBUTES (OTel specification)
        resource[semconv.SERVICE_NAME] = configured.service_name
    return {**resource, semconv.RUN_ID: configured.run_id, semconv.PROJECT_NAME: configured.project_name}


def _after_fork_in_child() -> None:
    """Let a forked child record without the parent's writer, threads, exit handler."""
    inherited = recording.present_runtime()
    reset(after_fork=True)
    if inherited is not None:
        inherited.writer.abandon()


recording.current_runtime = current
os.register_at_fork(after_in_child=_after_fork_in_child)
