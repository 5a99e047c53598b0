"""Names that lists print can be pasted, and a list says of which run it is and what was looked at."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otel_rollout.viewer import captions, terminal
from otel_rollout.viewer.reference import parse
from otel_rollout.viewer.summary import Summary, path_of
from tests.viewer.conftest import run

JOB = """
import json, sys
import otel_rollout
for identity in json.loads(sys.argv[1]):
    with otel_rollout.rollout_trace_attr(**identity):
        otel_rollout.rollout_trace_op(lambda: "said", name="generate")()
otel_rollout.shutdown(1)
"""
IDENTITIES: list[dict[str, Any]] = [
    {},
    {"validate": True},
    {"sample_index": 7, "rollout_n": 0},
    {"step": 1},
    {"step": 1, "sample_index": "550e8400-e29b-41d4-a716-446655440000", "rollout_n": 1},
    {"step": 1, "sample_index": "a b", "rollout_n": 0},
    {"step": 1, "sample_index": "it's $HOME `*` \\n", "rollout_n": 0},
    {"step": 1, "sample_index": "data/train/0", "rollout_n": 0},
    {"step": 1, "sample_index": "数学", "rollout_n": 0},
    {"step": 1, "sample_index": [1, {"a": 2}], "rollout_n": 0},
    {"step": "warm-up", "sample_index": "\x1b[31m", "rollout_n": 0},
    {"step": 2.0, "sample_index": 1, "rollout_n": 0},
    {"step": 2, "sample_index": 1, "rollout_n": 0, "validate": True},
]
TWICE: list[dict[str, Any]] = [{"step": 3, "sample_index": 1, "rollout_n": 0}] * 2


def record(spool: Path, identities: list[dict[str, Any]], **variables: str) -> None:
    """Record a run in a process of its own; nothing delivers it."""
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("OTEL_")},
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        **variables,
    }
    job = [sys.executable, "-c", JOB, json.dumps(identities)]
    subprocess.run(job, env=environment, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("names") / "spool"
    record(place, [*IDENTITIES, *TWICE], OTEL_ROLLOUT_RUN_ID="odd-names", OTEL_ROLLOUT_PROJECT="names")
    return place


def names(listed: str) -> list[tuple[str, str]]:
    """The names and trace ids of a list, as a shell would read them."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in listed.splitlines() if "│" in line]
    return [(*shlex.split(row[0]), row[1]) for row in cells]  # type: ignore[misc]


@pytest.mark.parametrize("columns", [60, 200])
def test_every_name_in_a_list_can_be_pasted(spool: Path, columns: int) -> None:
    """Without step, row or sibling, with blanks and what shells take for something else, on any terminal."""
    listed = names(run("show", "--from", spool, columns=columns))
    assert len(listed) == len(IDENTITIES) + len(TWICE)
    assert {"-/-/-", "validation/-/-/-", "-/7/0", "1/-/-", "2/1/0"} < {name for name, _ in listed}
    for name, trace in listed:
        if listed.count((name, trace)) == len([one for one, _ in listed if one == name]):
            shown = run("show", name, "--from", spool, columns=200)
            assert re.search(rf"trace +{trace}", shown), name
            assert "The same in all" in run("compare", trace, name, "--from", spool, columns=200)


def test_a_name_of_several_says_how_to_pick(spool: Path) -> None:
    """Each is there with its trace id, state and time; any of these ids shows that one."""
    said = run("show", "3/1/0", "--from", spool, code=2)
    assert said.startswith(f"3/1/0 are 2 trajectories in {spool}; name one by its trace id:\n")
    ids = re.findall(r"^  ([0-9a-f]{32})  3/1/0  ok  \d{4}-\d\d-\d\d .* UTC$", said, re.MULTILINE)
    assert len(ids) == 2
    for id_ in ids:
        assert re.search(rf"trace +{id_}", run("show", id_, "--from", spool))


parts = st.none() | st.integers() | st.text(max_size=6)


@given(parts, parts, parts, st.booleans())
def test_a_name_is_read_as_it_is_shown(step: Any, row: Any, sibling: Any, validate: bool) -> None:
    """Whatever a trajectory is called: what a shell makes of its name in a list is its name."""
    identity = {"rollout.step": step, "rollout.sample_index": row, "rollout.rollout_n": sibling}
    known = {name: value for name, value in identity.items() if value is not None}
    summary = Summary("1" * 32, path=path_of({**known, "rollout.validate": validate}))
    (word,) = shlex.split(captions.name(summary))
    assert parse(word).matches(summary)


