"""Carry trajectories in HTTP headers, to inference servers, tools and sandboxes.

Every server is sent the W3C headers. The trajectory's identity is sent only to the hosts that
``OTEL_ROLLOUT_IDENTITY_HOSTS`` names.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, MutableMapping
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context

from otel_rollout import runtime
from otel_rollout.base.errors import fault
from otel_rollout.propagation import carrier

_HEADERS: Final = ("traceparent", "tracestate", carrier.IDENTITY_KEY)


def inject_headers(headers: MutableMapping[str, str], url: str) -> None:
    """Add the current trajectory to a request's headers; the server's spans join it.

    Never raises.

    Without a current span nothing is added::

        headers = {"Content-Type": "application/json"}
        inject_headers(headers, url)
        requests.post(url, json=body, headers=headers)

    Args:
        headers: headers of the request; changed in place.
        url: URL of the request. Its host decides whether the identity (step, sample, …) is added.
    """
    carried = carrier.inject() if _identity_allowed(url) else carrier.inject_span()
    if carried is None:
        return
    try:
        headers.update(carried)
    except Exception as error:  # noqa: BLE001 - the mapping is the user's
        fault("adding the trajectory to HTTP headers", error)


def extract_headers(headers: Mapping[str, str]) -> Context:
    """Return the context of a received request; an empty one if it has none.

    Never raises.

    Attach the context while the request is served::

        token = opentelemetry.context.attach(extract_headers(request.headers))
    """
    carried: dict[str, str] = {}
    try:
        for name, value in headers.items():
            if name.lower() in _HEADERS:
                carried[name.lower()] = value
    except Exception as error:  # noqa: BLE001 - the mapping is the user's
        fault("reading the trajectory from HTTP headers", error)
    return carrier.extract(carried)


def _identity_allowed(url: str) -> bool:
    allowed = runtime.decide().identity_hosts
    if not allowed:
        return False
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # not a URL; the request is about to fail
        return False
    return any(fnmatch.fnmatchcase(host, entry.strip().lower()) for entry in allowed.split(","))
