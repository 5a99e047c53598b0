"""Get a Collector that runs the configurations in this folder.

    python collector-config/get_collector.py

Prints its path. Looks in this order: the Collector that was built or downloaded before for this
``builder.yaml``; an ``otelcol-contrib`` on the PATH that is new enough; a slim Collector built with Go; the
published ``otelcol-contrib``. Needs the standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "builder.yaml"
CACHE = Path(os.environ.get("ROLLOUT_DEV_CACHE") or Path.home() / ".cache" / "otel-rollout-dev")
"""Folder of what was built or downloaded before, by this or another checkout."""
BUILDER = "go.opentelemetry.io/collector/cmd/builder"
RELEASES = os.environ.get(
    "OTELCOL_RELEASES", "https://github.com/open-telemetry/opentelemetry-collector-releases/releases/download"
)
"""URL of the releases: ``<URL>/v<version>/otelcol-contrib_<version>_<os>_<arch>.tar.gz``."""
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class NoCollectorError(Exception):
    """No Collector is available; the message says why and what to do."""


def wanted_version() -> str:
    """Return the Collector's version that the manifest names."""
    found = re.search(r"^ +version: *(\d+\.\d+\.\d+)", MANIFEST.read_text(), re.MULTILINE)
    if not found:
        raise NoCollectorError(f"{MANIFEST} names no version.")
    return found[1]


def version_of(binary: Path | str) -> str:
    """Return the version that a Collector prints."""
    ran = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"(\d+\.\d+\.\d+)", ran.stdout)
    if ran.returncode or not found:
        raise NoCollectorError(f"{binary} --version prints no version of a Collector: {ran.stderr.strip()}")
    return found[1]


def verified(binary: Path, version: str) -> Path:
    """Return the binary if it has this version.

    Raises:
        NoCollectorError: it has another version.
    """
    if version_of(binary) != version:
        raise NoCollectorError(f"{binary} has version {version_of(binary)}, but {version} is required.")
    return binary


def cached_path(made_of: bytes) -> Path:
    """Return the path at which the Collector of a manifest is kept."""
    return CACHE / f"collector-{hashlib.sha256(made_of).hexdigest()[:16]}" / "otelcol"


def on_path(version: str) -> Path | None:
    """Return the installed ``otelcol-contrib``, if there is one that is new enough."""
    found = shutil.which("otelcol-contrib")
    if found is None:
        return None
    if _numbers(version_of(found)) < _numbers(version):
        print(f"{found} is {version_of(found)}, older than {version}: not used", file=sys.stderr)
        return None
    return Path(found)


def build(version: str, target: Path, manifest: str) -> Path:
    """Build the Collector of a manifest with Go."""
    with _alone(target), tempfile.TemporaryDirectory(prefix="otel-rollout-collector-") as directory:
        if target.exists():  # somebody else has built it meanwhile
            return target
        say(f"Building the Collector {version} with Go. This takes minutes, once.")
        tools = CACHE / "collector-builder" / version
        _run(["go", "install", f"{BUILDER}@v{version}"], {"GOBIN": str(tools)})
        (Path(directory) / MANIFEST.name).write_text(manifest)
        _run([str(tools / "builder"), "--config", MANIFEST.name], {}, directory)
        return _keep(Path(directory) / "otel-rollout-collector", version, target)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Wait until nobody else builds a Collector."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE / "collector.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(version: str, target: Path) -> Path:
    """Download the published release and check it against the published checksums."""
    system = platform.system().lower()
    architecture = _ARCHITECTURES.get(platform.machine().lower())
    if system not in ("linux", "darwin") or architecture is None:
        raise NoCollectorError(
            f"There is no release for {platform.platform()}: install Go and run this again."
        )
    name = f"otelcol-contrib_{version}_{system}_{architecture}.tar.gz"
    say(f"Downloading {name}.")
    with tempfile.TemporaryDirectory(prefix="otel-rollout-collector-") as directory:
        archive = Path(directory) / name
        _fetch(f"{RELEASES}/v{version}/{name}", archive)
        sums = Path(directory) / "sums.txt"
        _fetch(f"{RELEASES}/v{version}/opentelemetry-collector-releases_otelcol-contrib_checksums.txt", sums)
        listed = re.search(rf"^([0-9a-f]{{64}})\s+\*?{re.escape(name)}$", sums.read_text(), re.MULTILINE)
        if not listed or listed[1] != hashlib.sha256(archive.read_bytes()).hexdigest():
            raise NoCollectorError(f"{name} does not have the published checksum.")
        with tarfile.open(archive) as files:
            member = files.extractfile("otelcol-contrib")
            if member is None:
                raise NoCollectorError(f"{name} holds no otelcol-contrib.")
            binary = Path(directory) / "otelcol-contrib"
            with member, binary.open("wb") as out:
                shutil.copyfileobj(member, out)
        return _keep(binary, version, target)


def get() -> Path:
    """Return the path of a Collector.

    Raises:
        NoCollectorError: no Collector is available.
    """
    version, target = wanted_version(), cached_path(MANIFEST.read_bytes())
    if target.exists():
        return verified(target, version)
    if installed := on_path(version):
        return installed
    if shutil.which("go"):
        return build(version, target, MANIFEST.read_text())
    return download(version, target)


def say(words: str) -> None:
    """Print a message to standard error."""
    print(words, file=sys.stderr, flush=True)


def _keep(binary: Path, version: str, target: Path) -> Path:
    """Move a binary to its path, if it has the right version."""
    binary.chmod(0o755)
    verified(binary, version)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    shutil.move(binary, fresh)
    fresh.replace(target)
    return target


def _run(command: list[str], variables: dict[str, str], directory: str | None = None) -> None:
    environment = {**os.environ, **variables}
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NoCollectorError(f"{' '.join(command)} failed:\n{(ran.stdout + ran.stderr)[-3000:]}")


def _fetch(url: str, target: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, target.open("wb") as out:  # noqa: S310
            shutil.copyfileobj(answer, out)
    except OSError as error:
        raise NoCollectorError(
            f"{url} cannot be downloaded ({error}). Install Go to build the Collector instead."
        ) from error


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    try:
        print(get())
    except NoCollectorError as error:
        sys.exit(f"No Collector: {error}")
