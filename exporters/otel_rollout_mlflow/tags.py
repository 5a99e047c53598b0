"""Make a trace's id and tags from its spans, and conditions on tags."""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_rollout.base import semconv, training_scores
from otel_rollout.base.errors import warn_once
from otel_rollout.otlp.origin import Resource
from otel_rollout.otlp.span import Span
from otel_rollout_mlflow.storable import storable_attribute, storable_text

TRACE_ID_PREFIX: Final = "tr-"
"""Prefix of MLflow's trace ids, before OpenTelemetry's trace id in hex."""
MAX_TAG_CHARS: Final = 8000
"""Maximum characters of a tag's value; a longer one is cut. MLflow's servers cut it too, or drop the tag."""
MAX_TAG_NAME_CHARS: Final = 250
RESOURCE_ATTRIBUTES: Final = (
    semconv.RUN_ID,
    semconv.SERVICE_NAME,
    "service.namespace",
    "service.version",
    "deployment.environment.name",
)
"""Resource attributes that become tags of every trace. Ids of processes and files do not."""
_BOOKKEEPING: Final = "mlflow."
"""Prefix of MLflow's own tags, which no attribute or score may overwrite."""
_IDENTITY_TAGS: Final = tuple(name for name in semconv.IDENTITY if name != semconv.PROJECT_NAME)
"""Identity attributes that become tags: all but the project, which names the experiment."""
_TAG_NAME: Final = re.compile(r"[/\w.\- :]+")
NOT_FOR_SCORES: Final = frozenset({*RESOURCE_ATTRIBUTES, *map(semconv.short_name, semconv.IDENTITY)})
"""Tags that identify the trajectory; a score with one of these names is feedback only."""
FEEDBACK_ONLY: Final = frozenset(
    value for name, value in vars(training_scores).items() if name.isupper() and isinstance(value, str)
)
"""Scores that say what training made of a trajectory. They are many, and a search for feedback finds them, so
tags would only double the requests."""
_SHOWN_CHARS: Final = 80
_logger = logging.getLogger(__name__)


def trace_id_of(span: Span) -> str:
    """Return MLflow's id of a span's trace; MLflow derives it from the trace id."""
    return f"{TRACE_ID_PREFIX}{span.trace_id}"


def quoted(text: str) -> str:
    """Quote a string for MLflow's search syntax, which has no escapes."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def trace_tags(attributes: Mapping[str, AttributeValue]) -> dict[str, str]:
    """Return the tags of a root span: its identity, scores and ``rollout.*``.

    Values are ``str(value)``, as verl writes them: ``'1'``, ``'False'``. Where names are equal, identity wins
    over scores, and scores win over other attributes.
    """
    return {name: text for name, text in _wanted_tags(attributes).items() if problem_of_tag(name) is None}


def problem_of_tag(name: str) -> str | None:
    """Return why MLflow silently drops tags with a name; None if MLflow keeps them."""
    if name.startswith(_BOOKKEEPING):
        return "names that begin with 'mlflow.' are MLflow's own"
    if len(name) > MAX_TAG_NAME_CHARS:
        return f"it has {len(name)} characters of at most {MAX_TAG_NAME_CHARS}"
    if not _TAG_NAME.fullmatch(name):
        return "it may hold letters, digits, spaces and _ - . : / only"
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        return "it may be no path such as /a, a/ or ../a"
    return None


def _wanted_tags(attributes: Mapping[str, AttributeValue]) -> dict[str, str]:
    tags: dict[str, str] = {}
    if not semconv.is_of_trajectory(attributes):  # a search by this tag finds trajectories
        attributes = {name: value for name, value in attributes.items() if name != semconv.VALIDATE}
    for name, value in attributes.items():
        if name.startswith(semconv.SCORE_PREFIX):
            short = name.removeprefix(semconv.SCORE_PREFIX)
            if short not in NOT_FOR_SCORES and short not in FEEDBACK_ONLY:
                tags[short] = tag_text(value)
    for name, value in attributes.items():
        if name.startswith(semconv.EXTRA_PREFIX) and not _is_no_tag(name):
            tags.setdefault(semconv.short_name(name), tag_text(value))
    for name in _IDENTITY_TAGS:
        if name in attributes:
            tags[semconv.short_name(name)] = tag_text(attributes[name])
    tags.pop("", None)
    return tags


def _is_no_tag(name: str) -> bool:
    """Return whether MLflow stores an attribute as experiment or feedback, and not as a tag."""
    return name == semconv.PROJECT_NAME or name.startswith((semconv.SCORE_PREFIX, semconv.SCORE_TIME_PREFIX))


def tag_text(value: AttributeValue) -> str:
    """Format a value as a tag, with ``str`` or as JSON; cut it to ``MAX_TAG_CHARS``."""
    text = str(value) if isinstance(value, (str, bool, int, float)) else json.dumps(value, default=str)
    return storable_text(text[:MAX_TAG_CHARS])


def useful_resource(resource: Resource) -> Resource:
    """Remove resource attributes that are not useful tags: MLflow makes a tag of each."""
    attributes = {
        key: storable_attribute(resource.attributes[key])
        for key in RESOURCE_ATTRIBUTES
        if key in resource.attributes
    }
    if str(attributes.get(semconv.SERVICE_NAME, "")).startswith("unknown_service"):
        del attributes[semconv.SERVICE_NAME]
    return Resource(attributes)


def warn_of_refused(spans: Iterable[Span]) -> None:
    """Warn, once for each name, of attributes of root spans of which MLflow silently makes no tag."""
    wanted = (name for span in spans if not span.parent_id for name in _wanted_tags(span.attributes))
    for name in wanted:
        if problem := problem_of_tag(name):
            shown = name if len(name) <= _SHOWN_CHARS else f"{name[:_SHOWN_CHARS]}…"
            warn_once(
                f"MLflow takes no trace tag {shown!r}: {problem}. Its value is on the root span alone; "
                "give it another name",
                f"trace tag {name}",
                _logger,
            )
