"""Engines' spans without a trace header join their model call before any exporter gets them."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_rollout.account.ledger import Ledger
from otel_rollout.account.ledger_reader import read_ledger
from otel_rollout.base import semconv
from otel_rollout.forwarder import engine_calls, engine_joins
from otel_rollout.forwarder.delivery import Delivery, DeliveryOptions
from otel_rollout.forwarder.engine_calls import RecordedCalls
from otel_rollout.forwarder.engine_joins import EngineJoins
from otel_rollout.forwarder.lines import LineCache
from otel_rollout.otlp import engine_requests
from otel_rollout.spool import layout
from otel_rollout.spool.recorded_lines import recorded_lines
from otel_rollout.viewer.spool_source import SpoolSource
from tests.engine_lines import (
    call_line,
    engine_lines,
    fields_of,
    new_node_directory,
    write_segment,
)
from tests.exporters import FileExporter
from tests.waiting import wait_for
from tests.waits import set_waits

NAMES = ["llm_request", "queue", "prefill", "decode"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide at once, and give up after two seconds."""
    set_waits(monkeypatch, engine_settle=0.0, engine_call=2.0)


class Joined:
    """The decisions about a node directory, made step by step in this thread."""

    def __init__(self, node_dir: Path) -> None:
        self.node_dir = node_dir
        self.ledger = Ledger(node_dir)
        self.joins = EngineJoins(node_dir, is_wanted=True)

    def look(self, is_over: bool = False) -> None:
        """Read and decide once, without a pause since the last time."""
        self.joins.is_over = is_over
        self.joins._next_decision = 0.0
        self.joins._look(self.ledger)

    def finish(self) -> None:
        """Decide everything, as at the end of a run."""
        for _ in range(3):
            self.look(is_over=True)

    def lines(self) -> list[dict[str, Any] | None]:
        """Return the lines as they are exported; None for undecided ones."""
        found: list[dict[str, Any] | None] = []
        for name in layout.segments(self.node_dir):
            for line, end in recorded_lines(self.node_dir / name.file, 0, 1 << 30):
                resolved = self.joins.resolve(name.stem, end, line, self.ledger)
                found.append(None if resolved is None else fields_of(resolved.line))
        return found

    def of_engines(self) -> list[dict[str, Any]]:
        """Return the decided lines of engines' spans and their phases."""
        return [line for line in self.lines() if line is not None and line["name"] in NAMES]

    @property
    def outcomes(self) -> dict[str, int]:
        """Return the counts in the ledger."""
        return read_ledger(self.node_dir).engine_requests


@contextmanager
def joined() -> Iterator[Joined]:
    """Yield the decisions about an empty node directory."""
    with tempfile.TemporaryDirectory() as folder:
        found = Joined(new_node_directory(Path(folder)))
        try:
            yield found
        finally:
            found.ledger.close()


PAIRS = st.integers(1, 4)


@given(st.data(), PAIRS)
def test_every_order_of_arrival_gives_the_same(data: st.DataObject, pairs: int) -> None:
    """Calls and requests come in any order, in parts, in several segments; each joins its own call."""
    blocks: list[list[bytes]] = []
    for number in range(1, pairs + 1):
        blocks += [[call_line(number, f"chatcmpl-{number}", trace=number)]]
        blocks += [engine_lines(100 + number, f"chatcmpl-{number}")]
    shuffled = data.draw(st.permutations(blocks))
    with joined() as found:
        for block in shuffled:
            writer = data.draw(st.integers(1, 3))
            cut = data.draw(st.integers(0, len(block)))
            for part in (block[:cut], block[cut:]):
                write_segment(found.node_dir, writer, part)
                if data.draw(st.booleans()):
                    found.look()
        found.finish()
        lines = found.of_engines()
        assert len(lines) == 4 * pairs
        by_trace: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            by_trace.setdefault(line["trace"], []).append(line)
        for number in range(1, pairs + 1):
            engine, *phases = by_trace[f"{number:032x}"]
            assert [engine["name"], *(phase["name"] for phase in phases)] == NAMES
            assert engine["parent"] == f"{number:016x}"
            assert {phase["parent"] for phase in phases} == {engine["id"]}
        assert found.outcomes == {engine_calls.JOINED: pairs}


