"""Prepare the workers of a cluster that ``ray.init`` starts, by variables that they inherit.

Ray starts workers before the first task, but none with a runtime_env. So a runtime_env would delay the first
task by a second. Instead, the node starts with Ray's own variable that names the setup hook of a worker. Ray
reads the hook from its control store, where it also keeps the hooks of runtime_envs.
"""

from __future__ import annotations

import base64
import functools
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from otel_rollout.base.errors import internal_errors
from otel_rollout.base.patching import Patches, environment_variables
from otel_rollout.record.runs.ray_job import RECEIVER_MARK
from otel_rollout.record.runs.state import state

HOOK_VARIABLE: Final = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""Variable by which Ray gives a worker its setup hook; Ray adds it to a runtime_env with a hook."""
_KEY: Final = b"otel-rollout-setup-hook"
_REASONS_FOR_A_RUNTIME_ENV: Final = ("RAY_RUNTIME_ENV_HOOK", HOOK_VARIABLE)
"""Variables that give workers another setup hook, or may do so. Only a runtime_env can join this package's
hook with another one."""


def is_started_by(args: Sequence[Any], arguments: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether ``ray.init`` will start a cluster that can be prepared here."""
    if not _can_publish() or any(environ.get(name) for name in _REASONS_FOR_A_RUNTIME_ENV):
        return False
    ray: Any = sys.modules["ray"]
    address = address_of(args, arguments, environ)
    if address is None:  # Ray looks for the cluster of the last `ray start`
        return ray._private.services.find_bootstrap_address(arguments.get("_temp_dir")) is None
    return bool(address == "local")


def address_of(args: Sequence[Any], arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
    """Return the address that ``ray.init`` uses: that of the call, or that of Ray's variable."""
    address = args[0] if args else arguments.get("address")
    return environ.get("RAY_ADDRESS") or address if address in (None, "auto") else address


@contextmanager
def preparing(hook: Callable[[], None], given: Iterable[str]) -> Iterator[None]:
    """Prepare the workers of a cluster that this process starts during a block.

    Args:
        hook: setup hook of the workers; it is pickled by value.
        given: names of the variables that the driver gives its workers.
    """
    from ray._private.node import Node

    patches = Patches()
    variables = {RECEIVER_MARK: ",".join(sorted(given))}
    patches.replace(Node, "start_ray_processes", functools.partial(_publishing, patches, hook, variables))
    try:
        yield
    finally:
        patches.undo()


def _publishing(
    patches: Patches, hook: Callable[[], None], variables: Mapping[str, str], original: Callable[[Any], None]
) -> Callable[[Any], None]:
    @functools.wraps(original)
    def start_ray_processes(node: Any) -> None:
        of_workers: Mapping[str, str] = {}
        if patches.active and node.head:
            with internal_errors("preparing the workers of Ray's cluster"):
                of_workers = {**variables, HOOK_VARIABLE: _published(hook, node)}
                state.prepared_cluster = node.cluster_id
        with environment_variables(of_workers):
            original(node)

    return start_ray_processes


def _published(hook: Callable[[], None], node: Any) -> str:
    """Put the hook into Ray's control store, before a worker looks for it; return Ray's reference to it."""
    from ray import cloudpickle
    from ray._private.ray_constants import KV_NAMESPACE_FUNCTION_TABLE
    from ray._private.runtime_env.setup_hook import RUNTIME_ENV_FUNC_IDENTIFIER

    entry = pickle.dumps({"function": cloudpickle.dumps(hook)})
    node.get_gcs_client().internal_kv_put(_KEY, entry, True, KV_NAMESPACE_FUNCTION_TABLE)
    return str(RUNTIME_ENV_FUNC_IDENTIFIER + base64.b64encode(_KEY).decode())


def _can_publish() -> bool:
    """Return whether this version of Ray keeps setup hooks where :func:`_published` puts one."""
    try:
        from ray._private import ray_constants, services
        from ray._private.node import Node
        from ray._private.runtime_env import setup_hook
    except ImportError:
        return False
    return (
        getattr(ray_constants, "WORKER_PROCESS_SETUP_HOOK_ENV_VAR", None) == HOOK_VARIABLE
        and hasattr(ray_constants, "KV_NAMESPACE_FUNCTION_TABLE")
        and hasattr(setup_hook, "RUNTIME_ENV_FUNC_IDENTIFIER")
        and hasattr(services, "find_bootstrap_address")
        and all(name in vars(Node) for name in ("start_ray_processes", "get_gcs_client"))
    )
