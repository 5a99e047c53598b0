"""An integration is imported with its framework if a variable configures tracing; else nothing of ours is.

The interpreters are those of a new environment with the two files as an installer places them, with a
framework and a package ``otel_rollout`` of a few lines.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import textwrap
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "programs" / "import_framework.py"
FILES = {
    "trl/__init__.py": "from trl import _compat",
    "trl/_compat.py": "",
    "trl/trainer.py": "patched = 0",
    "ray/__init__.py": "from ray._private import init\ndef is_initialized(): return False",
    "ray/_private.py": "def init(**options): return options",
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": "",
    "torch/distributed/run.py": "import sys; print('otel_rollout' in sys.modules)",
    "otel_rollout/__init__.py": "",
    "otel_rollout/integrations/__init__.py": "",
    "otel_rollout/record/propagation/__init__.py": "",
    "otel_rollout/record/propagation/instrument.py": """
        def init_by_variable(untraced):
            return lambda **options: {"prepared": True, **untraced(**options)}
        """,
    # A seam of a few lines: it patches the module that is imported next, as `when_imported` does.
    "otel_rollout/integrations/trl.py": """
        import importlib.machinery
        import sys

        class Patching:
            def find_spec(self, name, path, target=None):
                if name != "trl.trainer":
                    return None
                spec = importlib.machinery.PathFinder.find_spec(name, path)
                execute = spec.loader.exec_module
                def exec_module(module):
                    execute(module)
                    module.patched += 1
                spec.loader.exec_module = exec_module
                return spec

        sys.meta_path.insert(0, Patching())
        if "trl.trainer" in sys.modules:
            sys.modules["trl.trainer"].patched += 1
        """,
}
INTEGRATION = ["otel_rollout", "otel_rollout.integrations", "otel_rollout.integrations.trl"]
ON = {"OTEL_TRACES_EXPORTER": "mlflow"}


class Site:
    """An environment of its own, whose interpreters are started."""

    def __init__(self, directory: Path) -> None:
        venv.create(directory, with_pip=False, symlinks=True)
        self.python = directory / "bin" / "python"
        scheme = {"base": str(directory), "platbase": str(directory)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", scheme))
        for name, text in FILES.items():
            path = self.packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        for file in (ROOT / "autoload").glob("otel_rollout_autoload.*"):
            shutil.copy(file, self.packages)

    def without(self, name: str, directory: Path) -> Site:
        """Return a copy that lacks a file or a package."""
        shutil.copytree(self.packages.parents[2], directory, symlinks=True)
        copy = Site(directory)
        path = copy.packages / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return copy

    def run(self, variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run an interpreter with the variables, and without those of tracing that this process has."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "PYTHON"))}
        return subprocess.run(
            [str(self.python), *arguments],
            env=kept | variables,
            cwd=PROGRAM.parent,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def imported(self, variables: dict[str, str], *steps: str, start: tuple[str, ...] = ()) -> dict:
        """Return the program's answer; it has printed nothing else."""
        ran = self.run(variables, "-W", "error", *(start or (str(PROGRAM),)), *steps)
        assert (ran.returncode, ran.stderr) == (0, "")
        (line,) = ran.stdout.splitlines()
        return json.loads(line)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The environment with everything installed."""
    return Site(tmp_path_factory.mktemp("autoload") / "environment")


def test_integration_is_imported_with_the_framework(site: Site) -> None:
    """Not when a library looks the framework up."""
    found = site.imported(ON, "probe", "import_package", "import_trainer")
    assert found == {
        "probe": ["otel_rollout_autoload"],
        "import_package": [*INTEGRATION, "otel_rollout_autoload", "trl", "trl._compat"],
        "import_trainer": [
            *INTEGRATION,
            "otel_rollout_autoload",
            "trl",
            "trl._compat",
            "trl.trainer",
            "patched: 1",
        ],
    }


TRAINER = [*INTEGRATION, "otel_rollout_autoload", "trl", "trl._compat", "trl.trainer"]


@pytest.mark.parametrize(
    "start",
    [("-m", "import_framework"), ("-I", str(PROGRAM)), ("-E", "-s", "-B", str(PROGRAM))],
    ids=" ".join,
)
def test_every_way_to_start_an_interpreter_with_site_packages_works(
    site: Site, start: tuple[str, ...]
) -> None:
    """Modules, isolated interpreters, and those that ignore Python's variables."""
    found = site.imported(ON, "import_trainer", start=start)
    assert found == {"import_trainer": [*TRAINER, "patched: 1"]}


def test_console_script_works(site: Site, tmp_path: Path) -> None:
    """An installer's script starts the environment's interpreter."""
    script = tmp_path / "train"
    script.write_text(f"#!{site.python}\n{PROGRAM.read_text()}")
    script.chmod(0o755)
    ran = subprocess.run([script, "import_trainer"], env=ON, capture_output=True, text=True, timeout=120)
    assert json.loads(ran.stdout) == {"import_trainer": [*TRAINER, "patched: 1"]}


