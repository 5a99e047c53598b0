"""The tables in README.md and docs/, written from the figures and never by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->\n"
OTLP_HEADINGS = ("forwarder, µs per span", "spans/s and core", "Collector, µs per span")
RAY_HEADINGS = ("`.remote()` of a method", "`.remote()` of a task", "receiving")


def hot_path(result: dict[str, Any]) -> str:
    """The hot path as a Markdown table."""
    rows = []
    for name, cost in result["contestants"].items():
        if name != "plain call":
            busy = cost["beside_busy_thread_wall_us_p50"]
            rows.append([name, f"{cost['cpu_us']:.1f}", f"{cost['share_of_sdk_span']:.2f}", f"{busy:.1f}"])
    headings = ("CPU, µs", "of a bare SDK span", "wall beside a busy Python thread, p50, µs")
    return _markdown(headings, rows)


def ray_rows(result: dict[str, Any]) -> list[list[str]]:
    """µs that propagation adds to a call of Ray's, and what Ray's own tracing adds."""
    ours, theirs = result["ours"]["over_plain"], result["rays_own_tracing"]["active"]
    plain = result["ours"]["plain"]
    tracing = [f"{theirs[of] - plain[of]:.0f}" for of in ("submit_method", "submit_task")]
    return [
        [
            "inside a trajectory",
            f"{ours['active']['submit_method']:.0f}",
            f"{ours['active']['submit_task']:.0f}",
            f"{result['ours']['receive']:.0f}",
        ],
        [
            "outside any trajectory",
            f"{ours['idle']['submit_method']:.0f}",
            f"{ours['idle']['submit_task']:.0f}",
            "",
        ],
        ["Ray's own tracing", *tracing, ""],
    ]


WEAVE_HEADINGS = (
    "caller held up, µs (p50)",
    "(mean)",
    "spans/s delivered",
    "CPU of delivery, µs/span",
    "lost",
)


def weave_rows(result: dict[str, Any]) -> list[list[str]]:
    """Delivery into each of the Weave servers, by us and by weave's client."""
    return [
        [
            f"{name}, store: {store}",
            f"{figures['caller_us_p50']:.0f}",
            f"{figures['caller_us_mean']:.0f}",
            f"{figures['spans_per_second']}",
            f"{figures['delivery_cpu_us']:.0f}",
            f"{figures['lost']}",
        ]
        for store, contestants in result["stores"].items()
        for name, figures in contestants.items()
    ]


def otlp_rows(result: dict[str, Any]) -> list[list[str]]:
    """CPU of the forwarder and of the Collector it sends to, per protocol."""
    return [
        [
            protocol,
            f"{cost['forwarder_cpu_us']:.1f}",
            f"{1e6 / cost['forwarder_cpu_us']:,.0f}",
            f"{cost['collector_cpu_us']:.1f}",
        ]
        for protocol, cost in result["protocols"].items()
    ]


VOLUME_HEADINGS = ("sent to a backend", "kept segments", "tokens decoded", "CPU of the trainer, a trajectory")
TRAJECTORIES, TRAJECTORIES_OF_A_WORKER, STEPS_PER_DAY = 512, 64, 288
"""Of a step; of one of its eight workers; a step every five minutes."""


def volume_rows(result: dict[str, Any]) -> list[list[str]]:
    """A day's bytes, tokens decoded and the training process's time, by us and by verl's own code."""
    ours, verls = result["ours"], result["verls_own_path_one_trajectory"]
    steps = STEPS_PER_DAY * TRAJECTORIES / result["trajectories"]
    alone = STEPS_PER_DAY * TRAJECTORIES
    each = ours["caller_ns_per_context_token"]["mean"] * ours["context_tokens"] / result["trajectories"]
    return [
        [
            "otel-rollout",
            f"{ours['told_bytes'] * steps / 1e9:,.0f} GB",
            f"{ours['kept_bytes'] * steps / 1e9:,.1f} GB",
            f"{ours['decoded_tokens'] * steps / 1e9:,.1f} billion, in the forwarder",
            f"{each / 1e6:.1f} ms",
        ],
        [
            "verl's mlflow backend",
            f"{verls['content_bytes'] * alone / 1e9:,.0f} GB",
            "",
            f"{verls['decoded_tokens'] * alone / 1e9:,.1f} billion, in the worker",
            f"{verls['cpu_ms']:.0f} ms",
        ],
    ]


def _markdown(headings: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = ["| | " + " | ".join(headings) + " |", "|---|" + "---:|" * len(headings)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def update(result: dict[str, Any]) -> None:
    """Replace what stands between the marks."""
    _replace(ROOT / "README.md", hot_path(result["hot_path"]))
    _replace(ROOT / "docs" / "ray.md", _markdown(RAY_HEADINGS, ray_rows(result["ray_calls"])))
    _replace(ROOT / "docs" / "weave.md", _markdown(WEAVE_HEADINGS, weave_rows(result["weave_delivery"])))
    _replace(ROOT / "docs" / "volume.md", _markdown(VOLUME_HEADINGS, volume_rows(result["volume"])))
    _replace(ROOT / "docs" / "collector.md", _markdown(OTLP_HEADINGS, otlp_rows(result["otlp_delivery"])))


def _replace(page: Path, table: str) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + BEGIN + table + END + after)
