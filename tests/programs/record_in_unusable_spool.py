"""Record in a spool that is damaged before or meanwhile, and report.

Arguments: spool directory, run id, name of the fault, and ``root`` or ``nobody``. The modules that recording
needs are imported first, because the user nobody may not be able to read them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import otel_rollout
from otel_rollout.account import ledger, node_report, report
from otel_rollout.deliver import delivery
from otel_rollout.record.launch import at_exit, drain, launcher, shutdown
from otel_rollout.spool import locks

IMPORTED = (
    ledger,
    node_report,
    report,
    delivery,
    locks,
    at_exit,
    drain,
    launcher,
    shutdown,
    shutdown,
)
NOBODY = 65534


class Spool:
    """The directories of the run, and what may happen to them."""

    def __init__(self, spool: Path, run_id: str) -> None:
        self.spool, self.run, self.node = spool, spool / run_id, spool / run_id / "node"
        self.old = spool.with_suffix(".old")

    def record(self) -> None:
        with otel_rollout.rollout_trace_attr(step=1):
            assert otel_rollout.rollout_trace_op(lambda x: x)(5) == 5

    def file_in_place_of_spool(self) -> None:
        self.spool.write_text("")

    def file_in_place_of_run(self) -> None:
        self.spool.mkdir()
        self.run.write_text("")

    def file_in_place_of_node(self) -> None:
        self.run.mkdir(parents=True)
        self.node.write_text("")

    def link_in_place_of_node(self) -> None:
        self.run.mkdir(parents=True)
        self.node.symlink_to("/etc")

    def squatted(self) -> None:
        if os.geteuid() == 0:  # only root can give directories away; the test has done so for others
            self.node.mkdir(parents=True)
            os.chown(self.run, 4711, 4711)

    def writable_by_everybody(self) -> None:
        self.run.mkdir(parents=True)
        self.node.mkdir()
        self.node.chmod(0o777)

    def removed_under_way(self) -> None:
        self.record()
        self.spool.rename(self.old)
        shutil.rmtree(self.old, ignore_errors=True)

    def replaced_by_file_under_way(self) -> None:
        self.record()
        self.spool.rename(self.old)
        self.spool.write_text("")

    def permissions_of_node_taken_away_under_way(self) -> None:
        self.record()
        self.node.chmod(0)

    def permissions_of_run_taken_away_under_way(self) -> None:
        self.record()
        self.run.chmod(0)

    def ledger_of_nonsense(self) -> None:
        self.record()
        (self.node / "ledger.sqlite").write_text("nonsense" * 100)

    def ledger_is_a_directory(self) -> None:
        self.record()
        (self.node / "ledger.sqlite").mkdir()

    def ledger_unreadable(self) -> None:
        self.record()
        (self.node / "ledger.sqlite").touch()
        (self.node / "ledger.sqlite").chmod(0)

    def journal_unreadable(self) -> None:
        self.record()
        for path in self.node.glob("*.journal"):
            path.chmod(0)

    def lock_is_a_directory(self) -> None:
        self.run.mkdir(parents=True)
        self.node.mkdir()
        (self.node / "forwarder.lock").mkdir()

    def run_id_too_long_for_a_name(self) -> None:
        pass


FAULTS: dict[str, Callable[[Spool], None]] = {
    name: fault
    for name, fault in vars(Spool).items()
    if not name.startswith("_") and name != "record"
}  # fmt: skip
"""Name → what happens to a spool before or while a process records."""


def main(spool_dir: str, run_id: str, fault: str, user: str) -> None:
    """Record, and print what status() and shutdown() report."""
    if user == "nobody":
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    otel_rollout.configure("console", spool_dir=spool_dir, run_id=run_id, node="node")
    spool = Spool(Path(spool_dir), run_id)
    FAULTS[fault](spool)
    spool.record()
    for counts in (otel_rollout.status(), otel_rollout.shutdown(1)):
        print(counts.recorded, counts.directory == str(spool.node), counts.problem)
    print(counts.summary() and "summed up", dict(counts.by_step) is not None, "lost", counts.lost)


if __name__ == "__main__":
    main(*sys.argv[1:])
