"""Read verl's rollout and validation dumps: ``trainer.rollout_data_dir``, ``trainer.validation_data_dir``.

If a trajectory's context was cut, the default trainer writes a line for each piece of the trajectory, with
the same score on each line. The older trainer writes no ids: siblings are lines with equal ``input``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from otel_rollout.look.dumps.chat_text import replies_in
from otel_rollout.look.dumps.dump_file import DumpFile, Placed, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import MODEL, REWARD, DumpedTrajectory, ModelTurn, RolloutIdentity
from otel_rollout.look.dumps.values import entries_of

_KEYS: Final = ("input", "output", "gts", "score", "step")
_OTHER_KEYS: Final = (*_KEYS, "uid", "request_id", "reward")


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield the trajectories of a step's file."""
    for _, lines in groupby(_whole(file), key=_session):
        pieces = sorted(lines, key=_piece)
        place, last = pieces[0][0], pieces[-1][1]
        messages: list[Mapping[str, Any]] = []
        turns: list[ModelTurn] = []
        for _, record in pieces:
            replies = replies_in(str(record.get("output")))
            messages += [{"role": "user", "content": str(record.get("input"))}, *replies]
            count = sum(message["role"] == MODEL for message in replies)
            turns += [ModelTurn(is_new_context=number == 0) for number in range(count)]
        facts = {
            "gts": last.get("gts"),
            "request_id": last.get("request_id"),
            "pieces": len(pieces) if len(pieces) > 1 else None,
        }
        identity = _identity(last, file)
        yield DumpedTrajectory(place, identity, messages, _scores(last), turns=turns, facts=facts)


def _whole(file: DumpFile) -> Iterator[Placed]:
    """Yield the records that have a reply; leave out the others."""
    for place, record in file.records():
        if "output" in record:
            yield place, record
        else:
            file.leave_out(place, "has no output")


def _session(placed: Placed) -> Any:
    """Return a key that the pieces of one trajectory share; a line without ``uid`` has a key of its own."""
    uid = placed[1].get("uid")
    return uid.rpartition("_")[0] if isinstance(uid, str) and uid.count("_") > 1 else placed[0]


def _piece(placed: Placed) -> int:
    number = str(placed[1].get("uid", "")).rpartition("_")[2]
    return int(number) if number.isdecimal() else 0


def _identity(record: Record, file: DumpFile) -> RolloutIdentity:
    step, uid = record.get("step"), record.get("uid")
    if isinstance(uid, str) and uid.count("_") > 1:
        group, session, _ = uid.rsplit("_", 2)
        sample, order = file.groups.place(group)
        rollout = int(session) if session.isdecimal() else order
        return RolloutIdentity(step, sample, rollout, file.is_validation, group)
    file.note(
        "verl's older trainer writes no ids: lines with equal input are one group, in the file's order."
    )
    sample, rollout = file.groups.place(record.get("input"))
    return RolloutIdentity(step, sample, rollout, file.is_validation)


def _scores(record: Record) -> dict[str, Any]:
    """Return the score as the reward, and the numbers that the reward function returned beside it."""
    others = {name: _number(value) for name, value in record.items() if name not in _OTHER_KEYS}
    return entries_of(others, int, float) | {REWARD: record.get("score")}


def _number(value: Any) -> Any:
    """Return a number or bool that the older trainer wrote as text; other values are unchanged."""
    if value in ("True", "False"):
        return value == "True"
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


FORMAT: Final = Format("verl rollout dump", lambda file: file.has(*_KEYS), read)
