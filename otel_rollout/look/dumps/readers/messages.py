"""Read records with messages, or with the fields that a user names: JSON lines, JSON and Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from otel_rollout.base.suggest import did_you_mean
from otel_rollout.look.dumps.chat_text import parsed, prompt_of, said_in
from otel_rollout.look.dumps.dump_file import MAX_FIELDS, NAMES_VALIDATION, DumpFile, Record
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import (
    REWARD,
    DumpedTrajectory,
    RolloutIdentity,
    asked_in,
    identity_part,
    rewards_in,
)
from otel_rollout.look.dumps.values import at, entries_of, in_text
from otel_rollout.look.errors import ViewerError
from otel_rollout.otlp.chat_messages import of_genai
from otel_rollout.otlp.evaluations import value_of
from otel_rollout.table.json_text import as_json

_LABEL: Final = "reward_label"
"""Field that `export` writes beside the reward: a reward that is no number, or says that it is True."""
_USUAL: Final = {
    "messages": ("messages", "conversation", "conversations"),
    "prompt": ("prompt",),
    "completion": ("completion", "response"),
    "reward": ("reward", "score", "rewards", _LABEL),
    "step": ("step", "global_step", "training_step"),
    "sample": ("sample_index", "index", "example_id", "prompt_id", "task_id"),
    "rollout": ("rollout_n", "rollout", "rollout_index"),
    "group": ("group_id", "group"),
    "validate": ("validate", "is_validation"),
    "error": ("error",),
}
"""Name in ``--map`` → the fields that usually hold the value."""
_SHARE_GPT: Final = {"human": "user", "gpt": "assistant"}


class Mapped:
    """Reads records by a mapping from the names of ``--map`` to fields.

    Args:
        fields: name → the field with its value; dots lead into nested objects. Other names have usual fields.

    Attributes:
        fields: name → the fields that may hold its value.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        usual = {ours: names for ours, names in _USUAL.items() if ours not in fields}
        self.fields = {**usual, **{ours: (field,) for ours, field in fields.items()}}
        self._expected = fields.keys() | {REWARD}

    @classmethod
    def parse(cls, text: str) -> Mapped:
        """Parse ``reward=scores.total,step=iteration``, or read such pairs from the lines of a file.

        Raises:
            ViewerError: the text is neither such a mapping nor a readable file with one.
        """
        fields = {}
        try:
            text = text if "=" in text else Path(text).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ViewerError(f"--map {text}: is neither NAME=FIELD nor a file that can be read.") from error
        for entry in filter(None, (part.strip() for part in text.replace("\n", ",").split(","))):
            name, separator, field = (part.strip() for part in entry.partition("="))
            if name not in _USUAL or not separator or not field:
                known = ", ".join(_USUAL)
                raise ViewerError(
                    f"--map {entry}: write NAME=FIELD; NAME is one of {known}.{did_you_mean(name, _USUAL)}"
                )
            fields[name] = field
        return cls(fields)

    def fits(self, file: DumpFile) -> bool:
        """Return whether most of the first records have messages, or a prompt with its completion."""
        return 2 * sum(bool(self._messages(record)[0]) for record in file.head) > len(file.head)

    def read(self, file: DumpFile) -> Iterator[DumpedTrajectory]:
        """Yield the trajectories of a file."""
        for ours in sorted(self._expected):
            if all(self._value(record, ours) is None for record in file.head):
                searched = " or ".join(self.fields[ours])
                file.note(
                    f"The first records have no {searched} for the {ours}: "
                    f"--map {ours}=FIELD names another field of {', '.join(file.fields[:MAX_FIELDS])}."
                    f"{did_you_mean(searched, file.fields)}"
                )
        held = {field for names in self.fields.values() for field in names}
        for place, record in file.records():
            messages, prompt = self._messages(record)
            if not messages:
                file.leave_out(place, "has no messages")
                continue
            identity = self._identity(record, file, messages[:prompt] or asked_in(messages))
            rewards = rewards_in(value_of(self._value(record, "reward"), record.get(_LABEL)))
            others = entries_of(record, str, int, float)
            facts = {name: value for name, value in others.items() if name not in held}
            error = str(self._value(record, "error") or "")
            yield DumpedTrajectory(
                place, identity, messages, rewards, prompt=prompt, facts=facts, error=error
            )

    def _value(self, record: Record, name: str) -> Any:
        for field in self.fields[name]:
            value = record[field] if field in record else at(record, *field.split("."))
            if value is not None:
                return value
        return None

    def _messages(self, record: Record) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Return the conversation, and how many of its messages are the prompt."""
        found = self._value(record, "messages")
        if isinstance(found, (list, tuple)) and found:
            messages = of_genai([_message(each) for each in found if isinstance(each, Mapping)], "")
            return (messages, 0) if all(message["role"] for message in messages) else ([], 0)
        prompt, completion = self._value(record, "prompt"), self._value(record, "completion")
        if prompt is None or completion is None:
            return [], 0
        asked = prompt_of(prompt)
        return [*asked, *said_in(completion)], len(asked)

    def _identity(self, record: Record, file: DumpFile, prompt: Any) -> RolloutIdentity:
        step, sample = (identity_part(self._value(record, name)) for name in ("step", "sample"))
        group = self._value(record, "group")
        known = [value for value in (sample, group) if value not in (None, "")]
        number, order = file.groups.place(step, known[0] if known else prompt)
        rollout = self._value(record, "rollout")
        validate = self._value(record, "validate")
        return RolloutIdentity(
            step,
            number if sample is None else sample,
            order if rollout is None else rollout,
            file.is_validation if validate is None else _is_validation(validate),
            "" if group is None else group if isinstance(group, str) else as_json(group),
        )


def _is_validation(value: Any) -> bool:
    """Return whether a value says validation: a text that is true, or names one as a folder does."""
    told = in_text(value.lower()) if isinstance(value, str) else value
    return bool(NAMES_VALIDATION.search(told) if isinstance(told, str) else told)


def _message(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without its empty fields; ShareGPT's with the usual names."""
    if "from" in entry and "role" not in entry:
        speaker = str(entry["from"])
        return {"role": _SHARE_GPT.get(speaker, speaker), "content": entry.get("value")}
    return parsed({name: value for name, value in entry.items() if value is not None})


FORMAT: Final = Format("messages", Mapped({}).fits, Mapped({}).read)
