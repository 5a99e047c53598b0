"""Build the tables on the terminal and in docs/ from the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks import goals

ROOT = Path(__file__).parent.parent
END = "<!-- bench:end -->\n"
"""Mark that ends a table; ``<!-- bench:NAME -->`` begins it."""
Result = dict[str, Any]
"""Figures of all parts by name, or of one part."""
Row = list[str]


class Shown(NamedTuple):
    """A table.

    Attributes:
        part: the part of the benchmark that the table shows; empty: all parts.
        title: title on the terminal; in documents the surrounding text replaces it.
        headings: headings of the columns after the first.
        rows: builds the rows from the part's figures, or from all figures.
        pages: pages that contain the table; without one, it is printed alone.
        otherwise: text if there are no figures.
    """

    part: str
    title: str
    headings: tuple[str, ...]
    rows: Callable[[Result], list[Row]]
    pages: tuple[str, ...] = ("docs/performance.md",)
    otherwise: str = ""

    def figures(self, result: Result) -> Result:
        """Return the figures that the table is built from."""
        return result[self.part] if self.part else result

    def is_in(self, result: Result) -> bool:
        """Return whether the table's part was measured."""
        return not self.part or self.part in result

    def for_terminal(self, result: Result) -> Table | str:
        """Return the table for the terminal."""
        if not self.figures(result):
            return f"{self.title}: {self.otherwise}"
        table = Table(title=self.title, title_justify="left")
        for heading in ("", *self.headings):
            table.add_column(heading, justify="right" if heading else "left")
        for row in self.rows(self.figures(result)):
            table.add_row(*row)
        return table

    def as_markdown(self, result: Result) -> str:
        """Return the table as Markdown."""
        if not self.figures(result):
            return f"{self.otherwise}\n"
        lines = ["| | " + " | ".join(self.headings) + " |", "|---|" + "---:|" * len(self.headings)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows(self.figures(result))]
        return "\n".join(lines) + "\n"


def hot_path_rows(part: Result) -> list[Row]:
    """One operation under the tracers that share our environment."""
    return [
        [
            name,
            f"{cost['cpu_us']:.1f}",
            "–".join(f"{quartile:.1f}" for quartile in cost["cpu_us_quartiles"]),
            f"{cost['share_of_sdk_span']:.2f}",
            f"{cost['beside_busy_thread_wall_us_p50']:.1f}",
        ]
        for name, cost in part["contestants"].items()
        if name != "plain call"
    ]


_PEERS = ("cpu_us", "trajectory_us", "process_us", "beside_busy_thread_wall_us_p50")


def peers_rows(part: Result) -> list[Row]:
    """One operation under every tracer: ours, and the others' ratios to ours."""
    ours = next(iter(part["tracers"].values()))
    return [
        [
            f"{name} ({cost['versions']})",
            *(
                f"{cost[of]:.0f}" + ("" if cost is ours else f" ({cost[of] / ours[of]:.1f} ×)")
                for of in _PEERS
            ),
            f"{cost['share_of_sdk_span']:.1f}",
        ]
        for name, cost in part["tracers"].items()
    ]


def operations_rows(part: Result) -> list[Row]:
    """Kinds of operations and of values."""
    return [
        [
            name,
            f"{cost['off_us']:.2f}",
            f"{cost['not_recorded_us']:.1f}",
            f"{cost['on_us']:.1f}",
            f"{cost['share_of_sdk_span']:.2f}",
            f"{cost['share_of_two_encodings']:.2f}" if "share_of_two_encodings" in cost else "",
            f"{cost['paced_wall_us_p50']:.0f}",
        ]
        for name, cost in part["cases"].items()
    ]


def ray_rows(part: Result) -> list[Row]:
    """µs that propagation adds to a Ray call, and that Ray's own tracing adds."""
    ours, theirs = part["ours"]["over_plain"], part["rays_own_tracing"]["active"]
    plain, submits = part["ours"]["plain"], ("submit_method", "submit_task")
    return [
        [
            "inside a trajectory",
            *(f"{ours['active'][of]:.0f}" for of in submits),
            f"{part['ours']['receive']:.0f}",
        ],
        ["outside any trajectory", *(f"{ours['idle'][of]:.0f}" for of in submits), ""],
        ["Ray's own tracing", *(f"{theirs[of] - plain[of]:.0f}" for of in submits), ""],
    ]


def step_rows(part: Result) -> list[Row]:
    """A rollout step, traced and untraced in one process."""
    rows = []
    for name, found in part["tracers"].items():
        traced, untraced = found["traced"], found["untraced"]
        rows.append(
            [
                name,
                f"{found['slower_by']:+.1%}",
                f"{traced['cpu_seconds'] - untraced['cpu_seconds']:+.2f} s",
                *(
                    f"{untraced[f'lag_ms_{which}']:.1f} → {traced[f'lag_ms_{which}']:.1f}"
                    for which in ("p50", "p99", "max")
                ),
                f"{traced['mib']:.0f}",
            ]
        )
    return rows


