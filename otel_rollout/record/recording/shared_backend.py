"""Find out whether an application's provider exports to the same targets as this package.

Then spans of trajectories need not go through the provider: its backend gets them from this package.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from otel_rollout.base.errors import logger, pass_on
from otel_rollout.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_EXPORTING: Final = "opentelemetry.sdk.trace.export"
"""Module of the SDK's processors that export."""
_OTLP: Final = "opentelemetry.exporter.otlp.proto.http."
"""Prefix of the modules of OpenTelemetry's own OTLP exporter."""
_LINKERS: Final = ("otel_rollout.", "weave.trace.otel_op_linker", "weave.evaluation.otel_eval_linker")
"""Modules of processors that export nothing: ours, and those that weave.init adds."""
_PROJECT: Final = "project_id"
"""Header that names the Weave project of the spans in a request."""
_OF_TRANSPORT: Final = frozenset(
    {"accept", "accept-encoding", "connection", "content-encoding", "content-type", "user-agent"}
)
"""Headers that do not tell tenants apart."""


class SharedBackend:
    """Compares the exporters of an application's provider with the targets of this package.

    Args:
        configured: settings of the run.
    """

    def __init__(self, configured: Settings) -> None:
        self._settings = configured
        self._environ = {**os.environ, **configured.target_variables}
        self._default_entity: str | None = None
        self._asking: threading.Thread | None = None
        self._processors: tuple[Any, ...] | None = None
        self._sessions: list[tuple[Any, Any]] = []
        self._answer = False

    def is_all_of(self, provider: TracerProvider) -> bool:
        """Return whether every exporter of a provider sends to a target of this package.

        A processor of unknown kind may send spans anywhere, so the answer is False then. The answer is kept
        until the provider gets another processor, or an exporter gets other headers: a second ``weave.init``
        changes the project in them.
        """
        try:
            processors = provider._active_span_processor._span_processors
            changed = any(session.headers is not headers for session, headers in self._sessions)
            if changed or processors is not self._processors:
                self._processors, self._sessions = processors, []
                self._answer = self._look_at(processors)
            return self._answer
        except Exception as error:  # noqa: BLE001 - names of the SDK that are private, or another's properties
            pass_on(error)
            return False

    def others_of(self, provider: TracerProvider) -> list[str]:
        """Return the types of a provider's exporters that send elsewhere than to a target of this package."""
        try:
            exporting = _exporting(provider._active_span_processor._span_processors)
            others = [getattr(p, "span_exporter", p) for p in exporting if not self._is_ours(p)]
            return [f"{type(other).__module__}.{type(other).__qualname__}" for other in others]
        except Exception as error:  # noqa: BLE001 - as above
            pass_on(error)
            return ["an exporter of unknown kind"]

    def _look_at(self, processors: tuple[Any, ...]) -> bool:
        # Ask all: each exporter's headers may change.
        answers = [self._is_ours(processor) for processor in _exporting(processors)]
        return bool(answers) and all(answers)

    def _is_ours(self, processor: Any) -> bool:
        if not type(processor).__module__.startswith(_EXPORTING):
            return False
        exporter = processor.span_exporter
        if not type(exporter).__module__.startswith(_OTLP):
            return False
        headers: dict[str, str] = {}
        for found in self._headers_of(exporter):
            headers |= {name.lower(): str(value) for name, value in found.items()}
        project_id = headers.get(_PROJECT)
        if project_id is not None:
            return self._is_our_weave(exporter._endpoint, project_id)
        return self._is_our_otlp(exporter._endpoint, headers)

    def _headers_of(self, exporter: Any) -> Iterator[Mapping[str, Any]]:
        """Return the headers of an exporter's requests, as several versions of the exporter hold them."""
        client = getattr(exporter, "_client", exporter)
        yield getattr(client, "_headers", None) or {}
        session = getattr(getattr(client, "_transport", client), "_session", None)
        if session is not None:
            self._sessions.append((session, session.headers))
            yield session.headers

    # --- OTLP -----------------------------------------------------------------------------------------------

    def _is_our_otlp(self, endpoint: str, headers: Mapping[str, str]) -> bool:
        """Return whether this package delivers to the same OTLP endpoint, with the same headers."""
        from opentelemetry.util.re import parse_env_headers

        options = self._settings.exporters.get("otlp")
        if options is None or set(options) - {"endpoint"}:
            return False
        environ = self._environ
        base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318").rstrip("/")
        ours = options.get("endpoint") or environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        variables = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
        given = next((environ[name] for name in variables if environ.get(name)), "")
        theirs = {name: value for name, value in headers.items() if name not in _OF_TRANSPORT}
        return endpoint == str(ours or f"{base}/v1/traces") and theirs == parse_env_headers(
            given, liberal=True
        )

    # --- Weave ----------------------------------------------------------------------------------------------

    def _is_our_weave(self, endpoint: str, project_id: str) -> bool:
        """Return whether this package delivers to the same project of the same Weave server."""
        options = self._settings.exporters.get("weave")
        if options is None or not self._is_our_server(endpoint, options):
            return False
        entity, _, project = project_id.partition("/")
        our_entity, our_project = self._weave_project(options)
        if project != our_project:
            return False
        return entity == (our_entity or self._entity_of_account(options))

    def _is_our_server(self, endpoint: str, options: Mapping[str, Any]) -> bool:
        if options.get("base_url"):
            return False  # its trace server is known only to the exporter
        url = options.get("trace_server_url") or self._environ.get("WF_TRACE_SERVER_URL")
        return url is None or urlsplit(endpoint)[:2] == urlsplit(str(url))[:2]

    def _weave_project(self, options: Mapping[str, Any]) -> tuple[str | None, str]:
        """Return entity (None if the run names none) and project, as the exporter reads them."""
        entity = options.get("entity") or self._environ.get("WANDB_ENTITY") or None
        project = options.get("project") or self._environ.get("WANDB_PROJECT")
        if project and not entity and "/" in project:
            entity, project = str(project).split("/", 1)
        if not project:
            project = re.sub(r"[/\\#?%:]", "-", self._settings.project_name)[:128]
        return entity, str(project)

    def _entity_of_account(self, options: Mapping[str, Any]) -> str | None:
        """Return the account's default entity once W&B has told it to a thread; None before."""
        if self._asking is None and "api_key" not in options:
            self._asking = threading.Thread(target=self._ask, name="otel-rollout-entity", daemon=True)
            self._asking.start()
        return self._default_entity

    def _ask(self) -> None:
        """Ask W&B for the account's default entity, as the application's own ``weave.init`` does."""
        try:
            if not _names_entity():  # a file that the exporter reads, and weave.init does not
                client: Any = sys.modules["weave.trace.weave_init"]
                self._default_entity = client.wandb.Api().default_entity_name()
        except Exception as error:  # noqa: BLE001 - no network, or another weave
            logger.info("otel-rollout: W&B does not tell the account's default entity: %s", error)
        self._processors = None  # look again


def _exporting(processors: tuple[Any, ...]) -> list[Any]:
    return [each for each in processors if not type(each).__module__.startswith(_LINKERS)]


def _names_entity() -> bool:
    """Return whether a settings file of wandb names an entity."""
    directory = os.environ.get("WANDB_CONFIG_DIR") or os.path.expanduser("~/.config/wandb")
    files = [path for path in (Path(directory) / "settings", Path("wandb") / "settings") if path.exists()]
    return any(re.search(r"(?m)^entity\s*[=:]", path.read_text("utf-8", "replace")) for path in files)
