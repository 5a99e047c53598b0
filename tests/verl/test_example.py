"""The files of ``examples/verl``: rows, a tool and flags that verl accepts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.tool_registry import load_all_tools

EXAMPLE = Path(__file__).parents[2] / "examples" / "verl"


@pytest.mark.parametrize(("answer", "said"), [("1,234", "right"), ("7", "wrong")])
async def test_tool_compares_an_answer_with_the_ground_truth_of_its_row(
    answer: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row names the tool agent and has the tool's ground truth."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import prepare_gsm8k

    row = prepare_gsm8k.row({"question": "How many?", "answer": "Count.\n#### 1,234"}, 5, "train")
    assert row["agent_name"] == "tool_agent"
    assert row["extra_info"]["index"] == 5
    assert row["reward_model"]["ground_truth"] == "1234"
    (tool,) = load_all_tools(str(EXAMPLE / "tools.yaml"), None)
    loop: Any = object.__new__(ToolAgentLoop)
    loop.tools = {tool.name: tool}
    loop.max_tool_response_length = 100
    call = FunctionCall(name="check_answer", arguments=f'{{"answer": "{answer}"}}')
    response, reward, metrics = await loop._call_tool(call, row["extra_info"]["tools_kwargs"], None)
    assert (response.text, reward, metrics) == (said, 0.0, {"right": said == "right"})


def test_flags_of_the_launch_script_exist_in_verl(tmp_path: Path) -> None:
    """Flags that the user appends win."""
    python = tmp_path / "python3"  # says what verl would be started with
    python.write_text('#!/bin/sh\necho "$OTEL_TRACES_EXPORTER $MLFLOW_TRACKING_URI"\nprintf "%s\\n" "$@"\n')
    python.chmod(0o700)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(EXAMPLE / "train.sh"), "trainer.total_epochs=1"]
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    variables, option, module, *overrides = said.splitlines()
    assert variables == "mlflow http://127.0.0.1:5000"
    assert (option, module) == ("-m", "verl.trainer.main_ppo")
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.mode, rollout.multi_turn.enable, rollout.trace.token2text) == ("async", True, True)
    assert rollout.trace.project_name == "gsm8k-tool-agent"
    assert config.trainer.total_epochs == 1
