"""Start real Collectors and other servers on the loopback; read what they wrote."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from otel_rollout.base.environment import PREFIXES
from tests.ports import free_port
from tests.spool_reader import Recorded, read_lines
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = ROOT / "collector-config"
TOKEN = "a-token-of-the-tests"
START_SECONDS = 60

Sample = tuple[str, dict[str, str], float]
"""Name, labels and value of a metric."""
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_REQUEST = b'{"resourceSpans":'
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def get(url: str) -> str | None:
    """What a server answers with 200; None otherwise."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return None


class Collector:
    """A Collector with this repository's configurations, in a directory of its own.

    It keeps them when it is started again.
    """

    def __init__(
        self, binary: Path, place: Path, configurations: Iterable[str | Path], **variables: str
    ) -> None:
        self.place = place
        self.grpc, self.http, self.health, self.own_metrics_port, self.prometheus = (
            free_port() for _ in range(5)
        )
        self.endpoint = f"http://127.0.0.1:{self.http}"
        self.spans_file = place / "spans.jsonl"
        self.log = place / "collector.log"
        self._command = [str(binary)]
        for name in configurations:
            self._command += ["--config", str(CONFIGURATIONS / name)]
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
            "COLLECTOR_GRPC": f"127.0.0.1:{self.grpc}",
            "COLLECTOR_HTTP": f"127.0.0.1:{self.http}",
            "COLLECTOR_HEALTH": f"127.0.0.1:{self.health}",
            "COLLECTOR_METRICS_PORT": str(self.own_metrics_port),
            "COLLECTOR_STORAGE": str(place / "storage"),
            "PROMETHEUS_ENDPOINT": f"127.0.0.1:{self.prometheus}",
            "SPANS_FILE": str(self.spans_file),
            **variables,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._ids: list[tuple[bytes, bytes]] = []
        self._read = 0
        place.mkdir(parents=True, exist_ok=True)

    def start(self) -> Collector:
        """Start, or start again, and wait until it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=self.place, stdout=log, stderr=log
            )

        def ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            return get(f"http://127.0.0.1:{self.health}") is not None

        wait_for(ready, START_SECONDS, "a ready Collector")
        return self

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let it end as it wishes, within bounds."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process so far."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def spans(self, file: str = "spans.jsonl") -> list[Recorded]:
        """What it has written into a file so far; a line under way is left out."""
        try:
            *whole, _ = (self.place / file).read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return read_lines(whole)

    def ids(self) -> list[tuple[bytes, bytes]]:
        """Trace and span id of every span in its file.

        Reads on from where it got to when asked before.
        """
        if self.spans_file.exists():
            with self.spans_file.open("rb") as file:
                file.seek(self._read)
                *whole, _ = file.read().split(b"\n")
            self._read += sum(len(line) + 1 for line in whole)
            self._ids += [ids for line in whole for ids in _ids_in(line)]
        return self._ids

    def span_ids(self) -> Counter[bytes]:
        """Span id → how often it lies in the file."""
        return Counter(span_id for _, span_id in self.ids())

    def traces(self) -> dict[bytes, set[bytes]]:
        """Trace id → ids of its spans in the file."""
        found = defaultdict(set)
        for trace_id, span_id in self.ids():
            found[trace_id].add(span_id)
        return found

    def span_metrics(self) -> list[Sample]:
        """What Prometheus would read of the spans that passed it."""
        return samples(self.prometheus)

    def own_metrics(self) -> list[Sample]:
        """What Prometheus would read of itself."""
        return samples(self.own_metrics_port)


def samples(port: int) -> list[Sample]:
    """Return the values on a Prometheus page of this machine, by Prometheus's names.

    Prometheus' client for Python would add a `_total` to those of counters.
    """
    page = get(f"http://127.0.0.1:{port}/metrics") or ""
    return [
        (name, dict(_LABEL.findall(labels)), float(value)) for name, labels, value in _SAMPLE.findall(page)
    ]


def _ids_in(line: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the whole line behind half of one, which `kill -9` leaves.

    The other line's spans come again.
    """
    whole = line[line.rindex(_REQUEST) :]
    for resource in json.loads(whole)["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield bytes.fromhex(span["traceId"]), bytes.fromhex(span["spanId"])


@contextmanager
def running_collectors(binary: Path, place: Path) -> Iterator[Callable[..., Collector]]:
    """A function that starts Collectors.

    They end with the block, and have nothing to warn of.
    """
    made: list[Collector] = []

    def start(*configurations: str | Path, program: Path = binary, **variables: str) -> Collector:
        number = f"collector-{len(made)}"
        made.append(Collector(program, place / number, ("base.yaml", *configurations), **variables))
        return made[-1].start()

    try:
        yield start
    finally:
        for one in made:
            one.stop()
    for one in made:
        assert "deprecated" not in one.log.read_text().lower()


def training_environment(spool: Path) -> dict[str, str]:
    """The environment of a training script that delivers over OTLP.

    Its endpoint is to be added.
    """
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)},
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        "OTEL_ROLLOUT_KEEP": "true",  # tests look at what was delivered, too
        "OTEL_ROLLOUT_PROJECT": "collector-tests",
        "OTEL_ROLLOUT_EXPERIMENT": "grpo",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a FutureWarning of Ray's
    }


def run_python(program: str, environment: dict[str, str], *arguments: str) -> str:
    """Run a module in another process, and return its output."""
    ran = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    return ran.stdout


def posted_json(url: str, body: Any, headers: dict[str, str] | None = None) -> Any:
    """POST JSON; the decoded answer."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read() or b"null")
