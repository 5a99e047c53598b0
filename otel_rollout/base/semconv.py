"""Name the attributes that this project writes or reads, grouped by vocabulary.

Three vocabularies meet on a rollout span:

- **ours** (``rollout.*``): a trajectory's identity. No convention for RL rollouts is in force yet;
  proposals are open-telemetry/semantic-conventions-genai issue 88 and
  alibaba/loongsuite-semantic-conventions-genai issue 27.
- **OpenInference** (https://github.com/Arize-ai/openinference, ``spec/semantic_conventions.md``):
  input, output and kind of an operation. MLflow and Phoenix read these attributes.
- **OpenTelemetry GenAI** (open-telemetry/semantic-conventions-genai, status Development): model and
  tool calls, evaluations.

Two configurations of the Collector repeat some ``rollout.*`` names: ``collector-config/sampling.yaml`` and
``collector-config/to-mlflow.yaml``. Tests compare them with this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SCOPE: Final = "otel_rollout"
"""Name of this package's instrumentation scope, which is on each span that this package starts."""

# --- Trajectory identity (ours). On every span of a trajectory, with one value and type. ------------------
PROJECT_NAME: Final = "rollout.project_name"
"""str. Project of the run: MLflow experiment, Weave project. Also on the resource, for spans outside any
trajectory."""
EXPERIMENT_NAME: Final = "rollout.experiment_name"
"""str. One training run of the project."""
STEP: Final = "rollout.step"
"""int. Training step of the trajectory (verl: ``global_steps``)."""
SAMPLE_INDEX: Final = "rollout.sample_index"
"""int or str. Dataset row of the prompt (verl: ``extra_info.index``)."""
ROLLOUT_N: Final = "rollout.rollout_n"
"""int. Index, from 0, of the trajectory in its group: all trajectories that are sampled for one prompt."""
VALIDATE: Final = "rollout.validate"
"""bool. True for validation, whose step numbers overlap with those of training."""

DEFAULT_NAMES: Final = frozenset({"rollout_trace", "agent_loop"})
"""Default names of root spans. Span names have to be few, because backends compute metrics by span name. In
lists of traces, :func:`name_of_trace` gives each trace a name of its own."""

IDENTITY: Final = (PROJECT_NAME, EXPERIMENT_NAME, STEP, SAMPLE_INDEX, ROLLOUT_N, VALIDATE)

# --- Trajectory facts (ours). On the root span only. -------------------------------------------------------
EXTRA_PREFIX: Final = "rollout."
"""Prefix of further keyword arguments of ``rollout_trace_attr``."""
SCORE_PREFIX: Final = "rollout.score."
"""``rollout.score.<name>``: a score given before the trajectory ended (float, bool or str)."""
SCORE_TIME_PREFIX: Final = "rollout.score_time."
"""``rollout.score_time.<name>``: int. When the score ``<name>`` was given, Unix time in ns. The newest score
counts."""
SCORE_ORIGIN: Final = "rollout.score_origin"
"""str. On an evaluation span whose score is not on the root span. ``ORIGIN_PROCESS``: the score was given
inside the trajectory, in another process than the root's. ``ORIGIN_OUTSIDE``: the score was given by the
trajectory's id, or by a task that outlived the trajectory. ``ORIGIN_IDENTITY``: the score was given by the
trajectory's identity. Its span is the only one of its trace; whoever reads the span finds the trajectory."""
ORIGIN_PROCESS: Final = "process"
ORIGIN_OUTSIDE: Final = "outside"
ORIGIN_IDENTITY: Final = "identity"
SCORE_BATCH: Final = "rollout.score_batch"
"""str (JSON). On a span that records the scores of a whole batch: the columns of ``SCORE_BATCH_DATA``. The
forwarder turns the span into an evaluation span for each score (:mod:`otel_rollout.otlp.score_batch`)."""
SCORE_BATCH_NAMES: Final = "rollout.score_batch.names"
"""list[str]. Names of the batch's scores."""
SCORE_BATCH_TEXTS: Final = "rollout.score_batch.texts"
"""list[str]. Labels, comments and identities of the batch that are text, each once."""
SCORE_BATCH_DATA: Final = "rollout.score_batch.data"
"""bytes. The numbers of the batch, column by column, little-endian."""
TOKENS_PREFIX: Final = "rollout.tokens."
"""``rollout.tokens.<name>``: str (JSON). On an evaluation span: a list of values per token that training
computed."""
MAX_SCORE_NAME_CHARS: Final = 250
"""Maximum characters of a score's name: MLflow's limit for the name of an assessment."""

