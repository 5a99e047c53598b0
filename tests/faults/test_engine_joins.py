"""Kill forwarders that join engines' spans: every target gets the same tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.forwarder import engine_calls
from tests.delta.reading import rows_in
from tests.engine_lines import call_line, engine_lines, new_node_directory, write_segment
from tests.faults.forwarding import forward
from tests.faults.inside import DEATHS, DEATHS_COMMITTING, DEATHS_JOINING
from tests.faults.target import Receiver

Span = tuple[str, str, str, str]
"""Trace id, span id, parent's id and name."""


class KeepingReceiver(Receiver):
    """Keeps the spans that it receives."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        super().__init__()

    def take(self, body: bytes, credential: str) -> int:
        """Take a request and return the status of the answer."""
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    self.spans.append((*ids, span.name))
        return super().take(body, credential)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a receiver that keeps spans."""
    receiver = KeepingReceiver()
    yield receiver
    receiver.close()


def test_forwarder_killed_while_it_joins_gives_every_target_the_same_tree(
    variables: dict[str, str], receiver: KeepingReceiver, tmp_path: Path
) -> None:
    """SIGKILL comes around the decision, the requests, and the commits of a table.

    Lost: nothing. Doubled: at most batches that were answered without a cursor, with the same ids.
    """
    table = tmp_path / "rollouts"
    variables |= {
        "OTEL_TRACES_EXPORTER": "otlp,delta",
        "OTEL_ROLLOUT_DELTA_URI": str(table),
        "OTEL_TEST_BATCH": "40",
    }
    node_dir = new_node_directory(tmp_path / "spool")
    count = 30
    for number in range(1, count + 1):
        # Every tenth request has no call.
        id_ = f"chatcmpl-{number}" if number % 10 else f"chatcmpl-unknown-{number}"
        write_segment(node_dir, 1, engine_lines(100 + number, id_))
        write_segment(node_dir, 2, [call_line(number, f"chatcmpl-{number}", trace=number)])
    deaths = [*DEATHS_JOINING, *DEATHS[:4], *DEATHS_COMMITTING[:8]]
    report = forward(variables, node_dir, deaths)
    assert (report.recorded, report.lost) == (0, 0)  # the segments were written without a journal
    assert all(number.delivered == 5 * count for number in report.exporters.values())
    assert read_ledger(node_dir).engine_requests == {engine_calls.JOINED: 27, engine_calls.NO_CALL: 3}
    rows = rows_in(table, ("trace_id", "span_id", "parent_span_id", "name"))
    in_table = [(row["trace_id"], row["span_id"], row["parent_span_id"] or "", row["name"]) for row in rows]
    assert set(receiver.spans) == set(in_table)
    assert len(set(in_table)) == len(in_table) == 5 * count
    ids = {(trace, span): name for trace, span, _, name in in_table}
    above = [(name, ids.get((trace, parent))) for trace, _, parent, name in in_table]
    assert above.count(("llm_request", "chat")) == 27
    assert above.count(("llm_request", None)) == 3
    for phase in ("queue", "prefill", "decode"):
        assert above.count((phase, "llm_request")) == count
