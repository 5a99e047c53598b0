"""Context in HTTP headers, for calls to inference servers, tools and sandboxes.

Other people's servers get the W3C headers and nothing else; the trajectory's identity goes only to hosts
that ``OTEL_ROLLOUT_IDENTITY_HOSTS`` names.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, MutableMapping
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context

from otel_rollout.base.errors import fault
from otel_rollout.propagation import carrier
from otel_rollout.runs import membership

_HEADERS: Final = ("traceparent", "tracestate", carrier.IDENTITY_KEY)


def inject_headers(headers: MutableMapping[str, str], url: str) -> None:
    """Add the current trajectory to the headers of a request, so that the server's spans join it.

    Without a current span nothing is added. Never raises::

        headers = {"Content-Type": "application/json"}
        inject_headers(headers, url)
        requests.post(url, json=body, headers=headers)

    Args:
        headers: what is sent; changed in place.
        url: where to. The identity (step, sample, …) goes along only if its host is allowed.
    """
    found = carrier.inject() if _identity_allowed(url) else carrier.inject_span()
    if found is None:
        return
    try:
        headers.update(found)
    except Exception as error:  # noqa: BLE001 - any mapping may be handed in
        fault("adding the trajectory to HTTP headers", error)


def extract_headers(headers: Mapping[str, str]) -> Context:
    """The context of a request that was received; an empty one if it has none. Never raises.

    Attach it while the request is served::

        token = opentelemetry.context.attach(extract_headers(request.headers))
    """
    found: dict[str, str] = {}
    try:
        for name, value in headers.items():
            if name.lower() in _HEADERS:
                found[name.lower()] = value
    except Exception as error:  # noqa: BLE001 - any mapping may be handed in
        fault("reading the trajectory from HTTP headers", error)
    return carrier.extract(found)


def _identity_allowed(url: str) -> bool:
    allowed = membership.decide().identity_hosts
    if not allowed:
        return False
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # not a URL; the request is about to say so itself
        return False
    return any(fnmatch.fnmatchcase(host, entry.strip().lower()) for entry in allowed.split(","))
