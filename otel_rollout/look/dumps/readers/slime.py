"""Read slime's ``rollout_<id>.pt``, from ``--save-debug-rollout-data`` or ``--dump-details``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_rollout.look.dumps.chat_text import prompt_of, replies_in
from otel_rollout.look.dumps.dump_file import DumpFile
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import MODEL, DumpedTrajectory, ModelTurn, RolloutIdentity, rewards_in


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the samples of a rollout."""
    for place, sample in file.records():
        status = str(sample.get("status") or "")
        asked = prompt_of(sample.get("prompt"))
        replies = replies_in(str(sample.get("response") or ""))
        is_one_call = sum(message["role"] == MODEL for message in replies) == 1
        number, order = file.groups.place(asked if (group := sample.get("group_index")) is None else group)
        step, sample_index = sample.get("of_rollout"), number if group is None else group
        versions = [
            int(version) for version in sample.get("weight_versions") or () if str(version).isdecimal()
        ]
        yield DumpedTrajectory(
            place,
            RolloutIdentity(step, sample_index, order, file.is_validation),
            [*asked, *replies],
            rewards_in(sample.get("reward")),
            turns=[ModelTurn(written=sample.get("response_length"))] if is_one_call else (),
            prompt=len(asked),
            facts={
                "label": sample.get("label"),
                "status": status,
                "remove_sample": sample.get("remove_sample") or None,
            },
            versions=(min(versions, default=None), max(versions, default=None)),
            error=status if status in ("aborted", "failed") else "",
            ending="length" if status == "truncated" else status,
        )


FORMAT: Final = Format("slime rollout data", lambda file: file.has("of_rollout", "group_index"), read)
