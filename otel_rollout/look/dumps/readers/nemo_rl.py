"""Read NeMo RL's ``train_data_step<N>.jsonl`` and ``val_data_step<N>.jsonl``, in which values are lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_rollout.look.dumps.chat_text import prompt_of, reply
from otel_rollout.look.dumps.dump_file import DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import MODEL, REWARD, DumpedTrajectory, RolloutIdentity, asked_in


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the trajectories; siblings are lines with equal prompts."""
    for place, record in file.records():
        messages = list(_messages(_first(record["content"]) or []))
        sample, rollout = file.groups.place(asked_in(messages))
        identity = RolloutIdentity(file.number, sample, rollout, file.is_validation)
        mask = _first(record.get("sample_loss_mask"))
        is_trained = bool(mask) if isinstance(mask, (int, float)) else None
        scores = {REWARD: _first(record["rewards"]), "advantage": _advantage(record), "trained": is_trained}
        reasons = {} if is_trained else {"trained": "its sample_loss_mask is 0"}
        facts = {"idx": record.get("idx")}
        yield DumpedTrajectory(place, identity, messages, scores, facts=facts, comments=reasons)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _messages(content: Any) -> Iterator[Mapping[str, Any]]:
    """Yield messages; texts without roles, as in training, alternate: a prompt, then a reply, and so on."""
    for number, entry in enumerate(content if isinstance(content, list) else [content]):
        said = entry if isinstance(entry, Mapping) else {"content": entry}
        role = str(said.get("role") or (MODEL if number % 2 else "user"))
        text = said.get("content")
        yield from [reply(str(text))] if role == MODEL else prompt_of(text, role)


def _advantage(record: Record) -> float | None:
    """Return the mean advantage of the trained tokens; None if none is known."""
    values, mask = _first(record.get("advantages")), _first(record.get("token_loss_mask"))
    if not isinstance(values, list) or not isinstance(mask, list):
        return None
    found = [value for value, is_trained in zip(values, mask, strict=False) if is_trained]
    return sum(found) / len(found) if found else None


FORMAT: Final = Format("NeMo RL data", lambda file: file.has("content", "rewards", "idx"), read)
