"""The example and the page of dumps show what is there."""

import re
from pathlib import Path

from tests.cli.command import run_here
from tests.dumps.reading import OpenedDump
from tests.dumps.test_readers import POCKET

ROOT = Path(__file__).parents[2]


def test_commands_of_the_example_open_it(tmp_path, monkeypatch):
    """Each command that the example's page names, except the browser, shows the dump of three steps."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    page = (ROOT / "examples/dumps/README.md").read_text()
    commands = re.findall(r"^otel-rollout (?!view)(.+)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert "verl rollout dump: 3 files, steps 1–3, 36 trajectories" in run_here(*command.split())


def test_the_example_needs_no_remark(tmp_path):
    """The dump has three prompts with four rollouts in each step, some of them with a tool."""
    found = OpenedDump(ROOT / "examples/dumps/rollouts", kept=tmp_path)
    assert len(found.remarks) == 1
    assert [row["trajectories"] for row in found.rows("SELECT trajectories FROM groups")] == [4] * 9
    assert found.rows("SELECT count(*) AS number FROM tool_calls")[0]["number"] > 10


def test_the_pages_reader_is_one_that_is_tested():
    """The reader on the page reads a record's fields as the tested one does."""
    page = (ROOT / "docs/dumps.md").read_text()
    (reader,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert 'FORMAT = Format("pocket episodes", lambda file: file.has("q", "a"), read)' in reader
    assert set(re.findall(r"^from .*$", reader, re.MULTILINE)) == set(
        re.findall(r"^from .*$", POCKET, re.MULTILINE)
    )
