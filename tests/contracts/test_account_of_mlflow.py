"""`show` and `group` tell of MLflow what the account does, for generated recordings.

MLflow has no trajectory without a span that has no parent (docs/mlflow.md), and no copies of spans. Scores by
identity are looked for by a forwarder, in ``tests/mlflow/test_mlflow_identities.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rollout.look.sources.spool_source import SpoolSource
from otel_rollout_mlflow import MlflowSpanExporter
from tests.contracts import asked
from tests.contracts.account import Recording, is_by_identity, once, trajectories_of
from tests.contracts.allowed import is_allowed
from tests.contracts.figures_told import of_siblings
from tests.contracts.lists_told import of_rows
from tests.contracts.made_spans import Made, lines_of
from tests.contracts.recordings import recorded_by


def in_mlflow(seed: int) -> list[Made]:
    """Return the spans of the newest run that MLflow can have."""
    spans = [span for span in once(recorded_by(seed)) if not is_by_identity(span)]
    whole = {one.trace_id for one in trajectories_of(spans) if one.end is not None and not one.root.inside}
    known = [span for span in spans if span.trace_id in whole]
    newest = max(span.run for span in known if span.span == 1)
    traces = {span.trace_id for span in known if span.span == 1 and span.run == newest}
    return [span for span in known if span.trace_id in traces]


@pytest.mark.parametrize("seed", [1, 9])
@pytest.mark.filterwarnings("ignore")  # MLflow's client warns of what its database does
def test_mlflow_gives_the_figures_of_the_account(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, states, rewards, durations and tokens of a list, and the siblings of a group."""
    recording = Recording(in_mlflow(seed))
    uri, lines = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "lines.jsonl"
    lines.write_text(lines_of(recording.spans))
    exporter = MlflowSpanExporter(tracking_uri=uri)
    exporter.export(list(SpoolSource(lines).every_span()))
    exporter.shutdown()
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", recording.project)
    listed = asked.printed(f"mlflow:{uri}", "show")
    told = list(of_rows("show of MLflow", listed, recording.of_run))
    for of in recording.groups().values():
        group = asked.parsed(f"mlflow:{uri}", "group", of[0].group_path, "--json")
        told += of_siblings("group of MLflow", group, of)
    assert [str(each) for each in told if not is_allowed(each)] == []
