"""Trace the requests of vLLM's engine in this process, without an edit to vLLM or to its caller.

The engine may be an ``AsyncLLM``, for example in an actor of verl's, an ``LLM`` or an ``LLMEngine``.
Importing this package imports no module of vLLM; each is patched when it is imported.
"""

from __future__ import annotations

from typing import Final

from otel_rollout.integrations.kit.seams import Seams

seams: Final = Seams("vllm", "otel_rollout.integrations.vllm")

CONFIGURED: Final = {
    "vllm.v1.engine.output_processor": (".engines",),
    "vllm.v1.engine.async_llm": (".engines",),
    "vllm.v1.engine.llm_engine": (".engines",),
}
"""Patches of a process whose environment configures tracing. Any other process is left alone."""

seams.install(CONFIGURED, {})