def test_a_list_says_whose_it_is(spool: Path) -> None:
    """One run: its name, project and time, and the place that was looked at."""
    listed = run("show", "--from", spool, columns=200).splitlines()
    assert re.fullmatch(
        rf"{len(IDENTITIES) + 2} trajectories · run odd-names · project names · began \d{{4}}-.* UTC",
        listed[-2],
    )
    assert listed[-1] == f"from {spool}"
    shown = run("show", "1/-/-", "--from", spool, columns=200)
    assert re.search(r"run +odd-names · project names *\n", shown)
    assert re.search(rf"from +{spool} *\n", shown)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], []),
        ([("", "", "")], ["1 trajectory"]),
        ([("a", "p", "a")] * 2, ["2 trajectories · run a · project p"]),
        ([("a", "p", "e")], ["1 trajectory · run a · project p · experiment e"]),
        ([("a", "", ""), ("b", "q", "")], ["1 trajectory · run a", "1 trajectory · run b · project q"]),
    ],
)
def test_what_is_below_a_list(runs: list[tuple[str, str, str]], expected: list[str]) -> None:
    """A line for each run, with what is known of it and no gaps for what is not."""
    summaries = [
        Summary(f"{number:032x}", run=run, project=project, experiment=experiment, path=f"1/{number}/0")
        for number, (run, project, experiment) in enumerate(runs)
    ]
    assert list(captions.counted_runs(summaries)) == expected
    console = Console(record=True, width=40)
    terminal.list_trajectories(summaries, console, "here")
    assert console.export_text().splitlines()[-len(expected) - 1 :] == [*expected, "from here"]


def test_an_older_run_is_not_shown_without_a_word(tmp_path: Path) -> None:
    """The newest has nothing left, or not what was asked for: that is said, with the newer ones' names."""
    one = [{"step": 1, "sample_index": 1, "rollout_n": 0}]
    for number, (name, steps) in enumerate([("old", one), ("new", TWICE), ("gone", one)]):
        record(tmp_path, steps, OTEL_ROLLOUT_RUN_ID=name, OTEL_ROLLOUT_PROJECT=f"project-{name}")
        for manifest in (tmp_path / name).rglob("run.json"):
            os.utime(manifest, (1000 + number, 1000 + number))
    for segment in (tmp_path / "gone").rglob("*.jsonl"):
        segment.unlink()
    listed = run("show", "--from", tmp_path, columns=200)
    assert "2 trajectories · run new · project project-new" in listed
    assert "This is an older run: no trajectory is here of gone (project project-gone)." in listed
    shown = run("show", "1/1/0", "--from", tmp_path, columns=200)
    assert re.search(r"run +old · project project-old", shown)
    assert (
        "This is an older run: no 1/1/0 is here of gone (project project-gone), new (project project-new)."
        in shown
    )
    only = run("show", "--from", tmp_path / "old", columns=200)
    assert "older run" not in only


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "7"], "7 alone names no trajectory. All of step 7: `otel-rollout show 7/`."),
        (
            ["show", "--failed"],
            "There is no option --failed. Lists are by step and row, and cannot be filtered",
        ),
        (["show", "--sort", "reward"], "There is no option --sort."),
        (["show", "//"], "`otel-rollout show` lists what is there. Write STEP/SAMPLE/ROLLOUT"),
        (["show", ""], "'' names no trajectory: write STEP/SAMPLE/ROLLOUT"),
        (["compare", "/", "//"], "`otel-rollout show` lists what is there. Write STEP/SAMPLE/ROLLOUT"),
        (["show", "--form", "here"], "There is no option --form. Did you mean --from?"),
        (["show", "1/7/0", "-v"], "There is no option -v."),
        (["show", "1/a", "b/0"], "b/0: one trajectory too many, or a name that needs quotes."),
        (["compare", "1/7/0", "1/7/1", "--failed"], "There is no option --failed."),
    ],
)
def test_what_there_is_not_yet_is_said_plainly(spool: Path, arguments: list[str], said: str) -> None:
    """A step's number alone, filters and orders: an error that says what is possible today."""
    place = [] if arguments[1] == "7" or "b/0" in arguments else ["--from", str(spool)]
    printed = " ".join(run(*arguments, *place, code=2, columns=300).replace("│", " ").split())
    assert said in printed
