"""Run the agent's program in the rollout's runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import verifiers.v1 as vf


class SumsHarnessConfig(vf.HarnessConfig):
    """Options of the harness: none."""


class SumsHarness(vf.Harness[SumsHarnessConfig]):
    """A program that verifiers knows nothing about."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> Any:
        """Run the program to its end."""
        env = {"PROMPT": data.prompt, "ENDPOINT": endpoint, "SECRET": secret}
        return await runtime.run([sys.executable, "-S", str(Path(__file__).with_name("agent.py"))], env)
