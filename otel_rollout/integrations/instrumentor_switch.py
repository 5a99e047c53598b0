"""Switch on the instrumentors that the user has chosen, and keep them from harming the program."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from types import ModuleType
from typing import Any, Final

from opentelemetry import trace

from otel_rollout.base.errors import internal_errors, logger, pass_on, warn_once
from otel_rollout.base.patching import when_imported
from otel_rollout.integrations.instrumentors import Instrumentor, choose, installed, normalized
from otel_rollout.integrations.state import state
from otel_rollout.record.recording import joining
from otel_rollout.settings import Settings

_CONTENT_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Variable with which OpenTelemetry's GenAI instrumentors record messages; without it they do not."""
_CONVENTIONS_VARIABLE: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_LATEST: Final = "gen_ai_latest_experimental"
"""Value of ``_CONVENTIONS_VARIABLE`` with which messages are span attributes; else they are log events."""
_ARGUMENTS: Final = {"openinference-instrumentation-openai-agents": {"exclusive_processor": False}}
"""Distribution → arguments of its ``instrument()``. These keep the application's own processors."""
_BESIDE_CONTEXT: Final = frozenset({"langchain"})
"""Instrumentors whose spans of model calls are not current during the call. So the client's span of the
call is no child of them, and its tokens count twice.
"""
_CLIENTS: Final = frozenset({"anthropic", "bedrock", "cohere", "google-genai", "groq", "mistralai", "openai"})
"""Instrumentors of the clients with which frameworks call models."""


@internal_errors("switching on instrumentors")
def switch_on(configured: Settings) -> None:
    """Switch on the chosen instrumentors, each as soon as its library is imported.

    A second call does nothing. One line names each instrumentor that cannot be switched on. The others work.
    """
    choice = choose(configured.instrument, installed())
    for sentence in choice.problems:
        warn_once(f"OTEL_ROLLOUT_INSTRUMENT: {sentence.removesuffix('.')}")
    for each in choice.instrumentors:
        known = state.instrumentors
        if each.entry_point.value not in known and not each.is_on:
            known[each.entry_point.value] = None
            captures_content = configured.capture_content == "full"
            when_imported(module_of(each.library), functools.partial(_switch_on, each, captures_content))


def switch_off() -> None:
    """Switch off the instrumentors that :func:`switch_on` has switched on."""
    switched_on, state.instrumentors = state.instrumentors, {}
    for instrumentor in switched_on.values():
        if instrumentor is not None:
            with internal_errors("switching off an instrumentor"):
                instrumentor.uninstrument()


def _switch_on(chosen: Instrumentor, captures_content: bool, _: ModuleType) -> None:
    """Switch on one instrumentor; its library has just been imported."""
    value = chosen.entry_point.value
    if value not in state.instrumentors:  # switch_off() was called before
        return
    try:
        instrumentor = chosen.entry_point.load()()
        if instrumentor.is_instrumented_by_opentelemetry:  # by the application, in the meantime
            return
        with _content_captured(captures_content):
            instrumentor.instrument(raise_exception_on_conflict=True, **_arguments(chosen))
        if not instrumentor.is_instrumented_by_opentelemetry:
            raise RuntimeError("it refused, without a reason")
    except Exception as error:  # noqa: BLE001 - another project's code; the program goes on without it
        pass_on(error)
        logger.warning(
            "otel-rollout: the instrumentor %s %s cannot be switched on (%s: %s), so its spans are missing.",
            chosen.distribution,
            chosen.version,
            type(error).__name__,
            error,
        )
        return
    state.instrumentors[value] = instrumentor
    _warn_of_layers()


def _warn_of_layers() -> None:
    """Warn of a framework and a client whose instrumentors record the same model calls side by side."""
    keys = {each.key for each in installed() if each.is_on}
    for framework in keys & _BESIDE_CONTEXT:
        for client in sorted(keys & _CLIENTS):
            warn_once(
                f"the instrumentors {framework} and {client} are both on, so a model call that {framework} "
                f"makes through {client} is recorded by both: name one of them in OTEL_ROLLOUT_INSTRUMENT"
            )


@contextmanager
def _content_captured(captures_content: bool) -> Iterator[None]:
    """Let an instrumentor that is switched on inside the block record messages.

    By the latest conventions, instrumentors read ``_CONTENT_VARIABLE`` at each call, so the variable stays
    set. Otherwise the variable is removed after the block, because the application may switch on other
    instrumentors that serve another backend.
    """
    if not captures_content or _CONTENT_VARIABLE in os.environ:
        yield
        return
    genai = sys.modules.get("opentelemetry.util.genai.utils")
    is_latest = _LATEST in os.environ.get(_CONVENTIONS_VARIABLE, "")
    if genai is not None and (is_latest or genai.is_experimental_mode()):
        os.environ[_CONTENT_VARIABLE] = "SPAN_ONLY"
        yield
        return
    os.environ[_CONTENT_VARIABLE] = "true"
    try:
        yield
    finally:
        os.environ.pop(_CONTENT_VARIABLE, None)


def _arguments(chosen: Instrumentor) -> dict[str, Any]:
    """Return an instrumentor's arguments, with a provider if its spans need one to join trajectories."""
    own = _ARGUMENTS.get(chosen.distribution, {})
    provider = trace.get_tracer_provider()
    sdk = sys.modules.get("opentelemetry.sdk.trace")
    is_sdk = sdk is not None and isinstance(provider, sdk.TracerProvider)
    if is_sdk or (isinstance(provider, trace.ProxyTracerProvider) and not joining.problem()):
        return own
    return {**own, "tracer_provider": joining.JoinedTracerProvider()}


def module_of(library: str) -> str:
    """Return the module that a library's users import: ``agents`` of ``openai-agents``."""
    with internal_errors("reading a distribution's files"):
        files = metadata.distribution(library).read_text("RECORD") or ""
        packages = [
            path.removesuffix("/__init__.py") for path in re.findall(r"(?m)^[^,]*/__init__\.py", files)
        ]
        shallow = [path for path in packages if path.isidentifier()]
        nested = sorted(packages, key=lambda path: path.count("/"))  # of a namespace package: google/genai
        named = normalized(library).replace("-", "_")
        if packages:
            found = named if named in shallow else (shallow or nested)[0]
            return found.replace("/", ".")
    return normalized(library).replace("-", "_")
