"""Define the columns of the rollout table, and their meaning.

If a table lacks a column, the first commit of a forwarder that knows the column adds it. A forwarder that
does not know a column of the table leaves the column empty. So forwarders of several versions may write one
table, and a new column does not change ``SCHEMA_VERSION``. A change of a column's type or meaning does.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from arro3.core import DataType, Field, Schema

SCHEMA_VERSION: Final = 1
"""Version of the columns' types and meanings. Software refuses a table of a newer version."""
VERSION_PROPERTY: Final = "rollout.schema_version"
"""Property of the table that holds the version."""
COMMENT: Final = "comment"
"""Key of a column's meaning in the column's metadata. Spark shows the text under this key."""

ColumnType = Literal["text", "int64", "float64", "bool", "timestamp", "scores"]


_FIRST_TIME_NS: Final = 10**15
"""12 days after the beginning of 1970."""


def has_time(start_ns: int) -> bool:
    """Return whether a start is a time. A span of unknown time has only its place in an order as start."""
    return start_ns >= _FIRST_TIME_NS


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        name: the column's name.
        type_: its type. ``timestamp`` is in microseconds, UTC; ``scores`` is a list of structs of
            ``SCORE_FIELDS``.
        meaning: one sentence.
    """

    name: str
    type_: ColumnType
    meaning: str


COLUMNS: Final = (
    Column("trace_id", "text", "Id of the trajectory's trace, 32 hex digits."),
    Column("span_id", "text", "Id of the span, 16 hex digits."),
    Column("parent_span_id", "text", "Id of the parent span; null for a span without parent."),
    Column("run_id", "text", "Id of the run that recorded the span."),
    Column("project", "text", "Project of the trajectory."),
    Column("experiment", "text", "Experiment: one training run of the project."),
    Column("step", "int64", "Training step of the trajectory."),
    Column("sample_index", "text", "Dataset row of the trajectory; a number is written in decimal."),
    Column("rollout_n", "int64", "Index of the trajectory in its group, from 0."),
    Column("step_text", "text", "Training step that is no integer of 64 bits, as text; null for an integer."),
    Column("rollout_text", "text", "Index in the group that is no integer of 64 bits, as text."),
    Column("validate", "bool", "Whether the trajectory is of a validation."),
    Column("group_id", "text", "Id of the trajectory's group, as the trainer gave it."),
    Column("group_size", "int64", "Number of trajectories in the group."),
    Column("agent_name", "text", "Agent loop that produced the trajectory."),
    Column("policy_version_min", "int64", "Version of the weights that made the first tokens."),
    Column("policy_version_max", "int64", "Version of the weights that made the last tokens."),
    Column("name", "text", "Name of the span."),
    Column("kind", "text", "OpenInference kind of the span: AGENT, LLM, TOOL, EVALUATOR and so on."),
    Column("scope", "text", "Instrumentation scope: the library that made the span."),
    Column("model", "text", "Model of a model call: the requested one, else the one that answered."),
    Column("tool_name", "text", "Name of the tool that was called; for a tool without one, the span's name."),
    Column("is_root", "bool", "Whether the span has no parent, has ended, and records no score."),
    Column("start_time", "timestamp", "Start of the span, UTC, in microseconds."),
    Column("start_ns", "int64", "Start of the span, Unix time in nanoseconds."),
    Column("duration_ns", "int64", "Duration of the span in nanoseconds; null while it runs."),
    Column("status", "text", "Status of the span: ok, error or unset."),
    Column("error_type", "text", "Class of the exception that ended the span."),
    Column("error_message", "text", "Message of the error that ended the span."),
    Column("tokens_in", "int64", "Tokens that the model received."),
    Column("tokens_out", "int64", "Tokens that the model returned."),
    Column("tokens_cached", "int64", "Tokens of tokens_in that the engine had in its cache."),
    Column("finish_reason", "text", "Why the model stopped; of several choices, separated by commas."),
    Column("score_name", "text", "Name of the score that an evaluation span records."),
    Column("score_value", "float64", "The score as a number; 1 or 0 for a bool; null for a label."),
    Column("score_label", "text", "The score as a label; True or False for a bool; null for a number."),
    Column("score_comment", "text", "Reason of the score, in words."),
    Column("score_origin", "text", "Where a score was given: 'process', 'outside' or 'identity'."),
    Column("score_by", "text", "How the score names its trajectory: 'trace' or 'identity'."),
    Column(
        "scores",
        "scores",
        "Scores that a trajectory's span repeats; time_ns is null if unknown.",
    ),
    Column("messages_system", "int64", "Number of system messages in a model call's input."),
    Column("messages_user", "int64", "Number of user messages in a model call's input."),
    Column("messages_assistant", "int64", "Number of assistant messages in a model call's input."),
    Column("messages_tool", "int64", "Number of tool messages in a model call's input."),
    Column("reply", "text", "Text of a model call's reply."),
    Column("continues", "text", "Id of the earlier span with whose context this span's context begins."),
    Column("shared", "int64", "Number of tokens or messages in the prefix that both contexts share."),
    Column("turn_length", "int64", "Number of tokens or messages in the context, without the answer."),
    Column("break_of", "text", "Id of the turn before, if this prompt does not begin with all its tokens."),
    Column("break_token", "int64", "Index, in that turn, of the first token that this prompt lacks."),
    Column("break_removed", "int64", "Tokens of that turn from the first to the last difference."),
    Column("break_added", "int64", "Tokens of this prompt in their place; null if the rest is missing."),
    Column("break_kind", "text", "Probable kind: 'retokenized', 'cut', 'beginning' or 'edited'."),
    Column("break_was", "text", "Text of the first removed tokens."),
    Column("break_became", "text", "Text of the first added tokens."),
    Column("input", "text", "Input of the span, as JSON text unless attributes say otherwise."),
    Column("output", "text", "Output of the span, as JSON text unless attributes say otherwise."),
    Column("attributes", "text", "JSON object of the attributes that no column holds; null for none."),
    Column("events", "text", "JSON array of the events: name, time_ns, attributes; null for none."),
    Column(
        "links", "text", "JSON array of the links: trace_id, span_id, attributes; null if there are none."
    ),
    Column("resource", "text", "JSON object of the resource's attributes that no column holds."),
    Column("service", "text", "Name of the service: service.name of the resource."),
)
"""The columns, in the order of the table."""
NAMES: Final = tuple(column.name for column in COLUMNS)
STATISTICS: Final = (
    *("trace_id", "run_id", "project", "experiment", "step", "sample_index", "rollout_n", "validate"),
    *("group_id", "name", "kind", "tool_name", "is_root", "start_time", "start_ns", "status", "score_name"),
)
"""Columns whose bounds the table's log has for each file, so that a query reads only some of the files."""
STATISTICS_PROPERTY: Final = "delta.dataSkippingStatsColumns"
"""Property of a table that lists the columns of ``STATISTICS``."""
SCORE_FIELDS: Final[tuple[tuple[str, ColumnType], ...]] = (
    ("name", "text"),
    ("value", "float64"),
    ("label", "text"),
    ("time_ns", "int64"),
)
"""Name and type of the fields of an entry of column ``scores``."""


def data_type(type_: ColumnType) -> DataType:
    """Return the Arrow type of a column."""
    from arro3.core import DataType, Field

    if type_ == "timestamp":
        return DataType.timestamp("us", tz="UTC")
    if type_ == "scores":
        return DataType.list(Field("element", DataType.struct(score_fields())))
    plain = {"int64": DataType.int64, "float64": DataType.float64, "bool": DataType.bool}
    return plain.get(type_, DataType.string)()


def score_fields() -> list[Field]:
    """Return the Arrow fields of an entry of column ``scores``."""
    from arro3.core import Field

    return [Field(name, data_type(type_)) for name, type_ in SCORE_FIELDS]


@cache
def arrow_schema(without_meaning: frozenset[str] = frozenset()) -> Schema:
    """Return the columns as an Arrow schema, with their meanings as metadata.

    Args:
        without_meaning: names of the columns that a table has already. The table's meanings may be those of
            an older version, and cannot be merged.
    """
    from arro3.core import Field, Schema

    return Schema(
        [
            Field(column.name, data_type(column.type_)).with_metadata(
                {} if column.name in without_meaning else {COMMENT: column.meaning}
            )
            for column in COLUMNS
        ]
    )
