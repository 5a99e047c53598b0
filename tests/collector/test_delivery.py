"""Every span arrives through forwarder and Collectors, whatever fails."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.spool import layout
from tests.collector.support import get, run_python
from tests.spool_reader import read_directory
from tests.waiting import wait_for

TRAJECTORIES = "tests.collector.programs.scored_turns"


PROTOCOLS = [
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http"),
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, "http"),
    ({}, "http"),  # http/protobuf
    ({"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, "http"),
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, "grpc"),
]


def test_every_protocol_delivers_what_was_recorded(collector, environment, tmp_path):
    """Over each protocol, compressed or not, the Collector gets every span once."""
    running = collector("local.yaml", "to-file.yaml")
    environment.pop("OTEL_EXPORTER_OTLP_PROTOCOL")
    for number, (variables, kind) in enumerate(PROTOCOLS):
        spool = tmp_path / f"spool-{number}"
        port = running.http if kind == "http" else running.grpc
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        place = {"OTEL_ROLLOUT_SPOOL_DIR": str(spool)}
        run_python(TRAJECTORIES, environment | variables | endpoint | place, "--every-field")
        recorded = {span.span.span_id: span for span in read_directory(spool)}
        assert len(recorded) == 201
        arrived = {s.span.span_id: s for s in running.spans() if s.span.span_id in recorded}
        assert set(arrived) == set(recorded), variables
        for span_id, span in recorded.items():
            span.span.status.SetInParent()  # a Collector writes one where none was set
            # As bytes, in which NaN is equal to itself.
            assert arrived[span_id].span.SerializeToString() == span.span.SerializeToString(), span.name
            assert arrived[span_id].resource == span.resource
            assert arrived[span_id].scope == span.scope
    assert set(running.span_ids().values()) == {1}


def test_steps_are_counted_without_decoding_lines(collector, environment):
    """The account per step is right where lines are sent as they are."""
    running = collector("local.yaml", "to-file.yaml")
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = running.endpoint
    told = run_python(TRAJECTORIES, environment).splitlines()[-1]
    assert told == "[('0', False, 80), ('0', True, 20), ('1', False, 80), ('1', True, 20)]"


def test_all_arrives_though_collectors_go_down_and_are_killed(collector, environment, tmp_path):
    """All spans arrive if the agent is late, and agent and gateway are killed -9."""
    gateway = collector("gateway.yaml", "to-file.yaml")
    agent = collector("agent.yaml", GATEWAY_ENDPOINT=gateway.endpoint)
    agent.stop()
    gateway.stop()
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = agent.endpoint
    program = subprocess.Popen([sys.executable, "-m", TRAJECTORIES, "600"], env=environment)
    (node_dir,) = wait_for(lambda: layout.node_directories(tmp_path / "spool"), what="recording")
    wait_for(lambda: read_ledger(node_dir).failures, what="a failed delivery")
    agent.start()  # takes everything, and can hand on nothing
    assert program.wait(90) == 0  # the forwarder has delivered all of it
    assert gateway.span_ids() == Counter()
    agent.kill()
    agent.start()
    gateway.start()
    wait_for(lambda: len(gateway.span_ids()) >= 100, what="first spans")
    gateway.kill()  # in the middle of it
    gateway.start()
    recorded = {span.span.span_id for span in read_directory(tmp_path / "spool")}
    assert len(recorded) == 6000
    wait_for(lambda: set(gateway.span_ids()) >= recorded, 90, "the last span")


BIG_SPAN = "tests.collector.programs.big_span"


@pytest.mark.parametrize("protocol", ["http/json", "http/protobuf", "grpc"])
def test_a_span_of_20_mib_arrives_whole(collector, environment, protocol):
    """A span above the default limits of servers and batches passes both hops."""
    gateway = collector("gateway.yaml", "to-file.yaml")
    agent = collector("agent.yaml", GATEWAY_ENDPOINT=gateway.endpoint)
    port = agent.grpc if protocol == "grpc" else agent.http
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
    environment["OTEL_EXPORTER_OTLP_PROTOCOL"] = protocol
    run_python(BIG_SPAN, environment)
    wait_for(lambda: len(gateway.span_ids()) == 2, what="both spans")
    (turn,) = [span for span in gateway.spans() if span.name == "turn"]
    assert len(turn.input["text"]) == 20 << 20


def test_the_collector_answers_when_asked_whether_it_lives(collector):
    """The address a probe of Kubernetes' asks says so."""
    running = collector("local.yaml", "to-file.yaml")
    assert "Server available" in (get(f"http://127.0.0.1:{running.health}") or "")
