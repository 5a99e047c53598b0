"""Record a trajectory together with an OpenAI-compatible server's own spans.

    python examples/openai_compatible.py http://127.0.0.1:8000/v1 MODEL

Have the server export its spans to the destination of the trajectories::

    vllm serve MODEL --otlp-traces-endpoint grpc://127.0.0.1:4317
    python -m sglang.launch_server --model-path MODEL --enable-trace --otlp-traces-endpoint 127.0.0.1:4317

The server continues the trace of the ``traceparent`` header: its request span is a child of ``chat``.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import semconv
from otel_rollout.http import inject_headers


@rollout_trace_op(kind=semconv.KIND_LLM)
def chat(base_url: str, model: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Ask the server for the next turn."""
    url = f"{base_url.rstrip('/')}/chat/completions"
    headers = {"Content-Type": "application/json"}
    inject_headers(headers, url)
    body = json.dumps({"model": model, "messages": messages}).encode()
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - the user gives the address
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        answer: dict[str, Any] = json.load(response)
    usage = answer.get("usage", {})
    trace.get_current_span().set_attributes(
        {
            semconv.GEN_AI_OPERATION_NAME: "chat",
            semconv.GEN_AI_REQUEST_MODEL: model,
            semconv.GEN_AI_USAGE_INPUT_TOKENS: usage.get("prompt_tokens", 0),
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: usage.get("completion_tokens", 0),
        }
    )
    return answer


def main(base_url: str, model: str) -> None:
    """Run one trajectory of two turns."""
    messages = [{"role": "user", "content": "What is 6 times 7?"}]
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0) as trajectory:
        for question in ("", "Are you sure?"):
            if question:
                messages.append({"role": "user", "content": question})
            messages.append(chat(base_url, model, list(messages))["choices"][0]["message"])
        trajectory.set_output({"messages": messages})
        print(trajectory.trace_id, flush=True)
    print(otel_rollout.shutdown().summary(), file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
