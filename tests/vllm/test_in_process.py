"""vLLM in the process of the rollout: what was recorded, against what the engine said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spool_reader import Recorded, tree
from tests.vllm import running

PHASES = ["queue", "prefill", "decode"]
TIMES = {
    "gen_ai.latency.time_in_queue": ("queued_ts", "scheduled_ts"),
    "gen_ai.latency.time_in_model_prefill": ("scheduled_ts", "first_token_ts"),
    "gen_ai.latency.time_in_model_decode": ("first_token_ts", "last_token_ts"),
    "gen_ai.latency.time_in_model_inference": ("scheduled_ts", "last_token_ts"),
}
"""Attribute → fields of ``RequestOutput.metrics`` between which it lies."""


class Run:
    """What the program recorded, and its own accounts with and without tracing."""

    def __init__(self, place: Path, model: Path) -> None:
        accounts = []
        for traced in (False, True):
            account = place / f"account-{traced}.json"
            running.run(
                "in_process",
                str(model),
                str(account),
                place=place / f"traced-{traced}",
                traced=traced,
                VLLM_ENABLE_V1_MULTIPROCESSING="0",
            )
            accounts.append(json.loads(account.read_text()))
        self.untraced, self.account = accounts
        self.untraced_spool = place / "traced-False" / "spool"
        self.trees = running.trees(place / "traced-True")

    def requests(self, name: str) -> list[Recorded]:
        """Return the spans of the requests of a trajectory, by id."""
        found = running.named(self.trees[name], "llm_request")
        return sorted(found, key=lambda span: int(span.attributes["gen_ai.request.id"]))


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the program twice, which takes a minute or two."""
    place = tmp_path_factory.mktemp("vllm")
    return Run(place, tiny_model)


@pytest.mark.parametrize("case", ["greedy", "sampled", "preempted"])
def test_each_request_of_a_batch_is_below_the_call_with_its_phases(run: Run, case: str) -> None:
    """The model call of a batch has a span per request, with queue, prefill and decode below it."""
    count = len(run.account[case])
    spans = [{"llm_request": PHASES}] * count
    assert tree(run.trees[case]) == {case: [{"of_llm.<locals>.generate": spans}]}


@pytest.mark.parametrize("case", ["greedy", "sampled", "preempted", "chat"])
def test_times_and_counts_are_those_of_the_engine(run: Run, case: str) -> None:
    """The attributes are the differences of the engine's own points in time, and the phases are as long."""
    spans = run.trees[case]
    for request, said in zip(run.requests(case), run.account[case], strict=True):
        found = request.attributes
        assert found["gen_ai.request.id"] == said["id"]
        assert found["gen_ai.usage.prompt_tokens"] == len(said["prompt"])
        assert found["gen_ai.usage.completion_tokens"] == len(said["tokens"][0])
        for name, (start, end) in TIMES.items():
            assert found[name] == pytest.approx(said["metrics"][end] - said["metrics"][start])
        assert found["gen_ai.latency.time_to_first_token"] == said["metrics"]["first_token_latency"]
        assert request.span.start_time_unix_nano == pytest.approx(
            said["metrics"]["arrival_time"] * 1e9, abs=1e3
        )
        for phase in running.below(spans, request):
            assert phase.attributes["rollout.engine.phase"] == phase.name
        lengths = {
            phase.name: (phase.span.end_time_unix_nano - phase.span.start_time_unix_nano) / 1e9
            for phase in running.below(spans, request)
        }
        expected = [found[name] for name in list(TIMES)[:3]]
        assert [lengths[name] for name in PHASES] == pytest.approx(expected, abs=1e-6)


def test_preempted_requests_say_so(run: Run) -> None:
    """A small cache preempts some requests; each span has the engine's number."""
    said = [request["metrics"]["num_preemptions"] for request in run.account["preempted"]]
    assert any(said)
    spans = run.requests("preempted")
    assert [span.attributes.get("rollout.num_preempted", 0) for span in spans] == said


