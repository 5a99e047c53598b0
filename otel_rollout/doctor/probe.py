"""What runs on the nodes of a cluster: functions pickled by value, for workers may lack this package.

Each is nested, so that it is pickled by value; hence it may name builtins and what it imports, and nothing
of this module. What it returns consists of builtins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_probe() -> Callable[[dict[str, str], tuple[str, ...], tuple[str, ...]], dict[str, Any]]:
    """The function that looks at a node.

    It takes the driver's variables, the prefixes of those that matter and the names of distributions, and
    returns ``executable``, ``prefix``, ``versions``, ``present`` and ``different`` (names of variables),
    ``problem`` (why otel-rollout cannot be used there, or None) and ``findings``. These it makes with the
    driver's variables, as the workers of an instrumented job have them, and puts the worker's own back.
    """

    def otel_rollout_probe(
        given: dict[str, str], prefixes: tuple[str, ...], distributions: tuple[str, ...]
    ) -> dict[str, Any]:
        import contextlib
        import os
        import platform
        import sys
        from importlib import metadata

        versions = {"Python": platform.python_version()}
        for name in distributions:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        before = dict(os.environ)
        problem = None
        findings: list[dict[str, str]] = []
        try:
            os.environ.update(given)
            from otel_rollout.doctor.checks import on_node

            findings = [finding.as_plain() for finding in on_node(os.environ)]
        except Exception as error:  # noqa: BLE001 - that it cannot be used is what we came to hear
            problem = f"{type(error).__name__}: {error}"
        finally:
            for name in set(os.environ) - set(before):
                del os.environ[name]
            os.environ.update(before)
        return {
            "executable": sys.executable,
            "prefix": sys.prefix,
            "versions": versions,
            "present": sorted(name for name in before if name.startswith(prefixes)),
            "different": sorted(name for name in given if before.get(name, given[name]) != given[name]),
            "problem": problem,
            "findings": findings,
        }

    return otel_rollout_probe


def make_clock() -> Callable[[], float]:
    """The function that reads a node's clock."""

    def otel_rollout_clock() -> float:
        import time

        return time.time()

    return otel_rollout_clock
