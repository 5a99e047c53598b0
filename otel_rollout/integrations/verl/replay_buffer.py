"""Record which trajectories the v1 trainer's replay buffer removes, and why."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from otel_rollout.integrations.kit.seams import before
from otel_rollout.integrations.verl import v1_rows
from otel_rollout.integrations.verl.known_trajectories import Eviction, known
from otel_rollout.integrations.verl.patched_modules import seams
from otel_rollout.integrations.verl.trace_config import is_recorded_here
from otel_rollout.integrations.verl.training_records import record_untrained

STALE: Final = "replay buffer: older than max_off_policy_threshold"
EQUAL_REWARDS: Final = "dynamic sampling: the rewards of its group are equal"
SIBLING_FAILED: Final = "replay buffer: a trajectory of its group failed"
SURPLUS: Final = "dynamic sampling: more groups than needed were left"


def install(module: ModuleType) -> None:
    """Wrap the methods that remove groups (``verl.trainer.ppo.v1.replay_buffer``)."""
    loss = "it is not recorded which trajectories the replay buffer removes"
    noting = before(_note_reasons, "reading why the replay buffer removes groups")
    recording = before(_record, "recording which groups the replay buffer removes")
    seams.wrap(module, "ReplayBuffer._evict_terminal_groups", noting, loss)
    seams.wrap(module, "ReplayBuffer._clear_groups", recording, loss)


def _note_reasons(_: Any, global_steps: int, partition_id: str, reasons: Any) -> None:
    stale, equal, failed = reasons[:3]
    evictions = known().evictions
    evictions.clear()
    for uids, reason in ((failed, SIBLING_FAILED), (equal, EQUAL_REWARDS), (stale, STALE)):
        evictions.update((uid, Eviction(reason, global_steps)) for uid in uids)


def _record(buffer: Any, partition_id: str, uids: Any) -> None:
    if not uids or not is_recorded_here():
        return
    stored = buffer.partitions[partition_id]
    keys = [key for key in stored if v1_rows.session_of(key)[0] in uids]
    reasons, lags = [], []
    for key in keys:
        eviction = known().evictions.get(v1_rows.session_of(key)[0])
        oldest = stored[key].get("min_global_steps")
        reasons.append(SURPLUS if eviction is None else eviction.reason)
        has_version = hasattr(oldest, "__index__")
        lags.append(eviction.step - 1 - int(oldest) if eviction is not None and has_version else None)
    rows = v1_rows.rows_of_keys(keys, [stored[key] for key in keys])
    found = {row: number for number, row in enumerate(rows) if row is not None}
    record_untrained(list(found), [reasons[i] for i in found.values()], [lags[i] for i in found.values()])
    known().evictions.clear()
    v1_rows.forget_prompts(uids)
