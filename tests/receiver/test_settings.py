"""The receiver's settings, the variables of its children, and what doctor says about both."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.base.environment import marked, without_receiver
from otel_rollout.base.setting_parsers import bearer_token, listening_address
from otel_rollout.doctor.checks import check_receiver
from otel_rollout.doctor.diagnosis import Verdict
from otel_rollout.record.receiver.listening import ListenError, listen, split_address
from otel_rollout.settings import Settings
from otel_rollout.settings_reader import from_environment, unknown_variables
from otel_rollout.spool.receiver_files import ReceiverAddress, may_start, publish_address
from tests.waits import set_waits


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("true", "127.0.0.1:0"),
        ("false", ""),
        ("none", ""),
        (":4318", "127.0.0.1:4318"),
        ("localhost:4318", "127.0.0.1:4318"),
        ("127.0.0.1:4318", "127.0.0.1:4318"),
        ("[::1]:4318", "[::1]:4318"),
        ("0.0.0.0:0", "0.0.0.0:0"),
    ],
)
def test_address_is_normalized(given_: str, expected: str) -> None:
    """A switch or an address gives an address; it is the same when a child reads it again."""
    assert listening_address(given_) == expected
    assert listening_address(expected) == expected


@pytest.mark.parametrize(
    "wrong", ["yes", "4318", "example.org:4318", "127.0.0.1:65536", "127.0.0.1:²", "a:b:c"]
)
def test_wrong_address_is_refused(wrong: str) -> None:
    """Text that is no numeric address with a port raises ValueError."""
    with pytest.raises(ValueError, match=r"^(is neither|names a host)"):
        listening_address(wrong)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    """The parser raises nothing else, and what it returns can be split."""
    try:
        parsed = listening_address(text)
    except ValueError:
        return
    if parsed:
        host, port = split_address(parsed)
        assert host
        assert 0 <= port < 1 << 16


def test_wrong_token_is_not_shown() -> None:
    """The message about a token that no header can hold does not repeat it."""
    with pytest.raises(ValueError, match="cannot hold"):
        bearer_token("two words")
    _, problems = from_environment({"OTEL_ROLLOUT_RECEIVE_TOKEN": "two words"})
    assert problems == [
        "OTEL_ROLLOUT_RECEIVE_TOKEN has characters that an HTTP header cannot hold; the default is used."
    ]


@given(st.dictionaries(st.sampled_from(["A", "B", "OTEL_TRACES_EXPORTER"]), st.text(max_size=3)))
def test_variables_of_the_receiver_are_told_from_the_users(variables: dict[str, str]) -> None:
    """A child sees its variables; this package sees the environment without them."""
    environ = {"PATH": "/bin", **marked(variables)}
    assert without_receiver(environ) == {"PATH": "/bin"}
    assert not unknown_variables(environ)


def test_settings_ignore_the_variables_for_agents() -> None:
    """A child that records with this package keeps the run's exporters."""
    config = json.dumps({"run_id": "r", "exporters": {"mlflow": {}}})
    environ = {"OTEL_ROLLOUT_CONFIG": config, **marked({"OTEL_TRACES_EXPORTER": "none"})}
    configured, problems = from_environment(environ)
    assert not problems
    assert list(configured.exporters) == ["mlflow"]


def test_port_and_token_outlive_a_receiver(tmp_path: Path) -> None:
    """The next receiver of a directory listens where senders look for it."""
    configured = Settings(receive="127.0.0.1:0")
    listening, address = listen(tmp_path, configured)
    listening.close()
    publish_address(tmp_path, address)
    listening, again = listen(tmp_path, configured)
    listening.close()
    assert again == address
    assert address.token not in repr(address)


def test_one_of_many_processes_starts_a_receiver(tmp_path: Path) -> None:
    """Whoever sees a moment later that none runs leaves the start to the first."""
    assert [may_start(tmp_path, pause=60) for _ in range(3)] == [True, False, False]
    assert may_start(tmp_path, pause=0)


def test_taken_port_and_open_address_name_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error is a sentence that names OTEL_ROLLOUT_RECEIVE."""
    set_waits(monkeypatch, port=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"OTEL_ROLLOUT_RECEIVE: port {port} of 127.0.0.1"):
            listen(tmp_path, Settings(receive=f"127.0.0.1:{port}"))
    with pytest.raises(ListenError, match="can be reached from other machines"):
        listen(tmp_path, Settings(receive="0.0.0.0:0"))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_endpoint_can_be_reached_from_this_machine(host: str) -> None:
    """The endpoint is a URL, for any address that is listened at."""
    endpoint = ReceiverAddress(host, 4318, "a token/").endpoint
    assert endpoint == ("http://[::1]:4318" if host == "::1" else "http://127.0.0.1:4318")
    assert ReceiverAddress(host, 4318, "a+b/").headers == "authorization=Bearer%20a%2Bb%2F"


def test_doctor_says_what_keeps_spans_away() -> None:
    """Off: no row. A loop, a taken port, an open address and a Collector each have their verdict."""

    def verdict(configured: Settings, environ: dict[str, str] | None = None) -> Verdict | None:
        rows = list(check_receiver(environ or {}, configured))
        assert len(rows) <= 1
        return rows[0].verdict if rows else None

    assert verdict(Settings()) is None
    assert verdict(Settings(receive="127.0.0.1:0")) is Verdict.OK
    assert verdict(Settings(receive="0.0.0.0:0")) is Verdict.FAIL
    assert verdict(Settings(receive="127.0.0.1:4318", exporters={"otlp": {}})) is Verdict.FAIL
    collector = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert verdict(Settings(receive="127.0.0.1:0", exporters={"otlp": {}}), collector) is Verdict.WARN
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert verdict(Settings(receive=f"127.0.0.1:{port}")) is Verdict.WARN
