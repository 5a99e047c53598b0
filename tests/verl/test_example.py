"""What ``examples/verl`` hands to verl: rows and a tool that its tool agent can use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.tool_registry import load_all_tools

EXAMPLE = Path(__file__).parents[2] / "examples" / "verl"


@pytest.mark.parametrize(("answer", "said"), [("1,234", "right"), ("7", "wrong")])
async def test_the_tool_checks_a_row_of_the_dataset(
    answer: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row names the tool agent and gives the tool its ground truth, which verl's agent loop passes on."""
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
