"""Manage the run that this process belongs to: decide, configure, join, leave.

The first process of a run, its founder, names the run and publishes it in an environment variable, so that
the processes it starts join. The founder also waits for delivery when it exits.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from otel_rollout import settings_reader
from otel_rollout.base.environment import without_receiver
from otel_rollout.base.errors import internal_errors, logger, pass_on
from otel_rollout.base.waits import waits
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs import founding, ray_job, target
from otel_rollout.record.runs.founding import absolute, node_directory
from otel_rollout.record.runs.state import EndedRun, state
from otel_rollout.settings import CONFIG_VARIABLE, WARNED_VARIABLE, ExporterOptions, Settings


def decide() -> Settings:
    """Return this process's settings; at first use, read them from the environment."""
    with recording.lock:
        if state.settings is None:
            _warn_of_unknown_variables()
            _adopt({})
        assert state.settings is not None
        return state.settings


def call_when_enabled(install: Callable[[], None]) -> None:
    """Call ``install`` now if tracing is on, else once :func:`configure` switches it on.

    Args:
        install: must not raise; it is called without a lock of ours, because it may import modules.
    """
    with recording.lock:
        if not decide().enabled:
            state.waiting_for_configure.append(install)
            return
    install()


def settle() -> Settings:
    """Decide this process's run, before this process or Ray's workers record; return its settings."""
    with recording.lock:
        if state.is_over and not state.is_configured:
            state.is_over, state.settings = False, None
        configured = decide()
        if not configured.enabled or recording.runtime is not None or state.is_over:
            return configured
        if state.is_root:  # a program may name its target after it has imported this package
            configured = founding.publish(founding.with_id_of_ray_job(configured))
        state.settings = founding.beside_other_target(configured)
        return state.settings


def settle_for_workers() -> Settings:
    """Decide this process's run as :func:`settle` does, and keep its id, which Ray's workers get."""
    with recording.lock:
        configured = settle()
        state.has_made_id = False
        return configured


def run_id() -> str:
    """Return the id of the run that this process records; empty if there is none."""
    configured = state.settings
    return configured.run_id if configured is not None and configured.enabled and not state.is_over else ""


def announce() -> None:
    """Found the run at import, if the environment switches tracing on.

    Processes that this process starts then join the run. Never raises: an import must not end a program.
    """
    try:
        if CONFIG_VARIABLE in os.environ or settings_reader.is_enabled(os.environ):
            configured, founds_run = _resolve({}, joins=False)
            if configured.enabled and founds_run:
                decide()
            elif configured.enabled:
                _join_tracers()
    except Exception as error:  # noqa: BLE001 - the first span meets this error again and switches tracing off
        pass_on(error)
        logger.error("otel-rollout: the run cannot be set up: %s: %s", type(error).__name__, error)


def configure(arguments: dict[str, Any], joins: bool = False) -> None:
    """Set this process's settings; arguments take precedence over the environment.

    Arguments that change nothing have no effect. Otherwise recording ends, and with it the run if this
    process has founded it; delivery of that run goes on.

    Args:
        arguments: arguments by name; None means that an argument is not given.
        joins: whether to stay in the inherited run, whatever run or target the arguments name.

    Raises:
        SettingsError: an argument does not exist, a value cannot be used, or an exporter is not installed.
    """
    checked = settings_reader.as_inherited(settings_reader.checked_arguments(arguments))
    check_exporters(checked.get("exporters", {}))
    if "spool_dir" in checked:
        checked["spool_dir"] = absolute(checked["spool_dir"])
    with recording.lock:
        if _has_begun():
            if _resolve(checked, joins)[0] == state.settings:
                return
            checked = state.arguments | checked
            _end_run()
        state.is_over = recording.off = False
        state.is_configured = True
        _warn_of_unknown_variables()
        _adopt(checked, joins)
        if settings_reader.switched_off(os.environ):
            logger.info("otel-rollout: an environment variable switches tracing off, despite configure()")
    _call_waiting()


def check_exporters(exporters: ExporterOptions) -> None:
    """Check that exporters and their options exist; import exporters with options.

    Raises:
        SettingsError: an exporter or option does not exist; the message suggests the closest name.
    """
    if exporters:
        from otel_rollout.exporting.entry_points import check_names, check_options

        check_names(exporters)
        for name, options in exporters.items():
            if options:
                check_options(name, options)


