"""Where things lie in the spool: the files recording processes write and the forwarder reads.

::

    <spool_dir>/<run id>/<host>-<boot id>/        one directory per run and node ("node directory")
        run.json                      what the run is: id, exporters (never credentials)
        trackers.json                 the trackers' runs it belongs to, once somebody has published them
        <writer>.<sequence>.jsonl     segment: OTLP JSON Lines, one span per line; flock'd while it is written
        <writer>.journal              the writer's tail and counters, readable after its death
        <writer>.open                 its trajectories that are running, or that it never finished
        forwarder.lock                held by the one forwarder of this directory; says what access it has
        forwarder.successor           made by a process that is to take the lock over
        forwarder.log                 what it has to say
        draining                      touched by whoever waits for all to be delivered: decide what can be
        ledger.sqlite                 what it delivered: cursors and counts per exporter
        unreadable-<time>.ledger.sqlite   one that could not be read, replaced by a new one
        rejected.<exporter>.jsonl     spans a target refuses, with its words
        tokenizers/<name>.json        what turns token ids into text again, named by spans that hold such ids
        archive/<segment>.jsonl.zst   segments that are delivered, where they are kept

This module knows names and ownership only; what is in the files is known to ``recording`` and ``forwarder``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from otel_rollout.spool.private_files import (
    ForeignFileError,
    check_private,
    is_own,
    open_private,
    say_left_alone,
)

SEGMENT_SUFFIX = ".jsonl"
JOURNAL_SUFFIX = ".journal"
OPEN_SUFFIX = ".open"
MANIFEST = "run.json"
TRACKERS = "trackers.json"
ARCHIVE = "archive"
DRAINING = "draining"
FORWARDER_LOG = "forwarder.log"
DEAD_LETTER_PREFIX = "rejected."
"""How the name of a dead-letter file begins: spans that a target refuses."""
COMPRESSED_SUFFIX = ".zst"
TOKENIZERS = "tokenizers"
COPY_SUFFIX = ".copy"
"""How the name of a copy of another machine's node directory ends."""
CLOSING_SEQUENCE = 999_999
"""Sequence of the segment in which the forwarder ends what a dead writer left open; no writer gets there."""
_NAME_BYTES = 255
"""Bytes of a file name, on most file systems."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_READABLE = 60
"""Characters kept of a name that a digest follows."""
_DIGEST = 20
"""Hex digits of a digest that tells names apart."""
_logger = logging.getLogger("otel_rollout")
LIMIT_OF_UNKNOWN_SPACE = 1 << 30
"""Bytes of segments a run may have where the file system does not say how much is free: it may be memory."""
_SEGMENT_NAME = re.compile(r"(?P<writer>\d+-[0-9a-f]{16})\.(?P<sequence>\d{6})\.jsonl")


@dataclass(frozen=True, order=True)
class SegmentName:
    """Name of one segment file. Sorts by writer, then by age."""

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
        """Read a file name; None when it is not a segment's."""
        match = _SEGMENT_NAME.fullmatch(file)
        return cls(match["writer"], int(match["sequence"])) if match else None


def new_writer_id() -> str:
    """Id of one recording process: pid for people, randomness for uniqueness (pids are reused)."""
    return f"{os.getpid()}-{os.urandom(8).hex()}"


def new_run_id() -> str:
    """Id of a run whose name nobody gave."""
    return f"run-{os.urandom(6).hex()}"


def node_id() -> str:
    """This machine, this boot: locks and mapped memory do not outlive either."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:  # not Linux
        boot = "boot"
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname()) or "host"
    return f"{host}-{boot}"


def node_directory(spool_dir: Path, run_id: str, node: str) -> Path:
    """The directory in which the processes of machine ``node`` (empty: this one) record the run."""
    return spool_dir / _safe(run_id, "run") / _safe(node or node_id(), "node", _NAME_BYTES - len(COPY_SUFFIX))


def _safe(name: str, otherwise: str, room: int = _NAME_BYTES) -> str:
    """Return a name from outside as a single component of a path.

    Distinct names give distinct components. A name with other characters than those below, or too long, is
    told by a digest, behind what can be read of it.
    """
    if not name:
        return otherwise
    if _SAFE_NAME.fullmatch(name) and len(name) <= room:
        return name
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:_READABLE]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{readable or otherwise}~{digest}"


def create_private(directory: Path, spool_dir: Path) -> None:
    """Create ``directory`` and its parents down from ``spool_dir``, readable by this user alone.

    Raises:
        PermissionError: when one of them belongs to somebody else, who could then read or replace what
            is recorded (temporary directories are shared).
    """
    try:
        spool_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_spool_directory(spool_dir)
        for part in (*reversed([p for p in directory.parents if spool_dir in p.parents]), directory):
            part.mkdir(mode=0o700, exist_ok=True)
            check_private(part, part.lstat())
    except ForeignFileError as error:
        raise ForeignFileError(f"{error}; set OTEL_ROLLOUT_SPOOL_DIR to a directory of your own") from None


def _check_spool_directory(spool_dir: Path) -> None:
    """Check that a spool is this user's, or provided by the administrator; a link to it likewise."""
    for owner in (spool_dir.lstat().st_uid, spool_dir.stat().st_uid):
        if owner not in (os.geteuid(), 0):
            raise ForeignFileError(f"{spool_dir} belongs to user id {owner}, not to {os.geteuid()}")


