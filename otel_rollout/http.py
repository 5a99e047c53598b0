"""Carry trajectories in HTTP headers, to inference servers, tools and sandboxes.

After :func:`otel_rollout.instrument`, requests of the usual clients carry the headers by themselves to the
hosts of ``OTEL_ROLLOUT_TRACEPARENT_HOSTS``; these functions are for other clients, hosts and servers. Every
server gets the W3C headers. Only the hosts that ``OTEL_ROLLOUT_IDENTITY_HOSTS`` names get the trajectory's
identity.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.given import items, reading, text_given
from otel_rollout.record.propagation import carrier, http_clients

_HEADERS: Final = ("traceparent", "tracestate", carrier.IDENTITY_KEY)


def inject_headers(headers: MutableMapping[str, str], url: str) -> None:
    """Add the current trajectory to a request's headers. Never raises.

    Without a current span the headers stay unchanged::

        headers = {"Content-Type": "application/json"}
        inject_headers(headers, url)
        requests.post(url, json=body, headers=headers)

    Args:
        headers: headers of the request; changed in place.
        url: URL of the request. Its host decides whether the identity (step, sample, …) is added.
    """
    carried = carrier.inject() if _identity_allowed(url) else carrier.inject_span()
    if carried is not None:
        with internal_errors("adding the trajectory to HTTP headers"), reading("headers="):
            headers.update(carried)


def extract_headers(headers: Mapping[str, str]) -> Context:
    """Return the context of a received request; it may be empty. Never raises.

    Attach the context while the request is served::

        token = opentelemetry.context.attach(extract_headers(request.headers))

    Args:
        headers: headers of the request; the case of their names does not matter.
    """
    carried: dict[str, str] = {}
    with internal_errors("reading the trajectory from HTTP headers"), reading("headers="):
        for name, value in items(headers):
            if name.lower() in _HEADERS:
                with reading(f"the header {name.lower()!r}"):
                    carried[name.lower()] = text_given(value)
    return carrier.extract(carried)


def _identity_allowed(url: str) -> bool:
    with reading("url=", "inject_headers() adds no identity"):
        return http_clients.identity_allowed(urlsplit(url).hostname or "")
    return False
