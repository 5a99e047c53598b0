"""Compare base/patching.py with wrapt: python -m benchmarks.patching."""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import wrapt

from otel_rollout.base.patching import Patches

CALLS = 100_000
ROUNDS = 11
IMPORT = """
import json, sys, time
import asyncio, concurrent.futures, otel_rollout  # what a Ray worker that records has loaded
pages, modules, began = int(open("/proc/self/statm").read().split()[1]), len(sys.modules), time.process_time()
import {module}
took = time.process_time() - began
grown = int(open("/proc/self/statm").read().split()[1]) - pages
print(json.dumps([took * 1e3, grown * 4, len(sys.modules) - modules]))
"""
HOOKS = """
import importlib, json, sys, tempfile, time
sys.path.insert(0, folder := tempfile.mkdtemp())
for number in range(200):
    open(f"{{folder}}/m{{number}}.py", "w").close()
for number in range(200):
    {hook}
began = time.process_time()
for number in range(200):
    importlib.import_module(f"m{{number}}")
print(json.dumps([(time.process_time() - began) / 200 * 1e6]))
"""
OUR_HOOK = (
    "from otel_rollout.base.patching import when_imported; when_imported(f'm{number}', lambda module: None)"
)
WRAPT_HOOK = "import wrapt; wrapt.when_imported(f'm{number}')(lambda module: None)"


class Plain:
    """A method without a patch."""

    def call(self, value: int, **options: int) -> int:
        return value


class Ours(Plain):
    """The method, replaced by Patches."""

    def call(self, value: int, **options: int) -> int:
        return value


class Wrapt(Plain):
    """The method, replaced by wrapt."""

    def call(self, value: int, **options: int) -> int:
        return value


patches = Patches()


def passing_on(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) if patches.active else None

    return call


def passing_on_by_wrapt(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs) if patches.active else None


def nanoseconds(patched: Plain) -> float:
    began = time.process_time_ns()
    for _ in range(CALLS):
        patched.call(1, option=2)
    return (time.process_time_ns() - began) / CALLS


def in_children(program: str) -> list[float]:
    """Return the medians of what a program prints in new processes."""
    outputs = [
        json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
        for _ in range(ROUNDS)
    ]
    return [statistics.median(values) for values in zip(*outputs, strict=True)]


def main() -> None:
    patches.replace(Ours, "call", passing_on)
    wrapt.wrap_function_wrapper(Wrapt, "call", passing_on_by_wrapt)
    classes = (Plain, Ours, Wrapt)
    rounds = [[nanoseconds(class_()) for class_ in classes] for _ in range(ROUNDS)]
    plain, ours, by_wrapt = (statistics.median(values) for values in zip(*rounds, strict=True))
    print(f"added to a call: ours {ours - plain:.0f} ns, wrapt {by_wrapt - plain:.0f} ns")
    for module in ("otel_rollout.base.patching", "wrapt"):
        milliseconds, kibibytes, modules = in_children(IMPORT.format(module=module))
        print(f"import {module}: {milliseconds:.1f} ms CPU, {kibibytes:.0f} KiB, {modules:.0f} modules")
    for name, hook in (("none", "pass"), ("ours", OUR_HOOK), ("wrapt", WRAPT_HOOK)):
        [microseconds] = in_children(HOOKS.format(hook=hook))
        print(f"import of a module, hook: {name}: {microseconds:.0f} µs CPU")


if __name__ == "__main__":
    main()
