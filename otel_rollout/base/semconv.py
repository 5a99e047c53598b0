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

``python -m website.attributes`` writes docs/attributes.md from this module. The docstring of an attribute
begins with its type, or with the template of its name, such as ``rollout.score.<name>``, and may end with
``For example …``. The comment above a group says who defines the names, and how stable they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SCOPE: Final = "otel_rollout"
"""Name of this package's instrumentation scope, which is on each span that this package starts."""

# --- Trajectory identity (ours, stable). On every span of a trajectory, with one value and type. -----------
PROJECT_NAME: Final = "rollout.project_name"
"""str. Project of the run: MLflow experiment, Weave project. Also on the resource, for spans outside any
trajectory. For example ``math-agents``."""
EXPERIMENT_NAME: Final = "rollout.experiment_name"
"""str. One training run of the project. For example ``grpo-qwen3-4b``."""
STEP: Final = "rollout.step"
"""int. Training step of the trajectory (verl: ``global_steps``). For example ``12``."""
SAMPLE_INDEX: Final = "rollout.sample_index"
"""int or str. Dataset row of the prompt (verl: ``extra_info.index``). For example ``430``, ``gsm8k-17``."""
ROLLOUT_N: Final = "rollout.rollout_n"
"""int. Index, from 0, of the trajectory in its group: all trajectories that are sampled for one prompt. For
example ``0``."""
VALIDATE: Final = "rollout.validate"
"""bool. True for validation, whose step numbers overlap with those of training. For example ``false``."""

DEFAULT_NAMES: Final = frozenset({"rollout_trace", "agent_loop"})
"""Default names of root spans. Span names have to be few, because backends compute metrics by span name. In
lists of traces, :func:`name_of_trace` gives each trace a name of its own."""

IDENTITY: Final = (PROJECT_NAME, EXPERIMENT_NAME, STEP, SAMPLE_INDEX, ROLLOUT_N, VALIDATE)

# --- Scores and further arguments (ours, stable). On the root span, where nothing else is said. ------------
EXTRA_PREFIX: Final = "rollout."
"""``rollout.<name>``: str, bool, int, float or str (JSON). A further keyword argument of
``rollout_trace_attr``; a list or dict is JSON. For example ``rollout.dataset`` = ``gsm8k``."""
EXTRA_RENAMED: Final = "rollout.extra."
"""``rollout.extra.<name>``: str, bool, int, float or str (JSON). A keyword argument of ``rollout_trace_attr``
whose attribute name is reserved. For example ``rollout.extra.tokenizer`` = ``qwen``."""
SCORE_PREFIX: Final = "rollout.score."
"""``rollout.score.<name>``: float, bool or str. A score given before the trajectory ended. For example
``rollout.score.reward`` = ``0.5``."""
SCORE_TIME_PREFIX: Final = "rollout.score_time."
"""``rollout.score_time.<name>``: int. When the score ``<name>`` was given, Unix time in ns. The newest score
counts. For example ``1800000000000000000``."""
SCORE_ORIGIN: Final = "rollout.score_origin"
"""str. On an evaluation span whose score is not on the root span. ``process``: the score was given inside the
trajectory, in another process than the root's. ``outside``: the score was given by the trajectory's id, or by
a task that outlived the trajectory. ``identity``: the score was given by the trajectory's identity. Its span
is the only one of its trace; readers find the trajectory by that identity. For example ``identity``."""
ORIGIN_PROCESS: Final = "process"
ORIGIN_OUTSIDE: Final = "outside"
ORIGIN_IDENTITY: Final = "identity"
TOKENS_PREFIX: Final = "rollout.tokens."
"""``rollout.tokens.<name>``: str (JSON). On an evaluation span: a list of values per token that training
computed. For example ``rollout.tokens.rollout_logprob`` = ``[-0.1, -0.7]``."""
MAX_SCORE_NAME_CHARS: Final = 250
"""Maximum characters of a score's name: MLflow's limit for the name of an assessment."""

