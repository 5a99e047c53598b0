"""Files that the frameworks' own code wrote have the numbers with which they were made (files/README.md)."""

from pathlib import Path

import pytest

FILES = Path(__file__).parent / "files"
COLUMNS = "path, reward, turns, tool_calls, tokens_out, error_message"
EXPECTED = {
    "art": [
        ("12/0/0", 1.0, 2, 1, None, None),
        ("12/0/1", 0.0, 2, 1, None, None),
        ("12/1/0", 0.5, 2, 1, None, None),
        ("13/0/0", 0.75, 2, 1, 8, None),
    ],
    "harbor": [
        ("-/sort/AbCdEf3", None, 2, 2, 13, "late"),
        ("-/sum/AbCdEf1", 1.0, 2, 2, 13, None),
        ("-/sum/AbCdEf2", 0.0, 2, 2, 13, None),
    ],
    "nemo_gym": [("-/0/0", 1.0, 2, 1, None, None), ("-/1/0", 1.0, 2, 1, None, None)],
    "nemo_rl": [
        ("7/0/0", 1.0, 2, 1, None, None),
        ("7/0/1", 0.0, 2, 1, None, None),
        ("7/0/2", None, 1, 1, None, None),
        ("validation/7/0/0", 1.0, 2, 1, None, None),
        ("validation/7/0/1", 0.0, 2, 1, None, None),
        ("validation/7/0/2", 1.0, 1, 1, None, None),
    ],
    "prime_rl": [
        ("3/0/0", 0.1, 2, 1, 5, None),
        ("3/0/1", 1.1, 2, 1, 5, None),
        ("3/1/0", 0.1, 2, 1, 5, None),
        ("3/1/1", 1.1, 2, 1, 5, None),
        ("3/2/0", None, 0, 0, None, "BootError: no sandbox"),
        ("validation/3/4/0", 1.1, 2, 1, 5, None),
    ],
    "slime": [
        ("6/0/0", 1.0, 2, 1, None, None),
        ("6/0/1", 0.0, 1, 0, 3, None),
        ("6/1/0", None, 1, 0, 3, None),
        ("6/1/1", None, 1, 0, 3, "aborted"),
        ("validation/6/0/0", 0.0, 1, 0, 3, None),
        ("validation/6/1/0", None, 1, 0, 3, None),
    ],
    "tinker": [
        ("3/0/0", 1.5, 2, 1, 15, None),
        ("3/0/1", None, 2, 1, 15, None),
        ("3/1/0", 0.25, 2, 1, 15, None),
        ("3/1/1", 0.25, 2, 1, 15, None),
        ("validation/3/0/0", 1.5, 2, 1, 15, None),
        ("validation/3/0/1", None, 2, 1, 15, None),
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_numbers_are_those_of_the_writer(name, opened):
    """Count, rewards, turns, tool calls, tokens and errors are what was written; NaN is no reward."""
    found = opened(FILES / name)
    rows = found.rows(f"SELECT {COLUMNS} FROM trajectories ORDER BY path")
    assert [tuple(row.values()) for row in rows] == [pytest.approx(row) for row in EXPECTED[name]]
    results = {row["result"] for row in found.rows("SELECT result FROM tool_calls WHERE result IS NOT NULL")}
    assert name in ("harbor", "nemo_gym") or results == {"42"}


@pytest.mark.parametrize(
    ("name", "reasons"),
    [("slime", {"completed", "length", "aborted"}), ("tinker", {"stop", "max_tokens"})],
)
def test_each_reason_for_an_end_is_kept(name, reasons, opened):
    """Replies that were not cut count, too, so that the share of cut ones is right."""
    found = opened(FILES / name)
    told = found.rows("SELECT DISTINCT finish_reason FROM turns WHERE finish_reason IS NOT NULL")
    assert {row["finish_reason"] for row in told} == reasons


def test_a_step_that_no_file_says_stays_unknown(opened):
    """No row gets step 0 instead; a folder's step is that of its files."""
    found = opened(FILES / "harbor")
    assert [row["step"] for row in found.rows("SELECT step FROM steps")] == [None]
    eval_ = opened(FILES / "prime_rl/rollouts/step_3/eval/all")
    assert [row["step"] for row in eval_.rows("SELECT step FROM steps")] == [3]


def test_marks_that_end_a_reply_are_no_text(opened):
    """A reply and the same message in a later context are equal, without the template's marks."""
    found = opened(FILES / "nemo_rl/train_data_step7.jsonl")
    assert not found.rows("SELECT trace_id FROM spans WHERE input LIKE '%<|im_end|>%'")


def test_groups_without_trajectories_are_counted(opened):
    """A group whose trajectories all failed in ART is a number in a remark."""
    remarks = opened(FILES / "art").remarks
    assert any("0012.parquet: 1 group without trajectories left out." in remark for remark in remarks)


def test_what_art_says_of_a_call_is_carried(opened):
    """Tokens, times and finish reasons are those of an exchange; a choice has its reason alone."""
    found = opened(FILES / "art")
    sql = "SELECT tokens_in, tokens_out, seconds, finish_reason FROM turns WHERE step = {} ORDER BY start_ns"
    ends = ["tool_calls", "stop"]
    assert [tuple(row.values()) for row in found.rows(sql.format(13))] == [(9, 4, 1.0, end) for end in ends]
    assert {row["finish_reason"] for row in found.rows(sql.format(12))} == set(ends)


def test_the_usage_of_nemo_gyms_response_is_kept(opened):
    """It is of all calls together, so it is the trajectory's."""
    (row,) = opened(FILES / "nemo_gym").rows(
        "SELECT attributes FROM spans WHERE parent_span_id IS NULL AND sample_index = '0'"
    )
    assert '"rollout.input_tokens":40' in str(row["attributes"])


def test_a_call_without_known_messages_has_no_input(opened):
    """tinker's files have no prompts: the first call's input is unknown, and no empty list."""
    assert not opened(FILES / "tinker").rows(
        "SELECT trace_id FROM spans WHERE input LIKE '%\"messages\":[]%'"
    )
