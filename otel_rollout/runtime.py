"""This process's tracing: decided once, set up at the first span, ended in order.

The composition root: the only module that knows both the recording side and how a forwarder is started.
``capture`` asks it for the :class:`Runtime`; None means that tracing is off.

The first process of a run (the driver) names the run and leaves its settings in the environment, so that
the processes it starts join it. It is also the one that waits for delivery when it exits.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace

from otel_rollout import _state, configuration, settings
from otel_rollout._state import EndedRun, process
from otel_rollout.account import metrics, node_report
from otel_rollout.account.report import DeliveryCount, ExporterCount, Report
from otel_rollout.base import semconv
from otel_rollout.base.errors import warn_once
from otel_rollout.base.interrupts import pass_on
from otel_rollout.base.suggest import closest
from otel_rollout.base.version import VERSION
from otel_rollout.launch import drain, exit_message, launcher
from otel_rollout.recording.provider import RecordingTracer, RecordingTracerProvider
from otel_rollout.recording.redaction import Redaction, redaction_of
from otel_rollout.recording.sampling import Decision, GroupSampling, decision_of
from otel_rollout.recording.tokenizers import Tokenizers
from otel_rollout.recording.writer import SegmentWriter
from otel_rollout.runs import ray_job, target
from otel_rollout.settings import Settings
from otel_rollout.spool import layout

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider


_logger = logging.getLogger("otel_rollout")
_SCOPE: Final = "otel_rollout"
_AGENT: Final = "opentelemetry.instrumentation.auto_instrumentation"
"""Imported in processes that `opentelemetry-instrument` has set up."""
_CLOSE_TIMEOUT: Final = 2.0
"""Seconds a process other than the run's first one spends on flushing when it exits."""


class Runtime:
    """The recording half of this process: one writer, one tracer, one keeper of the forwarder.

    Args:
        configured: settings with tracing enabled and a run id.
        redact: what lines go through before they are written anywhere.

    Raises:
        OSError: when the spool cannot be used.
    """

    def __init__(self, configured: Settings, redact: Redaction | None) -> None:
        self.settings = configured
        self.is_closed = False
        found = functools.partial(_create_node_directory, configured)
        node_dir = found()
        self.writer = SegmentWriter(
            node_dir,
            _resource(configured),
            segment_bytes=configured.segment_bytes,
            spool_limit=configured.spool_limit or layout.default_limit(node_dir),
            whole_trajectories=configured.spool_full == "trajectories",
            found=found,
            redact=redact,
        )
        self.tokenizers = Tokenizers(node_dir, configured.tokenizer)
        provider = RecordingTracerProvider(self.writer, _decision(configured))
        self.tracer: RecordingTracer = provider.get_tracer(_SCOPE, VERSION)
        self.sampling = GroupSampling.of(configured)
        self._joined: SdkTracerProvider | None = None
        self._joined_tracer: trace.Tracer | None = None
        if "console" in configured.exporters and process.is_root:
            _logger.warning(
                "otel-rollout: the exporter console prints into %s, since another process delivers.",
                node_dir / layout.FORWARDER_LOG,
            )
        self.keeper = launcher.Keeper(node_dir, configured, found)
        self.keeper.start()

    def application_tracer(self) -> trace.Tracer | None:
        """A tracer of the application's own SDK provider, if it has set one: then we are its guests.

        Looked up whenever there is no span of ours to follow, since an application may set its provider
        late.
        """
        sdk = sys.modules.get("opentelemetry.sdk.trace")
        if sdk is None:  # nobody imported the SDK, so no SDK provider can be set
            return None
        try:
            provider = trace.get_tracer_provider()
        except Exception as error:  # noqa: BLE001 - OTEL_PYTHON_TRACER_PROVIDER names none, as is logged
            pass_on(error)
            return None
        if not isinstance(provider, sdk.TracerProvider):
            return None
        if provider is not self._joined:
            self._join(provider)
        return self._joined_tracer

    def _join(self, provider: SdkTracerProvider) -> None:
        from otel_rollout.recording import processor

        delivers_itself = _is_exported_by_the_agent(self.settings)
        with process.lock:
            if (
                provider not in process.joined_providers
            ):  # a processor stays for good; it finds the current writer
                provider.add_span_processor(
                    processor.IdentityProcessor()
                    if delivers_itself
                    else processor.SpoolSpanProcessor(_current_writer, _SCOPE)
                )
                process.joined_providers.add(provider)
            self._joined_tracer = None if delivers_itself else processor.tracer_of(provider, _SCOPE, VERSION)
            self._joined = provider

    def close(self, timeout: float) -> None:
        """Flush and stop recording."""
        self.is_closed = True
        deadline = time.monotonic() + timeout
        self.keeper.stop()
        self.tokenizers.finish(timeout / 2)
        self.writer.close(max(0.0, deadline - time.monotonic()))


