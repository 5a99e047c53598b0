"""Fixtures for every test: a place of its own, a private spool, tracing, and reading the recording."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

import otel_rollout
from otel_rollout import settings
from otel_rollout.base.environment import PREFIXES
from otel_rollout.base.state import state as base
from otel_rollout.record.launch import launcher
from otel_rollout.record.recording.state import state as recording
from tests.exporters import install
from tests.forwarders import end_forwarders
from tests.fresh_process import fresh_process as new_process
from tests.local_weave import LocalWeave
from tests.mlflow_server import new_store as new_store
from tests.mlflow_server import server_uri as server_uri
from tests.side_by_side import pytest_addoption as pytest_addoption
from tests.side_by_side import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.side_by_side import pytest_ignore_collect as pytest_ignore_collect
from tests.side_by_side import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.side_by_side import shared
from tests.spool_reader import Recorded, read_directory
from tests.waits import set_short_waits

# A slow machine is no failure. CI checks the same few examples every time, people check new ones. A nightly
# run checks many: --hypothesis-profile=nightly.
hypothesis.settings.register_profile("here", deadline=None, max_examples=25)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=200)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

set_short_waits()

# A shell ignores SIGINT in background jobs, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


ROOT = Path(__file__).parent.parent
OF_THE_USER = (*PREFIXES, "RAY_ADDRESS", "RAY_RUNTIME_ENV_HOOK", "NETRC", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
"""Prefixes of the shell's variables that tests do not see."""


def variables_of_the_user() -> list[str]:
    """Return the names of variables that a test does not see."""
    return [
        name for name in os.environ if name.startswith(OF_THE_USER) and name != "MLFLOW_DISABLE_TELEMETRY"
    ]


def move_to(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move tests to empty working, home and temporary directories, without the shell's tracing variables."""
    for name in variables_of_the_user():
        monkeypatch.delenv(name)
    work, home, temporary = (place / name for name in ("work", "home", "tmp"))
    for directory in (work, home, temporary):
        directory.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(work)


@pytest.fixture(scope="session", autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Yield new places for tests, and move what a whole module uses into the first of them.

    Their paths are short: those of Ray's sockets below have at most 107 characters. Other users reach them.
    """
    tmp_path_factory.getbasetemp()  # chosen before the temporary directory changes
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # of downloaded packages
    with (
        tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patched,
    ):
        Path(directory).chmod(0o755)
        found = (Path(directory) / str(number) for number in itertools.count())
        move_to(next(found), patched)
        patched.setenv("XDG_CACHE_HOME", caches)
        patched.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # for `python -m tests.…`
        patched.setenv("RAY_worker_niceness", "0")  # of 15, Ray's workers hardly run beside other tests
        yield found


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, places: Iterator[Path], tmp_path: Path
) -> Iterator[None]:
    """Give each test a place and a spool of its own, and end the forwarders and variables that it leaves."""
    move_to(next(places), monkeypatch)
    spool = tmp_path / "spool"
    monkeypatch.setenv("OTEL_ROLLOUT_SPOOL_DIR", str(spool))
    monkeypatch.setenv("OTEL_ROLLOUT_KEEP", "true")  # tests look at what was delivered, too
    yield
    if spool.is_dir():
        end_forwarders(spool)
    for name in variables_of_the_user():  # monkeypatch puts back those of fixtures
        del os.environ[name]


@pytest.fixture(autouse=True)
def no_internal_errors(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that logs an internal error.

    Tests with the mark ``internal_errors`` are exempt.
    """
    base.reported.clear()  # each error is logged once in a process; here, once in a test
    yield
    if request.node.get_closest_marker("internal_errors") is None:
        records = [*caplog.get_records("setup"), *caplog.get_records("call")]
        errors = [record.getMessage() for record in records if "internal error while" in record.getMessage()]
        assert not errors, errors


@pytest.fixture(scope="session")
def local_weave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWeave]:
    """Start Weave's own server on ClickHouse, which takes some ten seconds."""
    with LocalWeave(tmp_path_factory.mktemp("weave")) as weave:
        yield weave


@pytest.fixture(scope="session")
def demo_table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the rollout table of the demo's trajectories, which run without Ray; the spool is beside it."""
    with shared(tmp_path_factory, "demo", _demo_rollouts) as table:
        yield Path(table)


@contextmanager
def _demo_rollouts(place: Path) -> Iterator[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    subprocess.run(
        [sys.executable, "-m", "tests.programs.demo_without_ray", str(place / "rollouts")],
        env={**kept, "OTEL_ROLLOUT_SPOOL_DIR": str(place / "spool"), "OTEL_ROLLOUT_KEEP": "true"},
        check=True,
        timeout=300,
    )
    yield str(place / "rollouts")


@pytest.fixture
def test_exporters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the exporters of ``tests.exporters``, also for child processes."""
    path = install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process decide anew whether and how it records.

    After the test it has decided nothing.
    """
    monkeypatch.delenv(settings.CONFIG_VARIABLE, raising=False)
    with new_process():
        yield


@pytest.fixture
def forwarder() -> None:
    """Let `tracing` start forwarders in `make test` too, for a test of what they deliver or write."""


@pytest.fixture
def tracing(
    request: pytest.FixtureRequest,
    fresh_process: None,
    test_exporters: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Switch tracing on in this process, with a file as the target.

    Most tests of `make test` look at what is recorded. A forwarder would cost most of their time, so they
    have none.
    """
    if request.config.option.tier == "promises" and "forwarder" not in request.fixturenames:
        monkeypatch.setattr(launcher, "start_detached", lambda *_: None)
    otel_rollout.configure(
        {"test-file": {"path": os.environ["OTEL_ROLLOUT_SPOOL_DIR"] + "-delivered.jsonl"}},
        project_name="project",
        experiment_name="experiment",
    )


@pytest.fixture
def recorded(tracing: None, tmp_path: Path) -> Callable[[], list[Recorded]]:
    """Return a function that reads the spans recorded so far."""

    def read() -> list[Recorded]:
        active = recording.runtime
        assert active is None or active.writer.flush(10)
        return read_directory(tmp_path / "spool")

    return read