def test_spawned_process_imports_the_integration_by_itself(site: Site) -> None:
    """The parent has imported nothing of the framework."""
    assert site.imported(ON, "spawn") == {"spawn": [*TRAINER, "patched: 1"]}


def test_eight_threads_import_the_integration_once(site: Site) -> None:
    """Each thread finds the module patched, once."""
    assert site.imported(ON, "threads") == {"threads": [*TRAINER, "patched: [1]"]}


def test_child_of_a_process_that_was_configured_by_code_imports_the_integration(site: Site) -> None:
    """The child inherits the founder's settings by a variable."""
    found = site.imported({"OTEL_ROLLOUT_CONFIG": "{}"}, "import_trainer")
    assert found == {"import_trainer": [*TRAINER, "patched: 1"]}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": ""},
        {"OTEL_TRACES_EXPORTER": " None "},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_ROLLOUT_CONFIG": "{}"},
        {**ON, "OTEL_SDK_DISABLED": "True"},
    ],
    ids=str,
)
def test_nothing_is_imported_without_tracing(site: Site, variables: dict[str, str]) -> None:
    """The interpreter's finders are Python's own."""
    found = site.imported(variables, "import_trainer")
    assert found == {"import_trainer": ["trl", "trl._compat", "trl.trainer", "patched: 0"]}
    finders = site.run(variables, "-c", "import sys; print(len(sys.meta_path))").stdout
    assert finders == site.run({}, "-S", "-c", "import sys; print(len(sys.meta_path))").stdout


@pytest.mark.parametrize(
    "start", [("-m", "torch.distributed.run"), ("-c", "import torch.distributed.run")], ids=" ".join
)
def test_launcher_founds_the_run_before_it_starts_ranks(site: Site, start: tuple[str, ...]) -> None:
    """``torchrun`` imports the module, ``python -m`` runs it; the ranks inherit the run's variable."""
    assert site.run(ON, "-W", "error", *start).stdout == "True\n"
    assert site.run({}, "-W", "error", *start).stdout == "False\n"


def test_framework_that_another_file_has_imported_is_traced(tmp_path: Path) -> None:
    """Python reads the files of the site directory in the order of their names."""
    both = Site(tmp_path / "environment")
    (both.packages / "another.pth").write_text("import trl\n")
    ran = both.run(ON, "-W", "error", "-c", "import sys; print(*(n for n in sys.modules if 'otel' in n))")
    assert (ran.stdout.split(), ran.stderr) == (["otel_rollout_autoload", *INTEGRATION], "")


RAYS_CALLS = """
import sys, ray
before = "otel_rollout" in sys.modules
print(before, ray.init(_skip_env_hook=True), ray.init(a=1), ray.init(a=2), ray.init.__name__)
"""


@pytest.mark.parametrize(
    ("variables", "printed"),
    [
        (
            ON,
            "False {'_skip_env_hook': True} {'prepared': True, 'a': 1} {'prepared': True, 'a': 2} init",
        ),
        ({}, "False {'_skip_env_hook': True} {'a': 1} {'a': 2} init"),
        (
            {**ON, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "trl,ray"},
            "False {'_skip_env_hook': True} {'a': 1} {'a': 2} init",
        ),
    ],
    ids=["on", "off", "disabled"],
)
def test_calls_of_rays_init_are_traced(site: Site, variables: dict[str, str], printed: str) -> None:
    """Not the import of Ray, nor a call of its dashboard. A captured name of ``init`` stays traced."""
    ran = site.run(variables, "-W", "error", "-c", RAYS_CALLS)
    assert (ran.stdout.strip(), ran.stderr) == (printed, "")


def test_finder_that_asks_the_others_ends(site: Site) -> None:
    """Another library's finder, or that of `instrument()`, asks every finder, too, and wraps the loader."""
    another = """
import sys
class Asking:
    asked = executed = 0
    def find_spec(self, name, path, target=None):
        if name != "ray":
            return None
        Asking.asked += 1
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                execute = spec.loader.exec_module
                def exec_module(module):
                    execute(module)
                    Asking.executed += 1
                spec.loader.exec_module = exec_module
                return spec
sys.meta_path.{add}
import ray
print(Asking.asked, Asking.executed, ray.init(a=1))
"""
    for add in ("insert(0, Asking())", "append(Asking())", "insert(1, Asking())"):
        ran = site.run(ON, "-W", "error", "-c", another.replace("{add}", add))
        asked = "0 0" if add.startswith("append") else "1 1"
        assert (ran.stdout.strip(), ran.stderr) == (f"{asked} {{'prepared': True, 'a': 1}}", "")


