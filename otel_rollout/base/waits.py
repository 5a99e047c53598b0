"""Name every waiting time of the product, in one object that tests replace.

Tests set the private variable ``_OTEL_ROLLOUT_WAITS``, which child processes inherit. Time-outs that users
choose are settings. Sleeps of milliseconds stay beside their code: they let other threads run, and no test
waits for them.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson

WAITS_VARIABLE: Final = "_OTEL_ROLLOUT_WAITS"
"""Holds JSON with the seconds of some fields of :class:`Waits`."""
Pause = float
"""Seconds between two checks or attempts, or before an action. Tests shorten these times."""
Limit = float
"""Seconds that another process or thread has, for example to answer. Tests keep these times, because a test
machine may be slow."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting times, in seconds. A field's docstring says when, or for what, a process waits."""

    # --- In several packages ------------------------------------------------------------------------------
    poll: Pause = 0.05
    """Between two checks for a lock, a port, a file or a delivery."""
    connect: Limit = 5.0
    """For a connection to a server, which takes milliseconds if anything listens there."""
    ledger: Limit = 10.0
    """For a ledger that another process has locked."""
    threads: Limit = 5.0
    """For the end of a receiver's or an interrupted delivery's threads, which may still write."""
    announce: Pause = 0.5
    """Between two announcements of a program that waits for delivery."""
    announced: Limit = 2.0
    """For which a program counts as waiting after an announcement."""

    # --- Recording ----------------------------------------------------------------------------------------
    flush: Pause = 0.02
    """Between a line and its write(2), so that one call writes many lines. A line in the journal survives
    the process, but the forwarder does not see it yet."""
    life: Pause = 1.0
    """Between two notes that a process lives, at most. The trajectories of a killed process end at its last
    note."""
    write_retry: Pause = 0.5
    """Between two attempts to write to a disk that is full or fails."""
    journal_room: Limit = 0.2
    """Without progress, after which a caller that waits for room in the journal drops and counts its span. On
    a disk that works, even if busy, one write(2) takes less."""
    spool_check: Pause = 1.0
    """Between two measurements of the segments' total size."""
    rare_spool_check: Pause = 10.0
    """Between two such measurements while lines wait. A measurement waits for the GIL once per file, so it
    takes long."""
    close: Limit = 2.0
    """For flushing a process's spans where nobody waits for delivery."""

    # --- Starting forwarders and receivers, and waiting for them ------------------------------------------
    first_check: Limit = 0.5
    """Between the first checks of the forwarder, so that a wrong setting is reported soon."""
    forwarder_check: Pause = 5.0
    """Between later checks of the forwarder."""
    receiver_check: Pause = 1.0
    """Between such checks in a run with a receiver: senders repeat a refused request for some seconds."""
    forwarder_start: Limit = 2.0
    """Between two attempts of a waiting program to start a forwarder, one of which may fail at once."""
    succession: Limit = 5.0
    """After a process has started a successor, before it starts another one."""
    receiver_start: Limit = 3.0
    """Between two starts of a receiver, in which the first one may take its lock."""
    receiver_failed: Pause = 10.0
    """After a receiver could not listen, before another one is started."""
    receiver_listens: Limit = 30.0
    """For a starting receiver to listen. Starting takes half a second of processor time. A port on which the
    run's receiver does not listen yet may be another user's."""
    node_answer: Limit = 5.0
    """For a node's answer, after the time-out of its own wait for delivery."""
    progress: Limit = 1.0
    """Before a waiting program shows progress; most programs wait less."""
    progress_update: Pause = 0.2
    """Between two updates of the progress line on a terminal."""
    progress_count: Pause = 0.5
    """Between two counts for a command's progress; counting reads the spool."""

    # --- The receiver -------------------------------------------------------------------------------------
    receiver_linger: Limit = 10.0
    """After the end of the run's last other process, while the receiver stays. OpenTelemetry's SDKs send
    every 5 s."""
    receiver_watch: Pause = 0.5
    """Between two checks for living processes and running trajectories."""
    port: Limit = 3.0
    """For the port of a receiver that has just ended, which may still be taken."""
    request_head: Limit = 10.0
    """For the head of a request that a client has begun, or for a client's first request."""
    request_body: Limit = 30.0
    """For the body of a request."""
    request_room: Limit = 2.0
    """For room in the journal, before a request is refused."""

    # --- The forwarder ------------------------------------------------------------------------------------
    idle: Pause = 0.2
    """Between two checks for new lines and living writers while there are no new lines."""
    error: Pause = 2.0
    """After an unforeseen error, before another attempt."""
    segment_age: Limit = 60.0
    """After a segment's last write, before it is removed while the run goes on."""
    clean_up: Pause = 2.0
    """Between clean-ups of segments; each time the ledger is checked for damage."""
    forwarder_stop: Limit = 30.0
    """For the end of a delivery that is to stop."""
    take_over: Limit = 120.0
    """For the lock, which a successor gets after the holder's export; longer than one export may take."""
    retry: Pause = 0.5
    """Before the second attempt of an export; each further pause is twice as long."""
    longest_retry: Pause = 30.0
    """Between two attempts, at most."""
    requested_retry: Limit = 300.0
    """Maximum delay of the next attempt by a target's ``Retry-After``: a server with a wrong clock must not
    stop delivery for good."""
    refused_retry: Pause = 60.0
    """After a refusal, before the next attempt: a person may correct the cause."""
    table_commit: Pause = 10.0
    """Between a waiting line and its commit to a table. Each commit adds a file."""
    live_look: Pause = 2.0
    """Between two searches for running trajectories to show."""
    live_age: Limit = 3.0
    """After a trajectory's start, before it is shown as running. Most trajectories end sooner, and cost no
    request."""
    tokenizer: Limit = 10.0
    """After a span's end, for the span's tokenizer, which may still be being written."""
    absent: Pause = 5.0
    """Before another search for a missing tokenizer, or another request to an unavailable tracker."""

    # --- Scores by identity -------------------------------------------------------------------------------
    score: Limit = 600.0
    """For which a score waits for its trajectory while a process of this machine records. The wait starts
    again at each search that finds the trajectory running on this machine."""
    last_score: Pause = 10.0
    """For which scores wait after the last process of this machine has ended, and all else is delivered."""
    last_search: Pause = 2.0
    """Between two searches for trajectories during ``last_score``, at most."""
    score_turn: Limit = 5.0
    """After which a search for trajectories with results is interrupted: spans must not wait for scores."""

    # --- Tail sampling ------------------------------------------------------------------------------------
    running_look: Pause = 1.0
    """Between two searches for running trajectories."""
    group_quiet: Limit = 5.0
    """Without a new trajectory of a group of unknown size, before the group counts as complete."""
    draining: Limit = 2.0
    """After a process has begun to wait for delivery, while ended groups are decided at once."""

    # --- Metrics of steps ---------------------------------------------------------------------------------
    curves_look: Pause = 20.0
    """Between two reads of the table."""
    curves_last_look: Pause = 1.0
    """Between two reads of the table after the last process has ended."""
    step_settled: Pause = 45.0
    """Without a new row of a step, before the step is complete: other nodes' forwarders commit every 12 s."""
    last_step_settled: Pause = 15.0
    """In place of ``step_settled`` after the last process on this machine has ended."""
    step_abandoned: Limit = 600.0
    """Without a new row of a step, before the step's running trajectories no longer count."""
    curves_retry: Pause = 15.0
    """After a failure, before the next attempt."""

    # --- Tables and databases -----------------------------------------------------------------------------
    table_retry: Pause = 0.5
    """Maximum of the random pause between two attempts to use a table that others write to."""
    lease: Limit = 300.0
    """For which a lease is valid after each commit of its holder."""
    lease_look: Pause = 0.5
    """Between two checks whether another process's lease has become free."""
    lease_commit: Limit = 120.0
    """For one commit of the lease's holder, which repeats the commit if a forwarder's came first."""
    database: Limit = 120.0
    """For another process that creates the tables of MLflow's database."""
    database_abandoned: Limit = 10.0
    """Without a change of an MLflow database's file, before its creation counts as abandoned."""

    table_upkeep: Pause = 1800.0
    """Between two starts of a process that compacts a table with many files during training."""
    free_core: Limit = 300.0
    """For a free core, before such a process gives up."""
    core_look: Pause = 5.0
    """Between two measurements of how long the cores were idle."""

    # --- Commands -----------------------------------------------------------------------------------------
    service_scan: Pause = 2.0
    """Between two scans of a forwarding service for new runs."""
    missing_forwarder: Limit = 60.0
    """For which pending spans may be without a forwarder: a successor starts within seconds."""
    probed_ledger: Limit = 1.0
    """For a locked ledger, in a probe that runs every few seconds."""
    node_probe: Limit = 120.0
    """For a node's answer to ``doctor``: it may have to start a worker and import exporters."""
    node_clock: Limit = 20.0
    """For one reading of a node's clock."""


def waits() -> Waits:
    """Return this process's waiting times. A call takes a microsecond, so callers need no copy."""
    return _given(os.environ.get(WAITS_VARIABLE, ""))


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until ``condition()`` is true, checking every ``Waits.poll``; return False after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(waits().poll)
    return True


@functools.lru_cache(maxsize=4)
def _given(variable: str) -> Waits:
    """Return the waiting times in the variable's value; the default ones if the value is not valid."""
    try:
        given = {name: float(seconds) for name, seconds in orjson.loads(variable or "{}").items()}
        return Waits(**given) if all(0 <= s <= threading.TIMEOUT_MAX for s in given.values()) else Waits()
    except Exception:  # noqa: BLE001 - only tests set the variable; whatever it holds, training goes on
        return Waits()
