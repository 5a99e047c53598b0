"""Bind call arguments to a dict by parameter name.

A generated function has the parameters of the original one, and returns them as a dict. So Python itself
binds the arguments, which is faster than ``inspect.Signature.bind``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

Binder = Callable[..., dict[str, Any]]
_RECEIVERS = ("self", "cls")


class _Name:
    """A default value that is shown as a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


class Parameters:
    """The parameters of a function, as source text.

    Args:
        function: something callable.
        follow_wrapped: whether to read the parameters of the wrapped function (``functools.wraps``).

    Raises:
        ValueError: when the parameters cannot be read (some builtins).
        TypeError: when the parameters cannot be read (some other callables).
    """

    def __init__(self, function: Callable[..., Any], follow_wrapped: bool = True) -> None:
        signature = inspect.signature(function, follow_wrapped=follow_wrapped)
        # Ray writes a parameter of its own into the signatures of an actor's methods, and passes it to none.
        self._parameters = [each for each in signature.parameters.values() if each.name != "_ray_trace_ctx"]
        self.names = [parameter.name for parameter in self._parameters]
        first = self._parameters[0] if self._parameters else None
        self.has_receiver = (
            first is not None
            and first.name in _RECEIVERS
            and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
        )
        self.extra = next((p.name for p in self._parameters if p.kind is p.VAR_KEYWORD), None)
        self.defaults = {
            f"default_{index}_": parameter.default
            for index, parameter in enumerate(self._parameters)
            if parameter.default is not parameter.empty
        }

    def declared(self) -> str:
        """Return the parameter list of a ``def``; defaults are names in ``defaults``."""
        shown = [each.replace(annotation=each.empty) for each in self._parameters]
        for index, each in enumerate(shown):
            if each.default is not each.empty:
                shown[index] = each.replace(default=_Name(f"default_{index}_"))
        return str(inspect.Signature(shown))[1:-1]

    def forwarded(self) -> str:
        """Return the argument list of a call that passes the parameters on."""
        return ", ".join(_forwarding(parameter) for parameter in self._parameters)

    def as_dict(self, exclude: Collection[str]) -> str:
        """Return the source of a dict of the parameters, without the receiver and excluded ones."""
        hidden = {*exclude, *(self.names[:1] if self.has_receiver else ())}
        items = [f"{name!r}: {name}" for name in self.names if name not in hidden]
        unnamed = sorted(set(exclude).difference(self.names))
        if unnamed and self.extra is not None and self.extra not in hidden:
            rest = f"{{k: v for k, v in {self.extra}.items() if k not in {unnamed!r}}}"
            items[-1] = f"{self.extra!r}: {rest}"
        return f"{{{', '.join(items)}}}"


def _forwarding(parameter: inspect.Parameter) -> str:
    name = parameter.name
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{name}"
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{name}"
    return f"{name}={name}" if parameter.kind is parameter.KEYWORD_ONLY else name


def positional(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Bind the arguments of a callable whose signature cannot be read."""
    return {**({"args": list(args)} if args else {}), **kwargs}


def make_binder(function: Callable[..., Any], exclude: Collection[str] = ()) -> Binder:
    """Generate a function that returns the arguments of ``function`` by name.

    The result includes defaults, but no first parameter named ``self`` or ``cls``. The generated function
    raises ``TypeError`` for the same arguments as ``function``.

    Args:
        function: something callable.
        exclude: names of arguments to leave out.

    Raises:
        ValueError: for a name in ``exclude`` that ``function`` does not take.
    """
    try:
        parameters = Parameters(function)
    except (TypeError, ValueError):
        if exclude:
            raise ValueError(f"exclude={exclude!r}: the parameters of {function!r} cannot be read") from None
        return positional
    unknown = sorted(set(exclude).difference(parameters.names))
    if unknown and parameters.extra is None:
        name = getattr(function, "__qualname__", repr(function))
        raise ValueError(
            f"exclude names {', '.join(map(repr, unknown))}, which {name}({', '.join(parameters.names)}) "
            "does not take"
        )
    namespace: dict[str, Any] = dict(parameters.defaults)
    # Names and defaults come from the function's own signature; nothing else enters the source.
    source = f"def bind({parameters.declared()}): return {parameters.as_dict(exclude)}"
    exec(source, namespace)  # noqa: S102
    binder: Binder = namespace["bind"]
    return binder
