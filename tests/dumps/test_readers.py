"""Each reader gives what the file says, and nothing else."""

import io
import json
import math
import pickle
import sys
import zipfile

import pytest

from otel_rollout.look.errors import ViewerError
from tests.cli.command import run
from tests.dumps.reading import verl_line, write_lines

CALL = '<tool_call>\n{"name": "calc", "arguments": {"e": "6*7"}}\n</tool_call>'
LOOP = f"So:\n{CALL}\nuser\n<tool_response>\n42\n</tool_response>\nassistant\nIt is 42."


def test_verl_pieces_of_one_session_are_one_trajectory_with_one_score(tmp_path, opened):
    """Lines of one session are its model calls, the highest index last, and its score counts once."""
    pieces = [verl_line(output=f"piece {index}", uid=f"g_1_{index}", score=1.0) for index in (0, 1, 10, 2)]
    write_lines(tmp_path / "run/rollouts/1.jsonl", [*pieces, verl_line(uid="g_2_0", score=0.0)])
    found = opened(tmp_path / "run")
    (one, other) = found.trajectories()
    assert (one["path"], one["turns"], one["reward"]) == ("1/0/1", 4, 1.0)
    assert (other["path"], other["turns"], other["reward"]) == ("1/0/2", 1, 0.0)
    assert {row["reward_mean"] for row in found.rows("SELECT * FROM steps")} == {0.5}
    replies = found.rows("SELECT reply, continues FROM turns WHERE rollout_n = 1 ORDER BY start_ns")
    assert [row["reply"] for row in replies] == ["piece 0", "piece 1", "piece 2", "piece 10"]
    assert not any(row["continues"] for row in replies)


def test_verl_turns_and_tools_are_parsed_by_the_templates_marks_alone(tmp_path, opened):
    """A tool's call and result are found between the marks; a line that is a role's word splits nothing."""
    plain = "I am the\nuser\nof this.\nassistant\nYes."
    write_lines(tmp_path / "1.jsonl", [verl_line(output=LOOP), verl_line(1, output=plain)])
    found = opened(tmp_path / "1.jsonl")
    assert [(row["turns"], row["tool_calls"]) for row in found.trajectories()] == [(2, 1), (1, 0)]
    (tool,) = found.rows("SELECT tool_name, arguments, result, status FROM tool_calls")
    assert (tool["tool_name"], tool["arguments"], tool["result"]) == ("calc", '{"e":"6*7"}', "42")
    (reply,) = found.rows("SELECT reply FROM turns WHERE rollout_n = 1")
    assert reply["reply"] == plain


def test_verl_lines_without_uid_are_grouped_by_input(tmp_path, opened):
    """The older trainer mixes siblings: equal inputs are a group, and a remark says so."""
    lines = [verl_line(number % 3, score=number, acc=number / 2, ok="True") for number in range(6)]
    for line in lines:
        del line["uid"]
    write_lines(tmp_path / "val_data/20.jsonl", [line | {"step": 20} for line in lines])
    found = opened(tmp_path / "val_data")
    paths = [f"validation/20/{sample}/{rollout}" for sample in range(3) for rollout in range(2)]
    assert [row["path"] for row in found.trajectories()] == paths
    assert found.scores()["validation/20/1/1"] == {"reward": 4.0, "acc": 2.0, "ok": 1.0}
    assert any("older trainer" in remark for remark in found.remarks)


def test_a_dump_without_times_has_no_durations(tmp_path, opened):
    """No view has a time or a duration that the file does not say."""
    write_lines(tmp_path / "1.jsonl", [verl_line(output=LOOP)])
    found = opened(tmp_path / "1.jsonl")
    for view in ("trajectories", "turns", "tool_calls"):
        row = found.rows(f"SELECT * FROM {view}")[0]
        assert (row["start_time"], row["seconds"]) == (None, None)
    (phases,) = found.rows("SELECT * FROM phases")
    assert {value for name, value in phases.items() if name.endswith("seconds")} == {None}
    (step,) = found.rows("SELECT seconds_mean, start_time FROM steps")
    assert set(step.values()) == {None}


