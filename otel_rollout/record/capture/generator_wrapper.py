"""Generate wrappers of generator functions.

The wrapper of a generator function has to be a generator function, because frameworks check that. A wrong
argument has to raise at the call, not at the first step. So each wrapper is generated with the parameters of
its function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from otel_rollout.record.capture.generator_driver import AsyncSteps, Steps
from otel_rollout.record.capture.signature import Parameters

_SOURCE: Final = """\
{define} call({declared}):
    rollout_steps_ = rollout_start_steps_({forwarded})
    {forget}
    while {advance}:
        try:
            rollout_steps_.send((yield rollout_steps_.take()))
        except BaseException as rollout_error_:
            rollout_steps_.throw(rollout_error_)
{end}
"""


def generate_wrapper(
    function: Callable[..., Any], define: str, start_steps: Callable[..., Steps | AsyncSteps]
) -> Callable[..., Any]:
    """Generate a generator function with the parameters of another one.

    Args:
        function: the function with the parameters.
        define: ``def`` or ``async def``.
        start_steps: makes the steps of a call from its arguments.
    """
    parameters = Parameters(function, follow_wrapped=False)
    source = _SOURCE.format(
        define=define,
        declared=parameters.declared(),
        forwarded=parameters.forwarded(),
        # The wrapper must not keep arguments alive for longer than the function does.
        forget=f"del {', '.join(parameters.names)}" if parameters.names else "",
        advance=("" if define == "def" else "await ") + "rollout_steps_.advance()",
        end="    return rollout_steps_.value" if define == "def" else "",
    )
    namespace: dict[str, Any] = {
        **parameters.defaults,
        "rollout_start_steps_": start_steps,
    }
    exec(source, namespace)  # noqa: S102 - names and defaults come from the function's own signature
    call: Callable[..., Any] = functools.wraps(function)(namespace["call"])
    return call