def test_nested_calls_wait_for_the_innermost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outer call is read first: the request settles before it is joined."""
    with joined() as found:
        write_segment(found.node_dir, 1, engine_lines(9, "chatcmpl-1"))
        write_segment(found.node_dir, 2, [call_line(1, "chatcmpl-1", times=(0, 100))])
        found.look()
        found.look()
        assert found.of_engines() == []
        write_segment(found.node_dir, 3, [call_line(2, "chatcmpl-1", times=(5, 95), parent=1)])
        set_waits(monkeypatch, engine_settle=0.0)
        found.look()
        assert found.of_engines()[0]["parent"] == f"{2:016x}"


def test_several_requests_of_one_call_join_it(hasty: None) -> None:
    """A call with n > 1 has a request for each reply, with one id; several prompts have numbered ids."""
    with joined() as found:
        for number in range(3):
            write_segment(found.node_dir, 1, engine_lines(10 + number, "chatcmpl-1"))
            write_segment(found.node_dir, 1, engine_lines(20 + number, f"cmpl-2-{number}"))
        write_segment(found.node_dir, 2, [call_line(1, "chatcmpl-1"), call_line(2, "cmpl-2")])
        found.look()
        parents = Counter(line["parent"] for line in found.of_engines() if line["name"] == "llm_request")
        assert parents == {f"{1:016x}": 3, f"{2:016x}": 3}
        assert len({line["id"] for line in found.of_engines()}) == 24


def test_engines_that_are_seeded_alike_repeat_span_ids_harmlessly(hasty: None) -> None:
    """Two requests of one trajectory have equal trace and span ids; below their calls they differ."""
    with joined() as found:
        write_segment(found.node_dir, 1, engine_lines(9, "chatcmpl-1", (10, 40)))
        write_segment(found.node_dir, 1, engine_lines(9, "chatcmpl-2", (110, 140)))
        calls = [call_line(1, "chatcmpl-1", times=(0, 50)), call_line(2, "chatcmpl-2", times=(100, 150))]
        write_segment(found.node_dir, 2, calls)
        found.look()
        lines = found.of_engines()
        assert [line["parent"] for line in lines if line["name"] == "llm_request"] == [
            f"{1:016x}",
            f"{2:016x}",
        ]
        assert len({line["id"] for line in lines}) == 8
        for engine, *phases in (lines[:4], lines[4:]):
            assert {phase["parent"] for phase in phases} == {engine["id"]}


def test_reused_id_is_joined_by_time_or_counted_as_ambiguous(hasty: None) -> None:
    """One id for a session: calls one after another are told apart by time, calls at once are not."""
    with joined() as found:
        write_segment(found.node_dir, 1, engine_lines(9, "session", (110, 140)))
        write_segment(found.node_dir, 1, engine_lines(8, "twice"))
        by = semconv.GEN_AI_REQUEST_ID
        calls = [call_line(n, "session", n, (100 * n, 100 * n + 50), by) for n in range(3)]
        calls += [call_line(5, "twice", trace=5, by=by), call_line(6, "twice", trace=6, by=by)]
        write_segment(found.node_dir, 2, calls)
        found.look()
        first, second = (line for line in found.of_engines() if line["name"] == "llm_request")
        assert first["parent"] == f"{1:016x}"
        assert (second["parent"], second["id"]) == ("", f"{8:016x}")
        assert found.outcomes == {engine_calls.JOINED: 1, engine_calls.AMBIGUOUS: 1}


def test_request_without_call_waits_until_its_deadline(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is exported as recorded; a request whose call is of another time is counted apart."""
    with joined() as found:
        write_segment(found.node_dir, 1, engine_lines(9, "chatcmpl-1"))
        write_segment(found.node_dir, 1, engine_lines(8, "chatcmpl-2"))
        write_segment(found.node_dir, 2, [call_line(2, "chatcmpl-2", times=(2_000, 3_000))])
        found.look()
        found.look()
        assert found.of_engines() == []
        assert found.outcomes == {"waiting": 2}
        set_waits(monkeypatch, engine_call=0.0)
        found.look()
        assert [line["parent"] for line in found.of_engines()].count("") == 2
        assert found.outcomes == {engine_calls.NO_CALL: 1, engine_calls.OTHER_TIME: 1}


def test_clock_of_another_machine_is_allowed_for_at_the_deadline(hasty: None) -> None:
    """A request that reaches over its call by half a second joins it if no call holds it more closely."""
    with joined() as found:
        write_segment(found.node_dir, 1, engine_lines(9, "chatcmpl-1", (10, 90)))
        write_segment(found.node_dir, 2, [call_line(1, "chatcmpl-1", times=(500, 600))])
        found.look()
        assert found.of_engines() == []
        found.finish()
        assert found.of_engines()[0]["parent"] == f"{1:016x}"


