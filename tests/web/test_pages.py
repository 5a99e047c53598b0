"""The pages of a run lead to each other, and say what a person asks for."""

from __future__ import annotations

import re
import threading
from html import unescape
from pathlib import Path
from re import findall
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.table.tables import root, row, written
from tests.waiting import wait_for
from tests.web.rows import ROLLOUTS, SAMPLES, STEPS
from tests.web.served import Answer, Served, hrefs

RUN = urlencode({"run": "run-1", "project": "project", "experiment": "first"})


def listed(served: Served, **fields: str) -> list[str]:
    """Return the names of the listed trajectories."""
    answer = served.get(f"/trajectories?{RUN}&{urlencode(fields)}")
    assert answer.status == 200
    return [unescape(name) for name in findall(r'<td><a href="/trajectory[^"]*">([^<]*)</a>', answer.body)]


def test_all_runs_are_listed(served: Served) -> None:
    """The newest run comes first; a run without a name is there too."""
    answer = served.get("/")
    assert "first · run-1 project" in answer.text
    assert "run without a name" in answer.text
    assert answer.text.index("first · run-1") < answer.text.index("run without a name")
    assert "1–3" in answer.text


def test_every_trajectory_of_a_run_is_listed(served: Served) -> None:
    """Training comes first, a missing step last, then validation."""
    names = listed(served)
    assert len(names) == STEPS * SAMPLES * ROLLOUTS + 2
    assert names[:5] == ["1/0/0", "1/0/1", "1/0/2", "1/0/3", "1/1/0"]
    assert names[-2:] == ["-/0/0", "validation/1/0/0"]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"step": "2", "reward": "<0.3"}, ["2/0/0", "2/0/1", "2/1/0", "2/1/1"]),
        ({"step": "3", "running": "true"}, ["3/1/0"]),
        ({"step": "3", "failed": "true"}, ["3/0/3", "3/1/3"]),
        ({"step": "3", "failed": "true", "running": "true"}, ["3/0/3", "3/1/0", "3/1/3"]),
        ({"step": "3", "ok": "true"}, ["3/0/0", "3/0/1", "3/0/2", "3/1/1", "3/1/2"]),
        ({"step": "1", "tool_error": "true", "validation": "false"}, ["1/0/3", "1/1/3"]),
        ({"validation": "true"}, ["validation/1/0/0"]),
        ({"step": "1", "sample": "1", "tool": "search"}, ["1/1/0", "1/1/1", "1/1/2", "1/1/3"]),
        ({"step": "2", "failed_tool": "search"}, ["2/0/3", "2/1/3"]),
        (
            {"step": "1-2", "tool_error": "true", "failed_tool": "search"},
            ["1/0/3", "1/1/3", "2/0/3", "2/1/3"],
        ),
        ({"tool_error": "true", "failed_tool": "browser"}, []),
        ({"tool": "browser' OR true --"}, []),
        ({"step": "2", "sort": "-reward", "reward": ">0.6"}, ["2/0/3", "2/1/3"]),
        ({"step": "1-2", "turns": "2"}, []),
        ({"seconds": ">5"}, []),
    ],
)
def test_fields_filter_and_sort(served: Served, fields: dict[str, str], names: list[str]) -> None:
    """Fields of the form are those of ``otel-rollout list``."""
    assert listed(served, **fields) == names


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"failed_tool": "serch"}, "There is no tool 'serch'. Did you mean 'search'? Tools: "),
        ({"step": "99"}, "No trajectory: there are steps 1–3"),
    ],
)
def test_an_empty_list_says_what_there_is(served: Served, fields: dict[str, str], said: str) -> None:
    """The page says what ``otel-rollout list`` says."""
    answer = served.get(f"/trajectories?{RUN}&{urlencode(fields)}")
    assert said in answer.text
    other = served.get(f"/trajectories?{RUN}&{urlencode({'seconds': '>5'})}")
    assert "No trajectory is like that." in other.text


def test_field_that_cannot_be_read_is_explained(served: Served) -> None:
    """The page has the sentence, and the field as it was typed."""
    answer = served.get(f"/trajectories?{RUN}&reward=good")
    assert " reward 'good' cannot be read: write a number (3), a range (1-3)" in answer.text
    assert 'value="good"' in answer.body


