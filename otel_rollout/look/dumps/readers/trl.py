"""Read TRL's ``completions_<step>.parquet``: the last generation batch at each logged step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from otel_rollout.look.dumps.chat_text import prompt_of, said_in
from otel_rollout.look.dumps.dump_file import DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import REWARD, DumpedTrajectory, RolloutIdentity
from otel_rollout.look.dumps.values import entries_of

_NAMES: Final = ("step", "prompt", "completion", "advantage")


def fits(file: DumpFile) -> bool:
    """Return whether the rows have TRL's columns."""
    return file.has("step", "prompt", "completion") and not file.has("messages")


def read(file: DumpFile) -> Iterator[DumpedTrajectory]:
    """Yield a trajectory for each row; neighbouring rows with equal prompts are a group.

    TRL writes the rows of a batch again at each step that trains on it. So a file that repeats the previous
    file's rows is left out.
    """
    if file.before is not None and _rows(file) == _rows(DumpFile(file.before)):
        file.note("A batch that was trained on in several steps is shown at its first one.")
        return
    by_prompt = groupby(file.records(), key=lambda placed: placed[1].get("prompt"))
    for sample, (prompt, rows) in enumerate(by_prompt):
        asked = prompt_of(_plain(prompt))
        for rollout, (place, row) in enumerate(rows):
            messages = [*asked, *said_in(_plain(row.get("completion")))]
            scores = _scores(row)
            if len(scores) > 1 and REWARD not in row:
                file.note("TRL saves no weights of its reward functions: the reward is their plain sum.")
            identity = RolloutIdentity(row.get("step"), sample, rollout, file.is_validation)
            total = scores.get(REWARD, sum(scores.values()) if scores else None)
            scores |= {REWARD: total, "advantage": row.get("advantage")}
            facts = {name: text for name, text in entries_of(row, str).items() if name not in _NAMES}
            yield DumpedTrajectory(place, identity, messages, scores, prompt=len(asked), facts=facts)


def _rows(file: DumpFile) -> list[str]:
    """Return the rows without their step, as text, so that NaN equals NaN."""
    return [repr({**row, "step": None}) for _, row in file.records()]


def _plain(value: Any) -> Any:
    """Return a value without nulls: Parquet adds them for fields that only other messages have."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items() if entry is not None}
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def _scores(row: Record) -> dict[str, Any]:
    """Return the scores of a row; NaN means that a reward function gave none."""
    return {
        name: float(value)
        for name, value in entries_of(row, int, float).items()
        if name not in _NAMES and not isinstance(value, bool) and not math.isnan(value)
    }


FORMAT: Final = Format("TRL completions", fits, read)
