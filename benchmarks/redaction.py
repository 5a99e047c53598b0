"""Measure redaction: processor time per line of usual and hostile content.

python -m benchmarks.redaction
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from otel_rollout.otlp import writer
from otel_rollout.redaction.secret_finder import redact_secrets

TEXT = (Path(__file__).parents[1] / "LICENSE").read_text()
CONTENTS = {
    "prose, 2 KB": TEXT[:2_000],
    "prose with a key, 2 KB": f"{TEXT[:2_000]} sk-{'a1B2' * 8}",
    "conversation, 100 KB": json.dumps([{"role": "user", "content": TEXT}] * 9),
    "conversation with a key, 100 KB": json.dumps([{"role": "user", "content": f"{TEXT} password=x"}] * 9),
    "token ids, 200 KB": json.dumps({"prompt_ids": list(range(100_000, 125_000))}),
    "`eyJ-` repeated, 160 KB": "eyJ-" * 40_000,
    "PEM headers, 160 KB": "-----BEGIN PRIVATE KEY-----" * 6_000,
}


def milliseconds(line: bytes) -> float:
    """Return the minimum time of several runs."""
    best = float("inf")
    for _ in range(20):
        began = time.thread_time()
        redact_secrets(line)
        best = min(best, time.thread_time() - began)
    return 1000 * best


def main() -> None:
    """Print a row for each kind of content."""
    for name, content in CONTENTS.items():
        attributes = writer.attribute_list({"input.value": content})
        line = b'"scope":{},"spans":[{"attributes":%b}]}]}]}\n' % attributes
        print(f"{name:34} {milliseconds(line):8.2f} ms")


if __name__ == "__main__":
    main()
