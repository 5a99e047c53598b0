"""Change one place of the product at a time; say whether `make test` notices, or other tests, or none.

Cosmic Ray makes the mutants, and coverage.py says which tests run a line, both in an environment of their own
(`make mutants`); the tests run in `.venv`. The sample depends on the seed alone. All is in build/mutants.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import coverage
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/mutants"
COPY, ENVIRONMENT = PLACE / "copy", PLACE / "environment"
PRODUCT = ("otel_rollout", "exporters", "autoload")
TIERS = {"promises": "make test", "extended": "other tests"}
SECONDS = 60.0  # that the tests of a mutant may take in each tier; what takes three times as long is noticed
EQUIVALENT = ("Final = ", "import ", "frozen=True", "TYPE_CHECKING")  # in lines whose mutants are not tried


class Mutant(NamedTuple):
    module: str
    line: int
    operator: str  # of Cosmic Ray
    occurrence: int  # of the operator's, in the module


def main() -> None:
    """Sample mutants, try them, and print what noticed them, by room."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="mutants")
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--measure", choices=TIERS, nargs="*", default=list(TIERS), help="none: as before")
    given, arguments = parser.parse_known_args()
    if given.measure:
        measure(given.measure, arguments)
    os.chdir(COPY)
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in sampled(given.sample, given.seed, given.only):
        outcome = tried(mutant)
        rows[Path(mutant.module).parts[1]][outcome] += 1
        print(f"{outcome}: {mutant.module}:{mutant.line} {mutant.operator}", flush=True)
    for name, row in [*sorted(rows.items()), ("all", sum(rows.values(), Counter()))]:
        print(f"{name:<20}{row.total():>5}:", ", ".join(f"{number} {what}" for what, number in row.items()))


def measure(tiers: list[str], arguments: list[str]) -> None:
    """Run the tests in a copy of the checkout, and note which of them pass and what each runs."""
    shutil.rmtree(PLACE, ignore_errors=True)
    shutil.copytree(ROOT, COPY, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", "build"))
    for environment in ROOT.glob(".venv*"):
        (COPY / environment.name).symlink_to(environment)
    # An environment with the copy and coverage.py before what `.venv` has, for all processes of the tests.
    (others,) = (ROOT / ".venv").glob("lib/*/site-packages")
    shutil.copytree(ROOT / ".venv/bin", ENVIRONMENT / "bin", symlinks=True)
    shutil.copy(ROOT / ".venv/pyvenv.cfg", ENVIRONMENT)
    (site := ENVIRONMENT / others.relative_to(ROOT / ".venv")).mkdir(parents=True)
    (site / "coverage").symlink_to(Path(coverage.__file__).parent)
    lines = [str(COPY / part) for part in ("", *PRODUCT[1:], "examples")]
    lines.append("import os; 'MUTANTS_NOTES' in os.environ and __import__('coverage').process_startup()")
    (site / "copy.pth").write_text("\n".join([*lines, f"import site; site.addsitedir('{others}')"]))
    include = ",".join(f"{COPY / part}/*" for part in PRODUCT)
    (settings := PLACE / "settings").write_text(
        f"[run]\ndata_file = {PLACE}/covered\nparallel = true\nsigterm = true\ninclude = {include}\n"
        "context = ${MUTANTS_CONTEXT-}\ndisable_warnings = no-data-collected,module-not-measured\n"
    )
    for tier in tiers:
        notes = {"COVERAGE_PROCESS_START": f"{settings}", "MUTANTS_NOTES": f"{PLACE}/{tier}.jsonl"}
        pytest(0, tier, *arguments, **notes)
    coverage.Coverage(config_file=str(settings)).combine()


def pytest(limit: float, part: str, *arguments: str, **more: str) -> int:
    """Run a part of the tests in the copy, and return pytest's status."""
    variables = {"CI": "true", "HYPOTHESIS_DATABASE_FILE": os.devnull, **more}
    command = ["timeout", str(limit), f"{ENVIRONMENT}/bin/python", "-m", "tests.run", part, "--quiet"]
    command += ["-p", "tests.mutants.plugin", "-p", "no:cacheprovider", *arguments]
    output = subprocess.DEVNULL if limit else None
    return subprocess.run(command, cwd=COPY, env={**os.environ, **variables}, stdout=output).returncode


def sampled(size: int, seed: int, only: str) -> list[Mutant]:
    """Return up to ``size`` mutants, each of another place of any module."""
    by_place: dict[tuple[Any, ...], list[Mutant]] = defaultdict(list)
    for path in sorted(path for part in PRODUCT for path in Path(part).rglob("*.py") if only in str(path)):
        lines, nodes = path.read_text().splitlines(), list(ast_nodes(get_ast(path.read_text())))
        for name in operator_names():
            if "/Variable" in name or "_BitOr_" in name:  # the former need arguments; the latter annotate
                continue
            positions = get_operator(name)().mutation_positions
            starts = (start for node in nodes for start, _ in positions(node))
            for occurrence, (line, column) in enumerate(starts):
                if not any(text in lines[line - 1] for text in EQUIVALENT):
                    place = (str(path), line, column, name.partition("_")[0])
                    by_place[place].append(Mutant(str(path), line, name, occurrence))
    dice, places = random.Random(seed), sorted(by_place)
    dice.shuffle(places)
    return [dice.choice(by_place[place]) for place in places[:size]]


def chosen(mutant: Mutant, tier: str) -> tuple[list[str], bool]:
    """Return the tests that run a mutant's line; if none is seen to, those of its room and False."""
    data, notes = coverage.CoverageData(f"{PLACE}/covered"), PLACE / f"{tier}.jsonl"
    data.read()
    lines = data.contexts_by_lineno(str(COPY / mutant.module))
    ran = set(lines.get(mutant.line, ()))
    ran = ran.union(*lines.values()) if "" in ran else ran  # an import runs it
    # Forwarders do not say what they run: they have few variables, and tests kill them.
    rooms = Path(mutant.module).parts[1:-1]
    near = tuple(f"tests/{room.removeprefix('otel_rollout_')}/" for room in rooms)
    tests = map(json.loads, notes.read_text().splitlines() if notes.exists() else ())
    found = [  # those whose module names the mutant's come first, then the quickest
        (Path(mutant.module).stem not in Path(name.partition("::")[0]).read_text(), seconds, name)
        for seconds, name, *shared in tests
        if (not ran.isdisjoint([name, *shared]) if ran else name.startswith(near))
    ]
    names, left = list[str](), SECONDS
    for _, seconds, name in sorted(found):
        if seconds <= left or not names:
            left -= seconds + 0.1  # to collect it
            names.append(name)
    return names, bool(ran)


def tried(mutant: Mutant) -> str:
    """Change the product, and return which tests notice it."""
    path, outcome = Path(mutant.module), "not run"
    before, status = path.read_text(), path.stat()
    changed = str(mutate_code(before, get_operator(mutant.operator)(), mutant.occurrence))
    try:
        compile(changed, path, "exec")
        path.write_text(changed)
        for tier, noticed in TIERS.items():
            names, are_known = chosen(mutant, tier)
            if names:
                more = {"MUTANTS_TESTS": "\n".join(names), "PYTHONDONTWRITEBYTECODE": "1"}
                modules = {name.partition("::")[0] for name in names}
                if pytest(3 * SECONDS, "of-a-mutant", "-x", *modules, **more) not in (0, 5):  # 5: no tests
                    return noticed
                outcome = "survived" if are_known else outcome
        return outcome
    except SyntaxError:
        return "no Python"
    finally:
        path.write_text(before)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # what is compiled stays as new


if __name__ == "__main__":
    main()
