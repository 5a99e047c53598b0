"""Read the rollouts that NeMo Gym collects: a task and a Responses object per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_rollout.look.dumps.chat_text import prompt_of
from otel_rollout.look.dumps.dump_file import DumpFile
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import MODEL, REWARD, DumpedTrajectory, ModelTurn, RolloutIdentity
from otel_rollout.look.dumps.values import at, entries_of
from otel_rollout.otlp.chat_messages import of_genai


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the trajectories; a line without a response is a failed rollout."""
    for place, record in file.records():
        asked = prompt_of(at(record, "responses_create_params", "input"))
        number, order = file.groups.place(asked)  # older files have no indexes
        sample, rollout = record.get("_ng_task_index", number), record.get("_ng_rollout_index", order)
        if attempt := record.get("_ng_attempt_index"):
            rollout = f"{rollout}.{attempt}"
        response, is_masked = record.get("response"), record.get("mask_sample")
        output = at(response, "output") or ()
        said = of_genai(output[-1] if output and isinstance(output[-1], list) else output, MODEL)
        usage = entries_of(at(response, "usage"), int)  # of all calls together
        call = ModelTurn(usage.get("input_tokens"), usage.get("output_tokens"))
        is_one_call = sum(message["role"] == MODEL for message in said) == 1
        yield DumpedTrajectory(
            place,
            RolloutIdentity(None, sample, rollout, file.is_validation),
            [*asked, *said],
            {REWARD: None if is_masked else record.get("reward")},  # the reward of a masked sample is invalid
            turns=[call] if is_one_call else (),
            prompt=len(asked),
            facts={"failure_kind": record.get("failure_kind"), "mask_sample": is_masked, **usage},
            error=str(record.get("failure_reason") or record.get("_ng_failure_class") or ""),
            ending=str(at(response, "incomplete_details", "reason") or at(response, "status") or ""),
        )


def fits(file: DumpFile) -> bool:
    """Return whether the lines are rollouts, or failed ones."""
    return file.has("_ng_task_index", "_ng_rollout_index") or file.has("responses_create_params", "response")


FORMAT: Final = Format("NeMo Gym rollouts", fits, read)