def stall_rows(part: Result) -> list[Row]:
    """Single operations of ours with large values."""
    return [
        [
            kind,
            *(f"{cost[of]:.2f}" for of in ("cpu_ms_p50", "cpu_ms_max", "wall_ms_p99", "wall_ms_max")),
        ]
        for kind, cost in part["stalls"].items()
    ]


def delivery_rows(part: Result) -> list[Row]:
    """Spans into each server, by us and by the tracers in use today."""
    rows = []
    for server, contestants in part["servers"].items():
        ours = next(iter(contestants.values()))["spans_per_second"]
        for name, cost in contestants.items():
            times = ours / cost["spans_per_second"] if cost["spans_per_second"] > 0 else float("inf")
            rows.append(
                [
                    f"{server}: {name}",
                    f"{cost['spans_per_second']:,.0f}",
                    f"{times:.1f} ×" if times != 1 else "",
                    f"{cost['operation_us']:.0f}",
                    f"{cost['cpu_us_inside']:.0f}",
                    f"{cost['cpu_us_outside']:.0f}",
                    f"{cost['lost']:.0f} of {sum(sample['spans'] for sample in cost['samples']):.0f}",
                ]
            )
    return rows


def delivery_limit_rows(part: Result) -> list[Row]:
    """Our delivery beside ready-made requests, with the smallest and the largest part of all rounds."""
    rows = []
    for target, found in part["targets"].items():
        ours, *made = found["spans_per_second"].values()
        parts = sorted(found["parts"])
        rows.append(
            [
                target,
                f"{ours:,}",
                " / ".join(f"{rate:,}" for rate in made),
                f"{found['part_of_limit']:.2f}",
                f"{parts[0]:.2f}–{parts[-1]:.2f}",
                f"{found['cpu_us']:.0f}",
            ]
        )
    return rows


def otlp_rows(part: Result) -> list[Row]:
    """CPU of the forwarder and of the Collector it sends to, per protocol."""
    return [
        [
            protocol,
            f"{cost['forwarder_cpu_us']:.1f}",
            f"{1e6 / cost['forwarder_cpu_us']:,.0f}",
            f"{cost['collector_cpu_us']:.1f}",
        ]
        for protocol, cost in part["protocols"].items()
    ]


def outage_rows(part: Result) -> list[Row]:
    """The thirds of a rollout whose target is unreachable in the second third."""

    def microseconds(value: float | None) -> str:
        return "–" if value is None else f"{value:,.0f}"

    return [
        [
            name,
            " / ".join(f"{third['operations_per_second']:.0f}" for third in found["thirds"]),
            " / ".join(microseconds(third["p50_us"]) for third in found["thirds"]),
            " / ".join(microseconds(third["max_us"]) for third in found["thirds"]),
            " → ".join(f"{mib:.0f}" for mib in found["mib"]),
            "killed" if found["finish_seconds"] is None else f"{found['finish_seconds']:.0f} s",
            f"{found['lost']} of {found['spans']}",
        ]
        for name, found in part["tracers"].items()
    ]


_GROWN = {
    "spans": "{} spans recorded",
    "trajectory": "{} spans in a trajectory",
    "processes": "{} processes at once",
}


def growth_rows(part: Result) -> list[Row]:
    """CPU per span as spans increase, beside a bare SDK span at the same moments."""
    rows = []
    for kind, named in _GROWN.items():
        first = next(iter(part[kind].values()))["share_of_sdk_span"]
        rows += [
            [
                named.format(f"{int(number):,}"),
                f"{cost['cpu_us']:.1f}",
                f"{cost['share_of_sdk_span']:.2f}",
                f"{cost['share_of_sdk_span'] / first - 1:+.0%}",
                f"{cost['forwarder_cpu_us']:.0f}" if "forwarder_cpu_us" in cost else "",
            ]
            for number, cost in part[kind].items()
        ]
    return rows


def language_model_rows(part: Result) -> list[Row]:
    """Steps with a real model, traced and untraced in one process."""
    untraced, traced = (
        {of: median(step[of] for step in part["steps"][which]) for of in ("tokens_per_second", "seconds")}
        for which in ("untraced", "traced")
    )
    return [
        [
            f"{part['parameters'] / 1e9:.2f} billion parameters on {part['device']}, torch {part['torch']}",
            f"{untraced['tokens_per_second']:,.0f} → {traced['tokens_per_second']:,.0f}",
            f"{untraced['seconds']:.2f} → {traced['seconds']:.2f}",
            f"{part['slower_by']:+.2%}",
            " – ".join(f"{part['slower_by_quartiles'][which]:+.2%}" for which in (0, 2)),
            f"{part['lost']:.0f} of {part['spans']:.0f}",
        ]
    ]


