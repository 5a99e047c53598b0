"""Name the files of the spool, between recording processes and the forwarder.

::

    <spool_dir>/<run id>/<host>-<boot id>/        one directory per run and node ("node directory")
        run.json                      manifest: the run's id and exporters (never credentials)
        trackers.json                 the trackers' runs of this run, after they are published
        <writer>.<sequence>.jsonl     segment: OTLP JSON Lines, one span per line; flock'd while it is written
        <writer>.journal              journal: the writer's tail and counters, readable after its death
        <writer>.open                 root table: the writer's running and unfinished trajectories
        forwarder.lock                lock of the directory's one forwarder; names the forwarder's access
        forwarder.successor           request of a process that is to take the lock over
        forwarder.log                 log of the forwarder
        receiver.lock                 lock of the directory's one receiver of OTLP
        receiver.json                 the receiver's address, and the token that its senders present
        receiver.counts.json          the receiver's requests and spans, and why it cannot receive
        receiver.started              touched by a process that starts a receiver
        receiver.log                  log of the receiver
        waiting                       touched repeatedly by a program that waits: batches are committed now
        draining                      touched by a program that waits: tail sampling decides what has ended
        ledger.sqlite                 ledger: cursors and counts per exporter
        unreadable-<time>.ledger.sqlite   an unreadable ledger that was replaced
        rejected.<exporter>.jsonl     dead-letter file: spans that a target rejects, with the reason
        tokenizers/<name>.json        tokenizers; spans with token ids refer to them by name
        archive/<segment>.jsonl.zst   archived segments, if delivered segments are kept

This module defines names and owners. Other modules of this room, ``account``, ``record.recording`` and
``deliver`` define the content of the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from otel_rollout.spool.private_files import (
    ForeignFileError,
    check_private,
    is_own,
    log_left_alone,
    open_private,
)

SEGMENT_SUFFIX = ".jsonl"
JOURNAL_SUFFIX = ".journal"
OPEN_SUFFIX = ".open"
MANIFEST = "run.json"
TRACKERS = "trackers.json"
ARCHIVE = "archive"
DRAINING = "draining"
WAITING = "waiting"
FORWARDER_LOG = "forwarder.log"
DEAD_LETTER_PREFIX = "rejected."
COMPRESSED_SUFFIX = ".zst"
TOKENIZERS = "tokenizers"
COPY_SUFFIX = ".copy"
"""Suffix of a directory that is a copy of another machine's node directory."""
CLOSING_SEQUENCE = 999_999
"""Sequence of the segment in which crash recovery ends trajectories; no writer reaches this number."""
_NAME_BYTES = 255
"""Maximum bytes of a file name on most file systems."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_READABLE_CHARACTERS = 60
"""Maximum characters of a name that are kept before its digest."""
_DIGEST_DIGITS = 20
"""Hex digits of the digest that keeps shortened names distinct."""
LIMIT_OF_UNKNOWN_SPACE = 1 << 30
"""Limit of a run's segments in bytes, on a file system that does not report its free space, such as tmpfs."""
_SEGMENT_NAME = re.compile(r"(?P<writer>\d+-[0-9a-f]{16})\.(?P<sequence>\d{6})\.jsonl")


@dataclass(frozen=True, order=True)
class SegmentName:
    """The name of a segment file; names sort by writer, then by age."""

    writer: str
    sequence: int

    @property
    def stem(self) -> str:
        """The segment's id, unique across machines and runs."""
        return f"{self.writer}.{self.sequence:06d}"

    @property
    def file(self) -> str:
        """The file's name in its node directory."""
        return self.stem + SEGMENT_SUFFIX

    @classmethod
    def parse(cls, file: str) -> SegmentName | None:
        """Parse a file name; return None for a name that is no segment's."""
        match = _SEGMENT_NAME.fullmatch(file)
        return cls(match["writer"], int(match["sequence"])) if match else None


def new_writer_id() -> str:
    """Make the id of a writer: pid and random digits, because pids are reused."""
    return f"{os.getpid()}-{os.urandom(8).hex()}"


def new_run_id() -> str:
    """Make a random id for a run without an id."""
    return f"run-{os.urandom(6).hex()}"


