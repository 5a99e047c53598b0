"""The commands of docs/engines.md work, and its figures of limits are those of the code."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from otel_rollout.base.waits import Waits
from otel_rollout.record.receiver import app, body, service
from tests.receiver.conftest import Run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "engines.md").read_text()


def test_request_of_the_shell_is_recorded(start_run: Callable[..., Run]) -> None:
    """The page's `curl` adds a span below the trajectory."""
    run = start_run()
    (block,) = [found for found in re.findall(r"```bash\n(.*?)```", PAGE, re.S) if "curl" in found]
    environ = {**run.agent_environment(), "NO_PROXY": "*"}
    answer = subprocess.run(
        ["bash", "-euc", block], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert answer == "{}"
    run.finish()
    (found,) = [found for found in run.recorded() if found.scope == "shell"]
    (root,) = [found for found in run.recorded() if found.name == "rollout_trace"]
    assert found.span.parent_span_id == root.span.span_id


def test_page_names_the_limits_of_the_code() -> None:
    """Sizes and times on the page are the constants."""
    for figure in (
        f"more than {body.MAX_BYTES >> 20} MiB, as sent or after decompression",
        f"more than {app.MAX_QUEUED_BYTES >> 20} MiB of requests wait",
        f"did not arrive within {Waits().request_body:.0f} s",
        f"closed after {Waits().request_head:.0f} s",
        f"more than {body.MAX_MESSAGES:,} spans, attributes, values, … in a request",
        f"{service._MAX_CONNECTIONS} other connections are in use",
    ):
        assert figure in PAGE
    assert Waits().receiver_linger == 10, "the page says ten seconds"


def test_page_lists_the_variables_of_a_child(start_run: Callable[..., Run]) -> None:
    """Each variable of `child_environment()` has a row."""
    run = start_run()
    assert len(run.children[0]) == 9
    for name in run.children[0]:
        assert f"`{name}`" in PAGE


def test_lines_that_join_in_javascript_are_those_of_the_example() -> None:
    """The page shows the code that the tests run."""
    agent = (ROOT / "examples" / "agents" / "node" / "agent.mjs").read_text()
    (block,) = re.findall(r"```js\n(.*?)```", PAGE, re.S)
    for line in block.splitlines()[:3]:
        assert f"{line}\n" in agent
