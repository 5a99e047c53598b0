"""Change one place of a module at a time; count changes that no test notices.

Cosmic Ray makes the mutants. It runs in an environment of its own (`make mutants`); the tests run in `.venv`.
Each worker mutates a copy of the checkout. The sample depends on the seed alone, so a score can be repeated.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

from tests.mutants.targets import EQUIVALENT, TARGETS

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120.0
"""Seconds that the tests of a mutant may take. A mutant that never ends counts as noticed."""
_FAMILY = re.compile(r"(?<=Replace)(\w+?Operator)_.*|_.*")


@dataclass(frozen=True)
class Mutant:
    """A change of one place.

    Attributes:
        spec: the change, for Cosmic Ray.
        tests: what pytest runs to notice it.
    """

    spec: MutationSpec
    tests: str

    @property
    def place(self) -> tuple[str, tuple[int, int], str]:
        """What is changed: of several replacements of one operator only one is tried."""
        name = self.spec.operator_name.rpartition("/")[2]
        return str(self.spec.module_path), self.spec.start_pos, _FAMILY.sub(r"\1", name)


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test noticed: where, and the difference it makes."""

    module: str
    line: int
    source: str
    diff: str


def main() -> None:
    """Sample mutants, try them, and print the score with its survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=30, help="mutants per module")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    os.chdir(ROOT)
    start = time.monotonic()
    sample = sampled(given.sample, given.seed, given.only)
    tried, survivors = try_all(sample, given.workers)
    for survivor in survivors:
        print(f"\nSURVIVED {survivor.module}:{survivor.line}\n{survivor.diff}")
    print(f"\n{'module':<52}{'mutants':>8}{'noticed':>9}{'score':>8}")
    survived = Counter(survivor.module for survivor in survivors)
    for module, number in sorted(tried.items()):
        print(row(module, number, survived[module]))
    print(row("all", tried.total(), len(survivors)))
    print(f"seed {given.seed}, {(time.monotonic() - start) / 60:.1f} minutes")


def row(name: str, number: int, survived: int) -> str:
    """Return one line of the table of scores."""
    noticed = number - survived
    return f"{name:<52}{number:>8}{noticed:>9}{100 * noticed / max(1, number):>7.0f}%"


def sampled(size: int, seed: int, only: str) -> list[Mutant]:
    """Return up to ``size`` mutants of each module, chosen by the seed."""
    chosen: list[Mutant] = []
    for module, tests in TARGETS.items():
        if only not in module:
            continue
        by_place: dict[tuple[object, ...], list[Mutant]] = defaultdict(list)
        for mutant in mutants_of(module, tests):
            by_place[mutant.place].append(mutant)
        dice = random.Random(f"{seed} {module}")
        places = dice.sample(sorted(by_place, key=repr), min(size, len(by_place)))
        chosen += [dice.choice(by_place[place]) for place in places]
    return chosen


def mutants_of(module: str, tests: str) -> Iterator[Mutant]:
    """Yield the mutants of a module, but for those that cannot change what it does."""
    source = (ROOT / module).read_text()
    skipped = unevaluated(ast.parse(source))
    lines = source.splitlines()
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init([Path(module)], database, {})
        for item in database.work_items:
            (spec,) = item.mutations
            line = lines[spec.start_pos[0] - 1]
            if spec.start_pos not in skipped and not any(text in line for text in EQUIVALENT):
                yield Mutant(spec, tests)


def unevaluated(tree: ast.Module) -> set[tuple[int, int]]:
    """Return positions inside annotations, which Python does not evaluate here."""
    found: set[tuple[int, int]] = set()
    for node in ast.walk(tree):
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for annotation in filter(None, annotations):
            for row_ in range(annotation.lineno, annotation.end_lineno + 1):
                begin = annotation.col_offset if row_ == annotation.lineno else 0
                end = annotation.end_col_offset if row_ == annotation.end_lineno else 200
                found.update((row_, column) for column in range(begin, end))
    return found


def try_all(mutants: list[Mutant], workers: int) -> tuple[Counter[str], list[Survivor]]:
    """Try mutants on as many copies of the checkout as there are workers."""
    tried: Counter[str] = Counter()
    survivors: list[Survivor] = []
    with tempfile.TemporaryDirectory() as directory:
        shares = [mutants[n::workers] for n in range(workers)]
        copies = [copy_of_checkout(Path(directory, str(n))) for n in range(workers)]
        with ProcessPoolExecutor(workers) as pool:
            for part_tried, part_survivors in pool.map(try_share, shares, copies):
                tried += part_tried
                survivors += part_survivors
    return tried, sorted(survivors, key=lambda survivor: (survivor.module, survivor.line))


def copy_of_checkout(target: Path) -> Path:
    """Copy the files that git knows, and link the environment of the tests."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def try_share(mutants: list[Mutant], copy: Path) -> tuple[Counter[str], list[Survivor]]:
    """Try mutants one after the other in a copy of the checkout."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(copy / part) for part in ("", "exporters", "examples"))
    os.environ["HYPOTHESIS_DATABASE_FILE"] = os.devnull
    os.environ["CI"] = "true"  # the same examples every time
    python = shlex.quote(str(ROOT / ".venv/bin/python"))
    tried: Counter[str] = Counter()
    survivors: list[Survivor] = []
    for mutant in mutants:
        command = f"{python} -m pytest -x -q -p no:cacheprovider {mutant.tests}"
        result = mutate_and_test([mutant.spec], command, TIMEOUT)
        module = str(mutant.spec.module_path)
        tried[module] += 1
        noticed = result.test_outcome is not TestOutcome.SURVIVED
        print("." if noticed else "S", end="", flush=True, file=sys.stderr)
        if not noticed:
            line = mutant.spec.start_pos[0]
            source = Path(module).read_text().splitlines()[line - 1].strip()
            survivors.append(Survivor(module, line, source, result.diff or ""))
    return tried, survivors


if __name__ == "__main__":
    main()
