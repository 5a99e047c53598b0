"""An outage of ten real minutes, with the pauses and timeouts the product has."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from tests.faults.job import Job
from tests.faults.target import FaultyProxy, receiving
from tests.waiting import wait_for

OUTAGE = float(os.environ.get("OTEL_TEST_OUTAGE", "600"))
"""Seconds."""


def test_an_outage_of_ten_minutes(tmp_path: Path) -> None:
    """The target refuses, hangs and answers 503 by turns while a job goes on; when it is back all arrives.

    Lost: nothing. Doubled: nothing, since no answer is lost on the way.
    """
    with receiving() as receiver:
        proxy = FaultyProxy(receiver.url, "/v1/traces")
        variables = {
            **os.environ,
            "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"),
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": proxy.url,
        }
        expected: list[str] = []
        with Job(variables) as job:
            began = time.monotonic()
            faults: list[str | int] = ["refusing", "hanging", 503]
            while (elapsed := time.monotonic() - began) < OUTAGE:
                proxy.fail(faults[int(elapsed / OUTAGE * len(faults))])
                expected += job.record(f"{len(expected)}", 20)
                time.sleep(1)
            account = job.ask("status")
            assert account["exporters"]["otlp"]["pending"] == len(expected) == account["recorded"]
            assert not receiver.names
            proxy.heal()
            back = time.monotonic()
            report = job.ask("shutdown", 300)
            wait_for(lambda: sum(receiver.names.values()) >= len(expected), seconds=300, what="delivery")
            print(f"{len(expected)} spans arrived {time.monotonic() - back:.0f} s after the target was back")
        proxy.close()
    assert receiver.names == Counter(expected)
    assert (report["exporters"]["otlp"]["delivered"], report["lost"]) == (len(expected), 0)
