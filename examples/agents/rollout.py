"""Run the trajectories of an example: here or on Ray, against the local server or your own.

The examples import this module; nothing here traces. Options::

    python examples/agents/langgraph_agent.py --trajectories 8 --ray

The agents ask the server at ``OPENAI_BASE_URL``; without this variable, ``local_server.py`` is started.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

MODEL: Final = os.environ.get("OPENAI_MODEL", "shop")
_PRICES: Final = {"apples": 2, "pears": 3, "plums": 5, "melons": 7}


def price(item: str) -> int:
    """Return what one piece of an item costs.

    Args:
        item: name of the item.
    """
    return _PRICES[item]


def calculate(expression: str) -> int:
    """Return the value of a sum of products, such as "3 * 2 + 4 * 5".

    Args:
        expression: integers with + and *.
    """
    products = [[int(factor) for factor in term.split("*")] for term in expression.split("+")]
    return sum(left * right for left, right in products)


def task(index: int) -> tuple[str, str]:
    """Return the question of a row, and a part of the right answer."""
    names = list(_PRICES)
    first, second = names[index % 4], names[(index + 1) % 4]
    counts = 2 + index % 5, 3 + index % 7
    total = counts[0] * _PRICES[first] + counts[1] * _PRICES[second]
    return f"What do {counts[0]} {first} and {counts[1]} {second} cost?", f"cost {total}."


def run(trajectory: Callable[[int], None]) -> None:
    """Run an example's trajectories as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--ray", action="store_true", help="run on Ray workers")
    options = parser.parse_args()
    with _server():
        if options.ray:
            _run_on_ray(Path(sys.argv[0]).stem, options.trajectories)
        else:
            for index in range(options.trajectories):
                trajectory(index)


def _run_on_ray(module: str, count: int) -> None:
    import ray

    @ray.remote
    def worker(index: int) -> None:
        importlib.import_module(module).trajectory(index)

    ray.init(runtime_env={"env_vars": {name: os.environ[name] for name in os.environ if "OPENAI_" in name}})
    ray.get([worker.remote(index) for index in range(count)])
    ray.shutdown()


@contextlib.contextmanager
def _server() -> Iterator[None]:
    """Start the local server, unless the environment names one."""
    os.environ.setdefault("OPENAI_API_KEY", "unused")
    if "OPENAI_BASE_URL" in os.environ:
        yield
        return
    command = [sys.executable, str(Path(__file__).with_name("local_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        os.environ["OPENAI_BASE_URL"] = server.stdout.readline().strip()
        try:
            yield
        finally:
            server.stdin.close()
