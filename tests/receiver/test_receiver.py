"""The receiver as a process: with real senders, kills, and the run's end."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import orjson

from otel_rollout.spool.receiver_files import is_receiving, read_counts
from tests.ports import free_port
from tests.receiver.conftest import Run
from tests.receiver.support import json_request, json_span, request, span
from tests.spool_reader import tree
from tests.waiting import wait_for
from tests.waits import changed

StartRun = Callable[..., Run]
SOON_SUCCEEDED = changed(receiver_start=1)
"""For a run whose killed receiver has a successor before long."""


def test_agent_with_opentelemetry_joins_its_trajectory_by_variables_alone(start_run: StartRun) -> None:
    """Two agents' spans lie below their trajectories, with the trajectories' identity, and are counted."""
    run = start_run(2, OTEL_RESOURCE_ATTRIBUTES="team=rl")
    for trajectory in (0, 1):
        run.run_agent("3", trajectory=trajectory)
    report = run.finish()
    assert "16 spans recorded; 16 delivered to spool, 0 pending; lost: 0" in report
    agent = {"agent": [{"turn": ["tool"]}] * 3}
    spans = run.recorded()
    for trajectory in (0, 1):
        trace_id = bytes.fromhex(run.children[trajectory]["TRACEPARENT"].split("-")[1])
        found = [span for span in spans if span.span.trace_id == trace_id]
        assert tree(found) == {"rollout_trace": [agent]}
        for each in found:
            assert each.attributes["rollout.step"] == 3
            assert each.attributes["rollout.sample_index"] == trajectory
            assert each.resource["rollout.run.id"] == found[0].resource["rollout.run.id"]
        received = next(each for each in found if each.name == "tool")
        assert received.resource["telemetry.sdk.language"] == "python"
        assert received.resource["team"] == "rl"
        assert [event.name for event in received.span.events] == ["called"]
    status = subprocess.run(
        [Path(sys.executable).with_name("otel-rollout"), "status", "--json", "--spool", run.spool],
        env=run.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    (found_status,) = json.loads(status.stdout)
    assert found_status["scopes"] == {"otel_rollout": 2, "an-agent": 14}
    assert found_status["receiver"][0]["recorded"] == 14


def test_json_is_received_from_any_client(start_run: StartRun) -> None:
    """A request that was written by hand is recorded; one without the token is not."""
    run = start_run()
    trace_id = run.children[0]["TRACEPARENT"].split("-")[1]
    content = orjson.dumps(json_request(json_span(1, traceId=trace_id)))
    assert run.post(content, "application/json").json() == {}
    with httpx.Client(trust_env=False) as client:
        url = f"{run.address.endpoint}/v1/traces"
        assert client.post(url, content=content).status_code == 401
    run.finish()
    (found,) = [found for found in run.recorded() if found.scope == "by hand"]
    assert found.attributes["rollout.sample_index"] == 0


def test_receiver_ends_with_the_run(start_run: StartRun) -> None:
    """No process of a run is left after its end."""
    run = start_run(**changed(receiver_linger=0))
    assert is_receiving(run.node_dir)
    run.finish()
    wait_for(lambda: not is_receiving(run.node_dir), what="the receiver's end")


def test_receiver_ends_after_the_run_was_killed(start_run: StartRun) -> None:
    """A run that dies takes its receiver along, after a grace for agents' last spans, which stay."""
    run = start_run(**changed(receiver_linger=3))
    run.process.kill()
    run.process.wait()
    assert run.post(request([span()])).status_code == 200
    wait_for(lambda: not is_receiving(run.node_dir), what="the receiver's end")
    wait_for(
        lambda: {"span 1", "rollout_trace"} <= {found.name for found in run.recorded()}, what="the spans"
    )


def test_spans_that_come_after_a_trajectorys_end_have_its_identity(start_run: StartRun) -> None:
    """Trajectories of milliseconds are known too, also by the receiver that follows a killed one."""
    run = start_run(60, program="short_trajectories.py", **SOON_SUCCEEDED)
    traces = [bytes.fromhex(child["TRACEPARENT"].split("-")[1]) for child in run.children]

    def post(first: int) -> int:
        spans = [span(first + number, trace_id=trace) for number, trace in enumerate(traces)]
        try:
            return run.post(request(spans)).status_code
        except httpx.TransportError:
            return 0

    assert post(1) == 200
    run.kill_receiver()
    wait_for(lambda: post(1000) == 200, what="the next receiver")
    run.finish()
    received = [found for found in run.recorded() if found.scope == "agent"]
    assert len(received) >= 2 * len(traces)
    for found in received:
        index = traces.index(found.span.trace_id)
        assert (found.attributes["rollout.step"], found.attributes["rollout.sample_index"]) == (3, index)


