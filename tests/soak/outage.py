"""An outage of ten real minutes, with the pauses and timeouts the product has.

python -m tests.soak.outage
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter

from tests.faults.job import Job
from tests.faults.target import FaultyProxy, receiving
from tests.waiting import wait_for

FAULTS: tuple[str | int, ...] = ("refusing", "hanging", 503)


def outage(seconds: float, spool: str) -> str:
    """The target refuses, hangs and answers 503 by turns while a job goes on.

    When it is back all arrives.

    Lost: nothing. Doubled: nothing, since no answer is lost on the way.

    Returns:
        What was seen.
    """
    with receiving() as receiver:
        proxy = FaultyProxy(receiver.url, "/v1/traces")
        variables = {
            **os.environ,
            "OTEL_ROLLOUT_SPOOL_DIR": spool,
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": proxy.url,
        }
        expected: list[str] = []
        with Job(variables) as job:
            began = time.monotonic()
            while (elapsed := time.monotonic() - began) < seconds:
                proxy.fail(FAULTS[int(elapsed / seconds * len(FAULTS))])
                expected += job.record(f"{len(expected)}", 20)
                time.sleep(1)
            account = job.ask("status")
            assert account["exporters"]["otlp"]["pending"] == len(expected) == account["recorded"], account
            assert not receiver.names, receiver.names
            proxy.recover()
            back = time.monotonic()
            report = job.ask("shutdown", 300)
            wait_for(lambda: sum(receiver.names.values()) >= len(expected), seconds=300, what="delivery")
            waited = time.monotonic() - back
        proxy.close()
    assert receiver.names == Counter(expected), Counter(expected) - receiver.names
    assert (report["exporters"]["otlp"]["delivered"], report["lost"]) == (len(expected), 0), report
    return f"{len(expected)} spans arrived {waited:.0f} s after the target was back"


def main() -> None:
    """Have one; an assertion that does not hold ends it."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="outage-") as spool:
        print(outage(seconds, spool))


if __name__ == "__main__":
    main()
