"""Trace the requests of vLLM's engine in this process, without an edit to vLLM or to its caller.

The engine may be an ``AsyncLLM``, for example in an actor of verl's, an ``LLM`` or an ``LLMEngine``.
Importing this package imports no module of vLLM; each is patched when it is imported.
"""

from otel_rollout.integrations.vllm.patched_modules import CONFIGURED, seams

seams.install(CONFIGURED, {})