EPISODE = {
    "id": "e0",
    "env": {"id": "calc"},
    "task": {"type": "T", "data": {"idx": 11}, "key": "calc-11"},
    "group": {"id": "g1"},
    "run": {"type": "train", "work": {"type": "train", "step": 3, "policy": {"start": 2, "end": 3}}},
    "traces": [
        {
            "nodes": [
                {"message": {"role": "user", "content": "6*7?"}, "sampled": False},
                {
                    "parent": 0,
                    "sampled": True,
                    "message": {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [{"id": "c1", "name": "calc", "arguments": '{"e": "6*7"}'}],
                    },
                },
                {
                    "parent": 1,
                    "message": {"role": "tool", "tool_call_id": "c1", "content": "42"},
                    "sampled": False,
                },
                {"parent": 2, "message": {"role": "assistant", "content": "42"}, "sampled": True},
            ],
            "calls": [
                {
                    "node": 1,
                    "usage": {"prompt_tokens": 9, "completion_tokens": 5, "cached_input_tokens": 3},
                    "time": {"start": 1790000010.0, "end": 1790000011.0},
                },
                {"node": 3, "finish_reason": "length", "time": {"start": 1790000011.5, "end": 1790000012.0}},
            ],
            "rewards": {"correct": {"score": 1.0, "weight": 0.5}, "style": {"score": 1.0, "weight": 0.25}},
            "metrics": {"turns": 2.0},
        }
    ],
}


def test_verifiers_traces_have_rewards_by_weight_and_real_times(tmp_path, opened):
    """The reward is the weighted sum; tokens count cached ones; calls have their times."""
    write_lines(tmp_path / "traces.jsonl", [EPISODE, EPISODE | {"id": "e1"}])
    found = opened(tmp_path / "traces.jsonl")
    one, other = found.trajectories()
    assert (one["path"], other["path"]) == ("3/11/0", "3/11/1")
    assert (one["reward"], one["turns"], one["tool_calls"], one["tokens_in"]) == (0.75, 2, 1, 12)
    assert (one["policy_version_min"], one["policy_version_max"], one["seconds"]) == (2, 3, 2.0)
    calls = found.rows("SELECT seconds, finish_reason FROM turns WHERE rollout_n = 0 ORDER BY start_ns")
    assert [(row["seconds"], row["finish_reason"]) for row in calls] == [(1.0, None), (0.5, "length")]
    (tool,) = found.rows("SELECT seconds FROM tool_calls WHERE rollout_n = 0")
    assert tool["seconds"] is None, "no dump says when a tool ended"
    assert found.scores()["3/11/0"] == {"reward": 0.75, "correct": 1.0, "style": 1.0, "turns": 2.0}


@pytest.mark.parametrize("part", [float("nan"), "nan", "NaN"])
def test_a_part_of_a_reward_that_is_nan_is_kept_as_a_label(tmp_path, opened, part):
    """As a number and as a text; the reward is NaN then, too."""
    trace = EPISODE["traces"][0] | {"rewards": {"correct": {"score": part}, "style": {"score": 1.0}}}
    write_lines(tmp_path / "traces.jsonl", [EPISODE | {"traces": [trace]}])
    labels = opened(tmp_path / "traces.jsonl").rows("SELECT name, value, label FROM scores ORDER BY name")
    said = {row["name"]: (row["value"], row["label"]) for row in labels}
    assert said["correct"] == said["reward"] == (None, "nan")
    assert said["style"] == (1.0, None)


def test_prime_rl_files_of_all_and_effective_episodes_are_one(tmp_path, opened):
    """An episode that is in both files is one trajectory, and a remark says which file is left out."""
    for kind in ("all", "effective"):
        write_lines(tmp_path / f"run/rollouts/step_3/train/{kind}/traces.jsonl", [EPISODE])
    found = opened(tmp_path / "run")
    assert len(found.trajectories()) == 1
    assert any("is left out" in remark for remark in found.remarks)


