"""agent-tail.yaml: a Collector reads the spool, and nobody sends it anything.

Its receiver is contrib's where an ``otelcol-contrib`` is installed, else the one in ``otlpjsonfile/``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.collector.support import CONFIGURATIONS, Collector, run_python
from tests.collector.test_weave import TRAJECTORIES
from tests.otlp.recorded_foreign import path_of
from tests.spool_reader import read_directory, segment_lines, segments_below, tree
from tests.waiting import wait_for

LONG = "tests.collector.programs.long_trajectory"


@pytest.fixture
def gateway(collector: Callable[..., Collector]) -> Collector:
    """Where the agent hands on to: it writes spans into a file."""
    return collector("gateway.yaml", "to-file.yaml")


@pytest.fixture
def new_agent(
    collector: Callable[..., Collector], tailing_binary: Path, gateway: Collector, environment: dict[str, str]
) -> Callable[..., Collector]:
    """Return a function that starts a Collector which reads the programs' spool."""
    environment["OTEL_TRACES_EXPORTER"] = "spool"
    return partial(
        collector,
        *("agent.yaml", "agent-tail.yaml"),
        program=tailing_binary,
        GATEWAY_ENDPOINT=gateway.endpoint,
        OTEL_ROLLOUT_SPOOL_DIR=environment["OTEL_ROLLOUT_SPOOL_DIR"],
    )


@pytest.fixture
def agent(new_agent: Callable[..., Collector]) -> Collector:
    """One that has started."""
    return new_agent()


def recorded_ids(spool: Path) -> set[bytes]:
    """The ids of all spans on disk."""
    return {span.span.span_id for span in read_directory(spool)}


