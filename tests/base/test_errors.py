"""internal_errors(), fault() and warn_once()."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

import pytest

from otel_rollout.base import errors
from otel_rollout.base.errors import fault, internal_errors, warn_once

pytestmark = pytest.mark.internal_errors


def test_exception_in_block_is_logged_once_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    """The message says what was being done; the traceback is with it."""
    for _ in range(3):
        with internal_errors("testing"):
            raise ValueError("inside")
    (record,) = caplog.records
    assert "internal error while testing; your code is not affected" in record.getMessage()
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "inside"


def test_block_without_exception_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The guard is silent where nothing goes wrong."""
    with internal_errors("testing"):
        pass
    assert caplog.records == []


def test_decorated_function_returns_none_after_exception(caplog: pytest.LogCaptureFixture) -> None:
    """The decorator guards each call."""

    @internal_errors("dividing")
    def divide(number: float) -> float:
        return 1 / number

    assert (divide(0), divide(2), divide(0)) == (None, 0.5, None)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exceptions_that_end_programs_go_through(exception: type[BaseException]) -> None:
    """Only an Exception is an internal error."""
    with pytest.raises(exception), internal_errors("testing"):
        raise exception


class TimeUp(Exception):
    """Raised by a signal handler."""


def ring(*_: object) -> None:
    raise TimeUp


@pytest.mark.parametrize("cause", [False, True], ids=["itself", "as the cause of another"])
def test_exception_of_a_signal_handler_goes_through(cause: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A time limit that strikes inside the block reaches the application."""
    before = signal.signal(signal.SIGALRM, ring)

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGALRM)
        except TimeUp as error:
            if cause:
                raise ValueError from error
            raise

    try:
        with pytest.raises(TimeUp), internal_errors("testing"):
            work()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caplog.records == []


@pytest.mark.parametrize(
    "report",
    [lambda: fault("testing", ValueError()), lambda: warn_once("a mistake")],
    ids=["error", "warning"],
)
def test_time_limit_that_strikes_while_a_message_is_logged_goes_through(
    report: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application's exception is not taken for one of a logging handler."""
    before = signal.signal(signal.SIGALRM, ring)

    class Interrupted(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            signal.raise_signal(signal.SIGALRM)

    handler = Interrupted()
    errors.logger.addHandler(handler)
    try:
        with pytest.raises(TimeUp):
            report()
    finally:
        errors.logger.removeHandler(handler)
        signal.signal(signal.SIGALRM, before)


def test_failing_log_handler_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that cannot be logged is lost, and nothing else happens."""
    monkeypatch.setattr(errors, "logger", None)
    fault("testing", ValueError())
    with internal_errors("testing again"):
        raise ValueError
    warn_once("a mistake", logger=None)  # type: ignore[arg-type]


def test_warning_is_logged_once_for_its_subject(caplog: pytest.LogCaptureFixture) -> None:
    """Texts that vary are one warning where they have one subject."""
    for number in range(3):
        warn_once(f"{number} mistakes", once_for="mistakes")
        warn_once("a mistake")
    assert caplog.messages == ["otel-rollout: 0 mistakes.", "otel-rollout: a mistake."]


def test_number_of_messages_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that is different each time fills neither memory nor log."""
    monkeypatch.setattr(errors, "MAX_REPORTED", 3)
    for number in range(10):
        warn_once(f"mistake {number}")
    assert len(caplog.messages) == 3