# --- Trajectory facts (ours, stable). On the root span, where nothing else is said. ------------------------
AGENT_NAME: Final = "rollout.agent_name"
"""str. Agent loop that produced the trajectory (verl: ``agent_name``). For example ``tool_agent``."""
GROUP_ID: Final = "rollout.group_id"
"""str. Id of the trajectory's group (verl: ``uid``). For example ``5f0c1d1e``."""
GROUP_SIZE: Final = "rollout.group_size"
"""int. Number of trajectories in the group. The group is complete when that many have ended.
For example ``8``."""
POLICY_VERSION_MIN: Final = "rollout.policy_version_min"
"""int. Version of the weights that made the first tokens (verl: ``min_global_steps``). On model calls too.
For example ``11``."""
POLICY_VERSION_MAX: Final = "rollout.policy_version_max"
"""int. Version of the weights that made the last tokens (verl: ``max_global_steps``). On model calls too.
For example ``12``."""
NUM_TURNS: Final = "rollout.num_turns"
"""int. Number of turns of the conversation, including those of user and tools. For example ``5``."""
INTERRUPTION: Final = "rollout.generation_interrupted"
"""Event. A model call whose answer was interrupted, for an update of the weights for example; the call may
go on with other weights. Its attributes: ``gen_ai.usage.output_tokens``, the number of tokens so far, and
``rollout.policy_version_max``, the version of the weights that made the last of them."""
NUM_PREEMPTED: Final = "rollout.num_preempted"
"""int. Number of times the engine preempted the request. On model calls. For example ``1``."""

BATCH_ID: Final = "rollout.batch_id"
"""str. Id of a batched call, on the spans that record it once per row. For example ``2-18c3a5f0``."""
BATCH_SIZE: Final = "rollout.batch_size"
"""int. Number of rows of the batched call. For example ``64``."""
BEGINS_TRAJECTORY: Final = "rollout.begins_trajectory"
"""bool. True on the span of a trajectory with a parent, such as a sub-trajectory. For example ``true``."""
IN_EVALUATOR: Final = "rollout.in_evaluator"
"""bool. True on an operation of kind ``EVALUATOR``, and on spans inside it. For example ``true``."""
COMPLETION_LENGTH: Final = "rollout.completion_length"
"""int. Tokens of a trajectory's completion that the model generated, with TRL. For example ``512``."""

ENGINE_REQUEST: Final = "llm_request"
"""Name of the span of one request in the engine, as vLLM names it. Its parent is the model call."""

# --- Phases of an engine (ours, development). On spans below the engine's. ---------------------------------
ENGINE_PHASE: Final = "rollout.engine.phase"
"""str. On a span below the engine's: ``queue``, ``prefill`` or ``decode``, which is the span's name too
(:mod:`otel_rollout.otlp.engine_phases`). For example ``queue``."""

# --- Inference engines (vLLM, without a level). On the engine's span. --------------------------------------
LATENCY_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"  # noqa: S105 - no password
"""float. Seconds from the request's arrival in the engine to its first token. For example ``2.58``."""
LATENCY_TOTAL: Final = "gen_ai.latency.e2e"
"""float. Seconds from the request's arrival to its last token. For example ``3.78``."""
LATENCY_QUEUE: Final = "gen_ai.latency.time_in_queue"
"""float. Seconds from the request's arrival in the scheduler's queue until it was first scheduled. For
example ``2.5``."""
LATENCY_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
"""float. Seconds from the first scheduling to the first token. For example ``0.08``."""
LATENCY_DECODE: Final = "gen_ai.latency.time_in_model_decode"
"""float. Seconds from the first token to the last one. For example ``1.2``."""
LATENCY_INFERENCE: Final = "gen_ai.latency.time_in_model_inference"
"""float. Seconds of prefill and decode. For example ``1.28``."""
ENGINE_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
"""int. Tokens of the prompt, on the engine's span. A model call has ``gen_ai.usage.input_tokens`` instead.
For example ``812``."""
ENGINE_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
"""int. Tokens that the engine has made, on its span only. For example ``45``."""

