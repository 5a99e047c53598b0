"""Deliver an operation that holds secrets, and counts of tokens beside them."""

from opentelemetry import trace

import otel_rollout
from otel_rollout import rollout_trace_attr, rollout_trace_op


@rollout_trace_op(kind="TOOL")
def call(url: str, headers: dict[str, str]) -> str:
    span = trace.get_current_span()
    span.set_attribute("gen_ai.usage.input_tokens", 1234)
    span.set_attribute("gen_ai.usage.output_tokens", 56)
    span.set_attribute("token_ids", "[1, 2, 3]")
    span.set_attribute("tool.api_key", "a value without a pattern")
    span.add_event("request", {"header": "Bearer planted-in-an-event-0123456789"})
    return "the key is hf_plantedplantedplantedplanted and it works"


def main() -> None:
    """Record, and wait for delivery."""
    with rollout_trace_attr(sample_index=1, step=1, rollout_n=0):
        call("https://api", {"authorization": "Bearer sk-planted-planted-planted-planted"})
    assert not otel_rollout.shutdown(60).undelivered


if __name__ == "__main__":
    main()
