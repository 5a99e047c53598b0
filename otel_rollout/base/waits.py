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
"""Seconds between two looks or attempts, or until something is worth doing. Tests shorten it."""
Limit = float
"""Seconds that others have for something: to answer, to end, to follow. Tests keep it, for slow machines."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting times, in seconds."""

    # --- In several rooms ---------------------------------------------------------------------------------
    poll: Pause = 0.05
    """Between two looks of whoever waits for a lock, a port, a file or a delivery."""
    connect: Limit = 5.0
    """For a connection to a server, which takes milliseconds if anything listens there."""
    ledger: Limit = 10.0
    """For a ledger that another process has locked."""
    threads: Limit = 5.0
    """For the end of threads that still write, of a receiver or an interrupted delivery."""
    announce: Pause = 0.5
    """Between two announcements of a program that waits for delivery."""
    announced: Limit = 2.0
    """After an announcement, while the program counts as waiting."""

    # --- Recording ----------------------------------------------------------------------------------------
    flush: Pause = 0.02
    """Between a line and its write(2), so that one call writes many lines. A line in the journal survives
    the process, but the forwarder does not see it yet."""
    life: Pause = 1.0
    """Between two notes that a process lives, at most. A killed trajectory lasted until the last one."""
    write_retry: Pause = 0.5
    """Between two attempts to write to a disk that is full or fails."""
    journal_room: Limit = 0.2
    """Without progress, after which a caller that waits for room in the journal drops and counts its span. On
    a disk that works, even if busy, one write(2) takes less."""
    spool_check: Pause = 1.0
    """Between two measurements of the segments' total size."""
    rare_spool_check: Pause = 10.0
    """The same while lines wait. A measurement waits for the GIL once per file, so it takes long."""
    close: Limit = 2.0
    """In which a process flushes its spans where nobody waits for delivery."""

    # --- Starting forwarders and receivers, and waiting for them ------------------------------------------
    first_check: Limit = 0.5
    """Between the first checks of the forwarder, so that a wrong setting is reported soon."""
    forwarder_check: Pause = 5.0
    """Between later checks of the forwarder."""
    receiver_check: Pause = 1.0
    """The same with a receiver: senders repeat a refused request for some seconds."""
    forwarder_start: Limit = 2.0
    """Between two attempts of a waiting program to start a forwarder, one of which may fail at once."""
    succession: Limit = 5.0
    """After the start of a successor, in which the process starts no other."""
    receiver_start: Limit = 3.0
    """Between two starts of a receiver, in which the first one may take its lock."""
    receiver_failed: Pause = 10.0
    """Without a new start after a receiver could not listen."""
    receiver_listens: Limit = 30.0
    """For a receiver that is starting, which takes half a second of processor time. Only then the port is
    certainly the run's own, and not another user's."""
    node_answer: Limit = 5.0
    """For a node's answer, after the time-out of its own wait for delivery."""
    progress: Limit = 1.0
    """Until progress is shown; most programs wait less."""
    progress_update: Pause = 0.2
    """Between two updates of the line on a terminal."""
    progress_count: Pause = 0.5
    """Between two counts for a command's progress; counting reads the spool."""

    # --- The receiver -------------------------------------------------------------------------------------
    receiver_linger: Limit = 10.0
    """After the end of the run's last other process, while the receiver stays. OpenTelemetry's SDKs send
    every 5 s."""
    receiver_watch: Pause = 0.5
    """Between two looks for living processes and running trajectories."""
    port: Limit = 3.0
    """For the port of a receiver that has just ended, which may still be taken."""
    request_head: Limit = 10.0
    """For the head of a request that a client has begun, or for its first one."""
    request_body: Limit = 30.0
    """For the body of a request."""
    request_room: Limit = 2.0
    """For room in the journal, until a request is refused."""

    # --- The forwarder ------------------------------------------------------------------------------------
    idle: Pause = 0.2
    """Between two looks for new lines and living writers while there are no new lines."""
    error: Pause = 2.0
    """After an unforeseen error, before another attempt."""
    segment_age: Limit = 60.0
    """After a segment's last write, before it is removed while the run goes on."""
    clean_up: Pause = 2.0
    """Between clean-ups of segments; each time the ledger is checked for damage."""
    forwarder_stop: Limit = 30.0
    """For the end of a delivery that is to stop."""
    take_over: Limit = 120.0
    """For the lock, which a successor gets after its holder's export: longer than one export may take."""
    retry: Pause = 0.5
    """Before the second attempt of an export; each further pause is twice as long."""
    longest_retry: Pause = 30.0
    """Between two attempts, at most."""
    requested_retry: Limit = 300.0
    """By which a target's ``Retry-After`` delays the next attempt, at most: a server with a wrong clock must
    not stop delivery for good."""
    refused_retry: Pause = 60.0
    """After a refusal, before the next attempt: a person may correct the cause."""
    table_commit: Pause = 10.0
    """Between a waiting line and its commit to a table. Each commit adds a file."""
    live_look: Pause = 2.0
    """Between two looks for running trajectories to show."""
    live_age: Limit = 3.0
    """After its start, when a running trajectory is shown: most end sooner, and cost no request."""
    tokenizer: Limit = 10.0
    """After a span's end, for the span's tokenizer, which may still be being written."""
    absent: Pause = 5.0
    """Before another look for a missing tokenizer, or another question to an unavailable tracker."""

    # --- Scores by identity -------------------------------------------------------------------------------
    score: Limit = 600.0
    """That a score waits for its trajectory while a process of this machine records. They count from the last
    search at which the trajectory was running on this machine."""
    last_score: Pause = 10.0
    """That scores wait after the last process of this machine has ended, and all else is delivered."""
    last_search: Pause = 2.0
    """Between searches in that time, at most."""
    score_turn: Limit = 5.0
    """After which a resolution with results ends, so that spans do not wait for a step's scores."""

    # --- Tail sampling ------------------------------------------------------------------------------------
    running_look: Pause = 1.0
    """Between two looks for running trajectories."""
    group_quiet: Limit = 5.0
    """Without a new sibling, after which a group of unknown size is complete."""
    draining: Limit = 2.0
    """In which ended groups are decided at once, after a process has begun to wait for delivery."""

    # --- Metrics of steps ---------------------------------------------------------------------------------
    curves_look: Pause = 20.0
    """Between two looks into the table."""
    curves_last_look: Pause = 1.0
    """The same after the last process has ended."""
    step_settled: Pause = 45.0
    """Without a new row of a step, after which it is complete: other nodes' forwarders commit every 12 s."""
    last_step_settled: Pause = 15.0
    """The same after the last process on this machine has ended."""
    step_abandoned: Limit = 600.0
    """Without a new row of a step, after which its running trajectories do not count."""
    curves_retry: Pause = 15.0
    """After a failure, before the next attempt."""

    # --- Tables and databases -----------------------------------------------------------------------------
    table_retry: Pause = 0.5
    """Between two attempts beside other writers of a table, at most; the pause is random."""
    lease: Limit = 300.0
    """That a lease is valid after each commit of its holder."""
    lease_look: Pause = 0.5
    """Between two looks whether another's lease is free."""
    lease_commit: Limit = 120.0
    """For one commit of the lease's holder, beside the commits of forwarders."""
    database: Limit = 120.0
    """For another process that creates the tables of MLflow's database."""
    database_abandoned: Limit = 10.0
    """Without a change of its file, after which the creation of MLflow's database counts as abandoned."""

    table_upkeep: Pause = 1800.0
    """Between two processes that compact a table beside training, if it has got many files."""
    free_core: Limit = 300.0
    """For a free core, until such a process leaves the table to the next one."""
    core_look: Pause = 5.0
    """Between two looks at how long the cores were idle."""

    # --- Commands -----------------------------------------------------------------------------------------
    service_scan: Pause = 2.0
    """Between two scans of a forwarding service for new runs."""
    missing_forwarder: Limit = 60.0
    """That pending spans may be without a forwarder: its successor starts within seconds."""
    probed_ledger: Limit = 1.0
    """For a locked ledger, in a probe that runs every few seconds."""
    node_probe: Limit = 120.0
    """For a node's answer to ``doctor``: it may have to start a worker and import exporters."""
    node_clock: Limit = 20.0
    """For one reading of a node's clock."""


def waits() -> Waits:
    """Return this process's waiting times. It takes a microsecond, so it is called where they are needed."""
    return _given(os.environ.get(WAITS_VARIABLE, ""))


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Look every ``Waits.poll`` until ``condition()`` is true; return False after ``seconds`` seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(waits().poll)
    return True


@functools.lru_cache(maxsize=4)
def _given(variable: str) -> Waits:
    """Return the waiting times of the variable's value; the usual ones if it is not valid."""
    try:
        given = {name: float(seconds) for name, seconds in orjson.loads(variable or "{}").items()}
        return Waits(**given) if all(0 <= s <= threading.TIMEOUT_MAX for s in given.values()) else Waits()
    except Exception:  # noqa: BLE001 - only tests set the variable; whatever it holds, training goes on
        return Waits()