def test_span_that_is_sent_at_once_has_the_identity(start_run: StartRun) -> None:
    """A trajectory of milliseconds is known when its first span arrives, whatever was looked up before."""
    run = start_run(50, program="send_at_once.py")
    run.finish()
    found = {found.name: found.attributes for found in run.recorded() if found.scope == "by hand"}
    assert {name: attributes["rollout.sample_index"] for name, attributes in found.items()} == {
        f"span {index + 1}": index for index in range(50)
    }


def test_killed_receiver_comes_back_at_its_address_and_loses_nothing(start_run: StartRun) -> None:
    """Of 100,000 spans, each acknowledged one is in the spool after kills; repeated ones keep their ids."""
    run = start_run(**SOON_SUCCEEDED)
    address = run.address
    per_request, requests, senders = 500, 50, 4
    sent: list[int] = []
    failures: list[object] = []

    def send(sender: int) -> None:
        with httpx.Client(trust_env=False, timeout=30) as client:
            for number in range(requests):
                first = 1 + (sender * requests + number) * per_request
                content = request([span(n) for n in range(first, first + per_request)])
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    try:
                        headers = {
                            "authorization": f"Bearer {address.token}",
                            "content-type": "application/x-protobuf",
                        }
                        answer = client.post(
                            f"{address.endpoint}/v1/traces", content=content, headers=headers
                        )
                    except httpx.TransportError:
                        time.sleep(0.1)
                        continue
                    if answer.status_code == 200:
                        sent.extend(range(first, first + per_request))
                        break
                    if answer.status_code != 429:
                        failures.append(answer.text)
                        return
                    time.sleep(0.1)
                else:
                    failures.append("no answer")

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(senders)]
    for thread in threads:
        thread.start()
    pids = set()
    for share in (0.1, 0.4, 0.7):
        wait_for(
            lambda share=share: failures or len(sent) > share * 100_000 or not threads[0].is_alive(),
            what="spans",
        )
        pids.add(run.receiver_pid())
        run.kill_receiver()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(pids) == 3
    assert len(sent) == len(set(sent)) == 100_000
    assert run.address == address
    report = run.finish()
    assert "lost: 0" in report
    ids = [int.from_bytes(found.span.span_id, "big") for found in run.recorded() if found.scope == "agent"]
    assert set(ids) == set(sent)
    assert len(ids) < 1.2 * len(sent)


def test_counts_add_up_over_killed_receivers(start_run: StartRun) -> None:
    """What was acknowledged is counted, also if the receiver is killed right after its answer."""
    run = start_run(**SOON_SUCCEEDED)

    def is_taken(content: bytes) -> bool:
        with suppress(httpx.TransportError):
            return run.post(content).status_code == 200
        return False

    for number in range(1, 4):
        content = request([span(10 * number + index) for index in range(5)])
        wait_for(lambda content=content: is_taken(content), what="an answer")
        pid = run.receiver_pid()
        run.kill_receiver()
        wait_for(lambda pid=pid: run.receiver_pid() != pid, what="the next receiver")
    counts = read_counts(run.node_dir)
    assert counts is not None
    assert counts.recorded == 15


def test_span_without_a_parent_is_below_the_root_of_its_trajectory(start_run: StartRun) -> None:
    """A sender may know the trace id only."""
    run = start_run()
    trace_id, root_id = run.children[0]["TRACEPARENT"].split("-")[1:3]
    names = ("a", "llm_request")
    spans = [json_span(number, traceId=trace_id, name=name) for number, name in enumerate(names, 1)]
    content = orjson.dumps(json_request(*spans))
    assert run.post(content, "application/json").status_code == 200
    run.finish()
    found = run.recorded()
    assert tree(found) == {"rollout_trace": ["a", "llm_request"]}
    assert {each.span.parent_span_id.hex() for each in found if each.scope == "by hand"} == {root_id}