AGENT_NAME: Final = "rollout.agent_name"
"""str. Agent loop that produced the trajectory (verl: ``agent_name``)."""
GROUP_ID: Final = "rollout.group_id"
"""str. Id of the trajectory's group (verl: ``uid``)."""
GROUP_SIZE: Final = "rollout.group_size"
"""int. Number of trajectories in the group. The group is complete when that many have ended."""
POLICY_VERSION_MIN: Final = "rollout.policy_version_min"
"""int. Version of the weights that made the first tokens (verl: ``min_global_steps``). On model calls too."""
POLICY_VERSION_MAX: Final = "rollout.policy_version_max"
"""int. Version of the weights that made the last tokens (verl: ``max_global_steps``). On model calls too."""
NUM_TURNS: Final = "rollout.num_turns"
"""int. Number of turns of the conversation, including those of user and tools."""
INTERRUPTION: Final = "rollout.generation_interrupted"
"""Event of a model call whose answer was interrupted, for an update of the weights for example; the call may
go on with other weights. Its attributes: ``gen_ai.usage.output_tokens``, the number of tokens so far, and
``rollout.policy_version_max``, the version of the weights that made the last of them."""
NUM_PREEMPTED: Final = "rollout.num_preempted"
"""int. Number of times the engine preempted the request. On model calls."""

# --- Inference engines: names of vLLM's span, and our names of its phases ----------------------------------
ENGINE_REQUEST: Final = "llm_request"
"""Name of the span of one request in the engine, as vLLM names it. Its parent is the model call."""
ENGINE_PHASE: Final = "rollout.engine.phase"
"""str. On a span below the engine's: ``queue``, ``prefill`` or ``decode``, which is the span's name too
(:mod:`otel_rollout.otlp.engine_phases`)."""
ENGINE_UNPLACED: Final = "rollout.engine.unplaced"
"""bool. True on an engine's request that came without a parent, and that is below the root of its trajectory:
the model call that made it is not known."""
LATENCY_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"  # noqa: S105 - no password
"""float. Seconds from the request's arrival in the engine to its first token. On the engine's span, as the
next ones; vLLM's names, not the convention's."""
LATENCY_TOTAL: Final = "gen_ai.latency.e2e"
"""float. Seconds from the request's arrival to its last token."""
LATENCY_QUEUE: Final = "gen_ai.latency.time_in_queue"
"""float. Seconds from the request's arrival in the scheduler's queue until it was first scheduled."""
LATENCY_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
"""float. Seconds from the first scheduling to the first token."""
LATENCY_DECODE: Final = "gen_ai.latency.time_in_model_decode"
"""float. Seconds from the first token to the last one."""
LATENCY_INFERENCE: Final = "gen_ai.latency.time_in_model_inference"
"""float. Seconds of prefill and decode."""
ENGINE_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
"""int. Tokens of the prompt, on the engine's span: the model call counts them by the convention's name."""
ENGINE_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
"""int. Tokens that the engine has made, on its span only."""

# --- Token ids (ours) --------------------------------------------------------------------------------------
TOKENIZER: Final = "rollout.tokenizer"
"""str. Name, in the node directory, of the tokenizer with which the forwarder detokenizes the span's token
ids (``token2text``)."""
TEXT_OF: Final = "rollout.text_of"
"""str. On a recorded root span: id (16 hex digits) of the span whose ``response_text`` the root shows."""
TURN_CONTINUES: Final = "rollout.turn.continues"
"""str. Id (16 hex digits) of an earlier span of the trace. The tokens or messages of this span begin with
those of the earlier span and its answer. The forwarder adds this attribute and the next two."""
TURN_SHARED: Final = "rollout.turn.shared"
"""int. Number of tokens or messages in the prefix that both spans share."""
TURN_LENGTH: Final = "rollout.turn.length"
"""int. Number of tokens or messages in the turn, without its answer. If a span has tokens and messages, the
``TURN_…`` attributes describe the messages."""
BREAK_OF: Final = "rollout.prefix_break.turn"
"""str. Id (16 hex digits) of the turn before, if this span's prompt does not begin with all of its tokens.
The forwarder adds this attribute and the next ones to model calls with token ids."""
BREAK_TOKEN: Final = "rollout.prefix_break.token"  # noqa: S105 - no password
"""int. Index, in that turn's prompt and answer, of the first token that this prompt does not repeat."""
BREAK_REMOVED: Final = "rollout.prefix_break.removed"
"""int. Number of that turn's tokens from the first to the last difference."""
BREAK_ADDED: Final = "rollout.prefix_break.added"
"""int. Number of tokens that this prompt has in their place; absent if it repeats nothing behind them."""
BREAK_KIND: Final = "rollout.prefix_break.kind"
"""str. What has probably happened: ``retokenized``, ``cut``, ``beginning`` or ``edited``."""
BREAK_WAS: Final = "rollout.prefix_break.was"
"""str. Text of the first removed tokens, if it is known; with ``|`` between tokens that were retokenized."""
BREAK_BECAME: Final = "rollout.prefix_break.became"
"""str. Text of the first added tokens, in the form of ``BREAK_WAS``."""
PREFIX_BREAK: Final = (
    *(BREAK_OF, BREAK_TOKEN, BREAK_REMOVED, BREAK_ADDED, BREAK_KIND),
    *(BREAK_WAS, BREAK_BECAME),
)

# --- Generators (ours). On the span of a generator's operation. --------------------------------------------
GENERATOR_ITEMS: Final = "rollout.generator.items"
"""int. Number of items that the generator yielded; the output holds the first items."""
GENERATOR_EXHAUSTED: Final = "rollout.generator.exhausted"
"""bool. False if the consumer stopped early, or the generator failed."""
GENERATOR_RETURNED: Final = "rollout.generator.returned"
"""str (JSON). What the generator returned, if not None."""