def node_id() -> str:
    """Return the id of this machine and boot; locks and mapped memory end with it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:  # not Linux
        boot = "boot"
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname()) or "host"
    return f"{host}-{boot}"


def node_directory(spool_dir: Path, run_id: str, node: str) -> Path:
    """Return the directory in which a machine (empty: this one) records a run."""
    return spool_dir / _safe(run_id, "run") / _safe(node or node_id(), "node", _NAME_BYTES - len(COPY_SUFFIX))


def _safe(name: str, otherwise: str, room: int = _NAME_BYTES) -> str:
    """Convert a name from outside to a single component of a path.

    Distinct names give distinct components. A name that is too long or has unsafe characters becomes its
    readable part and a digest.
    """
    if not name:
        return otherwise
    if _SAFE_NAME.fullmatch(name) and len(name) <= room:
        return name
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:_READABLE_CHARACTERS]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return f"{readable or otherwise}~{digest}"


def create_private(directory: Path, spool_dir: Path) -> None:
    """Create a directory, and its parents below the spool, for this user alone.

    Raises:
        PermissionError: when one of the directories belongs to another user, who could read or replace the
            recordings. This can happen in a shared temporary directory.
    """
    try:
        with contextlib.suppress(FileExistsError):  # it is no directory: what follows says what it is
            spool_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_spool_directory(spool_dir)
        for part in (*reversed([p for p in directory.parents if spool_dir in p.parents]), directory):
            part.mkdir(mode=0o700, exist_ok=True)
            check_private(part, part.lstat())
    except ForeignFileError as error:
        raise ForeignFileError(f"{error}; set OTEL_ROLLOUT_SPOOL_DIR to a directory of your own") from None


def _check_spool_directory(spool_dir: Path) -> None:
    """Check that a spool, and a link to it, belongs to this user or root."""
    for owner in (spool_dir.lstat().st_uid, spool_dir.stat().st_uid):
        if owner not in (os.geteuid(), 0):
            raise ForeignFileError(f"{spool_dir} belongs to user id {owner}, not to {os.geteuid()}")


def default_limit(node_dir: Path) -> int:
    """Return the default limit of a run's segments in bytes: half of the free space."""
    free = free_bytes(node_dir)
    return LIMIT_OF_UNKNOWN_SPACE if free is None else max(1, (free + segment_bytes(node_dir)) // 2)


def free_bytes(directory: Path) -> int | None:
    """Return the bytes free for this user; None if the file system reports none."""
    state = os.statvfs(directory)
    if state.f_blocks == 0:  # memory without a limit, and some network file systems
        return None
    # Some blocks are reserved for root.
    return state.f_frsize * (state.f_bfree if os.geteuid() == 0 else state.f_bavail)


def tokenizer_file(node_dir: Path, name: str) -> Path:
    """Return the path of the tokenizer to which spans refer as ``name``."""
    return node_dir / TOKENIZERS / f"{_safe(name, 'tokenizer', _NAME_BYTES - len('.json'))}.json"


def tokenizer_files(node_dir: Path) -> list[Path]:
    """Return the paths of the tokenizers in a node directory."""
    return sorted((node_dir / TOKENIZERS).glob("*.json"))


def write_whole(path: Path, content: bytes) -> None:
    """Replace a private file atomically: readers see the old file or the new one."""
    fresh = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.new")
    with open(fresh, "wb", opener=open_private) as file:
        file.write(content)
    fresh.replace(path)


def read_private(path: Path) -> bytes:
    """Read a file of a directory that only this user can write to.

    Raises:
        OSError: when the file cannot be read.
    """
    with open(path, "rb", opener=open_private) as file:
        return file.read()


def segments(node_dir: Path) -> list[SegmentName]:
    """Return the segments in a node directory, each writer's oldest first."""
    names = (SegmentName.parse(file.name) for file in _own_files(node_dir, SEGMENT_SUFFIX))
    return sorted(filter(None, names))


def _own_files(node_dir: Path, suffix: str) -> Iterator[os.DirEntry[str]]:
    """Yield this user's regular files in a node directory that end with ``suffix``."""
    with os.scandir(node_dir) as entries:
        yield from (entry for entry in entries if entry.name.endswith(suffix) and is_own(entry))


def segment_bytes(node_dir: Path) -> int:
    """Return the total bytes of the segments in a node directory."""
    files = _own_files(node_dir, SEGMENT_SUFFIX)
    return sum(file.stat(follow_symlinks=False).st_size for file in files if SegmentName.parse(file.name))


def journals(node_dir: Path) -> list[str]:
    """Return the ids of all writers that have a journal in a node directory."""
    return sorted(file.name.removesuffix(JOURNAL_SUFFIX) for file in _own_files(node_dir, JOURNAL_SUFFIX))


def journal_of(node_dir: Path, writer: str) -> Path:
    """Return the path of a writer's journal."""
    return node_dir / (writer + JOURNAL_SUFFIX)


@dataclass(frozen=True)
class Manifest:
    """The description of a run in its node directory."""

    run_id: str
    project_name: str
    exporters: tuple[str, ...]
    target: str = ""
    """Fingerprint of the run's targets; empty if unknown."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Stem of a segment that is a copy → the file whose lines it has."""


def write_manifest(node_dir: Path, manifest: Manifest) -> None:
    """Write the manifest of a run, unless another process has written it."""
    path = node_dir / MANIFEST
    if not path.exists():
        write_json(path, {"format": 1, **asdict(manifest)})


def write_json(path: Path, content: object) -> None:
    """Replace a private file atomically by JSON."""
    try:
        encoded = orjson.dumps(content, option=orjson.OPT_INDENT_2)
    except TypeError:  # a variable whose bytes are not UTF-8
        encoded = json.dumps(content, indent=2, ensure_ascii=False).encode("utf-8", "replace")
    write_whole(path, encoded)


def read_json(path: Path) -> dict[str, Any]:
    """Read a private file that holds a JSON object; empty if it is missing, another user's or damaged."""
    try:
        found = orjson.loads(read_private(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_manifest(node_dir: Path) -> Manifest | None:
    """Read the manifest in a directory; return None if it is no node directory."""
    found = read_json(node_dir / MANIFEST)
    run_id, project, target = found.get("run_id"), found.get("project_name"), found.get("target", "")
    exporters = found.get("exporters")
    if not (isinstance(run_id, str) and isinstance(project, str) and isinstance(target, str)):
        return None
    if not isinstance(exporters, list) or not all(isinstance(name, str) for name in exporters):
        return None
    sources = found.get("sources")
    return Manifest(run_id, project, tuple(exporters), target, sources if isinstance(sources, dict) else {})


def source_of(node_dir: Path, segment: str) -> str:
    """Return the file whose lines a segment has, if that is a copy, else the segment's stem."""
    manifest = read_manifest(node_dir)
    return manifest.sources.get(segment, segment) if manifest else segment


def publish_trackers(node_dir: Path, runs: Mapping[str, str]) -> None:
    """Publish the trackers' runs to which the run belongs: exporter → tracker's run."""
    write_json(node_dir / TRACKERS, {**read_trackers(node_dir), **runs})


def read_trackers(node_dir: Path) -> dict[str, str]:
    """Read the published runs of trackers: exporter → tracker's run."""
    return {str(name): str(run) for name, run in read_json(node_dir / TRACKERS).items()}


def node_directories(directory: Path) -> list[Path]:
    """Find the node directories in and below a node, run or spool directory.

    The newest run comes last. Directories of other users are skipped, also if root calls this function:
    anybody can put things into a temporary directory. Spans there would be delivered in our name, and files
    behind links there would be read and written with our rights.
    """
    found: dict[Path, float] = {}
    for path in _manifests(directory):
        with contextlib.suppress(FileNotFoundError):  # removed just now
            if _is_ours(path.parent):
                found[path.parent] = path.lstat().st_mtime
    return sorted(found, key=found.__getitem__)


def problem_of(directory: Path) -> str | None:
    """Return why a spool, run or node directory cannot be read or trusted; None if it can, or is missing."""
    try:
        owners = os.lstat(directory).st_uid, os.stat(directory).st_uid  # of a link, and of its target
        os.listdir(directory)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            return f"{directory} cannot be read: {error.strerror}"
        return f"{directory} is a link to nothing" if os.path.islink(directory) else None
    others = [owner for owner in owners if owner not in (os.geteuid(), 0)]
    if others:
        return f"{directory} belongs to user id {others[0]}, not to {os.geteuid()}{_as_its_owner(others[0])}"
    return None


def owners(directory: Path) -> set[int]:
    """Return the user ids to which the node directories in and below a directory belong."""
    found = set()
    for path in _manifests(directory):
        with contextlib.suppress(FileNotFoundError):
            found.add(path.parent.lstat().st_uid)
    return found


def _manifests(directory: Path) -> Iterator[Path]:
    """Yield the manifest of each node directory in and below a node, run or spool directory."""
    if os.path.islink(directory):  # follow a link that a person names; its target is checked
        directory = directory.resolve()
    for depth in ("", "*/", "*/*/"):
        yield from directory.glob(depth + MANIFEST)


def _is_ours(node_dir: Path) -> bool:
    state = node_dir.lstat()
    try:
        check_private(node_dir, state)
    except ForeignFileError as error:
        is_others = state.st_uid != os.geteuid()
        log_left_alone(f"{error}{_as_its_owner(state.st_uid) if is_others else ''}")
        return False
    return True


def _as_its_owner(owner: int) -> str:
    return f" (to deliver or show it, run the command as its owner: sudo -u '#{owner}' otel-rollout ...)"
