"""Draining the other machines of a Ray cluster, through Ray, before it goes."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from otel_rollout.account import progress
from otel_rollout.account.report import Report, StepCount
from otel_rollout.exporting import registry
from otel_rollout.launch import drain, launcher, trackers, transfer
from otel_rollout.otlp.scan import StepKey
from otel_rollout.runs.directory import node_directory
from otel_rollout.runs.membership import decide
from otel_rollout.settings import Settings
from otel_rollout.spool import layout

_logger = logging.getLogger("otel_rollout")
_GRACE = 5.0
"""Seconds a node may take beyond the timeout to answer at all."""


@dataclasses.dataclass(frozen=True)
class OtherNode:
    """Another machine of the run, after it was drained.

    Attributes:
        report: its account.
        copied: settings with those of its exporters that deliver on this machine.
        copy: what they deliver from; None when there are none, or it could not be brought here.
    """

    report: Report
    copied: Settings
    copy: Path | None

    def account(self, timeout: float) -> Report:
        """Its account, after waiting for what is delivered from here."""
        if self.copy is None:
            return self.report
        here = drain.drain(self.copy, self.copied, timeout, shows_progress=True)
        if set(here.exporters) == set(self.report.exporters):
            return here
        return dataclasses.replace(
            self.report,
            exporters={**self.report.exporters, **here.exporters},
            count_steps=here.count_steps,
        )


def drain_others(
    known: Mapping[str, OtherNode], configured: Settings, own_place: Path, timeout: float
) -> dict[str, OtherNode]:
    """Have every other node of the cluster deliver what it has recorded.

    Args:
        known: nodes drained before, by place; those that are gone by now are kept.
        configured: settings of the run.
        own_place: this machine's node directory.
        timeout: seconds to wait, for all nodes together.

    Returns:
        The nodes whose place in the spool differs from this machine's.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return dict(known)
    others = _others(ray)
    if not others:
        return dict(known)
    deadline = time.monotonic() + timeout + _GRACE
    asked = {_on_node(ray, node, _drain_here).remote(timeout): node for node in others}
    answered, silent = _answers(ray, list(asked), timeout + _GRACE)
    for reference in silent:
        _logger.warning(
            "otel-rollout: node %s did not answer; what it recorded stays there", asked[reference]
        )
    found = dict(known)
    for reference in answered:
        try:
            answer: _Answer = ray.get(reference)
            report = Report(**answer.account, count_steps=functools.partial(dict, answer.steps))
            # Several Ray nodes on one machine share its spool: they are this machine, or one another.
            if report.place not in ("", str(own_place)):
                if answer.trackers and own_place.is_dir():  # in case it was published just now, over there
                    layout.publish_trackers(own_place, answer.trackers)
                copied = _only(configured, answer.travelling)
                copy = (
                    _bring(ray, asked[reference], report.place, copied, deadline)
                    if copied.exporters
                    else None
                )
                found[report.place] = OtherNode(report, copied, copy)
        except Exception as error:  # noqa: BLE001 - a node without our package, or dying right now
            _logger.warning("otel-rollout: node %s could not be drained: %s", asked[reference], error)
    return found


def _answers(ray: Any, asked: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
    """Wait for nodes, and say so when it takes longer than a moment; those that answered and those not."""
    moment = min(progress.DELAY, timeout)
    answered, silent = ray.wait(asked, num_returns=len(asked), timeout=moment)
    if silent:
        progress.write(f"otel-rollout: waiting for {len(silent)} other nodes to deliver their spans\n")
        answered, silent = ray.wait(asked, num_returns=len(asked), timeout=timeout - moment)
    return answered, silent


def publish_run(runs: Mapping[str, str]) -> None:
    """Have every other node of the cluster know the trackers' runs. Does not wait for it."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        for node in _others(ray):
            _on_node(ray, node, _publish_here).remote(dict(runs))


def _others(ray: Any) -> list[str]:
    here = ray.get_runtime_context().get_node_id()
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]


def _on_node(ray: Any, node: str, function: Callable[..., Any]) -> Any:
    """A task that runs on that node, whatever else does."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy)


def _only(configured: Settings, names: Collection[str]) -> Settings:
    chosen = {name: options for name, options in configured.exporters.items() if name in names}
    return dataclasses.replace(configured, exporters=chosen)


def _bring(ray: Any, node: str, place: str, copied: Settings, deadline: float) -> Path | None:
    """Copy a node's directory to this machine and have it delivered; None when it did not work."""
    copy = transfer.copy_directory(copied.spool_dir, copied.run_id, place)
    try:
        layout.create_private(copy, copied.spool_dir)
        while True:
            asked = _on_node(ray, node, _piece_of_here).remote(transfer.held(copy))
            piece = ray.get(asked, timeout=max(0.0, deadline - time.monotonic()))
            transfer.add_piece(copy, piece)
            if not piece.segments:
                break
        launcher.ensure_forwarder(copy, copied)
    except Exception as error:  # noqa: BLE001 - what did not travel is still there
        _logger.warning(
            "otel-rollout: what node %s recorded could not be brought here (%s: %s); it stays there, in %s",
            node, type(error).__name__, error, place,
        )  # fmt: skip
        return None
    return copy


def _publish_here(runs: dict[str, str]) -> None:
    """Runs on the other node."""
    trackers.publish_run_here(runs)


class _Answer(NamedTuple):
    """What another node says after it was drained, in parts that can be pickled.

    Attributes:
        account: fields of its report, but for ``count_steps``.
        steps: its account per step.
        travelling: its exporters that deliver on the run's home machine only.
        trackers: the trackers' runs it knows of.
    """

    account: dict[str, Any]
    steps: dict[StepKey, StepCount]
    travelling: list[str]
    trackers: dict[str, str]


def _drain_here(timeout: float) -> _Answer:
    """Runs on the other node: drain it."""
    configured = decide()
    node_dir = node_directory(configured)
    report = drain.drain(node_dir, configured, timeout)
    account = {
        field.name: getattr(report, field.name)
        for field in dataclasses.fields(report)
        if field.name != "count_steps"
    }
    travelling = registry.for_another_machine(configured)
    return _Answer(account, dict(report.by_step), travelling, layout.read_trackers(node_dir))


def _piece_of_here(held: dict[str, int]) -> transfer.Piece:
    """Runs on the other node: what the copy of its directory lacks."""
    return transfer.next_piece(node_directory(decide()), held)
