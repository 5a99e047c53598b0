"""Store and merge trajectory rows in plain Python: the rules alone, without a table or SQL.

The view is simplified, but a row depends on what a row of the real view depends on: the spans of its trace,
the scores by identity of its step, and which runs have trajectories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from tests.table.stored_histories import Compact, Deliver, Operation, Prune, Row


class Trajectory(NamedTuple):
    """A trajectory's row."""

    run: str
    path: tuple[Any, ...]
    state: str
    calls: tuple[int, int]
    newest: tuple[int, float] | None


Figures = dict[str, list[Trajectory]]
"""Trace id → its trajectories; none of a trace that has spans alone."""
Step = tuple[Any, ...]


class Stored(NamedTuple):
    """Stored rows.

    Attributes:
        covered: the files that they are of.
        rows: the rows.
    """

    covered: frozenset[int]
    rows: Figures


class Table:
    """A table of rows in files, with stored trajectory rows."""

    def __init__(self) -> None:
        self._files: dict[int, list[Row]] = {}
        self._number = 0
        self._stored: Stored | None = None

    def do(self, operation: Operation) -> None:
        """Carry out an operation."""
        if isinstance(operation, Deliver):
            self._add(operation.rows)
        elif isinstance(operation, Compact):
            self._compact(operation)
        else:
            self._prune(operation)

    def expected(self) -> Figures:
        """Return the view over all spans."""
        return view_of(self._rows())

    def merged(self) -> Figures:
        """Return the stored rows of closed traces, and the view over the spans of the open ones."""
        stored = self._stored
        if stored is None or not stored.covered <= self._files.keys():
            return self.expected()
        new = self._rows(self._files.keys() - stored.covered)
        opened = open_traces(stored.rows, {row["trace_id"] for row in new}, self._rows())
        closed = {trace: rows for trace, rows in stored.rows.items() if trace not in opened}
        runs = {row.run for rows in closed.values() for row in rows}
        return closed | view_of([row for row in self._rows() if row["trace_id"] in opened], runs)

    def _rows(self, files: Collection[int] | None = None) -> list[Row]:
        return [row for file, rows in self._files.items() if files is None or file in files for row in rows]

    def _add(self, rows: Iterable[Row]) -> None:
        self._number += 1
        self._files[self._number] = list(rows)

    def _compact(self, operation: Compact) -> None:
        found = self.merged()
        merged = self._rows()
        self._files.clear()
        self._add(merged)
        covered = frozenset(self._files)
        if operation.meanwhile:
            self._add(operation.meanwhile)
        if not operation.is_killed:
            self._stored = Stored(covered, found)

    def _prune(self, operation: Prune) -> None:
        left = [row for row in self._rows() if (row["run_id"], row["step"]) != operation[:2]]
        self._files.clear()
        self._add(left)
        if not operation.is_killed:
            self._stored = Stored(frozenset(self._files), view_of(left))


def open_traces(stored: Figures, changed: set[str], spans: list[Row]) -> set[str]:
    """Return the traces whose trajectories are computed anew.

    Args:
        stored: the stored rows.
        changed: the traces with a row in a file that is not covered.
        spans: all rows.
    """
    named: dict[str, set[Step]] = {}
    runs: dict[str, set[str]] = {}
    for span in spans:
        runs.setdefault(span["trace_id"], set()).add(span["run_id"] or "")
        named.setdefault(span["trace_id"], set()).update([step_of(span)] if has_step(span) else [])
    kept = {row.run for trace, rows in stored.items() if trace not in changed for row in rows}
    touched = {run for trace in changed for run in runs[trace]} - kept  # its first trajectory may have come
    traces = changed | {trace for trace in named if runs[trace] & touched}
    while True:
        steps = {step for trace in traces for step in named[trace]}
        found = traces | {trace for trace in named if named[trace] & steps}
        if found == traces:
            return traces
        traces = found


# --- the view ---------------------------------------------------------------------------------------------