# --- Origin of a line (ours). On the resource. -------------------------------------------------------------
SEGMENT_ID: Final = "rollout.segment.id"
"""str. Unique id of the segment file, at the start of each line: the Collector's ``otlp_json_file`` receiver
identifies a file by its first bytes."""
RUN_ID: Final = "rollout.run.id"
"""str. Id of the run to which the process belonged."""

NO_EXTRAS: Final = frozenset(
    {
        *IDENTITY,
        SCORE_ORIGIN,
        TOKENIZER,
        TEXT_OF,
        TURN_CONTINUES,
        TURN_SHARED,
        TURN_LENGTH,
        *PREFIX_BREAK,
        GENERATOR_ITEMS,
        GENERATOR_EXHAUSTED,
        GENERATOR_RETURNED,
        SEGMENT_ID,
        RUN_ID,
    }
)
"""Reserved names, besides those of scores. An extra argument with such a name is recorded below
``EXTRA_RENAMED``."""
EXTRA_RENAMED: Final = "rollout.extra."
"""``rollout.extra.<name>``: a keyword argument of ``rollout_trace_attr`` whose attribute name is reserved."""

# --- OpenInference -----------------------------------------------------------------------------------------
INPUT_VALUE: Final = "input.value"
INPUT_MIME_TYPE: Final = "input.mime_type"
OUTPUT_VALUE: Final = "output.value"
OUTPUT_MIME_TYPE: Final = "output.mime_type"
SPAN_KIND: Final = "openinference.span.kind"
SESSION_ID: Final = "session.id"
JSON_MIME_TYPE: Final = "application/json"
TEXT_MIME_TYPE: Final = "text/plain"
RECORDED_SUFFIX: Final = ".recorded"
"""``input.value.recorded``, ``output.value.recorded`` (ours): on another library's exported span, the value
that the forwarder replaced by the call's messages, or by the tool's arguments or result."""
RECORDED_NAME: Final = "span.name" + RECORDED_SUFFIX
"""On another library's exported span of a tool (ours): the name that the tool's own name replaced."""

KIND_AGENT: Final = "AGENT"
KIND_CHAIN: Final = "CHAIN"
KIND_EVALUATOR: Final = "EVALUATOR"
KIND_LLM: Final = "LLM"
KIND_TOOL: Final = "TOOL"
SPAN_KINDS: Final = frozenset(
    {
        KIND_AGENT,
        KIND_CHAIN,
        KIND_EVALUATOR,
        KIND_LLM,
        KIND_TOOL,
        "EMBEDDING",
        "GUARDRAIL",
        "PROMPT",
        "RERANKER",
        "RETRIEVER",
        "UNKNOWN",
    }
)
"""The values OpenInference defines for ``openinference.span.kind``."""

# --- OpenTelemetry GenAI -----------------------------------------------------------------------------------
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - no password
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_ID: Final = "gen_ai.request.id"
"""Id of the request in the engine; not in the convention, but on the engine's span (vLLM)."""
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
"""Id of a model's reply. vLLM makes it of the request's id in the engine
(:mod:`otel_rollout.otlp.engine_requests`)."""
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_CACHE_CREATION_INPUT_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
GEN_AI_SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
GEN_AI_EVENT_CONTENT: Final = "gen_ai.event.content"
"""str (JSON). Body of a log event (``gen_ai.user.message``, ``gen_ai.choice``) that became a span event."""
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
GEN_AI_EVALUATION_NAME: Final = "gen_ai.evaluation.name"
GEN_AI_EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
GEN_AI_EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
GEN_AI_EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"

# --- OpenTelemetry, general --------------------------------------------------------------------------------
SERVICE_NAME: Final = "service.name"
ERROR_TYPE: Final = "error.type"
"""str. Class of the exception that ended the operation; ``asyncio.exceptions.CancelledError`` for a cancelled
task."""
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
EXCEPTION_ESCAPED: Final = "exception.escaped"


def short_name(name: str) -> str:
    """Return an attribute's name without ``rollout.``.

    It is the name of MLflow's tag and of Weave's attribute.
    """
    return name.removeprefix(EXTRA_PREFIX)


def name_of_trace(name: str, attributes: Mapping[str, Any]) -> str:
    """Return the name of a trajectory in lists of traces: ``step/sample/rollout``.

    Args:
        name: name of the root span; returned unchanged if the application has chosen the name.
        attributes: attributes of the root span.
    """
    parts = [attributes.get(key) for key in (STEP, SAMPLE_INDEX, ROLLOUT_N)]
    while parts and parts[-1] is None:
        parts.pop()
    if name not in DEFAULT_NAMES or attributes.get(SPAN_KIND) != KIND_AGENT or not parts:
        return name
    path = "/".join("-" if part is None else str(part) for part in parts)
    return f"validation/{path}" if attributes.get(VALIDATE) in (True, "True") else path
