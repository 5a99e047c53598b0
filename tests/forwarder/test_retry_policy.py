"""Test the retry policy: pauses after failed exports, and halved batches."""

from __future__ import annotations

import math

import pytest

from otel_rollout.deliver import retry_policy
from otel_rollout.exporting.api import ExportFailure, FailureKind
from tests.waits import set_waits

UNAVAILABLE = ExportFailure(FailureKind.UNAVAILABLE, "503")
REFUSED = ExportFailure(FailureKind.REFUSED, "401", retry_after=5)


@pytest.fixture(autouse=True)
def round_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the waiting times that the policy is made of."""
    set_waits(monkeypatch, retry=1, longest_retry=10, refused_retry=70)


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 10), (10_000, 10)])
def test_pauses_double_up_to_the_longest(attempt, seconds):
    """A pause varies by a quarter, so that nodes do not retry in step."""
    pauses = [retry_policy.pause(attempt) for _ in range(500)]
    assert 0.75 * seconds <= min(pauses) < 0.8 * seconds
    assert 1.2 * seconds < max(pauses) <= 1.25 * seconds


def test_a_failure_says_how_long_its_export_waits():
    """``Retry-After`` takes precedence over doubling; a refusal has its own pause."""
    assert retry_policy.pause_after(ExportFailure(FailureKind.UNAVAILABLE, "429", retry_after=17.0), 0) == 17
    assert retry_policy.pause_after(REFUSED, 5) == 70
    assert 3 <= retry_policy.pause_after(UNAVAILABLE, 2) <= 5


@pytest.mark.parametrize(
    ("requested", "low", "high"),
    [
        (300, 300, 300),
        (1e9, 300, 300),
        (math.inf, 300, 300),
        (0, 0.75, 1.25),
        (-5, 0.75, 1.25),
        (math.nan, 0.75, 1.25),
    ],
)
def test_requested_pause_is_bounded(requested, low, high):
    """Delivery waits at most five minutes.

    A request without a positive number has no effect.
    """
    failure = ExportFailure(FailureKind.UNAVAILABLE, "429", retry_after=requested)
    assert low <= retry_policy.pause_after(failure, 0) <= high


def test_a_batch_is_halved_after_its_whole_attempts():
    """A single line is not halved, and neither is a refused batch."""
    assert [retry_policy.is_halved(UNAVAILABLE, attempts, 2) for attempts in (3, 4, 5)] == [False, True, True]
    assert not retry_policy.is_halved(UNAVAILABLE, 9, 1)
    assert not retry_policy.is_halved(REFUSED, 9, 2)


def test_attempts_are_logged_ever_more_rarely():
    """Of sixteen failures, the 1st, 2nd, 4th, 8th and 16th are logged."""
    assert [number for number in range(1, 17) if retry_policy.is_worth_logging(number)] == [1, 2, 4, 8, 16]
