"""Know which trajectory each row of the v1 trainer's batch is.

That trainer keeps rows in the TransferQueue, under keys ``{uid}_{session}_{output}``. The prompt's ``uid``
leads to step and sample, the session is the sibling's index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from otel_rollout.integrations.verl import identities
from otel_rollout.integrations.verl.identities import Identity, plain
from otel_rollout.integrations.verl.known_trajectories import Prompt, known, report_unknown, without_doubles


def note_prompts(manager: Any, prompts: Any, chosen: frozenset[Any] | None) -> None:
    """Remember the prompts that the workers begin to generate from.

    Args:
        manager: verl's ``AgentLoopManagerTQ``.
        prompts: a ``TensorDict``.
        chosen: indices of the samples that are recorded; None for all.
    """
    validate = bool(prompts["validate"]) if "validate" in prompts else False
    step, siblings = plain(prompts["global_steps"]), identities.group_size(manager, validate)
    sampled: Iterable[Any] = [True] * len(prompts)
    if "__do_sample__" in prompts and not validate and not identities.samples_greedily(manager):
        sampled = prompts["__do_sample__"]
    for uid, index, is_sampled in zip(prompts["uid"], prompts["index"], sampled, strict=True):
        sample = plain(index)
        first = Identity(step, sample, 0 if is_sampled else siblings, validate)
        known().prompts[str(uid)] = Prompt(first, chosen is None or sample in chosen)
        known().add(first)


def session_of(key: Any) -> tuple[str, str]:
    """Return the ``uid`` and the session of a key; the session is empty if the key is no trajectory's."""
    parts = str(key).rsplit("_", 2)
    return (parts[0], parts[1]) if len(parts) == 3 and parts[1].isdecimal() else (str(key), "")


def rows_of_keys(keys: Sequence[Any], tags: Sequence[Any]) -> list[Identity | None]:
    """Return the trajectory of each key; None for a row of which nothing is recorded.

    Args:
        keys: keys of rows in the TransferQueue.
        tags: their tags. A row that pads the batch is no trajectory.
    """
    found: list[Identity | None] = []
    counted: list[Identity | None] = []
    unknown = 0
    for key, tag in zip(keys, tags, strict=True):
        uid, session = session_of(key)
        prompt = known().prompts.get(uid)
        is_padding = bool(tag.get("is_padding", False))
        is_known = prompt is not None and session != ""
        unknown += not is_known and not is_padding
        row = None
        if prompt is not None and is_known and not is_padding and prompt.is_recorded:
            row = prompt.first._replace(rollout_n=prompt.first.rollout_n + int(session))
        found.append(row)
        counted.append(prompt.first if row is not None and prompt is not None else None)
    report_unknown(unknown, "this process has not generated them; others may have, before a restart")
    return without_doubles(found, counted)


def forget_prompts(uids: Iterable[str]) -> None:
    """Forget prompts whose trajectories have been trained or removed."""
    for uid in uids:
        known().prompts.pop(uid, None)