def test_a_collector_takes_it_and_warns_of_nothing(tailing_binary, tmp_path):
    """`validate` passes, without a word."""
    command = [str(tailing_binary), "validate"]
    for name in ("base", "agent", "agent-tail"):
        command += ["--config", str(CONFIGURATIONS / f"{name}.yaml")]
    places = {"COLLECTOR_STORAGE": str(tmp_path), "OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "spool")}
    environment = {**os.environ, **places, "GATEWAY_ENDPOINT": "http://127.0.0.1:1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_trajectories_arrive_out_of_the_spool(agent, gateway, environment, tmp_path):
    """Every trajectory of three processes is one whole tree, as it was recorded."""
    command = [sys.executable, "-m", TRAJECTORIES]
    programs = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [program.wait(60) for program in programs] == [0, 0, 0]
    recorded = {span.span.span_id: span for span in read_directory(tmp_path / "spool")}
    wait_for(lambda: set(gateway.span_ids()) >= set(recorded), what="every span")
    assert gateway.span_ids() == Counter(recorded.keys())
    arrived, before = defaultdict(list), defaultdict(list)
    for span in gateway.spans():
        assert span.attributes == recorded[span.span.span_id].attributes
        assert span.resource == recorded[span.span.span_id].resource
        arrived[span.span.trace_id].append(span)
    for span in recorded.values():
        before[span.span.trace_id].append(span)
    assert len(arrived) == 3 * 24
    assert {id_: tree(spans) for id_, spans in arrived.items()} == {
        id_: tree(spans) for id_, spans in before.items()
    }


def test_model_calls_of_other_libraries_are_counted_as_ours(agent, gateway, environment, tmp_path):
    """Foreign lines arrive with kind, model and tokens by our names as well."""
    directory = tmp_path / "spool" / "run-1" / "node"
    directory.mkdir(parents=True)
    libraries = ("openinference_openai", "openllmetry_openai_older", "pydantic_ai_native")
    for number, library in enumerate(libraries, start=11):
        lines = path_of(library).read_bytes().replace(b"0" * 31 + b"2", b"%032x" % number)
        segment = f"{number}-0000000000000001.000001"
        lines = lines.replace(b"1-0000000000000001.000001", segment.encode())
        (directory / f"{segment}.jsonl").write_bytes(lines)
    recorded = {(span.span.trace_id, span.span.span_id): span for span in read_directory(tmp_path / "spool")}
    wait_for(lambda: len(gateway.spans()) >= len(recorded), what="every span")
    calls = 0
    for span in gateway.spans():
        before = recorded[span.span.trace_id, span.span.span_id].attributes
        assert before.items() <= span.attributes.items()
        if (
            span.attributes.get("openinference.span.kind") == "LLM"
            and "gen_ai.usage.output_tokens" in span.attributes
        ):
            tokens = (
                span.attributes["gen_ai.usage.input_tokens"],
                span.attributes["gen_ai.usage.output_tokens"],
            )
            assert tokens == (120, 24)
            assert span.attributes["gen_ai.operation.name"] == "chat"
            assert span.attributes["gen_ai.request.model"] in ("local", "local-1")
            calls += 1
    assert calls == 5 + 3 + 4


def test_rotated_segments_and_a_span_of_5_mib_are_read_exactly(agent, gateway, environment, tmp_path):
    """All spans arrive once, despite rotation, a long line and a restarted Collector."""
    program = subprocess.Popen([sys.executable, "-m", LONG], env=environment)
    wait_for(lambda: len(gateway.span_ids()) > 100, what="first spans")
    agent.stop()
    before = len(segments_below(tmp_path / "spool"))
    wait_for(
        lambda: len(segments_below(tmp_path / "spool")) > before or program.poll() == 0, what="a segment"
    )
    agent.start()
    assert program.wait(60) == 0
    assert len(segments_below(tmp_path / "spool")) >= 3
    recorded = recorded_ids(tmp_path / "spool")
    assert len(recorded) == 3002
    wait_for(lambda: set(gateway.span_ids()) >= recorded, what="every span")
    assert gateway.span_ids() == Counter(recorded)
    assert max(len(span.attributes.get("input.value", "")) for span in gateway.spans()) > 5 << 20


def test_a_killed_collector_reads_on_where_it_had_noted_to_be(agent, gateway, environment, tmp_path):
    """Killed -9 amid recording and over the backlog: all spans arrive.

    What it had not noted may be twice.
    """
    program = subprocess.Popen([sys.executable, "-m", LONG], env=environment)
    wait_for(lambda: len(gateway.span_ids()) > 200, what="first spans")
    agent.kill()
    assert program.poll() is None
    assert program.wait(60) == 0
    agent.start()
    agent.kill()
    agent.start()
    recorded = recorded_ids(tmp_path / "spool")
    assert len(recorded) == 3002
    wait_for(lambda: set(gateway.span_ids()) >= recorded, what="every span")
    assert set(gateway.span_ids()) == recorded
    print(f"{gateway.span_ids().total() - 3002} of 3002 spans came twice")


def test_half_a_line_waits_for_its_other_half(agent, gateway, environment, tmp_path):
    """A line that is written slowly is read when it is whole."""
    elsewhere = {"OTEL_ROLLOUT_SPOOL_DIR": str(tmp_path / "elsewhere")}
    run_python(TRAJECTORIES, environment | elsewhere)
    (source,) = segments_below(tmp_path / "elsewhere")
    first, second, *others = segment_lines(source)
    segment = tmp_path / "spool" / source.relative_to(tmp_path / "elsewhere")
    segment.parent.mkdir(parents=True)
    other = segment.with_name(segment.name.replace(".000001.", ".000002."))
    with segment.open("wb", buffering=0) as out, other.open("wb", buffering=0) as beside:
        out.write(first + b"\n" + second[:300])
        wait_for(lambda: len(gateway.span_ids()) == 1, what="the whole line")
        for number in range(2, 7):  # five looks, each after 0.2 s; unless told otherwise, it waits for 0.5 s
            beside.write(others[number] + b"\n")
            wait_for(lambda number=number: len(gateway.span_ids()) == number, what="a line beside")
        out.write(second[300:] + b"\n")
    wait_for(lambda: len(gateway.span_ids()) == 7, 20, "the line of two halves")


def test_a_collector_short_of_memory_loses_no_line(new_agent, gateway, environment, tmp_path):
    """Senders are told to wait.

    A reader would not, but go on behind the line: it is not refused any.
    """
    agent = new_agent(COLLECTOR_MEMORY_MIB="129")  # senders are refused from 1 MiB on: always
    wait_for(lambda: "Refusing data" in agent.log.read_text(), what="a refusing Collector")
    run_python(TRAJECTORIES, environment)
    recorded = recorded_ids(tmp_path / "spool")
    wait_for(lambda: set(gateway.span_ids()) >= recorded, 20, "every span")
