"""Read trajectories from segments and archived segments on disk."""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from otel_rollout.base import semconv, training_scores
from otel_rollout.base.bounded import BoundedDict
from otel_rollout.base.errors import warn_once
from otel_rollout.look.conversation.summary import Summary, path_of
from otel_rollout.look.errors import ViewerError, unreadable
from otel_rollout.look.sources.reference import Reference
from otel_rollout.look.sources.table_source import LISTER
from otel_rollout.otlp.json_line import UnreadableLineError, parsed_line, spans_of_json
from otel_rollout.otlp.scan import may_have_root, trace_ids_in
from otel_rollout.otlp.score_batch import expanded
from otel_rollout.otlp.score_identity import is_by_identity, may_be_by_identity
from otel_rollout.otlp.span import Span
from otel_rollout.spool import files, layout, segments
from otel_rollout.spool.files import running_roots
from otel_rollout.turns import foreign_spans
from otel_rollout.turns.detokenizer import Detokenizer
from otel_rollout.turns.line_rewriter import MEMORY_BYTES, may_have_text, may_repeat_content
from otel_rollout.turns.span_rewriter import Contents, SpanRewriter, TraceMemory

_TRAINED: Final = b'"%b"' % training_scores.TRAINED.encode()
_EVALUATION: Final = b'"%b"' % semconv.GEN_AI_EVALUATION_NAME.encode()
_IDS: Final = b'_ids\\":['
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
    """Reads spans from files; see :class:`otel_rollout.look.sources.private_table.SpanSource`.

    Args:
        path: a spool directory, a run or node directory, or a file of OTLP JSON Lines.
        is_named: whether a person named the path. In the default directory only this user's runs are read,
            since other users may have put files into a temporary directory.

    Raises:
        ViewerError: there is nothing to read.
    """

    lister = LISTER

    def __init__(self, path: Path, is_named: bool = True) -> None:
        self.location = str(path)
        self._runs = _runs(path, is_named)

    def matching(self, reference: Reference | None) -> Iterator[tuple[Iterable[Span], None]]:
        """Yield each run's spans; see :class:`otel_rollout.look.sources.private_table.SpanSource`.

        A trace's spans are read from all runs, because a later run may have added scores.
        """
        if reference is None:
            yield self.every_span(), None
            return
        for run in reversed(self._runs):
            if ids := self._trace_ids(run, reference):
                yield self._answering(ids), None

    def notes(self, reference: Reference | None, found: Sequence[Summary]) -> tuple[str, ...]:
        """Return remarks that newer runs have no such trajectory."""
        ids = [run.id for run in self._runs]
        later = self._runs[ids.index(found[0].run) + 1 :] if found[0].run in ids else []
        return _notes_on_newer_runs([run for run in reversed(later) if run.may_have_trajectories], reference)

    def _trace_ids(self, run: _Run, reference: Reference) -> frozenset[str]:
        """Return the ids of a run's traces that a reference may name; usually, only roots are searched."""
        running = run.running().values()  # read first: what ends meanwhile is in the lines, too
        if reference.trace:
            lines = (line for line in _lines(run.paths) if reference.trace.encode() in line)
            return _named(chain(_spans_in(lines), running), reference)
        roots = _spans_in(filter(may_have_root, _lines(run.paths)))
        return _named(chain(roots, running), reference) or _named(_spans_in(_lines(run.paths)), reference)

    def _answering(self, ids: frozenset[str]) -> Iterator[Span]:
        """Yield the spans of traces, and spans that decide about their scores by identity and training."""
        steps, turns = set(), _Turns(self._decoder)
        for span in self._every_span(lambda lines: _with_ids(lines, ids), turns.spans_of):
            if span.trace_id in ids:
                steps.add(_step_of(span))
                yield span
        if any(may_be_by_identity(line) or _TRAINED in line for line in _lines(self.files())):
            yield from self._deciding(ids, steps)

    def _deciding(self, ids: frozenset[str], steps: set[str]) -> Iterator[Span]:
        """Yield roots and scores of other traces that decide about scores by identity and training.

        These are the spans of ``steps`` and of each run's newest trained step, the first root of each run,
        and all spans of traces without a root, which are running.
        """
        trained = self._trained()
        steps = steps | _newest_steps(trained.values())
        named = {trace_id for trace_id, (_, step) in trained.items() if str(step) in steps}
        runs, every, ended = set(), set(), {id_.encode() for id_ in ids}

        def may_decide(line: bytes) -> bool:
            every.update(trace_ids_in(line))
            return may_have_root(line) or _EVALUATION in line

        for span in self._every_span(lambda lines: filter(may_decide, lines), _decoded):
            if span.trace_id in ids:
                continue
            if not span.parent_id:  # also a score by identity, whose trace has no other span
                ended.add(span.trace_id.encode())
            run_id = span.resource.attributes.get(semconv.RUN_ID)
            is_first = run_id not in runs and _is_root(span)
            if is_first:
                runs.add(run_id)
            if is_first or _step_of(span) in steps or span.trace_id in named or span.is_running:
                yield span
        if running := {id_.decode() for id_ in every - ended}:
            found = self._every_span(lambda lines: _with_ids(lines, running), _decoded)
            yield from (span for span in found if span.trace_id in running)

    def _trained(self) -> dict[str, tuple[object, object]]:
        """Return trace id → run and step of its score ``trained``, or its root's if the score has no step."""
        found = {}
        for span in _spans_in(line for line in _lines(self.files()) if _TRAINED in line):
            if span.attributes.get(semconv.GEN_AI_EVALUATION_NAME) == training_scores.TRAINED:
                found[span.trace_id] = _run_and_step(span)
        by_id = {trace_id for trace_id, (_, step) in found.items() if step is None}
        if by_id:
            for root in filter(_is_root, _spans_in(filter(may_have_root, _lines(self.files())))):
                if root.trace_id in by_id:
                    found[root.trace_id] = _run_and_step(root)
        return found

    def every_span(self) -> Iterator[Span]:
        """Yield the spans of all runs; a model call says which turn it continues, or whose prefix it breaks.

        The root of a running trajectory has no end.
        """
        return self._every_span(iter, _Turns(self._decoder).spans_of)

    def _every_span(
        self,
        wanted: Callable[[Iterable[bytes]], Iterator[bytes]],
        decoded: Callable[[bytes], list[Span]],
    ) -> Iterator[Span]:
        """Yield the spans of each run's wanted lines, then the roots of its running trajectories."""
        for run in self._runs:
            running = run.running()
            for line in segments.merged(
                [wanted(_lines(of_one)) for of_one in run.writers()], lambda line: line
            ):
                for span in decoded(line):
                    if running:
                        running.pop(_ids(span), None)
                    yield span
            yield from running.values()

    def files(self) -> list[Path]:
        """Return the files that are read."""
        return [path for run in self._runs for path in run.paths]

    def running(self) -> frozenset[tuple[str, str]]:
        """Return the ids of the roots of all running trajectories."""
        return frozenset(ids for run in self._runs for ids in run.running())

    def _decoder(self, name: str) -> Detokenizer | None:
        """Return the detokenizer that a run calls ``name``; None if it is missing or unreadable."""
        directories = dict.fromkeys(parent for path in self.files() for parent in path.parents[:2])
        problem = f"tokenizer {name} is missing"
        try:
            for directory in directories:
                if (found := Detokenizer.stored(directory, name)) is not None:
                    return found
        except ImportError:
            problem = "run pip install 'otel-rollout[tokens]'"
        except Exception as error:  # noqa: BLE001 - the library raises errors of any type for a damaged file
            problem = f"tokenizer {name} cannot be read: {error}"
        warn_once(f"token ids are shown without text: {problem}", logger=_logger)
        return None