def step_of(span: Row) -> Step:
    """Return a span's step: its number or text; None without one."""
    text = span.get("step_text") if span["step"] is None else str(span["step"])
    return span["project"], span["experiment"], text


def has_step(span: Row) -> bool:
    """Return whether a span names a step."""
    return step_of(span)[-1] is not None


def is_by_identity(span: Row) -> bool:
    """Return whether a span is a score by identity."""
    return span.get("score_by") == "identity"


def view_of(recorded: Iterable[Row], runs: Collection[str] = ()) -> Figures:
    """Return the trajectories of each trace: step, run, path, state, calls and newest score.

    Args:
        recorded: the spans.
        runs: further runs that have trajectories.
    """
    traces: dict[str, list[Row]] = {}
    for span in _once(recorded):
        traces.setdefault(span["trace_id"], []).append(span)
    roots = {trace: list(_roots_of(spans)) for trace, spans in traces.items()}
    all_roots = [root for found in roots.values() for root in found]
    known = {root["run_id"] or "" for root in all_roots} | set(runs)
    scores: dict[str, list[tuple[int, float]]] = {}
    for span in (span for spans in traces.values() for span in spans):
        if is_by_identity(span):
            matches = list(_matches(span, all_roots, known))
            for root in matches if len(matches) == 1 else ():
                scores.setdefault(root["trace_id"], []).append((span["start_ns"], span["score_value"]))
        elif "score_name" in span:
            scores.setdefault(span["trace_id"], []).append((span["start_ns"], span["score_value"]))
    return {
        trace: [_row(root, traces[trace], scores.get(trace, [])) for root in found]
        for trace, found in roots.items()
    }


def _once(recorded: Iterable[Row]) -> Iterator[Row]:
    found: dict[tuple[str, str], Row] = {}
    for span in recorded:
        key = span["trace_id"], span["span_id"]
        if key not in found or _rank(found[key]) < _rank(span):
            found[key] = span
    yield from found.values()


def _rank(span: Row) -> tuple[Any, ...]:
    """Return what decides between rows of one span: their content, not their order."""
    return span["duration_ns"] or -1, len(span.get("attributes") or ""), repr(sorted(span.items(), key=str))


def _roots_of(spans: list[Row]) -> Iterator[Row]:
    named = [span for span in spans if span["validate"] is not None and not is_by_identity(span)]
    if any(span["is_root"] for span in spans):
        yield from (span for span in named if span["is_root"])
    elif named:
        ids = {span["span_id"] for span in named}
        first = min(
            named, key=lambda span: (span["parent_span_id"] in ids, span["kind"] == "AGENT", span["start_ns"])
        )
        yield {**first, "duration_ns": None, "start_ns": min(span["start_ns"] for span in named)}


def _group(span: Row) -> tuple[Any, ...]:
    return (*step_of(span), span["validate"], span["sample_index"])


def _matches(score: Row, roots: Iterable[Row], runs: Collection[str]) -> list[Row]:
    has_own = (score["run_id"] or "") in runs
    found = [
        root
        for root in roots
        if has_step(score)
        and _group(score) == _group(root)
        and score["rollout_n"] in (None, root["rollout_n"])
        and (not has_own or (score["run_id"] or "") == (root["run_id"] or ""))
    ]
    begun = [root for root in found if root["start_ns"] <= score["start_ns"]]
    return begun or found


def _row(root: Row, spans: list[Row], scores: list[tuple[int, float]]) -> Trajectory:
    repeated = [(score["time_ns"], score["value"]) for score in root.get("scores") or ()]
    state = "running" if root["duration_ns"] is None else root["status"]
    calls = sum(span.get("tokens_in") or 0 for span in spans), sum(span["kind"] == "TOOL" for span in spans)
    newest = max([*scores, *repeated], default=None)
    return Trajectory(root["run_id"] or "", (*_group(root), root["rollout_n"]), state, calls, newest)
