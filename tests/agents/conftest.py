"""Agent libraries with their instrumentors; they have an environment of their own: `make agents`."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator

import pytest

from tests.agents.local_server import running_server

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise it asks the network for prices

if not list(importlib.metadata.distributions(name="openai-agents")):
    collect_ignore = [
        f"test_{name}.py"
        for name in ("bad_input", "examples", "litellm", "openai_agents", "pydantic_ai", "request_headers")
    ]


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Run the examples' server, in a process of its own."""
    with running_server() as url:
        yield url


@pytest.fixture
def openai_server(server_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have OpenAI's clients ask the local server, in this process and in its children."""
    monkeypatch.setenv("OPENAI_BASE_URL", server_url)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    return server_url