# --- Turns and token ids (ours, development). On model calls, where nothing else is said. ------------------
TOKENIZER: Final = "rollout.tokenizer"
"""str. Name, in the node directory, of the tokenizer with which the forwarder detokenizes the span's token
ids (``token2text``). For example ``5d41402abc4b2a76``."""
TEXT_OF: Final = "rollout.text_of"
"""str. On a recorded root span: id (16 hex digits) of the span whose ``response_text`` the root shows. For
example ``00f067aa0ba902b7``."""
TURN_CONTINUES: Final = "rollout.turn.continues"
"""str. Id (16 hex digits) of an earlier span of the trace. The tokens or messages of this span begin with
those of the earlier span and its answer. The forwarder adds this attribute and the next two. For example
``00f067aa0ba902b7``."""
TURN_SHARED: Final = "rollout.turn.shared"
"""int. Number of tokens or messages in the prefix that both spans share. For example ``740``."""
TURN_LENGTH: Final = "rollout.turn.length"
"""int. Number of tokens or messages in the turn, without its answer. If a span has tokens and messages, the
``rollout.turn.…`` attributes describe the messages. For example ``812``."""
BREAK_OF: Final = "rollout.prefix_break.turn"
"""str. Id (16 hex digits) of the turn before, if this span's prompt does not begin with all of its tokens.
The forwarder adds this attribute and the next ones to model calls with token ids. For example
``00f067aa0ba902b7``."""
BREAK_TOKEN: Final = "rollout.prefix_break.token"  # noqa: S105 - no password
"""int. Index, in that turn's prompt and answer, of the first token that this prompt does not repeat. For
example ``745``."""
BREAK_REMOVED: Final = "rollout.prefix_break.removed"
"""int. Number of that turn's tokens from the first to the last difference. For example ``2``."""
BREAK_ADDED: Final = "rollout.prefix_break.added"
"""int. Number of tokens that this prompt has in place of the removed ones; absent if it repeats no later
token. For example ``1``."""
BREAK_KIND: Final = "rollout.prefix_break.kind"
"""str. What has probably happened: ``retokenized``, ``cut``, ``beginning`` or ``edited``. For example
``retokenized``."""
BREAK_WAS: Final = "rollout.prefix_break.was"
"""str. Text of the first removed tokens, if it is known; with ``|`` between tokens that were retokenized. For
example ``"th|e"``."""
BREAK_BECAME: Final = "rollout.prefix_break.became"
"""str. Text of the first added tokens, in the form of ``rollout.prefix_break.was``. For example ``"the"``."""
PREFIX_BREAK: Final = (
    *(BREAK_OF, BREAK_TOKEN, BREAK_REMOVED, BREAK_ADDED, BREAK_KIND),
    *(BREAK_WAS, BREAK_BECAME),
)

# --- Generators (ours, stable). On the span of a generator's operation. ------------------------------------
GENERATOR_ITEMS: Final = "rollout.generator.items"
"""int. Number of items that the generator yielded; the output holds the first items. For example ``3``."""
GENERATOR_EXHAUSTED: Final = "rollout.generator.exhausted"
"""bool. False if the consumer stopped early, or the generator failed. For example ``true``."""
GENERATOR_RETURNED: Final = "rollout.generator.returned"
"""str (JSON). What the generator returned, if not None. For example ``"stop"``."""

# --- Dumps of frameworks (ours, development). On the resource, and on the root span. -----------------------
DUMP_FORMAT: Final = "rollout.dump.format"
"""str. On the resource of spans that were made of a framework's file: its format. For example ``verl``."""
DUMP_PLACE: Final = "rollout.dump.place"
"""str. On such a trajectory's root span: the file and its line. For example ``12.jsonl:7``."""