def test_second_receiver_on_a_port_says_which_variable_to_change(start_run: StartRun) -> None:
    """The second run records; its log names the variable and the port."""
    port = free_port()
    first = start_run(spool="first", OTEL_ROLLOUT_RECEIVE=f"127.0.0.1:{port}")
    assert first.address.port == port
    second = start_run(spool="second", OTEL_ROLLOUT_RECEIVE=f"127.0.0.1:{port}", **changed(port=0.1))
    assert set(second.children[0]) == {"TRACEPARENT"}
    wait_for(lambda: "nothing is received" in second.log.read_text(), what="the message")
    assert f"OTEL_ROLLOUT_RECEIVE: port {port} of 127.0.0.1 cannot be used" in second.log.read_text()
    assert "lost: 0" in second.finish()
    assert first.post(request([span()])).status_code == 200


def test_address_beyond_the_loopback_needs_a_token_of_the_user(start_run: StartRun) -> None:
    """Without a token nothing is received; with one, the run's files do not have it."""
    refused = start_run(spool="first", OTEL_ROLLOUT_RECEIVE="0.0.0.0:0")
    assert set(refused.children[0]) == {"TRACEPARENT"}
    wait_for(lambda: "set OTEL_ROLLOUT_RECEIVE_TOKEN" in refused.log.read_text(), what="the message")
    run = start_run(
        spool="second",
        OTEL_ROLLOUT_RECEIVE="0.0.0.0:0",
        OTEL_ROLLOUT_RECEIVE_TOKEN="of-the-user",
    )
    run.run_agent("1")
    run.finish()
    assert "agent" in [found.name for found in run.recorded()]
    assert not any(b"of-the-user" in path.read_bytes() for path in run.node_dir.iterdir() if path.is_file())


def test_token_is_private_and_in_no_log(start_run: StartRun) -> None:
    """Only this user can read the token; it is in one file."""
    run = start_run()
    token = run.address.token
    assert len(token) >= 32
    with httpx.Client(trust_env=False) as client:
        client.post(f"{run.address.endpoint}/v1/traces", headers={"authorization": f"Bearer {token}x"})
    wait_for(lambda: (counts := read_counts(run.node_dir)) and counts.refused_requests, what="the count")
    found = [
        path for path in run.node_dir.iterdir() if path.is_file() and token.encode() in path.read_bytes()
    ]
    assert [path.name for path in found] == ["receiver.json"]
    assert stat.S_IMODE(found[0].stat().st_mode) == 0o600
    assert token not in run.log.read_text()


def test_endpoint_of_the_user_wins(start_run: StartRun) -> None:
    """Where a Collector is named, agents send their spans there, and one line says so."""
    run = start_run(2, OTEL_EXPORTER_OTLP_ENDPOINT="http://collector.example:4318")
    assert [set(child) for child in run.children] == [{"TRACEPARENT"}] * 2
    assert run.log.read_text().count("OTEL_EXPORTER_OTLP_ENDPOINT is set") == 1


def test_child_that_records_itself_joins_the_run(start_run: StartRun) -> None:
    """The receiver's variables neither make it record a run of its own nor deliver to the receiver."""
    run = start_run()
    config = {"OTEL_ROLLOUT_CONFIG": _published_config(run)}
    command = [sys.executable, "-m", "tests.receiver.programs.own_child"]
    environ = {**run.agent_environment(), **config}
    child = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == str(run.node_dir)
    run.finish()
    names = [found.name for found in run.recorded()]
    assert names.count("of child") == 1


def _published_config(run: Run) -> str:
    with open(f"/proc/{run.receiver_pid()}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == b"OTEL_ROLLOUT_CONFIG":
                published = json.loads(value)
                named = ("run_id", "exporters", "spool_dir", "home_node", "target_variables")
                return json.dumps({key: published[key] for key in named if key in published})
    raise AssertionError("no configuration")


def test_redaction_of_the_program_is_applied(start_run: StartRun) -> None:
    """The receiver finds the function that the program's directory has."""
    run = start_run(program="hide_digits.py")
    attributes = [{"key": "text", "value": {"string_value": "number 4711"}}]
    content = request([span(attributes=attributes)], resource={"service.name": "agent 4711"})
    assert run.post(content).status_code == 200
    run.finish()
    (found,) = [found for found in run.recorded() if found.scope == "agent"]
    assert found.attributes["text"] == "number ####"
    assert found.resource["service.name"] == "agent ####"


def test_other_users_cannot_read_the_token(start_run: StartRun) -> None:
    """The directory is closed for others, too."""
    run = start_run()
    reader = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat"]
    found = subprocess.run([*reader, run.node_dir / "receiver.json"], capture_output=True, check=False)
    assert found.returncode != 0
    assert run.address.token.encode() not in found.stdout