def _named(spans: Iterable[Span], reference: Reference) -> frozenset[str]:
    """Return the ids of traces with a span that a reference may name."""
    return frozenset(
        trace_id
        for span in spans
        if not is_by_identity(attributes := span.attributes)
        and reference.matches(Summary(trace_id := span.trace_id, path=path_of(attributes)))
    )


def _newest_steps(trained: Iterable[tuple[object, object]]) -> set[str]:
    """Return the newest trained step of each run, as text: scores of other trajectories may follow there."""
    newest: dict[object, int] = {}
    for run, step in trained:
        if isinstance(step, int):
            newest[run] = max(step, newest.get(run, step))
    return set(map(str, newest.values()))


def _run_and_step(span: Span) -> tuple[object, object]:
    return span.resource.attributes.get(semconv.RUN_ID), span.attributes.get(semconv.STEP)


def _is_root(span: Span) -> bool:
    attributes = span.attributes
    return not span.parent_id and semconv.is_of_trajectory(attributes) and not is_by_identity(attributes)


def _step_of(span: Span) -> str:
    return str(span.attributes.get(semconv.STEP))


def _with_ids(lines: Iterable[bytes], ids: Collection[str]) -> Iterator[bytes]:
    """Yield the lines that contain one of the trace ids."""
    wanted = {id_.encode() for id_ in ids}
    for line in lines:
        if len(wanted) > _MAX_SEARCHED_IDS:
            is_wanted = not wanted.isdisjoint(trace_ids_in(line))
        else:
            is_wanted = any(id_ in line for id_ in wanted)
        if is_wanted:
            yield line


class _Run(NamedTuple):
    """A run and its files; id and name are empty for a file that a person named."""

    id: str
    name: str
    paths: list[Path]
    node_dirs: list[Path]

    @property
    def may_have_trajectories(self) -> bool:
        """Whether the run has or had a trajectory of its own, and not only scores for other runs."""
        return not self.paths or any(map(_is_root, _spans_in(filter(may_have_root, _lines(self.paths)))))

    def writers(self) -> list[list[Path]]:
        """Return the files of each writer."""
        found: dict[str, list[Path]] = {}
        for path in self.paths:
            found.setdefault(path.name.partition(".")[0], []).append(path)
        return list(found.values())

    def running(self) -> dict[tuple[str, str], Span]:
        """Return the roots of the running trajectories, without an end, by their ids."""
        roots = []
        for node_dir in self.node_dirs:
            try:
                roots += running_roots(node_dir)
            except OSError as error:
                _logger.warning("running trajectories of %s are left out: %s", node_dir, error)
        return {_ids(root): root.without_end() for root in roots}


