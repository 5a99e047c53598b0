"""Measure trajectories of many turns: bytes, decoded tokens and CPU.

    python -m benchmarks --only volume [--quick]

The share of one of verl's eight agent workers in a step of 64 samples with 8 siblings each: 64 trajectories
at once, of 30 turns. Each turn resends its context, which grows by 1,000 tokens: 700 from a tool, 300 from
the model. The text is the source of the Python standard library. The tokenizer is the one that the package
``anthropic`` 0.38.0 on PyPI ships (65,000 tokens). verl's own path is measured on one trajectory, in verl's
environment.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest import mock

import orjson

import otel_rollout
from benchmarks.volume_shape import ANSWER, GROWTH, TURNS
from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.base import semconv
from otel_rollout.deliver.compaction import archive
from otel_rollout.record.runs import founding, membership
from otel_rollout.spool import layout
from otel_rollout.turns.detokenizer import Detokenizer
from otel_rollout.turns.line_rewriter import LineRewriter

ROOT = Path(__file__).parent.parent
SIBLINGS, SAMPLES, WORKERS = 8, 64, 8
TURN_SECONDS = 0.5
"""Average seconds that model and tool take."""
TOKENIZER_PACKAGE: Final = "anthropic==0.38.0"
_VERL: Final = (".venv-verl-bench", ".venv-verl")
_BATCH_CHARACTERS: Final = 1 << 20
_PLAIN = b'{"key":"output.value","value":{"stringValue":"%b"}}' % (b"no token ids here " * 110)


def run(quick: bool = False) -> dict[str, Any]:
    """Record, keep and export a worker's trajectories; measure verl's on one."""
    samples = 2 if quick else SAMPLES // WORKERS
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        tokenizer_file = _tokenizer_file(place)
        trajectories = _trajectories(tokenizer_file, samples)
        measured = _ours(place, tokenizer_file, trajectories)
        (place / "trajectory.json").write_bytes(orjson.dumps(trajectories[0]))
        verls = _verls(place, tokenizer_file)
    return {
        "tokenizer": f"{TOKENIZER_PACKAGE}, anthropic/tokenizer.json",
        "text": "Python standard library, *.py",
        "turns": TURNS,
        "trajectories": len(trajectories),
        "ours": measured,
        "verls_own_path_one_trajectory": verls,
    }


class Agent:
    """One trajectory, whose prompts and answers are known in advance."""

    def __init__(self, tokenizer: Any, ids: list[int]) -> None:
        self.tokenizer = tokenizer
        self.ids = ids
        self.random = random.Random(ids[-1])
        self.seen = 0
        self.costs: list[float] = []
        """CPU per context token of each model call, in ns."""

    @rollout_trace_op(kind=semconv.KIND_LLM, token2text=True)
    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> dict[str, Any]:
        """Make a model call."""
        return {"token_ids": self.ids[len(prompt_ids) : len(prompt_ids) + ANSWER], "stop_reason": "completed"}

    @rollout_trace_op(kind=semconv.KIND_AGENT, token2text=True)
    async def run(self) -> dict[str, Any]:
        """Run an agent loop; others run while it waits for model and tool."""
        for turn in range(1, TURNS + 1):
            prompt = self.ids[: turn * GROWTH]
            began = time.thread_time_ns()
            await self.generate(prompt, {"temperature": 1.0})
            self.costs.append((time.thread_time_ns() - began) / len(prompt))
            self.seen += len(prompt)
            await asyncio.sleep(self.random.uniform(0, 2 * TURN_SECONDS))
        mask = [int(position % GROWTH < ANSWER) for position in range(len(self.ids) - GROWTH)]
        return {"prompt_ids": self.ids[:GROWTH], "response_ids": self.ids[GROWTH:], "response_mask": mask}


def _ours(place: Path, tokenizer_file: Path, trajectories: list[list[int]]) -> dict[str, Any]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    agents = [Agent(tokenizer, ids) for ids in trajectories]
    otel_rollout.configure({"spool": {}}, spool_dir=str(place / "spool"), spool_limit=1 << 40)
    node_dir = founding.node_directory(membership.decide())

    async def trajectory(number: int, agent: Agent) -> None:
        with rollout_trace_attr(step=1, sample_index=number // SIBLINGS, rollout_n=number % SIBLINGS):
            await agent.run()

    async def step() -> None:
        await asyncio.gather(*(trajectory(number, agent) for number, agent in enumerate(agents)))

    asyncio.run(step())
    report = otel_rollout.shutdown(600)
    segments = [node_dir / name.file for name in layout.segments(node_dir)]
    unique = sum(map(len, trajectories)) - (len(trajectories) - len(trajectories) // SIBLINGS) * GROWTH
    prompts = sum(len(orjson.dumps(ids[:GROWTH])) for ids in trajectories)
    unique_json = sum(len(orjson.dumps(ids)) for ids in trajectories) - prompts * (SIBLINGS - 1) // SIBLINGS
    told = _told(node_dir, segments)
    costs = [cost for agent in agents for cost in agent.costs]
    return {
        "recorded": report.recorded,
        "dropped": dict(report.dropped),
        "context_tokens": sum(agent.seen for agent in agents),
        "unique_tokens": unique,
        "caller_ns_per_context_token": {
            "median": median(costs),
            "mean": sum(costs) / len(costs),
        },
        "unique_json_bytes": unique_json,
        "recorded_bytes": sum(path.stat().st_size for path in segments),
        **told,
        "decoded_of_unique": told["decoded_tokens"] / unique,
        "kept_bytes": (kept := sum(archive(path).stat().st_size for path in segments)),
        "kept_of_unique_json": kept / unique_json,
        "tokenizer_bytes": sum(path.stat().st_size for path in layout.tokenizer_files(node_dir)),
    }


def _told(node_dir: Path, segments: list[Path]) -> dict[str, Any]:
    """Measure what exporters get and what it costs the forwarder."""
    rewriter = LineRewriter(node_dir)
    sent, decoded, decode = 0, 0, Detokenizer._decoded

    def counting(self: Detokenizer, ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(self, ids)

    began = time.thread_time()
    with mock.patch.object(Detokenizer, "_decoded", counting):
        for path in segments:
            with path.open("rb") as lines:
                sent += sum(len(rewriter.rewrite(line).encoded) for line in lines)
    seconds = time.thread_time() - began
    began = time.thread_time()
    for _ in range(10_000):
        rewriter.rewrite(_PLAIN).encoded  # noqa: B018 - as an exporter reads it
    untouched = (time.thread_time() - began) / 10_000
    return {
        "told_bytes": sent,
        "decoded_tokens": decoded,
        "forwarder_cpu_seconds": seconds,
        "microseconds_per_line_without_token_ids": untouched * 1e6,
    }


def _verls(place: Path, tokenizer_file: Path) -> dict[str, Any]:
    python = next(
        (path for path in (ROOT / name / "bin" / "python" for name in _VERL) if path.exists()), None
    )
    if python is None:
        raise SystemExit("verl's own path needs verl's environment: make .venv-verl/.ready")
    ran = subprocess.run(
        [str(python), "-W", "ignore", "-m", "benchmarks.volume_verl", str(place), str(tokenizer_file)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _tokenizer_file(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place)]
    subprocess.run([*command, TOKENIZER_PACKAGE], check=True)
    (wheel,) = place.glob("*.whl")
    return Path(zipfile.ZipFile(wheel).extract("anthropic/tokenizer.json", place))


def _trajectories(tokenizer_file: Path, samples: int) -> list[list[int]]:
    """Return the tokens of each trajectory; siblings share the first thousand."""
    from tokenizers import Tokenizer

    tokens = _corpus(Tokenizer.from_file(str(tokenizer_file)))
    rest = (TURNS - 1) * GROWTH + ANSWER
    made = []
    for _ in range(samples):
        prompt = list(islice(tokens, GROWTH))
        made += [[*prompt, *islice(tokens, rest)] for _ in range(SIBLINGS)]
    if len(made[-1]) < GROWTH + rest:
        raise SystemExit("the standard library is too short a text for that many trajectories")
    return made


def _corpus(tokenizer: Any) -> Iterator[int]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts:
            text = path.read_text(errors="replace")
            for begin in range(0, len(text), _BATCH_CHARACTERS):
                yield from tokenizer.encode(
                    text[begin : begin + _BATCH_CHARACTERS], add_special_tokens=False
                ).ids