class Start:
    """The creation of a runtime, in a thread: what a signal handler raises cannot leave half of it behind.

    Python runs signal handlers in the main thread. A caller that is interrupted while it waits leaves a start
    that goes on; the next caller waits for the same one.
    """

    def __init__(self, configured: Settings) -> None:
        self.settings = configured
        self.runtime: Runtime | None = None
        self._redact = redaction_of(configured.redact)  # the application's code, which may import modules
        self._error: Exception | None = None
        self._turn = threading.Lock()
        self._is_over = threading.Event()

    def result(self) -> Runtime:
        """Wait for the runtime.

        Raises:
            OSError: when the spool cannot be used.
        """
        if not self._is_over.is_set():
            threading.Thread(target=self._run, name="otel-rollout-start", daemon=True).start()
            self._is_over.wait()
        if self.runtime is None:
            assert self._error is not None
            raise self._error
        return self.runtime

    def _run(self) -> None:
        if not self._turn.acquire(blocking=False):  # the thread of a caller that was interrupted is at it
            return
        try:
            self.runtime = Runtime(self.settings, self._redact)
        except Exception as error:  # noqa: BLE001 - the caller's
            self._error = error
        finally:
            self._is_over.set()


def _is_exported_by_the_agent(configured: Settings) -> bool:
    """Whether `opentelemetry-instrument` exports the application's spans to where we deliver ours.

    Then each delivers its own, and they meet there: through one another's hands they would arrive twice.
    """
    if _AGENT not in sys.modules:
        return False
    exported = configuration.from_environment(
        {"OTEL_TRACES_EXPORTER": os.environ.get("OTEL_TRACES_EXPORTER", "")}
    )
    shared = set(exported[0].exporters) & set(configured.exporters)
    if shared:
        _logger.info(
            "otel-rollout: opentelemetry-instrument exports the application's own spans to %s; "
            "trajectories are delivered there by otel-rollout",
            ", ".join(sorted(shared)),
        )
    return bool(shared)


def _decision(configured: Settings) -> Decision | None:
    try:
        return decision_of(configured.sampler, configured.sampler_arg)
    except ValueError as error:
        _logger.error("otel-rollout: %s; all trajectories are recorded.", error)
        return None


def _create_node_directory(configured: Settings) -> Path:
    node_dir = node_directory(configured)
    layout.create_private(node_dir, configured.spool_dir)
    layout.write_manifest(
        node_dir,
        layout.Manifest(
            configured.run_id,
            configured.project_name,
            tuple(configured.exporters),
            target.fingerprint(configured),
        ),
    )
    return node_dir


def _resource(configured: Settings) -> dict[str, str]:
    resource = {semconv.SERVICE_NAME: configured.project_name, **configured.resource_attributes}
    if configured.service_name:  # wins (OTel specification)
        resource[semconv.SERVICE_NAME] = configured.service_name
    return {**resource, semconv.RUN_ID: configured.run_id, semconv.PROJECT_NAME: configured.project_name}


def _current_writer() -> SegmentWriter | None:
    active = current()
    return active.writer if active is not None else None


def current() -> Runtime | None:
    """The runtime of this process, set up on first use; None when tracing is off. Never raises."""
    active = process.runtime
    if active is not None or process.off:
        return active
    with process.lock:
        if process.runtime is None and not process.off:
            _set_up()
        active = process.runtime
    if active is not None:
        _offer_metrics()  # without the lock: a reader of metrics may be asking us at this moment
    return active


