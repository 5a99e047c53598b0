"""Generate the spans of a run as programs record them, and write them as lines of OTLP/JSON.

A run has some steps with groups of siblings. Trajectories hold calls inside calls, tools, rewards and further
trajectories; they fail, run, have a parent that nobody recorded, and are scored from each side. Spans are
delivered twice with other contents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

MS = 1_000_000
START = 1_767_225_600_000_000_000
COUNTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
JUDGE = "run-judge"
"""A run that records no trajectories."""
EXPERIMENT = "first"
Value = float | bool | str

AVOIDED = {
    "first": "defect: a trajectory without a root has the identity of the trajectory inside it that began first",
    "repeated": "defect: scores that the span of a trajectory with a remote parent repeats do not count",
    "outside": "defect: a score by the id of a trajectory inside a running one is the running one's",
}
"""What is not generated, because the product is known to be wrong; a strict xfail has each."""

_ROOT = 1
_REMOTE = 0xFF00
"""Id of a span in another system, which is never recorded."""


@dataclass(frozen=True)
class Identity:
    """The identity of a trajectory."""

    step: int | str | None
    sample: int | str
    rollout: int | str | None
    validate: bool = False

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that each span of the trajectory has."""
        named = {"step": self.step, "sample_index": self.sample, "rollout_n": self.rollout}
        known = {f"rollout.{name}": value for name, value in named.items() if value is not None}
        return {**known, "rollout.validate": self.validate}


