"""Import the framework ``trl`` in the ways that programs do, and print what of otel-rollout is imported.

Arguments name the steps, in their order. Printed is one JSON object: step → what is imported after it.
"""

import importlib
import importlib.util
import json
import multiprocessing
import sys
import threading


def imported() -> list[str]:
    """Return the modules of otel-rollout and of the framework that this process has imported, sorted."""
    return sorted(name for name in sys.modules if name.startswith(("otel_rollout", "trl", "opentelemetry")))


def probe() -> list[str]:
    """Look the framework up, as libraries with optional dependencies do."""
    assert importlib.util.find_spec("trl") is not None
    return imported()


def import_package() -> list[str]:
    """Import the framework, which imports a submodule."""
    importlib.import_module("trl")
    return imported()


def import_trainer() -> list[str]:
    """Import the module that the integration patches; return what has patched it, too."""
    module = importlib.import_module("trl.trainer")
    return [*imported(), f"patched: {module.patched}"]


def threads() -> list[str]:
    """Import the framework in eight threads at once."""
    barrier = threading.Barrier(8)
    found: list[int] = []

    def run() -> None:
        barrier.wait(30)
        found.append(importlib.import_module("trl.trainer").patched)

    started = [threading.Thread(target=run) for _ in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(30)
    return [*imported(), f"patched: {sorted(set(found))}"]


def spawn() -> list[str]:
    """Import the framework in a spawned process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(import_trainer)


STEPS = {step.__name__: step for step in (probe, import_package, import_trainer, threads, spawn)}

if __name__ == "__main__":
    print(json.dumps({name: STEPS[name]() for name in sys.argv[1:]}))