def _set_up() -> None:
    try:
        if process.is_over and not _may_begin_again():
            process.off = True
            return
        configured = settle()
        if configured.enabled:
            process.runtime = _started(configured)
            return
    except OSError as error:
        pass_on(error)  # TimeoutError, what time limits usually raise, is one
        _logger.error(
            "otel-rollout: tracing is OFF in this process: cannot record in %s: %s. Set "
            "OTEL_ROLLOUT_SPOOL_DIR to a local directory of your own with some room.",
            process.settings.spool_dir if process.settings else "the spool",
            error.strerror or error,
        )
    except Exception as error:  # noqa: BLE001 - training goes on without tracing, and is told so
        pass_on(error)
        _logger.error("otel-rollout: tracing is OFF in this process: %s", error)
    process.off = True


def _started(configured: Settings) -> Runtime:
    """Return a runtime with these settings: one whose start was interrupted, or a new one."""
    start = process.start
    if start is None or start.settings != configured or (start.runtime and start.runtime.is_closed):
        if start is not None and start.runtime is not None:
            start.runtime.close(_CLOSE_TIMEOUT)
        start = process.start = Start(configured)
    try:
        return start.result()
    except Exception:
        process.start = None
        raise


def _may_begin_again() -> bool:
    """After shutdown(): the environment begins another run by itself, arguments are given again."""
    if not process.is_configured:
        return True
    _logger.warning(
        "otel-rollout: shutdown() has ended recording, and what is called from now on is not recorded. Call "
        "configure() again to begin another run."
    )
    return False


def _offer_metrics() -> None:
    """Create the metrics' instruments, once in a process; they then follow its runs."""
    if not process.metrics_are_offered:
        process.metrics_are_offered = True
        metrics.offer(_writer_at_present, _delivered_here)


def _writer_at_present() -> SegmentWriter | None:
    active = process.runtime
    return active.writer if active is not None else None


def _delivered_here() -> dict[str, DeliveryCount]:
    """Exporter → what was delivered here, for the process that reports it. Takes no lock."""
    configured = process.settings
    if not process.is_root or configured is None:
        return {}
    return node_report.delivered(node_directory(configured), configured)


def decide() -> Settings:
    """Settle this process's settings from its environment, if they are not settled yet."""
    with process.lock:
        if process.settings is None:
            _warn_of_unknown_variables()
            _adopt({})
        assert process.settings is not None
        return process.settings


def configure(arguments: dict[str, Any], joins: bool = False) -> None:
    """Settle this process's settings from arguments, over the environment.

    Does nothing when they are what is recorded with already. Otherwise what is recorded ends, and with it
    the run, if this process has founded it; delivery goes on.

    Args:
        arguments: what is set; None counts as not given.
        joins: stay in the inherited run, whatever arguments name: they add to what its founder did not know.

    Raises:
        SettingsError: for an argument that does not exist or has an unusable value, or an exporter that is
            not installed.
    """
    checked = configuration.as_inherited(configuration.checked_arguments(arguments))
    launcher.check_exporters(checked.get("exporters", {}))
    if "spool_dir" in checked:
        checked["spool_dir"] = _absolute(checked["spool_dir"])
    with process.lock:
        if _has_begun():
            if _wanted(checked, joins).settings == process.settings:
                return
            checked = process.arguments | checked
            _end_run()
        process.is_over = process.off = False
        process.is_configured = True
        _warn_of_unknown_variables()
        _adopt(checked, joins)
        if configuration.switched_off(os.environ):
            _logger.info("otel-rollout: an environment variable switches tracing off, over configure()")


def _has_begun() -> bool:
    """Whether this process records, or others do in the run that it has founded."""
    if process.runtime is not None:
        return True
    is_id_given = "run_id" in process.arguments or bool(os.environ.get("OTEL_ROLLOUT_RUN_ID"))
    return (
        process.settings is not None
        and process.is_root
        and not is_id_given  # or its directory may be that of an earlier job
        and node_directory(process.settings).exists()
    )


