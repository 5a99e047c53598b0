"""`otel-rollout show` and `compare` read segments and a real MLflow server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from otel_rollout.base import semconv
from otel_rollout.look.conversation.conversation import Conversation
from otel_rollout.look.sources import table_source
from otel_rollout.look.sources.mlflow_source import MlflowSource
from otel_rollout.look.sources.private_table import asked_as_table
from otel_rollout.look.sources.reference import parse
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout_mlflow import MlflowSpanExporter
from tests.ports import free_port
from tests.sdk_spans import spans_of
from tests.viewer.conftest import Rollout, run
from tests.viewer.job import HOSTILE, QUESTION, SYSTEM
from tests.viewer.test_conversation import line

SOURCES = pytest.mark.parametrize("source", ["spool", "mlflow", "table"])
WITH_TEXT = pytest.mark.parametrize("source", ["spool", "mlflow"])
"""The sources with the text of token ids; the tests' table is made from a spool, before a forwarder."""
HEADING = re.compile(r"^ ?(\d+) (\S.*?)(?:  .*)?$", re.MULTILINE)
"""The heading of a turn: its number and its role."""


def headings(shown: str) -> list[str]:
    found = HEADING.findall(shown)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return [who.strip() for _, who in found]


def rows(listed: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in listed.splitlines() if "│" in line]


@SOURCES
def test_list_has_a_row_for_each_trajectory(rollout: Rollout, source: str) -> None:
    """Rows have reward and tokens, training before validation.

    A step or group lists its own.
    """
    listed = rows(run("show", "--from", rollout.location(source)))
    assert [row[0] for row in listed] == [
        *(f"1/7/{n}" for n in range(3)), "2/counting/0", "2/counting/1", "validation/1/7/0"
    ]  # fmt: skip
    assert [row[2:4] for row in listed[:3]] == [["1.0", "ok"], ["0.0", "ok"], ["0.0", "ok"]]
    assert listed[0][5:] == ["60", "10"]
    for some in ("1/", "1/7", "1/7/"):
        assert len(rows(run("show", some, "--from", rollout.location(source)))) == 3
    assert len(rows(run("show", "validation/1/", "--from", rollout.location(source)))) == 1


