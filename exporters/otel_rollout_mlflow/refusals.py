"""Says which trace tags MLflow does not take: it drops them in silence."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from otel_rollout_mlflow.mapping import is_root, refused_tags

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.trace import ReadableSpan

_MAX_NAMES: Final = 1000
"""Names remembered; those beyond are told no more."""
_SHOWN_CHARS: Final = 80
_logger = logging.getLogger(__name__)


class Refusals:
    """Names of tags that were refused; each is told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, spans: Iterable[ReadableSpan]) -> None:
        """Warn of what would be tags of these spans' traces and is none."""
        for span in spans:
            if is_root(span):
                for name, problem in refused_tags(span.attributes or {}).items():
                    self._tell(name, problem)

    def _tell(self, name: str, problem: str) -> None:
        if name in self._told or len(self._told) >= _MAX_NAMES:
            return
        self._told.add(name)
        shown = name if len(name) <= _SHOWN_CHARS else f"{name[:_SHOWN_CHARS]}…"
        _logger.warning(
            "MLflow takes no trace tag %r: %s. Its value is on the root span alone; give it another name.",
            shown,
            problem,
        )
