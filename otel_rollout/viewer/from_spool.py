"""Trajectories out of what recording processes have left on disk: segments, archived ones too."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.forwarder.detokenizer import Detokenizer
from otel_rollout.otlp.reader import UnreadableLineError, spans_of
from otel_rollout.spool import files, layout
from otel_rollout.viewer.reference import Reference, UnresolvedError
from otel_rollout.viewer.summary import Gathering, Summary

_FEW: Final = 16
_NAMED: Final = 3
"""Newer runs that are named, where an older one is shown."""
_TRACE_ID: Final = re.compile(rb'"traceId": ?"([0-9a-f]{32})"')
_logger = logging.getLogger("otel_rollout.viewer")


class Kept:
    """Reads a spool, a run's or node's directory, or a file of OTLP JSON Lines.

    Args:
        place: where to look.
        is_named: whether a person named it. Elsewhere only this user's runs are read: a temporary directory
            may hold what somebody else wants to show.

    Raises:
        UnresolvedError: there is nothing to read.
    """

    def __init__(self, place: Path, is_named: bool = True) -> None:
        self.place = str(place)
        self.notes: tuple[str, ...] = ()
        self._runs = _runs(place, is_named)

    def find(self, reference: Reference | None) -> list[Summary]:
        """Those that are meant, of the newest run that has some; without reference all of a run's."""
        passed_over: list[_Run] = []
        for run in reversed(self._runs):
            paths = run.paths
            if reference is None:
                found = [one for one in _summaries(_lines(paths)) if one.path]
            elif reference.trace:
                found = _summaries(_lines_with(paths, [reference.trace]))
            else:
                tops = _summaries(line for line in _lines(paths) if _is_top(line))
                ids = [one.trace_id for one in tops if reference.matches(one)]
                found = _summaries(_lines_with(paths, ids) if ids else _lines(paths))
            meant = [one for one in found if reference is None or reference.matches(one)]
            if meant:
                self.notes = _about_newer_runs(passed_over, reference)
                return meant
            passed_over.append(run)
        return []

    def spans(self, trace_id: str) -> list[ReadableSpan]:
        """All spans of a trace; scores may have been given in another run than it."""
        return [
            span
            for run in self._runs
            for line in _lines_with(run.paths, [trace_id])
            for span in _decoded(line)
            if _trace_id(span) == trace_id
        ]

    def decoder(self, name: str) -> Detokenizer | None:
        """What decodes with the tokenizer that a run calls ``name``; None where it is not there."""
        paths = [path for run in self._runs for path in run.paths]
        places = dict.fromkeys(place for path in paths for place in (path.parent, path.parent.parent))
        try:
            found = (Detokenizer.stored(place, name) for place in places)
            return next(filter(None, found), None)
        except ImportError:
            _logger.warning("For the text of token ids: pip install 'otel-rollout[tokens]'")
        except Exception as error:  # noqa: BLE001 - whatever the library says of a file that holds no tokenizer
            _logger.warning("The tokenizer %s cannot be read: %s", name, error)
        return None


def _summaries(lines: Iterable[bytes]) -> list[Summary]:
    gathered: dict[str, Gathering] = {}
    for line in lines:
        for span in _decoded(line):
            trace_id = _trace_id(span)
            gathered.setdefault(trace_id, Gathering(trace_id)).add(span)
    return [one.summary() for one in gathered.values()]


def _is_top(line: bytes) -> bool:
    """Whether a span without parent may be in a line: by far fewer are than all, and they say what it is."""
    return b'"parentSpanId":""' in line or b'"parentSpanId"' not in line


def _lines_with(paths: Sequence[Path], ids: Sequence[str]) -> Iterator[bytes]:
    """The lines in which one of these trace ids is, or, of few, the beginning of one."""
    marks = {id_.encode() for id_ in ids}
    for line in _lines(paths):
        if len(marks) > _FEW:
            is_meant = not marks.isdisjoint(match[1] for match in _TRACE_ID.finditer(line))
        else:
            is_meant = any(mark in line for mark in marks)
        if is_meant:
            yield line


class _Run(NamedTuple):
    """A run and its files; what was delivered has none left. A mere file has no name."""

    name: str
    paths: list[Path]


def _about_newer_runs(passed_over: Sequence[_Run], reference: Reference | None) -> tuple[str, ...]:
    """What is to be said where trajectories are not of the newest run."""
    if not passed_over:
        return ()
    named = ", ".join(run.name for run in passed_over[:_NAMED])
    more = f" and {len(passed_over) - _NAMED} more" if len(passed_over) > _NAMED else ""
    what = "no trajectory" if reference is None else f"no {reference.text}"
    return (
        f"This is an older run: {what} is here of {named}{more}.",
        "Delivered segments are removed unless OTEL_ROLLOUT_KEEP=true; --from mlflow shows the others.",
    )


def _runs(place: Path, is_named: bool) -> list[_Run]:
    """The runs there, the newest last."""
    if place.is_file():
        return [_Run("", [place])]
    if place.exists() and not place.is_dir():
        raise UnresolvedError(f"{place} is neither a file nor a directory.")
    if not place.is_dir():
        raise UnresolvedError(
            f"There is no {place}: name with --from where a run was recorded, its "
            "OTEL_ROLLOUT_SPOOL_DIR, or `mlflow` for what was delivered there."
        )
    try:
        os.listdir(place)
    except OSError as error:
        raise UnresolvedError(f"{place} cannot be read: {error.strerror}.") from error
    node_dirs = layout.node_directories(place)
    by_run: dict[Path, _Run] = {}
    for node_dir in node_dirs:
        run = by_run.setdefault(node_dir.parent, _Run(_name_of(node_dir), []))
        run.paths.extend(files.segments_below(node_dir))
    runs = list(by_run.values())
    if is_named and not any(run.paths for run in runs):
        runs = [_Run("", files.segments_below(place))]
    if not any(run.paths for run in runs):
        what = "was delivered from there" if node_dirs else "was recorded there"
        raise UnresolvedError(
            f"{place} holds no segments. If something {what}: delivered segments are removed, unless "
            "OTEL_ROLLOUT_KEEP=true is set when the run begins. What is in MLflow is "
            "shown with --from mlflow."
        )
    return runs


def _name_of(node_dir: Path) -> str:
    manifest = layout.read_manifest(node_dir)
    return f"{manifest.run_id} (project {manifest.project_name})" if manifest else node_dir.parent.name


def _lines(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        try:
            yield from files.lines_of(_present(path))
        except (OSError, ValueError) as error:
            _logger.warning("%s is passed over: %s", path, error)


def _present(path: Path) -> Path:
    """A segment, or its archive if it has become that just now."""
    archived = path.parent / layout.ARCHIVE / (path.name + layout.COMPRESSED_SUFFIX)
    return archived if not path.exists() and archived.exists() else path


def _decoded(line: bytes) -> list[ReadableSpan]:
    try:
        return spans_of(line)
    except UnreadableLineError:  # half a line of a process that is writing, or damage, which `status` counts
        return []


def _trace_id(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}" if span.context else ""
