"""Names in lists can be pasted into a shell.

Lists name their run and their source.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otel_rollout.look.conversation import formatting, terminal
from otel_rollout.look.conversation.summary import Summary, parts_of, path_of
from otel_rollout.look.conversation.trajectories import summaries_of
from otel_rollout.look.sources.reference import parse
from otel_rollout.table.query import Engine
from tests.table.tables import root, written
from tests.viewer.conftest import run

IDENTITIES: list[dict[str, Any]] = [
    {},
    {"validate": True},
    {"sample_index": 7, "rollout_n": 0},
    {"step": 1},
    {"step": 1, "sample_index": "550e8400-e29b-41d4-a716-446655440000", "rollout_n": 1},
    {"step": 1, "sample_index": "a b", "rollout_n": 0},
    {"step": " 1 ", "sample_index": " a b ", "rollout_n": " 0 "},
    {"step": 1, "sample_index": "it's $HOME `*` \\n", "rollout_n": 0},
    {"step": 1, "sample_index": "data/train/0", "rollout_n": 0},
    {"step": "1/2", "sample_index": 0, "rollout_n": 0},
    {"step": 1, "sample_index": "数学", "rollout_n": 0},
    {"step": 1, "sample_index": [1, {"a": 2}], "rollout_n": 0},
    {"step": "warm-up", "sample_index": "\x1b[31m", "rollout_n": 0},
    {"step": 2.0, "sample_index": 1, "rollout_n": 0},
    {"step": 2, "sample_index": 1, "rollout_n": 0, "validate": True},
]
TWICE: list[dict[str, Any]] = [{"step": 3, "sample_index": 1, "rollout_n": 0}] * 2


def record(spool: Path, identities: list[dict[str, Any]], **variables: str) -> None:
    """Record a run in a process of its own, without delivering it."""
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("OTEL_")},
        "OTEL_TRACES_EXPORTER": "spool",
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        **variables,
    }
    job = [sys.executable, "-m", "tests.programs.record_identities", json.dumps(identities)]
    subprocess.run(job, env=environment, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("names") / "spool"
    record(directory, [*IDENTITIES, *TWICE], OTEL_ROLLOUT_RUN_ID="odd-names", OTEL_ROLLOUT_PROJECT="names")
    return directory


def names(listed: str) -> list[tuple[str, str]]:
    """Return names and trace ids of a list, as a shell reads them; no ids where there is no room for them."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in listed.splitlines() if "│" in line]
    has_ids = re.search("┃ trace +┃", listed) is not None
    return [(*shlex.split(row[0]), row[1] if has_ids else "") for row in cells]  # type: ignore[misc]


@pytest.mark.parametrize("columns", [60, 200])
def test_each_name_in_a_list_can_be_pasted_into_a_shell(spool: Path, columns: int) -> None:
    """Names may lack step, row or sibling, and have blanks and special characters."""
    listed = names(run("show", "--from", spool, columns=columns))
    assert len(listed) == len(IDENTITIES) + len(TWICE)
    assert {"-/-/-", "validation/-/-/-", "-/7/0", "1/-/-", "2/1/0"} < {name for name, _ in listed}
    for name, trace in listed:
        if [one for one, _ in listed].count(name) == 1:
            found = re.search(rf"trace +({trace}\w*)", run("show", name, "--from", spool, columns=200))
            assert found, name
            assert "The same in all" in run("compare", found[1], name, "--from", spool, columns=200)


def test_ambiguous_name_lists_the_trace_ids_to_choose_from(spool: Path) -> None:
    """The error lists each trajectory with trace id, state and start.

    Each of these ids shows one.
    """
    said = run("show", "3/1/0", "--from", spool, code=2)
    assert said.startswith(f"3/1/0 names 2 trajectories in {spool}; choose one by its trace id:\n")
    ids = re.findall(r"^  ([0-9a-f]{32})  3/1/0  ok  \d{4}-\d\d-\d\d .* UTC$", said, re.MULTILINE)
    assert len(ids) == 2
    for id_ in ids:
        assert re.search(rf"trace +{id_}", run("show", id_, "--from", spool))


parts = st.none() | st.integers() | st.text(max_size=6)


@given(parts, parts, parts, st.booleans())
def test_shown_name_refers_to_its_trajectory(step: Any, row: Any, sibling: Any, validate: bool) -> None:
    """A trajectory matches its name in a list, whatever its identity is."""
    identity = {"rollout.step": step, "rollout.sample_index": row, "rollout.rollout_n": sibling}
    known = {name: value for name, value in identity.items() if value is not None}
    summary = Summary("1" * 32, path=path_of({**known, "rollout.validate": validate}))
    (word,) = shlex.split(formatting.quoted(summary.path))
    assert parse(word).matches(summary)


def test_group_of_a_dataset_row_without_text_is_not_the_whole_step() -> None:
    """One slash after a step names the step, and two name the group whose row is an empty text."""
    paths = ("5//0", "5/1/0")
    for word, named in (("5/", paths), ("5//", paths[:1]), ("5/1/", paths[1:])):
        found = [path for path in paths if parse(word).matches(Summary("1" * 32, path=path))]
        assert found == [*named]


