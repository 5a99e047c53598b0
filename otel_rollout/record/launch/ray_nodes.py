"""Drain the other machines of a Ray cluster, before the driver leaves it."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_rollout import settings_reader
from otel_rollout.account import progress
from otel_rollout.account.report import Report, StepCount
from otel_rollout.base.errors import logger
from otel_rollout.base.waits import waits
from otel_rollout.exporting import entry_points
from otel_rollout.otlp.scan import StepKey
from otel_rollout.record.launch import drain, launcher, transfer
from otel_rollout.record.runs.founding import node_directory
from otel_rollout.record.runs.membership import decide
from otel_rollout.settings import Settings
from otel_rollout.spool import layout


@dataclasses.dataclass(frozen=True)
class OtherNode:
    """Another machine of the run that was drained.

    Attributes:
        report: the machine's delivery report.
        copied: settings of the run, with only the exporters that must deliver from this machine.
        copy: the local copy of the other machine's node directory; None if no exporter needs the copy, or if
            copying failed.
    """

    report: Report
    copied: Settings
    copy: Path | None

    def final_report(self, timeout: float) -> Report:
        """Wait for delivery from the copy, and return the machine's report."""
        if self.copy is None:
            return self.report
        here = drain.drain(self.copy, self.copied, timeout, shows_progress=True)
        if set(here.exporters) == set(self.report.exporters):
            return here
        return dataclasses.replace(
            self.report, exporters={**self.report.exporters, **here.exporters}, count_steps=here.count_steps
        )


def drain_others(
    known: Mapping[str, OtherNode], configured: Settings, own_directory: Path, timeout: float
) -> dict[str, OtherNode]:
    """Have every other node of the cluster deliver the spans it has recorded.

    Args:
        known: node directory → machine drained before; a machine that has left the cluster stays.
        configured: settings of the run.
        own_directory: this machine's node directory.
        timeout: seconds to wait for all nodes together.

    Returns:
        Node directory → machine, for node directories other than this machine's.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return dict(known)
    others = _others(ray)
    if not others:
        return dict(known)
    deadline = time.monotonic() + timeout + waits().node_answer
    asked = {on_node(ray, node, _drain_here).remote(timeout): node for node in others}
    answered, silent = _answers(ray, list(asked), timeout + waits().node_answer)
    for reference in silent:
        logger.warning(
            "otel-rollout: node %s did not answer in time; its spans stay there, in its spool directory: run "
            "`otel-rollout forward` on it",
            asked[reference],
        )
    found = dict(known)
    for reference in answered:
        try:
            answer: _Answer = ray.get(reference)
            report = _report_in(answer)
            # Several Ray nodes on one machine share its node directory.
            if report.directory not in ("", str(own_directory)):
                if answer.trackers and own_directory.is_dir():  # the run may have been published there only
                    layout.publish_trackers(own_directory, answer.trackers)
                copied = _with_exporters(configured, answer.home_exporters)
                copy = (
                    _copy(ray, asked[reference], report.directory, copied, deadline)
                    if copied.exporters
                    else None
                )
                found[report.directory] = OtherNode(report, copied, copy)
        except Exception as error:  # noqa: BLE001 - the node may lack this package, or be dying
            logger.warning("otel-rollout: node %s could not be drained: %s", asked[reference], error)
    return found


def _answers(ray: Any, asked: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
    """Wait for nodes; return the tasks of nodes that answered, and the others."""
    first_wait = min(waits().progress, timeout)
    answered, silent = ray.wait(asked, num_returns=len(asked), timeout=first_wait)
    if silent:
        progress.write(f"otel-rollout: waiting for {len(silent)} other nodes to deliver their spans\n")
        answered, silent = ray.wait(asked, num_returns=len(asked), timeout=timeout - first_wait)
    return answered, silent


def run_on_others(function: Callable[..., Any], *args: Any) -> None:
    """Run a module's function on every other node of the cluster, without waiting."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        for node in _others(ray):
            on_node(ray, node, function).remote(*args)


def _others(ray: Any) -> list[str]:
    """Return the ids of the cluster's other nodes that are alive."""
    here = ray.get_runtime_context().get_node_id()
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]


def on_node(ray: Any, node: str, function: Callable[..., Any], **options: Any) -> Any:
    """Return a remote task or actor for ``node``; it runs on no other node, and needs no free CPU."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy, **options)


def _with_exporters(configured: Settings, names: Collection[str]) -> Settings:
    chosen = {name: options for name, options in configured.exporters.items() if name in names}
    return dataclasses.replace(configured, exporters=chosen)


def _copy(ray: Any, node: str, node_dir: str, copied: Settings, deadline: float) -> Path | None:
    """Copy a node's directory here and start its delivery; None if that failed."""
    copy = transfer.copy_directory(copied.spool_dir, copied.run_id, node_dir)
    try:
        layout.create_private(copy, copied.spool_dir)
        while True:
            asked = on_node(ray, node, _piece_of_here).remote(transfer.copied_bytes(copy))
            piece = ray.get(asked, timeout=max(0.0, deadline - time.monotonic()))
            transfer.add_piece(copy, piece)
            if not piece.segments:
                break
        launcher.ensure_forwarder(copy, copied)
    except Exception as error:  # noqa: BLE001 - spans that were not copied stay on the node
        logger.warning(
            "otel-rollout: spans of node %s could not be copied here (%s: %s); they stay there, in %s",
            node, type(error).__name__, error, node_dir,
        )  # fmt: skip
        return None
    return copy


class _Answer(NamedTuple):
    """The answer of another node that was drained, in parts that can be pickled.

    The node may have another version of this package than the driver. So these fields never change.

    Attributes:
        report: fields of the node's report except ``count_steps`` and those that have their default.
        steps: the node's counts per step.
        home_exporters: exporters that deliver on the run's home machine only.
        trackers: the trackers' runs that are published on the node.
    """

    report: dict[str, Any]
    steps: dict[StepKey, StepCount]
    home_exporters: list[str]
    trackers: dict[str, str]


def _drain_here(timeout: float) -> _Answer:
    """Drain the node that executes this Ray task."""
    configured = decide()
    node_dir = node_directory(configured)
    report = drain.drain(node_dir, configured, timeout)
    home_exporters = entry_points.for_another_machine(configured)
    return _Answer(
        _fields_to_send(report), dict(report.by_step), home_exporters, layout.read_trackers(node_dir)
    )


_LATER: Final = frozenset({"trajectories", "operations_outside"})
"""Fields of a report that drivers of the first versions refuse. A driver that publishes its version ignores
fields that it does not know."""


def _fields_to_send(report: Report) -> dict[str, Any]:
    """Return a report's fields without those that have their default, which an older driver may not know."""
    refused = frozenset() if settings_reader.version_of_founder(os.environ) else _LATER
    skipped = {"count_steps", *refused}
    return {
        field.name: getattr(report, field.name)
        for field in dataclasses.fields(report)
        if field.name not in skipped and getattr(report, field.name) != _default(field)
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _report_in(answer: _Answer) -> Report:
    """Return the report of another node, without fields of a newer version."""
    known = {field.name for field in dataclasses.fields(Report)}
    fields = {name: value for name, value in answer.report.items() if name in known}
    return Report(**fields, count_steps=functools.partial(dict, answer.steps))


def _piece_of_here(copied: dict[str, int]) -> transfer.CopiedPiece:
    """Return the next piece of the directory of the node that executes this task."""
    return transfer.next_piece(node_directory(decide()), copied)
