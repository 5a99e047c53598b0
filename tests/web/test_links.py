"""Addresses lead back to what they were made of, whatever the names are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from otel_rollout.look.analysis.run_choice import Run
from otel_rollout.look.conversation.page import way_to
from otel_rollout.look.conversation.trajectories import summaries_of, trajectory_in
from otel_rollout.look.web.links import ServedLinks
from otel_rollout.table.query import Engine
from tests.table.tables import root, written
from tests.web.rows import HOSTILE

RUN = Run("run/../1", None, HOSTILE)
NAMES = ["1/7/0", "-/7/0", "validation/1/../0", f"1/{HOSTILE}/0", "1/ü/0", "1/a&b=c#d?e/0", "1/%2F/0"]


def parts(address: str | None) -> tuple[str, dict[str, str]]:
    """Return path and parameters of an address."""
    split = urlsplit(address or "")
    assert split.query.isascii()
    return split.path, dict(parse_qsl(split.query, keep_blank_values=True))


@pytest.mark.parametrize("name", NAMES)
def test_names_survive(name: str) -> None:
    """Slashes, dots and other characters are part of a parameter; a missing part of a run's name has none."""
    links, of_run = ServedLinks(RUN), {"run": RUN.run_id, "experiment": RUN.experiment}
    assert parts(links.trajectory(name)) == ("/trajectory", {**of_run, "name": name})
    assert parts(links.group(name)) == ("/group", {**of_run, "name": name})
    assert parts(links.comparison(name, "x")) == ("/compare", {**of_run, "left": name, "right": "x"})


@pytest.mark.parametrize(("step", "text"), [(12, "12"), (0, "0"), (-1, "-1"), (None, "-")])
def test_steps_have_addresses(step: int | None, text: str) -> None:
    """A step that was not recorded has an address, too."""
    links = ServedLinks(Run("a", "b", ""))
    of_run = {"run": "a", "project": "b", "experiment": ""}
    assert parts(links.step(step)) == ("/step", {**of_run, "step": text})
    assert parts(links.timeline(step, True)) == ("/timeline", {**of_run, "step": text, "validate": "true"})


def test_link_to_a_step_whose_text_has_a_slash(tmp_path: Path) -> None:
    """It has the whole text, on the page of a list's row and on that of the trajectory."""
    engine = Engine(written(tmp_path / "table", [root("1", step=None, step_text="a/b")]).open())
    (listed,) = summaries_of(engine, ["true"])
    links = ServedLinks(RUN)
    for summary in (listed, trajectory_in(engine, listed.trace_id).summary):
        assert way_to(summary, links) == (("step a/b", links.step("a/b")),)


def test_surrogates_are_replaced() -> None:
    """A name that is no text has an address without an error."""
    assert ServedLinks(Run("\ud800", None, None)).health() == "/health?run=%3F"
