"""Read segments independently, with Google's protobuf JSON parser.

It shares nothing with the code under test, and refuses unknown fields.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backports import zstd
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

IDS = ("traceId", "spanId", "parentSpanId")


@dataclass(frozen=True)
class Recorded:
    """A span read back, with what its line says of resource and scope."""

    span: Span
    resource: dict[str, Any]
    scope: str

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def attributes(self) -> dict[str, Any]:
        return plain_attributes(self.span.attributes)

    @property
    def input(self) -> Any:
        return json.loads(self.attributes["input.value"])

    @property
    def output(self) -> Any:
        return json.loads(self.attributes["output.value"])


def parse_line(line: bytes) -> TracesData:
    """Parse a line by the rules of OTLP/JSON: hex ids, no unknown fields.

    Protobuf's own JSON has base64.
    """
    return ParseDict(ids_to_base64(json.loads(line)), TracesData(), ignore_unknown_fields=False)


def ids_to_base64(data: Any) -> Any:
    """``TracesData`` with ids as protobuf's own JSON has them, changed in place."""
    for resource in data["resourceSpans"]:
        for scope in resource.get("scopeSpans") or ():
            for span in scope.get("spans") or ():
                for holder in (span, *(span.get("links") or ())):
                    _ids_to_base64(holder)
    return data


def _ids_to_base64(holder: dict[str, Any]) -> None:
    for key in IDS:
        if key in holder:
            assert holder[key] == holder[key].lower()
            holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()


def plain_attributes(attributes: Any) -> dict[str, Any]:
    keys = [entry.key for entry in attributes]
    assert len(keys) == len(set(keys)), f"duplicate attribute keys: {keys}"
    return {entry.key: plain_value(entry.value) for entry in attributes}


def plain_value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain_value(entry) for entry in value.array_value.values]
    if kind == "kvlist_value":
        return plain_attributes(value.kvlist_value.values)
    return getattr(value, kind) if kind else None


def segment_lines(path: Path) -> list[bytes]:
    """Every line of a segment file, compressed or not; a forwarder may just have archived it."""
    if not path.exists():
        path = next(path.parent.rglob(f"{path.name}.zst"), path)
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstd.decompress(data, options={zstd.DecompressionParameter.window_log_max: 27})
    return data.splitlines()


def read_segment(path: Path) -> list[Recorded]:
    """Every span of a segment file."""
    return read_lines(segment_lines(path))


def read_lines(lines: Iterable[bytes]) -> list[Recorded]:
    """Every span of lines of OTLP/JSON."""
    return [
        Recorded(span, plain_attributes(resource.resource.attributes), scope.scope.name)
        for line in lines
        for resource in parse_line(line).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def segments_below(directory: Path) -> list[Path]:
    """Every segment at or below a directory, once, in order of recording per writer."""
    # A forwarder may archive a segment meanwhile: look for it first, then for its archive.
    paths = {path.name: path for path in directory.rglob("*-*.*.jsonl")}
    for path in directory.rglob("*-*.*.jsonl.zst"):
        paths.setdefault(path.name.removesuffix(".zst"), path)
    return [path for _, path in sorted(paths.items())]


def contents_below(directory: Path) -> dict[Path, bytes]:
    """Read every file below a directory, without those that a forwarder removes meanwhile."""
    contents = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                contents[path] = path.read_bytes()
    return contents


def read_directory(directory: Path) -> list[Recorded]:
    """Return all spans of the segments below a directory, in order per writer."""
    return [span for path in segments_below(directory) for span in read_segment(path)]


def read_trajectories(directory: Path) -> list[Recorded]:
    """Return the spans below a directory without the lines that hold a batch of scores."""
    return [span for span in read_directory(directory) if "rollout.score_batch" not in span.attributes]


def tree(spans: list[Recorded]) -> dict[str, Any]:
    """Spans of one trace as nested dicts of names, siblings in order of their start.

    Fails unless they are one trace with one root and every parent is there.
    """
    assert len({s.span.trace_id for s in spans}) == 1, "more than one trace"
    by_id = {s.span.span_id: s for s in spans}
    assert len(by_id) == len(spans), "a span id twice"
    roots = [s for s in spans if not s.span.parent_span_id]
    assert len(roots) == 1, f"{len(roots)} roots"
    assert all(s.span.parent_span_id in by_id for s in spans if s is not roots[0]), "an orphan"

    def below(parent: Recorded) -> list[Any]:
        children = [s for s in spans if s.span.parent_span_id == parent.span.span_id]
        children.sort(key=lambda s: s.span.start_time_unix_nano)
        return [{child.name: below(child)} if below(child) else child.name for child in children]

    return {roots[0].name: below(roots[0])}
