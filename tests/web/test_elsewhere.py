"""Links lead to the trajectory in MLflow and Weave, without a credential."""

from __future__ import annotations

import pytest

from otel_rollout.look.errors import ViewerError
from otel_rollout.look.web.links import Trackers
from otel_rollout_weave.ids import call_id_of
from tests.ports import free_port

TRACE, ROOT = f"{7:032x}", f"{9:016x}"
CALL = call_id_of(TRACE, ROOT)


def test_no_variable_is_no_link() -> None:
    """Without a tracker nothing is linked."""
    trackers = Trackers()
    assert not trackers.are_known
    assert trackers.links(TRACE, ROOT, "project") == []


def test_links_have_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords and keys of the environment are not on the page."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:5000")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_ENTITY", "a team")
    assert Trackers().links(TRACE, ROOT, "my/project") == [
        ("MLflow", f"/mlflow?trace={TRACE}"),
        ("Weave", f"https://wandb.ai/a%20team/my-project/r/call/{CALL}"),
    ]


def test_account_without_entity_is_not_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only W&B knows the default entity of a key."""
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert Trackers().links(TRACE, ROOT, "project") == []


def test_database_of_mlflow_has_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database alone has no server to link to."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    assert Trackers().links(TRACE, ROOT, "project") == []


def test_mlflow_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the server without its password."""
    port = free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{port}")
    with pytest.raises(ViewerError, match=f"MLflow cannot be asked: .*127.0.0.1:{port}") as raised:
        Trackers().mlflow_page(TRACE)
    assert "secret" not in str(raised.value)
