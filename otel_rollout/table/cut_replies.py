"""Say in SQL whether a reply was cut because it reached a limit of tokens."""

from __future__ import annotations

from typing import Final

from otel_rollout.otlp.model_calls import CUT_BY_LENGTH

IS_CUT: Final = " OR ".join(
    f"concat(', ', lower(finish_reason), ', ') LIKE '%, {reason}, %'" for reason in sorted(CUT_BY_LENGTH)
)
"""Condition that a row of ``spans`` or ``turns`` is a reply that was cut; null without a finish reason."""
