"""Every variable that belongs to the process rather than to an object.

Modules hold constants, loggers and context keys; whatever changes during a program is a field of
:data:`process`. ``tests/test_process_state.py`` names the few exceptions. ``process.off`` takes as many
bytecode instructions as a variable of another module does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from otel_rollout.account.report import Report
    from otel_rollout.base.patching import Patches
    from otel_rollout.launch.ray_nodes import OtherNode
    from otel_rollout.runtime import Runtime, Start
    from otel_rollout.settings import Settings


@dataclass
class EndedRun:
    """A run that this process led and ended; ``report`` is None until delivery was waited for."""

    settings: Settings
    report: Report | None = None


_PER_PROCESS: Final = {"is_per_process": True}
"""Marks a field that a forked child does not take over from its parent."""
_WIRED: Final = {"is_wired": True}
"""Marks a field that is set when modules are imported, and that :func:`reset` leaves alone."""


def _nothing() -> None:
    """Do nothing."""


@dataclass(slots=True)
class ProcessState:
    """The process-wide variables, grouped by the room that uses them."""

    # --- Recording: otel_rollout.runtime ------------------------------------------------------------------
    off: bool = False
    """Whether it is certain that this process records nothing. Reading it is all that tracing costs then."""
    runtime: Runtime | None = field(default=None, metadata=_PER_PROCESS)
    start: Start | None = field(default=None, metadata=_PER_PROCESS)
    """The latest start of a runtime, which may have been interrupted."""
    joined_providers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """The application's tracer providers that have a span processor of this package."""
    metrics_are_offered: bool = False
    sdk_spans: dict[int, Any] = field(default_factory=dict)
    """Id of an open span of the application's SDK → what this package knows of the span."""

    # --- The run that this process belongs to: otel_rollout.runs, otel_rollout.launch ---------------------
    lock: threading.RLock = field(default_factory=threading.RLock, metadata=_PER_PROCESS)
    """Held while the fields of this section change."""
    settings: Settings | None = None
    """The settings of this process, once they are decided."""
    is_root: bool = field(default=False, metadata=_PER_PROCESS)
    """Whether this process has founded the run."""
    is_over: bool = False
    """Whether shutdown() has ended recording; ``settings`` stay, for status()."""
    is_exiting: bool = False
    is_configured: bool = False
    """Whether configure() was called."""
    has_made_id: bool = field(default=False, metadata=_PER_PROCESS)
    """Whether this process made the run's id up, because nobody has given one."""
    is_published_before_ray: bool = False
    """Whether a run was published before Ray was started: workers of a cluster started here know the run."""
    inherited_config: str | None = None
    """Value of ``OTEL_ROLLOUT_CONFIG`` before this process founded a run."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """The arguments of configure() that the present run was founded with."""
    earlier_runs: list[EndedRun] = field(default_factory=list, metadata=_PER_PROCESS)
    """Runs that configure() has ended, whose delivery may go on."""
    other_nodes: dict[str, OtherNode] = field(default_factory=dict)
    """Node directory → machine of the Ray cluster that was drained."""
    register_exit: Callable[[], None] = field(default=_nothing, metadata=_WIRED)
    """Registers what this process does at its exit, for rooms below :mod:`otel_rollout.launch.at_exit`."""
    ended_run: EndedRun | None = field(default=None, metadata=_PER_PROCESS)
    successor_starts: dict[Path, list[float]] = field(default_factory=dict, metadata=_PER_PROCESS)
    """Node directory → monotonic times at which this process started a successor of its forwarder."""

    # --- Messages that are logged once: otel_rollout.base.errors ------------------------------------------
    reported: set[str] = field(default_factory=set)

    # --- Encoding: otel_rollout.capture -------------------------------------------------------------------
    values_to_measure: int = 0
    """Values that are still measured before they are encoded, since one was larger than its limit."""

    # --- Delivery: otel_rollout.account, otel_rollout.forwarder -------------------------------------------
    ledger_lock: threading.RLock = field(default_factory=threading.RLock, metadata=_PER_PROCESS)
    """Held while a ledger is changed or put back, so that no thread writes to one that is gone."""
    replaced_ledgers: dict[Path, os.stat_result] = field(default_factory=dict, metadata=_PER_PROCESS)

    # --- Propagation: otel_rollout.propagation ------------------------------------------------------------
    instrument_lock: threading.Lock = field(default_factory=threading.Lock, metadata=_PER_PROCESS)
    patches: Patches | None = None
    """What instrument() has replaced in Ray and in pools of processes."""
    thread_patches: Patches | None = None
    """What instrument() has replaced in pools of threads."""
    flushing_pool_process: int = 0
    """Id of the pool process that is known to flush when it exits; a forked child has another."""
    run_of_workers: str = ""
    """Id of the run that the Ray job's workers were started with."""
    published_runs: set[str] = field(default_factory=set)
    """Ids of runs whose settings this process has put into Ray's control store, or has found there."""
    unknown_runs: set[str] = field(default_factory=set)
    """Ids of runs whose settings are not in Ray's control store."""

    # --- Frameworks: otel_rollout.integrations ------------------------------------------------------------
    originals: dict[str, Any] = field(default_factory=dict, metadata=_WIRED)
    """Name of a framework's function that an integration has replaced → that function."""

    def __reduce__(self) -> str:
        """Pickle the reference: a decorated function that is pickled by value uses its receiver's state."""
        return "process"


process = ProcessState()


def reset(*, after_fork: bool = False) -> None:
    """Give every field its initial value, or only those that a forked child does not take over."""
    initial = ProcessState()
    for variable in fields(ProcessState):
        if "is_wired" in variable.metadata:
            continue
        if not after_fork or "is_per_process" in variable.metadata:
            setattr(process, variable.name, getattr(initial, variable.name))
