"""Read slime's ``rollout_<id>.pt``: ``--save-debug-rollout-data`` or ``--dump-details``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.base import semconv
from otel_rollout.look.dumps.chat_text import prompt_of, replies_in
from otel_rollout.look.dumps.dump_file import DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import (
    MODEL,
    REWARD,
    DumpedTrajectory,
    Groups,
    ModelTurn,
    RolloutIdentity,
    trajectory,
)

_FAILED: Final = ("aborted", "failed")


def fits(file: DumpFile) -> bool:
    """Return whether the samples are slime's."""
    return file.has("of_rollout", "group_index", "response")


def read(file: DumpFile) -> Iterator[tuple[int, DumpedTrajectory]]:
    """Yield the samples of a rollout."""
    groups = Groups()
    for place, sample in file.records():
        status = str(getattr(sample.get("status"), "value", sample.get("status")) or "")
        asked = prompt_of(sample.get("prompt"))
        replies = replies_in(str(sample.get("response") or ""))
        turns = [ModelTurn({}) for message in replies if message["role"] == MODEL]
        turns[-1] = ModelTurn(_facts_of_call(sample, status, is_only=len(turns) == 1))
        number, order = groups.place(group := sample.get("group_index"))
        sample_index = number if group is None else group
        identity = RolloutIdentity(sample.get("of_rollout"), sample_index, order, _is_eval(file))
        versions = [
            int(version) for version in sample.get("weight_versions") or () if str(version).isdecimal()
        ]
        yield (
            place,
            trajectory(
                identity,
                [*asked, *replies],
                _scores(sample),
                turns=turns,
                prompt=len(asked),
                facts={
                    "label": sample.get("label"),
                    "status": status,
                    "remove_sample": sample.get("remove_sample") or None,
                    semconv.POLICY_VERSION_MIN: min(versions, default=None),
                    semconv.POLICY_VERSION_MAX: max(versions, default=None),
                },
                error=status if status in _FAILED else "",
            ),
        )


def _is_eval(file: DumpFile) -> bool:
    return file.path.name.startswith("eval_") or file.is_validation


def _facts_of_call(sample: Record, status: str, is_only: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if status == "truncated":
        facts[semconv.GEN_AI_RESPONSE_FINISH_REASONS] = ["length"]
    if is_only and isinstance(length := sample.get("response_length"), int):
        facts[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = length
    return facts


def _scores(sample: Record) -> dict[str, Any]:
    """Return the reward; of several rewards each, and the only number as the reward."""
    reward = sample.get("reward")
    if not isinstance(reward, Mapping):
        return {REWARD: reward}
    found = {str(name): value for name, value in reward.items() if isinstance(value, (int, float))}
    return found | ({REWARD: next(iter(found.values()))} if len(found) == 1 else {})


FORMAT: Final = Format("slime rollout data", fits, read)
