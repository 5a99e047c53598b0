"""An environment of verifiers: sums, whose agent is a program that speaks plain HTTP."""

from sums_v1.harness import SumsHarness
from sums_v1.taskset import SumsTaskset

__all__ = ["SumsHarness", "SumsTaskset"]
