"""Where the spool lies, with real directories and tables of mounts as the kernel writes them."""

import os
from pathlib import Path

import pytest

from otel_rollout.doctor import filesystem
from otel_rollout.doctor.filesystem import file_system_of, spool_place
from otel_rollout.doctor.report import Verdict

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
    """A table of mounts."""
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
def test_the_file_system_is_that_of_the_closest_mount(mounts, path, kind):
    """Names are unescaped, whole components compared, and a later mount hides an earlier one."""
    assert file_system_of(Path(path), mounts) == kind


def test_the_kernels_own_table_is_understood():
    """Here, now."""
    assert file_system_of(Path("/proc/self")) == "proc"


def test_a_spool_to_be_created_is_fine_and_not_created(tmp_path):
    """Looking leaves nothing behind, neither the directory nor a file."""
    finding = spool_place(tmp_path / "a" / "spool", "the spool")
    assert finding.verdict is Verdict.OK
    assert finding.found.startswith("the spool can be created: ")
    assert os.listdir(tmp_path) == []


def test_a_spool_that_exists_is_fine(tmp_path):
    """It is ours, local and has space."""
    finding = spool_place(tmp_path, "the spool")
    assert finding.verdict is Verdict.OK
    assert finding.found.startswith("the spool exists: ")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "cifs", "gpfs", "beegfs", "smb3", "9p"])
def test_a_file_system_of_others_is_a_warning(tmp_path, kind):
    """It is named, and a local disk asked for."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"27 1 254:0 / / rw - {kind} source rw\n")
    finding = spool_place(tmp_path / "spool", "the spool", mounts)
    assert finding.verdict is Verdict.WARN
    assert finding.found.endswith(f"free on {kind}")
    assert "local disk" in finding.advice


def test_a_file_in_the_way_fails(tmp_path):
    """In the place of the spool, and in that of its parent."""
    (tmp_path / "file").touch()
    for place, words in [("file", "is no directory"), ("file/spool", "cannot be")]:
        finding = spool_place(tmp_path / place, "the spool")
        assert finding.verdict is Verdict.FAIL
        assert words in finding.found


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give directories away")
def test_a_spool_of_another_user_fails(tmp_path):
    """Whoever owns it could read and replace what is recorded."""
    spool = tmp_path / "spool"
    spool.mkdir()
    os.chown(spool, 4711, 4711)
    finding = spool_place(spool, "the spool")
    assert finding.verdict is Verdict.FAIL
    assert "belongs to user id 4711" in finding.found


def test_a_place_that_takes_no_files_fails():
    """Whatever the reason that the system gives."""
    finding = spool_place(Path("/proc/self/spool"), "the spool")
    assert finding.verdict is Verdict.FAIL


@pytest.mark.parametrize(("limit", "verdict"), [("LITTLE_SPACE", Verdict.WARN), ("NO_SPACE", Verdict.FAIL)])
def test_too_little_space(tmp_path, monkeypatch, limit, verdict):
    """First a warning, then a failure."""
    monkeypatch.setattr(filesystem, limit, 1 << 62)
    assert spool_place(tmp_path, "the spool").verdict is verdict