def test_a_failed_episode_has_an_error_and_no_reward(tmp_path, opened):
    """An episode without traces failed before a model was asked."""
    failed = EPISODE | {"traces": [], "errors": [{"type": "BootError", "message": "no sandbox"}]}
    write_lines(tmp_path / "traces.jsonl", [failed])
    (one,) = opened(tmp_path / "traces.jsonl").trajectories()
    assert (one["state"], one["error_message"], one["reward"]) == ("error", "BootError: no sandbox", None)


def test_verifiers_results_have_tool_calls_of_json_texts(tmp_path, opened):
    """The old writer made JSON texts of tool calls and their arguments."""
    call = '{"id": "c1", "name": "calc", "arguments": "{\\"e\\": \\"6*7\\"}"}'
    replies = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "42"},
    ]
    line = {
        "example_id": 11, "prompt": [{"role": "user", "content": "6*7?"}], "completion": replies,
        "reward": 0.5, "is_truncated": True, "metrics": {"acc": 0.5}, "acc": 0.5, "timing": {}, "error": None,
    }  # fmt: skip
    write_lines(tmp_path / "outputs/evals/calc--m/0a1b2c3d/results.jsonl", [line, line])
    found = opened(tmp_path / "outputs/evals/calc--m/0a1b2c3d")
    assert [row["path"] for row in found.trajectories()] == ["validation/-/11/0", "validation/-/11/1"]
    assert {row["experiment"] for row in found.trajectories()} == {"calc--m"}
    assert {(row["turns"], row["tool_calls"], row["reward"]) for row in found.trajectories()} == {(2, 1, 0.5)}
    assert found.scores()["validation/-/11/0"] == {"acc": 0.5, "reward": 0.5}
    older = {name: value for name, value in line.items() if name != "metrics"} | {"total_ms": 1.5}
    again = opened(write_lines(tmp_path / "older/evals/results.jsonl", [older]))
    assert again.scores()["validation/-/11/0"] == {"acc": 0.5, "reward": 0.5}
    (tool, _) = found.rows("SELECT arguments, result FROM tool_calls")
    assert (tool["arguments"], tool["result"]) == ('{"e": "6*7"}', "42")
    ends = found.rows("SELECT finish_reason FROM turns WHERE rollout_n = 0 ORDER BY start_ns")
    assert [row["finish_reason"] for row in ends] == [None, "length"]


def test_messages_are_read_by_a_users_own_names(tmp_path, opened):
    """A mapping names nested fields; groups without a number are numbered by their prompts."""
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    record = {"conversation": talk, "scores": {"total": 0.5}, "iteration": 3}
    write_lines(tmp_path / "own.jsonl", [record, record | {"scores": {"total": 1.5}}])
    found = opened(tmp_path / "own.jsonl", mapped="reward=scores.total,step=iteration,messages=conversation")
    assert [(row["path"], row["reward"]) for row in found.trajectories()] == [("3/0/0", 0.5), ("3/0/1", 1.5)]


def talk_about(question, answer):
    """Return a conversation that begins with a system message, as all of its file do."""
    said = [("system", "You calculate."), ("user", question), ("assistant", answer)]
    return [{"role": role, "content": text} for role, text in said]


@pytest.mark.parametrize("has_step", [True, False])
def test_rows_of_one_question_are_a_group_after_a_shared_system_message(tmp_path, opened, has_step):
    """Without a sample index, the messages before the first reply tell groups apart, in each step."""
    rows = [("1+1?", "2"), ("2+2?", "4"), ("1+1?", "3"), ("2+2?", "4")]
    lines = [
        {"messages": talk_about(*row), "reward": 1.0} | ({"step": step} if has_step else {})
        for step in (7, 8)
        for row in rows
    ]
    found = opened(write_lines(tmp_path / "chat.jsonl", lines))
    groups = found.rows("SELECT path, trajectories FROM groups ORDER BY path")
    names = {"7/0": 2, "7/1": 2, "8/2": 2, "8/3": 2} if has_step else {"-/0": 4, "-/1": 4}
    assert {row["path"]: row["trajectories"] for row in groups} == names


