"""List vLLM's modules that are patched, and the modules that patch them."""

from __future__ import annotations

from typing import Final

from otel_rollout.integrations.kit.seams import Seams

seams: Final = Seams("vllm", "otel_rollout.integrations.vllm")

CONFIGURED: Final = {
    "vllm.v1.engine.output_processor": (".requests",),
    "vllm.v1.engine.async_llm": (".trace_headers", ".construction", ".endpoint_variable", ".output_task"),
    "vllm.v1.engine.llm_engine": (".trace_headers", ".construction", ".endpoint_variable", ".failed_steps"),
}
"""Patches of a process whose environment configures tracing. Any other process is left alone."""
