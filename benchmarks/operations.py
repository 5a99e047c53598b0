"""Measure the caller's cost by kind of operation and by content.

    python -m benchmarks.operations [--quick]

Every operation returns its argument. Five variants take turns in a new order each round: the plain call, the
operation switched off, in a trajectory that is not recorded, recorded, and a bare SDK span. The figures are
CPU of the thread over the plain call. "Paced" are wall times of single calls 5 ms apart, with cold caches.
For token ids, one ``orjson.dumps`` of the list is measured too. Prints JSON; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, nullcontext
from statistics import median, quantiles
from typing import Any, NamedTuple

import orjson

import otel_rollout
from benchmarks.hot_path import IDENTITY, _nothing, _sdk_tracer, _switched_off
from otel_rollout import rollout_trace_attr, rollout_trace_op

_CHUNKS = 10
_PACE = 0.005
_REST = 0.05
"""Seconds that the flusher needs to move megabytes from the journal into the spool."""
_CODE = 'def area(width: float, height: float) -> float:\n    """In m²."""\n    return width * height\n\n'
_TEXTS = {
    "text": "The lift carries at most 640 kilograms, of which five people take 360. ",
    "text in lines": "The lift carries at most 640 kilograms, of which five people take 360.\n",
    "code": _CODE,
    "CJK": "电梯最多可载六百四十公斤，其中五人占三百六十公斤。",
}


def _function(value: Any) -> Any:
    return value


async def _coroutine(value: Any) -> Any:
    return value


def _outer(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def outer(value: Any) -> Any:
        return inner(value)

    return outer


def _generator(value: Any) -> Iterator[Any]:
    for _ in range(_CHUNKS):
        yield value


async def _async_generator(value: Any) -> AsyncIterator[Any]:
    for _ in range(_CHUNKS):
        yield value


def _sized(text: str, length: int) -> str:
    """Return text of a given length in UTF-8."""
    return (text * (length // len(text.encode()) + 1)).encode()[:length].decode(errors="ignore")


def values() -> dict[str, Any]:
    """Return the contents by their names in the results."""
    texts = {
        f"{size} of {kind}": _sized(text, length)
        for size, length in {"2 KB": 2_000, "64 KB": 64_000}.items()
        for kind, text in _TEXTS.items()
    }
    ids = {
        f"{count:,} token ids": [128_000 + n * 7 % 20_000 for n in range(count)] for count in (1024, 32_768)
    }
    return {"nothing": None, **texts, **ids}


class Case(NamedTuple):
    """An operation, plain and decorated, and how to run it to its end."""

    name: str
    value: Any
    plain: Callable[[Any], Any]
    traced: Callable[[Any], Any]
    run: Callable[[Callable[[Any], Any], Any], Awaitable[None]]
    spans: int = 1


async def _call(operation: Callable[[Any], Any], value: Any) -> None:
    operation(value)


async def _await(operation: Callable[[Any], Any], value: Any) -> None:
    await operation(value)


async def _exhaust(operation: Callable[[Any], Any], value: Any) -> None:
    for _ in operation(value):
        pass


async def _exhaust_async(operation: Callable[[Any], Any], value: Any) -> None:
    async for _ in operation(value):
        pass


def cases() -> list[Case]:
    """Return operations of all kinds with 2 KB, and one with all contents."""
    found = values()
    text = found["2 KB of text"]
    op = rollout_trace_op
    nested = op(_outer(op(_function)))
    return [
        Case("sync, 2 KB of text", text, _function, op(_function), _call),
        Case("nested, two spans, 2 KB of text", text, _outer(_function), nested, _call, 2),
        Case(f"generator of {_CHUNKS}, 2 KB each", text, _generator, op(_generator), _exhaust),
        Case(
            f"async generator of {_CHUNKS}, 2 KB each",
            text,
            _async_generator,
            op(_async_generator),
            _exhaust_async,
        ),
        *(Case(f"async, {name}", value, _coroutine, op(_coroutine), _await) for name, value in found.items()),
    ]


async def _encoded_twice(value: Any) -> None:
    """Measure two encodings: argument and result are both encoded."""
    orjson.dumps(value)
    orjson.dumps(value)


async def _cpu(run: Any, operation: Any, value: Any, calls: int) -> float:
    began = time.thread_time_ns()
    for _ in range(calls):
        await run(operation, value)
    return (time.thread_time_ns() - began) / calls / 1000


async def _paced(case: Case, calls: int) -> list[float]:
    """Measure single calls in a recorded trajectory; wall time in µs."""
    taken = []
    with rollout_trace_attr(step=1):
        for _ in range(calls):
            await asyncio.sleep(_PACE)
            began = time.perf_counter_ns()
            await case.run(case.traced, case.value)
            taken.append((time.perf_counter_ns() - began) / 1000)
    return taken


_MODES: dict[str, Callable[[], Any]] = {
    "off": _switched_off,
    "not_recorded": lambda: rollout_trace_attr(trace=False),
    "on": lambda: rollout_trace_attr(step=1),
}


def measure(case: Case, tracer: Any, rounds: int, order: random.Random) -> dict[str, Any]:
    """Measure one operation."""
    large = len(str(case.value)) > 10_000
    calls = 50 if large else 500
    is_list = isinstance(case.value, list)
    samples: dict[str, list[float]] = {
        name: [] for name in ("plain", "sdk", *_MODES, *(["encodings"] if is_list else []))
    }

    async def bare_span(value: Any) -> Any:
        with tracer.start_as_current_span("operation", attributes=IDENTITY):
            return await _coroutine(value)

    for _ in range(rounds + 1):
        for name in order.sample(list(samples), len(samples)):
            around = _MODES.get(name, nullcontext if name == "sdk" else _nothing)
            operation, run = {
                "plain": (case.plain, case.run),
                "sdk": (bare_span, _await),
                "encodings": (_encoded_twice, _await),
            }.get(name, (case.traced, case.run))
            with around():
                samples[name].append(asyncio.run(_cpu(run, operation, case.value, calls)))
            if large and name == "on":
                time.sleep(_REST)
    for taken in samples.values():
        del taken[0]  # warm-up
    plain = median(samples["plain"])
    over = {f"{name}_us": round(median(samples[name]) - plain, 2) for name in _MODES}
    paced = quantiles(asyncio.run(_paced(case, 4 * rounds)), n=100, method="inclusive")
    return {
        **over,
        "share_of_sdk_span": round(over["on_us"] / case.spans / median(samples["sdk"]), 3),
        "paced_wall_us_p50": round(paced[49], 1),
        "paced_wall_us_p99": round(paced[98], 1),
        **(
            {"share_of_two_encodings": round(over["on_us"] / median(samples["encodings"]), 2)}
            if is_list
            else {}
        ),
        "samples": {name: [round(cost, 3) for cost in taken] for name, taken in samples.items()},
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all operations."""
    rounds = 5 if quick else 25
    order = random.Random(0)
    with ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        otel_rollout.configure({"spool": {}}, project_name="bench", spool_dir=spool, forwarder_linger=0)
        tracer = _sdk_tracer(stack)
        found = {case.name: measure(case, tracer, rounds, order) for case in cases()}
        report = otel_rollout.shutdown(0)
    return {"rounds": rounds, "dropped": dict(report.dropped), "cases": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operations", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first impression")
    print(json.dumps(run(parser.parse_args().quick), indent=1))