def test_each_answer_of_several_is_a_request(run: Run) -> None:
    """With n=3 the engine makes three requests of one id, as its own spans say."""
    (said,) = run.account["several"]
    requests = run.requests("several")
    assert [span.attributes["gen_ai.request.id"] for span in requests] == [said["id"]] * 3
    assert [span.attributes["gen_ai.usage.completion_tokens"] for span in requests] == [6] * 3


def test_chat_without_operation_is_below_the_root(run: Run) -> None:
    """A call that no operation surrounds belongs to the trajectory itself."""
    assert tree(run.trees["chat"]) == {"chat": [{"llm_request": PHASES}]}


def test_batch_of_open_trajectories_is_not_recorded(run: Run) -> None:
    """While no trajectory is current, no request is attached to any; each row has its root alone."""
    assert run.account["batched"]
    assert run.account["outside"]
    assert [len(run.trees[f"batched {row}"]) for row in (0, 1)] == [1, 1]
    ids = {said["id"] for case in ("batched", "outside") for said in run.account[case]}
    everywhere = [span for spans in run.trees.values() for span in running.named(spans, "llm_request")]
    assert not ids & {span.attributes["gen_ai.request.id"] for span in everywhere}


def test_requests_of_one_engine_belong_to_the_trajectories_that_added_them(run: Run) -> None:
    """``LLMEngine.step`` is called outside, and advances both."""
    for name, request_id in (("first", "1000"), ("second", "1001")):
        assert tree(run.trees[name]) == {name: [{"llm_request": PHASES}]}
        assert run.requests(name)[0].attributes["gen_ai.request.id"] == request_id


def test_aborted_request_is_an_error_with_what_is_known(run: Run) -> None:
    """Its tokens and times until then are recorded."""
    (request,) = run.requests("aborted")
    assert request.span.status.code == 2
    assert request.attributes["error.type"] == "aborted"
    assert 0 < request.attributes["gen_ai.usage.completion_tokens"] < 120
    assert [span.name for span in running.below(run.trees["aborted"], request)] == PHASES


def test_request_without_statistics_has_no_phases(run: Run) -> None:
    """With disable_log_stats=True the engine knows no times; start, end, id and tokens remain."""
    (said,) = run.account["without statistics"]
    assert said["metrics"] is None
    assert tree(run.trees["without statistics"]) == {"without statistics": ["llm_request"]}
    (request,) = run.requests("without statistics")
    assert request.attributes["gen_ai.request.id"] == said["id"]
    assert request.attributes["gen_ai.usage.completion_tokens"] == 8
    assert {name for name in request.attributes if "latency" in name} == {"gen_ai.latency.e2e"}
    assert request.span.end_time_unix_nano > request.span.start_time_unix_nano


def test_request_of_an_engine_that_dies_is_an_error(run: Run) -> None:
    """The caller gets the core's exception, and the span has it too."""
    assert run.account["failing"] == run.untraced["failing"] == "RuntimeError('the core has died')"
    (request,) = run.requests("failing")
    assert request.span.status.code == 2
    assert request.span.status.message == "RuntimeError: the core has died"


def test_engine_generates_the_same_without_tracing(run: Run) -> None:
    """Tokens of all cases, sampled ones too, and the global random state are equal in both processes."""

    def tokens(account: dict[str, Any]) -> dict[str, Any]:
        return {
            case: [request["tokens"] for request in outputs]
            for case, outputs in account.items()
            if case not in ("failing", "random", "modules")
        }

    assert tokens(run.account) == tokens(run.untraced)
    assert run.account["random"] == run.untraced["random"]


def test_untraced_process_imports_no_integration(run: Run) -> None:
    """Without a variable, neither the integration is imported nor anything recorded."""
    assert "otel_rollout.integrations.vllm" in run.account["modules"]
    assert "otel_rollout.integrations.vllm" not in run.untraced["modules"]
    assert not run.untraced_spool.exists()
