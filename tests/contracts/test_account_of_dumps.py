"""Dumps of frameworks give the figures of the account, for generated trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from tests.contracts import asked
from tests.contracts.account import Recording, Trajectory, by_key
from tests.contracts.figures_told import of_group, of_report
from tests.contracts.lists_told import of_groups, of_list, of_rows, of_runs, of_steps
from tests.contracts.made_spans import Identity, Made, Value
from tests.dumps.reading import write_lines
from tests.dumps.test_readers import torch_file

_TOOL = "calc"
_REWARDS: Sequence[Value | None] = (None, 0.0, 0.25, 1.0, 1.0, -2.0, float("nan"), float("inf"), True)


class _Dump:
    """Trajectories of a run, as a framework wrote them; its spans have no times."""

    def __init__(self, path: Path, of: Sequence[Trajectory]) -> None:
        known = {row["path"]: row for row in asked.rows(path, "list")}
        self.trajectories = self.of_run = [
            replace(one, trace_id=known[one.path]["trace_id"], run=known[one.path]["run_id"]) for one in of
        ]
        self.run = self.trajectories[0].run

    def groups(self) -> dict[Any, list[Trajectory]]:
        """Return the trajectories of each group."""
        return by_key((one.group, one) for one in self.trajectories)

    def steps(self) -> dict[Any, list[Trajectory]]:
        """Return the trajectories of each step."""
        return by_key((one.step, one) for one in self.trajectories)


def _made(identity: Identity, given: Value | None, tools: Sequence[bool], tokens: Any, failed: bool) -> Any:
    """Return a trajectory of a model call for each entry of ``tools``: whether a tool runs after it."""
    names = dict.fromkeys(("trace_id", "run", "project", "error"), "")
    spans = tuple(Made(0, number, None, "TOOL", 0, 0, None, _TOOL) for number in range(sum(tools)))
    return Trajectory(
        **names, identity=identity, state="error" if failed else "ok", begin=0, end=None, turns=len(tools),
        tool_calls=sum(tools), tool_errors=None if any(tools) else 0, tokens=tokens,
        given=given, ranks=(), spans=spans,
    )  # fmt: skip


def _verifiers(random: Random, identity: Identity) -> tuple[Trajectory, dict[str, Any]]:
    tools, failed = _tools(random), random.random() < 0.2
    given = random.choice(_REWARDS)
    nodes: list[dict[str, Any]] = [{"message": {"role": "user", "content": "?"}, "sampled": False}]
    calls: list[dict[str, Any]] = []
    for number, has_tool in enumerate(tools):
        asked_for = [{"id": f"c{number}", "name": _TOOL, "arguments": "{}"}] if has_tool else []
        message = {"role": "assistant", "content": f"{number}", "tool_calls": asked_for}
        nodes.append({"parent": len(nodes) - 1, "sampled": True, "message": message})
        usage = {"prompt_tokens": random.randint(0, 9), "completion_tokens": random.randint(0, 9)}
        calls.append({"node": len(nodes) - 1, **({"usage": usage} if random.random() < 0.7 else {})})
        result = {"role": "tool" if has_tool else "user", "content": "1", "tool_call_id": f"c{number}"}
        nodes.append({"parent": len(nodes) - 1, "sampled": False, "message": result})
    counts = [
        [call["usage"][name] for call in calls if "usage" in call]
        for name in ("prompt_tokens", "completion_tokens")
    ]
    trace = {
        "nodes": nodes,
        "calls": calls,
        "rewards": {} if given is None else {"correct": {"score": given, "weight": 1.0}},
        "errors": [{"type": "Boot", "message": "late"}] if failed else [],
    }
    work = {"step": identity.step, "type": "eval" if identity.validate else "train"}
    data = {"data": {"idx": identity.sample}}
    tokens = tuple(sum(numbers) if numbers else None for numbers in counts)
    one = _made(identity, None if given is None else float(given), tools, tokens, failed)
    return one, {"id": "e", "env": {}, "task": data, "run": {"work": work}, "traces": [trace]}


def _gym(random: Random, identity: Identity) -> tuple[Trajectory, dict[str, Any]]:
    tools, failed = _tools(random), random.random() < 0.2
    given = None if failed else random.choice(_REWARDS)
    output: list[dict[str, Any]] = []
    for number, has_tool in enumerate(tools):
        output.append({"type": "message", "content": f"{number}"})
        between = {"type": "message", "role": "user", "content": "go on"}
        call = {"type": "function_call", "name": _TOOL, "arguments": "{}", "call_id": f"c{number}"}
        result = {"type": "function_call_output", "call_id": f"c{number}", "output": "1"}
        output += [call, result] if has_tool else [between]
    usage = {"input_tokens": 9, "output_tokens": 3}
    line = {"responses_create_params": {"input": "?"}, "reward": given}
    line |= {"_ng_task_index": identity.sample, "_ng_rollout_index": identity.rollout}
    if failed:
        return _made(identity, None, (), (None, None), True), {**line, "_ng_failure_class": "timeout"}
    tokens = (9, 3) if len(tools) == 1 else (None, None)  # the counts are those of all calls together
    return _made(identity, given, tools, tokens, False), {
        **line, "response": {"output": output, "usage": usage}
    }  # fmt: skip


def _slime(random: Random, identity: Identity) -> tuple[Trajectory, dict[str, Any]]:
    tools, failed = _tools(random), random.random() < 0.2
    given = random.choice(_REWARDS)
    call = f'<tool_call>\n{{"name": "{_TOOL}", "arguments": {{}}}}\n</tool_call>'
    result = "\nuser\n<tool_response>\n1\n</tool_response>\nassistant\n"
    calls = [True] * (len(tools) - 1) + [False]  # one text: without a tool between them, replies are one
    response = "".join(f"So.\n{call}{result}" if has_tool else "Done." for has_tool in calls)
    sample = {"group_index": identity.sample, "prompt": "?", "response": response, "response_length": 7}
    sample |= {"reward": given, "status": "aborted" if failed else "completed"}
    tokens = (None, 7 if len(calls) == 1 else None)
    return _made(identity, given, calls, tokens, failed), sample


def _tools(random: Random) -> list[bool]:
    return [random.random() < 0.5 for _ in range(random.randint(1, 4))]


def _written(path: Path, format_: str, records: Sequence[tuple[Identity, dict[str, Any]]]) -> Path:
    """Write the records of a format to its files."""
    if format_ == "slime":
        for step in {identity.step for identity, _ in records}:
            samples = [record for identity, record in records if identity.step == step]
            torch_file(path / f"rollout_{step}.pt", {"rollout_id": step, "samples": samples})
        return path
    name = "rollouts.jsonl" if format_ == "gym" else "traces.jsonl"
    return write_lines(path / name, [record for _, record in records])


_FORMATS: dict[str, Callable[..., tuple[Trajectory, dict[str, Any]]]] = {
    "verifiers": _verifiers, "gym": _gym, "slime": _slime,
}  # fmt: skip
_WAYS = (of_list, of_groups, of_steps, of_runs, of_group, of_report)


@pytest.mark.parametrize("format_", _FORMATS)
@pytest.mark.parametrize("seed", [1, 2])
def test_dumps_give_the_figures_of_the_account(
    format_: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, groups, steps, the run, a group and the report count what the file says of each trajectory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    random = Random(seed)
    made, records = [], []
    for step in (None,) if format_ == "gym" else (1, 2):
        for sample in (3, 4):
            is_validation = format_ == "verifiers" and sample == 4
            for rollout in range(random.randint(1, 4)):
                identity = Identity(step, sample, rollout, is_validation)
                one, record = _FORMATS[format_](random, identity)
                made.append(one)
                records.append((identity, record))
    (folder := tmp_path / "run").mkdir()
    path = _written(folder, format_, records)
    recording = cast("Recording", _Dump(path, made))
    told = [each for way in _WAYS for each in way(path, recording)]
    told += of_rows("show", asked.printed(path, "show", "--run", recording.run), recording.of_run)
    assert [str(each) for each in told] == []
