"""Generate recordings: spans of runs as programs record them, and as they are delivered.

A run has some steps with groups of siblings. Trajectories hold calls inside calls, tools, rewards and further
trajectories; they fail, run, have a parent that nobody recorded, and are scored from each side. Spans are
delivered twice with other contents.

What is drawn can be left out by shrinking: trajectories, operations, scores. Their contents follow from
seeds, because a run has more choices than a strategy may draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.contracts.made_spans import JUDGE, Identity, Made, Score, Value

_ROOT = 1
_REMOTE = 0xFF00
"""Id of a span in another system, which is never recorded."""


_VALUES: Sequence[Value] = (
    0.0, 0.25, 0.5, 1.0, 1.0, 0.25, -2.0, 3, True, False, "good", float("nan"), float("inf"),
)  # fmt: skip
_STEPS: Sequence[int | str] = (1, 1, 2, "warm-up")
_KINDS = ("LLM", "LLM", "LLM", "TOOL", "TOOL", "CHAIN", "EVALUATOR", "AGENT", "LOOP")
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
        self._add(
            inside,
            "AGENT",
            self._at,
            end,
            identity,
            name="agent_loop",
            error=error,
            repeated=self._repeated(),
        )
        if plan.ending == "running":  # otherwise nothing tells it from a trajectory inside that has ended
            begin = self._moment()
            self._add(_ROOT, "LLM", begin, begin + 60, identity, tokens=(_count(random), _count(random)))
        for _ in range(plan.operations):
            self._operation(random.choice(_KINDS), random.choice(self._spans))
        operations = list(self._spans)
        for _ in range(plan.scores):
            self._evaluation(operations)
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
        self._add(parent.span, kind, begin, begin + random.randint(-5, 80), identity, **fields)

    def _evaluation(self, operations: Sequence[Made]) -> None:
        random = self._random
        origin = random.choice(["", "", "process", "outside"])
        parents = [span for span in operations if origin == "process" or span.kind == "AGENT"]
        # Not below an operation of an inner trajectory: with the name of the outer one it is the outer one's.
        parent = random.choice([span for span in parents if span.kind == "AGENT" or self._is_own(span)])
        name = random.choice(["reward", "reward", "length"])
        score = Score(name, random.choice(_VALUES), random.choice(["", "", "why"]), origin)
        at = self._moment()
        identity = None if origin == "outside" else parent.identity
        run = random.choice([self._run, JUDGE]) if origin == "outside" else self._run
        self._add(parent.span, "EVALUATOR", at, at, identity, name="score", evaluation=score, run=run)

    def _is_own(self, span: Made) -> bool:
        """Return whether a span is in no trajectory inside this one."""
        while span.inside and span.inside != _REMOTE and span.kind != "AGENT":
            span = self._spans[span.inside - 1]
        return span.span == _ROOT

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
    recorded_end = max(span.begin, span.end)  # a clock may have been set back
    return None if (copy.end, copy.note) == (recorded_end, span.note) else copy
