"""Recognize model calls, agent loops, tools and parsers among functions.

The role follows from the function's name and parameters. So functions of users' classes and of other versions
are recognized as well.
"""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Final

from otel_rollout.base import semconv
from otel_rollout.base.patching import Function


class Role(Enum):
    """Role of a function in a trajectory."""

    GENERATE = "generate"
    RUN = "run"
    TOOL = "tool"
    PARSER = "parser"
    OTHER = "other"

    @property
    def span_kind(self) -> str:
        """OpenInference span kind."""
        return _SPAN_KINDS.get(self, semconv.KIND_CHAIN)


_SPAN_KINDS: Final = {
    Role.GENERATE: semconv.KIND_LLM,
    Role.RUN: semconv.KIND_AGENT,
    Role.TOOL: semconv.KIND_TOOL,
}
_ROLES: Final = {
    ("generate", "prompt_ids"): Role.GENERATE,
    ("run", "sampling_params"): Role.RUN,
    ("execute", "instance_id"): Role.TOOL,
    ("extract_tool_calls", "responses_ids"): Role.PARSER,
}
"""Name of a function and of one of its parameters → its role."""


def name_of(func: Function) -> str:
    """Return a function's name; empty for a callable that has none."""
    return str(getattr(func, "__name__", ""))


def role_of(func: Function) -> Role:
    """Return the role of a function."""
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):
        return Role.OTHER
    for (name, parameter), role in _ROLES.items():
        if name_of(func) == name and parameter in parameters:
            return role
    return Role.OTHER