def default_limit(node_dir: Path) -> int:
    """Bytes of segments a run may have on a machine where no limit is set: half of what is free."""
    free = free_bytes(node_dir)
    return LIMIT_OF_UNKNOWN_SPACE if free is None else max(1, (free + segment_bytes(node_dir)) // 2)


def free_bytes(directory: Path) -> int | None:
    """Bytes this user may still write to a file system; None where the file system does not say."""
    state = os.statvfs(directory)
    if state.f_blocks == 0:  # memory without a limit, and some network file systems
        return None
    # Of what is reserved for the administrator, only the administrator has any.
    return state.f_frsize * (state.f_bfree if os.geteuid() == 0 else state.f_bavail)


def tokenizer_file(node_dir: Path, name: str) -> Path:
    """Where a node directory has the tokenizer that its spans call ``name``."""
    return node_dir / TOKENIZERS / f"{_safe(name, 'tokenizer', _NAME_BYTES - len('.json'))}.json"


def tokenizer_files(node_dir: Path) -> list[Path]:
    """The tokenizers in a node directory."""
    return sorted((node_dir / TOKENIZERS).glob("*.json"))


def write_whole(path: Path, content: bytes) -> None:
    """Write a private file at once: readers see the old one or the new one."""
    fresh = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.new")
    with open(fresh, "wb", opener=open_private) as file:
        file.write(content)
    fresh.replace(path)


def read_private(path: Path) -> bytes:
    """Read a file of a directory that is this user's alone.

    Raises:
        OSError: when it cannot be read.
    """
    with open(path, "rb", opener=open_private) as file:
        return file.read()


def segments(node_dir: Path) -> list[SegmentName]:
    """The segments in a node directory, each writer's oldest first."""
    names = (SegmentName.parse(file.name) for file in _own_files(node_dir, SEGMENT_SUFFIX))
    return sorted(filter(None, names))


def _own_files(node_dir: Path, suffix: str) -> Iterator[os.DirEntry[str]]:
    """This user's files in a node directory. Links, pipes and files of others are left alone."""
    with os.scandir(node_dir) as entries:
        yield from (entry for entry in entries if entry.name.endswith(suffix) and is_own(entry))


def segment_bytes(node_dir: Path) -> int:
    """What the segments in a node directory take."""
    files = _own_files(node_dir, SEGMENT_SUFFIX)
    return sum(file.stat(follow_symlinks=False).st_size for file in files if SegmentName.parse(file.name))


def journals(node_dir: Path) -> list[str]:
    """The ids of all writers that ever recorded here."""
    return sorted(file.name.removesuffix(JOURNAL_SUFFIX) for file in _own_files(node_dir, JOURNAL_SUFFIX))


@dataclass(frozen=True)
class Manifest:
    """What a run is, for those who come across its directory later."""

    run_id: str
    project_name: str
    exporters: tuple[str, ...]
    target: str = ""
    """Fingerprint of what it delivers to; empty if nobody has said."""


def write_manifest(node_dir: Path, manifest: Manifest) -> None:
    """Describe the run in its directory, unless another process has."""
    path = node_dir / MANIFEST
    if not path.exists():
        _write_json(path, {"format": 1, **asdict(manifest)})


def _write_json(path: Path, content: object) -> None:
    try:
        encoded = orjson.dumps(content, option=orjson.OPT_INDENT_2)
    except TypeError:  # bytes of a variable that are no UTF-8
        encoded = json.dumps(content, indent=2, ensure_ascii=False).encode("utf-8", "replace")
    write_whole(path, encoded)


def read_manifest(node_dir: Path) -> Manifest | None:
    """Read what a directory says of its run; None when it is no node directory."""
    try:
        described = orjson.loads(read_private(node_dir / MANIFEST))
        manifest = Manifest(
            described["run_id"],
            described["project_name"],
            tuple(described["exporters"]),
            described.get("target", ""),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    said = (manifest.run_id, manifest.project_name, manifest.target, *manifest.exporters)
    is_ours = isinstance(described["exporters"], list) and all(isinstance(text, str) for text in said)
    return manifest if is_ours else None


def publish_trackers(node_dir: Path, runs: Mapping[str, str]) -> None:
    """Note which run of a tracker the rollout belongs to: exporter → run."""
    _write_json(node_dir / TRACKERS, {**read_trackers(node_dir), **runs})


def read_trackers(node_dir: Path) -> dict[str, str]:
    """The runs that were published: exporter → run."""
    try:
        published = orjson.loads(read_private(node_dir / TRACKERS))
        return {str(name): str(run) for name, run in published.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def node_directories(place: Path) -> list[Path]:
    """The node directories at or below ``place``: itself, those of a run, or those of a whole spool.

    The most recently described run comes last. Those of other users are left alone, by the administrator too:
    in a temporary directory anybody may put something, to have it delivered in our name, or links, to have
    files read and written with our rights.
    """
    if os.path.islink(place):  # a person may name a link; what it leads to is checked
        place = place.resolve()
    found: dict[Path, float] = {}
    for depth in ("", "*/", "*/*/"):
        for path in place.glob(depth + MANIFEST):
            with contextlib.suppress(FileNotFoundError):  # removed just now
                if _is_ours(path.parent):
                    found[path.parent] = path.lstat().st_mtime
    return sorted(found, key=found.__getitem__)


def _is_ours(node_dir: Path) -> bool:
    state = node_dir.lstat()
    try:
        check_private(node_dir, state)
    except ForeignFileError as error:
        is_others = state.st_uid != os.geteuid()
        say_left_alone(f"{error}{_as_its_owner(state.st_uid) if is_others else ''}")
        return False
    return True


def _as_its_owner(owner: int) -> str:
    return f" (to deliver or show it, run the command as its owner: sudo -u '#{owner}' otel-rollout ...)"
