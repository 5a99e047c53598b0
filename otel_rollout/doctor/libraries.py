"""Check which other libraries' spans are recorded, and which HTTP requests carry ``traceparent``.

In the program itself (``otel_rollout.doctor.examine()``) the findings tell what is imported, switched on and
set there. The command sees the variables and the installed packages.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any, Final

from opentelemetry import trace

from otel_rollout.base.errors import internal_errors
from otel_rollout.doctor.diagnosis import DoctorCheck, DoctorFinding
from otel_rollout.exporting.batching import grouped
from otel_rollout.integrations.instrumentor_switch import module_of
from otel_rollout.integrations.instrumentors import (
    HTTP_CLIENTS,
    Choice,
    Instrumentor,
    choose,
    doubled,
    installed,
)
from otel_rollout.record.propagation import http_clients
from otel_rollout.record.propagation.state import state as propagation
from otel_rollout.record.recording import joining
from otel_rollout.record.recording.application import Application, sdk_provider_in
from otel_rollout.record.recording.exception_text import qualified_name
from otel_rollout.settings import Settings

CHECK: Final = DoctorCheck("instrumentors")
_OTHER_SPANS: Final = DoctorCheck("other spans")
_SETTING: Final = "OTEL_ROLLOUT_INSTRUMENT"
_FEW_ATTRIBUTES: Final = 1000
"""Attributes that a span with a conversation may have; a provider that keeps fewer loses messages."""
_ROOT: Final = re.compile(r"ParentBased\{root:(.*?),remoteParent")
_SHARE: Final = re.compile(r"TraceIdRatioBased\{([0-9.e-]+)\}")


def check_libraries(configured: Settings) -> Iterator[DoctorFinding]:
    """Check the instrumentors, what becomes of other libraries' spans, and the HTTP clients."""
    found = installed()
    choice = choose(configured.instrument, found)
    yield from _check_instrumentors(configured, found, choice)
    yield from _check_loss(configured, found, choice)
    yield from _check_way(configured)
    yield _check_clients(configured, found, choice)


def check_chosen(configured: Settings) -> Iterator[DoctorFinding]:
    """Check the chosen instrumentors on a node, whose packages may differ from the driver's."""
    if configured.instrument:
        choice = choose(configured.instrument, installed())
        chosen = _named(choice.instrumentors) or "none"
        yield CHECK.ok(f"{_SETTING} switches on, with their libraries: {chosen}")
        yield from _unusable_choices(choice)


def versions_of_chosen(configured: Settings) -> dict[str, str]:
    """Return distribution → version of the chosen instrumentors and of the libraries that they instrument."""
    chosen = choose(configured.instrument, installed()).instrumentors if configured.instrument else []
    own = {each.distribution: each.version for each in chosen}
    return own | versions_of(each.library for each in chosen)


