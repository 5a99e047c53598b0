"""Check a real cluster whose second node lacks the package, and made-up answers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from otel_rollout import doctor, uninstrument
from otel_rollout.base.environment import PREFIXES
from otel_rollout.doctor import checks, cluster
from otel_rollout.doctor.diagnosis import Verdict
from tests.doctor.conftest import install
from tests.doctor.test_checks import everything_shown
from tests.ray_start import add_node

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
ROOT = Path(__file__).parent.parent.parent
WITHOUT_PACKAGE = ROOT / "tests" / "programs" / "without_package"
TOKEN = "sesame-4711"
WORKERS_VALUE = "sesame-of-the-worker"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Start a cluster whose nodes have another value of one tracing variable."""
    directory = tmp_path_factory.mktemp("cluster")
    install(directory / "site")
    with pytest.MonkeyPatch.context() as patched:
        for name in list(os.environ):
            if name.startswith((*PREFIXES, "RAY_")):
                patched.delenv(name)
        patched.setenv("RAY_AUTH_MODE", "disabled")
        patched.setenv("OTEL_SERVICE_NAME", WORKERS_VALUE)
        patched.setenv("PYTHONPATH", os.pathsep.join([str(directory / "site"), str(ROOT)]))
        started = Cluster()
        add_node(started, num_cpus=1, include_dashboard=False)
        path = os.pathsep.join(
            [str(ROOT / "tests" / "programs" / "without_package"), os.environ["PYTHONPATH"]]
        )
        add_node(started, num_cpus=1, env_vars={"PYTHONPATH": path})
        yield started.address
        started.shutdown()


@pytest.mark.usefixtures("fresh_process")  # another test may have declined what the variable instruments
def test_every_node_of_a_cluster_is_checked(address, checked_exporters, monkeypatch, request):
    """Nodes are checked with the driver's variables, and no value is shown.

    A missing package is reported.
    """
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "test-checked")
    monkeypatch.setenv("OTEL_TEST_ENDPOINT", "refused")
    monkeypatch.setenv("OTEL_TEST_TOKEN", TOKEN)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    request.addfinalizer(uninstrument)  # the variable instruments this process, too
    diagnosis = doctor.examine(address)

    nodes: dict[str, dict[str, doctor.DoctorFinding]] = {}
    for row in diagnosis.rows:
        nodes.setdefault(row.where, {})[row.check] = row
    assert nodes.pop("this machine")["endpoint"].verdict is Verdict.FAIL
    assert nodes.pop("cluster")["ray"].found.endswith("nodes alive: 2")
    assert all(where.startswith("node ") for where in nodes)
    with_package, without = sorted(nodes.values(), key=len, reverse=True)

    assert with_package["library"].verdict is Verdict.OK
    assert with_package["python"].verdict is Verdict.OK
    assert with_package["spool"].verdict is Verdict.OK
    assert with_package["exporter"].verdict is Verdict.OK
    assert with_package["endpoint"].found == "test-checked: it knows no $OTEL_TEST_TOKEN"

    assert without["library"].verdict is Verdict.FAIL
    assert "No module named 'otel_rollout" in without["library"].found
    assert "-m pip install otel-rollout==" in without["library"].advice
    assert set(without) == {"library", "python", "variables", "clock"}
    assert with_package["chain"].verdict is Verdict.OK

    for node in (with_package, without):
        assert node["clock"].verdict is Verdict.OK
        assert node["variables"].verdict is Verdict.OK
    shown = everything_shown(diagnosis)
    assert TOKEN not in shown
    assert WORKERS_VALUE not in shown
    assert diagnosis.exit_status == 1


def test_address_without_cluster_fails_at_once(monkeypatch):
    """The check does not begin Ray's own long attempts."""
    monkeypatch.setattr("ray.init", pytest.fail)
    (row,) = cluster.examine("127.0.0.1:1", dict(os.environ), "this machine")
    assert row.verdict is Verdict.FAIL
    assert "Connection refused" in row.found


