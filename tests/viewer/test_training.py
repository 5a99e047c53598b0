"""A trajectory is shown with what training made of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from otel_rollout.cli import app
from tests.table.tables import root, row, score, written
from tests.table.training_rows import outcome

_SCORES = {
    "trained": False,
    "advantage": -0.5,
    "trained_reward": 0.2,
    "kl_penalty": 0.05,
    "trained_tokens": 12,
    "policy_lag": 3,
    "logprob_diff_mean": 0.11,
    "logprob_diff_share": 0.25,
    "logprob_diff_max": 0.6,
    "logprob_diff_token": 8,
    "logprob_diff_turn": 2,
    "importance_ratio": 1.25,
}


def conversation() -> Iterator[dict[str, Any]]:
    """Yield a trajectory with two model turns and a tool between them."""
    yield root("1")
    for number, said in enumerate(("I ask the tool.", "The answer is 4.")):
        asked = {"messages": [{"role": "user", "content": f"question {number}"}]}
        answer = {"choices": [{"message": {"role": "assistant", "content": said}}]}
        content = {"input": json.dumps(asked), "output": json.dumps(answer)}
        yield row("1", f"b00{number}", "a1", kind="LLM", name="generate", **content)
        if not number:
            yield row("1", "c00", "a1", kind="TOOL", name="tool", tool_name="calculator", output="4")
    yield score("1", "d00", 0.25)


def token_values(**values: object) -> dict[str, Any]:
    """Return the score that has values per token."""
    (stored,) = outcome({"training_tokens": 12.0})
    return stored | {
        "attributes": json.dumps(
            {f"rollout.tokens.{name}": json.dumps(each) for name, each in values.items()}
        )
    }


def shown(path: Path, *rows: dict[str, Any], code: int = 0) -> tuple[str, str]:
    """Return a trajectory on the terminal, and its page."""
    written(path / "table", rows)
    arguments = ["show", "1/7/0", "--from", str(path / "table")]
    page = path / "page.html"
    ran = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    paged = CliRunner().invoke(app, [*arguments, "--html", str(page)])
    assert (ran.exit_code, paged.exit_code) == (code, code), ran.output + paged.output
    return ran.output, page.read_text()


def test_training_is_a_block_of_its_own(tmp_path: Path) -> None:
    """Its scores are not among the others; the page links the turn with the largest difference."""
    rows = [*conversation(), *outcome(_SCORES, "overlong")]
    printed, page = shown(tmp_path, *rows)
    block = printed[printed.index("training ──") : printed.index("scores ──")]
    for line in (
        "no: overlong",
        "-0.5",
        "trained on 0.2 after a KL penalty of 0.05; recorded 0.25",
        "12 tokens",
        "3 versions",
        "mean 0.11 nats; 25% of the tokens above 0.1",
        "0.6 nats at token 8 of the response, in model turn 2 (number 5 above)",
        "1.25",
    ):
        assert line in block
    assert "reward  0.25" in printed[printed.index("scores ──") :]
    assert "advantage" not in printed[printed.index("scores ──") :]
    assert '<a href="#turn-5">0.6 nats at token 8 of the response, in model turn 2</a>' in page
    assert page.count('id="turn-5"') == 1
    assert "<script" not in page


def test_turn_of_the_mismatch_is_one_that_the_trainer_has(tmp_path: Path) -> None:
    """The trainer has no tokens of a failed call, of a judge or of a sub-trajectory."""
    asked = {"input": json.dumps([{"role": "user", "content": "Go on."}])}
    call = {"kind": "LLM", "name": "generate", **asked}
    calls = [
        row("1", "b01", "a1", output='"reply 1"', **call),
        row("1", "b02", "a1", status="error", error_message="busy", **call),
        row("1", "c01", "a1", kind="EVALUATOR", name="rate", output="0.5"),
        row("1", "b03", "c01", output='"the verdict"', **call),
        row("1", "b04", "a1", rollout_n=1, output='"a reply of the helper"', **call),
        row("1", "b05", "a1", output='"reply 2"', **call),
    ]
    printed, page = shown(tmp_path, root("1"), *calls, *outcome(_SCORES))
    place = re.search(r"in model turn 2 \(number (\d+) above\)", printed)
    assert place is not None
    below = printed.index(f"\n{place[1]:>2} assistant")
    assert printed[below:].splitlines()[2].strip() == "reply 2"
    assert f'href="#turn-{place[1]}"' in page


def test_values_per_token_are_shown_around_the_largest_difference(tmp_path: Path) -> None:
    """They stand in the turn that has it; what is no number is empty."""
    values = [*(index / 10 for index in range(10)), None, 1.1]
    stored = token_values(trainer=values, sampler=[0.5] * 12)
    printed, page = shown(tmp_path, *conversation(), *outcome(_SCORES), stored)
    tokens = printed[: printed.index("training ──")].splitlines()
    place = next(index for index, line in enumerate(tokens) if line.strip().startswith("token "))
    assert tokens[place].split() == ["token", "4", "5", "6", "7", "8", "9", "10", "11"]
    assert tokens[place + 1].split() == ["trainer", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.1"]
    assert tokens[place + 2].split() == ["sampler", *["0.5"] * 8]
    assert '<th class="peak">8</th>' in page
    assert '<td class="peak">0.8</td>' in page


def test_trajectory_without_the_trainers_scores_has_no_block(tmp_path: Path) -> None:
    """Its page has no link and no place for one."""
    printed, page = shown(tmp_path, *conversation())
    assert "training ──" not in printed
    assert "Training" not in page
    assert "href" not in page


@pytest.mark.parametrize(
    "odd",
    [
        {"logprob_diff_turn": 9, "logprob_diff_token": 99},
        {"logprob_diff_turn": -1, "logprob_diff_token": -4},
        {"logprob_diff_turn": math.nan, "logprob_diff_max": math.inf, "policy_lag": math.nan},
        {"advantage": math.nan, "trained_reward": math.inf},
    ],
)
def test_odd_numbers_are_shown_as_they_are(tmp_path: Path, odd: dict[str, float]) -> None:
    """A turn or token that the trajectory does not have is linked nowhere."""
    stored = token_values(trainer=[0.1, 0.2], broken="[", text="no list")
    printed, page = shown(tmp_path, *conversation(), *outcome(_SCORES | odd), stored)
    assert "training ──" in printed
    if "logprob_diff_turn" in odd:
        assert "#turn-" not in page


def test_reason_cannot_act_in_terminal_or_page(tmp_path: Path) -> None:
    """It is shown as text."""
    rows = [*conversation(), *outcome({"trained": False}, "<script>\x1b[31m")]
    printed, page = shown(tmp_path, *rows)
    assert "\x1b" not in printed + page
    assert "<script>" in printed
    assert "<script" not in page


@pytest.mark.parametrize(
    ("value", "said"), [(1.0, "yes"), (0.0, "no"), (math.nan, "nan"), (0.5, "0.5"), (2.0, "2.0")]
)
def test_trained_is_yes_or_no_for_one_and_zero_alone(tmp_path: Path, value: float, said: str) -> None:
    """Anything else is shown as it is."""
    printed, _ = shown(tmp_path, *conversation(), *outcome({"trained": value}))
    line = next(line for line in printed.splitlines() if line.strip().startswith("trained "))
    assert line.split()[1].strip(",").lower() == said


def test_signed_difference_is_shown_as_its_magnitude(tmp_path: Path) -> None:
    """A share above one is no share, and is not shown."""
    odd = {"logprob_diff_mean": -0.15, "logprob_diff_max": -0.6, "logprob_diff_share": 50.0}
    printed, _ = shown(tmp_path, *conversation(), *outcome(odd))
    assert "mean 0.15 nats" in printed
    assert "0.6 nats" in printed
    assert "% of the tokens" not in printed


def test_trajectory_that_the_trainer_passed_over_says_so(tmp_path: Path) -> None:
    """The trainer named a sibling, so that its silence is an answer."""
    sibling = {"step": 1, "sample_index": "7", "rollout_n": 1}
    named = [root("2", **sibling), *outcome({"trained": True}, **sibling)]
    printed, page = shown(tmp_path, *conversation(), *named)
    assert re.search(r"trained +not named by the trainer", printed)
    assert "not named by the trainer" in page
