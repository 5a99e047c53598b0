"""Compare figures of a run with goals: maximum costs and minimum advantages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

Result = dict[str, Any]
OURS = "otel-rollout"
TO_MLFLOW, TO_WEAVE = "otel-rollout → MLflow", "otel-rollout → Weave"


class Goal(NamedTuple):
    """A figure and its limit.

    Attributes:
        what: description of the figure.
        part: part of the benchmark that measures the figure.
        found: takes the figure from the part's results.
        limit: the maximum or the minimum.
        form: format of the figure.
        is_most: whether the limit is a maximum; otherwise it is a minimum.
    """

    what: str
    part: str
    found: Callable[[Result], float]
    limit: float
    form: str
    is_most: bool = True

    def row(self, result: Result) -> list[str]:
        """Return the table row: the figure, the goal, and whether it is reached."""
        found = self.found(result[self.part])
        reached = found <= self.limit if self.is_most else found >= self.limit
        bound = "≤" if self.is_most else "≥"
        wanted = f"{bound} {self.form.format(self.limit)}"
        return [self.what, self.form.format(found), wanted, "yes" if reached else "**no**"]


def rows(result: Result) -> list[list[str]]:
    """Return the rows of all measured goals.

    ``--quick`` and machines without a GPU measure fewer.
    """
    found = []
    for goal in GOALS:
        with suppress(KeyError):
            found.append(goal.row(result))
    return found


def _caller(of: str, theirs: str) -> Callable[[Result], float]:
    return lambda part: float(part["tracers"][theirs][of] / part["tracers"][TO_MLFLOW][of])


def _delivered(server: str, ours: str, theirs: str) -> Callable[[Result], float]:
    def ratio(part: Result) -> float:
        contestants = part["servers"][server]
        return float(contestants[ours]["spans_per_second"] / contestants[theirs]["spans_per_second"])

    return ratio


def _lost(part: Result) -> float:
    costs = (item for contestants in part["servers"].values() for item in contestants.items())
    return float(sum(cost["lost"] for name, cost in costs if name.startswith(OURS)))


def _spread(kind: str) -> Callable[[Result], float]:
    """Return the largest relative deviation from the first cost."""

    def spread(part: Result) -> float:
        shares = [float(cost["share_of_sdk_span"]) for cost in part[kind].values()]
        return max(max(shares) / shares[0], shares[0] / min(shares)) - 1

    return spread


def _of_hot_path(of: str, name: str = OURS) -> Callable[[Result], float]:
    return lambda part: float(part["contestants"][name][of])


_WALL = "beside_busy_thread_wall_us_p50"
_SDK = "OTel SDK span, no content"
GOALS = (
    Goal(
        "an operation, 2 KB in and out, of a bare SDK span",
        "hot_path",
        _of_hot_path("share_of_sdk_span"),
        0.5,
        "{:.2f}",
    ),
    Goal(
        "an operation beside a busy thread, wall p50, of a bare SDK span there",
        "hot_path",
        lambda part: part["contestants"][OURS][_WALL] / part["contestants"][_SDK][_WALL],
        1.0,
        "{:.2f}",
    ),
    Goal(
        "an operation, switched off, µs",
        "hot_path",
        _of_hot_path("cpu_us", "otel-rollout, off"),
        0.3,
        "{:.2f}",
    ),
    Goal(
        "an operation, `trace=False`, µs",
        "hot_path",
        _of_hot_path("cpu_us", "otel-rollout, trace=False"),
        0.6,
        "{:.2f}",
    ),
    Goal(
        "an operation, 32,768 token ids in and out, of two `orjson.dumps` of them",
        "operations",
        lambda part: part["cases"]["async, 32,768 token ids"]["share_of_two_encodings"],
        1.3,
        "{:.2f}",
    ),
    *(
        Goal(
            f"caller's CPU of {theirs} ÷ ours, both as shares of an SDK span",
            "peers",
            _caller("share_of_sdk_span", theirs),
            limit,
            "{:.0f}",
            False,
        )
        for theirs, limit in (
            ("verl, mlflow backend", 30),
            ("verl, weave backend", 30),
            ("mlflow.trace", 30),
            ("weave.op", 30),
            ("logfire.instrument", 6),
        )
    ),
    *(
        Goal(
            f"CPU of all threads of {theirs} ÷ ours, both as shares of an SDK span",
            "peers",
            _caller("process_share_of_sdk_span", theirs),
            30,
            "{:.0f}",
            False,
        )
        for theirs in ("verl, mlflow backend", "mlflow.trace")
    ),
    Goal(
        "a rollout step slower by",
        "rollout_step",
        lambda part: part["tracers"][TO_MLFLOW]["slower_by"],
        0.01,
        "{:.1%}",
    ),
    Goal(
        "a GRPO step of TRL slower by",
        "trl_step",
        lambda part: part["slower_by"],
        0.01,
        "{:.2%}",
    ),
    Goal(
        "CPU of one operation with a value of 1 MiB, ms",
        "rollout_step",
        lambda part: max(cost["cpu_ms_p50"] for cost in part["stalls"].values()),
        5,
        "{:.1f}",
    ),
    Goal(
        "spans per second to MLflow ÷ verl's",
        "delivery",
        _delivered("MLflow server", TO_MLFLOW, "verl, mlflow backend"),
        8,
        "{:.1f}",
        False,
    ),
    Goal(
        "spans per second to Weave ÷ verl's",
        "delivery",
        _delivered("Weave's server", TO_WEAVE, "verl, weave backend"),
        6,
        "{:.1f}",
        False,
    ),
    Goal(
        "spans per second to a Weave server that stores nothing ÷ verl's",
        "delivery",
        _delivered("Weave's server, storing nothing", TO_WEAVE, "verl, weave backend"),
        6,
        "{:.1f}",
        False,
    ),
    Goal("spans lost by otel-rollout", "delivery", _lost, 0, "{:.0f}"),
    Goal(
        "spans per second and core of the forwarder to a Collector, by the slowest protocol",
        "otlp_delivery",
        lambda part: 1e6 / max(cost["forwarder_cpu_us"] for cost in part["protocols"].values()),
        10_000,
        "{:,.0f}",
        False,
    ),
    *(
        Goal(
            f"a span's share of an SDK span's cost, as {grows}, differs by",
            "growth",
            _spread(kind),
            0.2,
            "{:.0%}",
        )
        for kind, grows in (
            ("spans", "spans go to a million"),
            ("trajectory", "trajectories get longer"),
            ("processes", "processes go to 16"),
        )
    ),
    Goal(
        "a step with a real model on a GPU slower by",
        "language_model",
        lambda part: part["slower_by"],
        0.01,
        "{:.2%}",
    ),
)
