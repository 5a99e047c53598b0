"""Record model calls: one span for each row of a batched generation.

TRL parses an answer after the generation, so the span of a call is recorded when its answer is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.integrations.kit.spans import number
from otel_rollout.integrations.trl.batch import Batch, Sample

_GENERATION_BLOCKS: Final = ("vLLM.generate", "transformers.generate", "transformers.generate_batch")
"""Names of TRL's profiled blocks that hold the generation proper."""


@dataclass
class Generation:
    """One batched model call.

    Attributes:
        times: start and end, Unix time in ns.
        rows: number of rows.
        completion_ids: generated token ids per row. TRL may shorten them in place, to fit its limit.
        log_probs: log probabilities per row; None if the backend gives none.
        lengths: number of tokens that were generated per row.
        error: the exception with which the call failed.
    """

    times: tuple[int, int]
    rows: int
    completion_ids: Sequence[Any] = ()
    log_probs: Sequence[Any] | None = None
    lengths: Sequence[int] = ()
    error: BaseException | None = None


@dataclass(frozen=True)
class ModelCall:
    """The part of one row in a batched model call.

    Attributes:
        generation: the batched call.
        position: the row's position in it.
        context: the messages, or the text, that were sent.
        prompt_ids: the token ids that were sent.
    """

    generation: Generation
    position: int
    context: Any
    prompt_ids: Any


def times_of(batch: Batch, first: int, whole: tuple[int, int]) -> tuple[int, int]:
    """Return the times of the generation proper.

    Args:
        batch: the batch.
        first: index of the first profiled block since the call began.
        whole: times of the whole call, which may include an update of the engine's weights.
    """
    names = {batch.block_name(name) for name in _GENERATION_BLOCKS}
    found = [block.times for block in batch.measured[first:] if block.name in names]
    return (found[0][0], found[-1][1]) if found else whole


def settle(batch: Batch, entry: Sample, text: str | None = None) -> None:
    """Record the row's model call whose answer is now known, if there is one.

    Args:
        batch: the batch.
        entry: the row.
        text: the answer of a prompt that is no conversation.
    """
    call, entry.unsettled = entry.unsettled, None
    if call is None or not entry.trajectory.is_recording:
        return
    generation = call.generation
    answer: dict[str, Any] = {} if text is None else {"text": text}
    if len(entry.completion) > entry.answered_from:
        answer = dict(entry.completion[entry.answered_from])
    is_answered = generation.error is None
    ids = list(generation.completion_ids[call.position]) if is_answered else []
    if is_answered:
        answer["response_ids"] = ids
    if generation.log_probs is not None:
        answer["log_probs"] = generation.log_probs[call.position]
    key = "messages" if isinstance(call.context, list) else "prompt"
    sent = {} if call.context is None else {key: call.context}
    sent["prompt_ids"] = list(call.prompt_ids)
    entry.trajectory.record(
        "generate",
        semconv.KIND_LLM,
        generation.times,
        input=sent,
        output=answer or None,
        attributes=_attributes(batch, call, ids if is_answered else None),
        error=generation.error,
    )


def _attributes(batch: Batch, call: ModelCall, ids: list[int] | None) -> dict[str, Any]:
    trainer, version = batch.trainer, batch.identity.policy_version
    is_chat = isinstance(call.context, list)
    return {
        semconv.GEN_AI_OPERATION_NAME: "chat" if is_chat else "text_completion",
        semconv.GEN_AI_REQUEST_MODEL: _model_of(trainer),
        semconv.GEN_AI_REQUEST_TEMPERATURE: number(getattr(trainer, "temperature", None)),
        semconv.GEN_AI_REQUEST_TOP_P: number(getattr(trainer, "top_p", None)),
        semconv.GEN_AI_REQUEST_TOP_K: number(getattr(trainer, "top_k", None)),
        semconv.GEN_AI_REQUEST_MAX_TOKENS: getattr(trainer, "max_completion_length", None),
        semconv.GEN_AI_USAGE_INPUT_TOKENS: len(call.prompt_ids),
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: None if ids is None else call.generation.lengths[call.position],
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: None if ids is None else [finish_reason(trainer, ids)],
        semconv.POLICY_VERSION_MIN: version,
        semconv.POLICY_VERSION_MAX: version,
        semconv.BATCH_ID: f"{batch.id}-{call.generation.times[0]:x}",
        semconv.BATCH_SIZE: call.generation.rows,
    }


def finish_reason(trainer: Any, ids: Sequence[int]) -> str:
    """Return ``stop`` if the tokens end as TRL expects of a complete answer, otherwise ``length``."""
    ends = (*trainer.eos_token_ids, trainer._tokenizer.pad_token_id)
    return "stop" if ids and ids[-1] in ends else "length"


def _model_of(trainer: Any) -> str | None:
    name = getattr(getattr(trainer.model, "config", None), "_name_or_path", None)
    return str(name) if name else None
