"""Settings are read where wandb users keep them; malformed ones are refused."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from otel_rollout_weave import WeaveSpanExporter

KEY = "k" * 40


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A home directory without wandb's files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(**arguments):
    return WeaveSpanExporter(**arguments)._settings


def test_environment_alone_is_enough(monkeypatch):
    """The tracker's own variables configure the exporter.

    Empty variables count as not set.
    """
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_ENTITY", "team")
    monkeypatch.setenv("WANDB_PROJECT", "")
    monkeypatch.setenv("WANDB_RUN_ID", "run1")

    settings = found()

    assert (settings.api_key, settings.entity, settings.project, settings.run_id) == (
        KEY,
        "team",
        None,
        "run1",
    )
    assert (settings.base_url, settings.trace_url) == ("https://api.wandb.ai", "https://trace.wandb.ai")
    assert KEY not in repr(settings)


@pytest.mark.parametrize(
    ("variables", "trace_url"),
    [
        ({"WANDB_BASE_URL": "https://wandb.example/"}, "https://wandb.example/traces"),
        (
            {"WANDB_BASE_URL": "http://inside", "WANDB_PUBLIC_BASE_URL": "https://outside"},
            "https://outside/traces",
        ),
        ({"WANDB_BASE_URL": "http://a", "WF_TRACE_SERVER_URL": "http://b:1/t"}, "http://b:1/t"),
    ],
)
def test_trace_server_defaults_to_the_wandb_servers(monkeypatch, variables, trace_url):
    """As for weave's client it is WF_TRACE_SERVER_URL, else the public /traces."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert found(api_key=KEY).trace_url == trace_url


def test_key_of_wandb_login_is_found(monkeypatch, home):
    """Without WANDB_API_KEY the netrc entry of the server's host is used.

    NETRC names another file.
    """
    (home / ".netrc").write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    (home / "other").write_text("machine wandb.example\n  login user\n  password other-key\n")

    assert found().api_key == KEY
    monkeypatch.setenv("NETRC", str(home / "other"))
    assert found(base_url="https://wandb.example").api_key == "other-key"
    monkeypatch.setenv("WANDB_API_KEY", "e" * 40)
    assert found().api_key == "e" * 40


def test_server_of_wandb_login_is_found(home):
    """Without a variable the server of wandb's settings file is used."""
    (home / ".config" / "wandb").mkdir(parents=True)
    text = "[default]\nbase_url = https://wandb.example\nentity = team\n"
    (home / ".config" / "wandb" / "settings").write_text(text)

    settings = found(api_key=KEY)

    assert (settings.base_url, settings.entity) == ("https://wandb.example", "team")


def test_entity_and_project_may_be_one_setting(monkeypatch):
    """`entity/project` is read as weave.init reads it."""
    monkeypatch.setenv("WANDB_PROJECT", "team/agents")
    settings = found(api_key=KEY)
    assert (settings.entity, settings.project) == ("team", "agents")


def test_missing_key_is_refused_saying_how_to_log_in():
    """The message names the variable, the page with the key and the command."""
    with pytest.raises(ValueError, match=r"WANDB_API_KEY.*https://wandb\.ai/authorize.*wandb login"):
        found()
    with pytest.raises(ValueError, match=r"https://wandb\.example/authorize"):
        found(base_url="https://wandb.example")


@pytest.mark.parametrize(
    ("argument", "variable", "value", "said"),
    [
        ("base_url", "WANDB_BASE_URL", "wandb.example", "expected http"),
        ("base_url", "WANDB_BASE_URL", "http://host:port", "not a valid URL"),
        ("trace_server_url", "WF_TRACE_SERVER_URL", "ftp://host", "expected http"),
        ("project", "WANDB_PROJECT", "50%", "without any of"),
        ("project", "WANDB_PROJECT", "a/b/c", "without any of"),
        ("entity", "WANDB_ENTITY", "a#b", "without any of"),
        ("run_id", "WANDB_RUN_ID", "e/p/r", "without any of"),
        ("api_key", "WANDB_API_KEY", "two words", "no key has"),
    ],
)
def test_malformed_setting_is_named(monkeypatch, argument, variable, value, said):
    """The message names the argument or variable, and what is wrong with it."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with pytest.raises(ValueError, match=said) as by_argument:
        found(**{argument: value})
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=said) as by_variable:
        found()
    assert f"{argument}=" in str(by_argument.value)
    assert variable in str(by_variable.value)


@pytest.mark.parametrize("arguments", [{"timeout": 0}, {"max_request_bytes": 0}])
def test_malformed_argument_is_named(arguments):
    """Each malformed argument is refused by its name."""
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}="):
        found(api_key=KEY, **arguments)


def test_entry_point_finds_the_exporter():
    """OTEL_TRACES_EXPORTER finds the exporter by its name."""
    [point] = entry_points(group="opentelemetry_traces_exporter", name="weave")
    assert point.load() is WeaveSpanExporter
