"""Prepare the workers of a Ray job.

A prepared job has variables and a setup hook in its ``runtime_env``. A cluster that ``ray.init`` starts needs
no runtime_env (:mod:`otel_rollout.record.propagation.ray_own_cluster`).

The variables are the driver's settings. They also reach workers of a cluster that was started before the
driver. The hook is a function that is pickled by value. Ray kills a worker that cannot import the hook's
module, so unpickling the hook must not import this package.

Ray writes the variables of a runtime_env to ``runtime_env_agent.log`` on every node. So a variable that may
be a credential has the value :data:`HIDDEN` there. Ray does not log the hook, and the hook sets the real
value in the worker. The hook does not change a variable that a task or actor sets, whose value is not HIDDEN.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

from otel_rollout.base.environment import may_be_credential
from otel_rollout.base.errors import logger
from otel_rollout.base.given import items, reading
from otel_rollout.base.patching import environment_variables
from otel_rollout.record.propagation import ray_later_runs, ray_own_cluster, ray_private_api
from otel_rollout.record.propagation.ray_outgoing_calls import ARGUMENT
from otel_rollout.record.runs import membership
from otel_rollout.record.runs.ray_job import NODE_VARIABLES, RECEIVER_MARK, RECEIVES
from otel_rollout.settings import CONFIG_VARIABLE

RuntimeEnv = Mapping[str, Any]

HIDDEN: Final = "hidden-by-otel-rollout"
"""Value of a variable whose real value the setup hook sets."""
_OF_NODE: Final = frozenset(
    {"OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}
)
"""Variables that a node may set for itself: the node's value takes precedence over the driver's."""
_HOOK: Final = "worker_process_setup_hook"
SUBMITTED_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable by which ``ray job submit`` gives the driver a runtime_env.

Ray refuses a job if the driver's own runtime_env has a key of the submitted one, except ``env_vars``.
"""
_EXCLUSIVE: Final = ("container", "image_uri")
"""Keys of a runtime_env with which Ray allows no further key except ``env_vars``."""


def ray_runtime_env(runtime_env: RuntimeEnv | None = None) -> Any:
    """Return the ``runtime_env`` of a job whose workers record and join trajectories.

    Use this function where ``ray.init`` must not be patched::

        ray.init(runtime_env=ray_runtime_env({"env_vars": {"NCCL_DEBUG": "WARN"}}))

    Args:
        runtime_env: the job's runtime_env, which is copied, not changed. Its variables take precedence over
            the driver's settings, and its setup hook is called first.

    Returns:
        A runtime_env of the argument's type; the argument itself if tracing is off, or if the argument was
        prepared before.
    """
    return _with_tracing(runtime_env, {})


class Preparation(NamedTuple):
    """What prepares the workers of the job that ``ray.init`` starts.

    Attributes:
        arguments: keyword arguments for ``ray.init``.
        during: context manager around the call of ``ray.init``.
    """

    arguments: dict[str, Any]
    during: AbstractContextManager[None] = nullcontext()


def prepare(args: Sequence[Any], arguments: dict[str, Any], environ: Mapping[str, str]) -> Preparation:
    """Prepare a call of ``ray.init``.

    Args:
        args: positional arguments of the call.
        arguments: keyword arguments of the call.
        environ: variables of this process.
    """
    submitted = environ.get(SUBMITTED_JOB)
    job = json.loads(submitted) if submitted else {}
    of_job = job.get("runtime_env") or {}
    given = arguments.get("runtime_env")
    if given is None:
        given = getattr(arguments.get("job_config"), "runtime_env", None)
    has_no_workers_to_start = sys.modules["ray"].is_initialized() or arguments.get("local_mode")
    # May start a run and set its variable.
    if has_no_workers_to_start or not membership.settle_for_workers().enabled:
        return Preparation(arguments)
    if not (given or of_job) and _is_supported() and ray_own_cluster.is_started_by(args, arguments, environ):
        ray_later_runs.set_first_run(membership.run_id())
        return Preparation(
            arguments,
            ray_own_cluster.preparing(setup_hook(None, {}, {}), ray_later_runs.variables_to_copy({})),
        )
    prepared = _with_tracing(given, of_job)
    if prepared is None:  # the submitted one is prepared
        return Preparation(arguments)
    if of_job.get(_HOOK) is not None and _HOOK in prepared:  # the prepared hook calls the submitted one
        submitted = json.dumps({**job, "runtime_env": {k: v for k, v in of_job.items() if k != _HOOK}})
    during = environment_variables({} if submitted is None else {SUBMITTED_JOB: submitted})
    return Preparation({**arguments, "runtime_env": prepared}, during)


