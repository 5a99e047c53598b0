"""docs/agents.md names versions and examples that exist."""

import re
from pathlib import Path

from tests.agents.rollouts import LIBRARIES

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "agents.md").read_text()
NAMES = {
    "LangGraph": "langgraph",
    "PydanticAI": "pydantic-ai-slim",
    "OpenAI Agents SDK": "openai-agents",
    "LiteLLM": "litellm",
    "Ray": "ray",
}


def test_versions_are_those_of_the_environment():
    """The table of what was run follows constraints/agents.txt."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints/agents.txt").read_text().splitlines())
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines()]
    rows = [cells for cells in lines if len(cells) == 4 and cells[1][:1].isdigit()]
    assert len(rows) == 8
    for library, versions, instrumentor, version in rows:
        names = [NAMES.get(name, name) for name in library.split(", ")]
        assert [pinned[name] for name in names] == versions.split(", ")
        if version:
            assert pinned[instrumentor.removeprefix("ours; ")] == version


def test_each_example_is_in_the_table_with_its_name():
    """The name that the tests switch on is the one that the page gives."""
    rows = re.findall(r"\| `(\w+)` \| .* \| \[`(\w+)\.py`\]", PAGE)
    assert {(library.instrument, library.example) for library in LIBRARIES} == set(rows)