def test_any_json_value_can_be_a_group(tmp_path, opened):
    """Lists, objects, 0 and text name groups; without such a value, the prompt does."""
    groups = [["a", 1], {"b": [2]}, 0, "0", "", None]
    lines = [
        {"messages": talk_about("1+1?", answer), "reward": 1.0, "of": group}
        for answer in "23"
        for group in groups
    ]
    found = opened(write_lines(tmp_path / "own.jsonl", lines), mapped="group=of")
    rows = found.rows("SELECT path, trajectories FROM groups ORDER BY path")
    assert [row["trajectories"] for row in rows] == [2, 2, 2, 2, 4]
    ids = [row["group_id"] for row in found.rows("SELECT group_id FROM trajectories WHERE rollout_n = 0")]
    assert sorted(map(str, ids)) == sorted(['["a",1]', '{"b":[2]}', "0", "0", "None"])


def test_anthropics_tool_blocks_are_tool_calls_with_their_results(tmp_path, opened):
    """Blocks of the type ``tool_use`` and ``tool_result`` are calls; a result may say that it is an error."""
    talk = [
        {"role": "user", "content": "6*7?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I calculate."},
                {"type": "tool_use", "id": "c1", "name": "calculate", "input": {"e": "6*7"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "42"}]},
    ]
    failed = {"type": "tool_result", "tool_use_id": "c1", "content": "no such tool", "is_error": True}
    refused = [*talk[:2], {"role": "user", "content": [failed]}, talk[3]]
    worked = [
        *talk[:2],
        {"role": "user", "content": [failed | {"content": "42", "is_error": False}]},
        talk[3],
    ]
    pair = {"prompt": talk[:1], "completion": talk[1:], "reward": 1}
    records = [{"messages": worked, "reward": 1}, {"messages": refused, "reward": 0}, pair]
    found = opened(write_lines(tmp_path / "own.jsonl", records))
    assert [row["turns"] for row in found.trajectories()] == [2, 2, 2]
    tools = found.rows(
        "SELECT tool_name, arguments, result, error_message FROM tool_calls ORDER BY rollout_n"
    )
    (step,) = found.rows("SELECT tool_calls, tool_errors FROM steps")
    assert step == {"tool_calls": 3, "tool_errors": 1}
    assert [row["status"] for row in found.rows("SELECT status FROM tool_calls ORDER BY rollout_n")] == [
        "ok",
        "error",
        None,
    ]
    called = {"tool_name": "calculate", "arguments": '{"e":"6*7"}', "result": "42", "error_message": None}
    assert tools == [called, called | {"result": "no such tool", "error_message": "no such tool"}, called]


def test_validation_may_be_said_by_a_text(tmp_path, opened):
    """A text that is false is no validation; the name of a split says what the name of a folder would."""
    values = {"false": False, "False": False, "true": True, "0": False, "train": False, "val": True, 1: True}
    records = [
        {"messages": talk_about("1+1?", "2"), "reward": 1.0, "split": value, "index": number}
        for number, value in enumerate(values)
    ]
    found = opened(write_lines(tmp_path / "own.jsonl", records), mapped="validate=split")
    rows = found.rows("SELECT validate FROM trajectories ORDER BY TRY_CAST(sample_index AS INT)")
    assert [row["validate"] for row in rows] == list(values.values())


@pytest.mark.parametrize("has_row", [False, True])
def test_a_whole_number_in_any_form_is_one_step_and_one_row(tmp_path, opened, has_row):
    """A recorder makes one step of ``2`` and ``2.0`` too, and a table one of ``"2"``."""
    said = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    rows = [{"row": 3}, {"row": 3.0}, {"row": "3"}] if has_row else [{}, {}, {}]
    steps = [2, 2.0, "2"]
    write_lines(
        tmp_path / "a.jsonl", [{**said, "step": step, **row} for step, row in zip(steps, rows, strict=True)]
    )
    found = opened(tmp_path / "a.jsonl", mapped="sample=row" if has_row else "")
    row = 3 if has_row else 0
    assert [each["path"] for each in found.trajectories()] == [f"2/{row}/{rollout}" for rollout in range(3)]