def test_trajectory_shows_its_conversation(served: Served) -> None:
    """The page is that of ``show --html``, with links around it."""
    answer = served.get(f"/trajectory?{RUN}&name=2/1/3")
    assert answer.status == 200
    assert "What is it?" in answer.text
    assert "The answer is 3." in answer.text
    assert "TimeoutError" in answer.text
    assert f"/trajectories?{RUN}" in hrefs(answer)


def test_two_trajectories_are_compared(served: Served) -> None:
    """The page says where they part."""
    answer = served.get(f"/compare?{RUN}&left=2/1/0&right=2/1/1")
    assert "They part at turn 2 (assistant), character 15 of it (“0.” and “1.”)." in answer.text


def test_trajectory_without_a_step_has_a_page(served: Served) -> None:
    """A step that was not recorded is a dash."""
    assert "-/0/0 ok" in served.get(f"/trajectory?{RUN}&name=-/0/0").text


def test_step_that_is_a_text_has_its_pages(tmp_path: Path) -> None:
    """The page of the run leads to it; its time is a page, too."""
    call = row("2", "b2", "a2", kind="LLM", step=None, step_text="warm-up")
    texts = {"2": "warm-up", "3": "-"}
    rows = [root(trace, step=None, step_text=text) for trace, text in texts.items()]
    written(tmp_path / "table", [root("1"), *rows, call])
    with Served(tmp_path / "table", tmp_path) as server:
        found = hrefs(run_page(server), "/step?")
        (address,) = {each for each in found if "step=warm-up" in each}
        step = server.get(address)
        assert step.text.count("step warm-up") == 2
        (time_address,) = hrefs(step, "/timeline?")
        time = server.get(time_address)
        assert "Step warm-up: time" in time.text
        assert address in hrefs(time, "/step?")
        assert "trajectories 1 failed 0" in server.get(f"/step?{RUN}&step=-").text
        missing = server.get(f"/step?{RUN}&step=cool-down")
        assert missing.status == 404
        assert "has no step cool-down. It has steps 1, -, warm-up." in missing.text


def test_step_that_is_called_validation_has_its_pages(tmp_path: Path) -> None:
    """The page of its trajectory leads to the step and to the group, and they are none of a validation."""
    step: dict[str, Any] = {"step": None, "step_text": "validation"}
    written(tmp_path / "table", [root("1", **step), row("1", "b1", "a1", kind="LLM", **step)])
    with Served(tmp_path / "table", tmp_path) as server:
        page = server.get(f"/trajectory?{RUN}&name=validation/7/0")
        addresses = [*hrefs(page, "/step?"), *hrefs(page, "/group?")]
        assert [server.get(address).status for address in addresses] == [200, 200]
        assert "validation step" not in page.text


def test_page_of_what_is_missing_leads_to_what_there_is(served: Served) -> None:
    """Where a trajectory, group or step is missing, the page leads to the list of the step, or of the run."""
    for page in (f"/trajectory?{RUN}&name=1/0/9", f"/group?{RUN}&name=1/9"):
        answer = served.get(page)
        assert answer.status == 404
        (listed,) = map(served.get, hrefs(answer, "/trajectories?"))
        (number,) = re.findall(r"Step 1 has (\d+) trajectories", answer.text)
        assert len(set(hrefs(listed, "/trajectory?"))) == int(number)
    missing = served.get(f"/step?{RUN}&step=9")
    assert missing.status == 404
    assert "The trajectories of first · run-1" in missing.text
    assert [served.get(address).status for address in hrefs(missing, "/trajectories?")] == [200]


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (f"/trajectory?{RUN}&name=9/9/9", "There is no trajectory 9/9/9 in first · run-1."),
        (f"/trajectory?{RUN}&name=nope", "'nope' does not name a trajectory: write STEP/SAMPLE/ROLLOUT"),
        (f"/trajectory?{RUN}", "The address does not say what to show: it lacks the parameter `name`."),
        ("/trajectories?run=run-2", "There is no run with the id 'run-2'."),
        ("/nothing/here", "/nothing/here is no page of this server."),
        ("/mlflow?trace=" + "a" * 32, "This is no trajectory in MLflow."),
    ],
)
def test_missing_page_is_one_sentence(served: Served, page: str, sentence: str) -> None:
    """What is not there is said, with status 404."""
    answer = served.get(page)
    assert answer.status == 404
    assert sentence in answer.text


