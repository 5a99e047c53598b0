"""The table in README.md, written from the figures and never by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->\n"


def table(result: dict[str, Any]) -> str:
    """The hot path as a Markdown table."""
    rows = [
        "| | CPU, µs | of a bare SDK span | wall beside a busy Python thread, p50, µs |",
        "|---|---:|---:|---:|",
    ]
    for name, cost in result["hot_path"]["contestants"].items():
        if name != "plain call":
            busy = cost["beside_busy_thread_wall_us_p50"]
            rows.append(f"| {name} | {cost['cpu_us']:.1f} | {cost['share_of_sdk_span']:.2f} | {busy:.1f} |")
    return "\n".join(rows) + "\n"


def update(result: dict[str, Any]) -> None:
    """Replace what stands between the marks."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(before + BEGIN + table(result) + END + after)
