"""Test successors of forwarders without credentials: no span is lost or doubled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.account.ledger import Ledger
from otel_rollout.exporting.api import ExportFailure, FailureKind
from otel_rollout.record.launch import launcher
from otel_rollout.record.launch.state import state
from otel_rollout.spool import layout
from otel_rollout.spool.locks import LOCK_FILE, SUCCESSOR_FILE, ForwarderLock
from tests.faults.target import Receiver, receiving
from tests.runs.program import ask
from tests.runs.test_targets import started as started
from tests.waiting import wait_for
from tests.waits import set_waits

TOKEN = "OTEL_EXPORTER_OTLP_HEADERS"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def variables(receiver: Receiver) -> dict[str, str]:
    return {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}


def access(tmp_path: Path) -> set[str]:
    """Return the names of the present forwarder's access variables."""
    (node_dir,) = layout.node_directories(tmp_path / "spool")
    described = (node_dir / LOCK_FILE).read_text()
    return set(json.loads(described)["access"]) if described.endswith("}}") else set()


def test_process_with_credentials_takes_over_from_a_forwarder_without(
    started: Any, variables: dict[str, str], receiver: Receiver, tmp_path: Path
) -> None:
    """A child without token records first; its parent with token starts a successor."""
    receiver.required = "Bearer right"
    parent = started(**variables, **{TOKEN: "Authorization=Bearer right"})
    ask(parent, "start", {TOKEN: None})
    ask(parent, "child", "record", "of child")
    wait_for(lambda: receiver.refusals, what="the refusal of the child's forwarder")
    assert TOKEN not in access(tmp_path)
    ask(parent, "record", "of parent")
    wait_for(lambda: TOKEN in access(tmp_path), what="a successor")
    assert ask(parent, "shutdown", 60) == {"recorded": 4, "pending": 0, "lost": 0}
    assert receiver.names == Counter({"of child": 1, "of parent": 1, "rollout_trace": 2})


def test_parent_that_never_recorded_takes_over_when_it_ends(
    started: Any, variables: dict[str, str], receiver: Receiver
) -> None:
    """The parent's shutdown() delivers the spans of a child without the token."""
    receiver.required = "Bearer right"
    parent = started(**variables, **{TOKEN: "Authorization=Bearer right"})
    ask(parent, "start", {TOKEN: None})
    ask(parent, "child", "record", "of child")
    wait_for(lambda: receiver.refusals, what="the refusal of the child's forwarder")
    assert ask(parent, "shutdown", 60) == {"recorded": 2, "pending": 0, "lost": 0}


def test_process_with_fewer_credentials_leaves_the_forwarder_alone(
    started: Any, variables: dict[str, str], receiver: Receiver, tmp_path: Path
) -> None:
    """The forwarder has the token, and a child without token starts no successor."""
    receiver.required = "Bearer right"
    parent = started(**variables, **{TOKEN: "Authorization=Bearer right"})
    ask(parent, "record", "of parent")
    wait_for(lambda: TOKEN in access(tmp_path), what="a forwarder")
    ask(parent, "start", {TOKEN: None})
    ask(parent, "child", "record", "of child")
    assert ask(parent, "shutdown", 60) == {"recorded": 4, "pending": 0, "lost": 0}
    assert receiver.refusals == 0


def test_other_credentials_are_tried_where_the_target_refuses(
    started: Any, variables: dict[str, str], receiver: Receiver
) -> None:
    """A child with a wrong token records first; then its parent's token is tried."""
    receiver.required = "Bearer right"
    parent = started(**variables, **{TOKEN: "Authorization=Bearer right"})
    ask(parent, "start", {TOKEN: "Authorization=Bearer wrong"})
    ask(parent, "child", "record", "of child")
    wait_for(lambda: receiver.refusals, what="the refusal of the child's forwarder")
    ask(parent, "record", "of parent")
    assert ask(parent, "shutdown", 60) == {"recorded": 4, "pending": 0, "lost": 0}


def test_token_is_tried_where_the_forwarder_has_variables_that_its_owner_lacks(
    started: Any, variables: dict[str, str], receiver: Receiver
) -> None:
    """A child has a key of another service and no token.

    Its parent has the token and no such key.
    """
    receiver.required = "Bearer right"
    parent = started(**variables, **{TOKEN: "Authorization=Bearer right"})
    ask(parent, "start", {TOKEN: None, "WANDB_API_KEY": "x"})
    ask(parent, "child", "record", "of child")
    wait_for(lambda: receiver.refusals, what="the refusal of the child's forwarder")
    ask(parent, "record", "of parent")
    assert ask(parent, "shutdown", 60) == {"recorded": 4, "pending": 0, "lost": 0}


def test_process_with_all_variables_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of processes without the token, each replaces the forwarder once; its owner may do so again."""
    set_waits(monkeypatch, succession=0.0)
    layout.write_manifest(tmp_path, layout.Manifest("run", "p", ("mlflow", "weave")))
    ledger = Ledger(tmp_path)
    ledger.note_failure("weave", ExportFailure(FailureKind.REFUSED, "401"))
    ledger.close()
    lock = ForwarderLock(tmp_path)
    owner = {"TOKEN": "x", "NO_PROXY": "a"}

    def takes_over(access: dict[str, str], starts: list[float]) -> bool:
        """Return whether a process with these variables replaces the forwarder."""
        monkeypatch.setattr(state, "successor_starts", {tmp_path: starts})
        if not launcher._would_successor_help(lock, tmp_path, access):
            return False
        starts.append(-10.0)
        lock.publish_access(access)
        return True

    lock.publish_access(owner)
    owners: list[float] = []
    for number in range(5):
        starts: list[float] = []
        assert takes_over({"NO_PROXY": str(number)}, starts)
        assert takes_over(owner, owners)
        assert not takes_over({"NO_PROXY": str(number)}, starts)
    lock.close()


@pytest.mark.parametrize(
    ("holder", "other", "is_different"),
    [
        ({"A": "1"}, {"A": "1"}, False),
        ({"A": "1", "B": "2"}, {"A": "1"}, False),
        ({"A": "1"}, {}, False),
        ({"A": "1"}, {"A": "2"}, True),
        ({"A": "1", "B": "2"}, {"A": "2"}, True),
        ({"A": "1"}, {"B": "1"}, True),
        ({"A": "1", "B": "2"}, {"B": "2", "C": "3"}, True),
    ],
)
def test_holder_with_all_variables_of_a_process_has_no_other_access(
    holder: dict[str, str], other: dict[str, str], is_different: bool, tmp_path: Path
) -> None:
    """A missing variable or another value matters.

    What the holder has in addition does not.
    """
    lock = ForwarderLock(tmp_path)
    assert not lock.has_other_access(other)  # the holder has published nothing
    lock.publish_access(holder)
    assert lock.has_other_access(other) is is_different
    lock.close()


def test_successor_waits_until_the_lock_is_free(tmp_path: Path) -> None:
    """The successor requests the lock with a file, and removes it with the lock."""
    first, second = ForwarderLock(tmp_path), ForwarderLock(tmp_path)
    assert first.acquire()
    first.publish_access({})
    assert second.lacks_access({"TOKEN": "x"})
    assert not second.take_over(0.1)
    assert first.is_requested()
    first.release()
    assert second.take_over(10)
    second.publish_access({"TOKEN": "x"})
    assert not (tmp_path / SUCCESSOR_FILE).exists()
    assert not first.lacks_access({"TOKEN": "x"})
    assert not first.has_other_access({"TOKEN": "x"})
    assert first.has_other_access({"TOKEN": "y"})
    first.close()
    second.close()