@SOURCES
def test_cut_list_names_what_shows_its_rest(
    rollout: Rollout, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command `list` reads no MLflow, so a table is made first."""
    monkeypatch.setattr(table_source, "MAX_LISTED", 2)
    listed = " ".join(run("show", "--from", rollout.location(source)).split())
    first = "`otel-rollout import mlflow --to delta` makes a table, in which " if source == "mlflow" else ""
    assert f"The first 2 of 6; {first}`otel-rollout list` filters and sorts." in listed


@SOURCES
def test_conversation_is_shown_turn_by_turn(rollout: Rollout, source: str) -> None:
    """Turns show role, tool arguments and error, tokens and scores.

    Resent messages are shown once.
    """
    shown = run("show", "1/7/1", "--from", rollout.location(source))
    assert headings(shown) == ["system", "user", "assistant", "tool Agent.calculator", "assistant"]
    for said in (SYSTEM, QUESTION, "Let me see.", "Error: cannot read '6 x 7'", "It is 41.", "looked for 42"):
        assert shown.count(said) == 1
    assert "→ calculator(expression='6 x 7')" in shown
    assert "tool Agent.calculator  failed" in shown
    assert "20 in · 5 out · tool_calls" in shown
    assert re.search(r"took +.* · 2 model calls · 1 tool call · 1 tool error · 10 tokens written", shown)
    assert re.search(r"^1/7/1 +ok +1 tool error *$", shown, re.MULTILINE)
    assert re.search(r"agent_name +calculating", shown)


@SOURCES
def test_newest_score_of_each_name_is_shown_with_its_comment(rollout: Rollout, source: str) -> None:
    """Scores are shown that were given inside the trajectory, or afterwards by its id."""
    shown = run("show", "1/7/0", "--from", rollout.location(source))
    assert re.search(r"reward +1\.0 +looked for 42", shown)
    assert re.search(r"judged +well +by hand", shown)


@WITH_TEXT
def test_growing_prompt_of_token_ids_shows_the_text_it_adds(rollout: Rollout, source: str) -> None:
    """Each turn shows the new part of its prompt, split into messages."""
    shown = run("show", "2/counting/0", "--from", rollout.location(source))
    assert headings(shown) == ["user", "assistant"] * 5
    said = ["Count.", "Number 0 it is.", "After 0?", "Number 3 it is.", "After 3?", "The end is here."]
    assert all(shown.count(text) == 1 for text in said)
    assert "<|im_" not in shown


def read(rollout: Rollout, source: str, path: str) -> Conversation:
    spans = SpoolSource(rollout.spool) if source == "spool" else MlflowSource(rollout.tracking_uri, "look")
    with asked_as_table(spans) as asked:
        (summary,) = asked.find(parse(rollout.ids[path]))
        return asked.conversation(summary.trace_id)


@pytest.mark.parametrize("path", ["1/7/0", "1/7/1", "1/7/2", "2/counting/1", "validation/1/7/0"])
def test_mlflow_and_spool_show_equal_conversations(rollout: Rollout, path: str) -> None:
    """Both sources give equal conversations, down to the last token id."""
    recorded, delivered = read(rollout, "spool", path), read(rollout, "mlflow", path)
    assert delivered.turns == recorded.turns
    assert delivered.summary == recorded.summary
    assert recorded.summary.path == path


@SOURCES
def test_trajectory_is_found_by_each_of_its_names(rollout: Rollout, source: str) -> None:
    """Path, trajectory id, trace id, its beginning and MLflow's id name a trajectory."""
    id_ = rollout.ids["validation/1/7/0"]
    trace_id = id_[3:35]
    names = ("validation/1/7/0", id_, trace_id, trace_id[:12], f"tr-{trace_id}")
    shown = {run("show", name, "--from", rollout.location(source)) for name in names}
    assert len(shown) == 1
    assert shown.pop().startswith("validation/1/7/0  ok\n")


@WITH_TEXT
def test_comparison_of_siblings_names_their_first_difference(rollout: Rollout, source: str) -> None:
    """Shared turns are shown once.

    The difference is named by turn, and by token or character.
    """
    source_option = ("--from", rollout.location(source))
    shown = run("compare", "2/counting/0", "2/counting/1", *source_option, columns=160)
    assert re.search(
        r"part at turn 10 \(assistant\), token 5 of it: \d+ and \d+ \(“here\.” and “near\.”\)\.", shown
    )
    assert shown.count("Number 3 it is.") == 1
    shown = run("compare", "1/7/0", "1/7/1", *source_option, columns=160)
    assert "They part at turn 3 (assistant): the same words, other calls." in shown
    assert re.search(r"reward +1\.0 +0\.0", shown)
    assert shown.count("Let me see.") == 2
    assert "The same in all 5 turns, but other scores: " in run(
        "compare", "1/7/0", "validation/1/7/0", *source_option
    )


class Page(HTMLParser):
    """Collect the text, the elements and the links of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.elements: set[str] = set()
        self.pointers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.pointers += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "style")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_one_file_without_scripts_or_links(rollout: Rollout, tmp_path: Path) -> None:
    """The page holds the conversation, and shows markup that a model wrote as text."""
    file = tmp_path / "trajectory.html"
    assert str(file) in run("show", "1/7/2", "--from", rollout.spool, "--html", file).replace("\n", "")
    page = Page(file.read_text())
    assert HOSTILE.replace("\x1b", "␛") in page.text
    assert not page.pointers
    assert "script" not in page.elements
    assert all(
        said in page.text for said in (SYSTEM, QUESTION, "calculator(expression='6 * 7')", "looked for 42")
    )
    assert run("show", "1/7/2", "--from", rollout.spool, "--html", "-") == file.read_text()
    run("show", "1/7/1", "--from", rollout.spool, "--html", file)
    assert '<span class="state error">1 tool error</span></h1>' in file.read_text()
    both = tmp_path / "both.html"
    run("compare", "1/7/0", "1/7/2", "--from", rollout.spool, "--html", both)
    page = Page(both.read_text())
    assert "They part at turn 5 (assistant), character 1 of it (“It” and “[bold]not”)." in page.text
    assert "mark" in page.elements


def test_model_output_with_escape_sequences_is_shown_as_text(rollout: Rollout) -> None:
    """A pipe gets no escape sequence at all, and rich's markup is shown as written."""
    shown = run("show", "1/7/2", "--from", rollout.spool)
    assert "\x1b" not in shown
    assert HOSTILE.replace("\x1b", "␛") in shown


def test_running_trajectory_is_shown_so_far(rollout: Rollout, tmp_path: Path) -> None:
    """A trajectory without root span and with half a last line is shown as running."""
    (segment,) = (path for path in rollout.spool.rglob("*.zst"))
    plain = subprocess.run(["zstd", "-dc", "--long=27", segment], check=True, capture_output=True).stdout
    trace_id = rollout.ids["1/7/0"][3:35].encode()
    lines = [line for line in plain.splitlines(keepends=True) if trace_id in line]
    (tmp_path / "part.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:100])
    shown = run("show", trace_id.decode(), "--from", tmp_path / "part.jsonl")
    assert shown.startswith("1/7/0  running\n")
    assert re.search(r"took +not ended · 1 model call · 1 tool call", shown)
    assert headings(shown) == ["system", "user", "assistant", "tool Agent.calculator"]


def test_running_trajectory_in_mlflow_is_shown(rollout: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before any of its spans has ended."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "look-running")
    exporter = MlflowSpanExporter(tracking_uri=rollout.tracking_uri)
    exporter.announce(spans_of(line(1, None, None, parent=0, name="rollout_trace", kind="AGENT")))
    exporter.shutdown()
    source_option = ("--from", f"mlflow:{rollout.tracking_uri}")
    ((path, *_, state, _, _, _),) = rows(run("show", "1/7", *source_option))
    assert (path, state) == ("1/7/0", "running")
    assert run("show", "1/7/0", *source_option).startswith("1/7/0  running\n")


def test_older_run_in_mlflow_is_shown_with_a_note(rollout: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the newest run has no such trajectory, a note names that run."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "look-older")
    source_option = ("--from", f"mlflow:{rollout.tracking_uri}")
    exporter = MlflowSpanExporter(tracking_uri=rollout.tracking_uri)
    for number, (name, step) in enumerate([("old", 1), ("new", 2)], start=1):
        raw = line(1, None, None, parent=0, kind="AGENT", attributes={"rollout.step": step})
        resource = encoded_resource({"rollout.run.id": f"run-{name}"})
        raw = (
            raw.replace(b'{"scopeSpans"', resource + b',"scopeSpans"')
            .replace(b"%032x" % 1, b"%032x" % (0xABC0 + number))
            .replace(b'"startTimeUnixNano":"10"', b'"startTimeUnixNano":"%d000000000"' % number)
        )
        raw = raw.replace(b'"endTimeUnixNano":"15"', b'"endTimeUnixNano":"%d500000000"' % number)
        exporter.export(spans_of(raw))
    exporter.shutdown()
    shown = run("show", "1/7/0", *source_option, columns=200)
    assert "This is an older run: the newest, run-new, has no 1/7/0." in shown
    assert re.search(r"run +run-old", shown)
    assert "older run" not in run("show", "2/7/0", *source_option)
    by_trace_id = run("show", f"{0xABC1:032x}", *source_option)
    assert "run-old" in by_trace_id
    assert "older run" not in by_trace_id  # a trace id means this one
    assert "1 trajectory · run run-new" in run("show", *source_option, columns=200)


def encoded_resource(attributes: dict[str, str]) -> bytes:
    """Encode a resource as at the start of a line."""
    entries = ",".join(
        f'{{"key":"{key}","value":{{"stringValue":"{text}"}}}}' for key, text in attributes.items()
    )
    return b'{"resource":{"attributes":[%b]}' % entries.encode()


def flat(text: str) -> str:
    return " ".join(text.split())


@SOURCES
def test_missing_or_ambiguous_trajectory_is_reported_with_advice(rollout: Rollout, source: str) -> None:
    """An unknown, malformed or ambiguous name ends with an error that says what to do."""
    source_option = ("--from", rollout.location(source))
    said = flat(run("show", "9/9/9", *source_option, code=2))
    assert "There is no trajectory 9/9/9 in" in said
    assert (
        "`otel-rollout show` with the same --from and --run lists the trajectories; those of a validation "
        "are called validation/9/9/9." in said
    )
    said = flat(run("show", "2024", *source_option, code=2))  # the first digits of a trace id, or a step
    assert "There is no trajectory 2024 in" in said
    assert said.endswith("All of a step: 2024/")
    assert "'nonsense' does not name a trajectory: write STEP/SAMPLE/ROLLOUT" in flat(
        run("show", "nonsense", *source_option, code=2)
    )
    said = flat(run("compare", "1/7", "1/7/0", *source_option, code=2))
    assert "1/7 names 3 trajectories in" in said
    assert re.findall(r"[0-9a-f]{32}", said) == [rollout.ids[f"1/7/{n}"][3:35] for n in range(3)]
    assert "A list cannot be written as a page" in run(
        "show", "1/7", *source_option, "--html", "list.html", code=2
    )


def test_step_that_is_called_validation_is_shown_from_mlflow(
    rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trajectory's name begins like that of one of a validation."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "look-validation")
    exporter = MlflowSpanExporter(tracking_uri=rollout.tracking_uri)
    step = {semconv.STEP: "validation"}
    raw = line(1, 1, 1, parent=0, name="rollout_trace", kind="AGENT", attributes=step)
    exporter.export(spans_of(raw.replace(b"%032x" % 1, b"%032x" % 0xABD0)))
    exporter.shutdown()
    shown = run("show", "validation/7/0", "--from", f"mlflow:{rollout.tracking_uri}")
    assert shown.startswith("validation/7/0  ok\n")


def test_missing_trajectory_of_a_run_is_reported_with_the_run(rollout: Rollout) -> None:
    """Other runs of the table or spool may have it."""
    said = flat(run("show", "9/9/9", "--from", rollout.location("spool"), "--run", "latest", code=2))
    assert re.search(r"There is no trajectory 9/9/9 in (\S+ · )?run-\w+\. `otel-rollout show`", said), said


def test_unreadable_source_is_reported_with_advice(
    rollout: Rollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of missing source has advice.

    A directory or database may be missing, segments removed, or a server silent.
    """
    monkeypatch.chdir(tmp_path)  # where no table lies
    said = flat(run("show", "--from", tmp_path / "nowhere", code=2))
    assert f"There is no file or directory {tmp_path}/nowhere" in said
    (manifest,) = rollout.spool.rglob("run.json")
    bare = tmp_path / "spool" / "run-1" / "node"
    bare.mkdir(parents=True)
    (bare / "run.json").write_bytes(manifest.read_bytes())
    assert "OTEL_ROLLOUT_KEEP=true" in run("show", "--from", tmp_path / "spool", code=2)
    assert "OTEL_ROLLOUT_KEEP=true" in run("show", code=2)  # the default spool directory, below tmp_path
    closed = f"http://127.0.0.1:{free_port()}"
    said = flat(run("show", "--from", f"mlflow:{closed}", code=2))
    assert f"No connection to the MLflow server at {closed}: Connection refused" in said
    assert f"There is no database {tmp_path}/no.db" in flat(
        run("show", "--from", f"mlflow:sqlite:///{tmp_path}/no.db", code=2)
    )
    assert not (tmp_path / "no.db").exists()
    assert "No MLflow tracking URI: set MLFLOW_TRACKING_URI" in flat(run("show", "--from", "mlflow", code=2))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", rollout.tracking_uri)
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", "no such project")
    assert "no experiment 'no such project'" in flat(run("show", "1/7/0", "--from", "mlflow", code=2))
    assert "cannot be written" in flat(
        run("show", "1/7/0", "--from", rollout.spool, "--html", tmp_path / "no" / "page.html", code=2)
    )


def test_show_in_a_pipe_of_80_columns_is_plain_text(rollout: Rollout) -> None:
    """A process of its own writes no line over 80 columns, no colour, and no error."""
    environment = {**os.environ, "OTEL_ROLLOUT_SPOOL_DIR": str(rollout.spool)}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "show", "1/7/1"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "\x1b" not in shown.stdout
    assert not shown.stderr


def test_any_trace_is_shown_by_its_id(tmp_path: Path) -> None:
    """Also one without a trajectory: what a program did outside of them."""
    spans = line(2, {"messages": [{"role": "user", "content": "Who?"}]}, "Me.", parent=0, name="outside")
    (tmp_path / "lines.jsonl").write_bytes(spans.replace(b"rollout.", b"other.") + b"\n")
    told = run("show", "0" * 31 + "1", "--from", tmp_path / "lines.jsonl")
    assert told.startswith("outside  ok\n")
    assert "Me." in told


def test_large_group_says_how_many_siblings_it_has(tmp_path: Path) -> None:
    """Those that are read are the first; the command says so for every source."""
    identity = {"rollout.step": 1, "rollout.sample_index": 7, "rollout.validate": False}
    made = [
        line(1, None, None, parent=0, kind="AGENT", attributes={**identity, "rollout.rollout_n": number})
        .replace(b"%032x" % 1, b"%032x" % (1000 + number))
        for number in range(130)
    ]  # fmt: skip
    (tmp_path / "lines.jsonl").write_bytes(b"\n".join(made) + b"\n")
    assert "the first 128 of 130" in run("group", "1/7", "--from", tmp_path / "lines.jsonl")
