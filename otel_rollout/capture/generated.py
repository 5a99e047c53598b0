"""Wrappers of generator functions.

The wrapper of a generator function has to be one as well, for that is how frameworks know them; and it has
to refuse wrong arguments when called, not when first asked for an item. So it has the parameters of the
function itself: it is generated from its signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from otel_rollout.capture.generator_driver import AsyncSteps, Steps
from otel_rollout.capture.signature import Parameters

_SOURCE: Final = """\
{define} call({declared}):
    rollout_steps_ = rollout_steps_of_({forwarded})
    {forget}
    while {advance}:
        try:
            rollout_steps_.send((yield rollout_steps_.take()))
        except BaseException as rollout_error_:
            rollout_steps_.throw(rollout_error_)
{end}
"""


def generated(
    function: Callable[..., Any], define: str, begin_steps: Callable[..., Steps | AsyncSteps]
) -> Callable[..., Any]:
    """A generator function with the parameters of ``function``; ``begin_steps`` makes its steps of them."""
    parameters = Parameters(function, follow_wrapped=False)
    source = _SOURCE.format(
        define=define,
        declared=parameters.declared(),
        forwarded=parameters.forwarded(),
        # Arguments live as long as the function lets them.
        forget=f"del {', '.join(parameters.names)}" if parameters.names else "",
        advance=("" if define == "def" else "await ") + "rollout_steps_.advance()",
        end="    return rollout_steps_.value" if define == "def" else "",
    )
    namespace: dict[str, Any] = {
        **parameters.defaults,
        "rollout_steps_of_": begin_steps,
    }
    exec(source, namespace)  # noqa: S102 - names and defaults come from the function's own signature
    call: Callable[..., Any] = functools.wraps(function)(namespace["call"])
    return call
