"""What the gateway keeps, hides and counts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

from tests.collector.support import ROOT, Collector, run_python, running_collectors, training_environment
from tests.recording.test_redaction import BY_NAME, decoded, is_readable, line_with
from tests.recording.test_redaction import SECRETS as EVERY_KIND
from tests.waiting import wait_for

GATEWAY_PLACES = ["attribute", "status", "exception", "scope", "name"]
"""Links and lists are left to whoever records."""
KINDS = {kind: secret for kind, secret in EVERY_KIND.items() if kind not in BY_NAME}

GROUPS, SIBLINGS = 200, 4


@pytest.fixture(scope="module")
def sampling(binary, tmp_path_factory) -> Iterator[Collector]:
    """A gateway that samples, after all groups of trajectories."""
    place = tmp_path_factory.mktemp("sampling")
    names = ("gateway.yaml", "sampling.yaml", "to-file.yaml")
    environment = training_environment(place / "spool")
    with running_collectors(binary, place) as start:
        gateway = start(*names, DECISION_AFTER_ROOT="2s", METRICS_INTERVAL="1s", KEEP_REWARD_FROM="1")
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = gateway.endpoint
        run_python(
            "tests.collector.programs.groups_of_every_outcome", environment, str(GROUPS), str(SIBLINGS)
        )
        yield gateway


def decided(gateway: Collector) -> Counter[str]:
    """How many traces the gateway has decided to keep, and not to."""
    counted: Counter[str] = Counter()
    for name, labels, value in gateway.own_metrics():
        if name == "otelcol_processor_tail_sampling_global_count_traces_sampled":
            counted[labels["decision"]] += int(value)
    return counted


def test_sampling_keeps_whole_trajectories_by_outcome_and_a_share_of_whole_groups(sampling):
    """Errors, rewards of 1 and validation are kept.

    Of the rest about a tenth, by whole groups.
    """

    wait_for(lambda: decided(sampling).total() == GROUPS * SIBLINGS, what="every decision")
    wait_for(lambda: len(sampling.traces()) == decided(sampling)["sampled"], what="what is kept")
    traces = defaultdict(list)
    for span in sampling.spans():
        traces[span.span.trace_id].append(span)
    kept = {}
    for trace in traces.values():
        identity = next(span.attributes for span in trace if "rollout.step" in span.attributes)
        kept[identity["rollout.sample_index"], identity["rollout.rollout_n"]] = trace
    assert len(kept) == len(traces)
    late = {(group, 3) for group in (30, 80, 130, 180)}
    whole_sizes = {name: 5 + (name in late) for name in kept}
    assert {name: len(trace) for name, trace in kept.items()} == whole_sizes, "root, 3 tools, scores"

    for group in (10, 60, 110, 160):
        assert (group, 1) in kept, "one with an error"
    for group in (20, 70, 120, 170):
        assert (group, 2) in kept, "one with a reward of 1"
    assert late <= set(kept), "those with a reward of 1 by id, after they ended"
    for group in range(5):
        assert {(group, n) for n in range(SIBLINGS)} <= set(kept), "validation"

    by_group = Counter(group for group, _ in kept)
    whole = {group for group, size in by_group.items() if size == SIBLINGS}
    torn = set(by_group) - whole
    by_chance = whole - set(range(5))
    told = f"{len(kept)} of {GROUPS * SIBLINGS} trajectories are kept; "
    told += f"{len(whole)} groups are whole, {len(torn)} are not"
    print(told)
    assert told in " ".join((ROOT / "docs" / "collector.md").read_text().split()), (
        "docs/collector.md states these numbers"
    )
    by_outcome = {group for group in range(GROUPS) if group % 50 in (10, 20, 30)}
    assert torn <= by_outcome, "only outcome rules split groups"
    assert 0.04 * GROUPS < len(by_chance) < 0.18 * GROUPS, "about a tenth of the rest"


@pytest.mark.parametrize("share", ["0", "25", "100"])
def test_the_share_is_in_per_cent_and_good_rewards_alone_keep_nothing(collector, environment, share):
    """Of solved trajectories, validation and `KEEP_SHARE` per cent of groups are kept."""
    gateway = collector(
        "gateway.yaml", "sampling.yaml", "to-file.yaml", DECISION_AFTER_ROOT="1s", KEEP_SHARE=share
    )
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = gateway.endpoint
    run_python("tests.collector.programs.solved_groups", environment)

    def hashed(group: int) -> float:
        digest = hashlib.sha256(f"grpo/1/{group}".encode()).hexdigest()
        return 100 * int(digest[:7], 16) / 16**7

    kept = {group for group in range(60) if group == 0 or hashed(group) < float(share)}
    wait_for(lambda: len(gateway.traces()) == 2 * len(kept), what="what is kept")
    wait_for(lambda: decided(gateway).total() == 120, what="every decision")
    assert {span.attributes["rollout.sample_index"] for span in gateway.spans()} == kept


def test_secrets_are_hidden_and_token_counts_are_not(collector, environment):
    """No planted secret gets past the gateway, wherever it stood.

    What is about the model's tokens does.
    """
    gateway = collector("gateway.yaml", "to-file.yaml")
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = gateway.endpoint
    run_python("tests.collector.programs.planted_secrets", environment)
    wait_for(lambda: len(gateway.span_ids()) == 2, what="both spans")
    assert "planted" not in gateway.spans_file.read_text()
    (call,) = [span for span in gateway.spans() if span.name == "call"]
    assert call.attributes["gen_ai.usage.input_tokens"] == 1234
    assert call.attributes["gen_ai.usage.output_tokens"] == 56
    assert call.attributes["token_ids"] == "[1, 2, 3]"
    assert call.attributes["tool.api_key"] == "****"
    assert "and it works" in call.output, "only the secret is hidden, not what stands around it"


def test_every_kind_of_secret_is_hidden_on_every_part_of_a_span(collector):
    """The kinds of secrets are those of the recorder.

    They occur in text, JSON in JSON, names, messages and events.
    """
    gateway = collector("gateway.yaml", "to-file.yaml")
    nestings = [
        str,
        json.dumps,
        lambda text: json.dumps({"a": json.dumps({"b": text})}),
        lambda text: f"x:\n{text}\ny",
    ]
    kinds = [(kind, nesting) for kind in sorted(KINDS) for nesting in range(len(nestings))]
    lines = [
        line_with(nestings[nesting](KINDS[kind].text), where).replace(b"c" * 16, b"%016x" % number, 1)
        for number, (kind, nesting, where) in enumerate(
            ((kind, nesting, where) for kind, nesting in kinds for where in GATEWAY_PLACES), 1
        )
    ]
    for line in lines:
        send(gateway, b'{"resourceSpans":[{"scopeSpans":[{' + line)
    wait_for(lambda: len(gateway.span_ids()) == len(lines), what="every span")
    written = decoded(gateway.spans_file.read_bytes())
    readable = [kind for kind in KINDS if is_readable(KINDS[kind].hidden, written)]
    assert not readable
    assert "rollout.redacted" not in written
    assert '"name":"op"' in written


def send(gateway: Collector, request: bytes) -> None:
    """Hand spans to a Collector."""
    head = {"Content-Type": "application/json"}
    with urlopen(Request(f"{gateway.endpoint}/v1/traces", request, head), timeout=30) as answer:
        assert answer.status == 200


def test_prometheus_reads_latency_errors_and_scores_of_every_trajectory(sampling):
    """Metrics are taken before sampling: they count what was dropped as well."""

    def count(name: str, **labels: str) -> float:
        return sum(
            value for n, has, value in sampling.span_metrics() if n == name and labels.items() <= has.items()
        )

    everything = float(GROUPS * SIBLINGS)
    calls = "rollout_calls_total"
    wait_for(lambda: count(calls, span_name="tool") == 3 * everything, 60, "metrics of all spans")
    assert count(calls, openinference_span_kind="AGENT") == everything
    assert count(calls, openinference_span_kind="AGENT", rollout_validate="true") == 5 * SIBLINGS
    assert count(calls, span_name="tool", status_code="STATUS_CODE_ERROR") == 4
    assert count("rollout_duration_seconds_count", span_name="tool") == 3 * everything
    assert count("rollout_duration_seconds_bucket", span_name="tool", le="1800") == 3 * everything
    scores = "rollout_scores_calls_total"
    assert count(scores, gen_ai_evaluation_name="reward", rollout_score_range="1 or more") == 8
    assert count(scores, gen_ai_evaluation_name="reward", rollout_score_range="0.25 to 0.5") == everything - 4