def _end_run() -> None:
    """End what this process records, without waiting for delivery."""
    if process.runtime is not None:
        process.runtime.close(_CLOSE_TIMEOUT)
        process.runtime = None
    if process.is_root and process.settings is not None:
        process.earlier_runs.append(EndedRun(process.settings))
        _logger.info("otel-rollout: the run %s has ended; its delivery goes on", process.settings.run_id)
        _leave_run()


def _warn_of_unknown_variables() -> None:
    """Warn of variables that look like ours and are none, once per tree of processes."""
    if settings.CONFIG_VARIABLE in os.environ or settings.WARNED_VARIABLE in os.environ:
        return
    unknown = configuration.unknown_variables(os.environ)
    for sentence in unknown:
        _logger.warning("otel-rollout: %s", sentence)
    if unknown:
        os.environ[settings.WARNED_VARIABLE] = "true"


def announce() -> None:
    """At import: where the environment switches tracing on, let the processes started from here know.

    Never raises: an import must not end a program, whatever the machine it runs on.
    """
    try:
        if settings.CONFIG_VARIABLE in os.environ or configuration.is_enabled(os.environ):
            wanted = _wanted({}, joins=False)
            if wanted.settings.enabled and wanted.is_own:
                decide()
    except Exception as error:  # noqa: BLE001 - recording comes to the same, and is switched off then
        _logger.error("otel-rollout: the run cannot be set up: %s: %s", type(error).__name__, error)


class _Wanted(NamedTuple):
    """What environment and arguments come to.

    Attributes:
        settings: the settings.
        is_own: whether this process founds a run: the first, or beside the inherited one.
    """

    settings: Settings
    is_own: bool


def _wanted(arguments: dict[str, Any], joins: bool) -> _Wanted:
    inherited, _ = configuration.from_environment(os.environ)
    by_variables = target.named_by_variables(_variables_for_this_process(), inherited)
    stated = dataclasses.replace(inherited, **by_variables)
    configured = target.completed(os.environ, stated, arguments)
    configured = dataclasses.replace(configured, **configuration.switched_off(os.environ))
    if settings.CONFIG_VARIABLE not in os.environ or not inherited.run_id or process.is_root:
        return _Wanted(configured, True)
    if joins or not (target.is_another(inherited, by_variables) or target.is_another(inherited, arguments)):
        return _Wanted(dataclasses.replace(configured, exporters=inherited.exporters), False)
    if configured.run_id == inherited.run_id:
        configured = dataclasses.replace(configured, run_id=target.own_run_id(inherited.run_id, configured))
    # A directory and a machine are those of the process that founds a run, unless it says otherwise.
    own = {name: arguments.get(name, "") for name in ("working_dir", "home_node")}
    return _Wanted(dataclasses.replace(configured, **own), True)


def _variables_for_this_process() -> Mapping[str, str]:
    """Return the environment as far as it is meant for this process."""
    if not target.is_told(os.environ):  # so that nothing can be compared
        return {}
    given = ray_job.variables_given_to_worker(os.environ)
    if given is None:
        return os.environ
    return {name: value for name, value in os.environ.items() if name in given}


def _adopt(arguments: dict[str, Any], joins: bool = False) -> None:
    """Make these settings those of this process: join the inherited run, or found one."""
    for problem in configuration.from_environment(os.environ)[1]:
        _logger.error("otel-rollout: %s", problem)
    configured, is_own = _wanted(arguments, joins)
    if configured.enabled:
        if is_own:
            configured = _found_run(configured, arguments)
        register_exit()
    process.settings = configured


def _found_run(configured: Settings, arguments: dict[str, Any]) -> Settings:
    if not process.is_root:
        inherited = configuration.inherited(os.environ) if _is_inherited() else {}
        process.inherited_config = os.environ.get(settings.CONFIG_VARIABLE)
        process.arguments = {n: value for n, value in inherited.items() if n not in _FOUNDED}
        process.other_nodes = {}
        if inherited:
            _say_own_run(configured.run_id, inherited["run_id"], bool(arguments))
    process.is_root = True
    process.arguments |= arguments
    if not configured.run_id:
        process.has_made_id = True
        configured = _with_id_of_ray_job(dataclasses.replace(configured, run_id=layout.new_run_id()))
    return _publish(
        dataclasses.replace(
            configured,
            working_dir=configured.working_dir or _working_directory(),
            home_node=configured.home_node or configured.node or layout.node_id(),
        )
    )


