"""Test MLflow, Weave and an OTLP receiver behind failing proxies, all at once.

One job records, and its own forwarder delivers to the three. In each test the targets fail in one way and
recover. Nothing is ever lost. MLflow and Weave get nothing twice. Over OTLP, a batch whose answer was lost
arrives twice, with unchanged ids. Pauses are a hundredth of the real ones.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rollout.account.ledger_reader import LedgerState, read_ledger
from otel_rollout.exporting.api import FailureKind
from tests.faults.job import Job
from tests.faults.target import Certificates, FaultyProxy, receiving
from tests.forwarder.test_delivery import forwarder_pid
from tests.local_weave import LocalWeave
from tests.mlflow_server import stored
from tests.waiting import wait_for
from tests.waits import scaled, variable

SILENCE = 4.0
"""Timeout of MLflow and Weave in seconds; the receiver's is twice as long, as it cannot be queried."""
ANSWER_LOST = ("slow", "cut after")
"""The faults after which the target has spans that the exporter does not know of."""


@dataclass
class Rollout:
    """A job that records, and delivers to three targets."""

    job: Job
    node_dir: Path
    proxies: dict[str, FaultyProxy]
    arrived: dict[str, Callable[[], Counter[str]]]

    @property
    def ledger(self) -> LedgerState:
        return read_ledger(self.node_dir)

    def record_under(self, fault: str | int, times: int = 1 << 30) -> list[str]:
        """Record a trajectory while targets fail, so that it is sent as one batch."""
        forwarder = wait_for(lambda: forwarder_pid(self.node_dir), what="a forwarder")
        os.kill(forwarder, signal.SIGSTOP)
        try:
            names = self.job.record(f"{fault}-{uuid.uuid4().hex[:8]}".replace(" ", "-"), 3)
            for proxy in self.proxies.values():
                proxy.fail(fault, times)
        finally:
            os.kill(forwarder, signal.SIGCONT)
        return names

    def recover(self) -> None:
        for proxy in self.proxies.values():
            proxy.recover()

    def wait_until_delivered(self) -> None:
        recorded = self.job.ask("status")["recorded"]
        wait_for(
            lambda: all(self.ledger.total(name).done == recorded for name in self.proxies),
            seconds=120,
            what=f"delivery of {recorded} spans",
        )

    def check_arrived(self, names: list[str], answer_lost: bool) -> None:
        """Check that each target has each span once; OTLP may repeat after lost answers."""
        for exporter, arrived in self.arrived.items():
            found = arrived()
            times = {name: found[name] for name in names}
            if exporter == "otlp" and answer_lost:
                assert all(times.values()), (exporter, times)
            else:
                assert set(times.values()) == {1}, (exporter, times)


@pytest.fixture(scope="module")
def rollout(
    server_uri: str, local_weave: LocalWeave, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rollout]:
    """Yield one job for all tests; it keeps recording, like a training job."""
    directory = tmp_path_factory.mktemp("targets")
    project = f"faults-{uuid.uuid4().hex[:12]}"
    certificates = Certificates(directory)
    with ExitStack() as stack:
        receiver = stack.enter_context(receiving())
        proxies = {
            "mlflow": FaultyProxy(server_uri, "/v1/traces", certificates),
            "weave": FaultyProxy(local_weave.url, "/calls/complete", certificates),
            "otlp": FaultyProxy(receiver.url, "/v1/traces", certificates),
        }
        for proxy in proxies.values():
            stack.callback(proxy.close)
        job = stack.enter_context(
            Job(_environment(directory, project, certificates, local_weave), _exporters(proxies))
        )
        job.record("first", 1)
        rollout = Rollout(
            job,
            Path(job.ask("status")["directory"]),
            proxies,
            {
                "mlflow": lambda: _in_mlflow(server_uri, project),
                "weave": lambda: Counter(call["op_name"] for call in local_weave.calls(project)),
                "otlp": lambda: receiver.names,
            },
        )
        rollout.wait_until_delivered()
        yield rollout


def _environment(
    directory: Path, project: str, certificates: Certificates, weave: LocalWeave
) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {
        **kept,
        **weave.environment,
        "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
        "OTEL_ROLLOUT_PROJECT": project,
        **variable(scaled(0.01)),
        "MLFLOW_TRACKING_SERVER_CERT_PATH": certificates.trusted,
        "OTEL_EXPORTER_OTLP_CERTIFICATE": certificates.trusted,
        "REQUESTS_CA_BUNDLE": certificates.trusted,
    }


def _exporters(proxies: dict[str, FaultyProxy]) -> dict[str, dict[str, object]]:
    weave = proxies["weave"].url
    return {
        "mlflow": {"tracking_uri": proxies["mlflow"].url, "timeout": SILENCE},
        "weave": {"base_url": weave, "trace_server_url": weave, "timeout": SILENCE},
        "otlp": {"endpoint": proxies["otlp"].url + "/v1/traces", "timeout": 2 * SILENCE},
    }


