"""A program on Ray that variables alone trace: it calls neither ``instrument()`` nor ``configure()``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

from tests.propagation.programs import every_call_on_ray
from tests.propagation.support import ROOT
from tests.ray_start import add_node, run_program
from tests.spool_reader import read_directory, tree
from tests.waiting import wait_for

# Ray leaves files of its nodes open.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")

PROGRAM = every_call_on_ray.__file__
BIN = Path(sys.executable).parent
UV = ROOT / ".venv" / "bin" / "uv"
"""Of the environment that builds the others."""
ON = {"OTEL_TRACES_EXPORTER": "spool", "RAY_AUTH_MODE": "disabled"}
OWN_RUNTIME_ENV = '{"env_vars": {"USER_VARIABLE": "1"}, "working_dir": "."}'


def run(command: Sequence[str], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program that succeeds, in a directory."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **ON, **variables}
    ran = run_program([*command], env=environ, cwd=directory, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def assert_whole(directory: Path) -> None:
    """Check that the spool has eight trajectories, each one trace with one root and all its operations."""
    traces: dict[bytes, list] = {}
    for span in read_directory(directory):
        traces.setdefault(span.span.trace_id, []).append(span)
    assert [Counter(span.name for span in trace) for trace in traces.values()] == (
        [every_call_on_ray.OPERATIONS] * every_call_on_ray.TRAJECTORIES
    )
    assert {next(iter(tree(trace))) for trace in traces.values()} == {"rollout_trace"}
    assert len({span.resource["rollout.run.id"] for trace in traces.values() for span in trace}) == 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three nodes that were started before, with a dashboard; the last one has variables of its own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")
        started = Cluster()
        add_node(started, num_cpus=1, include_dashboard=True, resources={"head": 1})
        add_node(started, num_cpus=1)
        patched.setenv("OTEL_RESOURCE_ATTRIBUTES", "rack=of the last node")
        add_node(started, num_cpus=1, resources={"last": 1})
        yield started
        started.shutdown()


def test_program_is_traced_by_a_variable_alone(tmp_path: Path) -> None:
    """Tasks, nested tasks, generators, and actors of all kinds; the first call of Ray's starts it."""
    run([sys.executable, PROGRAM], tmp_path)
    assert_whole(tmp_path / "spool")


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", every_call_on_ray.__name__],
        [sys.executable, "train.py", "", OWN_RUNTIME_ENV],
        [str(UV), "run", "--no-project", "--python", sys.executable, "train.py"],
    ],
    ids=["python -m", "a runtime_env", "uv run"],
)
def test_every_way_to_start_a_program_is_traced(command: list[str], tmp_path: Path) -> None:
    """Modules, programs with a runtime_env of their own, and those that ``uv run`` gives one."""
    program = tmp_path / "program"
    program.mkdir()
    shutil.copy(PROGRAM, program / "train.py")
    run(command, program, OTEL_ROLLOUT_SPOOL_DIR=str(tmp_path / "spool"))
    assert_whole(tmp_path / "spool")


def test_program_on_three_running_nodes_is_traced(cluster: Cluster, tmp_path: Path) -> None:
    """The nodes have none of the driver's variables."""
    run([sys.executable, PROGRAM, cluster.address], tmp_path)
    assert_whole(tmp_path / "spool")


def test_variables_of_a_node_take_precedence_over_the_drivers(cluster: Cluster, tmp_path: Path) -> None:
    """They say where the machine stands; a node without them has the driver's."""
    (tmp_path / "train.py").write_text(
        "import ray, otel_rollout\n"
        "def call(name):\n"
        "    return otel_rollout.rollout_trace_op(lambda: name, name=name)()\n"
        f"ray.init(address={cluster.address!r})\n"
        "with otel_rollout.rollout_trace_attr(step=1):\n"
        "    for name in ('head', 'last'):\n"
        "        ray.get(ray.remote(call).options(resources={name: 1}).remote(name))\n"
    )
    run([sys.executable, "train.py"], tmp_path, OTEL_RESOURCE_ATTRIBUTES="rack=of the driver")
    racks = {span.span.name: span.resource["rack"] for span in read_directory(tmp_path / "spool")}
    assert racks == {
        "rollout_trace": "of the driver",
        "head": "of the driver",
        "last": "of the last node",
    }


def test_program_that_a_worker_starts_may_start_a_cluster_of_its_own(tmp_path: Path) -> None:
    """It inherits the worker's environment; an untraced one has no setup hook of ours."""
    (tmp_path / "inner.py").write_text(
        "import ray\n"
        "ray.init(address='local', num_cpus=1, include_dashboard=False)\n"
        "assert ray.get(ray.remote(lambda: 42).remote()) == 42\n"
    )
    (tmp_path / "train.py").write_text(
        "import os, ray, subprocess, sys\n"
        "def start():\n"
        "    environ = {**os.environ, 'OTEL_TRACES_EXPORTER': 'none'}\n"
        f"    inner = [sys.executable, {str(tmp_path / 'inner.py')!r}]\n"
        "    return subprocess.run(inner, env=environ).returncode\n"
        "ray.init(num_cpus=1, include_dashboard=False)\n"
        "assert ray.get(ray.remote(start).remote()) == 0\n"
    )
    run([sys.executable, "train.py"], tmp_path)


