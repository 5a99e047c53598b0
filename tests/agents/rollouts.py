"""Run an example as its first lines say, and read what was recorded and delivered."""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.agents.local_server import EXAMPLES
from tests.faults.target import Receiver
from tests.ray_start import run_program
from tests.spool_reader import Recorded, plain_attributes, read_directory

MODEL_CALLS: Final = 4
"""Model calls of a trajectory: two prices, their sum, the answer."""
TOOL_CALLS: Final = 3


@dataclass(frozen=True)
class Library:
    """An agent library.

    Attributes:
        example: the module of its example.
        instrument: the name that switches its spans on.
        spans: spans of one trajectory of the example, with the root and the reward.
    """

    example: str
    instrument: str
    spans: int


LIBRARIES: Final = (
    Library("langgraph_agent", "langchain", 21),
    Library("litellm_agent", "litellm", 9),
    Library("openai_agent", "openai", 9),
    Library("openai_agents_agent", "openai_agents", 10),
    Library("pydantic_ai_agent", "pydantic_ai", 10),
    Library("smolagents_agent", "smolagents", 15),
)


class KeepingReceiver(Receiver):
    """An OTLP receiver that keeps the attributes of received spans."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: dict[str, dict[str, Any]] = {}
        """Span id → attributes."""
        self.repeated: list[str] = []
        self._lock = threading.Lock()

    def take(self, body: bytes, credential: str) -> int:
        """Keep the spans of a request."""
        request = ExportTraceServiceRequest.FromString(body)
        spans = [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
        with self._lock:
            for span in spans:
                if span.span_id.hex() in self.attributes:
                    self.repeated.append(span.name)
                self.attributes[span.span_id.hex()] = plain_attributes(span.attributes)
            return super().take(body, credential)


@dataclass(frozen=True)
class Rollout:
    """What an example printed, recorded and delivered."""

    printed: str
    spans: list[Recorded]
    delivered: Mapping[str, Mapping[str, Any]]
    """Span id → attributes, as an OTLP backend received them."""

    @property
    def traces(self) -> list[list[Recorded]]:
        """The spans of each trace."""
        traces: dict[bytes, list[Recorded]] = defaultdict(list)
        for span in self.spans:
            traces[span.span.trace_id].append(span)
        return list(traces.values())


def roll_out(
    library: Library,
    directory: Path,
    receiver: KeepingReceiver,
    *options: str,
    timeout: float = 400,
    **variables: str,
) -> Rollout:
    """Run an example with the two variables that trace it, and wait for its end."""
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_ROLLOUT_INSTRUMENT": library.instrument,
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
        "OTEL_ROLLOUT_KEEP": "true",
        **variables,
    }
    ran = run_program(
        [sys.executable, str(EXAMPLES / f"{library.example}.py"), *options], env=environment, timeout=timeout
    )
    printed = ran.stdout + ran.stderr
    assert ran.returncode == 0, printed
    return Rollout(printed, read_directory(directory / "spool"), receiver.attributes)


def is_model_call(attributes: Mapping[str, Any]) -> bool:
    """Return whether a span as recorded is a model call, by OpenInference or GenAI."""
    kind, operation = attributes.get("openinference.span.kind"), attributes.get("gen_ai.operation.name")
    return kind == "LLM" or (kind is None and operation == "chat")


def model_calls(trace: list[Recorded]) -> list[Recorded]:
    """Return a trace's model calls, in order of their start."""
    found = [span for span in trace if is_model_call(span.attributes)]
    return sorted(found, key=lambda span: span.span.start_time_unix_nano)


def input_tokens(attributes: Mapping[str, Any]) -> int:
    """Return the prompt's tokens of a span as recorded."""
    names = ("gen_ai.usage.input_tokens", "llm.token_count.prompt")
    return sum(int(attributes[name]) for name in names if name in attributes)


def has_messages(attributes: Mapping[str, Any]) -> bool:
    """Return whether a model call has the question and an answer, in whatever vocabulary."""
    known = " ".join(str(value) for value in attributes.values())
    return "What do " in known and ("price" in known or "cost" in known)
