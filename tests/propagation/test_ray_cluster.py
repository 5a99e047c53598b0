"""Jobs on a cluster that was started before them, with settings of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from tests.propagation.programs import jobs_on_cluster
from tests.propagation.support import ROOT, Job, prepare
from tests.ray_start import add_node
from tests.runs.test_targets import operations
from tests.spool_reader import read_directory, tree
from tests.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
ARGUMENTS = [[1], {"a": 2}]
NOT_BY_VARIABLE = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "ray"}

WITHOUT_PACKAGE = ROOT / "tests" / "programs" / "without_package"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster without variables of this package, except for a target of other jobs."""
    directory = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patched:
        prepare(directory, patched)
        for name in list(os.environ):
            if name.startswith("OTEL_"):
                patched.delenv(name)
        patched.setenv("OTEL_TEST_FILE", str(directory / "of-other-jobs"))
        started = Cluster()
        add_node(started, num_cpus=4, include_dashboard=False)
        yield started
        started.shutdown()


@pytest.fixture
def run(cluster, test_exporters, tmp_path):
    """Return a function that runs a scenario and returns its result and its output."""

    def run_driver(scenario: str, **variables: str):
        done = subprocess.run(
            [sys.executable, jobs_on_cluster.__file__, scenario, cluster.address],
            env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0", **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr

    return run_driver


def assert_one_trace(found, tmp_path):
    assert found["trace"] == found["trajectory"]
    spans = Job(tmp_path / "spool").spans(found["trajectory"], 2)
    assert tree(spans) == {"rollout_trace": ["work"]}
    assert {span.attributes["rollout.step"] for span in spans} == {2}
    assert len({span.resource["rollout.run.id"] for span in spans}) == 1


INSTRUMENT = pytest.mark.parametrize("instrument", ["yes", "no"], ids=["call", "variable"])
"""The program calls ``instrument()``, or the run's variable alone instruments it."""


@INSTRUMENT
def test_job_on_an_existing_cluster_continues_trajectories(run, tmp_path, instrument):
    """A call or a variable prepares the job."""
    settings = {"MLFLOW_TRACKING_URI": "http://mlflow", "OTEL_SERVICE_NAME": "service"}
    found, _ = run("plain_call", **settings, INSTRUMENT=instrument)
    assert found["variables"] == settings
    assert_one_trace(found, tmp_path)


def test_credentials_reach_workers_and_not_rays_logs(run, cluster):
    """Ray logs every variable of a runtime_env, where credentials are hidden."""
    found, output = run("plain_call", MLFLOW_TRACKING_TOKEN="sesame-4711", MLFLOW_TRACKING_URI="shown-4711")
    assert found["variables"]["MLFLOW_TRACKING_TOKEN"] == "sesame-4711"
    logs = [path.read_bytes() for path in Path(cluster.head_node.get_logs_dir_path()).glob("*.*")]
    assert any(b"shown-4711" in log for log in logs)
    assert not any(b"sesame-4711" in log for log in logs)
    assert "sesame-4711" not in output.replace(json.dumps(found), "")


@INSTRUMENT
def test_job_with_setup_hook_and_variables_keeps_both(run, tmp_path, instrument):
    """Both hooks run, and the user's variables win."""
    found, _ = run("own_runtime_env", MLFLOW_TRACKING_URI="ours", INSTRUMENT=instrument)
    assert found["variables"] == {"USER_HOOK": "ran", "USER_VARIABLE": "1", "MLFLOW_TRACKING_URI": "mine"}
    assert_one_trace(found, tmp_path)


@INSTRUMENT
def test_submitted_job_keeps_its_runtime_env(run, tmp_path, instrument):
    """``ray job submit --runtime-env`` gives the driver a second runtime_env."""
    submitted = {
        "env_vars": {"MLFLOW_TRACKING_URI": "theirs", "USER_VARIABLE": "1"},
        "worker_process_setup_hook": "tests.propagation.programs.jobs_on_cluster.user_hook",
    }
    job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": submitted, "metadata": {}})}
    found, _ = run("plain_call", MLFLOW_TRACKING_URI="theirs", **job, INSTRUMENT=instrument)
    assert found["variables"] == {"USER_HOOK": "ran", "USER_VARIABLE": "1", "MLFLOW_TRACKING_URI": "theirs"}
    assert_one_trace(found, tmp_path)


@pytest.mark.parametrize("scenario", ["hook_that_instruments", "module_that_instruments"])
@INSTRUMENT
def test_module_that_instruments_in_a_worker_joins_the_trajectory(run, scenario, instrument):
    """A setup hook or an actor imports it. After ``uninstrument()`` a worker still removes carriers."""
    found, output = run(scenario, INSTRUMENT=instrument)
    assert found["seen"] == [{"trace": found["trajectory"], "args": ARGUMENTS}] * 3
    assert "instrument() came after" not in output


def test_setup_hook_that_instruments_an_unprepared_job_harms_no_worker(run, tmp_path):
    """Ray ends a worker that asks for its runtime_env before its first task; calls carry nothing."""
    variables = {"OTEL_TRACES_EXPORTER": "test-file", "OTEL_TEST_FILE": str(tmp_path / "delivered.jsonl")}
    found, _ = run("unprepared_hook_that_instruments", **variables, **NOT_BY_VARIABLE)
    assert found["seen"] == [{"trace": "0" * 32, "args": ARGUMENTS}] * 3


def test_worker_without_the_package_runs_calls_unchanged(run):
    """One warning tells what is missing."""
    found, output = run("without_the_package", BLOCKED=str(WITHOUT_PACKAGE))
    assert found == {"method": ARGUMENTS, "stream": [0, 1], "importable": False}
    assert output.count("otel-rollout cannot be used in Ray workers") == 1


def test_actor_of_another_job_gets_no_carrier(run):
    """An actor that another job left behind gets only the caller's arguments."""
    run("make_a_detached_actor")
    assert run("call_another_jobs_actor")[0] == ARGUMENTS


def test_java_call_gets_no_carrier(run):
    """Java takes no keyword arguments; such calls are sent or refused as before."""
    found, _ = run("call_other_languages")
    assert found["sent"] == 3
    assert len(found["refused"]) == 2
    assert all("does not support kwargs, kwargs:{'a': 1}" in message for message in found["refused"])


def test_instrument_after_ray_init_warns_and_sends_no_carrier(run):
    """The workers of the job are not prepared."""
    found, output = run("instrument_too_late", **NOT_BY_VARIABLE)
    assert found == ARGUMENTS
    assert "instrument() came after ray.init()" in output


def test_unprepared_job_after_a_prepared_one_gets_no_carrier(run):
    """Each job of a driver is checked."""
    found, _ = run("unprepared_job_after_a_prepared_one")
    assert found == {"first": True, "second": "0" * 32, "args": ARGUMENTS}


def test_workers_join_the_second_run_of_their_driver(run, tmp_path):
    """Trajectories of the driver, of old and new workers, and of their calls, follow."""
    found, _ = run("second_run")
    assert found["first"] == {"recorded": 4, "pending": 0, "lost": 0}
    assert found["second"] == {"recorded": 9, "pending": 0, "lost": 0}
    assert operations(tmp_path / "spool-delivered.jsonl") == ["first", "first"]
    assert operations(tmp_path / "spool-second.jsonl") == [
        "begun in a new worker",
        "begun in a worker",
        "begun in a worker called by a worker",
        "tool",
        "work",
    ]


@pytest.mark.parametrize("scenario", ["imported_after_init", "not_instrumented"])
def test_unprepared_processes_of_a_job_agree_on_one_run(run, tmp_path, scenario):
    """The environments of driver and four actors enable tracing.

    One report counts them all.
    """
    variables = {"OTEL_TRACES_EXPORTER": "test-file", "OTEL_TEST_FILE": str(tmp_path / "delivered.jsonl")}
    found, _ = run(scenario, **variables, **NOT_BY_VARIABLE)
    runs = [path.name for path in (tmp_path / "spool").iterdir()]
    assert runs == [found["run"]]
    assert found["report"] == {"recorded": 9, "pending": 0, "lost": 0}


def test_decorated_actor_of_an_unprepared_job_continues_the_trajectory(run, tmp_path):
    """The library was imported after ``ray.init()``, and a variable leaves Ray alone."""
    variables = {"OTEL_TRACES_EXPORTER": "test-file", "OTEL_TEST_FILE": str(tmp_path / "delivered.jsonl")}
    found, _ = run("carried_after_init", **variables, **NOT_BY_VARIABLE)
    assert found["report"] == {"recorded": 2, "pending": 0, "lost": 0}
    spans = Job(tmp_path / "spool").spans(found["trajectory"], 2)
    assert tree(spans) == {"rollout_trace": ["tool"]}
    assert {span.attributes["rollout.step"] for span in spans} == {7}


def test_target_in_a_machines_environment_is_ignored_by_a_prepared_job(run, tmp_path):
    """Variables of the machine do not move a worker out of the run of its job."""
    found, _ = run("options_over_the_machines_variables")
    assert found["report"] == {"recorded": 2, "pending": 0, "lost": 0}
    assert operations(tmp_path / "spool-delivered.jsonl") == ["op"]
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [found["run"]]


def test_runtime_env_of_an_actor_or_task_names_its_target(run, tmp_path):
    """Variables of one task or actor count as those of the job do."""
    found, _ = run("runtime_envs_of_their_own")
    spans = wait_for(lambda: len(spans := read_directory(tmp_path / "spool")) == 5 and spans)
    runs = {span.name: (span.resource["service.name"], span.resource["rollout.run.id"]) for span in spans}
    assert runs["of the job"] == ("project", found["run"])
    assert runs["of the actor"][0] == "judge"
    assert runs["of the actor"][1] != found["run"]
    assert runs["work"] == ("project", "tool")
