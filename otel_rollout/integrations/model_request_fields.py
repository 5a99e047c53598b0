"""Name the fields of a model request: those of the published APIs, and sampling parameters of engines.

A proxy also reads fields of its own from the request's JSON object: credentials, addresses, retries, ids,
callbacks. An agent that is not trusted may send the fields of this list alone. A field that steers a proxy is
never among them: ``metadata``, for example, which OpenAI defines and LiteLLM reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ALL_APIS: Final = "model stream stream_options temperature tools tool_choice top_p user"
_CHAT: Final = """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
    messages modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed
    service_tier stop store top_logprobs verbosity web_search_options
"""
_COMPLETIONS: Final = "best_of echo prompt suffix"
_EMBEDDINGS: Final = "dimensions encoding_format input"
_RESPONSES: Final = """
    background context_management conversation include instructions max_output_tokens max_tool_calls
    previous_response_id reasoning text truncation
"""
_MESSAGES: Final = """
    cache_control compaction container inference_geo mcp_servers output_config output_format safeguards speed
    stop_sequences system thinking top_k
"""
_ENGINES: Final = """
    add_generation_prompt add_special_tokens allowed_token_ids bad_words chat_template_kwargs
    continue_final_message ignore_eos include_reasoning include_stop_str_in_output length_penalty min_p
    min_tokens prompt_logprobs repetition_penalty return_token_ids return_tokens_as_token_ids
    skip_special_tokens spaces_between_special_tokens stop_token_ids structured_outputs
    thinking_token_budget truncate_prompt_tokens use_beam_search
"""
FIELDS: Final = frozenset(
    f"{_ALL_APIS} {_CHAT} {_COMPLETIONS} {_EMBEDDINGS} {_RESPONSES} {_MESSAGES} {_ENGINES}".split()
)
"""Names of the fields of OpenAI's APIs and of Anthropic's Messages, and of vLLM's sampling parameters."""


def kept(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that ask the model, without those that could steer a proxy."""
    return {name: value for name, value in body.items() if name in FIELDS}