def test_a_mapped_field_that_no_record_has_is_named(tmp_path, opened):
    """A misspelt field gets a line with those that there are; so does a file without a reward."""
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    record = {"conversation": talk, "scores": {"total": 1}, "iteration": 3}
    own = write_lines(tmp_path / "own.jsonl", [record])
    advice = "--map reward=FIELD names another field of conversation, scores, iteration, scores.total."
    misspelt = opened(own, mapped="reward=score.total,step=iteration")
    meant = "Did you mean 'scores.total'?"
    assert f"The first records have no score.total for the reward: {advice} {meant}" in misspelt.remarks
    usual = "reward or score or rewards or reward_label"
    assert f"The first records have no {usual} for the reward: {advice}" in opened(own).remarks
    assert len(opened(own, mapped="reward=scores.total,step=iteration").remarks) == 1


def test_a_mapping_may_be_a_file_and_a_wrong_name_is_named(tmp_path):
    """A name that is no part of a trajectory is refused with the one that was meant."""
    from otel_rollout.look.dumps.readers.messages import Mapped

    (tmp_path / "map").write_text("reward=a\nmessages=b\n")
    assert Mapped.parse(str(tmp_path / "map")).fields["reward"] == ("a",)
    with pytest.raises(ViewerError, match="Did you mean 'messages'"):
        Mapped.parse("mesages=b")


def test_an_unknown_file_is_answered_with_its_own_fields(tmp_path, opened):
    """A file of no known format is refused with its fields and an example of a mapping."""
    write_lines(tmp_path / "own.jsonl", [{"talk": [], "points": 1}])
    with pytest.raises(ViewerError, match=r"fields talk, points\..*--map messages=FIELD"):
        opened(tmp_path / "own.jsonl")


def test_harbors_result_gives_the_reward_of_an_atif_trajectory(tmp_path, opened):
    """Reward, error and times of a trial are beside its trajectory, no call's; copied context is skipped."""
    steps = [
        {"step_id": 1, "source": "user", "message": "old", "is_copied_context": True},
        {"step_id": 2, "source": "user", "message": "6*7?"},
        {
            "step_id": 3, "source": "agent", "message": "Let me see.",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "calc", "arguments": {"e": "6*7"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "42"}]},
            "metrics": {"prompt_tokens": 10, "completion_tokens": 4},
        },
        {"step_id": 4, "source": "agent", "message": "42"},
    ]  # fmt: skip
    document = {"schema_version": "ATIF-v1.8", "session_id": "s", "agent": {"name": "a"}, "steps": steps}
    for trial, reward in (("sum__AbCdEf1", 1.0), ("sum__AbCdEf2", 0.0)):
        write_lines(tmp_path / "job" / trial / "agent/trajectory.json", [document])
        result = {
            "task_name": "sum", "trial_name": trial, "verifier_result": {"rewards": {"tests": reward}},
            "started_at": "2026-11-01T10:00:00Z", "finished_at": "2026-11-01T10:00:05Z",
        }  # fmt: skip
        write_lines(tmp_path / "job" / trial / "result.json", [result])
    found = opened(tmp_path / "job")
    one, other = found.trajectories()
    assert (one["sample_index"], one["experiment"], one["turns"], one["tool_calls"]) == ("sum", "job", 2, 1)
    assert {one["reward"], other["reward"]} == {0.0, 1.0}
    assert (one["seconds"], one["tokens_in"]) == (5.0, 10)
    phases = "seconds, generate_seconds, tool_seconds, reward_seconds, waiting_seconds"
    for row in found.rows(f"SELECT {phases} FROM phases"):
        assert tuple(row.values()) == (5.0, None, None, None, None)


def test_nemo_gym_items_are_model_calls_up_to_a_tools_result(tmp_path, opened):
    """A failure has no reward, and a reply goes on until the result of its tool."""
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "name": "calc", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "message", "content": [{"type": "output_text", "text": "42"}]},
    ]
    base = {"responses_create_params": {"input": "6*7?"}, "_ng_task_index": 3}
    lines = [
        base | {"response": {"output": output}, "reward": 1.0, "_ng_rollout_index": 0},
        base | {"_ng_rollout_index": 1, "_ng_failure_class": "timeout"},
    ]
    write_lines(tmp_path / "rollouts.jsonl", lines)
    good, failed = opened(tmp_path / "rollouts.jsonl").trajectories()
    assert (good["path"], good["turns"], good["tool_calls"], good["reward"]) == ("-/3/0", 2, 1, 1.0)
    assert (failed["state"], failed["error_message"], failed["reward"]) == ("error", "timeout", None)


