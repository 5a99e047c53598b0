"""Check spool directories, real ones and with mount tables in the kernel's format."""

import os
from pathlib import Path

import pytest

from otel_rollout.doctor import filesystem
from otel_rollout.doctor.diagnosis import Verdict
from otel_rollout.doctor.filesystem import check_spool_directory, file_system_of

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /home rw,relatime shared:5 master:1 - nfs4 server:/home rw
31 27 0:41 / /mnt/with\\040space rw - fuse.sshfs host: rw
32 27 0:42 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw
33 27 0:43 / /scratch/local rw - xfs /dev/vdb rw
34 27 0:44 / /twice rw - cifs //host/share rw
35 27 0:45 / /twice rw - tmpfs tmpfs rw
"""


@pytest.fixture
def mounts(tmp_path):
    """Write a table of mounts to a file."""
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/tmp/spool", "ext4"),
        ("/homework", "ext4"),
        ("/home", "nfs4"),
        ("/home/user/spool", "nfs4"),
        ("/mnt/with space/spool", "fuse.sshfs"),
        ("/scratch/spool", "lustre"),
        ("/scratch/local/spool", "xfs"),
        ("/twice", "tmpfs"),
    ],
)
def test_file_system_is_that_of_the_closest_mount(mounts, path, kind):
    """Names are unescaped, and whole components compared.

    A later mount hides an earlier one.
    """
    assert file_system_of(Path(path), mounts) == kind


def test_mount_table_of_this_kernel_is_read():
    """The table of the running kernel names the file system of ``/proc``."""
    assert file_system_of(Path("/proc/self")) == "proc"


def test_missing_spool_directory_passes_and_is_not_created(tmp_path):
    """The check leaves neither directory nor file behind."""
    finding = check_spool_directory(tmp_path / "a" / "spool", "the spool")
    assert finding.verdict is Verdict.OK
    assert finding.found.startswith("the spool can be created: ")
    assert os.listdir(tmp_path) == []


def test_existing_spool_directory_passes(tmp_path):
    """A local directory of this user with free space is fine."""
    finding = check_spool_directory(tmp_path, "the spool")
    assert finding.verdict is Verdict.OK
    assert finding.found.startswith("the spool exists: ")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "cifs", "gpfs", "beegfs", "smb3", "9p"])
def test_shared_file_system_is_a_warning(tmp_path, kind):
    """The row names the file system and advises a local disk."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"27 1 254:0 / / rw - {kind} source rw\n")
    finding = check_spool_directory(tmp_path / "spool", "the spool", mounts)
    assert finding.verdict is Verdict.WARN
    assert finding.found.endswith(f"free on {kind}")
    assert "local disk" in finding.advice


def test_file_in_place_of_the_directory_fails(tmp_path):
    """A file may stand where the spool directory or its parent should be."""
    (tmp_path / "file").touch()
    for path in ("file", "file/spool"):
        finding = check_spool_directory(tmp_path / path, "the spool")
        assert finding.verdict is Verdict.FAIL
        assert finding.found == f"{tmp_path / path} cannot be read: Not a directory"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give directories away")
def test_spool_directory_of_another_user_fails(tmp_path):
    """The owner of the directory could read and replace recorded spans."""
    spool = tmp_path / "spool"
    spool.mkdir()
    os.chown(spool, 4711, 4711)
    finding = check_spool_directory(spool, "the spool")
    assert finding.verdict is Verdict.FAIL
    assert "belongs to user id 4711" in finding.found


def test_directory_that_takes_no_files_fails():
    """A directory in which no file can be created fails, for whatever reason."""
    finding = check_spool_directory(Path("/proc/self/spool"), "the spool")
    assert finding.verdict is Verdict.FAIL


@pytest.mark.parametrize(("limit", "verdict"), [("LITTLE_SPACE", Verdict.WARN), ("NO_SPACE", Verdict.FAIL)])
def test_little_free_space_warns_and_less_fails(tmp_path, monkeypatch, limit, verdict):
    """Below a first limit the check warns, below a second one it fails."""
    monkeypatch.setattr(filesystem, limit, 1 << 62)
    assert check_spool_directory(tmp_path, "the spool").verdict is verdict
