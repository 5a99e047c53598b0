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

This module knows names and ownership only; what is in the files is known to ``record`` and ``deliver``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

SEGMENT_SUFFIX = ".jsonl"
JOURNAL_SUFFIX = ".journal"
OPEN_SUFFIX = ".open"
MANIFEST = "run.json"
TRACKERS = "trackers.json"
ARCHIVE = "archive"
DRAINING = "draining"
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
    parts = [spool_dir, *reversed([p for p in directory.parents if spool_dir in p.parents]), directory]
    for part in parts:
        part.mkdir(mode=0o700, parents=part is spool_dir, exist_ok=True)
        if part is not spool_dir and part.is_symlink():
            raise PermissionError(f"{part} is a link; set OTEL_ROLLOUT_SPOOL_DIR to a directory of your own")
        owner = part.stat().st_uid
        if owner != os.getuid() and not (part is spool_dir and owner == 0):  # an administrator may provide it
            raise PermissionError(
                f"{part} belongs to user id {owner}, not to {os.getuid()}; "
                "set OTEL_ROLLOUT_SPOOL_DIR to a directory of your own"
            )


def open_private(path: str, flags: int) -> int:
    """An ``opener`` for :func:`open`: the file is for this user alone."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


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


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def read_owned(path: Path, node_dir: Path) -> bytes:
    """Read a file of a node directory.

    Raises:
        OSError: when it cannot be read.
        PermissionError: when it is a link, or belongs to somebody else than the directory does.
    """
    with open(path, "rb", opener=_open_no_link) as file:
        if os.fstat(file.fileno()).st_uid != node_dir.stat().st_uid:
            raise PermissionError(f"{path} does not belong to the owner of {node_dir}")
        return file.read()


def segments(node_dir: Path) -> list[SegmentName]:
    """The segments in a node directory, each writer's oldest first."""
    return sorted(filter(None, map(SegmentName.parse, os.listdir(node_dir))))


def segment_bytes(node_dir: Path) -> int:
    """What the segments in a node directory take."""
    total = 0
    for name in segments(node_dir):
        with contextlib.suppress(FileNotFoundError):  # delivered and removed just now
            total += (node_dir / name.file).stat().st_size
    return total


def journals(node_dir: Path) -> list[str]:
    """The ids of all writers that ever recorded here."""
    return sorted(f.removesuffix(JOURNAL_SUFFIX) for f in os.listdir(node_dir) if f.endswith(JOURNAL_SUFFIX))


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
        described = orjson.loads((node_dir / MANIFEST).read_bytes())
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
        published = orjson.loads((node_dir / TRACKERS).read_bytes())
        return {str(name): str(run) for name, run in published.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def node_directories(place: Path) -> list[Path]:
    """The node directories at or below ``place``: itself, those of a run, or those of a whole spool.

    The most recently described run comes last. Those of other users are left alone, but by the administrator:
    in a temporary directory anybody may put something, to have it delivered in our name.
    """
    found = [path.parent for depth in ("", "*/", "*/*/") for path in place.glob(depth + MANIFEST)]
    ours = [node_dir for node_dir in found if _is_ours(node_dir)]
    return sorted(ours, key=lambda node_dir: (node_dir / MANIFEST).stat().st_mtime)


def _is_ours(node_dir: Path) -> bool:
    owner = node_dir.stat().st_uid
    is_ours = os.getuid() in (0, owner)
    if not is_ours:
        _say_whose(node_dir, owner)
    return is_ours


@functools.lru_cache  # a service looks every few seconds
def _say_whose(node_dir: Path, owner: int) -> None:
    _logger.warning("%s belongs to user id %d, not to %d; it is left alone", node_dir, owner, os.getuid())
