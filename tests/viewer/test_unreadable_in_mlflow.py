"""Traces of other writers that MLflow cannot return, because a value is nested too deeply."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from typer.testing import CliRunner

from otel_rollout.cli import app
from otel_rollout.exporting.protobuf import request_of
from otel_rollout.otlp.sdk import readable
from otel_rollout_mlflow.database_target import StoreTarget
from otel_rollout_mlflow.mapping import to_mlflow
from otel_rollout_mlflow.server_target import ServerTarget
from otel_rollout_mlflow.settings import resolve
from tests.sdk_spans import Rollouts, decoded

DEEP = '{"k":' * 60 + "1" + "}" * 60


def as_other_writers_do(rollouts: Rollouts) -> list[ReadableSpan]:
    """Return the spans of two trajectories; the first has a deep value."""
    for name in ("deep", "plain"):
        rollouts.identity["rollout.sample_index"] = name
        with rollouts.span(name, "AGENT"):
            pass
    spans = [readable(to_mlflow(decoded(span))) for span in rollouts.ended()]
    [deep] = [span for span in spans if span.name == "deep"]
    deep._attributes = {**(deep.attributes or {}), "mlflow.spanInputs": DEEP}
    return spans


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")
@pytest.mark.parametrize("way", ["server", "database"])
def test_unreadable_trace_is_named_and_the_others_are_imported(
    way: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`show` and `import` print one line without traceback; table and list have the other trajectory."""
    is_server = way == "server"
    uri = request.getfixturevalue("server_uri") if is_server else f"sqlite:///{tmp_path}/mlflow.db"
    settings = resolve(tracking_uri=uri)
    target = ServerTarget(settings) if is_server else StoreTarget(settings)
    target.connect()
    target.create_experiment("foreign")
    experiment = target.experiment_named("foreign")
    assert experiment is not None
    rollouts = Rollouts("foreign", {"rollout.run.id": "run-1"})
    request = request_of(as_other_writers_do(rollouts))
    target.write_spans(request.SerializeToString(), experiment.id)
    target.close()
    monkeypatch.setenv("OTEL_ROLLOUT_PROJECT", "foreign")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("OTEL_ROLLOUT_DELTA_URI", str(tmp_path / "table"))

    imported = CliRunner().invoke(app, ["import", f"mlflow:{uri}", "--to", "delta"])
    shown = CliRunner().invoke(app, ["show", "1/deep/0", "--from", "mlflow"])
    listed = CliRunner().invoke(app, ["show", "--from", "mlflow"])

    assert imported.exit_code == 1
    assert imported.stderr.count("MLflow cannot return the trace tr-") == 1, imported.output
    assert ": 1 span imported" in imported.stdout, imported.output
    assert shown.exit_code == 2
    assert "MLflow cannot return the trace tr-" in " ".join(shown.output.split())
    assert listed.exit_code == 0, listed.output
    assert "1/plain/0" in listed.output
