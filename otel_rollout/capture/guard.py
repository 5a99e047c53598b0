"""What happens when something of ours goes wrong inside user code: it is said once, and nothing else."""

from __future__ import annotations

import logging

_logger = logging.getLogger("otel_rollout")
_reported: set[str] = set()


def fault(where: str, error: BaseException) -> None:
    """Report an internal error, once per place. The caller goes on as if tracing were off."""
    if where not in _reported:
        _reported.add(where)
        _logger.error(
            "otel-rollout: internal error while %s; your code is not affected, some spans may be missing. "
            "Please report this.",
            where,
            exc_info=error,
        )