def test_nemo_gym_files_without_indexes_or_with_transitions(tmp_path, opened):
    """Older files are numbered by their prompts; of transitions, the last has the whole conversation."""
    said = [
        {"type": "message", "role": "user", "content": "6*7?"},
        {"type": "function_call", "name": "calc", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "42"}]},
    ]
    line = {"responses_create_params": {"input": []}, "reward": 0.5}
    lines = [line | {"response": {"output": output}} for output in ([said[:3], said], said)]
    write_lines(tmp_path / "rollouts.jsonl", lines)
    rows = opened(tmp_path / "rollouts.jsonl").trajectories()
    assert [(row["path"], row["turns"], row["tool_calls"]) for row in rows] == [
        ("-/0/0", 2, 1),
        ("-/0/1", 2, 1),
    ]


def test_verl_line_without_a_reply_is_left_out(tmp_path, opened):
    """No model call is made up for it."""
    first, *others = (verl_line(number, step=5) for number in range(3))
    found = opened(write_lines(tmp_path / "5.jsonl", [first, {"input": "1+1?"}, *others]))
    assert [row["turns"] for row in found.trajectories()] == [1, 1, 1]
    assert any("line 2: has no output" in remark for remark in found.remarks)


def test_verifiers_errors_have_a_class(tmp_path, opened):
    """As of a recorded trajectory, failures count by class."""
    error = {"type": "SandboxError", "message": "boom"}
    failed = EPISODE | {"traces": [EPISODE["traces"][0] | {"errors": [error]}]}
    (one,) = opened(write_lines(tmp_path / "traces.jsonl", [failed])).trajectories()
    told = [one[name] for name in ("state", "error_type", "error_message")]
    assert told == ["error", "SandboxError", "SandboxError: boom"]


def test_nemo_rl_values_are_lists_of_one(tmp_path, opened):
    """The step is in the file's name; the advantage is the mean of the trained tokens; a mask leaves out."""
    line = {
        "content": [["6*7?", "42"]], "rewards": [1.0], "idx": 0,
        "advantages": [[0.0, 0.25, 0.75]], "token_loss_mask": [[0, 1, 1]], "sample_loss_mask": [1.0],
    }  # fmt: skip
    masked = line | {"idx": 1, "rewards": [0.0], "sample_loss_mask": [0.0]}
    write_lines(tmp_path / "train_data_step7.jsonl", [line, masked])
    found = opened(tmp_path / "train_data_step7.jsonl")
    assert [(row["path"], row["reward"]) for row in found.trajectories()] == [("7/0/0", 1.0), ("7/0/1", 0.0)]
    assert found.scores()["7/0/0"]["advantage"] == 0.5
    assert [
        tuple(row.values()) for row in found.rows("SELECT trained, reason FROM training ORDER BY rollout_n")
    ] == [
        (True, None),
        (False, "its sample_loss_mask is 0"),
    ]


def test_nemo_rl_siblings_share_all_that_was_asked(tmp_path, opened):
    """A system message that all lines begin with makes no group of different questions."""
    asked = ["1+1?", "2+2?", "1+1?"]
    lines = [
        {"content": [talk_about(text, "4")], "rewards": [1.0], "idx": index}
        for index, text in enumerate(asked)
    ]
    found = opened(write_lines(tmp_path / "train_data_step7.jsonl", lines))
    assert [row["path"] for row in found.trajectories()] == ["7/0/0", "7/0/1", "7/1/0"]


