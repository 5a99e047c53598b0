"""Environments that Ray installs for a job or a task, as copies of the driver's.

They run with the oldest Ray alone: its environment is small.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.propagation.test_ray_by_variable import run
from tests.spool_reader import read_directory


@pytest.mark.parametrize(("installer", "of"), [("pip", "job"), ("uv", "task")])
def test_environment_that_ray_installs_is_traced(installer: str, of: str, tmp_path: Path) -> None:
    """Ray makes it from the environment of the driver, so it has this package."""
    wheel = tmp_path / "tiny_tool-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_tool.py", "answer = 42\n")
        archive.writestr(
            "tiny_tool-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-tool\nVersion: 1\n"
        )
        archive.writestr("tiny_tool-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_tool-1.dist-info/RECORD", "")
    (tmp_path / "train.py").write_text(
        "import ray, otel_rollout\n"
        f"installed, of_job = {{{installer!r}: [{str(wheel)!r}]}}, {of == 'job'}\n"
        "@ray.remote\n"
        "def call():\n"
        "    import tiny_tool\n"
        "    return otel_rollout.rollout_trace_op(lambda: tiny_tool.answer, name='tool')()\n"
        "ray.init(num_cpus=1, include_dashboard=False, runtime_env=installed if of_job else None)\n"
        "with otel_rollout.rollout_trace_attr(step=1):\n"
        "    remote = call if of_job else call.options(runtime_env=installed)\n"
        "    assert ray.get(remote.remote()) == 42\n"
    )
    run([sys.executable, "train.py"], tmp_path)
    root, tool = sorted(read_directory(tmp_path / "spool"), key=lambda span: span.name)
    assert (root.name, tool.name) == ("rollout_trace", "tool")
    assert tool.span.parent_span_id == root.span.span_id
