"""Keep the run's receiver of OTLP running, and find its address.

The supervisor's thread of each recording process calls :func:`ensure_receiver`, so a receiver that is killed
has a successor as long as a process of the run lives.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from otel_rollout.base.environment import without_receiver
from otel_rollout.base.redaction_names import SHIPPED
from otel_rollout.base.waits import waits
from otel_rollout.record.launch.detached import path_with_package, start_detached
from otel_rollout.settings import CONFIG_VARIABLE, Settings
from otel_rollout.settings_reader import to_variable
from otel_rollout.spool.receiver_files import (
    LOG_FILE,
    ReceiverAddress,
    has_failed_since,
    is_receiving,
    may_start,
    read_address,
)


def ensure_receiver(node_dir: Path, configured: Settings) -> None:
    """Start a receiver for this directory unless one runs, or has just failed. Starting takes 2 ms.

    Several processes may start receivers at once: one takes the lock, and the others exit.
    """
    if is_receiving(node_dir) or has_failed_since(node_dir, waits().receiver_failed):
        return
    if not may_start(node_dir, waits().receiver_start):
        return
    arguments = ["-m", "otel_rollout.record.receiver", str(node_dir)]
    start_detached(arguments, _environment(os.environ, configured), node_dir / LOG_FILE)


def problem(node_dir: Path) -> str:
    """Return why nothing can be received; empty while a receiver runs or is starting."""
    return "" if is_receiving(node_dir) else has_failed_since(node_dir, 2 * waits().receiver_failed)


def wait_for_receiver(node_dir: Path, configured: Settings, timeout: float) -> ReceiverAddress | None:
    """Wait until the receiver listens; return None if it cannot, or does not within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (is_receiving(node_dir) and (address := read_address(node_dir))):
        if time.monotonic() > deadline or problem(node_dir):
            return None
        time.sleep(waits().poll)
    return dataclasses.replace(address, token=configured.receive_token or address.token)


def _environment(environ: Mapping[str, str], configured: Settings) -> dict[str, str]:
    """Return the receiver's environment: this process's, with all its settings."""
    defaults = Settings()
    settings: dict[str, Any] = {
        field.name: getattr(configured, field.name)
        for field in dataclasses.fields(Settings)
        if getattr(configured, field.name) != getattr(defaults, field.name)
    }
    passed = {**without_receiver(environ), CONFIG_VARIABLE: to_variable(settings)}
    if any(step.strip() != SHIPPED for step in configured.redact.split(",") if step.strip()):
        # The application's function is in a module that this process can import.
        passed["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return passed | path_with_package(passed)
