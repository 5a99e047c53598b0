"""Every variable of the process is a field of its room's state, which base/state.py resets."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rollout.account.state import state as account
from otel_rollout.base.state import reset
from otel_rollout.base.state import state as base
from otel_rollout.record.propagation.state import state as propagation
from otel_rollout.record.recording.state import state as recording
from otel_rollout.record.runs.state import state as runs

ROOT = Path(__file__).parents[1]
MODULES = [path for room in ("otel_rollout", "autoload", "exporters") for path in (ROOT / room).rglob("*.py")]
EXCEPTIONS = {
    "otel_rollout/base/state.py:_states": "the states of all rooms",
    "otel_rollout/base/finalizers.py:COLLECTING": "the garbage collector's state, set by C functions",
    "otel_rollout/base/finalizers.py:_HERE": "the garbage collector's state, in each thread",
    "otel_rollout/base/finalizers.py:_LATEST": "the garbage collector's state",
    "otel_rollout/base/waits.py:_given": "a bounded cache of a pure function",
    "otel_rollout/record/capture/encoding/converters.py:_converters": "a bounded cache",
    "otel_rollout/record/capture/trajectory_attributes.py:_name_of_extra": "a bounded cache",
    "otel_rollout/record/capture/trajectory_attributes.py:_similar_argument": "a bounded cache",
    "otel_rollout/cli/export.py:export": "a function, made of another one",
    "otel_rollout/integrations/trl/patched_modules.py:seams": "a handle: holds what was patched at import",
    "otel_rollout/integrations/verifiers/__init__.py:seams": "a handle, as verl's",
    "otel_rollout/integrations/verl/__init__.py:seams": "a handle: holds what was patched at import",
    "otel_rollout/integrations/vllm/__init__.py:seams": "a handle, as verl's",
    "otel_rollout/otlp/origin.py:_shared_resource": "a bounded cache of a pure function",
    "otel_rollout/otlp/origin.py:_shared_scope": "a bounded cache of a pure function",
    "otel_rollout/otlp/sdk.py:_sdk_resource": "a bounded cache of a pure function",
    "otel_rollout/otlp/sdk.py:_sdk_scope": "a bounded cache of a pure function",
    "otel_rollout/otlp/span.py:_parent_id": "a bounded cache of a pure function",
    "otel_rollout/otlp/span.py:_trace_id": "a bounded cache of a pure function",
    "otel_rollout/record/propagation/carrier.py:_from_json": "a bounded cache of a pure function",
    "otel_rollout/record/propagation/carrier.py:_to_json": "a bounded cache of a pure function",
    "otel_rollout/record/propagation/http_clients.py:is_listed": "a bounded cache of a pure function",
    "otel_rollout/otlp/groups.py:_hash": "a bounded cache of a pure function",
    "otel_rollout/table/schema.py:arrow_schema": "a constant, made when Arrow is imported",
    "otel_rollout/table/views.py:_reads": "a cache of constants: a value for each view",
    "otel_rollout/table/views.py:order": "a cache of constants: the names of all views",
    "otel_rollout/table/views.py:sql_of": "a cache of constants: the text of each view",
    "otel_rollout/record/recording/identity.py:NO_IDENTITY": "a constant that remembers its encoded form",
    "otel_rollout/record/recording/identity.py:OUTSIDE": "a constant that remembers its encoded form",
    "otel_rollout/look/pages/rendering.py:_environment": "templates of the package, read once",
}
"""Module and name of what changes during a program beside the rooms' states, and why."""
MUTABLE = {
    "Barrier", "BoundedDict", "Condition", "Counter", "Event", "Lock", "OrderedDict", "Queue", "RLock",
    "Semaphore", "SimpleNamespace", "SimpleQueue", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary",
    "bytearray", "count", "cycle", "defaultdict", "deque", "dict", "iter", "list", "local", "set",
}  # fmt: skip
"""Constructors of objects that change."""
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove",
    "setdefault", "update",
}  # fmt: skip
CACHES = {"cache", "lru_cache", "cached"}


def name_of(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def stateful_classes(trees: list[ast.Module]) -> set[str]:
    """Return classes whose instances change: by methods, or as dataclasses."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {class_.name for class_ in classes if is_dataclass(class_) or sets_attributes(class_)}


def is_dataclass(class_: ast.ClassDef) -> bool:
    """Return whether a class is a dataclass that is not frozen."""
    return any(
        name_of(decorator) == "dataclass" and "frozen=True" not in ast.unparse(decorator)
        for decorator in class_.decorator_list
    )


def sets_attributes(class_: ast.ClassDef) -> bool:
    """Return whether methods of a class set attributes of their instance."""
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name_of(node.value) == "self"
        for node in ast.walk(class_)
    )


def assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield names and values that a module or class assigns, in branches too."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield name_of(target), node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield name_of(node.target), node.value
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from assignments(
                [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            )
        elif isinstance(node, ast.ClassDef):
            yield from assignments(node.body)


def mutated_names(tree: ast.Module) -> set[str]:
    """Return the names whose value the module changes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            found.add(name_of(node.value))
        elif isinstance(node, ast.AugAssign):
            found.add(name_of(node.target))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
        ):
            found.add(name_of(node.func.value))
    return found


