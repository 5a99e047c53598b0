"""Make node directories like an attacker who targets other users' files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from otel_rollout.spool import layout
from otel_rollout.spool.journal import Journal
from otel_rollout.spool.layout import Manifest, SegmentName

NOBODY = 65534
WRITER = "1-00000000000000aa"
SECRET = b"the-secret-of-root\n"
ATTACK = b'{"the-line":"of-the-attacker"}\n'
SPAN = '{"traceId":"%032x","spanId":"%016x","name":"s","startTimeUnixNano":"1","endTimeUnixNano":"2"}'
LINE = b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}\n' % (SPAN % (7, 1)).encode()


def plant_link(path: Path, secret: Path) -> None:
    """Plant a symbolic link to the secret."""
    path.symlink_to(secret)


def plant_dangling_link(path: Path, secret: Path) -> None:
    """Plant a symbolic link to a missing file in another user's directory."""
    path.symlink_to(secret.parent / "created")


def plant_hard_link(path: Path, secret: Path) -> None:
    """Plant the secret under another name, where the system does not prevent that."""
    path.hardlink_to(secret)


def plant_pipe(path: Path, secret: Path) -> None:
    """Plant a pipe that no process has opened."""
    os.mkfifo(path)


def plant_directory(path: Path, secret: Path) -> None:
    """Plant a directory with a file in it."""
    path.mkdir()
    (path / "x").touch()


def plant_file_of_another_user(path: Path, secret: Path) -> None:
    """Plant a file that belongs to another user than its directory."""
    path.write_bytes(ATTACK)
    os.chown(path, NOBODY, NOBODY)


PLANTS: list[Callable[[Path, Path], None]] = [
    plant_link,
    plant_dangling_link,
    plant_hard_link,
    plant_pipe,
    plant_directory,
    plant_file_of_another_user,
]


def node_directory(spool_dir: Path, exporter: str = "test-file") -> Path:
    """Make a node directory of this user with one valid line in it."""
    node_dir = layout.node_directory(spool_dir, "run", "node")
    layout.create_private(node_dir, spool_dir)
    layout.write_manifest(node_dir, Manifest("run", "project", (exporter,)))
    (node_dir / SegmentName("2-00000000000000bb", 1).file).write_bytes(LINE)
    return node_dir


def forge_journal(node_dir: Path, target: Path) -> None:
    """Make a dead writer's journal that would append a line to ``target``.

    The writer's segment is a link to ``target``.
    """
    journal = Journal(node_dir / (WRITER + layout.JOURNAL_SUFFIX), 4096)
    journal.append(b"", ATTACK)
    journal.begin_segment(1)
    journal.set_base(-target.stat().st_size)
    journal.release()
    (node_dir / SegmentName(WRITER, 1).file).symlink_to(target)


def give_away(directory: Path, owner: int = NOBODY) -> None:
    """Give a directory with its content to another user, without following links."""
    os.chown(directory, owner, owner, follow_symlinks=False)
    for path in directory.rglob("*"):
        if path.is_symlink() or path.stat().st_nlink == 1 or path.is_dir():
            os.chown(path, owner, owner, follow_symlinks=False)