def test_list_and_conversation_name_their_run_and_source(spool: Path) -> None:
    """The run is shown with name, project, start and directory."""
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
def test_list_of_several_runs_has_a_line_for_each(
    runs: list[tuple[str, str, str]], expected: list[str]
) -> None:
    """Each line has the known facts of its run, without gaps for unknown ones."""
    summaries = [
        Summary(f"{number:032x}", run=run, project=project, experiment=experiment, path=f"1/{number}/0")
        for number, (run, project, experiment) in enumerate(runs)
    ]
    assert list(formatting.runs(summaries)) == expected
    console = Console(record=True, width=40)
    terminal.list_trajectories(summaries, console, "here")
    assert console.export_text().splitlines()[-len(expected) - 1 :] == [*expected, "from here"]


def test_older_run_is_shown_with_a_note(tmp_path: Path) -> None:
    """Where newer runs have no matching trajectory, a note names them."""
    one = [{"step": 1, "sample_index": 1, "rollout_n": 0}]
    for number, (name, steps) in enumerate([("old", one), ("new", TWICE), ("gone", one)]):
        record(tmp_path, steps, OTEL_ROLLOUT_RUN_ID=name, OTEL_ROLLOUT_PROJECT=f"project-{name}")
        for manifest in (tmp_path / name).rglob("run.json"):
            os.utime(manifest, (1000 + number, 1000 + number))
    for segment in (tmp_path / "gone").rglob("*.jsonl"):
        segment.unlink()
    listed = run("show", "--from", tmp_path, columns=200)
    assert "2 trajectories · run new · project project-new" in listed
    assert "This is an older run: there is no trajectory on disk of gone (project project-gone)." in listed
    shown = run("show", "1/1/0", "--from", tmp_path, columns=200)
    assert re.search(r"run +old · project project-old", shown)
    assert (
        "This is an older run: there is no 1/1/0 on disk of gone (project project-gone), "
        "new (project project-new)." in shown
    )
    only = run("show", "--from", tmp_path / "old", columns=200)
    assert "older run" not in only


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "7"], "7 alone does not name a trajectory. All of step 7: `otel-rollout show 7/`."),
        (
            ["show", "--failed"],
            "There is no option --failed. `otel-rollout list` filters and sorts trajectories",
        ),
        (["show", "--sort", "reward"], "There is no option --sort."),
        (
            ["show", "//"],
            "with the same --from and --run lists the trajectories. Write STEP/SAMPLE/ROLLOUT",
        ),
        (["show", ""], "'' does not name a trajectory: write STEP/SAMPLE/ROLLOUT"),
        (
            ["compare", "/", "//"],
            "with the same --from and --run lists the trajectories. Write STEP/SAMPLE/ROLLOUT",
        ),
        (["show", "--form", "here"], "There is no option --form. Did you mean --from?"),
        (["show", "1/7/0", "-v"], "There is no option -v."),
        (["show", "1/a", "b/0"], "b/0: one name too many, or a name that needs quotes."),
        (["compare", "1/7/0", "1/7/1", "--failed"], "There is no option --failed."),
    ],
)
def test_unsupported_request_gets_advice(spool: Path, arguments: list[str], expected: str) -> None:
    """A bare step number, a filter or an order is an error that says what is possible."""
    source = [] if arguments[1] == "7" or "b/0" in arguments else ["--from", str(spool)]
    printed = " ".join(run(*arguments, *source, code=2, columns=300).replace("│", " ").split())
    assert expected in printed


ORDERED = (
    "1/0/0",
    "-3/1/0",
    "-3/1/1",
    "2/a/b/0",
    "2/-/0",
    "2/10/0",
    "2/9/0",
    "warm-up/1/0",
    "-/1/0",
    "2/9/retry",
)


def test_name_of_many_digits_has_its_place_among_the_texts() -> None:
    """Python refuses to convert so many digits, and a table has no such number."""
    named = [Summary("1" * 32, path=f"1/{sample}/0") for sample in ("9" * 5_000, "-", "7", "a")]
    assert [each.path[:4] for each in sorted(named, key=attrgetter("order"))] == [
        "1/7/",
        "1/99",
        "1/a/",
        "1/-/",
    ]


def test_order_of_names_is_that_of_list(tmp_path: Path) -> None:
    """A list of `show` has the first names of the order that it prints, from a table as from MLflow."""
    named = []
    for number, path in enumerate([*ORDERED, *(f"validation/{path}" for path in ORDERED)], start=1):
        is_validation, (step, *sample, rollout) = parts_of(path)
        identity = {
            "step": int(step) if step.lstrip("-").isdigit() else None,
            "step_text": None if step.lstrip("-").isdigit() or step == "-" else step,
            "sample_index": None if sample == ["-"] else "/".join(sample),
            "rollout_n": int(rollout) if rollout.isdigit() else None,
            "rollout_text": None if rollout.isdigit() else rollout,
        }
        named.append(root(str(number), validate=is_validation, **identity))
    found = summaries_of(Engine(written(tmp_path / "table", named).open()), ())
    assert [each.path for each in sorted(found, key=attrgetter("order"))] == [each.path for each in found]
    assert {each.path for each in found} == {*ORDERED, *(f"validation/{path}" for path in ORDERED)}
