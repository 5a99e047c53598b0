"""What happens when something of ours goes wrong inside user code: it is said once, and nothing else."""

from __future__ import annotations

import logging
import signal
from types import CodeType

_logger = logging.getLogger("otel_rollout")
_reported: set[str] = set()


def fault(where: str, error: Exception) -> None:
    """Report an internal error, once per place. The caller goes on as if tracing were off.

    Raises:
        Exception: ``error`` itself, if it is not ours: raised by a signal handler of the application (a
            time limit, say) that happened to run while we did.
    """
    try:
        ours = not _is_raised_by_signal_handler(error)
        if ours and where not in _reported:
            _reported.add(where)
            _logger.error(
                "otel-rollout: internal error while %s; your code is not affected, some spans may be "
                "missing. Please report this.",
                where,
                exc_info=error,
            )
    except Exception:  # noqa: BLE001 - no memory, no stack, a logging handler that fails
        return
    if not ours:
        raise error


def warn(what: str) -> None:
    """Tell the user of a mistake that is harmless, once. Never raises."""
    try:
        if what not in _reported:
            _reported.add(what)
            _logger.warning("otel-rollout: %s.", what)
    except Exception:  # noqa: BLE001 - a logging handler that fails
        return


def _is_raised_by_signal_handler(error: Exception) -> bool:
    """Whether a function that is installed as a signal handler is where ``error`` comes from."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    code = getattr(handler, "__code__", None)
    if code is None and callable(handler):
        code = getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
