"""The program of docs/engines.md runs as it is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from otel_rollout.base.environment import PREFIXES
from tests.ports import free_port
from tests.spool_reader import read_directory, tree
from tests.vllm.server import ON_CPU

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
PROGRAM = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "rollout.py" in block)
OPTIONS = ("--max-model-len", "1024", "--enforce-eager", "--dtype", "float32")
SECONDS = 600


def test_program_of_the_page_joins_the_servers_spans(tiny_model: Path, tmp_path: Path) -> None:
    """It starts the server as its child; the engine's request lies below the model call, with its phases."""
    program, port = tmp_path / "rollout.py", free_port()
    program.write_text(PROGRAM.replace("8123", str(port)))
    spool = tmp_path / "spool"
    settings = {
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_RECEIVE": "true",
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        "OTEL_ROLLOUT_KEEP": "true",
    }
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    command = [sys.executable, str(program), str(tiny_model), *OPTIONS]
    ran = subprocess.run(
        command, env={**environ, **ON_CPU, **settings}, capture_output=True, text=True, timeout=SECONDS
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    spans = [each for each in read_directory(spool) if "rollout.step" in each.attributes]
    request = {"llm_request": ["queue", "prefill", "decode"]}
    assert tree(spans) == {"rollout_trace": [{"generate": [request]}]}
