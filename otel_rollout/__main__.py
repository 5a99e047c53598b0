"""Run the command ``otel-rollout`` as ``python -m otel_rollout``."""

from __future__ import annotations

from otel_rollout.cli import app

app(prog_name="otel-rollout")
