"""Construct an engine with which vLLM dies at the first request, and make that request.

    python -m tests.vllm.programs.trap MODEL

``otlp_traces_endpoint`` is set, and log statistics are off, as by default.
"""

from __future__ import annotations

import sys

from vllm import LLM, SamplingParams, TokensPrompt

import otel_rollout
from otel_rollout import rollout_trace_attr
from tests.vllm.tiny_model import OF_ENGINE


def main() -> None:
    """Construct the engine, and generate."""
    llm = LLM(sys.argv[1], otlp_traces_endpoint="http://127.0.0.1:9/v1/traces", **OF_ENGINE)
    print("constructed", flush=True)
    prompt = TokensPrompt(prompt_token_ids=[10, 11, 12])
    try:
        with rollout_trace_attr(step=1, name="trapped"):
            llm.generate([prompt], SamplingParams(max_tokens=4), use_tqdm=False)
    except AssertionError as error:
        print(f"died of {error!r}", flush=True)
    otel_rollout.shutdown()


if __name__ == "__main__":
    main()