def test_ambiguous_name_is_a_choice(served: Served) -> None:
    """The first digits of several trace ids lead to each of them."""
    answer = served.get(f"/trajectory?{RUN}&name={'0' * 28}")
    assert answer.status == 300
    assert len(hrefs(answer, "/trajectory?")) > 20


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (f"/health?{RUN}", "groups_without_spread"),
        (f"/run?{RUN}", "reward"),
        (f"/step?{RUN}&step=1", "1/"),
        (f"/timeline?{RUN}&step=1", "generate"),
    ],
)
def test_page_that_takes_long_is_shown_when_it_is_ready(served: Served, page: str, words: str) -> None:
    """Until then it says that it is being prepared."""
    answer = wait_for(lambda: found if (found := served.get(page)).status != 503 else None, what=page)
    assert answer.status == 200
    assert words in answer.text


def run_page(served: Served) -> Answer:
    """Return the page of the run once its checks have ended."""

    def whole() -> Answer | None:
        answer = served.get(f"/run?{RUN}")
        if answer.status == 200 and "is being checked" in answer.text:
            assert '<meta http-equiv="refresh"' in answer.body
        return answer if answer.status == 200 and "is being checked" not in answer.text else None

    return wait_for(whole, what="the page of the run")


def test_page_of_a_run_says_what_is_wrong_or_that_nothing_is(served: Served) -> None:
    """The verdict of health is one line, with a link; until it is there, the page loads itself again."""
    page = run_page(served)
    assert "No check finds anything wrong: " in page.text
    assert hrefs(page, "/health?")


def test_page_of_a_run_has_the_tools_of_all_steps(served: Served) -> None:
    """A row has calls and errors of a tool, and leads to its trajectories."""
    page = run_page(served)
    assert "tool calls tool errors rise at step 1 step 2 step 3 step - by type" in page.text
    assert re.search(r"search 25 6 \(24%\) – 2/8 2/8 2/8 0/1 TimeoutError 6", page.text)
    (link,) = [href for href in hrefs(page, "/trajectories?") if "failed_tool=search" in href]
    assert len(hrefs(served.get(link), "/trajectory?")) == 6


def test_list_has_columns_and_fields_that_the_run_has_values_for(served: Served) -> None:
    """Nobody trained on these trajectories, and no engine traced them; the run's tools are offered."""
    page = served.get(f"/trajectories?{RUN}")
    assert "trajectory state reward duration turns tool calls tool errors tokens in tokens out" in page.text
    for name in ("lag", "mismatch", "queue", "filtered", "broken_prefix"):
        assert f'name="{name}"' not in page.body
    assert '<datalist id="tools"><option value="search"></datalist>' in page.body
    assert "input[list] { width: 20rem;" in page.body  # names of tools are long


def test_pages_of_an_ended_run_are_not_loaded_again(served: Served) -> None:
    """A browser loads a page again only while its run records: here old spans were written just now."""
    for page in ("/", f"/trajectories?{RUN}&refresh=on", f"/trajectory?{RUN}&name=3/1/0"):
        assert '<meta http-equiv="refresh"' not in served.get(page).body


def test_twenty_threads_get_whole_pages(served: Served) -> None:
    """Many requests at once get the pages that one after another get."""
    pages = [
        "/",
        *(f"/trajectories?{RUN}&step={step}&sort=-reward" for step in (1, 2, 3)),
        *(f"/trajectory?{RUN}&name={step}/1/{rollout}" for step in (1, 2) for rollout in range(ROLLOUTS)),
        f"/compare?{RUN}&left=1/1/0&right=1/1/1",
    ]
    expected = {page: served.get(page).text for page in pages}
    found: list[tuple[str, str]] = []

    def ask(first: int) -> None:
        for page in (pages[first % len(pages)], pages[(first + 1) % len(pages)]):
            found.append((page, served.get(page).text))

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20 * 2
    assert set(found) == set(expected.items())