def torch_file(path, value):
    """Write values as a file of PyTorch."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{path.stem}/data.pkl", value if isinstance(value, bytes) else pickle.dumps(value, 2)
        )
    return path


SAMPLE = {
    "group_index": 4, "index": 9, "prompt": "6*7?", "response": "42", "response_length": 2, "reward": 1.0,
    "status": "truncated", "weight_versions": ["3", "5"], "label": "42",
}  # fmt: skip


def test_slime_samples_are_read_without_torch(tmp_path, opened):
    """Plain values of a PyTorch file are read; the versions of the weights are those of the sample."""
    torch_file(tmp_path / "rollout_6.pt", {"rollout_id": 6, "samples": [SAMPLE, SAMPLE | {"reward": None}]})
    found = opened(tmp_path / "rollout_6.pt")
    one, other = found.trajectories()
    assert (one["path"], one["reward"], one["tokens_out"], other["reward"]) == ("6/4/0", 1.0, 2, None)
    assert (one["policy_version_min"], one["policy_version_max"]) == (3, 5)
    assert found.rows("SELECT finish_reason FROM turns")[0]["finish_reason"] == "length"


def test_slime_samples_without_a_group_are_grouped_by_their_prompts(tmp_path, opened):
    """Samples of an evaluation have no ``group_index``."""
    samples = [SAMPLE, *(SAMPLE | {"group_index": None, "prompt": text} for text in ("1+1?", "2+2?", "1+1?"))]
    torch_file(tmp_path / "rollout_6.pt", {"rollout_id": 6, "samples": samples})
    paths = [row["path"] for row in opened(tmp_path / "rollout_6.pt").trajectories()]
    assert paths == ["6/1/0", "6/1/1", "6/2/0", "6/4/0"]


class _Code:
    def __reduce__(self):
        return print, ("ran",)


def test_a_pickle_that_runs_code_is_refused(tmp_path, opened, capsys):
    """Nothing of a pickle is called, in a zip or alone; the error names the file."""
    inside = torch_file(tmp_path / "rollout_1.pt", {"rollout_id": 1, "samples": [_Code()]})
    alone = tmp_path / "rollout_2.pt"
    alone.write_bytes(pickle.dumps(_Code()))
    for path in (inside, alone):
        with pytest.raises(ViewerError, match=path.name):
            opened(path)
    assert "ran" not in capsys.readouterr().out


def test_tinker_summaries_have_lengths_and_logged_texts(tmp_path, opened):
    """Lengths are token counts; calls and results are what the environment logged."""
    steps = [
        {
            "step_idx": 0, "ob_len": 40, "ac_len": 6, "reward": 0.0,
            "logs": {"assistant_content": "see", "tool_call_0": 'calc({"e": 1})', "tool_result_0": "1"},
        },
        {"step_idx": 1, "ob_len": 50, "ac_len": 9, "reward": 1.0, "metrics": {"stop/max_tokens": 1}},
    ]  # fmt: skip
    line = {
        "schema_version": 1, "split": "train", "iteration": 2, "group_idx": 0, "traj_idx": 1,
        "sampling_client_step": 2, "total_reward": 1.0, "final_reward": 0.0, "steps": steps,
    }  # fmt: skip
    write_lines(tmp_path / "iteration_000002/train_rollout_summaries.jsonl", [line])
    (one,) = opened(tmp_path).trajectories()
    assert (one["path"], one["reward"], one["turns"], one["tool_calls"]) == ("2/0/1", 1.0, 2, 1)
    assert (one["tokens_in"], one["tokens_out"], one["policy_version_max"]) == (90, 15, 2)


def test_a_tinker_summary_without_texts_has_no_empty_replies(tmp_path, monkeypatch):
    """What the environment did not log is unknown: one turn for each call, and health has no opinion."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    steps = [{"step_idx": number, "ob_len": 4, "ac_len": 6, "reward": 0.0, "logs": {}} for number in range(3)]
    line = {"schema_version": 1, "split": "train", "iteration": 2, "total_reward": 1.0, "steps": steps}
    lines = [line | {"group_idx": 0, "traj_idx": number} for number in range(4)]
    path = write_lines(tmp_path / "iteration_000002/train_rollout_summaries.jsonl", lines)
    shown = run("show", "2/0/1", "--from", path)
    assert shown.count("assistant") == 3
    assert "a context of its own" not in shown
    found = json.loads(run("health", "--from", path, "--json").partition("\n}\n")[0] + "}")
    assert {each["name"]: each["status"] for each in found["checks"]}["replies_empty"] == "unobserved"


