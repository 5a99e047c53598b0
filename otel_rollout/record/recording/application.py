"""Join the application's own tracer provider, if it has set one.

The provider's spans inside trajectories are recorded. Spans of trajectories go through the provider, too,
unless all its exporters send to targets of the run, or the setting ``application_provider`` says otherwise.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_rollout.base import setting_parsers
from otel_rollout.base.errors import logger, pass_on
from otel_rollout.record.recording.exception_text import qualified_name
from otel_rollout.record.recording.shared_backend import SharedBackend
from otel_rollout.record.recording.state import state
from otel_rollout.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider

_AGENT: Final = "opentelemetry.instrumentation.auto_instrumentation"
"""Module that `opentelemetry-instrument` imports in the processes that it sets up."""
SDK_FILE: Final = "OTEL_CONFIG_FILE"
"""Variable that names a file with the settings of the SDK, which then ignores its other variables."""

_VARIABLE: Final = "OTEL_ROLLOUT_APPLICATION_PROVIDER"
"""Variable that decides whether spans of trajectories go through the application's provider."""
_DIRECT: Final = "spans of trajectories are recorded directly, past the application's tracer provider"
_SHARED: Final = "spans of trajectories go through the application's tracer provider, to its exporters too"


class Application:
    """The application's use of OpenTelemetry's SDK.

    Args:
        configured: settings of the run.
    """

    def __init__(self, configured: Settings) -> None:
        self._settings = configured
        self._provider: SdkTracerProvider | None = None
        self._tracer: trace.Tracer | None = None
        self._shared = SharedBackend(configured)

    def tracer(self) -> trace.Tracer | None:
        """Return a tracer of the application's provider for our spans; None if they are recorded directly.

        An application may set its provider late, and may change its exporters. So this method is called for
        each span that has no parent of this package.
        """
        if "opentelemetry.sdk.trace" not in sys.modules:
            return None
        try:
            provider = trace.get_tracer_provider()
        except Exception as error:  # noqa: BLE001 - OTEL_PYTHON_TRACER_PROVIDER is wrong; the API logs that
            pass_on(error)
            return None
        if type(provider) is trace.ProxyTracerProvider:  # nobody has set one
            return None
        sdk_provider = sdk_provider_in(provider)
        if sdk_provider is None:
            return None
        if sdk_provider is not self._provider:
            self._join(sdk_provider)
        if self._tracer is None or self._is_apart(provider, sdk_provider):
            return None
        return self._tracer

    def _is_apart(self, provider: trace.TracerProvider, sdk_provider: SdkTracerProvider) -> bool:
        """Return whether our spans do not go through the application's provider."""
        choice = self._settings.application_provider
        if choice != "auto":
            return choice == "apart"
        return provider is not sdk_provider or self._shared.is_all_of(sdk_provider)

    def described(self, provider: trace.TracerProvider) -> str:
        """Describe whether spans of trajectories go through an application's provider, and why."""
        sdk_provider, choice = sdk_provider_in(provider), self._settings.application_provider
        if sdk_provider is None:
            return f"{_DIRECT}: {qualified_name(type(provider))} is no provider of OpenTelemetry's SDK"
        if self._is_exported_by_agent():
            return f"{_DIRECT}: opentelemetry-instrument exports to the same target"
        if choice != "auto":
            return f"{_DIRECT if choice == 'apart' else _SHARED}: {_VARIABLE} is {choice}"
        if provider is not sdk_provider:
            return f"{_DIRECT}: {qualified_name(type(provider))} would send them to a service of its own"
        if self._shared.is_all_of(sdk_provider):
            return f"{_DIRECT}: all exporters of the provider send to targets of this run"
        others = ", ".join(self._shared.others_of(sdk_provider))
        return f"{_SHARED}: {f'it exports by {others}' if others else 'it has no exporter'}"

    def _join(self, provider: SdkTracerProvider) -> None:
        from otel_rollout.record.recording import processor

        delivers_itself = self._is_exported_by_agent()
        with state.lock:
            if provider not in state.joined_providers:  # a processor stays, also in the next run
                provider.add_span_processor(
                    processor.IdentityProcessor() if delivers_itself else processor.SpoolSpanProcessor()
                )
                state.joined_providers.add(provider)
            run_id = self._settings.run_id
            self._tracer = None if delivers_itself else processor.tracer_of(provider, run_id)
            self._provider = provider

    def _is_exported_by_agent(self) -> bool:
        """Return whether the agent exports the application's spans to a target of ours.

        In that case the agent (`opentelemetry-instrument`) delivers the application's spans, and this package
        delivers trajectories. A span that took both ways would arrive twice.
        """
        if _AGENT not in sys.modules or os.environ.get(SDK_FILE):
            return False  # the file may name targets of ours as well: `SharedBackend` looks at the exporters
        by_agent = setting_parsers.names(os.environ.get("OTEL_TRACES_EXPORTER", ""))
        shared = by_agent.keys() & self._settings.exporters
        if shared:
            logger.info(
                "otel-rollout: opentelemetry-instrument exports the application's own spans to %s; "
                "otel-rollout delivers trajectories there",
                ", ".join(sorted(shared)),
            )
        return bool(shared)


def sdk_provider_in(provider: trace.TracerProvider) -> SdkTracerProvider | None:
    """Return the SDK's provider that makes the spans: ``provider``, or the one inside it.

    Logfire sets a provider of its own class, with the SDK's inside, which ``logfire.configure`` may replace.
    """
    sdk: Any = sys.modules.get("opentelemetry.sdk.trace")
    if sdk is None:  # nobody imported the SDK, so no SDK provider can be set
        return None
    if not isinstance(provider, sdk.TracerProvider):
        provider = getattr(provider, "provider", None)  # type: ignore[assignment]
    return provider if isinstance(provider, sdk.TracerProvider) else None