_FOUNDED: Final = ("run_id", "working_dir", "home_node", "exporters", "project_name", "target_variables")
"""Settings that the process that founds a run tells the others, besides arguments."""


def _publish(configured: Settings) -> Settings:
    """Tell the processes started from here which run they belong to, and what it delivers to."""
    configured = dataclasses.replace(
        configured, target_variables=target.published_variables(os.environ, configured)
    )
    told = process.arguments | {name: getattr(configured, name) for name in _FOUNDED}
    if not configured.spool_dir.is_absolute():  # other processes may run elsewhere
        told["spool_dir"] = _absolute(configured.spool_dir)
    of_forwarder = {name: getattr(configured, name) for name in settings.given_to_forwarder("founder")}
    os.environ[settings.CONFIG_VARIABLE] = configuration.to_variable(
        {**told, configuration.FOUNDER_KEY: of_forwarder}
    )
    process.is_published_before_ray |= ray_job.current() is None
    return dataclasses.replace(configured, **configuration.as_inherited(told))


def _is_inherited() -> bool:
    """Whether the process that started this one has told it of a run."""
    try:
        return "run_id" in configuration.inherited(os.environ)
    except ValueError:  # as has been said
        return False


def _say_own_run(run_id: str, inherited_id: str, is_asked_for: bool) -> None:
    _logger.log(
        logging.INFO if is_asked_for else logging.WARNING,
        "otel-rollout: %s another target, project or exporter than the inherited run %s; this process "
        "records a run of its own, %s.",
        "configure() names" if is_asked_for else "the environment names",
        inherited_id,
        run_id,
    )


def _leave_run() -> None:
    """End the run that this process has founded: what begins from here on is another."""
    if process.inherited_config is None:
        os.environ.pop(settings.CONFIG_VARIABLE, None)
    else:
        os.environ[settings.CONFIG_VARIABLE] = process.inherited_config
    process.is_root = process.has_made_id = False


def settle() -> Settings:
    """Settle what this process records into; before it does, or Ray starts processes that do."""
    with process.lock:
        if process.is_over and not process.is_configured:
            process.is_over, process.settings = False, None
        configured = decide()
        if not configured.enabled or process.runtime is not None or process.is_over:
            return configured
        if process.is_root:  # a program may name its target after it has imported us
            configured = _publish(_with_id_of_ray_job(configured))
        process.settings = _beside_other_target(configured)
        return process.settings


def run_id() -> str:
    """Return the id of the run that this process records into; empty while there is none."""
    configured = process.settings
    return configured.run_id if configured is not None and configured.enabled and not process.is_over else ""


def join(config: str, variables: Mapping[str, str]) -> None:
    """Record into another run from here on.

    Args:
        config: what its first process tells the others, the value of ``CONFIG_VARIABLE``.
        variables: further variables of its first process.
    """
    with process.lock:
        active, process.runtime = process.runtime, None
        for name in configuration.inherited(os.environ).get("target_variables", {}):
            os.environ.pop(name, None)
        os.environ.update(variables)
        os.environ[settings.CONFIG_VARIABLE] = config
        process.is_root = process.is_over = process.off = False
        process.settings = None
        decide()
    if active is not None:  # a call is waiting, and nobody for what was recorded
        threading.Thread(target=active.close, args=(_CLOSE_TIMEOUT,), daemon=True).start()


def settle_for_workers() -> Settings:
    """Settle what this process records into, and stay with it: workers are being told."""
    with process.lock:
        configured = settle()
        process.has_made_id = False
        return configured