def trl_rows(part: Result) -> list[Row]:
    """Steps of TRL, traced and untraced in one process, and the CPU of tracing without the model."""
    untraced, traced = (median(part["steps"][which]) for which in ("untraced", "traced"))
    return [
        [
            f"{part['trajectories']} trajectories of {part['turns']} model calls, "
            f"{part['parameters'] / 1e6:.1f} million parameters, TRL {part['trl']}",
            f"{untraced:.2f} → {traced:.2f}",
            f"{part['slower_by']:+.2%}",
            " – ".join(f"{part['slower_by_quartiles'][which]:+.2%}" for which in (0, 2)),
            f"{part['cpu']['thread_us']:.0f}",
            f"{part['cpu']['process_us']:.0f}",
            f"{part['lost']} of {part['spans']}",
        ]
    ]


def table_scale_rows(part: Result) -> list[Row]:
    """Commands on the large table, with their start-up, and its compaction."""
    return [
        [
            f"`{cost['question']}`",
            f"{cost['seconds']:.1f} ({cost['cpu_seconds']:.1f})",
            f"{cost['peak_mib']:,}",
        ]
        for cost in part["commands"]
        if not cost["table"].startswith("a tenth")
    ]


TRAJECTORIES, STEPS_PER_DAY = 512, 288
"""Trajectories of a step and steps of a day; a step every five minutes."""


def trajectory_rows(part: Result) -> list[Row]:
    """Cost of one trajectory from the worker to a backend, ours and verl's."""
    ours, verls = part["ours"], part["verls_own_path_one_trajectory"]
    number = part["trajectories"]
    cost = ours["caller_ns_per_context_token"]
    context, unique = ours["context_tokens"] / number, ours["unique_tokens"] / number
    return [
        ["tokens in all contexts", f"{context:,.0f}", ""],
        ["different tokens", f"{unique:,.0f}", ""],
        ["those as JSON", f"{ours['unique_json_bytes'] / number / 1e3:,.0f} kB", ""],
        ["recorded", f"{ours['recorded_bytes'] / number / 1e3:,.0f} kB", ""],
        [
            "archived segments",
            f"{ours['kept_bytes'] / number / 1e3:,.0f} kB, {ours['kept_of_unique_json']:.2f} of that JSON",
            "",
        ],
        [
            "sent to a backend",
            f"{ours['told_bytes'] / number / 1e3:,.0f} kB",
            f"{verls['content_bytes'] / 1e3:,.0f} kB",
        ],
        [
            "tokens decoded",
            f"{ours['decoded_tokens'] / number:,.0f}, {ours['decoded_of_unique']:.2f} of the different ones",
            f"{verls['decoded_tokens']:,}",
        ],
        [
            "CPU of the training process",
            f"{cost['mean'] * context / 1e6:.1f} ms, {cost['median']:.0f} ns per token of context (median)",
            f"{verls['cpu_ms']:,.0f} ms",
        ],
        ["CPU of the forwarder for it", f"{ours['forwarder_cpu_seconds'] / number * 1e3:.0f} ms", ""],
    ]


def volume_rows(part: Result) -> list[Row]:
    """Bytes, decoded tokens and training CPU of a day, ours and verl's."""
    ours, verls = part["ours"], part["verls_own_path_one_trajectory"]
    steps = STEPS_PER_DAY * TRAJECTORIES / part["trajectories"]
    alone = STEPS_PER_DAY * TRAJECTORIES
    each = ours["caller_ns_per_context_token"]["mean"] * ours["context_tokens"] / part["trajectories"]
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


def verl_rows(part: Result) -> list[Row]:
    """A trajectory of verl's tool agent, and its spans that arrived."""
    return [
        [
            name,
            f"{cost['wall_ms']:.1f}",
            f"{cost['wall_ms_worst_batch']:.1f}",
            f"{cost['process_cpu_ms']:.1f}",
            f"{cost['traces']} of {cost['trajectories']}" if "traces" in cost else "",
            f"{cost['spans'] / cost['traces']:.0f}" if cost.get("traces") else "",
        ]
        for name, cost in part["contestants"].items()
    ]


