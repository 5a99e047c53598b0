"""agent-balanced.yaml: an agent in front of several gateways."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.collector.support import Collector, run_python
from tests.collector.test_delivery import BIG_SPAN, TRAJECTORIES
from tests.spool_reader import read_directory
from tests.waiting import wait_for

TWO_ADDRESSES = """
exporters:
  load_balancing:
    resolver: # no name here resolves to two ports
      dns: null
      static:
        hostnames: ["127.0.0.1:{}", "127.0.0.1:{}"]
"""


def test_each_trajectory_is_whole_on_one_of_several_gateways(collector, environment, tmp_path: Path):
    """An agent killed -9 delivers what it took while the gateways were down.

    That includes a span of 20 MiB.
    """
    gateways: list[Collector] = [collector("gateway.yaml", "to-file.yaml") for _ in range(2)]
    addresses = tmp_path / "two-addresses.yaml"
    addresses.write_text(TWO_ADDRESSES.format(*(gateway.grpc for gateway in gateways)))
    unused = {"GATEWAY_ENDPOINT": "http://127.0.0.1:1", "GATEWAY_HOSTNAME": "localhost"}
    agent = collector("agent.yaml", "agent-balanced.yaml", addresses, **unused)
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = agent.endpoint

    run_python(TRAJECTORIES, environment)
    wait_for(lambda: sum(len(gateway.traces()) for gateway in gateways) == 20, what="all 20")
    for gateway in gateways:
        gateway.stop()
    run_python(TRAJECTORIES, environment)
    run_python(BIG_SPAN, environment)
    wait_for(lambda: "Exporting failed" in agent.log.read_text(), what="an attempt to hand on")
    agent.kill()
    for gateway in gateways:
        gateway.start()
    agent.start()

    recorded: dict[bytes, set[bytes]] = defaultdict(set)
    for span in read_directory(tmp_path / "spool"):
        recorded[span.span.trace_id].add(span.span.span_id)
    assert len(recorded) == 41

    def whole() -> tuple[dict[bytes, set[bytes]], ...] | None:
        parts = tuple(gateway.traces() for gateway in gateways)
        return parts if sum(len(ids) for part in parts for ids in part.values()) == 402 else None

    first, second = wait_for(whole, what="every span of all trajectories")
    assert first | second == recorded
    assert not set(first) & set(second), "a trajectory on two gateways"
    assert all((first, second)), "shared between them"
