"""Make functions that run on a cluster's nodes, even without this package there.

Each function is nested, so that it is pickled by value. It may use builtins and its own imports, but no name
of this module, and it returns builtins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_probe() -> Callable[[dict[str, str], tuple[str, ...], tuple[str, ...]], dict[str, Any]]:
    """Return the function that examines a node.

    The function takes the driver's variables, the prefixes of tracing variables, and the names of
    distributions. It returns ``executable``, ``prefix``, ``versions``, ``present`` and ``different`` (names
    of variables), ``problem`` (why otel-rollout cannot be used on the node, or None) and ``findings``. The
    checks run with the driver's variables, which workers of an instrumented job have. Afterwards the worker's
    own variables are restored.
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
            from otel_rollout.doctor.checks import check_node

            findings = [finding.as_plain() for finding in check_node(os.environ)]
        except Exception as error:  # noqa: BLE001 - reported as the reason why otel-rollout cannot be used
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


def make_chain_end() -> type:
    """Return the class of an actor that tells in which trace it is called."""

    class OtelRolloutChainEnd:
        def trace_id(self) -> int:
            from opentelemetry import trace

            return int(trace.get_current_span().get_span_context().trace_id)

    return OtelRolloutChainEnd


def make_clock() -> Callable[[], float]:
    """Return the function that reads a node's clock."""

    def otel_rollout_clock() -> float:
        import time

        return time.time()

    return otel_rollout_clock
