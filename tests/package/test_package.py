"""What `make dist` has made is what a user installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIST = ROOT / ".venv-dist" / "bin"
UV = Path(sys.executable).parent / "uv"
MAX_BASE_MIB = 25
MAX_IMPORTED_MODULES = 250
EXTRAS = {
    "mlflow": ["otel_rollout_mlflow"],
    "mlflow-local": ["otel_rollout_mlflow", "mlflow"],
    "weave": ["otel_rollout_weave"],
    "otlp": ["otel_rollout_otlp", "grpc"],
    "delta": ["otel_rollout_delta", "deltalake"],
    "view": ["otel_rollout.look.web.app"],
    "receive": ["otel_rollout.record.receiver.app"],
    "ray": ["otel_rollout.ray", "ray"],
    "tokens": ["tokenizers"],
}
"""An extra → modules that it is there for."""
OF_OTHER_EXTRAS = {"all", "demo", "model", "trl", "verifiers", "verl"}
"""Extras that are made of others, and of frameworks that tests of their own install."""
IMPORTED = """
import sys, opentelemetry.trace
before = set(sys.modules)
import otel_rollout
print(*set(sys.modules) - before)
"""


def built() -> tuple[Path, Path]:
    """Return the wheel and the source distribution of `make dist`."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    (source,) = (ROOT / "dist").glob("*.tar.gz")
    return wheel, source


def metadata() -> Message:
    """Return what the wheel tells the index."""
    with zipfile.ZipFile(built()[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(wheel.read(name))


def installed(place: Path, *options: str, extra: str = "") -> Path:
    """Install the wheel into an environment of its own; return its Python."""
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, place], check=True, timeout=60)
    wheel = f"{built()[0]}[{extra}]" if extra else str(built()[0])
    command = [UV, "pip", "install", "--quiet", "--constraint", ROOT / "constraints" / "dev.txt", *options]
    subprocess.run([*command, "--python", place / "bin" / "python", wheel], check=True, timeout=600)
    return place / "bin" / "python"


def run(*command: str | Path, **variables: str) -> str:
    """Return the output of a program that knows nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "PYTHON"))}
    ran = subprocess.run(
        list(map(str, command)),
        env=kept | variables, cwd="/", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the base install alone."""
    return installed(tmp_path_factory.mktemp("base") / "venv")


def test_same_source_makes_the_same_bytes(tmp_path: Path) -> None:
    """A clone in another place gives the same wheel and source distribution."""
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True, timeout=60)
    time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    made = {}
    for place in (tmp_path / "one", tmp_path / "two"):
        command = [DIST / "python", "-m", "build", "--no-isolation", "--outdir", place, tmp_path / "clone"]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": time.stdout.strip()}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
        made[place] = {path.name: sha256(path.read_bytes()).hexdigest() for path in place.iterdir()}
    assert made[tmp_path / "one"] == made[tmp_path / "two"]
    assert len(made[tmp_path / "one"]) == 2


def test_index_shows_every_link_and_image() -> None:
    """The README that the index gets has absolute addresses only, and each names a file of the project."""
    text = metadata().get_payload()
    assert isinstance(text, str)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 20
    version = re.escape(str(metadata()["Version"]))
    for target in targets:
        assert target.startswith(("https://", "#")), target
        inside = re.fullmatch(rf"https://[^/]+/[^/]+/otel-rollout/(?:blob/)?v{version}/([^#]+)(#.*)?", target)
        assert inside is None or (ROOT / inside[1]).exists(), target


def test_classifiers_name_the_versions_that_are_tested() -> None:
    """No other Python is promised than those that tests run on."""
    named = [value.rpartition(" ")[2] for value in metadata().get_all("Classifier") or ()]
    versions = {value for value in named if re.fullmatch(r"3\.\d+", value)}
    assert versions == {"3.11", "3.13"}
    assert metadata()["Requires-Python"] == ">=3.11"


