"""Draining the other machines of a Ray cluster, through Ray, before it goes."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
from collections.abc import Mapping
from typing import Any

from otel_rollout.deliver.report import Report, StepCount, StepKey

_logger = logging.getLogger("otel_rollout")
_GRACE = 5.0
"""Seconds a node may take beyond the timeout to answer at all."""


def drain_others(known: Mapping[str, Report], timeout: float) -> dict[str, Report]:
    """Have every other node of the cluster deliver what it has recorded.

    Args:
        known: accounts taken before, by place; those of nodes that are gone by now are kept.
        timeout: seconds to wait, for all nodes together.

    Returns:
        An account per place in the spool that differs from this machine's.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return dict(known)
    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not others:
        return dict(known)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(_drain_here)
    asked = {
        task.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            timeout
        ): node
        for node in others
    }
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=timeout + _GRACE)
    for reference in silent:
        _logger.warning(
            "otel-rollout: node %s did not answer; what it recorded stays there", asked[reference]
        )
    return {**known, **_accounts(ray, answered, asked)}


def _accounts(ray: Any, answered: list[Any], asked: Mapping[Any, str]) -> dict[str, Report]:
    accounts: dict[str, Report] = {}
    own_place = _own_place()
    for reference in answered:
        try:
            account, steps = ray.get(reference)
        except Exception as error:  # noqa: BLE001 - a node without our package, or dying right now
            _logger.warning("otel-rollout: node %s could not be drained: %s", asked[reference], error)
            continue
        # Several Ray nodes on one machine share its spool: they are this machine, or one another.
        if account["place"] and account["place"] != own_place:
            accounts[account["place"]] = Report(**account, count_steps=functools.partial(dict, steps))
    return accounts


def _own_place() -> str:
    from otel_rollout import runtime

    return str(runtime.node_directory(runtime.decide()))


def _drain_here(timeout: float) -> tuple[dict[str, Any], dict[StepKey, StepCount]]:
    """Runs on the other node: drain it, and give its account in parts that can be pickled."""
    from otel_rollout import runtime
    from otel_rollout.deliver import drain

    configured = runtime.decide()
    report = drain.drain(runtime.node_directory(configured), configured, timeout)
    parts = {
        field.name: getattr(report, field.name)
        for field in dataclasses.fields(report)
        if field.name != "count_steps"
    }
    return parts, dict(report.by_step)
