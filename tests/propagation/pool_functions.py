"""Functions that tests run in pools of processes."""

import os

from opentelemetry import trace

from otel_rollout import rollout_trace_op, score


class Refused(Exception):
    """Raised by work that has to fail."""


@rollout_trace_op(name="grade")
def grade(number: int, other: int = 0) -> int:
    score("reward", number)
    return number + other


def plain(number: int) -> tuple[int, bool]:
    return os.getpid(), trace.get_current_span().get_span_context().is_valid


def request(url: str) -> int:
    import urllib3

    with urllib3.PoolManager() as manager:
        return manager.request("GET", url).status


def refuse(number: int) -> None:
    raise Refused(f"not {number}")
