"""Decode the resource (a process) and the scope (a library) that recorded a span.

Many spans have equal resources and scopes, so they share the decoded objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from otel_rollout.otlp.json_values import attributes_of, text_of


@dataclass(frozen=True, eq=False, slots=True)
class Resource:
    """The process that recorded a span. Spans of a process share one object."""

    attributes: Mapping[str, Any]
    schema_url: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class SpanScope:
    """The library that recorded a span. Spans of a library share one object."""

    name: str = ""
    version: str = ""
    schema_url: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


def resource_of(of_resource: dict[str, Any]) -> Resource:
    """Decode the resource in an entry of a line's ``resourceSpans``."""
    resource, schema_url = of_resource.get("resource") or {}, of_resource.get("schemaUrl")
    try:
        return _shared_resource(orjson.dumps((resource, schema_url)))
    except TypeError:  # nested more deeply than orjson writes, though it reads it
        return Resource(attributes_of(resource), text_of(schema_url))


@lru_cache(maxsize=64)  # a process has one resource, and making it takes a third of the time of a span
def _shared_resource(encoded: bytes) -> Resource:
    resource, schema_url = orjson.loads(encoded)
    return Resource(attributes_of(resource), text_of(schema_url))


def scope_of(of_scope: dict[str, Any]) -> SpanScope:
    """Decode the scope in an entry of a line's ``scopeSpans``."""
    scope = of_scope.get("scope") or {}
    return _shared_scope(orjson.dumps((scope, of_scope.get("schemaUrl"))))


@lru_cache(maxsize=64)
def _shared_scope(encoded: bytes) -> SpanScope:
    scope, schema_url = orjson.loads(encoded)
    named = text_of(scope.get("name")), text_of(scope.get("version")), text_of(schema_url)
    return SpanScope(*named, attributes_of(scope))