def test_spans_with_a_header_wait_for_nothing(hasty: None) -> None:
    """They, and their phases, are exported as recorded as soon as they are read."""
    with joined() as found:
        recorded = engine_lines(9, "chatcmpl-1", trace=3, parent=4)
        write_segment(found.node_dir, 1, recorded)
        assert found.joins.resolve("s", 1, recorded[0], found.ledger) == (recorded[0], False)
        found.look()
        assert found.of_engines() == [fields_of(line) for line in recorded]
        assert found.outcomes == {}


def test_phases_in_the_next_segment_follow_their_span(hasty: None) -> None:
    """A segment may end between a span and its phases, and also before it is decided."""
    with joined() as found:
        engine, *phases = engine_lines(9, "chatcmpl-1")
        write_segment(found.node_dir, 1, [engine], sequence=1)
        write_segment(found.node_dir, 1, phases[:1], sequence=2)
        found.look()
        assert found.of_engines() == []
        write_segment(found.node_dir, 2, [call_line(1, "chatcmpl-1")])
        found.look()
        assert len(found.of_engines()) == 2
        write_segment(found.node_dir, 1, phases[1:], sequence=2)
        assert found.lines().count(None) == 2
        found.look()
        assert {line["trace"] for line in found.of_engines()} == {f"{1:032x}"}
        assert len(found.of_engines()) == 4


def test_another_forwarder_keeps_the_decisions(hasty: None) -> None:
    """It decides nothing anew, also if the calls are gone; late phases follow the decision."""
    with joined() as found:
        engine, *phases = engine_lines(9, "chatcmpl-1")
        write_segment(found.node_dir, 1, [engine, phases[0]])
        calls = write_segment(found.node_dir, 2, [call_line(1, "chatcmpl-1")])
        found.look()
        before = found.of_engines()
        (found.node_dir / calls.file).unlink()
        write_segment(found.node_dir, 1, phases[1:])
        found.joins = EngineJoins(found.node_dir, is_wanted=found.ledger.has_engine_lines())
        found.look()
        assert found.of_engines()[:2] == before
        assert {line["trace"] for line in found.of_engines()} == {f"{1:032x}"}
        assert found.outcomes == {engine_calls.JOINED: 1}


def test_decisions_about_removed_segments_are_forgotten(hasty: None) -> None:
    """The ledger does not grow with a run's requests."""
    with joined() as found:
        write_segment(found.node_dir, 1, engine_lines(9, "chatcmpl-1"))
        kept = write_segment(found.node_dir, 2, engine_lines(8, "chatcmpl-2"))
        write_segment(found.node_dir, 3, [call_line(1, "chatcmpl-1"), call_line(2, "chatcmpl-2")])
        found.look()
        assert len(found.of_engines()) == 8
        found.ledger.forget_engine_lines([kept.stem])
        assert len(found.of_engines()) == 7  # of the first, the phases are taken for those of a header
        query = "SELECT count(*) FROM engine_line"
        assert found.ledger._db.execute(query).fetchone() == (4,)


def test_flood_of_unjoinable_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests wait at once; the others do not wait for the deadline."""
    monkeypatch.setattr(engine_joins, "MAX_WAITING", 50)
    set_waits(monkeypatch, engine_settle=0.0)
    with joined() as found:
        for number in range(1, 501):
            write_segment(found.node_dir, 1, engine_lines(number, f"chatcmpl-{number}"))
        for _ in range(20):
            found.look()
            assert len(found.joins._waiting) <= 50
        assert found.outcomes == {engine_calls.NO_CALL: 450, "waiting": 50}
        assert len(found.of_engines()) == 1800


def test_remembered_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that were read first are forgotten first; one id has few calls."""
    monkeypatch.setattr(engine_calls, "MAX_CALLS", 10)
    calls = engine_calls.Calls()
    for number in range(100):
        calls.add(call_line(number + 1, f"chatcmpl-{number}"))
        calls.add(call_line(number + 1, "again"))
    assert len(calls._by_id) == 10
    assert len(calls._by_id["again"]) == 16


