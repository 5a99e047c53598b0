"""How a job's workers come to take part: through the job's ``runtime_env``.

It gives them the driver's settings as variables, which reach the workers of a cluster that ran before the
driver too, and a setup hook. The hook is a function pickled by value: Ray kills every worker that lacks a
module named in a hook, so it must not name ours.

Ray writes the variables of a runtime_env to ``runtime_env_agent.log`` on every node. So what may be a
credential stands there as :data:`HIDDEN`, and the hook, which Ray does not show, puts the value in. A
variable that a task or actor has of its own is not HIDDEN, and stays.
"""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from otel_rollout.base.environment import PREFIXES, may_be_credential
from otel_rollout.propagation import ray_names, ray_runs
from otel_rollout.propagation.ray_send import ARGUMENT
from otel_rollout.runs import membership
from otel_rollout.runs.ray_job import RECEIVER_MARK
from otel_rollout.settings import CONFIG_VARIABLE

RuntimeEnv = Mapping[str, Any]

HIDDEN: Final = "hidden-by-otel-rollout"
_NODE_VARIABLE: Final = "OTEL_ROLLOUT_NODE"
_HOOK: Final = "worker_process_setup_hook"
_RAYS_HOOK_VARIABLE: Final = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
SUBMITTED_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""How ``ray job submit`` hands its runtime_env to the driver; Ray refuses to find a key in both."""
_EXCLUSIVE: Final = ("container", "image_uri")
"""Keys that Ray allows beside ``env_vars`` only."""

_logger = logging.getLogger("otel_rollout")


def ray_runtime_env(runtime_env: RuntimeEnv | None = None) -> Any:
    """What to give ``ray.init(runtime_env=…)`` so that the job's workers record and join trajectories.

    For programs that would rather not have ``ray.init`` wrapped::

        ray.init(runtime_env=ray_runtime_env({"env_vars": {"NCCL_DEBUG": "WARN"}}))

    Args:
        runtime_env: the job's own, whose variables win and whose setup hook is called as well. It is not
            changed.

    Returns:
        A runtime_env of the same type; the one given when tracing is off, or when it was prepared before.
    """
    return _prepared(runtime_env, {})


def arranged(arguments: dict[str, Any], environ: Mapping[str, str]) -> tuple[dict[str, Any], str | None]:
    """Change the keyword arguments of ``ray.init`` so that the job's workers take part.

    Returns:
        The arguments, and what the variable of a submitted job is to be during the call, if it is set.
    """
    submitted = environ.get(SUBMITTED_JOB)
    job = json.loads(submitted) if submitted else {}
    theirs = job.get("runtime_env") or {}
    given = arguments.get("runtime_env")
    if given is None:
        given = getattr(arguments.get("job_config"), "runtime_env", None)
    hook = theirs.get(_HOOK)
    prepared = _prepared(given, theirs)
    if prepared is None:
        return arguments, submitted
    if hook is not None and _HOOK in prepared:  # composed with ours, it comes from us alone
        submitted = json.dumps({**job, "runtime_env": {k: v for k, v in theirs.items() if k != _HOOK}})
    return {**arguments, "runtime_env": prepared}, submitted


def _prepared(given: RuntimeEnv | None, submitted: RuntimeEnv) -> Any:
    """A runtime_env with our part in it.

    Args:
        given: what the driver says.
        submitted: what Ray is going to merge into that, and must not find in both.
    """
    if (
        not membership.settle_for_workers().enabled
    ):  # first: this founds the run, in a variable that is copied
        return given
    own = dict((given or {}).get("env_vars") or {})
    theirs = dict(submitted.get("env_vars") or {})
    if RECEIVER_MARK in own or RECEIVER_MARK in theirs:
        return given
    copied = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PREFIXES)
        and name not in own
        and name not in theirs
        and name != _NODE_VARIABLE  # each machine has its own
    }
    secrets = {name: value for name, value in copied.items() if _may_be_credential(name, value)}
    prepared: Any = copy.copy(given) if given is not None else {}
    if _can_have_hook({**submitted, **(given or {})}, {**theirs, **own}):
        prepared[_HOOK] = setup_hook((given or {}).get(_HOOK) or submitted.get(_HOOK), secrets)
        copied |= {
            **dict.fromkeys(secrets, HIDDEN),
            RECEIVER_MARK: ",".join(sorted({*copied, *own, *theirs})),
        }
    else:
        copied = {name: value for name, value in copied.items() if name not in secrets} | _configuration()
    prepared["env_vars"] = {**copied, **own}
    ray_runs.begin(membership.run_id())
    return prepared


def _may_be_credential(name: str, value: str) -> bool:
    return name == CONFIG_VARIABLE or may_be_credential(name, value)  # the first may hold an exporter's


def _configuration() -> dict[str, str]:
    """What workers cannot do without: the run they belong to."""
    return {CONFIG_VARIABLE: os.environ[CONFIG_VARIABLE]}


def _can_have_hook(runtime_env: RuntimeEnv, variables: Mapping[str, str]) -> bool:
    try:
        ray_names.look_up()
    except ray_names.UnsupportedRay:  # instrument() has said so
        return False
    obstacle = _obstacle(runtime_env, variables)
    if obstacle is not None:
        _logger.warning(
            "otel-rollout: trajectories do not continue in this job's workers: %s, beside which Ray allows "
            "no setup hook of ours. Credentials have to be given to the workers by other means.",
            obstacle,
        )
    return obstacle is None


def _obstacle(runtime_env: RuntimeEnv, variables: Mapping[str, str]) -> str | None:
    for key in _EXCLUSIVE:
        if runtime_env.get(key):
            return f"its runtime_env has {key!r}"
    if _RAYS_HOOK_VARIABLE in variables:
        return "it inherits the setup hook of another job"
    return None


def setup_hook(user_hook: Callable[[], Any] | str | None, secrets: Mapping[str, str]) -> Callable[[], None]:
    """The function that Ray runs in every worker of the job before anything else.

    Args:
        user_hook: the job's own, called before our part; when it fails, the worker does, as without us.
        secrets: the values of variables that stand as HIDDEN in the runtime_env.
    """
    argument, hidden = ARGUMENT, HIDDEN

    # Nested, so that it is pickled by value; hence it may name builtins and what it imports, and nothing
    # of this module.
    def otel_rollout_worker_setup() -> None:
        import importlib
        import logging
        import os
        import sys

        for name, value in secrets.items():
            if os.environ.get(name) == hidden:
                os.environ[name] = value
        if isinstance(user_hook, str):
            module, _, function = user_hook.rpartition(".")
            getattr(importlib.import_module(module), function)()
        elif user_hook is not None:
            user_hook()

        def refuse_context(signature: Any) -> None:
            recover = signature.recover_args

            def recover_args(flattened: Any) -> Any:
                args, kwargs = recover(flattened)
                kwargs.pop(argument, None)
                return args, kwargs

            signature.recover_args = recover_args

        try:
            from otel_rollout.propagation.instrument import instrument_worker

            instrument_worker()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with us here, the worker must work
            # Callers cannot know that this worker lacks the library, and send their context here too.
            for place in ("ray._common.signature", "ray._private.signature"):
                try:
                    refuse_context(importlib.import_module(place))
                    break
                except (ImportError, AttributeError):
                    continue
            logging.getLogger("otel_rollout").warning(
                "otel-rollout cannot be used in Ray workers that run %s (%s: %s). The job runs; what these "
                "workers do is not recorded. Install otel-rollout there.",
                sys.executable,
                type(error).__name__,
                error,
            )

    return otel_rollout_worker_setup