def join(config: str, variables: Mapping[str, str]) -> None:
    """Leave the present run, and record another run.

    Args:
        config: value of ``OTEL_ROLLOUT_CONFIG`` in the processes of the other run.
        variables: further variables of the other run's founder.
    """
    with recording.lock:
        active = recording.take_runtime()
        for name in settings_reader.inherited(os.environ).get("target_variables", {}):
            os.environ.pop(name, None)
        os.environ.update(variables)
        os.environ[CONFIG_VARIABLE] = config
        state.is_root = state.is_over = recording.off = False
        state.settings = None
        decide()
    _call_waiting()
    if active is not None:  # in a thread: the caller of join() must not wait for the flush
        threading.Thread(target=active.close, args=(waits().close,), daemon=True).start()


def _call_waiting() -> None:
    """Call the functions kept by :func:`call_when_enabled`, if tracing is on; the caller holds no lock."""
    with recording.lock:
        if state.settings is None or not state.settings.enabled:
            return
        waiting, state.waiting_for_configure = state.waiting_for_configure, []
    for install in waiting:
        install()


def _adopt(arguments: dict[str, Any], joins: bool = False) -> None:
    """Resolve the settings, and join the inherited run or found one."""
    for problem in settings_reader.from_environment(os.environ)[1]:
        logger.error("otel-rollout: %s", problem)
    configured, founds_run = _resolve(arguments, joins)
    if configured.enabled:
        if founds_run:
            configured = founding.found_run(configured, arguments)
        state.register_exit()
        _join_tracers()
    state.settings = configured


@internal_errors("joining the tracers of other libraries")
def _join_tracers() -> None:
    from otel_rollout.record.recording import joining  # here: of no use while tracing is off

    joining.install()


def _has_begun() -> bool:
    """Return whether this process, or another process of the run that it founded, has begun to record."""
    if recording.runtime is not None or recording.start is not None:
        return True
    is_id_given = "run_id" in state.arguments or bool(os.environ.get("OTEL_ROLLOUT_RUN_ID"))
    return (
        state.settings is not None
        and state.is_root
        and not is_id_given  # a given id may name the directory of an earlier job
        and node_directory(state.settings).exists()
    )


def _end_run() -> None:
    """End recording, and the run if this process founded it; do not wait for delivery."""
    active = recording.take_runtime()
    if active is not None:
        active.close(waits().close)
    if state.is_root and state.settings is not None:
        state.earlier_runs.append(EndedRun(state.settings))
        logger.info("otel-rollout: the run %s has ended; its delivery goes on", state.settings.run_id)
        founding.leave_run()


def _warn_of_unknown_variables() -> None:
    """Warn of variables without effect, once in a tree of processes."""
    if CONFIG_VARIABLE in os.environ or WARNED_VARIABLE in os.environ:
        return
    unknown = settings_reader.unknown_variables(os.environ)
    for sentence in unknown:
        logger.warning("otel-rollout: %s", sentence)
    if unknown:
        os.environ[WARNED_VARIABLE] = "true"


def _resolve(arguments: dict[str, Any], joins: bool) -> tuple[Settings, bool]:
    """Resolve the environment of this process and arguments of ``configure()``.

    Args:
        arguments: checked arguments.
        joins: whether to stay in the inherited run, whatever target the arguments name.

    Returns:
        The settings of this process, and whether it founds a run. A process founds a run if it inherits none,
        or if it names another target than the inherited run.
    """
    inherited, _ = settings_reader.from_environment(os.environ)
    by_variables = target.named_by_variables(_variables_for_this_process(), inherited)
    stated = dataclasses.replace(inherited, **by_variables)
    configured = target.completed(without_receiver(os.environ), stated, arguments)
    configured = dataclasses.replace(configured, **settings_reader.switched_off(os.environ))
    if CONFIG_VARIABLE not in os.environ or not inherited.run_id or state.is_root:
        return configured, True
    if joins or not (target.is_another(inherited, by_variables) or target.is_another(inherited, arguments)):
        return dataclasses.replace(configured, exporters=inherited.exporters), False
    if configured.run_id == inherited.run_id:
        configured = dataclasses.replace(configured, run_id=target.own_run_id(inherited.run_id, configured))
    # The founder of a run uses its own directory and machine, unless its arguments name others.
    own = {name: arguments.get(name, "") for name in ("working_dir", "home_node")}
    return dataclasses.replace(configured, **own), True


def _variables_for_this_process() -> Mapping[str, str]:
    """Return the variables set for this process, rather than for its machine."""
    if not settings_reader.is_inherited("target_variables", os.environ):  # nothing to compare them with
        return {}
    environ = without_receiver(os.environ)
    given = ray_job.variables_given_to_worker(os.environ)
    if given is None:
        return environ
    return {name: value for name, value in environ.items() if name in given}