# --- Batches of scores (ours, internal). Between recorder and forwarder; no exporter sees them. ------------
SCORE_BATCH: Final = "rollout.score_batch"
"""str (JSON). On a span that records the scores of a whole batch: the columns of ``SCORE_BATCH_DATA``. The
forwarder turns the span into an evaluation span for each score (:mod:`otel_rollout.otlp.score_batch`)."""
SCORE_BATCH_NAMES: Final = "rollout.score_batch.names"
"""list[str]. Names of the batch's scores, and its identities that are text."""
SCORE_BATCH_TEXTS: Final = "rollout.score_batch.texts"
"""list[str]. Labels and comments of the batch, each once."""
SCORE_BATCH_DATA: Final = "rollout.score_batch.data"
"""bytes. The numbers of the batch, column by column, little-endian."""

# --- Origin of a line (ours, stable). On the resource. -----------------------------------------------------
SEGMENT_ID: Final = "rollout.segment.id"
"""str. Unique id of the segment file, at the start of each line: the Collector's ``otlp_json_file`` receiver
identifies a file by its first bytes. For example ``4711-00f067aa0ba902b7.000001``."""
RUN_ID: Final = "rollout.run.id"
"""str. Id of the run to which the process belonged. For example ``run-4e91d719a109``."""

NO_EXTRAS: Final = frozenset(
    {
        *IDENTITY,
        BEGINS_TRAJECTORY,
        IN_EVALUATOR,
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

# --- Operations (OpenInference, without a level). On every operation, and on the root span. ----------------
INPUT_VALUE: Final = "input.value"
"""str. Arguments of the operation, by name. For example ``{"query": "wool"}``."""
INPUT_MIME_TYPE: Final = "input.mime_type"
"""str. Form of ``input.value``: ``application/json`` or ``text/plain``. For example ``application/json``."""
OUTPUT_VALUE: Final = "output.value"
"""str. Result of the operation. For example ``["wool 0"]``."""
OUTPUT_MIME_TYPE: Final = "output.mime_type"
"""str. Form of ``output.value``: ``application/json`` or ``text/plain``. For example ``application/json``."""
SPAN_KIND: Final = "openinference.span.kind"
"""str. What the operation is: ``AGENT``, ``LLM``, ``TOOL``, ``EVALUATOR``, ``CHAIN`` or another kind of
OpenInference. For example ``LLM``."""
SESSION_ID: Final = "session.id"
"""str. Session of a conversation, on another library's spans. For example ``session-17``."""
JSON_MIME_TYPE: Final = "application/json"
TEXT_MIME_TYPE: Final = "text/plain"
RECORDED_SUFFIX: Final = ".recorded"
"""``input.value.recorded``, ``output.value.recorded``: str. Ours: on another library's exported span, the
value that the forwarder replaced by the call's messages, or by the tool's arguments or result. For example
``search(wool)``."""
RECORDED_NAME: Final = "span.name" + RECORDED_SUFFIX
"""``span.name.recorded``: str. Ours: on another library's exported span of a tool, the name that the tool's
own name replaced. For example ``execute_tool search``."""

KIND_AGENT: Final = "AGENT"
KIND_CHAIN: Final = "CHAIN"
KIND_EVALUATOR: Final = "EVALUATOR"
KIND_LLM: Final = "LLM"
KIND_TOOL: Final = "TOOL"
MIME_TYPES: Final = {INPUT_VALUE: INPUT_MIME_TYPE, OUTPUT_VALUE: OUTPUT_MIME_TYPE}
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

# --- Model and tool calls, scores (OpenTelemetry GenAI, development). On operations, as far as it is known. -
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
"""str. What the call does. For example ``chat``, ``execute_tool``."""
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
"""str. Who serves the model. For example ``openai``."""
GEN_AI_TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - no password
"""str. Which tokens a metric counts: ``input`` or ``output``. For example ``input``."""
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
"""str. Id of the conversation, where the framework or the application has one: verl's ``request_id``,
verifiers' id of the trace. Never the id of our trace, as the convention demands. For example ``thread-5``."""
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
"""str. Model that the caller asked for. For example ``Qwen/Qwen3-4B``."""
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
"""float. Temperature of sampling. For example ``1.0``."""
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
"""float. Probability mass that is sampled from. For example ``0.95``."""
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
"""int. Number of tokens that are sampled from. For example ``50``."""
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
"""int. Maximum tokens of the reply. For example ``1024``."""
GEN_AI_REQUEST_ID: Final = "gen_ai.request.id"
"""str. Id of the request in the engine; not in the convention, but on the engine's span (vLLM). For example
``chatcmpl-8a1f``."""
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
"""str. Id of a model's reply. vLLM makes it of the request's id in the engine
(:mod:`otel_rollout.turns.foreign_spans`). For example ``chatcmpl-8a1f``."""
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
"""str. Model that replied. For example ``Qwen/Qwen3-4B``."""
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
"""list[str]. Why each reply ended. For example ``["stop"]``."""
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
"""int. Tokens of the prompt. For example ``812``."""
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
"""int. Tokens of the reply. For example ``45``."""
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
"""int. Tokens of the prompt that a cache had. For example ``740``."""
GEN_AI_USAGE_CACHE_WRITE_INPUT_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
"""int. Tokens of the prompt that were written into a cache. For example ``72``."""
GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
"""int. Tokens of the reply that are reasoning. For example ``30``."""
GEN_AI_SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
"""str (JSON). Instructions to the model, apart from the messages. For example
``[{"type": "text", "content": "Add."}]``."""
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
"""str (JSON). Messages to the model. For example
``[{"role": "user", "parts": [{"type": "text", "content": "3+4?"}]}]``."""
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
"""str (JSON). Messages of the model. For example
``[{"role": "assistant", "parts": [{"type": "text", "content": "7"}], "finish_reason": "stop"}]``."""
GEN_AI_EVENT_CONTENT: Final = "gen_ai.event.content"
"""str (JSON). Body of a log event (``gen_ai.user.message``, ``gen_ai.choice``) that became a span event. For
example ``{"content": "3+4?"}``."""
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
"""str. Name of the tool. For example ``calculator``."""
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
"""str. Id of the tool call in the model's reply. For example ``call_1``."""
GEN_AI_TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
"""str (JSON). Arguments of the tool call. For example ``{"expression": "3 + 4"}``."""
GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
"""str (JSON). Result of the tool call. For example ``7``."""
GEN_AI_EVALUATION_NAME: Final = "gen_ai.evaluation.name"
"""str. Name of a score, on its evaluation span. For example ``reward``."""
GEN_AI_EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
"""float. Value of a score that is a number; 0 or 1 for a bool. For example ``0.5``."""
GEN_AI_EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
"""str. Value of a score that is a label; ``True`` or ``False`` for a bool. For example ``overlong``."""
GEN_AI_EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
"""str. Comment of a score. For example ``exact match``."""

# --- Service and errors (OpenTelemetry, stable). On the resource; on operations and exceptions. ------------
SERVICE_NAME: Final = "service.name"
"""str. Name of the service, ``OTEL_SERVICE_NAME``. For example ``trainer``."""
ERROR_TYPE: Final = "error.type"
"""str. Class of the exception that ended the operation; ``asyncio.exceptions.CancelledError`` for a cancelled
task. For example ``ZeroDivisionError``."""
EXCEPTION_TYPE: Final = "exception.type"
"""str. Class of the exception, on the span's event ``exception``. For example ``ZeroDivisionError``."""
EXCEPTION_MESSAGE: Final = "exception.message"
"""str. Message of the exception. For example ``division by zero``."""
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
"""str. Traceback of the exception. For example ``Traceback (most recent call last): …``."""
EXCEPTION_ESCAPED: Final = "exception.escaped"
"""str. Whether the exception left the span, as OpenTelemetry's SDK writes it; deprecated. For example
``False``."""


def short_name(name: str) -> str:
    """Return an attribute's name without ``rollout.``: the name of MLflow's tag and of Weave's attribute."""
    return name.removeprefix(EXTRA_PREFIX)


def is_of_trajectory(attributes: Mapping[str, Any]) -> bool:
    """Return whether a span belongs to a trajectory: it then has the boolean ``rollout.validate``."""
    return type(attributes.get(VALIDATE)) is bool


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
