"""Find the installed instrumentors of other libraries, and choose among them.

An instrumentor is a subclass of OpenTelemetry's ``BaseInstrumentor`` in an installed distribution.
OpenTelemetry, OpenInference and OpenLLMetry publish theirs in the same entry-point groups. This module
imports none of them.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.metadata import Distribution, EntryPoint
from typing import Any, Final, NamedTuple

from otel_rollout.base.suggest import did_you_mean
from otel_rollout.base.version import VERSION
from otel_rollout.exporting.batching import grouped

GROUPS: Final = ("openinference_instrumentor", "opentelemetry_instrumentor")
"""Entry-point groups of instrumentors. OpenInference publishes its own in both."""
OWN_GROUP: Final = "otel_rollout_instrumentor"
"""Group of :data:`_OWN`. It is no entry-point group: other projects publish in :data:`GROUPS`."""
ALL: Final = "all"
"""The setting's word for every installed instrumentor, except those of HTTP clients."""
NONE: Final = frozenset({"none", "off", "false", "0"})
"""The setting's words for no instrumentor."""
HTTP_CLIENTS: Final = frozenset({"aiohttp-client", "httpx", "httpx2", "requests", "urllib", "urllib3"})
"""Names of instrumentors that add ``traceparent`` to requests to any host, also public ones.

``instrument()`` adds the header only to requests to hosts that ``OTEL_ROLLOUT_TRACEPARENT_HOSTS`` allows.
"""
_PREFERRED: Final = ("otel-rollout", "openinference-instrumentation-", "opentelemetry-instrumentation-")
"""Beginnings of distribution names, the best first.

Our own instrumentor of the OpenAI Agents SDK goes on when the program replaces the SDK's list of processors.
Others stop then: in a Ray worker, they are switched on before the program's own lines run. OpenInference's
spans have messages, tokens and tool calls as attributes, without a further setting.
"""
_OWN: Final = {
    "openai_agents": ("openai-agents", "OpenAIAgentsInstrumentor"),
    "pydantic_ai": ("pydantic-ai-slim", "PydanticAIInstrumentor"),
}
"""Instrumentors of this package, for libraries that trace by means of their own.

Each name maps to the library's distribution and to the class in ``otel_rollout.integrations.<name>``.
"""
_EXTRAS: Final = ("instruments", "instruments-any")
"""Extras of an instrumentor's distribution that name the libraries it instruments."""


@dataclass(frozen=True)
class Instrumentor:
    """An installed instrumentor.

    Attributes:
        name: name of its entry point, such as ``openai``. Instrumentors of one library share it.
        group: its entry-point group, one of :data:`GROUPS`; :data:`OWN_GROUP` for those of this package.
        distribution: its distribution, such as ``openinference-instrumentation-openai``.
        version: version of the distribution.
        library: distribution that it instruments, such as ``openai`` or ``langchain-core``.
        is_on: whether it instruments the library in this process.
        problem: why it cannot be switched on, as a clause (``openai is not installed``); empty if it can.
    """

    name: str
    group: str
    distribution: str
    version: str
    library: str
    is_on: bool
    problem: str
    entry_point: EntryPoint = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """The name in the form that instrumentors of one library share."""
        return normalized(self.name)


class Choice(NamedTuple):
    """The instrumentors that a setting chooses, and a sentence for each name that chooses none."""

    instrumentors: list[Instrumentor]
    problems: list[str]


