"""Test that credentials from any source appear only where they belong."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.job import PATH, Job
from tests.faults.target import FaultyProxy, Receiver
from tests.spool_reader import contents_below
from tests.waiting import wait_for

PASSWORD, API_KEY, TOKEN, QUERY = (
    f"planted-{name}-{uuid.uuid4().hex}" for name in ("password", "key", "token", "query")
)
USER = "somebody"
SECRETS = [
    PASSWORD,
    API_KEY,
    TOKEN,
    QUERY,
    base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
    base64.b64encode(f"api:{API_KEY}".encode()).decode(),
]


@pytest.fixture
def refusing(receiver: Receiver) -> Iterator[FaultyProxy]:
    """Yield a target that refuses all requests, and quotes their credentials."""
    proxy = FaultyProxy(receiver.url, "/")
    proxy.fail(401)
    yield proxy
    proxy.close()


def by_variables(url: str) -> tuple[dict[str, str], None]:
    """Return credentials in environment variables."""
    return {
        "OTEL_TRACES_EXPORTER": "mlflow,weave,otlp",
        "MLFLOW_TRACKING_URI": url,
        "MLFLOW_TRACKING_USERNAME": USER,
        "MLFLOW_TRACKING_PASSWORD": PASSWORD,
        "WANDB_API_KEY": API_KEY,
        "WANDB_BASE_URL": url,
        "WF_TRACE_SERVER_URL": url,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}/v1/traces?key={QUERY}",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {TOKEN}",
    }, None


def by_options(url: str) -> tuple[dict[str, str], dict[str, dict[str, object]]]:
    """Return credentials in arguments of ``configure()``."""
    return {}, {
        "mlflow": {"tracking_uri": url.replace("//", f"//{USER}:{PASSWORD}@")},
        "weave": {"api_key": API_KEY, "base_url": url, "trace_server_url": url},
        "otlp": {"endpoint": f"{url}/v1/traces?key={QUERY}", "headers": {"authorization": f"Bearer {TOKEN}"}},
    }


@pytest.mark.parametrize("given", [by_variables, by_options])
def test_credentials_appear_in_no_file_log_or_command_line(
    given: Callable[[str], tuple[dict[str, str], dict[str, dict[str, object]] | None]],
    variables: dict[str, str],
    refusing: FaultyProxy,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No segment, ledger, log, command line, report or ``status`` has a credential."""
    added, exporters = given(refusing.url)
    del variables["OTEL_EXPORTER_OTLP_ENDPOINT"]
    variables |= added
    with Job(variables, exporters) as job:
        job.record("first", 3)
        refused = wait_for(lambda: in_trouble(job.ask("status"), "401"), what="three refusals")
        refusing.fail(404)
        account = wait_for(lambda: in_trouble(job.ask("status"), "404"), what="three failures")
        lines = command_lines()
        shown = command(variables, "status", "--json"), command(variables, "status")
        account |= job.ask("shutdown", 1)
    said = "".join(capfd.readouterr())
    assert "does not take spans" in said, said
    assert "otel_rollout.forwarder" in lines
    files = {
        path: content.decode(errors="replace") for path, content in contents_below(tmp_path / "spool").items()
    }
    assert any(path.name == "forwarder.log" and text for path, text in files.items())
    places = {
        "command lines": lines,
        "the job": said,
        "its account": json.dumps([refused, account]),
        "status": "".join(shown),
    }
    for place, text in {**files, **places}.items():
        for secret in SECRETS:
            assert secret not in text, f"{secret} is in {place}"


def in_trouble(account: dict[str, object], status: str) -> dict[str, object] | None:
    """Return the report if each exporter was answered with ``status``, else None."""
    exporters = account["exporters"]
    assert isinstance(exporters, dict)
    return account if all(status in (count["problem"] or "") for count in exporters.values()) else None


def command_lines() -> str:
    """Return the command lines of all processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:  # the process has ended
                continue
    return "\n".join(found)


def command(variables: dict[str, str], *arguments: str) -> str:
    """Run a command of this package; return its output."""
    ran = subprocess.run(
        [sys.executable, "-c", "from otel_rollout.cli import app; app()", *arguments],
        env={**variables, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr
