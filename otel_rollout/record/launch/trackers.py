"""Publish the run of a tracker (MLflow, W&B), so that traces are linked to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from otel_rollout.base.errors import logger, pass_on
from otel_rollout.base.given import reading, text_given
from otel_rollout.base.suggest import closest
from otel_rollout.record.launch import launcher
from otel_rollout.record.runs.founding import create_node_directory
from otel_rollout.record.runs.membership import decide, settle
from otel_rollout.spool import layout


def publish_run(runs: Mapping[str, str]) -> None:
    """Publish runs of trackers on this machine and on other Ray nodes. Never raises."""
    try:
        configured = decide()
        known = {}
        for name in runs.keys() & configured.exporters.keys():
            with reading(f"{name}=", "publish_run() did not link a run"):
                known[name] = text_given(runs[name])
        for name in runs.keys() - configured.exporters.keys():
            # No error: one call serves programs with various exporters.
            if meant := closest(name, configured.exporters):
                logger.warning("otel-rollout: publish_run(%s=…) names no exporter; is %s meant?", name, meant)
        if not configured.enabled or not known:
            return
        publish_run_here(known)
        if "ray" in sys.modules:
            from otel_rollout.record.launch import ray_nodes

            ray_nodes.run_on_others(publish_run_here, known)
    except Exception as error:  # noqa: BLE001 - training goes on, and the log says what is not linked
        pass_on(error)
        logger.warning("otel-rollout: the run %s could not be published: %s", dict(runs), error)


def publish_run_here(runs: Mapping[str, str]) -> None:
    """Publish runs of trackers on this machine; the forwarder links traces to them."""
    configured = settle()
    node_dir = create_node_directory(configured)
    layout.publish_trackers(node_dir, runs)
    launcher.ensure_forwarder(node_dir, configured)
