"""What happens when something of ours goes wrong inside user code: it is said once, and nothing else."""

from __future__ import annotations

import logging

from otel_rollout.base.interrupts import interrupt_in

_logger = logging.getLogger("otel_rollout")
_reported: set[str] = set()


def fault(where: str, error: Exception) -> None:
    """Report an internal error, once per place. The caller goes on as if tracing were off.

    Raises:
        BaseException: ``error`` itself, if it is not ours: raised by a signal handler of the application (a
            time limit, say) that happened to run while we did.
    """
    interrupt = interrupt_in(error)
    if interrupt is not None:
        raise interrupt
    try:
        if where not in _reported:
            _reported.add(where)
            _logger.error(
                "otel-rollout: internal error while %s; your code is not affected, some spans may be "
                "missing. Please report this.",
                where,
                exc_info=error,
            )
    except Exception:  # noqa: BLE001 - no memory, no stack, a logging handler that fails
        return


def warn(what: str, once_for: str | None = None) -> None:
    """Tell the user of a mistake that is harmless, once for a text or ``once_for``. Never raises."""
    try:
        key = what if once_for is None else once_for
        if key not in _reported:
            _reported.add(key)
            _logger.warning("otel-rollout: %s.", what)
    except Exception:  # noqa: BLE001 - a logging handler that fails
        return
