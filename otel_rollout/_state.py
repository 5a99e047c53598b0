"""Hold every process-wide variable.

Modules hold constants, loggers and context keys; a variable that changes during a program is a field of
:data:`process`. ``tests/test_process_state.py`` names the few exceptions. Reading ``process.off`` takes
as many bytecode instructions as reading a variable of another module.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from otel_rollout.account.report import Report
    from otel_rollout.base.patching import Patches
    from otel_rollout.record.launch.ray_nodes import OtherNode
    from otel_rollout.record.runtime import Runtime, Start
    from otel_rollout.settings import Settings


@dataclass
class EndedRun:
    """A run that this process led and ended; ``report`` is None before the drain."""

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

    # --- Recording: otel_rollout.record.runtime -----------------------------------------------------------
    off: bool = False
    """Whether this process certainly records nothing; then tracing costs only one read of this field."""
    runtime: Runtime | None = field(default=None, metadata=_PER_PROCESS)
    start: Start | None = field(default=None, metadata=_PER_PROCESS)
    """A start of a runtime that is under way, or that a signal handler's exception interrupted."""
    is_starting: bool = field(default=False, metadata=_PER_PROCESS)
    """Whether the runtime is being created, in a call that holds ``lock``."""
    joined_providers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """The application's tracer providers that have a span processor of this package."""
    current_runtime: Callable[[], Runtime | None] = field(default=_nothing, metadata=_WIRED)
    """Returns this process's runtime; for rooms below :mod:`otel_rollout.record.runtime`."""
    join_patches: Patches | None = None
    """The patches that join the tracers of other libraries."""
    metrics_are_offered: bool = False
    sdk_spans: dict[int, Any] = field(default_factory=dict)
    """Id of an open span of the application's SDK → this package's data about the span."""
    never_ended: deque[tuple[Any, int]] = field(default_factory=deque)
    """Spans of other libraries that the garbage collector found open, and when, in ns."""

    # --- The run that this process belongs to: otel_rollout.record.runs, otel_rollout.record.launch -------
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
    """Whether this process made up the run's id, because none was given."""
    is_published_before_ray: bool = False
    """Whether a run was published before Ray was started: workers of a cluster started here know the run."""
    inherited_config: str | None = None
    """Value of ``OTEL_ROLLOUT_CONFIG`` before this process founded a run."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """The arguments of configure() with which this process founded the present run."""
    earlier_runs: list[EndedRun] = field(default_factory=list, metadata=_PER_PROCESS)
    """Runs that configure() has ended; their delivery may go on."""
    other_nodes: dict[str, OtherNode] = field(default_factory=dict)
    """Node directory → drained machine of the Ray cluster."""
    register_exit: Callable[[], None] = field(default=_nothing, metadata=_WIRED)
    """Registers this process's exit handler; for rooms below :mod:`otel_rollout.record.launch.at_exit`."""
    ended_run: EndedRun | None = field(default=None, metadata=_PER_PROCESS)
    successor_starts: dict[Path, list[float]] = field(default_factory=dict, metadata=_PER_PROCESS)
    """Node directory → monotonic times at which this process started a successor of its forwarder."""

    # --- Messages that are logged once: otel_rollout.base.errors ------------------------------------------
    reported: set[str] = field(default_factory=set)

    # --- Encoding: otel_rollout.record.capture ------------------------------------------------------------
    values_to_measure: int = 0
    """Number of next values to measure before encoding, after a value was larger than its limit."""

    # --- Delivery: otel_rollout.account, otel_rollout.deliver ---------------------------------------------
    ledger_lock: threading.RLock = field(default_factory=threading.RLock, metadata=_PER_PROCESS)
    """Held while a ledger is changed or replaced, so that no thread writes to a removed file."""
    replaced_ledgers: dict[Path, os.stat_result] = field(default_factory=dict, metadata=_PER_PROCESS)

    # --- Propagation: otel_rollout.record.propagation -----------------------------------------------------
    instrument_lock: threading.Lock = field(default_factory=threading.Lock, metadata=_PER_PROCESS)
    patches: Patches | None = None
    """The patches of instrument() in ``ray.init``, ``ray.shutdown`` and process pools."""
    ray_patches: Patches | None = None
    """The patches in Ray's calls."""
    is_uninstrumented: bool = False
    """Whether uninstrument() was called last: variables alone do not instrument Ray."""
    thread_patches: Patches | None = None
    """The patches of instrument() in thread pools."""
    http_patches: Patches | None = None
    """The patches of instrument() in HTTP clients."""
    flushing_pool_process: int = 0
    """Id of this pool process, once it is set to flush at exit; a forked child has another id."""
    is_receiver: bool = False
    """Whether this worker's setup hook has instrumented it; an older driver's hook sets no variable."""
    prepared_cluster: Any = None
    """Id of the cluster that this process has started, and whose workers inherit their setup hook."""
    run_of_workers: str = ""
    """Id of the run with which the Ray job's workers were started."""
    published_runs: set[str] = field(default_factory=set)
    """Ids of runs whose settings this process has put into Ray's control store, or has found there."""
    unknown_runs: set[str] = field(default_factory=set)
    """Ids of runs whose settings are not in Ray's control store."""

    # --- Frameworks: otel_rollout.integrations ------------------------------------------------------------
    switch_on_instrumentors: Callable[[], None] = field(default=_nothing, metadata=_WIRED)
    """Switches on the chosen instrumentors; for rooms below :mod:`otel_rollout.integrations`."""
    instrumentors: dict[str, Any] = field(default_factory=dict)
    """Entry point's value → its instrumentor, which instrument() has switched on."""
    originals: dict[str, Any] = field(default_factory=dict, metadata=_WIRED)
    """Name of a framework's function that an integration has replaced → that function."""
    waiting_for_configure: list[Callable[[], None]] = field(default_factory=list)
    """Functions that are called as soon as configure() switches tracing on; each patches a framework."""
    adapters: dict[str, Any] = field(default_factory=dict)
    """Name of a framework that traces by means of its own → what our adapter has added to the framework."""

    trainers: weakref.WeakKeyDictionary[Any, Any] = field(default_factory=weakref.WeakKeyDictionary)
    """A trainer of TRL's → how far it has come."""
    trainer_count: int = 0
    """Number of TRL's trainers that have generated in this process."""
    engine_requests: weakref.WeakKeyDictionary[Any, Any] = field(
        default_factory=weakref.WeakKeyDictionary, metadata=_PER_PROCESS
    )
    """An ``OutputProcessor`` of vLLM's → the open requests of trajectories, by vLLM's internal id."""
    verl_trajectories: Any = None
    """What the process of verl's trainer knows of the trajectories that it trains on."""

    def present_runtime(self) -> Runtime | None:
        """Return the runtime, also one that an interrupted start has created since."""
        return self.runtime or (self.start.runtime if self.start is not None else None)

    def take_runtime(self) -> Runtime | None:
        """Forget the runtime, and return it for the caller to close.

        An interrupted start closes the runtime that it is still creating.
        """
        runtime, start = self.runtime, self.start
        self.runtime = self.start = None
        abandoned = start.abandon() if start is not None else None
        return runtime or abandoned

    def __reduce__(self) -> str:
        """Pickle a reference: a function pickled by value uses the state of its receiver."""
        return "process"


process = ProcessState()


def reset(*, after_fork: bool = False) -> None:
    """Reset every field; after a fork, only fields that a child does not take over."""
    initial = ProcessState()
    for variable in fields(ProcessState):
        if "is_wired" in variable.metadata:
            continue
        if not after_fork or "is_per_process" in variable.metadata:
            setattr(process, variable.name, getattr(initial, variable.name))
