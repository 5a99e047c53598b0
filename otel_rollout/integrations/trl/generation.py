"""Follow TRL's generation: prompts, batched model calls, completions, and a user's ``rollout_func``.

A batched model call has one span for each row. TRL parses an answer after the generation, so the span of a
call is recorded when its answer is known.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.base.errors import internal_errors, warn_once
from otel_rollout.base.patching import Function
from otel_rollout.integrations.kit.spans import number
from otel_rollout.integrations.trl import batch as batches
from otel_rollout.integrations.trl.batch import Generated, GeneratedCall, Generation, GenerationBatch, Sample
from otel_rollout.integrations.trl.patched_modules import TRAINERS, seams

# --- model calls -------------------------------------------------------------------------------------------


_GENERATION_BLOCKS: Final = ("vLLM.generate", "transformers.generate", "transformers.generate_batch")
"""Names of TRL's profiled blocks that hold the actual generation."""


def times_of(batch: GenerationBatch, first: int, whole: tuple[int, int]) -> tuple[int, int]:
    """Return start and end of the actual generation, Unix time in ns.

    Args:
        batch: the batch.
        first: index of the first profiled block since the call began.
        whole: times of the whole call, which may include an update of the engine's weights.
    """
    names = {batch.block_name(name) for name in _GENERATION_BLOCKS}
    found = [block.times for block in batch.measured[first:] if block.name in names]
    return (found[0][0], found[-1][1]) if found else whole


def settle(batch: GenerationBatch, entry: Sample, text: str | None = None) -> None:
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


def _attributes(batch: GenerationBatch, call: GeneratedCall, ids: list[int] | None) -> dict[str, Any]:
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


_UNCERTAIN: Final = (
    "model calls of a TRL batch are not recorded: {} prompts were generated, and {} were expected"
)
_INNER: Final = "a generation is not recorded: it began while the trainer generated a TRL batch"
_UNCOUNTED: Final = "completions of a TRL batch are not recorded: there are {} for {} prompts"


# --- a whole generation ------------------------------------------------------------------------------------


