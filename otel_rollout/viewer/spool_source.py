"""Read trajectories from segments and archived segments on disk."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.forwarder import foreign_spans
from otel_rollout.forwarder.detokenizer import Detokenizer
from otel_rollout.forwarder.live_trajectories import running_roots
from otel_rollout.otlp.reader import UnreadableLineError
from otel_rollout.otlp.scan import may_have_root, trace_ids_in
from otel_rollout.otlp.score_batch import expanded
from otel_rollout.otlp.score_identity import is_by_identity, may_be_by_identity
from otel_rollout.spool import files, layout
from otel_rollout.viewer.errors import ViewerError
from otel_rollout.viewer.identity_scores import by_trajectory
from otel_rollout.viewer.recorded_turns import RecordedTurns
from otel_rollout.viewer.reference import Reference
from otel_rollout.viewer.summary import Gathering, Summary

_MAX_SEARCHED_IDS: Final = 16
"""Maximum trace ids to search each line for. With more ids, the line's trace ids are parsed and looked up."""
_MAX_NAMED_RUNS: Final = 3
"""Maximum runs named in the note that an older run is shown."""
_MLFLOW_ADVICE: Final = (
    "What MLflow has: `otel-rollout show --from mlflow`; for the other commands, `otel-rollout import mlflow "
    "--to delta` makes a table of it."
)
_logger = logging.getLogger("otel_rollout.viewer")


class SpoolSource:
    """Read trajectories from files; see :class:`otel_rollout.viewer.source.Source`.

    Args:
        path: a spool directory, a run or node directory, or a file of OTLP JSON Lines.
        is_named: whether a person named the path. In the default directory only this user's runs are read,
            since other users may have put files into a temporary directory.

    Raises:
        ViewerError: there is nothing to read.
    """

    def __init__(self, path: Path, is_named: bool = True) -> None:
        self.location = str(path)
        self.notes: tuple[str, ...] = ()
        self._runs = _runs(path, is_named)

    def find(self, reference: Reference | None) -> list[Summary]:
        """Return the matching trajectories of the newest run that has any.

        Without a reference, return all trajectories of that run.
        """
        newer: list[_Run] = []
        for run in reversed(self._runs):
            found = _matching(run, partial(_lines, run.paths), reference, self._scores_by_identity)
            if found:
                self.notes = _notes_on_newer_runs(newer, reference)
                return found
            newer.append(run)
        return []

    def spans(self, trace_id: str) -> list[ReadableSpan]:
        """Return a trace's spans from all runs; a later run may have added scores."""
        return self.traces([trace_id])[trace_id]

    def traces(self, trace_ids: Sequence[str]) -> dict[str, list[ReadableSpan]]:
        """Return all spans of each trace, by its id; the files are read once."""
        found: dict[str, list[ReadableSpan]] = {trace_id: [] for trace_id in trace_ids}
        for span in self._every_span(lambda run: _with_ids(_lines(run.paths), trace_ids), _decoded):
            if (trace_id := _trace_id(span)) in found:
                found[trace_id].append(span)
        for trace_id, spans in found.items():
            spans += self._scores_by_identity.get(trace_id, ())
        return found

    @cached_property
    def _scores_by_identity(self) -> Mapping[str, Sequence[ReadableSpan]]:
        """Scores by identity of all runs, by the trace ids of their trajectories."""
        paths = self.files()
        scores = [line for line in _lines(paths) if may_be_by_identity(line)]
        if not scores:
            return {}
        roots = self._every_span(lambda run: filter(may_have_root, _lines(run.paths)), _decoded)
        return by_trajectory((span for line in scores for span in _decoded(line)), roots)

    def every_span(self) -> Iterator[ReadableSpan]:
        """Yield the spans of all runs, which say of each turn which one it continues or breaks.

        The root of a trajectory that runs has no end.
        """
        return self._every_span(lambda run: _lines(run.paths), RecordedTurns().spans_of)

    def _every_span(
        self,
        lines_of: Callable[[_Run], Iterable[bytes]],
        decoded: Callable[[bytes], list[ReadableSpan]],
    ) -> Iterator[ReadableSpan]:
        """Yield the spans of each run's lines, then the roots of its running trajectories."""
        for run in self._runs:
            running = run.running()
            for line in lines_of(run):
                for span in decoded(line):
                    if running:
                        running.pop(_ids(span), None)
                    yield span
            yield from running.values()

    def files(self) -> list[Path]:
        """Return the files that are read."""
        return [path for run in self._runs for path in run.paths]

    def running(self) -> frozenset[tuple[str, int]]:
        """Return the ids of the roots of all running trajectories."""
        return frozenset(ids for run in self._runs for ids in run.running())

    def decoder(self, name: str) -> Detokenizer | None:
        """Return the decoder of the tokenizer that a run calls ``name``; None if missing."""
        directories = dict.fromkeys(
            parent for path in self.files() for parent in (path.parent, path.parent.parent)
        )
        try:
            found = (Detokenizer.stored(directory, name) for directory in directories)
            return next(filter(None, found), None)
        except ImportError:
            _logger.warning("Token ids are shown without text. Install: pip install 'otel-rollout[tokens]'")
        except Exception as error:  # noqa: BLE001 - the library raises errors of any type for a damaged file
            _logger.warning("Token ids are shown without text: tokenizer %s cannot be read: %s", name, error)
        return None


