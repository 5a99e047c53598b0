"""Jobs on a cluster that ran before they came, started by people with settings of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from tests.propagation.programs import jobs_on_cluster
from tests.propagation.support import ROOT, Job, prepare
from tests.ray_start import start_ray
from tests.runs.test_targets import operations
from tests.spool_reader import read_directory, tree
from tests.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
HOOK = {"RAY_RUNTIME_ENV_HOOK": "otel_rollout.ray.runtime_env_hook"}
ARGUMENTS = [[1], {"a": 2}]

WITHOUT_PACKAGE = ROOT / "tests" / "programs" / "without_package"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster whose own environment has none of our variables, but for a target of other jobs."""
    directory = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patched:
        prepare(directory, patched)
        for name in list(os.environ):
            if name.startswith("OTEL_"):
                patched.delenv(name)
        patched.setenv("OTEL_TEST_FILE", str(directory / "of-other-jobs"))
        head = {"num_cpus": 4, "include_dashboard": False}
        started = start_ray(lambda: Cluster(initialize_head=True, head_node_args=head))
        yield started
        started.shutdown()


@pytest.fixture
def run(cluster, test_exporters, tmp_path):
    """Return a function that runs a scenario and returns its result and its output."""

    def run_driver(scenario: str, **variables: str):
        done = subprocess.run(
            [sys.executable, jobs_on_cluster.__file__, scenario, cluster.address],
            env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0", **variables},
            cwd=ROOT,
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


@pytest.mark.parametrize("hook", [{}, {**HOOK, "INSTRUMENT": "no"}, HOOK], ids=["call", "variable", "both"])
def test_a_job_on_an_existing_cluster(run, tmp_path, hook):
    """By a call, by a variable without a change to the program, or by both, with the driver's settings."""
    settings = {"MLFLOW_TRACKING_URI": "http://mlflow", "OTEL_SERVICE_NAME": "service"}
    found, _ = run("plain_call", **settings, **hook)
    assert found["variables"] == settings
    assert_one_trace(found, tmp_path)


def test_credentials_reach_workers_and_not_rays_logs(run, cluster):
    """Ray writes every variable of a runtime_env to its logs; those we hide are not among them."""
    found, output = run("plain_call", MLFLOW_TRACKING_TOKEN="sesame-4711", MLFLOW_TRACKING_URI="shown-4711")
    assert found["variables"]["MLFLOW_TRACKING_TOKEN"] == "sesame-4711"
    logs = [path.read_bytes() for path in Path(cluster.head_node.get_logs_dir_path()).glob("*.*")]
    assert any(b"shown-4711" in log for log in logs)
    assert not any(b"sesame-4711" in log for log in logs)
    assert "sesame-4711" not in output.replace(json.dumps(found), "")


@pytest.mark.parametrize("hook", [{}, {**HOOK, "INSTRUMENT": "no"}], ids=["call", "variable"])
def test_a_job_with_a_setup_hook_and_variables_of_its_own(run, tmp_path, hook):
    """Both hooks run, and the user's variables win."""
    found, _ = run("own_runtime_env", MLFLOW_TRACKING_URI="ours", **hook)
    assert found["variables"] == {"USER_HOOK": "ran", "USER_VARIABLE": "1", "MLFLOW_TRACKING_URI": "mine"}
    assert_one_trace(found, tmp_path)


@pytest.mark.parametrize("hook", [{}, {**HOOK, "INSTRUMENT": "no"}], ids=["call", "variable"])
def test_a_submitted_job(run, tmp_path, hook):
    """``ray job submit --runtime-env`` gives drivers a runtime_env, which stays in force beside ours."""
    submitted = {
        "env_vars": {"MLFLOW_TRACKING_URI": "theirs", "USER_VARIABLE": "1"},
        "worker_process_setup_hook": "tests.propagation.programs.jobs_on_cluster.user_hook",
    }
    job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": submitted, "metadata": {}})}
    found, _ = run("plain_call", MLFLOW_TRACKING_URI="theirs", **job, **hook)
    assert found["variables"] == {"USER_HOOK": "ran", "USER_VARIABLE": "1", "MLFLOW_TRACKING_URI": "theirs"}
    assert_one_trace(found, tmp_path)


def test_a_worker_without_the_package_works(run):
    """Its calls are what they would be without us, and it says once what is missing."""
    found, output = run("without_the_package", BLOCKED=str(WITHOUT_PACKAGE))
    assert found == {"method": ARGUMENTS, "stream": [0, 1], "importable": False}
    assert output.count("otel-rollout cannot be used in Ray workers") == 1


def test_other_jobs_actors_are_not_injected_into(run):
    """An actor that another job left behind gets the arguments it was given, and no more."""
    run("make_a_detached_actor")
    assert run("call_another_jobs_actor")[0] == ARGUMENTS


def test_other_languages_are_not_injected_into(run):
    """Calls into Java, which takes no keyword arguments, leave as ever, and are refused as ever."""
    found, _ = run("call_other_languages")
    assert found["sent"] == 3
    assert len(found["refused"]) == 2
    assert all("does not support kwargs, kwargs:{'a': 1}" in message for message in found["refused"])


def test_instrumenting_too_late_is_said_and_harmless(run):
    """Workers that were not prepared are not injected into."""
    found, output = run("instrument_too_late")
    assert found == ARGUMENTS
    assert "instrument() came after ray.init()" in output


def test_each_job_is_asked_anew(run):
    """That one job's workers are prepared says nothing of the next one's."""
    found, _ = run("a_job_that_is_not_prepared_after_one_that_is")
    assert found == {"first": True, "second": "0" * 32, "args": ARGUMENTS}


def test_workers_follow_the_driver_into_its_second_run(run, tmp_path):
    """After shutdown() and another configure(), nothing lands in the first run's target.

    Neither what continues the driver's trajectories, nor what begins in workers it calls, old and new, nor
    what begins in workers that those call.
    """
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
def test_processes_that_nobody_told_agree_on_one_run(run, tmp_path, scenario):
    """Driver and four actors whose environments switch tracing on: one run, and one report covers it."""
    variables = {"OTEL_TRACES_EXPORTER": "test-file", "OTEL_TEST_FILE": str(tmp_path / "delivered.jsonl")}
    found, _ = run(scenario, **variables)
    runs = [path.name for path in (tmp_path / "spool").iterdir()]
    assert runs == [found["run"]]
    assert found["report"] == {"recorded": 9, "pending": 0, "lost": 0}


def test_decorated_actor_of_an_unprepared_job_continues_the_trajectory(run, tmp_path):
    """Identity and trace reach it, though the library was imported after ray.init()."""
    variables = {"OTEL_TRACES_EXPORTER": "test-file", "OTEL_TEST_FILE": str(tmp_path / "delivered.jsonl")}
    found, _ = run("carried_after_init", **variables)
    assert found["report"] == {"recorded": 2, "pending": 0, "lost": 0}
    spans = Job(tmp_path / "spool").spans(found["trajectory"], 2)
    assert tree(spans) == {"rollout_trace": ["tool"]}
    assert {span.attributes["rollout.step"] for span in spans} == {7}


def test_target_in_a_machines_environment_is_not_that_of_a_job(run, tmp_path):
    """It is there for whatever runs on the machine, and parts no worker from the run that it was told of."""
    found, _ = run("options_over_the_machines_variables")
    assert found["report"] == {"recorded": 2, "pending": 0, "lost": 0}
    assert operations(tmp_path / "spool-delivered.jsonl") == ["op"]
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [found["run"]]


def test_a_runtime_env_of_an_actors_or_tasks_own_names_its_target(run, tmp_path):
    """Variables that only a task or an actor is given count as those of the job do."""
    found, _ = run("runtime_envs_of_their_own")
    spans = wait_for(lambda: len(spans := read_directory(tmp_path / "spool")) == 5 and spans)
    runs = {span.name: (span.resource["service.name"], span.resource["rollout.run.id"]) for span in spans}
    assert runs["of the job"] == ("project", found["run"])
    assert runs["of the actor"][0] == "judge"
    assert runs["of the actor"][1] != found["run"]
    assert runs["work"] == ("project", "tool")