class TreeExporter(FileExporter):
    """Writes trace, id and parent of each span."""

    def export(self, spans: Any) -> Any:
        rows = [
            [
                f"{span.context.trace_id:032x}",
                f"{span.context.span_id:016x}",
                f"{span.parent.span_id:016x}" if span.parent else "",
                span.name,
                dict(span.attributes),
            ]
            for span in spans
        ]
        with open(self.path, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        return SpanExportResult.SUCCESS


def exported(path: Path) -> list[list[Any]]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half


@pytest.fixture
def deliveries(tmp_path: Path, hasty: None) -> Iterator[tuple[Path, list[Path]]]:
    """Start two deliveries beside the thread that joins; yield the node directory and the targets."""
    node_dir = new_node_directory(tmp_path / "spool")
    joins = EngineJoins(node_dir)
    joins.start()
    cache = LineCache(node_dir)
    targets = [tmp_path / "first", tmp_path / "second"]
    started = [
        Delivery(
            path.name, TreeExporter(str(path)), node_dir, lines=cache, options=DeliveryOptions(joins=joins)
        )
        for path in targets
    ]
    for delivery in started:
        delivery.start()
    yield node_dir, targets
    for delivery in started:
        delivery.stop(10)
    joins.stop(10)


def test_every_exporter_gets_the_same_tree(deliveries: tuple[Path, list[Path]]) -> None:
    """Both get each span once, the engine's below its call and the phases below the engine's."""
    node_dir, targets = deliveries
    for number in range(1, 21):
        write_segment(node_dir, 1, engine_lines(100 + number, f"chatcmpl-{number}"))
        write_segment(node_dir, 2, [call_line(number, f"chatcmpl-{number}", trace=number)])
    wait_for(lambda: all(len(exported(path)) == 100 for path in targets), what="delivery")
    first, second = (sorted(map(json.dumps, exported(path))) for path in targets)
    assert first == second
    spans = exported(targets[0])
    ids = {(trace, id_): name for trace, id_, _, name, _ in spans}
    assert len(ids) == 100
    for trace, _, parent, name, attributes in spans:
        above = {"chat": None, "llm_request": "chat"}.get(name, "llm_request")
        assert ids.get((trace, parent)) == above
        assert attributes[semconv.SAMPLE_INDEX] == int(trace, 16)


def test_flood_of_unjoinable_requests_stops_nobody_else(
    deliveries: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans of other processes arrive at once; those behind such a request arrive after its deadline."""
    set_waits(monkeypatch, engine_call=3600)
    node_dir, targets = deliveries
    lines = [line for number in range(1, 2_001) for line in engine_lines(number, f"chatcmpl-{number}")]
    write_segment(node_dir, 1, [*lines, call_line(1, "behind", trace=1)])
    write_segment(node_dir, 2, [call_line(number, "others", trace=number) for number in range(2, 102)])
    wait_for(lambda: all(len(exported(path)) == 100 for path in targets), what="the others")
    set_waits(monkeypatch, engine_call=0)
    wait_for(lambda: all(len(exported(path)) == 8101 for path in targets), 120, what="everything")
    assert read_ledger(node_dir).engine_requests == {engine_calls.NO_CALL: 2000}


@given(st.permutations(range(6)))
def test_files_are_read_as_the_forwarder_delivers_them(order: list[int]) -> None:
    """Offline readers join in files, in any order, what the forwarder joins."""
    blocks = [[call_line(n, f"chatcmpl-{n}", trace=n)] for n in (1, 2, 3)]
    blocks += [engine_lines(9, f"chatcmpl-{n}", (10 * n, 90)) for n in (1, 2, 4)]
    lines = list(itertools.chain.from_iterable(blocks[index] for index in order))
    offline = list(RecordedCalls(lambda: lines).joined(lines))
    with joined() as found:
        write_segment(found.node_dir, 1, lines)
        found.finish()
        assert found.lines() == [fields_of(line) for line in offline]
    assert sum(engine_requests.is_without_call(line) for line in offline) == 1


def test_files_without_engines_are_read_once() -> None:
    """A spool without such spans costs one look at its lines, and they stay as they are."""
    reads = []

    def lines() -> list[bytes]:
        reads.append(1)
        return [call_line(1, "chatcmpl-1")]

    assert list(RecordedCalls(lines).joined(lines())) == [call_line(1, "chatcmpl-1")]
    assert len(reads) == 2


def test_spools_of_two_machines_are_joined_when_they_are_read(tmp_path: Path) -> None:
    """The engine's spans lie in another node directory than the calls, and its clock differs by 0.3 s."""
    spool = tmp_path / "spool"
    node_dirs = [new_node_directory(spool, node) for node in ("engine", "client")]
    for node_dir in node_dirs:
        layout.write_manifest(node_dir, layout.Manifest("the-run", "p", ("spool",)))
    write_segment(node_dirs[0], 1, engine_lines(9, "chatcmpl-1", (310, 390)))
    write_segment(node_dirs[1], 1, [call_line(1, "chatcmpl-1")])
    found = SpoolSource(spool).spans(f"{1:032x}")
    assert sorted(span.name for span in found) == sorted(["chat", *NAMES])


def test_damaged_decision_leaves_the_line_as_recorded(hasty: None) -> None:
    """A ledger with other content in a row does not stop delivery."""
    with joined() as found:
        recorded = engine_lines(9, "chatcmpl-1")
        name = write_segment(found.node_dir, 1, recorded)
        for placement in ('["x"]', "x", '["1", "2", "x", "y"]'):
            with found.ledger._change():
                found.ledger._db.execute(
                    "INSERT OR REPLACE INTO engine_line VALUES (?, ?, ?)",
                    (name.stem, len(recorded[0]), placement),
                )
            resolved = found.joins.resolve(name.stem, len(recorded[0]), recorded[0], found.ledger)
            assert resolved == (recorded[0], False)


@pytest.mark.parametrize("leaves_out", [False, True])
def test_request_in_another_tracers_trace_joins_by_its_id(hasty: None, leaves_out: bool) -> None:
    """A gateway with its own trace has the id too; a request that no call here has made stays as it is."""
    with joined() as found:
        found.joins = EngineJoins(found.node_dir, is_wanted=True, leaves_out=leaves_out)
        of_gateway = call_line(5, "chatcmpl-1", trace=77, is_known=False, times=(5, 95))
        lines = engine_lines(9, "chatcmpl-1", trace=77, parent=5, is_known=False)
        of_another_machine = engine_lines(8, "chatcmpl-2", trace=78, parent=6, is_known=False)
        name = write_segment(found.node_dir, 1, [*lines, *of_another_machine])
        found.look()
        assert found.of_engines() == []
        write_segment(found.node_dir, 2, [of_gateway, call_line(1, "chatcmpl-1")])
        found.finish()
        engine, *phases = found.of_engines()[:4]
        assert (engine["trace"], engine["parent"]) == (f"{1:032x}", f"{1:016x}")
        assert {phase["parent"] for phase in phases} == {engine["id"]}
        assert found.of_engines()[4:] == [fields_of(line) for line in of_another_machine]
        assert found.outcomes == {engine_calls.JOINED: 1}
        ends = itertools.accumulate(map(len, [*lines, *of_another_machine]))
        for line, end in zip([*lines, *of_another_machine], ends, strict=True):
            resolved = found.joins.resolve(name.stem, end, line, found.ledger)
            assert resolved is not None
            assert not resolved.is_left_out


def test_request_in_another_tracers_trace_waits_briefly(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in its right place, so it holds up its sender less than a request that is nowhere."""
    set_waits(monkeypatch, engine_call=1000.0, engine_parent=0.0)
    with joined() as found:
        lines = engine_lines(9, "chatcmpl-1", trace=77, parent=5, is_known=False)
        write_segment(found.node_dir, 1, [*lines, *engine_lines(8, "chatcmpl-2")])
        found.look()
        assert found.of_engines() == [fields_of(line) for line in lines]
        assert found.outcomes == {"waiting": 1}


def test_requests_of_unrecorded_calls_are_sampled_out(hasty: None) -> None:
    """Where a part of the trajectories is recorded, a request without call is left out with its phases."""
    with joined() as found:
        found.joins = EngineJoins(found.node_dir, is_wanted=True, leaves_out=True)
        lines = [*engine_lines(8, "chatcmpl-1"), *engine_lines(9, "chatcmpl-2")]
        name = write_segment(found.node_dir, 1, lines)
        write_segment(found.node_dir, 2, [call_line(1, "chatcmpl-1")])
        found.finish()
        ends = itertools.accumulate(map(len, lines))
        resolved = [
            found.joins.resolve(name.stem, end, line, found.ledger)
            for line, end in zip(lines, ends, strict=True)
        ]
        assert [one is not None and one.is_left_out for one in resolved] == [False] * 4 + [True] * 4