def variables_of(tree: ast.Module, stateful: set[str]) -> Iterator[str]:
    """Yield what of a module changes during a program, or may."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
            name_of(decorator) in CACHES for decorator in node.decorator_list
        ):
            yield node.name
    mutated = mutated_names(tree)
    for name, value in assignments(tree.body):
        is_container = isinstance(
            value, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
        )
        is_empty = is_container and not (getattr(value, "keys", None) or getattr(value, "elts", None))
        is_stateful = isinstance(value, ast.Call) and name_of(value) in MUTABLE | stateful | CACHES
        if is_stateful or (
            is_container and (name in mutated or (is_empty and not hasattr(value, "generators")))
        ):
            yield name


def test_no_variable_of_the_process_lies_outside_the_state() -> None:
    """What changes in a module is a field of a registered state, or a named exception."""
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in MODULES}
    stateful = stateful_classes(list(trees.values()))
    found = {f"{path}:{name}" for path, tree in trees.items() for name in variables_of(tree, stateful)}
    assert found - EXCEPTIONS.keys() == set(), "make each a field of its room's State"
    assert EXCEPTIONS.keys() - found == set(), "these exceptions exist no more"


@pytest.mark.parametrize(
    "source",
    [
        "_seen = set()",
        "_seen: set[str] = set()",
        "_seen = {}",
        "_lock = threading.Lock()",
        "_count = 0\ndef f():\n    global _count\n    _count += 1",
        "@functools.lru_cache\ndef f(): ...",
        "_known = {'a': 1}\ndef f(): _known['b'] = 2",
        "class A:\n    known = []",
        "class A:\n    def __init__(self): self.x = 1\n_a = A()",
        "try:\n    import x\nexcept ImportError:\n    pass\nelse:\n    _found = []",
    ],
)
def test_every_kind_of_process_variable_is_found(source: str) -> None:
    """The scan finds what people write without a second thought."""
    tree = ast.parse(source)
    assert list(variables_of(tree, stateful_classes([tree])))


def test_constants_are_no_process_variables() -> None:
    """Tables that nothing changes, loggers, patterns and numbers are constants."""
    lines = (
        "A = {'a': 1}",
        "B = re.compile('x')",
        "C = getLogger('c')",
        "D = frozenset({1})",
        "E = [n for n in A]",
    )
    tree = ast.parse("\n".join(lines))
    assert list(variables_of(tree, stateful_classes([tree]))) == []


def state_modules() -> list[str]:
    """Return the names of the modules that hold states."""
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES if path.name == "state.py"
    ]


def test_state_is_the_one_object_of_its_module() -> None:
    """Nothing else is registered, so a state is pickled by its module's name and ``state``."""
    registered = [
        (path.relative_to(ROOT).as_posix(), ast.unparse(node))
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("register(")
    ]
    assert sorted(registered) == sorted(
        (f"{module.replace('.', '/')}.py", "state = register(State())") for module in state_modules()
    )


def test_fork_and_reset_give_variables_their_initial_values() -> None:
    """A child forgets what is marked as its parent's, reset() all but what is set at import."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.programs.changed_variables", *state_modules()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: dict[str, list[str]] = json.loads(ran.stdout)
    assert found["changed in a child"] == [
        name for name in found["variables"] if name not in found["per process"]
    ]
    assert found["changed after reset()"] == found["wired"]
    assert found["pickled by reference"] == found["slotted"] == state_modules()
    assert ran.stderr == ""


def test_reset_gives_every_field_its_initial_value(fresh_process: None) -> None:
    """After reset() a process has decided nothing and reported nothing."""
    recording.off, runs.is_configured = True, True
    base.reported.add("a message")
    register_exit, lock = runs.register_exit, recording.lock
    reset()
    assert (recording.off, runs.is_configured, base.reported) == (False, False, set())
    assert runs.register_exit is register_exit, "the package sets it at import"
    assert recording.lock is not lock


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # since Python 3.12, with threads
def test_forked_child_keeps_decisions_and_gets_own_locks(fresh_process: None) -> None:
    """A lock that its parent holds stops no child.

    What its parent has logged is not logged again.
    """
    runs.is_root = runs.is_configured = True
    base.reported.add("a message")
    with recording.lock, propagation.instrument_lock, account.ledger_lock:
        child = os.fork()
        if child == 0:
            acquired: list[bool] = []
            locks = (recording.lock, propagation.instrument_lock, account.ledger_lock)
            thread = threading.Thread(
                target=lambda: acquired.extend(lock.acquire(timeout=5) for lock in locks)
            )
            thread.start()
            thread.join()
            kept = (runs.is_configured, base.reported) == (True, {"a message"})
            os._exit(0 if acquired == [True] * 3 and kept and not runs.is_root else 1)
        assert os.waitpid(child, 0)[1] == 0