def _with_tracing(given: RuntimeEnv | None, submitted: RuntimeEnv) -> Any:
    """Return a runtime_env that prepares the job's workers.

    Args:
        given: runtime_env of the driver.
        submitted: runtime_env of ``ray job submit``, which Ray will merge with the returned one.
    """
    if not membership.settle_for_workers().enabled:  # first: may start a run and set its variable
        return given
    with reading("runtime_env="):
        items(given or {})  # may be endless
        variables_of_driver = dict(items((given or {}).get("env_vars") or {}))
    variables_of_job = {**dict(submitted.get("env_vars") or {}), **variables_of_driver}
    if RECEIVER_MARK in variables_of_job:
        return given
    copied = ray_later_runs.variables_to_copy(variables_of_job)
    defaults = {name: value for name, value in copied.items() if name in _OF_NODE}
    secrets = {name: value for name, value in copied.items() if _may_be_credential(name, value)}
    prepared: Any = copy.copy(given) if given is not None else {}
    if _can_have_hook({**submitted, **(given or {})}, variables_of_job):
        user_hook = (given or {}).get(_HOOK) or submitted.get(_HOOK)
        prepared[_HOOK] = setup_hook(user_hook, secrets, defaults)
        copied |= dict.fromkeys(secrets, HIDDEN)
        copied = {name: value for name, value in copied.items() if name not in defaults}
        copied[RECEIVER_MARK] = ",".join(sorted({*copied, *variables_of_job}))
    else:
        copied = {name: value for name, value in copied.items() if name not in secrets}
        copied[CONFIG_VARIABLE] = os.environ[CONFIG_VARIABLE]  # without it workers would start runs
    prepared["env_vars"] = {**copied, **variables_of_driver}
    ray_later_runs.set_first_run(membership.run_id())
    return prepared


def _may_be_credential(name: str, value: str) -> bool:
    return name == CONFIG_VARIABLE or may_be_credential(name, value)  # CONFIG_VARIABLE has exporters' options


def _can_have_hook(runtime_env: RuntimeEnv, variables: Mapping[str, str]) -> bool:
    """Return whether the job can have a setup hook; warn if something forbids it."""
    if not _is_supported():
        return False
    obstacle = _obstacle(runtime_env, variables)
    if obstacle is not None:
        logger.warning(
            "otel-rollout: trajectories do not continue in this job's workers: %s, so Ray allows no setup "
            "hook of otel-rollout. The hook would also carry credentials: pass them to the workers yourself.",
            obstacle,
        )
    return obstacle is None


def _is_supported() -> bool:
    try:
        ray_private_api.look_up()
    except ray_private_api.UnsupportedRay:  # instrument() has warned
        return False
    return True


def _obstacle(runtime_env: RuntimeEnv, variables: Mapping[str, str]) -> str | None:
    for key in _EXCLUSIVE:
        if runtime_env.get(key):
            return f"its runtime_env has {key!r}"
    if ray_own_cluster.HOOK_VARIABLE in variables:
        return "it inherits the setup hook of another job"
    return None


def setup_hook(
    user_hook: Callable[[], Any] | str | None, secrets: Mapping[str, str], defaults: Mapping[str, str]
) -> Callable[[], None]:
    """Return the function that Ray runs first in every worker of the job.

    Args:
        user_hook: the job's own setup hook, called before tracing starts. Its exception ends the worker.
        secrets: real values of the variables that are HIDDEN in the runtime_env.
        defaults: values of variables that the worker's node does not set.
    """
    hidden, of_node, receives, remove_carriers = HIDDEN, NODE_VARIABLES, RECEIVES, _carrier_remover(ARGUMENT)
    # Ray has read the variable. A process that this worker starts may start a cluster that lacks the hook.
    of_ray = ray_own_cluster.HOOK_VARIABLE if user_hook is None else ""

    # A nested function is pickled by value. So it may use only builtins, its own imports and variables of
    # this call, but no name of this module.
    def otel_rollout_worker_setup() -> None:
        import importlib
        import logging
        import os
        import sys

        os.environ[receives] = "true"
        os.environ.pop(of_ray, None)
        for name, value in secrets.items():
            if os.environ.get(name) == hidden:
                os.environ[name] = value
        kept = [name for name, value in defaults.items() if os.environ.setdefault(name, value) != value]
        if kept:
            os.environ[of_node] = ",".join(kept)
        if isinstance(user_hook, str):
            module, _, function = user_hook.rpartition(".")
            getattr(importlib.import_module(module), function)()
        elif user_hook is not None:
            user_hook()
        try:
            # Every version has this name, and the worker may run another version than the driver.
            importlib.import_module("otel_rollout.propagation.ray_worker").instrument_worker()
        except Exception as error:  # noqa: BLE001 - the worker must run without this package
            remove_carriers()
            logging.getLogger("otel_rollout").warning(
                "otel-rollout cannot be used in Ray workers that run %s (%s: %s). The job runs; what these "
                "workers do is not recorded. Install otel-rollout there.",
                sys.executable,
                type(error).__name__,
                error,
            )

    return otel_rollout_worker_setup


def _carrier_remover(argument: str) -> Callable[[], None]:
    """Return a function that removes carriers in a worker without this package.

    Callers cannot know that the worker lacks the package, so their calls have carriers. The function is
    nested because only nested functions are pickled by value.
    """

    def remove_carriers() -> None:
        import importlib

        for name in ("ray._common.signature", "ray._private.signature"):
            try:
                signature: Any = importlib.import_module(name)
                recover = signature.recover_args
            except (ImportError, AttributeError):
                continue

            def recover_args(flattened: Any, recover: Callable[[Any], Any] = recover) -> Any:
                args, kwargs = recover(flattened)
                kwargs.pop(argument, None)
                return args, kwargs

            signature.recover_args = recover_args
            return

    return remove_carriers
