"""Odd spans of other libraries arrive at every backend; nothing raises, and nothing else is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.backend import Adapter
from tests.conformance.odd import CONTENTS, NAMES, VALUES
from tests.spool_reader import read_directory

WAYS = ("joined", "application")
SPANS = len(VALUES) + len(NAMES) + len(CONTENTS) + 4
"""Odd spans of each way."""

# A warning that MLflow causes.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Adapter]) -> tuple[Path, str]:
    """The spool of odd spans that the forwarder has delivered to every backend, and what the program said."""
    directory = tmp_path_factory.mktemp("odd")
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        "OTEL_ROLLOUT_SPOOL_DIR": str(directory / "spool"),
        "OTEL_ROLLOUT_PROJECT": "odd",
        "OTEL_TRACES_EXPORTER": ",".join(adapters),
        "OTEL_ROLLOUT_KEEP": "true",
    }
    for adapter in adapters.values():
        variables |= adapter.variables
    record = [sys.executable, "-m", "tests.conformance.odd"]
    recorded = subprocess.run(record, env=variables, capture_output=True, text=True, timeout=200)
    assert recorded.returncode == 0, recorded.stderr[-3000:]
    forward = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "forward"]
    forwarded = subprocess.run(forward, env=variables, capture_output=True, text=True, timeout=200)
    return directory / "spool", recorded.stderr + forwarded.stdout + forwarded.stderr


def test_every_odd_span_is_recorded(said: tuple[Path, str]) -> None:
    """Whatever its values, a span is in the spool, with the attribute that is not odd."""
    spans = [span for span in read_directory(said[0]) if span.scope == "library"]
    assert len(spans) == SPANS * len(WAYS)
    assert all(span.attributes["kept"] == 1 for span in spans)


def test_lines_say_what_was_lost(said: tuple[Path, str]) -> None:
    """The program names attributes that cannot be read, and times and numbers that are cut, each once."""
    text = said[1]
    assert "internal error" not in text
    assert "Traceback" not in text
    told = [
        line for line in text.splitlines() if "is recorded without its attribute 'odd', which raised" in line
    ]
    assert told
    assert len(told) == len(set(told))
    assert text.count("has more than 128 links") <= 1


@pytest.mark.parametrize("name", ["mlflow", "weave", "delta", "otlp", "otlp_proto_http"])
def test_backend_has_every_odd_span(said: tuple[Path, str], adapters: dict[str, Adapter], name: str) -> None:
    """None is rejected; each of the backend's trajectories has the recorded spans, each with an end."""
    assert not list(said[0].rglob("rejected.*")), said[1][-3000:]
    recorded = Counter(span.span.trace_id.hex() for span in read_directory(said[0]))
    operations = adapters[name].read("odd")
    assert Counter(operation.trace for operation in operations) == recorded
    assert all(operation.end_us >= 0 for operation in operations)
