"""Facts of trajectories, from each source, against an account in plain Python.

The account knows the rules of docs/table.md alone. Traces are generated: calls inside calls, tools, rewards,
and spans that outlive their trajectory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rollout.look.conversation.summary import Summary
from otel_rollout.look.sources.mlflow_source import MlflowSource
from otel_rollout.look.sources.private_table import Source, asked_as_table, table_of
from otel_rollout.look.sources.reference import parse
from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout.look.sources.table_source import TableSource
from otel_rollout.otlp.outcome import CallTokens, TrajectoryOutcome
from otel_rollout.table.location import location_of
from otel_rollout.table.query import Engine, dicts_of
from otel_rollout.table.store import Store
from tests.mlflow_server import stored
from tests.table.tables import selected

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
COUNTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
FEWER = settings(max_examples=settings().max_examples // 3)  # each makes a table, or two, of several traces
count = st.none() | st.integers(0, 9)


@dataclass(frozen=True)
class Made:
    """A span below the root: what it is inside of (an earlier span, or 0, the root), and what it says."""

    inside: int
    kind: str
    tokens: tuple[int | None, int | None]
    began: int
    lasted: int


@st.composite
def traces(draw: st.DrawFn) -> list[Made]:
    """Return up to eight spans below a root that lasts 100 ms."""
    return [
        Made(
            draw(st.integers(0, number)),
            draw(st.sampled_from(["LLM", "LLM", "TOOL", "CHAIN", "EVALUATOR"])),
            (draw(count), draw(count)),
            draw(st.integers(0, 120)),
            draw(st.integers(1, 80)),
        )
        for number in range(draw(st.integers(0, 8)))
    ]


several_traces = st.lists(traces(), min_size=1, max_size=4)


def lines(several: list[list[Made]]) -> str:
    """Return traces as lines of OTLP/JSON, with trace ids in their order."""
    return "\n".join(line(made, trace_id=f"{number:032x}") for number, made in enumerate(several, start=1))


def line(made: list[Made], scores: dict[str, Any] | None = None, trace_id: str = "a" * 32) -> str:
    """Return a trace as a line of OTLP/JSON; the root has number 0."""
    identity = {"step": 1, "sample_index": "7", "rollout_n": 0, "validate": False}
    root = Made(-1, "AGENT", (50, 60), 0, 100)  # counts of an agent are no model call's
    spans = []
    for number, span in enumerate([root, *made]):
        attributes: dict[str, Any] = {f"rollout.{name}": value for name, value in identity.items()}
        attributes["openinference.span.kind"] = span.kind
        attributes |= {name: n for name, n in zip(COUNTS, span.tokens, strict=True) if n is not None}
        attributes |= (scores or {}) if number == 0 else {}
        began = START + span.began * 1_000_000
        spans.append(
            {
                "traceId": trace_id,
                "spanId": f"{number + 1:016x}",
                "parentSpanId": f"{span.inside + 1:016x}" if span.inside >= 0 else "",
                "name": span.kind.lower(),
                "startTimeUnixNano": str(began),
                "endTimeUnixNano": str(began + span.lasted * 1_000_000),
                "attributes": [{"key": key, "value": encoded(value)} for key, value in attributes.items()],
            }
        )
    scope = {"scope": {"name": "otel_rollout"}, "spans": spans}
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [scope]}]})


def encoded(value: object) -> dict[str, object]:
    """Return a value of OTLP/JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def asked(text: str, sql: str) -> tuple[list[Summary], list[Summary], list[dict[str, Any]]]:
    """Return what the spool and the table say of the trajectories by trace id, and a query's rows."""
    with spool_of(text) as source:
        with asked_as_table(source) as shown:
            of_spool = by_trace_id(shown)
        with table_of(source) as store:
            engine = Engine(store.open())
            return of_spool, by_trace_id(TableSource(engine, "table")), dicts_of(selected(engine, sql))


def queried(text: str, sql: str) -> list[dict[str, Any]]:
    """Return a query's rows."""
    with spool_of(text) as source, table_of(source) as store:
        return dicts_of(selected(Engine(store.open()), sql))