@seams.around(TRAINERS, "_generate", "completions are not recorded")
def _generate(original: Function, /, self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
    batch = batches.generating(self)
    is_known = False
    with internal_errors("reading the prompts of a TRL batch"):
        is_known = batch is not None and _begin(batch, prompts)
    if batch is None or not is_known:
        with batches.being_current(None):
            return original(self, prompts, *args, **kwargs)
    start_ns = time.time_ns()
    try:
        result = original(self, prompts, *args, **kwargs)
    except BaseException as error:
        with internal_errors("recording a failed generation"):
            _record_whole(batch, (start_ns, time.time_ns()), {}, error)
        raise
    else:
        with internal_errors("recording the completions of a TRL batch"):
            _note_completions(batch, (start_ns, time.time_ns()), _named(result))
        return result
    finally:
        _finish(batch)


def _begin(batch: GenerationBatch, prompts: Sequence[Any]) -> bool:
    """Begin a generation for all rows; return False if it is not for the batch's rows."""
    if batch.is_generating:  # a tool generates
        warn_once(_INNER, once_for="trl generation in a generation")
        return False
    if len(prompts) != len(batch.samples):
        warn_once(_UNCERTAIN.format(len(prompts), len(batch.samples)), once_for="trl prompts")
        return False
    _finish(batch)
    batch.is_generating, batch.model_calls = True, 0
    for entry, prompt in zip(batch.samples, prompts, strict=True):
        entry.prompt = prompt
        entry.generated.append(Generated(prompt))
    return True


def _finish(batch: GenerationBatch) -> None:
    """End the generation, and drop what only a running generation needs."""
    batch.is_generating = False
    for entry in batch.samples:
        with internal_errors("recording a model call"):
            settle(batch, entry)
        entry.prompt, entry.completion, entry.answered_from = None, [], 0


def _named(result: Any) -> dict[str, Any]:
    """Return the parts of the result of a trainer's ``_generate``, by name."""
    if len(result) == 3:  # RLOOTrainer
        return dict(zip(("prompt_ids", "completion_ids", "completions"), result, strict=True))
    names = ("prompt_ids", "completion_ids", "mask", "completions", "log_probs")
    return dict(zip(names, result[:5], strict=True))


def _note_completions(batch: GenerationBatch, times: tuple[int, int], found: dict[str, Any]) -> None:
    """Record the completions of a batch, and its last model calls, when all turns are over."""
    completions, masks = found["completions"], found.get("mask")
    if not len(completions) == len(found["completion_ids"]) == len(batch.samples):
        warn_once(_UNCOUNTED.format(len(completions), len(batch.samples)), once_for="trl completions")
        return
    if not batch.model_calls:
        _record_whole(batch, times, found, None)
    for row, (entry, completion) in enumerate(zip(batch.samples, completions, strict=True)):
        is_chat = isinstance(completion, list)
        entry.completion = completion if is_chat else []
        settle(batch, entry, None if is_chat else completion)
        generated = entry.generated[-1]
        generated.completion = completion
        generated.length = len(found["completion_ids"][row]) if masks is None else sum(masks[row])


def _record_whole(
    batch: GenerationBatch, times: tuple[int, int], found: dict[str, Any], error: BaseException | None
) -> None:
    """Record one span per row for a generation whose model calls were not seen.

    Args:
        batch: the batch.
        times: start and end of the generation, Unix time in ns.
        found: token ids, masks and log probabilities of all rows, by name; empty after a failure.
        error: the exception with which the generation failed.
    """
    if batch.model_calls:
        return
    is_users = getattr(batch.trainer, "rollout_func", None) is not None
    synced = [block for block in batch.measured if block.name == batch.block_name("sync_weights")]
    start_ns = synced[-1].times[1] if synced else times[0]
    keys = {"completion_ids": "response_ids", "mask": "response_mask", "log_probs": "log_probs"}
    for row, entry in enumerate(batch.samples):
        output = {shown: found[key][row] for key, shown in keys.items() if found.get(key) is not None}
        ids = found["prompt_ids"][row] if found else None
        entry.trajectory.record(
            "rollout_func" if is_users else "generate",
            semconv.KIND_CHAIN,
            (start_ns, times[1]),
            input=None if ids is None else {"prompt_ids": list(ids)},
            output=output or None,
            error=error,
        )


# --- one batched model call --------------------------------------------------------------------------------


@seams.around(TRAINERS, "_generate_single_turn", "model calls are recorded without turns")
def generate_turn(original: Function, /, self: Any, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
    """Generate one answer for each of several rows."""
    batch = batches.generating(self)
    if batch is None or getattr(self, "rollout_func", None) is not None:
        return original(self, prompt_ids, *args, **kwargs)
    entries: Sequence[Sample] = ()
    with internal_errors("finding the rows of a model call"):
        entries = _entries(batch, prompt_ids)
    blocks, start_ns = len(batch.measured), time.time_ns()
    try:
        result = original(self, prompt_ids, *args, **kwargs)
    except BaseException as error:
        failed = Generation((start_ns, time.time_ns()), len(prompt_ids), error=error)
        _note_calls(batch, entries, prompt_ids, failed)
        raise
    times = times_of(batch, blocks, (start_ns, time.time_ns()))
    with internal_errors("recording a model call"):
        _note_calls(batch, entries, prompt_ids, _generation(times, prompt_ids, result))
    return result


def _generation(times: tuple[int, int], prompt_ids: Sequence[Any], result: Any) -> Generation:
    completion_ids, log_probs = result if isinstance(result, tuple) else (result, None)
    if len(completion_ids) != len(prompt_ids):
        raise ValueError(f"{len(completion_ids)} completions for {len(prompt_ids)} prompts")
    lengths = [len(ids) for ids in completion_ids]
    return Generation(times, len(prompt_ids), completion_ids, log_probs, lengths)


def _entries(batch: GenerationBatch, prompt_ids: Sequence[Any]) -> Sequence[Sample]:
    """Return the rows of a batched call by position; none if that is not certain."""
    found = batch.samples if batch.completions is None else _continued(batch, prompt_ids)
    if len(found) == len(prompt_ids):
        return found
    warn_once(_UNCERTAIN.format(len(prompt_ids), len(found)), once_for="trl rows of a model call")
    return ()


def _continued(batch: GenerationBatch, prompt_ids: Sequence[Any]) -> list[Sample]:
    """Return the rows that TRL's tool loop continues: those that have new answers of tools.

    TRL removes answers that do not fit its limit, and such a row leaves the loop.
    """
    for entry in batch.samples:
        settle(batch, entry)
    rows = [
        row
        for row, entry in enumerate(batch.samples)
        if len(entry.completion) > entry.answered_from and entry.completion[-1].get("role") == "tool"
    ]
    starts, generated = batch.contexts
    for row, ids in zip(rows, prompt_ids, strict=False):
        known = [*starts[row], *generated[row]]
        if list(ids[: len(known)]) != known:
            return []
    return [batch.samples[row] for row in rows]


def _note_calls(
    batch: GenerationBatch, entries: Sequence[Sample], prompt_ids: Sequence[Any], generation: Generation
) -> None:
    if entries:
        batch.model_calls += 1
    for position, entry in enumerate(entries):
        settle(batch, entry)
        entry.answered_from = len(entry.completion)
        if not entry.trajectory.is_recording:
            continue
        context = [*entry.prompt, *entry.completion] if isinstance(entry.prompt, list) else entry.prompt
        entry.unsettled = GeneratedCall(generation, position, context, prompt_ids[position])
