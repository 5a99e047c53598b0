"""Call arguments → a dict by parameter name, at a fraction of ``inspect.Signature.bind``'s cost.

Binding is done by Python itself: from a function's signature another function with the same parameters is
generated, whose body returns them as a dict.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

Binder = Callable[..., dict[str, Any]]


def positional(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The binder of a callable whose signature cannot be read (some builtins)."""
    return {**({"args": list(args)} if args else {}), **kwargs}


def make_binder(function: Callable[..., Any]) -> Binder:
    """A function that takes the arguments of ``function`` and returns them by name, defaults included.

    A first parameter named ``self`` or ``cls`` is left out. The function raises ``TypeError`` where
    ``function`` would.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return positional
    namespace: dict[str, Any] = {}
    declared: list[str] = []
    shown: list[str] = []
    for index, parameter in enumerate(parameters):
        declared.extend(_declaration(index, parameter, parameters, namespace))
        if not (index == 0 and parameter.name in ("self", "cls")):
            shown.append(f"{parameter.name!r}: {parameter.name}")
    # Names and defaults come from the function's own signature; nothing else enters the source.
    source = f"def bind({', '.join(declared)}): return {{{', '.join(shown)}}}"
    exec(source, namespace)  # noqa: S102
    binder: Binder = namespace["bind"]
    return binder


def _declaration(
    index: int,
    parameter: inspect.Parameter,
    parameters: list[inspect.Parameter],
    namespace: dict[str, Any],
) -> list[str]:
    """How one parameter is declared, with the ``/`` or ``*`` that stands beside it."""
    kind = parameter.kind
    text = parameter.name
    if kind is parameter.VAR_POSITIONAL:
        return [f"*{text}"]
    if kind is parameter.VAR_KEYWORD:
        return [f"**{text}"]
    if parameter.default is not parameter.empty:
        namespace[f"default_{index}_"] = parameter.default
        text += f"=default_{index}_"
    before = parameters[index - 1].kind if index else None
    after = parameters[index + 1].kind if index + 1 < len(parameters) else None
    out = [text]
    if kind is parameter.KEYWORD_ONLY and before not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
        out.insert(0, "*")
    if kind is parameter.POSITIONAL_ONLY and after is not parameter.POSITIONAL_ONLY:
        out.append("/")
    return out