def _notes_on_newer_runs(newer: Sequence[_Run], reference: Reference | None) -> tuple[str, ...]:
    """Return the notes that ``newer`` runs have no matching trajectory."""
    if not newer:
        return ()
    named = ", ".join(run.name for run in newer[:_MAX_NAMED_RUNS])
    more = f" and {len(newer) - _MAX_NAMED_RUNS} more" if len(newer) > _MAX_NAMED_RUNS else ""
    what = "trajectory" if reference is None else reference.text
    note = f"This is an older run: there is no {what} on disk of {named}{more}."
    if all(run.paths for run in newer):
        return (note,)
    return (
        note,
        "Delivered segments are removed unless OTEL_ROLLOUT_KEEP=true; --from mlflow shows delivered ones.",
    )


def _runs(path: Path, is_named: bool) -> list[_Run]:
    """Find the runs in a directory, the newest last."""
    _check_readable(path, is_named)
    if path.is_file():
        return [_Run("", "", [path], [])]
    node_dirs = layout.node_directories(path)
    by_run: dict[Path, _Run] = {}
    for node_dir in node_dirs:
        run = by_run.setdefault(node_dir.parent, _Run(*_names_of(node_dir), [], []))
        run.node_dirs.append(node_dir)
        run.paths.extend(files.segments_below(node_dir))
    runs = list(by_run.values())
    if is_named and not any(run.paths for run in runs):
        runs = [_Run("", "", files.segments_below(path), [])]
    if not any(run.paths for run in runs):
        why = "Its runs are delivered, and" if node_dirs else "Name a folder with one of them;"
        raise ViewerError(
            f"{path} holds no dump of rollouts, and no segments of a run. {why} delivered segments are "
            "removed unless OTEL_ROLLOUT_KEEP=true is set for the run, and for each command that "
            f"delivers it. {_MLFLOW_ADVICE}"
        )
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
            f"There is no file or directory {path}. Name a dump of rollouts, a rollout table, or the spool "
            f"directory of a run (its OTEL_ROLLOUT_SPOOL_DIR). {_MLFLOW_ADVICE}"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from error


def _names_of(node_dir: Path) -> tuple[str, str]:
    """Return the id of a run, and its name for a person."""
    manifest = layout.read_manifest(node_dir)
    name = f"{manifest.run_id} (project {manifest.project_name})" if manifest else node_dir.parent.name
    return manifest.run_id if manifest else "", name


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


def _spans_in(lines: Iterable[bytes]) -> Iterator[Span]:
    return (span for line in lines for span in _decoded(line))


def _decoded(line: bytes) -> list[Span]:
    try:
        return foreign_spans.filled(line).spans
    except UnreadableLineError:  # the line is still being written, or damaged; `status` counts damaged lines
        return []


def _ids(span: Span) -> tuple[str, str]:
    return span.trace_id, span.span_id


class _Turns:
    """Completes recorded model calls as the forwarder does, with attributes of turns and prefix breaks.

    Args:
        decoder: returns the detokenizer for a name; None if it is missing.
    """

    def __init__(self, decoder: Callable[[str], Detokenizer | None]) -> None:
        self._decoder = functools.cache(decoder)
        self._traces: BoundedDict[str, TraceMemory] = BoundedDict(MEMORY_BYTES, attrgetter("size"))

    def spans_of(self, line: bytes) -> list[Span]:
        """Return the spans of a recorded line; nothing if it is still being written, or damaged."""
        contents = Contents(tokens=_IDS in line, images=False)
        is_rewritten = contents.tokens or may_repeat_content(line, contents) or may_have_text(line)
        if is_rewritten or foreign_spans.may_be_filled(line):
            with suppress(Exception):  # a value of any shape: the spans stay as recorded
                return self._completed(line, contents)
        return _decoded(line)

    def _completed(self, line: bytes, contents: Contents) -> list[Span]:
        spans = [span.opened() for span in spans_of_json(parsed_line(line))]
        foreign_spans.fill(spans)
        for span in spans:
            trace = self._traces.pop(span.trace_id, None) or TraceMemory()
            name = span.text(semconv.TOKENIZER)
            try:
                decoder = self._decoder(name) if name else None
                answer = trace.texts.get(span.text(semconv.TEXT_OF) or "")
                SpanRewriter(span, trace, "tokens", contents, decoder, answer).rewrite()
            finally:
                trace.measure()
                self._traces[span.trace_id] = trace
        return [span.complete() for span in spans]