def _parquet(path, rows):
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_art_rows_have_the_step_of_the_files_name(tmp_path, opened):
    """A group without trajectories is left out; tool calls are JSON text."""
    calls = '[{"id": "c1", "function": {"name": "calc", "arguments": "{}"}}]'
    talk = [
        {"role": "user", "content": "6*7?", "tool_calls": None},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    rows = [
        {"group_index": 0, "trajectory_index": 0, "reward": 1.0, "messages": talk, "trajectory_json": "{}"},
        {
            "group_index": 1,
            "trajectory_index": None,
            "reward": None,
            "messages": None,
            "trajectory_json": None,
        },
    ]
    _parquet(tmp_path / "models/m/trajectories/train/0012.parquet", rows)
    (one,) = opened(tmp_path).trajectories()
    assert (one["path"], one["reward"], one["turns"], one["tool_calls"]) == ("12/0/0", 1.0, 1, 1)


def test_trl_rows_that_recur_count_once_and_nan_is_no_reward(tmp_path, opened):
    """A file with the rows of the one before is left out, and NaN of a reward function is no reward."""
    talk = [{"role": "user", "content": "hi"}]
    rows = [
        {"step": "5", "prompt": talk, "completion": [{"role": "assistant", "content": str(n)}],
         "length": float(n), "right": math.nan if n == 1 else 1.0, "advantage": 0.5}
        for n in range(2)
    ]  # fmt: skip
    _parquet(tmp_path / "run/completions/completions_00005.parquet", rows)
    _parquet(tmp_path / "run/completions/completions_00006.parquet", [row | {"step": "6"} for row in rows])
    found = opened(tmp_path / "run")
    assert found.remarks[0] == "TRL completions: 2 files, step 5, 2 trajectories"
    assert [(row["path"], row["reward"]) for row in found.trajectories()] == [("5/0/0", 1.0), ("5/0/1", 1.0)]
    assert found.scores()["5/0/1"] == {"length": 1.0, "reward": 1.0, "advantage": 0.5}
    assert any("shown at its first" in remark for remark in found.remarks)


@pytest.fixture
def pocket(tmp_path, monkeypatch):
    """The module of a reader of another package, which is installed."""
    package = tmp_path / "site/pocket_reader-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: pocket-reader\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[otel_rollout.readers]\npocket = pocket_reader:FORMAT\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "pocket_reader", raising=False)
    write_lines(tmp_path / "run.jsonl", [{"q": "6*7?", "a": "42", "points": 3}])
    (tmp_path / "site/pocket_reader.py").write_text(POCKET)
    return tmp_path / "site/pocket_reader.py"


def test_a_reader_of_another_package_is_found_by_its_entry_point(tmp_path, opened, pocket):
    """A package adds a format by an entry point of the group otel_rollout.readers."""
    found = opened(tmp_path / "run.jsonl")
    assert found.remarks[0] == "pocket episodes: 1 file, no step, 1 trajectory"
    assert found.trajectories()[0]["reward"] == 3.0


def test_a_changed_reader_reads_an_unchanged_dump_again(tmp_path, opened, pocket):
    """No table is shown that an older version of a reader has made."""
    first = opened(tmp_path / "run.jsonl").table
    pocket.write_text(POCKET.replace('record["points"]', '2.0 * record["points"]'))
    del sys.modules["pocket_reader"]
    found = opened(tmp_path / "run.jsonl")
    assert found.table != first
    assert found.trajectories()[0]["reward"] == 6.0
    assert opened(tmp_path / "run.jsonl").table == found.table


POCKET = io.StringIO(
    """
from otel_rollout.look.dumps.formats import Format
from otel_rollout.look.dumps.trajectory import DumpedTrajectory, RolloutIdentity

def read(file):
    for line, record in file.records():
        said = [("user", record["q"]), ("assistant", record["a"])]
        messages = [{"role": role, "content": text} for role, text in said]
        yield DumpedTrajectory(line, RolloutIdentity(None, line), messages, {"reward": record["points"]})

FORMAT = Format("pocket episodes", lambda file: file.has("q", "a"), read)
"""
).getvalue()