def _matching(
    run: _Run,
    lines: Callable[[], Iterator[bytes]],
    reference: Reference | None,
    scores: Mapping[str, Sequence[ReadableSpan]],
) -> list[Summary]:
    """Return the matching trajectories of a run's lines; without a reference, all."""
    running = run.running().values()  # before the lines: one that ends meanwhile is among these
    if reference is None:
        return [summary for summary in _summaries(lines(), running, scores) if summary.path]
    if reference.trace:
        found = _summaries(_with_ids(lines(), [reference.trace]), running, scores)
    else:
        roots = _summaries((line for line in lines() if may_have_root(line)), running, {})
        ids = [summary.trace_id for summary in roots if reference.matches(summary)]
        found = _summaries(_with_ids(lines(), ids) if ids else lines(), running, scores)
    return [summary for summary in found if reference.matches(summary)]


def _summaries(
    lines: Iterable[bytes], running: Iterable[ReadableSpan], scores: Mapping[str, Sequence[ReadableSpan]]
) -> list[Summary]:
    """Summarize the trajectories of lines.

    Args:
        lines: recorded lines.
        running: roots of trajectories that run, or did when the lines were read.
        scores: trace id → scores by identity.
    """
    gathered: dict[str, Gathering] = {}
    recorded = (span for line in lines for span in _decoded(line))
    for span in chain(recorded, running):
        if not is_by_identity(span.attributes or {}):
            trace_id = _trace_id(span)
            gathered.setdefault(trace_id, Gathering(trace_id)).add(span)
    for trace_id, gathering in gathered.items():
        for score in scores.get(trace_id, ()):
            gathering.add(score)
    return [gathering.summary() for gathering in gathered.values()]


def _with_ids(lines: Iterable[bytes], ids: Sequence[str]) -> Iterator[bytes]:
    """Yield the lines that contain one of the trace ids.

    Up to ``_MAX_SEARCHED_IDS`` ids may be given by their first digits.
    """
    wanted = {id_.encode() for id_ in ids}
    for line in lines:
        if len(wanted) > _MAX_SEARCHED_IDS:
            is_wanted = not wanted.isdisjoint(trace_ids_in(line))
        else:
            is_wanted = any(id_ in line for id_ in wanted)
        if is_wanted:
            yield line


class _Run(NamedTuple):
    """A run and its files; a file that a person named has no run name."""

    name: str
    paths: list[Path]
    node_dirs: list[Path]

    def running(self) -> dict[tuple[str, int], ReadableSpan]:
        """Return the roots of the running trajectories, without an end, by their ids."""
        roots = []
        for node_dir in self.node_dirs:
            try:
                roots += running_roots(node_dir)
            except OSError as error:
                _logger.warning("running trajectories of %s are left out: %s", node_dir, error)
        return {_ids(root): _without_end(root) for root in roots}


