"""The doctor tells whether an installed framework is traced by a variable alone."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from otel_rollout.doctor import frameworks

ROOT = Path(__file__).parents[2]
EXAMINE = "from otel_rollout import doctor; print(json.dumps(doctor.examine().as_json()))"
DOCTOR = "from otel_rollout.cli import app; app()"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make an environment with a framework and this package; return its site directory."""
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    scheme = {"base": str(tmp_path / "environment"), "platbase": str(tmp_path / "environment")}
    directory = Path(sysconfig.get_path("purelib", "venv", scheme))
    paths = [ROOT, ROOT / "exporters", ROOT / "examples", sysconfig.get_path("purelib")]
    (directory / "paths.pth").write_text("".join(f"{path}\n" for path in paths))
    (directory / "trl").mkdir()
    (directory / "trl" / "__init__.py").touch()
    (directory / "trl-9.9.dist-info").mkdir()
    (directory / "trl-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: trl\nVersion: 9.9\n"
    )
    return directory


def install_autoload(site: Path) -> None:
    """Place the files as an installer does."""
    for file in (ROOT / "autoload").glob("otel_rollout_autoload.*"):
        shutil.copy(file, site)


def findings(site: Path, program: str, *arguments: str) -> list[tuple[str, str, str]]:
    """Return verdict, text and advice of the rows on TRL that a program prints as JSON."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(
        [site.parents[2] / "bin" / "python", "-c", program, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stdout, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    return [(r["verdict"], r["found"], r["advice"]) for r in rows if r["found"].startswith("trl 9.9: ")]


def test_framework_with_autoload_is_traced(site: Path) -> None:
    """The command names the variable, which need not be set for the command."""
    install_autoload(site)
    found = "trl 9.9: traced, if OTEL_TRACES_EXPORTER is set when a program starts"
    assert findings(site, DOCTOR, "doctor", "--json") == [("ok", found, "")]


def test_framework_without_autoload_is_a_warning(site: Path) -> None:
    """The advice names the import that has the same effect."""
    found = "trl 9.9: not traced by a variable alone: otel_rollout_autoload.pth is in no site directory"
    advice = "Install otel-rollout here again, or import otel_rollout.integrations.trl before trl."
    assert findings(site, DOCTOR, "doctor", "--json") == [("warn", found, advice)]


def test_framework_imported_before_tracing_was_on_is_a_warning(site: Path) -> None:
    """The program has set the variable after both imports."""
    install_autoload(site)
    set_late = "import json, os, trl, otel_rollout; os.environ['OTEL_TRACES_EXPORTER'] = 'console'"
    found = "trl 9.9: imported, and not traced: tracing was off when otel_rollout was imported"
    advice = "Set OTEL_TRACES_EXPORTER before that import, or import otel_rollout.integrations.trl."
    program = f"{set_late}; {EXAMINE}"
    assert findings(site, program) == [("warn", found, advice)]


def test_checked_frameworks_are_those_of_the_autoload() -> None:
    """The autoload's module need not be importable where the doctor runs."""
    module = runpy.run_path(str(ROOT / "autoload" / "otel_rollout_autoload.py"))
    assert set(module["INTEGRATIONS"]) == set(frameworks.FRAMEWORKS)
