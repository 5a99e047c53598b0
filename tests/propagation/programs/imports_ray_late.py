"""Call instrument() before Ray is imported, and print what is patched, as JSON."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any

import otel_rollout


def is_patched(function: Any) -> bool:
    """Return whether a function is a wrapper of this package's."""
    assert isinstance(function, FunctionType)
    return str(function.__globals__["__name__"]).startswith("otel_rollout.")


otel_rollout.instrument()
found = {
    "ray imported by instrument": "ray" in sys.modules,
    "submit patched": is_patched(ThreadPoolExecutor.submit),
}
import ray  # noqa: E402 - after instrument()
from ray.remote_function import RemoteFunction  # noqa: E402

found["init patched"] = is_patched(ray.init)
found["remote patched"] = is_patched(RemoteFunction._remote)
otel_rollout.uninstrument()

found["init patched after uninstrument"] = is_patched(ray.init)
print(json.dumps(found))
