"""Read a rollout table from Python: its views as DataFrames, SQL, and single trajectories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from otel_rollout.look.conversation import atif, page, training_data
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.conversation.summary import VALIDATION
from otel_rollout.look.errors import ViewerError
from otel_rollout.look.sources import reference
from otel_rollout.look.sources.table_source import TableSource
from otel_rollout.table import views
from otel_rollout.table.annotations import append, scores_in
from otel_rollout.table.errors import TableError
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine
from otel_rollout.table.row_set import Rows
from otel_rollout.table.select import literal
from otel_rollout.table.store import Store


def open_table(uri: str | os.PathLike[str]) -> RolloutTable:
    """Open a rollout table, as it is now.

    Args:
        uri: a directory, or an address such as ``s3://bucket/rollouts``.

    Raises:
        TableError: there is no rollout table, or it cannot be read. The message is one sentence.
    """
    return RolloutTable(uri)


def messages_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the chat messages of a trajectory from the rows of its spans, in any order.

    The function serves code that other engines call, such as Ray's ``map_groups``.

    Args:
        rows: rows of the trajectory's spans, with all columns of :attr:`RolloutTable.spans`.
    """
    return training_data.chat_of_rows(rows)


class RolloutTable:
    """The views of a rollout table. Rows that are written later appear after :meth:`refresh`.

    Args:
        uri: see :func:`open_table`.
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        try:
            self._store = Store(location_of(_address(uri)))
        except ValueError as error:
            raise TableError(str(error)) from error
        self.uri = self._store.location.uri
        self.refresh()

    def refresh(self) -> RolloutTable:
        """Read the newest version of the table from now on."""
        self._delta = self._store.open()
        self._engine = Engine(self._delta)
        return self

    @property
    def version(self) -> int:
        """Version of the Delta table that is read."""
        return int(self._delta.version())

    @property
    def trajectories(self) -> Rows:
        """A row per trajectory: identity, state, duration, counts and reward."""
        return Rows(self._engine, "trajectories")

    @property
    def turns(self) -> Rows:
        """A row per model call."""
        return Rows(self._engine, "turns")

    @property
    def tool_calls(self) -> Rows:
        """A row per call of a tool."""
        return Rows(self._engine, "tool_calls")

    @property
    def scores(self) -> Rows:
        """A row per trajectory and name of a score: the newest score."""
        return Rows(self._engine, "scores")

    @property
    def training(self) -> Rows:
        """A row per trajectory: what training made of it, with ``trained``, ``lag`` and ``mismatch``."""
        return Rows(self._engine, "training")

    @property
    def unresolved_scores(self) -> Rows:
        """A row per score by identity that belongs to no trajectory, with the reason."""
        return Rows(self._engine, "unresolved_scores")

    @property
    def groups(self) -> Rows:
        """A row per group of trajectories."""
        return Rows(self._engine, "groups")

    @property
    def steps(self) -> Rows:
        """A row per training or validation step of a run."""
        return Rows(self._engine, "steps")

    @property
    def runs(self) -> Rows:
        """A row per run."""
        return Rows(self._engine, "runs")

    @property
    def spans(self) -> Rows:
        """A row per span; a span that was delivered twice counts once."""
        return Rows(self._engine, "spans")

    def sql(self, query: str) -> Rows:
        """Return the rows of one SELECT on the views.

        Args:
            query: the SELECT.

        Raises:
            QueryError: the text is no SELECT, or has an error. The message is one sentence.
        """
        return Rows(self._engine, self._engine.check(query))

    def trajectory(
        self,
        step: int | str | None,
        sample: int | str | None = None,
        rollout: int | None = None,
        *,
        validate: bool = False,
    ) -> StoredTrajectory:
        """Read one trajectory with its conversation.

        Args:
            step: the training step, or None for a trajectory without one; or a name as ``otel-rollout show``
                takes it, or a trace id.
            sample: the dataset row.
            rollout: index in the group; by default 0. If no trajectory has index 0, the default is the only
                trajectory of the row.
            validate: whether the trajectory is of a validation.

        Raises:
            TableError: no trajectory or several have this name.
        """
        parts = ("-" if step is None else step, sample, rollout or 0)
        name = str(step) if sample is None else "/".join(map(str, parts))
        try:
            source = TableSource(self._engine, self.uri)
            wanted = reference.parse(f"{VALIDATION}/{name}" if validate else name)
            if sample is not None and rollout is None and not source.find(wanted):
                wanted = reference.parse(wanted.path.rpartition("/")[0])
            chosen = reference.choose(wanted, source.find(wanted), self.uri)
            found = source.conversation(chosen.trace_id, wanted.span)
            return StoredTrajectory(self, chosen.trace_id, found)
        except ViewerError as error:
            raise TableError(str(error)) from error

    def messages(self, trajectories: Rows | None = None) -> Iterator[dict[str, Any]]:
        """Yield chat messages for supervised training: ``trace_id``, ``path``, ``reward``, ``messages``.

        The messages are in OpenAI's form: those of the trajectory's longest model call, and its reply.
        Trajectories without known messages are left out, and counted in the log.

        Args:
            trajectories: rows of :attr:`trajectories`; all by default.

        Raises:
            TableError: ``trajectories`` is no set of rows.
        """
        chosen = self.trajectories if trajectories is None else _rows(trajectories)
        return training_data.examples(self._engine, chosen.select("trace_id", "path", "reward").dicts())

    def preference_pairs(
        self, trajectories: Rows | None = None, *, min_spread: float = 0.0
    ) -> Iterator[dict[str, Any]]:
        """Yield the best and the worst trajectory of each group: ``prompt``, ``chosen``, ``rejected``.

        Each of the three is a list of chat messages in the form of :meth:`messages`.

        Args:
            trajectories: rows of :attr:`trajectories`; by default those of training.
            min_spread: minimum difference of the two rewards. Equal rewards never make a pair.

        Raises:
            TableError: ``trajectories`` is no set of rows, or ``min_spread`` is no number.
        """
        chosen = self.trajectories.filter(validate=False) if trajectories is None else _rows(trajectories)
        if not isinstance(min_spread, (int, float)):
            raise TableError(f"min_spread is {min_spread!r}; expected a number, such as 0.5.")
        return training_data.pairs(self._engine, chosen, min_spread)

    def annotate(self, frame: Any, *scores: str, comment: str | None = None) -> int:
        """Append scores of trajectories to the table, and read its newest version.

        The scores are in the table only; ``otel_rollout.score()`` reaches every destination of a run.

        Args:
            frame: a DataFrame, Arrow table or list of dicts with a column ``trace_id``. A null is no score.
            scores: columns with scores, each a score's name; by default all other columns.
            comment: column with the reason of each score.

        Returns:
            Number of scores.

        Raises:
            TableError: a column is missing, a value is no score, or a trajectory is not in the table.
                Nothing is written then.
        """
        self.refresh()
        given = scores_in(frame, scores, comment)
        number = append(self._store, self._engine, given)
        self.refresh()
        return number

    def files(self) -> list[str]:
        """Return the Parquet files that hold the table's rows, as paths or addresses.

        A span that was delivered twice is in these files twice.
        """
        return list(self._delta.file_uris())

    def ray(self, *columns: str, **options: Any) -> Any:
        """Return a ``ray.data.Dataset`` of the table's rows, a row per span; needs ray and pyarrow.

        Args:
            columns: names of columns of :attr:`spans`; all by default.
            options: further arguments of ``ray.data.read_parquet``, such as ``filesystem``.
        """
        import pyarrow
        import ray

        # The schema is given, because a file of an older forwarder may lack columns.
        schema = pyarrow.schema(self._delta.schema().to_arrow())
        rows = ray.data.read_parquet(self.files(), schema=schema, **options)
        return rows.select_columns(list(columns)) if columns else rows

    def duckdb(self, connection: Any = None) -> Any:
        """Return a connection of DuckDB that has the views; needs duckdb.

        DuckDB itself reads the table's files. For files in S3, it needs its extension ``httpfs``.

        Args:
            connection: the connection to add the views to; by default a new one.
        """
        import duckdb

        opened = duckdb.connect() if connection is None else connection
        files = ", ".join(literal(path) for path in self.files())
        stored = f"SELECT * FROM read_parquet([{files}], union_by_name = true)"  # noqa: S608
        for name, sql in ((views.STORED_ROWS, stored), *self._engine.definitions()):
            opened.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {sql}")
        return opened

    def __repr__(self) -> str:
        return f"<rollout table {self.uri}, version {self.version}>"

    def _repr_html_(self) -> str:
        """Return the table's runs as HTML, for notebooks."""
        return self.runs._repr_html_()