def _in_mlflow(uri: str, project: str) -> Counter[str]:
    return Counter(span.name for trace in stored(uri, project) for span in trace.data.spans)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("refusing", FailureKind.UNAVAILABLE),
        ("hanging", FailureKind.UNAVAILABLE),
        ("slow", FailureKind.UNAVAILABLE),
        ("cut before", FailureKind.UNAVAILABLE),
        ("cut after", FailureKind.UNAVAILABLE),
        ("handshake cut", FailureKind.UNAVAILABLE),
        ("wrong certificate", FailureKind.REFUSED),
        (401, FailureKind.REFUSED),
        (403, FailureKind.REFUSED),
        (429, FailureKind.UNAVAILABLE),
        (502, FailureKind.UNAVAILABLE),
        (503, FailureKind.UNAVAILABLE),
    ],
)
def test_lasting_fault_of_target_delays_delivery_and_loses_nothing(
    rollout: Rollout, fault: str | int, kind: FailureKind
) -> None:
    """The report names the failure while it lasts; then all spans arrive.

    Lost: nothing. Doubled: over OTLP, a batch whose answer was lost.
    """
    names = rollout.record_under(fault)
    # After a lost answer the exporter asks Weave which spans it has, and so recovers soon.
    in_trouble = [name for name in rollout.proxies if name != "weave" or fault not in ANSWER_LOST]

    def kinds() -> dict[str, FailureKind]:
        return {name: failure.kind for name, failure in rollout.ledger.failures.items() if name in in_trouble}

    wait_for(lambda: kinds() == dict.fromkeys(in_trouble, kind), what=f"{kind} to be noted of all")
    rollout.recover()
    rollout.wait_until_delivered()
    assert rollout.ledger.failures == {}
    rollout.check_arrived(names, fault in ANSWER_LOST)


@pytest.mark.parametrize(("status", "times"), [(400, 1), (413, 1), (500, 2)])
def test_passing_refusal_of_batch_loses_no_span(rollout: Rollout, status: int, times: int) -> None:
    """A batch rejected once is halved, and both halves pass; an error repeats it.

    There are two internal errors: after a third, Weave's exporter suspects the calls. Lost: nothing.
    Doubled: nothing.
    """
    names = rollout.record_under(status, times)
    rollout.wait_until_delivered()
    rollout.recover()
    account = rollout.job.ask("status")
    assert {name: count["rejected"] for name, count in account["exporters"].items()} == dict.fromkeys(
        rollout.proxies, 0
    )
    rollout.check_arrived(names, answer_lost=False)


def test_target_back_after_outage_gets_every_span(rollout: Rollout) -> None:
    """The outage lasts a dozen attempts of each exporter.

    `make soak` waits ten minutes.

    Lost: nothing. Doubled: nothing.
    """
    before = rollout.ledger.retries
    names = rollout.record_under("refusing")

    def has_lasted() -> bool:
        names.extend(rollout.job.record(f"meanwhile-{uuid.uuid4().hex[:8]}", 5))
        retries = rollout.ledger.retries
        return all(retries.get(name, 0) >= before.get(name, 0) + 12 for name in rollout.proxies)

    wait_for(has_lasted, what="a dozen attempts")
    account = rollout.job.ask("status")
    assert {c["pending"] for c in account["exporters"].values()} == {len(names)}, account
    assert account["lost"] == 0
    rollout.recover()
    rollout.wait_until_delivered()
    rollout.check_arrived(names, answer_lost=False)


def test_failing_target_does_not_delay_other_targets(rollout: Rollout) -> None:
    """Two exporters deliver while the third target is away. Lost: nothing."""
    rollout.proxies["mlflow"].fail("refusing")
    names = rollout.job.record("two-of-three", 3)
    recorded = rollout.job.ask("status")["recorded"]
    wait_for(lambda: all(rollout.ledger.total(name).done == recorded for name in ("weave", "otlp")))
    assert rollout.ledger.total("mlflow").done < recorded
    rollout.recover()
    rollout.wait_until_delivered()
    rollout.check_arrived(names, answer_lost=False)


def test_counts_add_up_at_the_end_of_the_job(rollout: Rollout) -> None:
    """After all faults, each exporter has delivered all spans."""
    account = rollout.job.ask("shutdown", 60)
    assert (account["started"], account["open"], account["dropped"], account["lost"]) == (
        account["recorded"], 0, {}, 0,
    )  # fmt: skip
    for name, count in account["exporters"].items():
        assert (count["delivered"], count["rejected"], count["pending"]) == (account["recorded"], 0, 0), name
