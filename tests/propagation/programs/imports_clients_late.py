"""Call instrument() before clients are imported; print which are patched, as JSON."""

import importlib
import json
import sys
from typing import Any

import otel_rollout

METHODS = {
    "urllib3": ("HTTPConnectionPool", "urlopen"),
    "httpx2": ("HTTPTransport", "handle_request"),
    "aiohttp": ("ClientRequest", "send"),
}


def is_patched(name: str) -> bool:
    """Return whether a client's method is a wrapper of this package's."""
    class_, method = METHODS[name]
    function: Any = getattr(getattr(importlib.import_module(name), class_), method)
    return str(function.__globals__["__name__"]).startswith("otel_rollout.")


otel_rollout.instrument()
found = {"imported by instrument": [name for name in METHODS if name in sys.modules]}
found["patched"] = [name for name in METHODS if name != "aiohttp" and is_patched(name)]
otel_rollout.uninstrument()
found["patched after uninstrument"] = [name for name in METHODS if is_patched(name)]
print(json.dumps(found))
