"""Measure the pages of ``otel-rollout view``: ``python -m benchmarks.view --table PATH``."""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

_COMMAND = [sys.executable, "-c", "from otel_rollout.cli import app; app()", "view", "--port", "0", "--from"]
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:\d+")
_REPETITIONS = 20
_SAMPLES = 12
"""Steps, groups and trajectories whose pages are measured."""
_PREPARED_SECONDS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True, help="a rollout table")
    parser.add_argument("--no-browser", action="store_true", help="measure only the server")
    options = parser.parse_args()
    found = measured(options.table, not options.no_browser)
    print(f"{'page':<16}{'p50 ms':>10}{'p95 ms':>10}{'KB':>8}")
    for name, page in found["pages"].items():
        print(f"{name:<16}{page['p50_ms']:>10.0f}{page['p95_ms']:>10.0f}{page['bytes'] / 1000:>8.0f}")
    print(f"\nmemory of the server: {found['server_mb']} MB")
    if not options.no_browser:
        print(f"\n{'first paint':<16}{'ms':>10}")
        for name, milliseconds in found["first_paint_ms"]:
            print(f"{name:<16}{milliseconds:>10.0f}")


def measured(table: str, has_browser: bool) -> dict[str, Any]:
    """Start the server on a table and measure its pages."""
    with subprocess.Popen([*_COMMAND, table], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        found = _ADDRESS.search(server.stdout.readline())
        assert found, "the server has not started"
        try:
            return _measured(found[0].decode(), server.pid, has_browser)
        finally:
            server.send_signal(signal.SIGINT)


def _measured(address: str, pid: int, has_browser: bool) -> dict[str, Any]:
    pages, found = _pages(address), {}
    for name, addresses in pages.items():
        times, size = [], 0
        for index in range(max(_REPETITIONS, len(addresses))):
            began = time.perf_counter()
            size = len(_get(address + addresses[index % len(addresses)]))
            times.append((time.perf_counter() - began) * 1000)
        found[name] = {"p50_ms": statistics.median(times), "p95_ms": _p95(times), "bytes": size}
    painted = _first_paints(address, pages) if has_browser else []
    return {"pages": found, "server_mb": _memory(pid), "first_paint_ms": painted}


def _p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20, method="inclusive")[-1]


def _memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) // 1000


def _pages(address: str) -> dict[str, list[str]]:
    """Follow the links from the page of all runs; return addresses of each kind of page."""
    run = _links(address, "/", "/run?")[0]
    of_run = {name: values[0] for name, values in parse_qs(urlsplit(run).query).items()}
    steps = _spread(_links(address, run, "/step?"))
    groups = [_spread(_links(address, step, "/group?"))[0] for step in steps]
    trajectories = _links(address, groups[0], "/trajectory?")
    listed = [f"/trajectories?{urlencode(of_run)}"]
    listed += [f"{listed[0]}&reward=%3C0.1&sort=-seconds&tool_error=true", f"{listed[0]}&sort=reward&page=50"]
    return {
        "all runs": ["/"],
        "run": [run],
        "step": steps,
        "group": groups,
        "trajectory": trajectories[:_SAMPLES],
        "comparison": _links(address, groups[0], "/compare?"),
        "timeline": [step.replace("/step?", "/timeline?") for step in steps],
        "trajectories": listed,
        "health": [run.replace("/run?", "/health?")],
    }


def _spread(found: list[str]) -> list[str]:
    """Return some of the addresses, from all parts of the list."""
    return found[:: max(1, len(found) // _SAMPLES)][:_SAMPLES]


def _links(address: str, page: str, beginning: str) -> list[str]:
    found = re.findall(r'href="([^"]*)"', _get(address + page).decode())
    return list(dict.fromkeys(unescape(href) for href in found if href.startswith(beginning)))


def _get(address: str) -> bytes:
    """Return a page; wait while it is being prepared."""
    deadline = time.monotonic() + _PREPARED_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _first_paints(address: str, pages: dict[str, list[str]]) -> list[tuple[str, float]]:
    """Return the median time to the first paint of each kind of page, in Chromium."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    browser = Chrome(options=options, service=Service(executable_path="/usr/bin/chromedriver"))
    script = "return performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)"
    found = []
    try:
        for name, addresses in pages.items():
            times = []
            for page in addresses[:3]:
                browser.get(address + page)
                deadline = time.monotonic() + 10
                while not (painted := browser.execute_script(script)) and time.monotonic() < deadline:
                    time.sleep(0.02)
                times += painted
            found.append((name, statistics.median(times)))
    finally:
        browser.quit()
    return found


if __name__ == "__main__":
    main()