def _with_id_of_ray_job(configured: Settings) -> Settings:
    """Take the run id on which those of a Ray job agree that were not told one."""
    job = ray_job.current() if process.has_made_id else None
    if job is None or job.is_prepared or (job.owns_cluster and process.is_published_before_ray):
        return configured
    process.is_root = not job.in_worker
    return dataclasses.replace(configured, run_id=job.run_id)


def _beside_other_target(configured: Settings) -> Settings:
    """Where processes with another target record under this run id, take one of our own."""
    manifest = layout.read_manifest(node_directory(configured))
    if manifest is None or manifest.target in ("", target.fingerprint(configured)):
        return configured
    own_id = target.own_run_id(configured.run_id, configured)
    _logger.warning(
        "otel-rollout: the run %s delivers to another target than this process names, which records %s.",
        configured.run_id,
        own_id,
    )
    return _found_run(dataclasses.replace(configured, run_id=own_id), {})


def _absolute(directory: Path) -> Path:
    return Path(os.path.join(_working_directory(), os.path.expanduser(directory)))


def _working_directory() -> str:
    """Where this process is; nowhere, if its directory was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def register_exit() -> None:
    """Have :func:`shutdown` run when the process exits, before what was registered until now (Ray's end)."""
    _import_what_exit_needs()
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _import_what_exit_needs() -> None:
    """Import modules before the exit that :func:`shutdown` needs.

    A module with dataclasses that is imported while Python exits makes CPython forget that Ctrl-C ended the
    program: it would exit with status 1 rather than by SIGINT.
    """
    from otel_rollout.account import ledger  # noqa: F401

    if "ray" in sys.modules:
        from otel_rollout.launch import ray_nodes  # noqa: F401


def _at_exit() -> None:
    process.is_exiting = True
    try:
        with contextlib.suppress(KeyboardInterrupt):  # leaves at once; the forwarder goes on
            if process.is_root:
                shutdown(None)
            elif process.runtime is not None:
                process.runtime.close(_CLOSE_TIMEOUT)
            _drain_earlier_runs()
        for ended in filter(None, (*process.earlier_runs, process.ended_run)):
            with exit_message.ctrl_c_ignored():
                _say_what_was_delivered(ended)
    except KeyboardInterrupt:  # pressed again
        pass
    except Exception as error:  # noqa: BLE001 - an exiting process must exit
        _logger.error("otel-rollout: could not finish delivery at exit: %s", error)
    process.off = True  # what exit handlers call from here on begins no other run


def _drain_earlier_runs() -> None:
    """Wait until what configure() has ended is delivered as well."""
    timeouts = [run.settings.shutdown_timeout for run in process.earlier_runs]
    deadline = time.monotonic() + max(timeouts, default=0.0)
    for run in process.earlier_runs:
        timeout = max(0.0, deadline - time.monotonic())
        run.report = drain.drain(node_directory(run.settings), run.settings, timeout, shows_progress=True)


def _say_what_was_delivered(ended: EndedRun) -> None:
    """Say how much of the run was delivered, and where to look at it."""
    node_dir = node_directory(ended.settings)
    report = ended.report
    if report is None or (report.undelivered and not process.other_nodes):  # interrupted, or out of date
        report = node_report.report(node_dir, ended.settings, at_once=report is None)
    exit_message.say(report, node_dir)


def close_at_exit() -> None:
    """Flush what this process has recorded: for a process that exits without ``atexit``."""
    active = process.runtime
    if active is not None and not process.is_root:
        active.close(_CLOSE_TIMEOUT)


def node_directory(configured: Settings) -> Path:
    """Where this machine's processes record the run."""
    return layout.node_directory(configured.spool_dir, configured.run_id, configured.node)


def status() -> Report:
    """What this machine's processes of the run have recorded, and what of it was delivered."""
    configured = decide()
    if not configured.enabled:
        return Report.empty()
    return _known(node_report.report(node_directory(configured), configured), _writer_at_present())


def _known(report: Report, writer: SegmentWriter | None) -> Report:
    """Complete a report of a spool that cannot be read by what this process knows; warn of it once."""
    if report.problem is None:
        return report
    warn_once(f"what was recorded and delivered is not known: {report.problem}")
    if writer is None:
        return report
    counts = writer.counts()
    pending = ExporterCount(pending=counts.recorded)
    return dataclasses.replace(
        report,
        started=counts.started,
        recorded=counts.recorded,
        dropped={reason: n for reason, n in counts.drops.items() if n},
        left_out={reason: n for reason, n in counts.skips.items() if n},
        exporters=dict.fromkeys(report.exporters, pending),
    )


def publish_run(runs: Mapping[str, str]) -> None:
    """Let forwarders know which run of a tracker the rollout belongs to: exporter → run. Never raises."""
    try:
        configured = decide()
        known = {name: run for name, run in runs.items() if name in configured.exporters}
        for name in runs.keys() - known.keys():  # others are ignored: the same call serves several set-ups
            if meant := closest(name, configured.exporters):
                _logger.warning(
                    "otel-rollout: publish_run(%s=…) names no exporter; is %s meant?", name, meant
                )
        if not configured.enabled or not known:
            return
        publish_trackers_here(known)
        if "ray" in sys.modules:
            from otel_rollout.launch import ray_nodes

            ray_nodes.publish_trackers(known)
    except Exception as error:  # noqa: BLE001 - training goes on, and is told
        _logger.warning("otel-rollout: the run %s could not be published: %s", dict(runs), error)


def publish_trackers_here(runs: Mapping[str, str]) -> None:
    """The same for this machine's forwarder, which is started if what it delivered is to be linked now."""
    configured = settle()
    node_dir = _create_node_directory(configured)
    layout.publish_trackers(node_dir, runs)
    launcher.ensure_forwarder(node_dir, configured)


def drain_other_nodes(timeout: float | None = None) -> None:
    """Wait until the cluster's other machines have delivered what they recorded; while Ray still runs.

    Called by the run's first process before Ray goes, since forwarders may not outlive their machines.
    """
    configured = decide()
    if configured.enabled and process.is_root and "ray" in sys.modules:
        from otel_rollout.launch import ray_nodes

        limit = configured.shutdown_timeout if timeout is None else timeout
        process.other_nodes = ray_nodes.drain_others(
            process.other_nodes, configured, node_directory(configured), _bounded(limit)
        )


def shutdown(timeout: float | None) -> Report:
    """End recording in this process and wait until what the run recorded is delivered.

    What is called afterwards begins another run, where the environment or configure() says so.
    """
    with process.lock:
        configured = decide()
        process.off = True
        active, process.runtime = process.runtime, None
        if not configured.enabled:
            return Report.empty()
        deadline = time.monotonic() + _bounded(configured.shutdown_timeout if timeout is None else timeout)
        leads = process.is_root
        if leads:
            process.ended_run = EndedRun(configured)
        if active is not None:
            active.close(deadline - time.monotonic())
        try:
            drain_other_nodes(max(0.0, deadline - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - Ray may be half gone; this machine is drained all the same
            _logger.warning("otel-rollout: the cluster's other nodes could not be drained: %s", error)
        if leads:
            _leave_run()
            process.arguments = {}
        process.is_over, process.off = True, process.is_exiting
    node_dir = node_directory(configured)
    here = drain.drain(node_dir, configured, max(0.0, deadline - time.monotonic()), shows_progress=leads)
    if active is not None or os.path.lexists(node_dir):  # else nothing was recorded, and nothing is missing
        here = _known(here, active.writer if active is not None else None)
    accounts = [here]
    for node in process.other_nodes.values():
        accounts.append(node.account(max(0.0, deadline - time.monotonic())))
    report = Report.merged(accounts)
    if leads:
        process.ended_run = EndedRun(configured, report)
    return report


def _bounded(seconds: float) -> float:
    """Seconds that a wait can take as its timeout; ``inf`` cannot."""
    return min(seconds, threading.TIMEOUT_MAX / 2)


def _after_fork_in_child() -> None:
    """A forked child records on its own: it shares neither writer nor threads nor exit duties."""
    inherited = process.runtime or (process.start.runtime if process.start else None)
    _state.reset(after_fork=True)
    if inherited is not None:
        inherited.writer.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
