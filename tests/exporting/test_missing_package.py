"""An exporter whose package is missing says once what to install."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from otel_rollout.exporting import entry_points
from otel_rollout.exporting.base import needing
from otel_rollout.settings import SettingsError


class _Absent(EntryPoint):
    def load(self) -> object:
        """Fail as the exporter's package does without its extra."""
        with needing("otlp"):
            raise ModuleNotFoundError("No module named 'google'", name="google")


def test_a_missing_package_is_named_once_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's name may not be the package's: the extra is what a person installs."""
    absent = _Absent("otlp", "otel_rollout_otlp:Exporter", entry_points.OWN_GROUP)
    monkeypatch.setattr(entry_points, "installed", lambda: {"otlp": absent})
    with pytest.raises(SettingsError) as raised:
        entry_points.load("otlp", {})
    assert str(raised.value) == (
        "exporter 'otlp' needs a package that is missing: No module named 'google': "
        "pip install 'otel-rollout[otlp]'."
    )


def test_missing_package_of_mlflow_names_the_extra_for_a_database_too() -> None:
    """The import fails before the target is known."""
    program = "import sys; sys.modules['requests'] = None; import otel_rollout_mlflow"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.endswith("'otel-rollout[mlflow]' (for a database: [mlflow-local])\n")