def of_another_program(order: int, separators: tuple[str, str]) -> str:
    """Return a line with our root, and a call that OpenAI's instrumentor recorded."""
    (resource,) = json.loads(line([Made(0, "LLM", (3, 4), 0, 50)]))["resourceSpans"]
    (ours,) = resource["scopeSpans"]
    call = ours["spans"].pop()
    known = [entry for entry in call["attributes"] if entry["key"] != "openinference.span.kind"]
    call["attributes"] = [*known, {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    theirs = {"scope": {"name": "opentelemetry.instrumentation.openai_v2"}, "spans": [call]}
    resource["scopeSpans"] = [ours, theirs][::order]
    return json.dumps({"resourceSpans": [resource]}, separators=separators)


@contextmanager
def spool_of(text: str) -> Iterator[SpoolSource]:
    """Yield a source of lines."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        path.write_text(text + "\n")
        yield SpoolSource(path)


def by_trace_id(source: Source) -> list[Summary]:
    """Return all trajectories of a source."""
    return sorted(source.find(None), key=lambda summary: summary.trace_id)


def calls_of(made: list[Made]) -> list[int]:
    """Return the numbers of model calls that are not inside another one."""
    return [
        number
        for number, span in enumerate(made, start=1)
        if span.kind == "LLM" and call_around(made, number) is None
    ]


def call_around(made: list[Made], number: int) -> int | None:
    """Return the number of the nearest model call around a span."""
    above = made[number - 1].inside
    while above and made[above - 1].kind != "LLM":
        above = made[above - 1].inside
    return above or None


def tokens_of(made: list[Made], number: int, which: int) -> int | None:
    """Return a call's count: its own, or the sum over the nearest calls inside it that have one."""
    own = made[number - 1].tokens[which]
    if own is not None:
        return own
    return summed(
        tokens_of(made, inner, which)
        for inner, span in enumerate(made, start=1)
        if span.kind == "LLM" and call_around(made, inner) == number
    )


def summed(numbers: Any) -> int | None:
    """Return the sum of known numbers; None without any."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


@FEWER
@given(several_traces)
def test_tokens_of_a_call_count_once(several: list[list[Made]]) -> None:
    """A count that an outer call lacks is that of the calls inside it, from every source."""
    sql = "SELECT turns, tokens_in, tokens_out FROM trajectories ORDER BY trace_id"
    for made, *said, row in zip(several, *asked(lines(several), sql), strict=True):
        calls = calls_of(made)
        expected = [summed(tokens_of(made, number, which) for number in calls) for which in (0, 1)]
        assert [row["turns"], row["tokens_in"], row["tokens_out"]] == [len(calls), *expected]
        assert [[summary.tokens.input, summary.tokens.output] for summary in said] == [expected] * 2
        of_tail_sampling = TrajectoryOutcome("reward")
        of_tail_sampling.add(line(made).encode())
        assert of_tail_sampling.tokens == (expected[1] or 0)


def test_calls_inside_one_another_without_end_are_counted() -> None:
    """A thousand levels are more than a function of Python may call itself."""
    made = CallTokens()
    for number in range(2_000):
        made.add(f"{number}", f"{number - 1}" if number else "", {"out": 1} if number == 3 else {})
    assert (made.total("out"), made.total("in")) == (1, None)


@FEWER
@given(several_traces)
def test_phases_stay_inside_their_trajectory(several: list[list[Made]]) -> None:
    """Each millisecond belongs to the call that began first; only a reward counts after the end."""
    rows = queried(lines(several), "SELECT * FROM phases ORDER BY trace_id")
    for made, row in zip(several, rows, strict=True):
        found = [row[f"{name}_seconds"] * 1000 for name in ("generate", "tool", "reward", "waiting")]
        assert found == pytest.approx(phases_of(made), abs=1e-6)
        assert sum(found) == pytest.approx(row["seconds"] * 1000, abs=1e-6)


def phases_of(made: list[Made]) -> list[int]:
    """Return the milliseconds of model calls, tools, rewards and of waiting."""
    last = {"LLM": 100, "TOOL": 100, "EVALUATOR": 1000}
    calls = [
        (span.began, min(span.began + span.lasted, last[span.kind]), span.kind)
        for span in made
        if span.kind in last and span.began < last[span.kind]
    ]
    phases = dict.fromkeys(last, 0)
    taken: set[int] = set()
    reached = -1
    for began, end, kind in sorted(calls, key=lambda call: (call[0], -call[1], call[2])):
        own = {moment for moment in range(began, end) if moment >= reached}
        phases[kind] += len(own)
        taken |= own
        reached = max(reached, end)
    return [*phases.values(), max([100, *(moment + 1 for moment in taken)]) - len(taken)]


@pytest.mark.parametrize("value", [0.25, True, "good", "nan", "-inf"])
def test_reward_is_what_was_given(value: Any) -> None:
    """In a list, too: a bool and a text stay what they are."""
    scores = {"rollout.score.reward": value, "rollout.score_time.reward": START + 5}
    (of_spool,), (of_table,), _ = asked(line([], scores), "SELECT 1 AS one FROM trajectories")
    assert [score.value for score in of_spool.scores] == [score.value for score in of_table.scores] == [value]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,", " :  ")])
@pytest.mark.parametrize("order", [1, -1])
def test_lines_of_another_program_say_the_same_in_every_form(order: int, separators: tuple[str, str]) -> None:
    """The Collector writes several scopes in a line; Python's json writes spaces, which ours does not."""
    sql = "SELECT turns, tokens_in, tokens_out FROM trajectories"
    (shown,), _, rows = asked(of_another_program(order, separators), sql)
    assert rows == [{"turns": 1, "tokens_in": 3, "tokens_out": 4}]
    assert (shown.tokens.input, shown.tokens.output) == (3, 4)


def test_group_of_one_has_no_spread() -> None:
    """So it is no group without a signal."""
    scores = {"rollout.score.reward": 0.25, "rollout.score_time.reward": START + 5}
    (row,) = queried(line([], scores), "SELECT reward_spread, rewarded, reward_mean FROM groups")
    assert row == {"reward_spread": None, "rewarded": 1, "reward_mean": 0.25}


def test_running_trajectory_is_not_its_ended_sub_trajectory() -> None:
    """Its root has not ended; a model call beside the sub-trajectory has."""
    whole = json.loads(line([Made(0, "LLM", (1, 1), 0, 5), Made(0, "AGENT", (None, None), 10, 5)]))
    of_trace = whole["resourceSpans"][0]["scopeSpans"][0]
    of_trace["spans"] = of_trace["spans"][1:]
    (of_spool,), (of_table,), (row,) = asked(json.dumps(whole), "SELECT state, name FROM trajectories")
    assert (of_spool.state, of_spool.name) == (of_table.state, of_table.name) == ("running", "")
    assert row == {"state": "running", "name": None}


@contextmanager
def sources_of(program: str | Path, place: Path) -> Iterator[dict[str, Source]]:
    """Run a program, given as text or file, and yield what it has recorded, from each source."""
    uri = f"sqlite:///{place / 'mlflow.db'}"
    spool, table = place / "spool", place / "rollouts"
    variables = {
        "OTEL_TRACES_EXPORTER": "mlflow,delta",
        "OTEL_ROLLOUT_PROJECT": "facts",
        "OTEL_ROLLOUT_DELTA_URI": str(table),
        "OTEL_ROLLOUT_KEEP": "true",
        "OTEL_ROLLOUT_SPOOL_DIR": str(spool),
        "MLFLOW_TRACKING_URI": uri,
    }
    command = [sys.executable, program] if isinstance(program, Path) else [sys.executable, "-c", program]
    subprocess.run(command, env={**os.environ, **variables}, cwd=place, check=True, timeout=120)
    with (
        asked_as_table(SpoolSource(spool)) as of_spool,
        asked_as_table(MlflowSource(uri, "facts")) as of_mlflow,
    ):
        of_table = TableSource(Engine(Store(location_of(str(table))).open()), "table")
        yield {"spool": of_spool, "mlflow": of_mlflow, "table": of_table}


INSIDE = """
from otel_rollout import rollout_trace_attr, score
with rollout_trace_attr(step=1, sample_index="outer"):
    with rollout_trace_attr(step=1, sample_index="inner"):
        score("reward", 0.33)
with rollout_trace_attr(step=1, sample_index="named", reward=7):
    score("reward", 0.5)
"""


@pytest.mark.filterwarnings("ignore")  # MLflow's client warns of what its database does
def test_reward_is_that_of_the_trajectory_alone(tmp_path: Path) -> None:
    """Neither that of a trajectory inside it, nor an attribute of the same name, in any destination."""
    with sources_of(INSIDE, tmp_path) as sources:
        for name, source in sources.items():
            found = {summary.path: [score.value for score in summary.scores] for summary in source.find(None)}
            assert found == {"1/outer/-": [], "1/named/-": [0.5]}, name
    traces = stored(f"sqlite:///{tmp_path / 'mlflow.db'}", "facts")
    tags = {trace.info.tags["sample_index"]: trace.info.tags.get("reward") for trace in traces}
    assert tags == {"outer": None, "named": "0.5"}


NAMED = """
from opentelemetry import trace
from otel_rollout import rollout_trace_attr, rollout_trace_op, score
@rollout_trace_op(kind="LLM")
def generate(tokens):
    trace.get_current_span().set_attribute("gen_ai.usage.output_tokens", tokens)
for rollout in range(3):
    with rollout_trace_attr(step="warm-up", sample_index=7, rollout_n=rollout) as outer:
        generate(5)
        with rollout_trace_attr(step="warm-up", sample_index="inner", rollout_n=rollout) as inner:
            generate(3)
            score("reward", 0.25)
        if rollout == 2:
            print(inner.id)
for name, value in (("trained", True), ("reward", 0.5)):
    score(name, value, step="warm-up", sample_index=7, rollout_n=1)
with rollout_trace_attr(step=3, sample_index="a/b\\n", rollout_n=0):
    generate(2)
    with rollout_trace_attr(step=3, sample_index="a/b\\n", rollout_n=0):
        score("reward", 0.75)
"""


@pytest.mark.filterwarnings("ignore")
def test_every_source_says_the_same_of_a_trajectory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Names with text and slashes, what the trainer passed over, and trajectories inside others."""
    with sources_of(NAMED, tmp_path) as sources:
        inner = capfd.readouterr().out.split()[0]
        for name, source in sources.items():
            told = {}
            for path in ("warm-up/7/0", "warm-up/7/1", inner, "3/a/b␊/0"):
                wanted = parse(path)
                (found,) = source.find(wanted)
                shown = source.conversation(found.trace_id, wanted.span)
                scores = {score.name: score.value for score in shown.summary.scores}
                told[shown.summary.path] = (shown.summary.tokens.output, scores, shown.is_passed_over)
            assert told == {
                "warm-up/7/0": (8, {}, True),
                "warm-up/7/1": (8, {"trained": True, "reward": 0.5}, False),
                "warm-up/inner/2": (3, {"reward": 0.25}, False),
                "3/a/b\n/0": (2, {}, False),
            }, name


PASSED_OVER = """
from otel_rollout import rollout_trace_attr, score, score_batch
def recorded(**identity):
    with rollout_trace_attr(**identity) as trajectory:
        score("reward", 0.5)
    return trajectory.id
by_id = [[recorded(step=step, sample_index=0, rollout_n=n) for n in range(2)] for step in (1, 2, 3)]
score_batch({"trained": [True] * 2}, trajectory=[by_id[0][0], by_id[2][0]])
stepless = [recorded(sample_index=0, rollout_n=n) for n in range(2)]
score("trained", True, trajectory=stepless[0])
recorded(step="", sample_index=0, rollout_n=0)
"""


@pytest.mark.filterwarnings("ignore")
def test_every_source_says_whom_the_trainer_passed_over(tmp_path: Path) -> None:
    """Where it named a sibling by trajectory id, also without a step; not where it named nobody."""
    with sources_of(PASSED_OVER, tmp_path) as sources:
        for name, source in sources.items():
            told = {}
            for path in ("1/0/0", "1/0/1", "2/0/1", "3/0/1", "-/0/0", "-/0/1", "/0/0"):
                (found,) = source.find(parse(path))
                told[path] = source.conversation(found.trace_id, None).is_passed_over
            passed_over = {path for path, is_passed_over in told.items() if is_passed_over}
            assert passed_over == {"1/0/1", "3/0/1", "-/0/1"}, name


def said_of(*arguments: str, **variables: str) -> str:
    """Return what a command says on standard error."""
    command = [sys.executable, "-m", "otel_rollout", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stderr


TOLD_BY_A_SERVER = """
from otel_rollout import record_engine_times, rollout_trace_attr, rollout_trace_op
from otel_rollout_demo.tokenizer import load_tokenizer
class Agent:
    tokenizer = load_tokenizer()
    @rollout_trace_op(kind="LLM", token2text=True)
    def generate(self, prompt_ids):
        record_engine_times({"queued_ts": 1, "scheduled_ts": 2, "first_token_ts": 4, "last_token_ts": 7})
        return {"response_ids": self.tokenizer.encode("It is 42.", add_special_tokens=False)}
    @rollout_trace_op(token2text=True)
    def run(self):
        return self.generate(self.tokenizer.encode("What is it?"))
with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
    Agent().run()
"""


@pytest.mark.filterwarnings("ignore")
def test_every_source_has_the_text_of_token_ids_and_the_engines_times(tmp_path: Path) -> None:
    """Segments hold ids alone, and MLflow no scopes; what is asked for all trajectories has them, too."""
    with sources_of(TOLD_BY_A_SERVER, tmp_path) as sources:
        for name, source in sources.items():
            (found,) = source.find(None)
            (turn,) = (one for one in source.conversation(found.trace_id, None).turns if one.engine)
            assert (turn.text, dict(turn.engine.phases)) == (
                "It is 42.",
                {"queue": 1, "prefill": 2, "decode": 3},
            ), name
    with table_of(SpoolSource(tmp_path / "spool")) as store:
        rows = dicts_of(selected(Engine(store.open()), "SELECT name, reply FROM turns"))
    assert rows == [{"name": "Agent.generate", "reply": "It is 42."}]
    variables = {"OTEL_ROLLOUT_DELTA_URI": str(tmp_path / "imported")}
    imported = f"mlflow:sqlite:///{tmp_path / 'mlflow.db'}", "--to", "delta"
    assert "text" not in said_of("import", *imported, **variables)
    for tokenizers in tmp_path.glob("spool/*/*/tokenizers"):
        shutil.rmtree(tokenizers)
    said = said_of("list", "--from", str(tmp_path / "spool"))
    assert "token ids are shown without text: tokenizer" in said


@pytest.mark.filterwarnings("ignore")
def test_turn_continues_the_turn_before_though_another_process_recorded_it(tmp_path: Path) -> None:
    """Each process has segments of its own; a turn read too late would hide an answer encoded anew."""
    sql = "SELECT span_id, continues, break_of, break_kind FROM turns ORDER BY start_ns"
    with sources_of(Path(__file__).with_name("two_workers.py"), tmp_path):
        tables = {"table": Store(location_of(str(tmp_path / "rollouts")))}
        with table_of(SpoolSource(tmp_path / "spool")) as tables["spool"]:
            for name, store in tables.items():
                turns = dicts_of(selected(Engine(store.open()), sql))
                ids = [turn["span_id"] for turn in turns]
                assert [turn["continues"] for turn in turns] == [None, *ids[:3]], name
                broken = [(turn["break_of"], turn["break_kind"]) for turn in turns]
                assert broken == [*[(None, None)] * 2, (ids[1], "retokenized"), (None, None)], name