@dataclass(frozen=True)
class Score:
    """A score in an evaluation span, or on the span of a trajectory.

    Attributes:
        name: the score's name.
        value: the score.
        comment: the reason.
        origin: where it was given: "" in the process, ``process``, ``outside`` or ``identity``.
    """

    name: str
    value: Value
    comment: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Made:
    """A span; times are milliseconds since ``START``.

    Attributes:
        trace: number of the trace.
        span: number of the span in the trace.
        inside: number of its parent; None for a root.
        kind: OpenInference's kind.
        begin: start.
        end: end.
        identity: the identity that the span has; None for a score by id.
        name: the span's name.
        tokens: counts of input and output.
        error: class of the error.
        evaluation: the score that the span records.
        repeated: scores that the span of a trajectory repeats, with their times.
        note: text that makes the attributes longer.
        run: id of the run that recorded it.
        project: its project; runs of other projects do not know it.
    """

    trace: int
    span: int
    inside: int | None
    kind: str
    begin: int
    end: int
    identity: Identity | None
    name: str = "operation"
    tokens: tuple[int | None, int | None] = (None, None)
    error: str = ""
    evaluation: Score | None = None
    repeated: tuple[tuple[Score, int | None], ...] = ()
    note: int = 0
    run: str = "run-1"
    project: str = "facts"

    @property
    def id(self) -> str:
        """The span's id."""
        return f"{self.trace << 16 | self.span:016x}"

    @property
    def trace_id(self) -> str:
        """The trace's id."""
        return f"{self.trace:032x}"

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the span."""
        found: dict[str, Any] = {"rollout.project_name": self.project, "rollout.experiment_name": EXPERIMENT}
        found |= self.identity.attributes() if self.identity else {}
        found["openinference.span.kind"] = self.kind
        found |= {name: n for name, n in zip(COUNTS, self.tokens, strict=True) if n is not None}
        found |= {"gen_ai.tool.name": self.name} if self.kind == "TOOL" else {}
        found |= {"error.type": self.error} if self.error else {}
        found |= {"note": "x" * self.note} if self.note else {}
        for score, at in self.repeated:
            found[f"rollout.score.{score.name}"] = score.value
            found |= {} if at is None else {f"rollout.score_time.{score.name}": START + at * MS}
        return found | (_evaluation(self.evaluation) if self.evaluation else {})


def _evaluation(score: Score) -> dict[str, Any]:
    found: dict[str, Any] = {"gen_ai.evaluation.name": score.name}
    if isinstance(score.value, (bool, str)):
        found["gen_ai.evaluation.score.label"] = str(score.value)
    if not isinstance(score.value, str):
        found["gen_ai.evaluation.score.value"] = float(score.value)
    found |= {"gen_ai.evaluation.explanation": score.comment} if score.comment else {}
    return found | ({"rollout.score_origin": score.origin} if score.origin else {})


def lines_of(spans: Iterable[Made]) -> str:
    """Return a line of OTLP/JSON for each span."""
    return "".join(f"{json.dumps(_line(span))}\n" for span in spans)


def _line(span: Made) -> dict[str, Any]:
    status = {"status": {"code": 2, "message": f"{span.error}: no"}} if span.error else {}
    parent = "" if span.inside is None else f"{span.trace << 16 | span.inside:016x}"
    made = {
        "traceId": span.trace_id,
        "spanId": span.id,
        "parentSpanId": parent,
        "name": span.name,
        "startTimeUnixNano": str(START + span.begin * MS),
        "endTimeUnixNano": str(START + span.end * MS),
        "attributes": _entries(span.attributes),
        **status,
    }
    resource = {"attributes": _entries({"rollout.run.id": span.run, "process.pid": 7})}
    scopes = [{"scope": {"name": "otel_rollout"}, "spans": [made]}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def _entries(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _encoded(value)} for key, value in attributes.items()]


def _encoded(value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        odd = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return {"doubleValue": odd.get(str(value), value)}
    return {"stringValue": value}


# --- strategies ---------------------------------------------------------------------------------------------
# What is drawn can be left out by shrinking: trajectories, operations, scores. Their contents follow from seeds,
# because a run has more choices than a strategy may draw.

_VALUES: Sequence[Value] = (
    0.0, 0.25, 0.5, 1.0, 1.0, 0.25, -2.0, 3, True, False, "good", float("nan"), float("inf"),
)  # fmt: skip
_STEPS: Sequence[int | str] = (1, 1, 2, "warm-up")
_KINDS = ("LLM", "LLM", "LLM", "TOOL", "TOOL", "CHAIN", "EVALUATOR", "AGENT")
_ENDINGS = ("ok", "ok", "ok", "error", "running", "remote")
_NAMES = ("search", "python")
_seed = st.integers(0, 1 << 32)


@dataclass(frozen=True)
class _Plan:
    """What is drawn of a trajectory."""

    group: int
    ending: str
    operations: int
    scores: int
    seed: int


_plans = st.builds(
    _Plan,
    group=st.integers(0, 3),
    ending=st.sampled_from(_ENDINGS),
    operations=st.integers(0, 7),
    scores=st.integers(0, 2),
    seed=_seed,
)


@st.composite
def recordings(draw: st.DrawFn, projects: int = 1) -> list[Made]:
    """Return the spans of one or two runs of some projects, in the order of their lines."""
    spans: list[Made] = []
    for number in range(draw(st.integers(1, projects))):
        project = _Project(number, _last(spans))
        for _ in range(draw(st.integers(1, 2))):
            project.add_run(draw(_seed), draw(st.lists(_plans, min_size=1, max_size=12)))
        given, copied = draw(st.lists(_seed, max_size=5)), draw(st.lists(_seed, max_size=5))
        spans += project.completed(given, copied)
    Random(draw(_seed)).shuffle(spans)
    return spans


def recorded_by(seed: int, trajectories: int = 14) -> list[Made]:
    """Return the spans of two runs, without a strategy."""
    random = Random(seed)
    project = _Project(0, 0)
    for _ in range(2):
        plans = [
            _Plan(
                group=random.randint(0, 3),
                ending=random.choice(_ENDINGS),
                operations=random.randint(0, 7),
                scores=random.randint(0, 2),
                seed=random.getrandbits(32),
            )
            for _ in range(trajectories)
        ]
        project.add_run(random.getrandbits(32), plans)
    spans = project.completed([random.getrandbits(32) for _ in range(6)], list(range(6)))
    random.shuffle(spans)
    return spans


class _Project:
    """The runs of a project.

    Args:
        number: number of the project.
        last: number of the last trace of the projects before.
    """

    def __init__(self, number: int, last: int) -> None:
        self._name, self._number, self._last = f"facts-{number}", number, last
        self._runs: list[str] = []
        self._spans: list[Made] = []

    def add_run(self, seed: int, plans: Iterable[_Plan]) -> None:
        """Add a run, whose siblings are numbered."""
        run = f"run-{self._number}-{len(self._runs)}"
        self._runs.append(run)
        groups = _groups(Random(seed))
        siblings = dict.fromkeys(groups, 0)
        for plan in plans:
            of_group = groups[plan.group % len(groups)]
            identity = replace(of_group, rollout=siblings[of_group])
            siblings[of_group] += 1
            self._last += 1
            self._spans += _Maker(self._last, run, plan.seed).trajectory(identity, plan)

    def completed(self, given: Sequence[int], copied: Sequence[int]) -> list[Made]:
        """Return the runs with scores by identity and copies, whose contents follow from seeds."""
        runs = [*self._runs, JUDGE]
        scores = [
            _by_identity(Random(seed), self._last + number, self._spans, runs)
            for number, seed in enumerate(given, start=1)
        ]
        known = [*self._spans, *scores]
        copies = {copy.id: copy for seed in copied if (copy := _copy(Random(seed), known))}
        return [replace(span, project=self._name) for span in (*known, *copies.values())]


def _last(spans: Iterable[Made]) -> int:
    return max((span.trace for span in spans), default=0)


def _groups(random: Random) -> list[Identity]:
    """Return one to four groups of a run."""
    samples: Sequence[int | str] = (7, 8, "row-a")
    groups = [
        Identity(random.choice(_STEPS), random.choice(samples), None, random.random() < 1 / 6)
        for _ in range(random.randint(1, 4))
    ]
    return list(dict.fromkeys(groups))


class _Maker:
    """Makes the spans of one trace, whose times begin at a multiple of a second.

    Args:
        number: number of the trace.
        run: id of its run.
        seed: what the choices follow from.
    """

    def __init__(self, number: int, run: str, seed: int) -> None:
        self._number, self._run = number, run
        self._random = Random(seed)
        self._at = number * 1000 + self._random.randint(0, 40)
        self._spans: list[Made] = []

    def trajectory(self, identity: Identity, plan: _Plan) -> list[Made]:
        """Return the spans that have ended."""
        random = self._random
        if random.random() < 0.05 and identity.rollout:
            identity = replace(identity, rollout=0)  # tried again
        error = random.choice(["ValueError", "KeyError"]) if plan.ending == "error" else ""
        inside = _REMOTE if plan.ending == "remote" else None
        end = self._at + random.randint(1, 100)
        first = self._at - 30 if plan.ending == "remote" and "first" in AVOIDED else self._at
        repeated = () if plan.ending == "remote" and "repeated" in AVOIDED else self._repeated()
        self._add(inside, "AGENT", first, end, identity, name="agent_loop", error=error, repeated=repeated)
        if plan.ending == "running":  # otherwise nothing tells it from a trajectory inside that has ended
            begin = self._at - 30 if "first" in AVOIDED else self._moment()
            self._add(_ROOT, "LLM", begin, begin + 60, identity, tokens=(_count(random), _count(random)))
        for _ in range(plan.operations):
            self._operation(random.choice(_KINDS), random.choice(self._spans))
        operations = list(self._spans)
        for _ in range(plan.scores):
            self._evaluation(operations, plan.ending == "running")
        return self._spans[1:] if plan.ending == "running" else self._spans

    def _add(self, inside: int | None, kind: str, begin: int, end: int, identity: Identity | None,
             **fields: Any) -> None:  # fmt: skip
        number = 1 + len(self._spans)
        made = Made(self._number, number, inside, kind, begin, end, identity, **{"run": self._run, **fields})
        self._spans.append(made)

    def _operation(self, kind: str, parent: Made) -> None:
        random = self._random
        begin = self._moment()
        fields: dict[str, Any] = {"name": random.choice(_NAMES)}
        identity = parent.identity
        if kind == "AGENT" and identity is not None:
            identity = random.choice([identity, replace(identity, sample="inner")])
            fields = {"name": "inner_loop", "repeated": self._repeated()}
        elif kind == "LLM" or random.random() < 0.5:
            fields["tokens"] = (_count(random), _count(random))
        if random.random() < 1 / 6:
            fields["error"] = "TimeoutError"
        self._add(parent.span, kind, begin, begin + random.randint(1, 80), identity, **fields)

    def _evaluation(self, operations: Sequence[Made], is_running: bool) -> None:
        random = self._random
        origin = random.choice(["", "", "process", "outside"])
        parents = [span for span in operations if origin == "process" or span.kind == "AGENT"]
        if is_running and origin == "outside" and "outside" in AVOIDED:
            parents = operations[:1]
        parent = random.choice(parents)
        name = random.choice(["reward", "reward", "length"])
        score = Score(name, random.choice(_VALUES), random.choice(["", "", "why"]), origin)
        at = self._moment()
        identity = None if origin == "outside" else parent.identity
        run = random.choice([self._run, JUDGE]) if origin == "outside" else self._run
        self._add(parent.span, "EVALUATOR", at, at, identity, name="score", evaluation=score, run=run)

    def _repeated(self) -> tuple[tuple[Score, int | None], ...]:
        if self._random.random() < 0.6:
            return ()
        at = None if self._random.random() < 0.3 else self._moment()
        return ((Score("reward", self._random.choice(_VALUES)), at),)

    def _moment(self) -> int:
        """Return a time, often one that other spans have too."""
        return self._at + self._random.choice([0, 50, 100, self._random.randint(-20, 150)])


def _count(random: Random) -> int | None:
    return random.choice([None, random.randint(0, 9)])


def _by_identity(random: Random, trace: int, spans: Sequence[Made], runs: Sequence[str]) -> Made:
    """Return a score by the identity of a trajectory, or of nobody."""
    identity = random.choice([span for span in spans if span.identity]).identity
    assert identity is not None
    others = [replace(identity, rollout=None), replace(identity, rollout=9)]
    identity = random.choice([identity, identity, identity, *others])
    at = random.choice(spans).begin + random.randint(0, 1)
    score = Score("reward", random.choice(_VALUES), random.choice(["", "why"]), "identity")
    made = Made(trace, _ROOT, None, "EVALUATOR", at, at, identity, "score", evaluation=score)
    return replace(made, run=random.choice(runs))


def _copy(random: Random, spans: Sequence[Made]) -> Made | None:
    """Return another delivery of a span: its end or the length of its attributes differs."""
    span = random.choice(spans)
    if span.evaluation is not None:
        return replace(span, note=100)
    later = random.randint(-3, 3)
    tokens = (_count(random), _count(random)) if span.kind == "LLM" else span.tokens
    note = random.choice([0, 100]) if later else 100
    copy = replace(span, end=max(span.begin, span.end + later), note=note, tokens=tokens)
    return None if (copy.end, copy.note) == (span.end, span.note) else copy