_DELIVERY = (
    "spans/s",
    "ours ÷ it",
    "caller held up, µs per operation",
    "CPU inside, µs per span",
    "outside",
    "lost",
)
TABLES = {
    "goals": Shown("", "What is aimed at", ("this run", "goal", "reached"), goals.rows, pages=()),
    "hot_path": Shown(
        "hot_path",
        "One operation, 2 KB in and 2 KB out: µs of the caller's CPU over the plain call (medians)",
        ("CPU, µs", "quartiles", "of a bare SDK span", "wall beside a busy Python thread, p50, µs"),
        hot_path_rows,
    ),
    "peers": Shown(
        "peers",
        "The same under everybody, each in a process of its own: µs per operation (medians; ÷ ours)",
        (
            "caller's CPU, µs (÷ ours)",
            "with the trajectory's own spans",
            "all threads, until delivered",
            "wall beside a busy thread, p50",
            "of a bare SDK span",
        ),
        peers_rows,
    ),
    "operations": Shown(
        "operations",
        "By operation and value: µs of the caller's CPU over the plain call (medians)",
        (
            "off, µs",
            "`trace=False`, µs",
            "on, µs",
            "of a bare SDK span",
            "of two `orjson.dumps`",
            "on, 5 ms apart, wall, p50, µs",
        ),
        operations_rows,
        pages=(),
    ),
    "rollout_step": Shown(
        "rollout_step",
        "A step of 512 trajectories of ten spans in one Ray actor; untraced → traced (medians)",
        ("step", "CPU of the step", "loop's lag, p50, ms", "p99", "longest", "MiB"),
        step_rows,
    ),
    "stalls": Shown(
        "rollout_step",
        "One operation of ours with a large value, in and out: ms",
        ("CPU, p50", "CPU, most", "wall, p99", "wall, longest"),
        stall_rows,
        pages=(),
    ),
    "ray_calls": Shown(
        "ray_calls",
        "A call of Ray's: wall µs over the plain one (medians)",
        ("`.remote()` of a method", "`.remote()` of a task", "receiving"),
        ray_rows,
        ("docs/recording.md",),
    ),
    "delivery": Shown("delivery", "Delivery under load (medians)", _DELIVERY, delivery_rows),
    "delivery_limit": Shown(
        "delivery_limit",
        "Delivery beside ready-made requests (medians)",
        (
            "ours, spans/s",
            "ready-made, one at a time / two at once",
            "ours ÷ the faster of them",
            "in all rounds",
            "forwarder's CPU, µs per span",
        ),
        delivery_limit_rows,
        pages=(),
    ),
    "otlp_delivery": Shown(
        "otlp_delivery",
        "Delivery to a Collector: CPU (medians)",
        ("forwarder, µs per span", "spans/s and core", "Collector, µs per span"),
        otlp_rows,
    ),
    "outage": Shown(
        "outage",
        "The target is gone for the middle third: before / during / after",
        ("operations/s", "p50, µs", "longest, µs", "MiB, before → most", "to the end", "lost"),
        outage_rows,
        pages=(),
    ),
    "growth": Shown(
        "growth",
        "A span's CPU as there are more of them (medians)",
        ("CPU, µs", "of a bare SDK span", "against the first", "forwarder, µs"),
        growth_rows,
        pages=(),
    ),
    "language_model": Shown(
        "language_model",
        "A step with a real model on a GPU; untraced → traced (medians)",
        ("tokens/s", "step, s", "slower by", "quartiles", "spans lost"),
        language_model_rows,
        pages=(),
        otherwise="Not run: torch saw no GPU on this machine.",
    ),
    "trl": Shown(
        "trl_step",
        "A GRPO step of TRL on one core; untraced → traced (medians)",
        (
            "step, s",
            "slower by",
            "quartiles",
            "CPU of a trajectory, µs",
            "with all threads",
            "spans lost",
        ),
        trl_rows,
        pages=(),
    ),
    "table_scale": Shown(
        "table_scale",
        "A table of many trajectories of 20 spans",
        ("seconds (CPU)", "MiB"),
        table_scale_rows,
    ),
    "verl": Shown(
        "verl_agent_loop",
        "One trajectory of verl's tool agent: two model calls, one tool, one reward (medians)",
        ("wall, ms", "worst batch", "process CPU, ms", "traces", "spans in a trace"),
        verl_rows,
        ("docs/verl.md",),
    ),
    "volume": Shown(
        "volume",
        "A day of trajectories of 30 turns",
        ("sent to a backend", "archived segments", "tokens decoded", "CPU of the trainer, a trajectory"),
        volume_rows,
        ("docs/volume.md",),
    ),
    "trajectory": Shown(
        "volume",
        "One trajectory of 30 turns",
        ("otel-rollout", "verl's mlflow backend"),
        trajectory_rows,
        ("docs/volume.md",),
    ),
}


def update(result: Result) -> None:
    """Write every table with figures into its pages, between the marks."""
    for name, table in TABLES.items():
        if table.is_in(result):
            for page in table.pages:
                replace(ROOT / page, name, table.as_markdown(result))


def replace(page: Path, name: str, text: str) -> None:
    """Replace the text between the marks of a name in a page."""
    before, begin, rest = page.read_text().partition(f"<!-- bench:{name} -->\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the table {name!r}: <!-- bench:{name} --> … {END}")
    page.write_text(before + begin + text + end + after)
