"""Configurations are what a Collector takes, as they are here."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import re
import subprocess
import sys
import tarfile
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.collector.support import CONFIGURATIONS

REQUIRED = {
    "GATEWAY_ENDPOINT": "http://127.0.0.1:1",
    "GATEWAY_HOSTNAME": "localhost",
    "BACKEND_ENDPOINT": "http://127.0.0.1:1",
    "KAFKA_BROKER": "127.0.0.1:1",
    "MLFLOW_VALIDATION_EXPERIMENT_ID": "2",
    "LANGFUSE_AUTHORIZATION": "Basic any",
    "WANDB_ENTITY": "entity",
    "WANDB_PROJECT": "project",
    "WANDB_API_KEY": "key",
}
COMBINATIONS = [
    "agent",
    "agent agent-balanced",
    "agent agent-tls",
    "local to-mlflow to-file",
    "local to-otlp",
    "gateway to-mlflow",
    "gateway to-mlflow to-mlflow-split",
    "gateway to-weave",
    "gateway to-otlp",
    "gateway to-langfuse",
    "gateway to-kafka",
    "gateway to-file",
    "gateway gateway-tls to-otlp",
    "gateway sampling gateway-tls to-mlflow to-mlflow-split to-weave to-otlp to-langfuse to-kafka to-file",
]
CHECKED_ELSEWHERE = {"base", "alerts", "builder", "kustomization", "agent-tail"}
"""In every combination; in test_alerts.py; no configurations; with its receiver, in test_tail.py."""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Variables that name files, with files."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=c"]
    command += ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "pem")]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "token").write_text("t")
    pem, key, token = (str(tmp_path / name) for name in ("pem", "key", "token"))
    return {
        "GATEWAY_CA": pem, "GATEWAY_CERTIFICATE": pem, "GATEWAY_KEY": key, "GATEWAY_TOKEN_FILE": token,
        "COLLECTOR_STORAGE": str(tmp_path / "storage"),
    }  # fmt: skip


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_a_collector_takes_it_and_warns_of_nothing(binary, files, combination):
    """`validate` passes, without a word."""
    command = [str(binary), "validate"]
    for name in ("base", *combination.split()):
        command += ["--config", str(CONFIGURATIONS / f"{name}.yaml")]
    environment = {**os.environ, **REQUIRED, **files}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_every_configuration_is_among_those_and_says_who_it_is_for():
    """None is forgotten; each begins with a comment that names all of its variables."""
    names = {path.stem for path in CONFIGURATIONS.glob("*.yaml")}
    assert names == {name for combination in COMBINATIONS for name in combination.split()} | CHECKED_ELSEWHERE
    for name in names - {"builder", "kustomization"}:
        text = (CONFIGURATIONS / f"{name}.yaml").read_text()
        head = text[: text.index("\n\n")]
        assert all(line.startswith("#") for line in head.splitlines())
        inherited = {"MLFLOW_TRACKING_URI", "MLFLOW_AUTHORIZATION"} if name == "to-mlflow-split" else set()
        used = set(re.findall(r"\$\{env:([A-Z_]+)", text)) - inherited
        assert {variable for variable in used if variable not in head} == set(), name


def test_a_missing_required_variable_is_noticed_when_it_validates(binary):
    """An agent without a gateway does not start."""
    command = [str(binary), "validate"]
    for name in ("base", "agent"):
        command += ["--config", str(CONFIGURATIONS / f"{name}.yaml")]
    environment = {key: value for key, value in os.environ.items() if key not in REQUIRED}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode != 0
    assert "endpoint" in ran.stderr


def get_collector(build: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run get_collector.py with an empty cache."""
    copy = build / "collector-config"
    copy.mkdir()
    for name in ("get_collector.py", "builder.yaml"):
        (copy / name).write_bytes((CONFIGURATIONS / name).read_bytes())
    command = [sys.executable, str(copy / "get_collector.py")]
    environment["ROLLOUT_DEV_CACHE"] = str(build / "cache")
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_an_installed_collector_is_used(binary, tmp_path):
    """`make collector` finds a suitable otelcol-contrib on the PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "otelcol-contrib").symlink_to(binary)
    ran = get_collector(tmp_path, {"PATH": str(tmp_path / "bin")})
    assert ran.stdout.strip() == str(tmp_path / "bin" / "otelcol-contrib")


def test_without_go_the_published_collector_is_downloaded_and_checked(binary, tmp_path):
    """A release with the published checksum is unpacked; another one is refused."""
    version = re.search(r"version: (\S+)", (CONFIGURATIONS / "builder.yaml").read_text())[1]
    place = tmp_path / "releases" / f"v{version}"
    place.mkdir(parents=True)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    archive = place / f"otelcol-contrib_{version}_linux_{machine}.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=0) as files:
        files.add(binary, "otelcol-contrib")
        files.addfile(tarfile.TarInfo("README.md"), io.BytesIO())
    sums = place / "opentelemetry-collector-releases_otelcol-contrib_checksums.txt"
    sums.write_text(f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n")

    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "releases"))
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        environment = {"PATH": "", "OTELCOL_RELEASES": f"http://127.0.0.1:{server.server_port}"}
        (tmp_path / "good").mkdir()
        good = get_collector(tmp_path / "good", environment)
        sums.write_text(f"{'0' * 64}  {archive.name}\n")
        (tmp_path / "bad").mkdir()
        bad = get_collector(tmp_path / "bad", environment)
        server.shutdown()
        thread.join()
    assert good.returncode == 0, good.stderr
    assert Path(good.stdout.strip()).is_relative_to(tmp_path / "good" / "cache")
    assert bad.returncode != 0
    assert "does not have the published checksum" in bad.stderr
