"""Found a run: name it, publish it to the processes that this process starts, and make its directory."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any, Final

from otel_rollout import settings_reader
from otel_rollout.base.environment import without_receiver
from otel_rollout.base.errors import logger
from otel_rollout.base.version import VERSION
from otel_rollout.record.runs import ray_job, target
from otel_rollout.record.runs.state import state
from otel_rollout.settings import CONFIG_VARIABLE, Settings, given_to_forwarder
from otel_rollout.spool import layout

_PUBLISHED: Final = (
    "run_id", "working_dir", "home_node", "exporters", "project_name", "target_variables",
)  # fmt: skip
"""Settings that the founder of a run publishes besides its arguments."""


def found_run(configured: Settings, arguments: dict[str, Any]) -> Settings:
    """Found a run, or continue this process's own run; return its settings.

    Args:
        configured: settings of the run; an empty run id is replaced by a new one.
        arguments: arguments of ``configure()`` for the run.
    """
    if not state.is_root:
        is_inherited = settings_reader.is_inherited("run_id", os.environ)
        inherited = settings_reader.inherited(os.environ) if is_inherited else {}
        state.inherited_config = os.environ.get(CONFIG_VARIABLE)
        state.arguments = {name: value for name, value in inherited.items() if name not in _PUBLISHED}
        state.other_nodes = {}
        if inherited:
            _log_own_run(configured.run_id, inherited["run_id"], bool(arguments))
    state.is_root = True
    state.arguments |= arguments
    if not configured.run_id:
        state.has_made_id = True
        configured = with_id_of_ray_job(dataclasses.replace(configured, run_id=layout.new_run_id()))
    return publish(
        dataclasses.replace(
            configured,
            working_dir=configured.working_dir or working_directory(),
            home_node=configured.home_node or configured.node or layout.node_id(),
        )
    )


def publish(configured: Settings) -> Settings:
    """Publish the run and its target to child processes; return their settings."""
    configured = dataclasses.replace(
        configured, target_variables=target.published_variables(without_receiver(os.environ), configured)
    )
    published = state.arguments | {name: getattr(configured, name) for name in _PUBLISHED}
    if not configured.spool_dir.is_absolute():  # other processes may have other working directories
        published["spool_dir"] = absolute(configured.spool_dir)
    of_forwarder = {name: getattr(configured, name) for name in given_to_forwarder("founder")}
    of_forwarder[settings_reader.VERSION_KEY] = VERSION
    os.environ[CONFIG_VARIABLE] = settings_reader.to_variable(
        {**published, settings_reader.FOUNDER_KEY: of_forwarder}
    )
    state.is_published_before_ray |= ray_job.current() is None
    return dataclasses.replace(configured, **settings_reader.as_inherited(published))


def leave_run() -> None:
    """Leave the run that this process founded; later spans belong to another run."""
    if state.inherited_config is None:
        os.environ.pop(CONFIG_VARIABLE, None)
    else:
        os.environ[CONFIG_VARIABLE] = state.inherited_config
    state.is_root = state.has_made_id = False


def with_id_of_ray_job(configured: Settings) -> Settings:
    """Return settings with the id of this process's Ray job, if this process has made up the run's id.

    The made-up id stays if the job's workers know the run already.
    """
    job = ray_job.current() if state.has_made_id else None
    if job is None or job.is_prepared or (job.owns_cluster and state.is_published_before_ray):
        return configured
    state.is_root = not job.in_worker
    return dataclasses.replace(configured, run_id=job.run_id)


def beside_other_target(configured: Settings) -> Settings:
    """Return the settings, or those of a new run if processes with another target use this run's id."""
    manifest = layout.read_manifest(node_directory(configured))
    if manifest is None or manifest.target in ("", target.fingerprint(configured)):
        return configured
    own_id = target.own_run_id(configured.run_id, configured)
    logger.warning(
        "otel-rollout: run %s delivers to another target than this process names; this process records run "
        "%s instead.",
        configured.run_id,
        own_id,
    )
    return found_run(dataclasses.replace(configured, run_id=own_id), {})


def _log_own_run(run_id: str, inherited_id: str, is_asked_for: bool) -> None:
    logger.log(
        logging.INFO if is_asked_for else logging.WARNING,
        "otel-rollout: %s another target, project or exporter than the inherited run %s; this process "
        "records a run of its own, %s.",
        "configure() names" if is_asked_for else "the environment names",
        inherited_id,
        run_id,
    )


# --- the directory in which this machine's processes record a run -------------------------------------------


def node_directory(configured: Settings) -> Path:
    """Return the node directory of a run on this machine."""
    return layout.node_directory(configured.spool_dir, configured.run_id, configured.node)


def create_node_directory(configured: Settings) -> Path:
    """Create the node directory of a run, and its manifest, unless they exist.

    Raises:
        OSError: when the spool cannot be used.
    """
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


def absolute(directory: Path) -> Path:
    """Return the absolute path of a directory, which other processes can use."""
    return Path(os.path.join(working_directory(), os.path.expanduser(directory)))


def working_directory() -> str:
    """Return the working directory; empty if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""