@pytest.mark.parametrize("replaces", [False, True])
def test_hook_of_rays_own_variable_runs(replaces: bool, tmp_path: Path) -> None:
    """It may change the runtime_env; if it replaces our setup hook, calls go out as they are."""
    program = tmp_path / "program"
    program.mkdir()
    shutil.copy(PROGRAM, program / "train.py")
    (program / "platform_hooks.py").write_text(
        "import pathlib\n"
        "def setup():\n"
        f"    pathlib.Path({str(tmp_path / 'set up')!r}).touch()\n"
        "def change(runtime_env):\n"
        "    changed = dict(runtime_env or {})\n"
        "    changed['env_vars'] = {**changed.get('env_vars', {}), 'OF_PLATFORM': '1'}\n"
        "    hook = 'worker_process_setup_hook'\n"
        f"    changed[hook] = setup if {replaces} else changed.get(hook, setup)\n"
        f"    pathlib.Path({str(tmp_path / 'changed')!r}).touch()\n"
        "    return changed\n"
    )
    run(
        [sys.executable, "train.py"],
        program,
        OTEL_ROLLOUT_SPOOL_DIR=str(tmp_path / "spool"),
        RAY_RUNTIME_ENV_HOOK="platform_hooks.change",
        PYTHONPATH=f"{ROOT}{os.pathsep}{program}",
    )
    assert (tmp_path / "changed").exists()
    assert (tmp_path / "set up").exists() is replaces
    if replaces:
        roots = [span for span in read_directory(tmp_path / "spool") if span.name == "rollout_trace"]
        assert len(roots) == every_call_on_ray.TRAJECTORIES
    else:
        assert_whole(tmp_path / "spool")


def takes_jobs(cluster: Cluster) -> bool:
    """Return whether a job can be submitted: the node's agent starts after the node."""
    try:
        JobSubmissionClient(f"http://{cluster.webui_url}").submit_job(entrypoint="true")
    except RuntimeError:
        return False
    return True


def test_submitted_job_is_traced(cluster: Cluster, tmp_path: Path) -> None:
    """``ray job submit`` gives the variables by its runtime_env, and starts the driver on the cluster."""
    spool = {"OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool"), "PYTHONPATH": str(ROOT)}
    runtime_env = json.dumps({"env_vars": {**ON, **spool}})
    wait_for(lambda: takes_jobs(cluster), what="an agent of Ray that takes jobs")
    submit = [str(BIN / "ray"), "job", "submit", "--address", f"http://{cluster.webui_url}"]
    driver = ["--runtime-env-json", runtime_env, "--", sys.executable, PROGRAM, "auto"]
    run([*submit, *driver], tmp_path, OTEL_TRACES_EXPORTER="none")
    assert_whole(tmp_path / "spool")


def test_program_that_sets_the_variable_itself_is_traced(tmp_path: Path) -> None:
    """It imports this package anywhere before it uses Ray, as a notebook does."""
    own = "import os, runpy, ray\nos.environ['OTEL_TRACES_EXPORTER'] = 'spool'\nimport otel_rollout\n"
    (tmp_path / "notebook.py").write_text(f"{own}runpy.run_path({PROGRAM!r}, run_name='__main__')\n")
    run([sys.executable, "notebook.py"], tmp_path, OTEL_TRACES_EXPORTER="")
    assert_whole(tmp_path / "spool")


def test_rays_own_processes_import_nothing_of_ours(tmp_path: Path) -> None:
    """The variable is set for all of them; the driver imports the package in ``ray.init``."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "def hook(event, given):\n"
        "    if event == 'import' and given[0] == 'otel_rollout':\n"
        f"        open({str(tmp_path / 'importing')!r}, 'a').write(repr(sys.orig_argv) + '\\n')\n"
        "sys.addaudithook(hook)\n"
    )
    program = (
        "import sys, ray\n"
        "assert 'otel_rollout' not in sys.modules\n"
        "ray.init(num_cpus=1, include_dashboard=True)\n"
        "assert 'otel_rollout' in sys.modules\n"
        "assert ray.get(ray.remote(lambda: 1).remote()) == 1\n"
    )
    ran = run([sys.executable, "-c", program], tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    importing = (tmp_path / "importing").read_text().splitlines()
    assert all("'-c'" in command or "default_worker.py" in command for command in importing), importing
    assert "otel-rollout" not in ran.stderr
    assert not (tmp_path / "spool").exists(), "a program that records nothing has no run, and waits for none"


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "requests, ray"},
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_one_variable_leaves_ray_alone(variables: dict[str, str], tmp_path: Path) -> None:
    """On a platform that sets the exporter's variable for other programs."""
    program = (
        "import sys, ray\n"
        "ray.init(num_cpus=1, include_dashboard=False)\n"
        "assert 'otel_rollout' not in sys.modules\n"
        "assert ray.get_runtime_context().runtime_env == {}\n"
    )
    run([sys.executable, "-c", program], tmp_path, **variables)


def test_uninstrument_leaves_ray_alone(tmp_path: Path) -> None:
    """The variable does not instrument what the program has declined."""
    program = (
        "import ray, otel_rollout\n"
        "otel_rollout.uninstrument()\n"
        "ray.init(num_cpus=1, include_dashboard=False)\n"
        "assert ray.get_runtime_context().runtime_env == {}\n"
    )
    run([sys.executable, "-c", program], tmp_path)