def _notes_on_newer_runs(newer: Sequence[_Run], reference: Reference | None) -> tuple[str, ...]:
    """Return the notes that ``newer`` runs have no matching trajectory."""
    if not newer:
        return ()
    named = ", ".join(run.name for run in newer[:_MAX_NAMED_RUNS])
    more = f" and {len(newer) - _MAX_NAMED_RUNS} more" if len(newer) > _MAX_NAMED_RUNS else ""
    what = "trajectory" if reference is None else reference.text
    return (
        f"This is an older run: there is no {what} on disk of {named}{more}.",
        "Delivered segments are removed unless OTEL_ROLLOUT_KEEP=true; --from mlflow shows delivered ones.",
    )


def _runs(path: Path, is_named: bool) -> list[_Run]:
    """Find the runs in a directory, the newest last."""
    _check_readable(path, is_named)
    if path.is_file():
        return [_Run("", [path], [])]
    node_dirs = layout.node_directories(path)
    by_run: dict[Path, _Run] = {}
    for node_dir in node_dirs:
        run = by_run.setdefault(node_dir.parent, _Run(_run_name(node_dir), [], []))
        run.node_dirs.append(node_dir)
        run.paths.extend(files.segments_below(node_dir))
    runs = list(by_run.values())
    if is_named and not any(run.paths for run in runs):
        runs = [_Run("", files.segments_below(path), [])]
    if not any(run.paths for run in runs):
        why = (
            "Its runs are delivered, and delivered segments are removed unless OTEL_ROLLOUT_KEEP=true is set "
            "when a run starts."
            if node_dirs
            else "Name with --from the spool directory of a run (its OTEL_ROLLOUT_SPOOL_DIR); delivered "
            "segments are removed from it unless OTEL_ROLLOUT_KEEP=true is set when the run starts."
        )
        raise ViewerError(f"{path} holds no segments. {why} {_MLFLOW_ADVICE}")
    return runs


def _check_readable(path: Path, is_named: bool) -> None:
    if not is_named and (problem := layout.problem_of(path)):
        raise ViewerError(problem)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.listdir(path)
        elif stat.S_ISREG(mode):
            path.open("rb").close()
        else:
            raise ViewerError(f"{path} is neither a file nor a directory.")
    except FileNotFoundError:
        raise ViewerError(
            f"There is no {path}. Name with --from the spool directory of a run (its OTEL_ROLLOUT_SPOOL_DIR),"
            " or `mlflow` for trajectories in MLflow."
        ) from None
    except OSError as error:
        raise ViewerError(f"{path} cannot be read: {error.strerror}.") from error


def _run_name(node_dir: Path) -> str:
    manifest = layout.read_manifest(node_dir)
    return f"{manifest.run_id} (project {manifest.project_name})" if manifest else node_dir.parent.name


def _lines(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        try:
            for line in files.lines_of(_existing(path)):
                yield from expanded(line)
        except (OSError, ValueError) as error:
            _logger.warning("%s is skipped: %s", path, error)


def _existing(path: Path) -> Path:
    """Return a segment's path, or its archive's if it has just been archived."""
    archived = path.parent / layout.ARCHIVE / (path.name + layout.COMPRESSED_SUFFIX)
    return archived if not path.exists() and archived.exists() else path


def _decoded(line: bytes) -> list[ReadableSpan]:
    try:
        return foreign_spans.filled(line).spans
    except UnreadableLineError:  # the line is still being written, or damaged; `status` counts damaged lines
        return []


def _without_end(root: ReadableSpan) -> ReadableSpan:
    """Return the root of a running trajectory without the end that it has if its process dies."""
    return ReadableSpan(
        root.name,
        root.context,
        root.parent,
        root.resource,
        root.attributes,
        links=root.links,
        instrumentation_scope=root.instrumentation_scope,
        start_time=root.start_time,
    )


def _ids(span: ReadableSpan) -> tuple[str, int]:
    return _trace_id(span), span.context.span_id if span.context else 0


def _trace_id(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}" if span.context else ""