def _rows(trajectories: Any) -> Rows:
    """Return the argument; raise a TableError if it is not rows."""
    if not isinstance(trajectories, Rows):
        raise TableError(f"trajectories is {trajectories!r}; expected rows, as table.trajectories.limit(9).")
    return trajectories


def _address(uri: str | os.PathLike[str]) -> str:
    """Return the address of a table as text.

    Raises:
        ValueError: the address is neither text nor a path, or is empty.
    """
    address = os.fspath(uri) if isinstance(uri, (str, os.PathLike)) else None
    if not isinstance(address, str) or not address:
        raise ValueError(f"the table's address is {uri!r}; expected a directory, or s3://BUCKET/PATH.")
    return address


class StoredTrajectory:
    """One trajectory of a table, with its conversation.

    Args:
        table: the table.
        trace_id: id of the trajectory's trace.
        conversation: the trajectory, turn by turn.
    """

    def __init__(self, table: RolloutTable, trace_id: str, conversation: Conversation) -> None:
        self._table = table
        self.trace_id = trace_id
        self.conversation = conversation

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Role and text of each turn, with the tool calls that the model asks for."""
        return [
            {
                "role": turn.role,
                "content": turn.text,
                **({"name": turn.name} if turn.name else {}),
                **({"calls": [(call.name, call.arguments) for call in turn.calls]} if turn.calls else {}),
            }
            for turn in self.conversation.turns
        ]

    @property
    def chat(self) -> list[dict[str, Any]]:
        """Chat messages in OpenAI's form; see :meth:`RolloutTable.messages`."""
        return training_data.chat_of(self.conversation)

    def atif(self) -> dict[str, Any]:
        """Return the trajectory in the Agent Trajectory Interchange Format, ready for ``json.dump``."""
        return atif.document_of(self.conversation)

    @property
    def scores(self) -> dict[str, Any]:
        """The newest value of each score, by name."""
        return {score.name: score.value for score in self.conversation.summary.scores}

    @property
    def spans(self) -> Rows:
        """The trajectory's spans."""
        return self._table.spans.filter(trace_id=self.trace_id).sort("start_ns")

    def __repr__(self) -> str:
        summary = self.conversation.summary
        name, turns = summary.path or summary.name, len(self.conversation.turns)
        return f"<trajectory {name} {summary.state}, {turns} turns>"

    def _repr_html_(self) -> str:
        """Return the conversation as HTML in a frame of its own, for notebooks."""
        content = escape(page.of_conversation(self.conversation))
        return f'<iframe sandbox srcdoc="{content}" style="width:100%;height:40em;border:0"></iframe>'