def normalized(name: str) -> str:
    """Return a distribution's or entry point's name in lower case, with hyphens."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def installed() -> list[Instrumentor]:
    """Return the installed instrumentors, by name; imports none of them."""
    found: dict[tuple[str, str], Instrumentor] = {}
    for group in GROUPS:
        for point in metadata.entry_points(group=group):
            instrumentor = _described(point, group)
            found.setdefault((instrumentor.distribution, point.value), instrumentor)
    for own in _own():
        found[own.distribution, own.entry_point.value] = own
    return sorted(found.values(), key=lambda each: (each.key, _rank(each), each.distribution))


def choose(setting: str, found: Sequence[Instrumentor]) -> Choice:
    """Return the instrumentors that ``OTEL_ROLLOUT_INSTRUMENT`` chooses.

    Of several instrumentors of one library, choose one: that which is on already, else the preferred one. The
    name of a distribution chooses the distribution's instrumentors.

    Args:
        setting: ``all``, ``none``, or names, comma separated.
        found: the installed instrumentors.
    """
    names = [name for name in map(normalized, setting.split(",")) if name]
    if NONE.issuperset(names):
        return Choice([], [])
    if ALL in names:
        usable = [each for each in found if not each.problem and each.key not in HTTP_CLIENTS]
        known = {ALL} | {name for each in found for name in (each.key, normalized(each.distribution))}
        unknown = [name for name in dict.fromkeys(names) if name not in known]
        return Choice(_one_of_each(usable), [_unknown(name, found) for name in unknown])
    chosen: list[Instrumentor] = []
    problems: list[str] = []
    for name in dict.fromkeys(names):
        of_name = [each for each in found if name in (each.key, normalized(each.distribution))]
        usable = [each for each in of_name if not each.problem]
        chosen += _one_of_each(usable)
        if usable:
            continue
        if of_name:
            problems += [
                f"{each.distribution} {each.version} is not used: {each.problem}." for each in of_name
            ]
        else:
            problems.append(_unknown(name, found))
    return Choice(list(dict.fromkeys(chosen)), problems)


def is_importable(module: str) -> bool:
    """Return whether a module can be found; a package above it is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def doubled(found: Iterable[Instrumentor]) -> list[tuple[Instrumentor, ...]]:
    """Return the instrumentors that are on, of each library with more than one such."""
    by_key = grouped((each for each in found if each.is_on), lambda each: each.key)
    return [tuple(several) for several in by_key.values() if len(several) > 1]


def _unknown(name: str, found: Sequence[Instrumentor]) -> str:
    known = sorted({each.key for each in found})
    installed_names = f"Installed: {', '.join(known)}." if known else "None is installed."
    return f"no installed instrumentor is called {name!r}.{did_you_mean(name, known)} {installed_names}"


def _one_of_each(usable: Iterable[Instrumentor]) -> list[Instrumentor]:
    best: dict[str, Instrumentor] = {}
    for each in usable:
        other = best.get(each.key)
        if other is None or (not each.is_on, _rank(each)) < (not other.is_on, _rank(other)):
            best[each.key] = each
    return list(best.values())


def _rank(instrumentor: Instrumentor) -> list[bool]:
    """Return a key that is least for the best distribution."""
    return [not instrumentor.distribution.startswith(prefix) for prefix in _PREFERRED]


def _described(point: EntryPoint, group: str) -> Instrumentor:
    distribution = point.dist
    name = distribution.metadata["Name"] if distribution is not None else point.module
    version = distribution.version if distribution is not None else ""
    library, problem = _library_of(point.name, distribution)
    return Instrumentor(point.name, group, normalized(name), version, library, _is_on(point), problem, point)


def _own() -> Iterator[Instrumentor]:
    for name, (library, class_) in _OWN.items():
        point = EntryPoint(name, f"otel_rollout.integrations.{name}:{class_}", OWN_GROUP)
        problem = "" if any(metadata.distributions(name=library)) else f"{library} is not installed"
        yield Instrumentor(name, OWN_GROUP, "otel-rollout", VERSION, library, _is_on(point), problem, point)


def _is_on(point: EntryPoint) -> bool:
    """Return whether an instrumentor instruments its library; imports nothing."""
    class_: Any = sys.modules.get(point.module)
    for part in point.attr.split("."):
        class_ = getattr(class_, part, None)
    instance = getattr(class_, "_instance", None)
    return bool(getattr(instance, "is_instrumented_by_opentelemetry", False))


def _library_of(name: str, distribution: Distribution | None) -> tuple[str, str]:
    """Return the library that an instrumentor instruments, and why it cannot; empty if it can."""
    needed = list(_needed_libraries(distribution))
    of_name = [entry for entry in needed if normalized(entry.name) == normalized(name)]
    needed = of_name or needed
    if not needed:
        module = normalized(name).replace("-", "_")
        return normalized(name), "" if is_importable(module) else f"{name} is not installed"
    problems = []
    for requirement in needed:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            problems.append(f"{requirement.name} is not installed")
            continue
        if requirement.specifier.contains(version, prereleases=True):
            return requirement.name, ""
        wanted = f"{requirement.name}{requirement.specifier}"
        problems.append(f"it needs {wanted}, and version {version} is installed")
    return needed[0].name, " and ".join(problems)


def _needed_libraries(distribution: Distribution | None) -> Iterator[Any]:
    from packaging.requirements import InvalidRequirement, Requirement  # instrumentors depend on it

    for text in (distribution.requires if distribution is not None else None) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue
        if any(marker.evaluate({"extra": extra}) for extra in _EXTRAS):
            yield requirement