def test_variable_may_be_set_after_both_imports(site: Site) -> None:
    """A notebook sets it in a later cell; the next import of a submodule finds it."""
    imports = "import os, trl, otel_rollout_autoload; otel_rollout_autoload.wait()"
    for variables, patched in ((ON, 1), ({}, 0)):
        later = f"os.environ.update({variables}); import colorsys, trl.trainer; print(trl.trainer.patched)"
        done = site.run({}, "-W", "error", "-c", f"{imports}; {later}")
        assert (done.stdout, done.stderr) == (f"{patched}\n", "")


def test_module_of_the_same_name_is_left_alone(site: Site, tmp_path: Path) -> None:
    """A user's own `ray` has no `init`, or one that is no function; another loader loads several modules."""
    (tmp_path / "ray.py").write_text("class init: pass\n")
    (tmp_path / "another.py").write_text("def init(): pass\n")
    program = """
import importlib.util, sys, zipfile
sys.path.insert(0, "{place}")
with zipfile.ZipFile("{place}/modules.zip", "w") as file:
    file.write("{place}/ray.py", "ray.py")
    file.write("{place}/another.py", "another.py")
sys.path.insert(0, "{place}/modules.zip")
importlib.util.find_spec("ray")
import another
assert "zip" in another.__file__ and not hasattr(another.init, "__wrapped__")
import ray
assert isinstance(ray.init, type)
"""
    ran = site.run(ON, "-W", "error", "-c", program.replace("{place}", str(tmp_path)))
    assert (ran.stdout, ran.stderr) == ("", "")


def test_captured_init_stays_traced_and_can_be_pickled(site: Site) -> None:
    """`from ray import init`: after a call that failed, in threads, and after a reload."""
    program = """
import importlib, pickle, threading
from ray import init
import ray
try:
    init("no such address")
except TypeError:
    pass
assert init(a=1) == {"prepared": True, "a": 1}
assert pickle.loads(pickle.dumps(ray.init)) is ray.init is init
found = []
threads = [threading.Thread(target=lambda: found.append(ray.init()["prepared"])) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert found == [True] * 8
assert importlib.reload(ray).init(b=2) == {"prepared": True, "b": 2}
"""
    ran = site.run(ON, "-W", "error", "-c", program)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_integration_is_imported_when_the_framework_has_been(site: Site, tmp_path: Path) -> None:
    """While modules are looked for, an import would execute a module twice, or let a thread wait."""
    copy = Site(tmp_path / "environment")
    (copy.packages / "needed.py").write_text("print('executed')\n")
    (copy.packages / "trl" / "__init__.py").write_text("import needed\nfrom trl import _compat\n")
    integration = copy.packages / "otel_rollout" / "integrations" / "trl.py"
    integration.write_text(
        "import needed, sys\nassert not sys.modules['trl._compat'].__spec__._initializing\n"
    )
    ran = copy.run(ON, "-W", "error", "-c", "import trl")
    assert (ran.stdout, ran.stderr) == ("executed\n", "")


def test_disabled_framework_is_left_alone(site: Site) -> None:
    """OpenTelemetry's variable names it."""
    found = site.imported({**ON, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "trl"}, "import_trainer")
    assert found["import_trainer"][-1] == "patched: 0"


def test_interpreter_without_site_packages_imports_nothing(site: Site) -> None:
    """``python -S`` reads no site directory."""
    ran = site.run(ON, "-S", "-c", "import sys; print([n for n in sys.modules if 'otel' in n])")
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("removed", "remains"),
    [("otel_rollout_autoload.py", []), ("otel_rollout", ["otel_rollout_autoload"])],
)
def test_rest_of_a_removed_installation_is_silent(
    site: Site, removed: str, remains: list[str], tmp_path: Path
) -> None:
    """The framework works, and nothing is printed."""
    found = site.without(removed, tmp_path / "environment").imported(ON, "import_trainer")
    assert found == {"import_trainer": [*remains, "trl", "trl._compat", "trl.trainer", "patched: 0"]}


def test_integration_that_cannot_be_imported_is_one_warning(site: Site, tmp_path: Path) -> None:
    """The framework works; the line names the reason."""
    broken = site.without("otel_rollout/integrations/trl.py", tmp_path / "environment")
    (broken.packages / "otel_rollout" / "integrations" / "trl.py").write_text("import no_such_library\n")
    ran = broken.run(ON, str(PROGRAM), "import_trainer")
    assert json.loads(ran.stdout)["import_trainer"][-1] == "patched: 0"
    assert ran.stderr == (
        "otel-rollout: rollouts of trl are not traced, because otel_rollout.integrations.trl cannot be "
        "imported: ModuleNotFoundError: No module named 'no_such_library'\n"
    )


def test_installers_place_both_files_in_the_site_directory() -> None:
    """Of a wheel, an editable installation, and the source distribution."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    placed = targets["wheel"]["force-include"]
    assert placed == {f"autoload/{file.name}": file.name for file in (ROOT / "autoload").glob("*.p*")}
    assert len(placed) == 2
    assert "/autoload" in targets["sdist"]["include"]
