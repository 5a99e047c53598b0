"""Hold the variables of the run that this process belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_rollout.base.state import PER_PROCESS, WIRED, RoomState, do_nothing, register

if TYPE_CHECKING:
    from otel_rollout.account.report import Report
    from otel_rollout.settings import Settings


@dataclass
class EndedRun:
    """A run that this process founded and ended; ``report`` is None until the wait for delivery is over."""

    settings: Settings
    report: Report | None = None


@dataclass(slots=True)
class State(RoomState):
    """The run of this process; its fields change while ``recording.state.state.lock`` is held."""

    settings: Settings | None = None
    """The settings of this process, once they are decided."""
    is_root: bool = field(default=False, metadata=PER_PROCESS)
    """Whether this process has founded the run."""
    is_over: bool = False
    """Whether shutdown() has ended recording; ``settings`` stay, for status()."""
    is_configured: bool = False
    """Whether configure() was called."""
    has_made_id: bool = field(default=False, metadata=PER_PROCESS)
    """Whether this process made up the run's id, because none was given."""
    is_published_before_ray: bool = False
    """Whether a run was published before Ray was started: workers of a cluster started here know the run."""
    inherited_config: str | None = None
    """Value of ``OTEL_ROLLOUT_CONFIG`` before this process founded a run."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """The arguments of configure() with which this process founded the present run."""
    earlier_runs: list[EndedRun] = field(default_factory=list, metadata=PER_PROCESS)
    """Runs that configure() has ended; their delivery may go on."""
    other_nodes: dict[str, Any] = field(default_factory=dict)
    """Node directory → drained machine of the Ray cluster, an ``OtherNode`` of ``launch``."""
    register_exit: Callable[[], None] = field(default=do_nothing, metadata=WIRED)
    """Registers this process's exit handler; for packages below :mod:`otel_rollout.record.launch`."""
    waiting_for_configure: list[Callable[[], None]] = field(default_factory=list)
    """Functions that are called as soon as configure() switches tracing on; each patches a framework."""
    is_receiver: bool = False
    """Whether the setup hook has instrumented this worker; the hook of an older driver sets no variable."""
    prepared_cluster: Any = None
    """Id of the cluster that this process has started, and whose workers inherit their setup hook."""


state = register(State())