def versions_of(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    found = {}
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


# --- Instrumentors ------------------------------------------------------------------------------------------


def _check_instrumentors(
    configured: Settings, found: Sequence[Instrumentor], choice: Choice
) -> Iterator[DoctorFinding]:
    if not found:
        found_text = "none is installed; libraries that emit OpenTelemetry spans by themselves need none"
        yield CHECK.ok(found_text)
    chosen = [each for each in choice.instrumentors if not each.is_on]
    others = [each for each in found if each not in choice.instrumentors and not each.is_on]
    usable = [each for each in others if not each.problem]
    for state, members in (
        ("on in this process", [each for each in found if each.is_on]),
        (f"{_SETTING} switches on, when the program imports the library", chosen),
        (f"not switched on, unless the program or {_SETTING} does so", usable),
    ):
        if members:
            yield CHECK.ok(f"{state}: {_named(members)}")
    unusable = [each for each in others if each.problem]
    if unusable:
        reasons = "; ".join(f"{each.key} of {_name(each)}: {each.problem}" for each in unusable)
        yield CHECK.ok(f"installed, not used (what they instrument is missing or too old): {reasons}")
    yield from _unusable_choices(choice)
    yield from _check_imported(found, choice)
    for several in doubled(found):
        names = " and ".join(map(_name, several))
        advice = "Switch one of them off: each call is recorded twice."
        yield CHECK.warn(f"{names} are both on for {several[0].key}", advice)


def _unusable_choices(choice: Choice) -> Iterator[DoctorFinding]:
    for sentence in choice.problems:
        advice = f"Install what is missing, or correct {_SETTING}: these spans would be missing."
        yield CHECK.warn(f"{_SETTING}: {sentence}", advice)


def _check_imported(found: Iterable[Instrumentor], choice: Choice) -> Iterator[DoctorFinding]:
    """Check for libraries that this process has imported and no instrumentor records."""
    for key, several in grouped(found, lambda each: each.key).items():
        if any(each.is_on for each in several) or key in HTTP_CLIENTS:
            continue
        imported = [each for each in several if _is_imported(each)]
        usable = [each for each in imported if not each.problem]
        if usable:
            text = f"{usable[0].library} is imported, and no instrumentor of it is on"
            advice = f"Set {_SETTING}={key} and call otel_rollout.instrument(): its spans are missing."
            if key in {each.key for each in choice.instrumentors}:
                advice = f"Call otel_rollout.instrument(), which switches on what {_SETTING} names."
            yield CHECK.warn(text, advice)
        elif imported:
            text = f"{imported[0].library} is imported, and {_name(imported[0])} cannot be used"
            advice = f"Its spans are missing, because {imported[0].problem}. Install a version that fits."
            yield CHECK.warn(text, advice)


def _is_imported(instrumentor: Instrumentor) -> bool:
    """Return whether this process has imported the library; False if the library is not installed."""
    return bool(versions_of([instrumentor.library])) and module_of(instrumentor.library) in sys.modules


def _named(members: Iterable[Instrumentor]) -> str:
    return ", ".join(dict.fromkeys(map(_name, members)))


def _name(instrumentor: Instrumentor) -> str:
    return f"{instrumentor.distribution} {instrumentor.version}".rstrip()


# --- Spans that would be lost -------------------------------------------------------------------------------


def _check_loss(
    configured: Settings, found: Sequence[Instrumentor], choice: Choice
) -> Iterator[DoctorFinding]:
    if not configured.enabled:
        why = "OTEL_SDK_DISABLED is true" if configured.sdk_disabled else "tracing is off"
        if found:
            advice = "Switch tracing on, see the row `tracing`."
            yield _OTHER_SPANS.warn(f"not recorded, because {why}", advice)
        return
    yield from _check_sampler(configured)
    problem = joining.problem()
    provider = trace.get_tracer_provider()
    sdk_provider = sdk_provider_in(provider)
    if sdk_provider is not None:
        yield from _check_sdk_provider(sdk_provider, is_used=bool(found or choice.instrumentors))
    elif isinstance(provider, _OF_NOBODY):
        if problem:
            yield _OTHER_SPANS.warn(problem, _GIVE_PROVIDER)
        else:
            found_text = "recorded inside trajectories, with or without a tracer provider of the application"
            yield _OTHER_SPANS.ok(found_text)
    else:
        found_text = (
            f"the tracer provider is {qualified_name(type(provider))}, which is none of OpenTelemetry's SDK"
        )
        yield _OTHER_SPANS.warn(found_text, _GIVE_PROVIDER)


def _check_way(configured: Settings) -> Iterator[DoctorFinding]:
    """Check how spans of trajectories are recorded beside a provider that the application has set."""
    provider = trace.get_tracer_provider()
    if configured.enabled and not isinstance(provider, _OF_NOBODY):
        described = Application(configured).described(provider)
        yield DoctorCheck("own spans").ok(described)


_OF_NOBODY: Final = (trace.ProxyTracerProvider, joining.JoinedTracerProvider)
"""Types of the present provider if the application has set none."""
_GIVE_PROVIDER: Final = (
    "Spans of other libraries go past trajectories: give instrumentors "
    "tracer_provider=otel_rollout.tracer_provider()."
)


def _check_sampler(configured: Settings) -> Iterator[DoctorFinding]:
    """Check the variables of sampling, which also leave out other libraries' spans."""
    name = configured.sampler.strip().lower().removeprefix("parentbased_")
    share = {"always_off": 0.0, "traceidratio": _number(configured.sampler_arg)}.get(name, 1.0)
    if share < 1:
        found = (
            f"OTEL_TRACES_SAMPLER leaves out {100 * (1 - share):.3g}% of trajectories, with all spans inside"
        )
        yield _OTHER_SPANS.warn(found, "Unset it to record every trajectory.")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def _check_sdk_provider(provider: Any, is_used: bool) -> Iterator[DoctorFinding]:
    """Check the application's provider of OpenTelemetry's SDK, through which other libraries' spans go."""
    if getattr(provider, "_disabled", False):
        found = "OTEL_SDK_DISABLED was true when the application made its tracer provider: it makes no spans"
        yield _OTHER_SPANS.warn(found, "Unset the variable before the program starts.")
        return
    description = _described_sampler(provider)
    root = _ROOT.match(description)
    of_root = root[1] if root is not None else description
    share = _SHARE.search(of_root)
    if "AlwaysOff" in of_root or (share is not None and float(share[1]) < 1):
        found = f"the sampler of the application's tracer provider, {of_root}, leaves out trajectories"
        advice = "Give that provider the sampler ALWAYS_ON; OTEL_ROLLOUT_SAMPLE_GROUPS samples whole groups."
        yield _OTHER_SPANS.warn(found, advice)
    limit = getattr(getattr(provider, "_span_limits", None), "max_span_attributes", None)
    if is_used and limit is not None and limit < _FEW_ATTRIBUTES:
        found = f"the application's tracer provider keeps {limit} attributes of a span: messages may be lost"
        advice = "Set OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=10000, or give that provider other SpanLimits."
        yield _OTHER_SPANS.warn(found, advice)
    found = "recorded inside trajectories, through the application's tracer provider"
    yield _OTHER_SPANS.ok(found)


def _described_sampler(provider: Any) -> str:
    with internal_errors("describing a sampler"):
        return str(provider.sampler.get_description())
    return ""


# --- HTTP clients -------------------------------------------------------------------------------------------


def _check_clients(configured: Settings, found: Iterable[Instrumentor], choice: Choice) -> DoctorFinding:
    """Check which HTTP clients' requests carry ``traceparent``, and to which hosts."""
    check, hosts = DoctorCheck("traceparent"), configured.traceparent_hosts
    senders = [each for each in found if each.key in HTTP_CLIENTS]
    to_all = [each for each in senders if each.is_on or each in choice.instrumentors]
    if to_all:
        advice = (
            f"Name the instrumentors that you need in {_SETTING}, without these, unless the header may go to "
            "public hosts: OTEL_ROLLOUT_TRACEPARENT_HOSTS does not restrict instrumentors."
        )
        return check.warn(f"to every host, by the instrumentors {_named(to_all)}", advice)
    if hosts == "none":
        return check.ok("on no request: OTEL_ROLLOUT_TRACEPARENT_HOSTS is none")
    versions = versions_of((*http_clients.CLIENTS, "requests"))  # requests sends with one of them
    clients = ", ".join(f"{name} {version}" for name, version in versions.items()) or "none is installed"
    when = "" if propagation.http_patches is not None else ", after otel_rollout.instrument()"
    return check.ok(f"to hosts of OTEL_ROLLOUT_TRACEPARENT_HOSTS={hosts}{when}, by the clients: {clients}")
