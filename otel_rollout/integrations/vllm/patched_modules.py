"""List vLLM's modules that are patched, and the modules that patch them."""

from __future__ import annotations

from typing import Final

from otel_rollout.integrations.kit.seams import Seams

seams: Final = Seams("vllm", "otel_rollout.integrations.vllm")

CONFIGURED: Final = {
    "vllm.v1.engine.output_processor": (".requests",),
    "vllm.v1.engine.async_llm": (".engines",),
    "vllm.v1.engine.llm_engine": (".engines",),
}
"""Patches of a process whose environment configures tracing. Any other process is left alone."""