def test_source_distribution_holds_what_the_wheel_is_made_of() -> None:
    """Every module of the wheel is in the source distribution, with licence and changes."""
    with tarfile.open(built()[1]) as source, zipfile.ZipFile(built()[0]) as wheel:
        sources = {name.partition("/")[2] for name in source.getnames()}
        modules = [name for name in wheel.namelist() if ".dist-info/" not in name]
    roots = ("", "exporters/", "examples/", "autoload/")
    assert [name for name in modules if not any(root + name in sources for root in roots)] == []
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= sources


def test_base_install_is_small(python: Path) -> None:
    """Without extras, at most 25 MiB of packages are installed."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    size = sum(
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.is_symlink()
    )
    print(f"{size / (1 << 20):.1f} MiB")
    assert size < MAX_BASE_MIB << 20


def test_import_is_light(python: Path) -> None:
    """The import loads few modules beside those of OpenTelemetry's API, and none of a command."""
    imported = run(python, "-c", IMPORTED).split()
    assert 0 < len(imported) < MAX_IMPORTED_MODULES
    assert not {"asyncio", "sqlite3", "typer", "rich"} & set(imported)


def test_command_runs_as_a_module(python: Path) -> None:
    """`python -m otel_rollout` is the command `otel-rollout`."""
    version = run(python, "-m", "otel_rollout", "--version")
    assert version == run(python.parent / "otel-rollout", "--version") == f"{metadata()['Version']}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completes_commands(python: Path, shell: str) -> None:
    """`--show-completion` prints a script for the shell, and the script's question is answered."""
    command = python.parent / "otel-rollout"
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the shell is the one that is named
    assert "otel-rollout" in run(command, "--show-completion", shell, **named)
    words = {"COMP_WORDS": "otel-rollout ti", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "otel-rollout ti"}
    asked = {"_OTEL_ROLLOUT_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "timeline" in run(command, **words, **asked)


def test_extras_are_those_of_the_project() -> None:
    """Each extra for users is installed by a test of this file, or is made of such."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.keys() == set(EXTRAS) | OF_OTHER_EXTRAS
    assert set(metadata().get_all("Provides-Extra") or ()) == extras.keys()


@pytest.mark.parametrize("extra", EXTRAS)
def test_extra_alone_brings_what_it_is_for(tmp_path: Path, extra: str) -> None:
    """In a clean environment, the extra's modules can be imported, and the command runs."""
    python = installed(tmp_path / "venv", extra=extra)
    run(python, "-W", "error::ImportWarning", "-c", f"import {', '.join(EXTRAS[extra])}")
    run(python.parent / "otel-rollout", "--help")


def test_missing_extra_is_named(python: Path, tmp_path: Path) -> None:
    """A variable that asks for an exporter without its extra gets one line that says what to install."""
    variables = {"OTEL_TRACES_EXPORTER": "delta", "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path)}
    program = (
        "import otel_rollout\nwith otel_rollout.rollout_trace_attr(step=1): pass\notel_rollout.shutdown(20)"
    )
    ran = subprocess.run(
        [python, "-c", program],
        env={"PATH": os.environ["PATH"], **variables}, cwd="/", capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    assert "otel-rollout[delta]" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_consumer_is_checked_strictly(python: Path, tmp_path: Path, checker: str) -> None:
    """A program that uses the public names has types, also for the functions that it decorates."""
    program = tmp_path / "consumer.py"
    program.write_text((Path(__file__).parent / "programs" / "consumer.py").read_text())
    commands: dict[str, list[str | Path]] = {
        "mypy": [DIST / "mypy", "--strict", "--python-executable", python, program],
        "pyright": [DIST / "pyright", "--pythonpath", python, "--project", tmp_path],
    }
    (tmp_path / "pyrightconfig.json").write_text('{"strict": ["consumer.py"], "include": ["consumer.py"]}')
    ran = subprocess.run(commands[checker], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    wrong = tmp_path / "consumer.py"
    wrong.write_text(program.read_text() + "\nanswer: int = add(1, 2)  # it returns str\n")
    ran = subprocess.run(commands[checker], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1
    assert '"str"' in ran.stdout
