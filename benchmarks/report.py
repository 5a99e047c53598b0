"""Write tables and plots of docs/ from ``results/latest.json``.

python -m benchmarks.report
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import tables
from benchmarks.tables import ROOT, Result

RESULTS = Path(__file__).parent / "results" / "latest.json"
IMAGES = ROOT / "docs" / "images"
OURS, THEIRS = "#1a7f5a", "#9aa4ad"


def write(result: Result) -> None:
    """Draw all plots whose figures exist."""
    tables.update(result)
    tables.replace(ROOT / "docs" / "performance.md", "machine", _machine(result["machine"]))
    for part, plot in PLOTS.items():
        if part in result:
            _save(plot.draw(result[part]), plot.name)


def _machine(machine: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['date']}, {machine['cores']} cores of {machine['processor']}, {machine['system']}, "
        f"Python {machine['python']}; {packages}.\n"
    )


def _axes(columns: int = 1, height: float = 3.2) -> Any:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams |= {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    return pyplot.subplots(1, columns, figsize=(9, height), layout="constrained")


def _save(figure: Any, name: str) -> None:
    from matplotlib import pyplot

    figure.savefig(IMAGES / f"performance-{name}.png", dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _peers(part: dict[str, Any]) -> Any:
    """Plot the CPU per operation of the caller and of all threads of its process."""
    figure, all_axes = _axes(2)
    names = list(part["tracers"])
    colours = [OURS if name.startswith("otel-rollout") else THEIRS for name in names]
    for axes, of, label in zip(
        all_axes,
        ("cpu_us", "process_us"),
        ("CPU of the caller per operation, µs", "CPU of all threads, until delivered, µs"),
        strict=True,
    ):
        costs = [cost[of] for cost in part["tracers"].values()]
        axes.barh(names, costs, color=colours)
        for place, cost in enumerate(costs):
            axes.text(cost, place, f" {cost:,.0f}", va="center")
        axes.set_xlim(right=1.2 * max(costs))
        axes.invert_yaxis()
        axes.set_xlabel(label)
    all_axes[1].set_yticklabels([])
    return figure


def _step(part: dict[str, Any]) -> Any:
    """Plot by how much a step is slower, and how long the event loop is held up."""
    figure, (slower, lag) = _axes(2)
    names = list(part["tracers"])
    colours = [OURS if name.startswith("otel-rollout") else THEIRS for name in names]
    for axes, values, label in (
        (slower, [found["slower_by"] * 100 for found in part["tracers"].values()], "step slower by, %"),
        (
            lag,
            [found["traced"]["lag_ms_p99"] for found in part["tracers"].values()],
            "event loop late, p99, ms",
        ),
    ):
        axes.barh(names, values, color=colours)
        for place, value in enumerate(values):
            axes.text(max(value, 0), place, f" {value:.1f}", va="center")
        axes.invert_yaxis()
        axes.set_xlabel(label)
    lag.set_yticklabels([])
    return figure


def _outage(part: dict[str, Any]) -> Any:
    """Plot the longest operation of each second of the run."""
    figure, axes = _axes()
    for name, found in part["tracers"].items():
        seconds = [second for second in found["each_second"] if "operations" in second]
        style = "-" if name.startswith("otel-rollout") else "--"
        axes.plot(
            [second["at"] for second in seconds],
            [second["max_us"] / 1000 if "max_us" in second else float("nan") for second in seconds],
            style,
            label=name,
        )
    axes.axvspan(part["seconds"] / 3, 2 * part["seconds"] / 3, color="#f3d9d4", zorder=0)
    axes.set_yscale("log")
    axes.set_xlabel("seconds; the target is gone where it is red")
    axes.set_ylabel("longest operation of the second, ms")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def _growth(part: dict[str, Any]) -> Any:
    """Plot the ratio to the bare SDK span as spans and processes increase."""
    figure, all_axes = _axes(3, 2.8)
    for axes, (kind, label) in zip(
        all_axes,
        {
            "spans": "spans recorded before",
            "trajectory": "spans in a trajectory",
            "processes": "processes at once",
        }.items(),
        strict=True,
    ):
        numbers = [int(number) for number in part[kind]]
        axes.plot(numbers, [cost["share_of_sdk_span"] for cost in part[kind].values()], "o-", color=OURS)
        axes.set_xscale("log")
        axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
        axes.minorticks_off()
        axes.set_ylim(0, 1)
        axes.set_xlabel(label)
    all_axes[0].set_ylabel("CPU of a span ÷ bare SDK span")
    return figure


class Plot(NamedTuple):
    """Return the path of a part's plot, ``docs/images/performance-NAME.png``."""

    name: str
    draw: Callable[[dict[str, Any]], Any]


PLOTS = {
    "peers": Plot("peers", _peers),
    "rollout_step": Plot("step", _step),
    "outage": Plot("outage", _outage),
    "growth": Plot("growth", _growth),
}

if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()))
