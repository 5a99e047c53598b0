"""The examples run as their first lines say, and record what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spool_reader import read_directory, tree

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(test_exporters: None, tmp_path: Path) -> Callable[..., str]:
    """Runs an example as a program of its own and gives what it printed."""

    def run_example(name: str, *arguments: str, exporter: str = "test-file") -> str:
        return subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
            env={
                **os.environ,
                "OTEL_TRACES_EXPORTER": exporter,
                "OTEL_TEST_FILE": str(tmp_path / "delivered"),
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout

    return run_example


def test_plain_python(run: Callable[..., str], tmp_path: Path) -> None:
    """Twelve conversations, each a tree of turns and tool calls with its reward.

    All delivered.
    """
    assert "lost: 0" in run("plain_python.py")
    spans = read_directory(tmp_path / "spool")
    roots = [span for span in spans if span.name == "rollout_trace"]
    identities = {(r.attributes["rollout.sample_index"], r.attributes["rollout.rollout_n"]) for r in roots}
    assert identities == {(sample, sibling) for sample in range(3) for sibling in range(4)}
    for root in roots:
        own = [span for span in spans if span.span.trace_id == root.span.trace_id]
        turns = tree(own)["rollout_trace"]
        with_tool = ["Agent.generate", "Agent.calculate", "Agent.generate", "score reward"]
        assert turns in (with_tool, ["Agent.generate", "score reward"])
    assert {root.attributes["rollout.score.reward"] for root in roots} == {0.0, 1.0}


def test_plain_python_with_tracing_off(run: Callable[..., str], tmp_path: Path) -> None:
    """It runs the same and leaves nothing behind."""
    run("plain_python.py", exporter="none")
    assert not (tmp_path / "spool").exists()


def test_openai_compatible_without_arguments_says_how_to_call_it() -> None:
    """The page that names it shows no arguments."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "openai_compatible.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 1
    assert "python examples/openai_compatible.py http://127.0.0.1:8000/v1 MODEL" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_own_opentelemetry(run: Callable[..., str], tmp_path: Path) -> None:
    """Its exporter shows the trajectory.

    Ours has the spans of its database client, not of its start-up.
    """
    printed = run("own_opentelemetry.py")
    shown = [line.split()[2] for line in printed.splitlines() if line.startswith("application's exporter")]
    assert sorted(shown) == ["SELECT", "look_up", "rollout_trace", "start-up"]
    assert tree(read_directory(tmp_path / "spool")) == {"rollout_trace": [{"look_up": ["SELECT"]}]}


def test_asyncio_at_scale(run: Callable[..., str], tmp_path: Path) -> None:
    """Each of 200 tasks has a tree of its own, the thread pool's part in it."""
    printed = run("asyncio_at_scale.py", "200")
    assert "lost: 0" in printed
    spans = read_directory(tmp_path / "spool")
    by_trace = Counter(span.span.trace_id for span in spans)
    assert len(by_trace) == 200
    assert set(by_trace.values()) == {7}
    some = [span for span in spans if span.span.trace_id == spans[-1].span.trace_id]
    assert tree(some) == {"rollout_trace": ["generate"] * 4 + ["grade", "score reward"]}


PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(page for page in sorted(EXAMPLES.rglob("README.md")) if "node_modules" not in page.parts),
    *sorted(EXAMPLES.glob("*.py")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_install_commands_name_a_checkout_and_a_declared_extra(page: Path) -> None:
    """Until there is a release, `pip install` of this package names a directory.

    The extra exists.
    """
    declared = re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    installed = re.findall(r"pip install (?:-e )?'([^'\[]*)\[([\w,-]+)\]'", page.read_text())
    assert {source for source, _ in installed} <= {"./otel-rollout", ".", "../.."}
    assert {extra for _, extras in installed for extra in extras.split(",")} <= set(declared)