def answer(**changed):
    """Return the answer of a node that equals the driver."""
    usual = {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "versions": checks.versions(),
        "present": [],
        "different": [],
        "problem": None,
        "findings": [],
    }
    return {**usual, **changed}


def found(of, environ=None):
    return {finding.check: finding for finding in cluster.compare_with_driver(of, environ or {})}


def test_node_equal_to_the_driver_has_no_warning():
    """Every comparison passes where nothing differs."""
    assert {finding.verdict for finding in found(answer()).values()} == {Verdict.OK}


def test_other_python_in_workers_is_a_warning_with_both_paths():
    """A virtual environment's driver beside workers of the system's Python is named.

    The fix is named too.
    """
    finding = found(answer(executable="/usr/bin/python3", prefix="/usr"))["python"]
    assert finding.verdict is Verdict.WARN
    for path in ("/usr/bin/python3 (prefix /usr", f"{sys.executable} (prefix {sys.prefix}"):
        assert path in finding.found
    assert f"{sys.prefix}/bin/ray start" in finding.advice


def test_other_version_of_the_library_in_workers_is_a_warning():
    """The row names both versions."""
    finding = found(answer(versions={**checks.versions(), "otel-rollout": "0.0.1"}))["library"]
    assert finding.verdict is Verdict.WARN
    assert "otel-rollout 0.0.1" in finding.found
    assert f"the driver has otel-rollout {checks.versions()['otel-rollout']}" in finding.found


def test_variables_that_workers_lack_are_a_warning():
    """The row names them, and what gives them to workers."""
    finding = found(answer(), {"OTEL_X": "1"})["variables"]
    assert finding.verdict is Verdict.WARN
    assert "missing, which the driver has: OTEL_X" in finding.found
    assert "OTEL_TRACES_EXPORTER is set before ray.init" in finding.advice


@pytest.mark.parametrize(("disabled", "verdict"), [("", "ok"), ("ray", "warn")])
def test_chain_of_calls_is_tested_on_each_node_with_the_package(address, disabled, verdict):
    """A call to an actor leaves the caller's trace where a variable leaves Ray alone."""
    variables = {"OTEL_TRACES_EXPORTER": "spool", "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": disabled}
    ran = subprocess.run(
        [sys.executable, "-m", "otel_rollout", "doctor", "--ray", address, "--json"],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    rows = [row for row in json.loads(ran.stdout)["rows"] if row["check"] == "chain"]
    assert [row["verdict"] for row in rows] == [verdict]


def test_node_without_answer_fails():
    """The only row of such a node has the reason."""
    assert found("no answer within 120 s")["probe"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("addresses", "uri", "verdict"),
    [
        (["10.0.0.1", "10.0.0.2"], "http://127.0.0.1:5000", Verdict.WARN),
        (["10.0.0.1", "10.0.0.1"], "http://127.0.0.1:5000", Verdict.OK),
        (["10.0.0.1", "10.0.0.2"], "http://10.0.0.1:5000", Verdict.OK),
    ],
)
def test_loopback_endpoint_is_a_warning_on_several_machines(addresses, uri, verdict):
    """Nodes of one machine reach a loopback address, other machines do not."""
    nodes = [cluster.Node(str(number), address) for number, address in enumerate(addresses)]
    assert cluster.check_loopback(nodes, {"MLFLOW_TRACKING_URI": uri}).verdict is verdict


@pytest.mark.parametrize(
    ("ahead", "verdict"), [(0.0, Verdict.OK), (0.9, Verdict.OK), (3.0, Verdict.WARN), (-3.0, Verdict.WARN)]
)
def test_clock_that_differs_by_seconds_is_a_warning(ahead, verdict):
    """The error of the measured difference is at most half of the round trip."""

    def read():
        time.sleep(0.02)
        theirs = time.time() + ahead
        time.sleep(0.02)
        return theirs

    measured, uncertain = cluster.measure_skew(read)
    assert measured == pytest.approx(ahead, abs=uncertain)
    assert cluster.skew_finding(measured, uncertain).verdict is verdict
