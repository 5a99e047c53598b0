"""The directory in which this machine's processes record a run."""

from __future__ import annotations

import os
from pathlib import Path

from otel_rollout.record.runs import target
from otel_rollout.settings import Settings
from otel_rollout.spool import layout


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
